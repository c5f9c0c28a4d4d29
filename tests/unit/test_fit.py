# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict: the reference page's figures from its env lines, and the split and the context that are searched for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import (
    answer,
    require_room,
    with_best_split,
    with_largest_context,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import boot_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape
from fits import PROJECTOR, ZEALOT_ENV, entry
from goldens import LLAMA, NINE, cards, header, made


# The zealot page, by env lines over a file that reads as the whole model, on its card with room for heavier weights.
@pytest.mark.parametrize(
    ("lines", "kept", "fits"),
    [
        # {kv, drafter's kv, recurrent states}
        ({}, (14406, 2352, 452.25), True),
        ({"CTX_SIZE": 401408, "PARALLEL": 2}, (14406 - 4802, 1568, 301.5), True),
        ({"CACHE_TYPE_K": "q8_0"}, (14406 - 4410, 2352, 452.25), True),
        ({"CACHE_TYPE_V": "f16"}, (14406 + 4410, 2352, 452.25), False),
        ({"CACHE_TYPE_V": "f16", "SPEC_TYPE": "none"}, (14406 + 4410, 0, 150.75), True),
        ({"CTX_SIZE": 786432, "CACHE_TYPE_V": "f16", "SPEC_TYPE": "none"}, (24576, 0, 150.75), False),
    ],
)
def test_the_pages_figures(lines: dict[str, Any], kept: tuple[float, ...], fits: bool, tmp_path: Path) -> None:
    here = entry(tmp_path)
    told = answer(boot_of(here, {**ZEALOT_ENV, **lines}))
    (card,) = told["cards"]
    assert (card["kv_mib"], card["draft_kv_mib"], card["recurrent_mib"]) == kept
    assert told["fits"] == card["fits"] == fits
    if fits:
        require_room("frank-zealot", told)
    else:
        with pytest.raises(FleetError, match="frank-zealot does not fit card rtx3090; expected 1,024 MiB free"):
            require_room("frank-zealot", told)


def test_the_answer_adds_up_and_is_json() -> None:
    shape = Shape(8192, parallel=2, tensor_split=(1, 1))
    told = answer(Boot(header(LLAMA), shape, tuple(cards(2, 9000, 100))))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    for card in [*told["cards"], told["host"]]:
        name = None if card is told["host"] else card["name"]
        assert card["total_mib"] == pytest.approx(sum(line["mib"] for line in told["lines"] if line["card"] == name))
    # Nobody said what the host has.
    assert [told["host"][key] for key in ("free_mib", "floor_mib", "free_after_mib", "fits")] == [
        None,
        None,
        None,
        True,
    ]
    assert told["split"] == [17, 16] and told["neighbours"] == []


def test_the_hosts_floor_counts() -> None:
    boot = Boot(header(LLAMA), Shape(8192, backend="cpu"), host=Card("host", 6000, 1000))
    needed = answer(boot)["host"]["total_mib"]
    assert answer(replace(boot, host=Card("host", needed + 1000, 1000)))["fits"]
    assert not answer(replace(boot, host=Card("host", needed + 999, 1000)))["fits"]


# The split.
def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, parts - 1))


