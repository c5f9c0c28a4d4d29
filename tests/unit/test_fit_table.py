# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bars, the lines around them, and the callback that prints them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.callback.fleet_report import CallbackModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import answer, with_best_split
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_table import LEGEND, bar, fit_lines
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import DRIVER_NOTE, PROJECTOR_NOTE
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import TERMS
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape
from fits import PROJECTOR
from goldens import cards, made
from hypothesis import given
from hypothesis import strategies as st
from test_table import Report


def device(
    free: float | None = None, floor: float | None = None, name: str = "card0", **terms: float
) -> dict[str, Any]:
    told: dict[str, Any] = {f"{term}_mib": terms.get(term, 0) for term in TERMS}
    total = sum(told.values())
    left = None if free is None else free - total
    return {
        "name": name,
        **told,
        "total_mib": total,
        "free_mib": free,
        "floor_mib": floor,
        "free_after_mib": left,
        "fits": left is None or floor is None or left >= floor,
    }


@pytest.mark.parametrize(
    ("told", "want"),
    [
        # Each cell is 10 MiB of the card's 100.
        (device(100, 0, weights=50, kv=20), "[WWWWWKK...]"),
        (device(100, 20, weights=50), "[WWWWW...|.]"),
        (device(100, 20, weights=50, kv=40), "[WWWWWKKK|.]"),
        (device(100, 100, weights=50), "[WWWWW.....]"),
        (device(100, 120, weights=50), "[WWWWW.....]"),
        (device(100, 0, weights=100), "[WWWWWWWWWW]"),
        (device(100, 10, weights=130), "[WWWWWWWWWW]!!!"),
        (device(100, 10, weights=1e6), "[WWWWWWWWWW]!!!!!"),
        (device(100, 0, **dict.fromkeys(TERMS, 100 / 11)), "[WKRDDPACCG]"),
        # Terms of less than a cell add up.
        (device(100, 0, weights=4, kv=4, recurrent=4, compute=4), "[KC........]"),
        (device(100, 0), "[..........]"),
        # A host of which nobody said what is free: all of the bar is what is taken.
        (device(None, None, weights=30, kv=10), "[WWWWWWWWKK]"),
        (device(None, None), "[]"),
        (device(0, 0), "[..........]"),
        (device(0, 0, weights=1), "[WWWWWWWWWW]!!!!!"),
    ],
)
def test_bars(told: dict[str, Any], want: str) -> None:
    assert bar(told, 10) == want


SIZES = st.one_of(st.just(0.0), st.floats(0, 2e5))


@given(st.one_of(st.none(), SIZES), SIZES, st.integers(1, 60), st.fixed_dictionaries(dict.fromkeys(TERMS, SIZES)))
def test_a_bar_is_in_order_and_never_wider(
    free: float | None, floor: float, width: int, terms: dict[str, float]
) -> None:
    text = bar(device(free, floor, **terms), width)
    found = re.fullmatch(r"\[([A-Z.|]*)\](!*)", text)
    assert found is not None, text
    cells, over = found.groups()
    assert len(cells) <= width and len(over) <= width // 2
    assert free is None or len(cells) == width
    letters = "".join(dict.fromkeys(cells.replace("|", "")))
    assert re.fullmatch("W?K?R?D?P?A?C?G?[.]?", letters), text
    assert cells.count("|") <= 1
    if over:
        assert "." not in cells and "|" not in cells


PAIR = (Card("left", 2000, 100), Card("right", 2000, 200))


def told_of(boot: Boot, near: Any = (), rungs: Any = None) -> dict[str, Any]:
    return {"name": "chat", "fit": answer(boot, near=near), "rungs": rungs or {}}


