# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The env line that brings a boot back above its floors: each is applied as a line and held against the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import answer, require_room
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_advice import advice_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot, Measured
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import boot_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape
from fits import PROJECTOR, RTX3090, ZEALOT_ENV, entry, payload, reads
from goldens import NINE, QWEN3, TWENTY_SEVEN, cards, header, made

R9700 = {"vendor": "amd", "free_mib": 28000, "floor_mib": 1536}
PAIR = [{"name": "left", "index": 0, **R9700}, {"name": "right", "index": 1, **R9700}]
EXACT_V = {**ZEALOT_ENV, "CACHE_TYPE_V": "f16"}
Q8_KEYS = {**ZEALOT_ENV, "CACHE_TYPE_K": "q8_0"}
MEDIUM = {key: value for key, value in ZEALOT_ENV.items() if not key.startswith(("CACHE", "SPEC"))}
MEDIUM |= {"CTX_SIZE": 262144, "PARALLEL": 2}
SIMPLE = {**EXACT_V, "SPEC_TYPE": "draft-simple"}
BESIDE = {"drafter": "draft.bin", "mmproj": "eye.bin"}
BATCHES = ["UBATCH_SIZE=512", "UBATCH_SIZE=256"]
# Name: env, model, files beside it, MiB that the card is short of (or the cards), what is advised.
CASES: dict[str, tuple[dict[str, Any], str, dict[str, str], Any, list[str]]] = {
    # So short that no context would fit either: all that helps is told.
    "nothing is enough": (
        SIMPLE,
        NINE,
        BESIDE,
        [{**RTX3090, "free_mib": 8000}],
        [
            *BATCHES,
            "SPEC_DRAFT_TYPE_K=q8_0",
            "SPEC_DRAFT_TYPE_V=q8_0",
            "SPEC_TYPE=none",
            "CACHE_TYPE_V=q8_0",
            "CACHE_TYPE_K=q8_0",
            "MMPROJ_FILE=",
        ],
    ),
    # The engine would take quantized values by "auto" in silence: the env rules want "on" beside them.
    "flash attention by auto": (
        {**SIMPLE, "FLASH_ATTN": "auto"},
        NINE,
        BESIDE,
        400,
        [*BATCHES, "SPEC_DRAFT_TYPE_K=q8_0", "SPEC_TYPE=none", "CACHE_TYPE_K=q8_0", "CTX_SIZE="],
    ),
    # f16 copies of a quantized cache of one layer, as a head has, take more than the cache gives back.
    "a head": (
        EXACT_V,
        NINE,
        {},
        400,
        [*BATCHES, "SPEC_TYPE=none", "CACHE_TYPE_V=q8_0", "CACHE_TYPE_K=q8_0", "CTX_SIZE="],
    ),
    "the batch is not enough": (ZEALOT_ENV, NINE, {}, 2000, ["SPEC_TYPE=none", "CACHE_TYPE_K=q8_0", "CTX_SIZE="]),
    "without a drafter": ({**ZEALOT_ENV, "SPEC_TYPE": "none"}, NINE, {}, 1500, ["CACHE_TYPE_K=q8_0", "CTX_SIZE="]),
    "a bad split": ({**MEDIUM, "TENSOR_SPLIT": "50,16"}, TWENTY_SEVEN, {}, PAIR, ["TENSOR_SPLIT=34,32", "CTX_SIZE="]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_line_does_what_it_says(name: str, tmp_path: Path) -> None:
    env, model, files, held, lines = CASES[name]
    for file in files.values():
        (tmp_path / file).touch()
    read = reads(eye=PROJECTOR, draft=header(QWEN3), gguf=header(model))
    here = entry(tmp_path, env, model, payload=payload(tmp_path, model=f"{model}.gguf", **files))

    def judge(**lines: str) -> dict[str, Any]:
        return answer(boot_of(here, {**env, **lines}, read=read))

    if isinstance(held, int):
        held = [{**RTX3090, "free_mib": judge()["cards"][0]["total_mib"] + RTX3090["floor_mib"] - held}]
    here["cards"] = held
    before = judge()
    found = [one["line"] for one in before["advice"]]
    assert len(found) == len(lines) and all(map(str.startswith, found, lines)), found
    for one in before["advice"]:
        key, value = one["line"].split("=", 1)
        after = judge(**{key: value})
        assert one["fits"] == after["fits"] == (name != "nothing is enough")
        devices = zip([*before["cards"], before["host"]], [*after["cards"], after["host"]], strict=True)
        frees = {old["name"]: old["total_mib"] - new["total_mib"] for old, new in devices}
        assert one["frees_mib"] == pytest.approx(frees)
        rooms = [card["free_after_mib"] - card["floor_mib"] for card in after["cards"]]
        assert one["room_mib"] == pytest.approx(min(rooms))
        if key == "CTX_SIZE":  # the longest: one window of 256 a slot more does not fit
            step = 256 * env["PARALLEL"]
            assert int(value) % step == 0
            assert not judge(CTX_SIZE=str(int(value) + step))["fits"]
            assert f"{int(value) // env['PARALLEL']:,} tokens a slot" in one["costs"]


def test_nothing_is_advised_where_it_fits(tmp_path: Path) -> None:
    told = answer(boot_of(entry(tmp_path), ZEALOT_ENV))
    assert (told["fits"], told["advice"]) == (True, [])
    require_room("chat", told)


def test_the_refusal(tmp_path: Path) -> None:
    told = answer(boot_of(entry(tmp_path), EXACT_V))
    with pytest.raises(FleetError) as caught:
        require_room("chat", told)
    assert caught.value.message == (
        "endpoint chat does not fit card rtx3090; expected 1,024 MiB free of 29,288 with the endpoint up; "
        "found 30,994 MiB needed, -1,706 left; largest: kv 18,816, weights 8,292, draft kv 2,352 MiB. "
        "Change one of these env lines, what costs least first:\n"
        + "\n".join(advice_text(one) for one in told["advice"])
        + "."
    )
    assert caught.value.facts["fit"] is told
    assert "CACHE_TYPE_V=q8_0 is enough: frees 3,314 MiB on rtx3090; costs exactness" in caught.value.message


def test_of_several_cards_the_fullest_is_named() -> None:
    told = answer(Boot(made(), Shape(256, parallel=1), (Card("a", 7, 1), Card("b", 5, 1), Card("c", 7, 1))))
    with pytest.raises(
        FleetError, match=r"endpoint chat does not fit card b; expected 1 MiB free of 5 .*or a larger card"
    ):
        require_room("chat", {**told, "advice": []})


def test_a_host_that_is_short_is_named_and_advised_by_what_frees_it(tmp_path: Path) -> None:
    here = boot_of(entry(tmp_path), ZEALOT_ENV, host=Card("host", 2400, 500))
    told = answer(here)
    assert [card["fits"] for card in told["cards"]] == [True]
    assert not told["host"]["fits"]
    # A drafter's cache frees the card alone.
    assert [one["line"].split("=")[0] for one in told["advice"]] == [
        "UBATCH_SIZE",
        "UBATCH_SIZE",
        "SPEC_TYPE",
        "CTX_SIZE",
    ]
    assert all(one["fits"] and one["frees_mib"]["host"] > 0 for one in told["advice"])
    # Where nothing is enough, what frees the card alone is no help either.
    scant = answer(replace(here, host=Card("host", 600, 500)))
    lines = [one["line"] for one in scant["advice"]]
    assert lines == ["UBATCH_SIZE=512", "UBATCH_SIZE=256", "SPEC_TYPE=none"]
    with pytest.raises(FleetError, match="endpoint chat does not fit the host; expected 500 MiB free of 2,400"):
        require_room("chat", told)


def test_no_line_frees_what_was_measured_beyond_the_prediction() -> None:
    shape = Shape(65536, parallel=1, spec_type="draft-mtp", spec_draft_n_max=2)
    bare = Boot(header(NINE), shape, (Card("card0", 12000, 0),))
    spare = answer(bare)["cards"][0]["free_after_mib"]
    figures = {"card0": {"driver_mib": spare + 10}}
    here = replace(bare, measured=(Measured("m", "", "", shape, bare.loads, bare.devices, figures),))
    told = answer(here)
    assert not told["fits"]
    half = replace(bare, shape=replace(shape, ubatch_size=256))
    frees = answer(bare)["cards"][0]["total_mib"] - answer(half)["cards"][0]["total_mib"]
    (batch,) = [one for one in told["advice"] if one["line"] == "UBATCH_SIZE=256"]
    assert batch["frees_mib"]["card0"] == pytest.approx(frees)
    assert batch["room_mib"] == pytest.approx(frees - 10)


def test_the_figures_of_the_shape_that_is_advised_are_used() -> None:
    shape = Shape(65536, parallel=1, spec_type="draft-mtp", spec_draft_n_max=2, draft_type_k="q8_0")
    bare = Boot(header(NINE), shape, (Card("card0", 9000, 0),))
    off = Shape(65536, parallel=1)
    figures = {"card0": {"total_mib": 8999}}
    told = answer(replace(bare, measured=(Measured("m", "", "", off, bare.loads, bare.devices, figures),)))
    (none,) = [one for one in told["advice"] if one["line"] == "SPEC_TYPE=none"]
    assert (none["fits"], none["room_mib"]) == (True, 1)


def test_the_window_of_the_header_can_be_shortened() -> None:
    told = answer(Boot(header(NINE), Shape(0, parallel=1), (Card("card0", 12000, 0),)))
    assert told["n_ctx"] == 262144
    (line,) = [one["line"] for one in told["advice"] if one["line"].startswith("CTX_SIZE=")]
    assert 0 < int(line.removeprefix("CTX_SIZE=")) < 262144


def test_a_boot_that_is_a_byte_short_loses_one_window_of_256() -> None:
    boot = Boot(made(), Shape(8192, parallel=2), tuple(cards(1, 1000)))
    total = answer(boot)["cards"][0]["total_mib"]
    told = answer(replace(boot, cards=(Card("card0", total - 1e-6),)))
    assert "CTX_SIZE=7680" in [one["line"] for one in told["advice"]]


@pytest.mark.parametrize(("layers", "splits"), [(0, []), (1, ["TENSOR_SPLIT=0,1"])])
def test_fewer_layers_than_cards_have_a_verdict_too(layers: int, splits: list[str]) -> None:
    pair = (Card("small", 1), Card("large", 2000))
    told = answer(Boot(made(), Shape(4096, gpu_layers=layers, tensor_split=(1, 1)), pair))
    assert not told["fits"]
    # Without a layer on the cards there is no split to advise.
    assert [one["line"] for one in told["advice"] if one["line"].startswith("TENSOR_SPLIT")] == splits