SPLITS: dict[str, tuple[Boot, int]] = {
    "unlike cards": (Boot(made(layers=12), Shape(65536, parallel=2)), 13),
    "a projector on the first": (Boot(made(layers=12), Shape(65536, parallel=2), mmproj=PROJECTOR), 13),
    "a drafter on the second": (
        Boot(
            made(layers=12),
            Shape(65536, parallel=1, spec_type="draft-simple", draft_cards=("card1",), tensor_split=(1, 9)),
            drafter=made(layers=3),
        ),
        13,
    ),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("held", [(9000, 8000), (9000, 7000, 8000)])
def test_the_split_leaves_most_room_on_the_fullest_card(name: str, held: tuple[float, ...]) -> None:
    bare, total = SPLITS[name]
    devices = tuple(Card(f"card{number}", free, 100 * number) for number, free in enumerate(held))
    boot = replace(bare, cards=devices)

    def room(split: tuple[float, ...]) -> float:
        ledger = predict(
            boot.model,
            replace(boot.shape, tensor_split=split),
            drafter=boot.drafter,
            mmproj=boot.mmproj,
            cards=devices,
        )
        pairs = zip(devices, ledger.cards, strict=True)
        return min(card.free_mib - card.floor_mib - held.total / MIB for card, held in pairs)

    rooms = {split: room(split) for split in compositions(total, len(held))}
    found, near = with_best_split(boot)
    told = answer(found, near=near)
    split = tuple(told["split"])
    assert found.shape.tensor_split == split and sum(split) == total
    assert rooms[split] == max(rooms.values())
    # One layer either way over each boundary.
    want = {
        tuple(count + (step if at == left else -step if at == left + 1 else 0) for at, count in enumerate(split))
        for left in range(len(held) - 1)
        for step in (1, -1)
    }
    assert {tuple(one["split"]) for one in told["neighbours"]} == {one for one in want if min(one) >= 0}
    for one in told["neighbours"]:
        assert one["room_mib"] == pytest.approx(rooms[tuple(one["split"])])
        floors = {card.name: card.floor_mib for card in devices}
        assert min(mib - floors[card] for card, mib in one["free_after_mib"].items()) == pytest.approx(one["room_mib"])
        assert one["fits"] == (one["room_mib"] >= 0)


def test_one_card_has_no_split() -> None:
    boot = Boot(made(), Shape(4096, tensor_split=(7,)), tuple(cards(1)))
    assert with_best_split(boot) == (replace(boot, shape=Shape(4096)), ())


# The largest context.
@pytest.mark.parametrize(("parallel", "split"), [(2, None), (None, None), (2, (20.0, 13.0))])
def test_the_largest_context_is_the_last_that_fits(parallel: int | None, split: tuple[float, ...] | None) -> None:
    shape = Shape(0, parallel=parallel, tensor_split=split)
    bare = Boot(header(LLAMA), shape, tuple(cards(2, 12000, 1536)))
    found, near = with_largest_context(bare)
    told = answer(found, near=near)
    assert told["fits"] and told["n_ctx"] == found.shape.ctx_size > 65536
    assert sum(told["split"]) == 33 and found.shape.tensor_split == tuple(told["split"])
    assert len(near) == (0 if split else 2)
    longer = replace(found, shape=replace(found.shape, ctx_size=found.shape.ctx_size + 256 * (parallel or 1)))
    assert not answer(longer)["fits"]
    if not split:
        assert not answer(with_best_split(longer)[0])["fits"]


@pytest.mark.parametrize(("free_mib", "beyond"), [(40000, True), (20000, False)])
def test_a_context_beyond_the_trained_window_is_told(free_mib: float, beyond: bool) -> None:
    told = answer(with_largest_context(Boot(header(LLAMA), Shape(0, parallel=1), tuple(cards(1, free_mib))))[0])
    note = f"a slot's {told['n_ctx']:,} tokens are beyond the 131,072 that the model was trained for"
    assert (told["n_ctx"] > 131072, note in told["notes"]) == (beyond, beyond)


def test_a_context_for_one_card_takes_no_split() -> None:
    found, near = with_largest_context(Boot(header(NINE), Shape(0, parallel=1), tuple(cards(1, 12000, 1000))))
    assert (found.shape.tensor_split, near, answer(found)["fits"]) == (None, (), True)


@pytest.mark.parametrize(
    ("boot", "match"),
    [
        (Boot(header(NINE), Shape(0, parallel=1), tuple(cards(1, 5000))), "no context fits; expected at least 256"),
        (Boot(made(), Shape(0, backend="cpu")), "cards with a floor"),
    ],
)
def test_no_context(boot: Boot, match: str) -> None:
    with pytest.raises(FleetError, match=match):
        with_largest_context(boot)
