# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Env lines as a shape, and which declared card is behind which of the engine's devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import cards_of, device_names, shape_of_env
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape


def card(name: str, vendor: str, index: int | None, uuid: str | None = None) -> dict[str, Any]:
    return {"name": name, "vendor": vendor, "index": index, "uuid": uuid, "free_mib": 32624, "floor_mib": 1536}


# Declared the other way round: the engine counts by index.
AMD = [card("right", "amd", 1, "GPU-bbbb"), card("left", "amd", 0, "GPU-aaaa")]
NVIDIA = [card("ada", "nvidia", 0, "GPU-cccc"), card("turing", "nvidia", 1, "GPU-dddd")]
BARE = [{**card("only", "nvidia", None), "floor_mib": None}]


@pytest.mark.parametrize(
    ("cards", "env", "want"),
    [
        (AMD, {}, [("ROCm0", "left"), ("ROCm1", "right")]),
        (NVIDIA, {}, [("CUDA0", "ada"), ("CUDA1", "turing")]),
        (BARE, {}, [("CUDA0", "only")]),
        (AMD, {"HIP_VISIBLE_DEVICES": "0,1"}, [("ROCm0", "left"), ("ROCm1", "right")]),
        (AMD, {"HIP_VISIBLE_DEVICES": "1,0"}, [("ROCm0", "right"), ("ROCm1", "left")]),
        (AMD, {"HIP_VISIBLE_DEVICES": "1"}, [("ROCm0", "right")]),
        (AMD, {"HIP_VISIBLE_DEVICES": "GPU-bbbb,0"}, [("ROCm0", "right"), ("ROCm1", "left")]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "GPU-dddd"}, [("CUDA0", "turing")]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1,0"}, [("CUDA0", "turing"), ("CUDA1", "ada")]),
        # The other vendor's line moves nothing.
        (NVIDIA, {"HIP_VISIBLE_DEVICES": "1"}, [("CUDA0", "ada"), ("CUDA1", "turing")]),
        (AMD, {"DEVICE": "ROCm1"}, [("ROCm1", "right")]),
        (AMD, {"DEVICE": "ROCm1,ROCm0"}, [("ROCm1", "right"), ("ROCm0", "left")]),
        (AMD, {"DEVICE": "ROCm0", "HIP_VISIBLE_DEVICES": "1,0"}, [("ROCm0", "right")]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (AMD, {"DEVICE": "none"}, []),
        ([], {"DEVICE": "ROCm0"}, []),
    ],
)
def test_devices(cards: list[dict[str, Any]], env: dict[str, str], want: list[tuple[str, str]]) -> None:
    assert [(name, found["name"]) for name, found in device_names(env, cards).items()] == want
    assert [found.name for found in cards_of(env, cards)] == [name for _, name in want]
    vendors = {"amd": "hip", "nvidia": "cuda"}
    backend = shape_of_env({"CTX_SIZE": "512", **env}, cards).backend
    assert backend == (vendors[cards[0]["vendor"]] if want else "cpu")


@pytest.mark.parametrize(
    ("cards", "env", "match"),
    [
        (AMD, {"HIP_VISIBLE_DEVICES": "0,2"}, "HIP_VISIBLE_DEVICES=0,2 names 2; .*right is GPU-bbbb, left is GPU-aaaa"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, "names GPU-aaaa"),
        (AMD, {"DEVICE": "ROCm2"}, "DEVICE=ROCm2 names ROCm2; expected ROCm0 or ROCm1"),
        (AMD, {"DEVICE": "CUDA0"}, "DEVICE=CUDA0 names CUDA0"),
        (AMD, {"DEVICE": "ROCm1", "HIP_VISIBLE_DEVICES": "1"}, "DEVICE=ROCm1 names ROCm1; expected ROCm0"),
        (NVIDIA, {"DEVICE": "CUDA0", "CUDA_VISIBLE_DEVICES": ""}, "no card is visible"),
        ([*AMD, *NVIDIA], {}, "cards of one vendor"),
        ([{**AMD[0], "vendor": None}], {}, "card right; expected its vendor"),
        ([{**AMD[0], "vendor": "intel"}], {}, "vendor amd or nvidia; found intel"),
        ([{"name": "x", "vendor": "amd"}], {}, "card x; expected its free_mib"),
        (AMD, {"SPEC_TYPE": "draft-dflash", "SPEC_DRAFT_DEVICE": "ROCm2"}, "SPEC_DRAFT_DEVICE=ROCm2; expected ROCm0"),
        (AMD, {"SPEC_TYPE": "draft-dflash", "SPEC_DRAFT_DEVICE": "ROCm0", "DEVICE": "ROCm1"}, "expected ROCm1"),
    ],
)
def test_devices_that_no_card_is_behind(cards: list[dict[str, Any]], env: dict[str, str], match: str) -> None:
    with pytest.raises(FleetError, match=match):
        shape_of_env({"CTX_SIZE": "512", **env}, cards)


def test_what_a_card_has() -> None:
    assert cards_of({}, AMD) == (Card("left", 32624.0, 1536.0), Card("right", 32624.0, 1536.0))
    assert cards_of({}, BARE) == (Card("only", 32624.0, 0.0),)
    # Without a split the first device holds all, and the first is that of DEVICE.
    assert cards_of({"SPLIT_MODE": "none", "DEVICE": "ROCm1,ROCm0"}, AMD) == (Card("right", 32624.0, 1536.0),)


FULL = {
    "CTX_SIZE": "327680",
    "PARALLEL": "2",
    "CACHE_TYPE_K": "q8_0",
    "CACHE_TYPE_V": "q4_0",
    "FLASH_ATTN": "on",
    "BATCH_SIZE": "6144",
    "UBATCH_SIZE": "1024",
    "NGL": "30",
    "TENSOR_SPLIT": "36,29.5",
    "SPLIT_MODE": "layer",
    "SPEC_TYPE": "draft-dflash,ngram-mod",
    "SPEC_DRAFT_N_MAX": "7",
    "SPEC_DRAFT_TYPE_K": "q8_0",
    "SPEC_DRAFT_TYPE_V": "q5_1",
    "SPEC_DRAFT_DEVICE": "ROCm1",
}
SHAPE = Shape(
    ctx_size=327680,
    parallel=2,
    cache_type_k="q8_0",
    cache_type_v="q4_0",
    ubatch_size=1024,
    batch_size=6144,
    tensor_split=(36.0, 29.5),
    flash_attn="on",
    spec_type="draft-dflash,ngram-mod",
    spec_draft_n_max=7,
    draft_type_k="q8_0",
    draft_type_v="q5_1",
    draft_cards=("right",),
    gpu_layers=30,
    backend="hip",
)
PLAIN = {"spec_draft_n_max": 3, "draft_type_k": "f16", "draft_type_v": "f16", "draft_cards": None}


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({}, {}),
        # The launcher strips what SPEC_TYPE does not call for.
        ({"SPEC_TYPE": "none"}, {**PLAIN, "spec_type": None}),
        ({"SPEC_TYPE": "ngram-mod"}, {**PLAIN, "spec_type": "ngram-mod"}),
        ({"SPEC_DRAFT_DEVICE": "none"}, {"draft_cards": ()}),
        ({"SPEC_DRAFT_DEVICE": "ROCm1,ROCm0"}, {"draft_cards": ("right", "left")}),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, {"draft_cards": ("left",)}),
        ({"NGL": "all"}, {"gpu_layers": None}),
        ({"NGL": "auto"}, {"gpu_layers": None}),
        ({"NGL": "0"}, {"gpu_layers": 0}),
        ({"SPLIT_MODE": "none"}, {}),
        ({"SPLIT_MODE": "row"}, {"split_mode": "row"}),
        ({"SPLIT_MODE": "tensor"}, {"split_mode": "tensor"}),
        (
            {"DEVICE": "none", "SPLIT_MODE": "row"},
            {"backend": "cpu", "tensor_split": None, "gpu_layers": None, "draft_cards": None},
        ),
    ],
)
def test_shapes(change: dict[str, str], want: dict[str, Any]) -> None:
    assert shape_of_env({**FULL, **change}, AMD) == replace(SHAPE, **want)


def test_absent_lines_are_the_engines_defaults() -> None:
    assert shape_of_env({"CTX_SIZE": "4096"}) == Shape(4096, flash_attn="auto", backend="cpu")
    assert shape_of_env({"CTX_SIZE": "4096", "PARALLEL": "1"}, NVIDIA) == Shape(4096, parallel=1, flash_attn="auto")