def test_lines() -> None:
    boot, near = with_best_split(Boot(made(layers=8), Shape(65536, parallel=2), PAIR))
    fit = answer(boot, near=near)
    assert fit["fits"] and len(near) == 2
    short = answer(Boot(made(layers=8), Shape(1 << 20, parallel=2), PAIR))
    rungs = {"longer": short, "wrong": {"fits": False, "error": "CTX_SIZE is odd."}}
    lines = fit_lines("chat on box", {"fit": {**fit, "measured": "boot 7"}, "rungs": rungs})
    assert lines[0] == "chat on box"
    rows = [line for line in lines if "[" in line]
    assert [line.split("[")[0].split() for line in rows] == [
        ["declared", "left"],
        ["right"],
        ["longer", "left"],
        ["right"],
    ]
    assert {line.index("[") for line in rows} == {rows[0].index("[")}
    assert re.search(r"\] +\d+ of 2,000 MiB, [\d,]+ left, floor 100: fits$", rows[0])
    assert rows[2].endswith("DOES NOT FIT")
    text = [line.strip() for line in lines]
    assert text.index("with figures measured at this shape: boot 7") == 3
    for one in near:
        assert sum(f"TENSOR_SPLIT={','.join(map(str, one.split))} would leave" in line for line in text) == 1
    assert sum(" is enough: frees " in line for line in text) == len(short["advice"]) > 0
    assert "wrong     CTX_SIZE is odd." in text
    notes = [line for line in text if line.startswith("note: ")]
    assert text[-len(notes) :] == notes and f"note: {DRIVER_NOTE}" in notes


def test_the_host_has_a_row_where_it_decides() -> None:
    def rows(**facts: Any) -> list[str]:
        boot = Boot(made(), **facts)
        return [line.split("[")[0].split()[-1] for line in fit_lines("chat", told_of(boot)) if "[" in line]

    assert rows(shape=Shape(4096), cards=PAIR, host=Card("host", 500, 1)) == ["left", "right"]
    assert rows(shape=Shape(4096), cards=PAIR, host=Card("host", 500, 499.9)) == ["left", "right", "host"]
    assert rows(shape=Shape(4096, backend="cpu"), host=Card("host", 500, 1)) == ["host"]
    (line,) = [line for line in fit_lines("chat", told_of(Boot(made(), Shape(4096, backend="cpu")))) if "[" in line]
    assert re.search(r"\] +\d+ MiB$", line)


# The callback.
def test_the_newest_fit_of_each_endpoint_is_printed_before_the_table() -> None:
    report = Report()
    old, new = (told_of(Boot(made(), Shape(4096), tuple(cards(1, free)))) for free in (100, 3000))
    report.saw("a", {"results": [{**old, "name": "chat"}, {"skipped": True}]})
    report.saw("a", new)
    report.saw("b", {"fit": new["fit"], "endpoint": {"name": "code"}})
    report.saw("b", {**old, "name": "broken", "failed": True, "what": "it does not fit"}, failed=True)
    report.saw("b", {"name": "unread", "warnings": ["whether it fits cannot be told yet"]})
    report.saw("b", {"fit": "a word"})
    report.v2_playbook_on_stats(None)
    at = report.printed.index("FIT")
    first, second, legend = report.printed[at + 1 :]
    assert first == "\n".join(fit_lines("chat on a", new))
    assert second == "\n".join(fit_lines("code on b", {"fit": new["fit"]}))
    assert legend == LEGEND
    assert report.printed[0] == "FAULTS"


def test_without_a_fit_nothing_is_said_of_it() -> None:
    report = Report()
    report.v2_playbook_on_stats(None)
    assert report.printed == []


def test_the_legend_names_every_letter() -> None:
    drawn = bar(device(100, 10, **dict.fromkeys(TERMS, 8.0)), 200) + bar(device(1, 0, weights=2), 4)
    assert {letter for letter in drawn if letter not in "[]|"} == {part.split()[0] for part in LEGEND.split(", ")}
    assert CallbackModule.CALLBACK_NEEDS_ENABLED


def test_a_rungs_notes_are_told_too() -> None:
    plain = Boot(made(layers=8), Shape(8192, parallel=2), PAIR)
    sighted = answer(replace(plain, mmproj=PROJECTOR))
    lines = fit_lines("chat on box", told_of(plain, rungs={"sighted": sighted}))
    notes = [line for line in lines if line.startswith("  note: ")]
    assert notes == [f"  note: {DRIVER_NOTE}", f"  note: {PROJECTOR_NOTE}"]
