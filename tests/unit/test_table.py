# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table at the end of a play, and the callback that collects its rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.callback.fleet_report import CallbackModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._table import HEADINGS, age, cells, fault, table
from hypothesis import given
from hypothesis import strategies as st

ROW: dict[str, Any] = {
    "name": "chat",
    "unit": "active (running)",
    "age_s": 3725.0,
    "restarts": 0,
    "payload": "smol",
    "shape": {"ctx_size": 4096, "parallel": 2, "ctx_per_slot": 2048, "cache_type_k": "q8_0", "spec_type": "none"},
    "memory_mib": 512.4,
    "health": "HTTP 200",
    "era": "e1",
    "pinned": None,
    "truth": "ok",
    "probes": [],
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (7620, "2h07m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (356400, "4d03h"),
    ],
)
def test_age(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_cells() -> None:
    assert dict(zip(HEADINGS, cells("box", ROW), strict=True)) == {
        "host": "box",
        "endpoint": "chat",
        "unit": "active (running)",
        "age": "1h02m",
        "payload": "smol",
        "shape": "4096 q8_0/f16",
        "slots": "2 x 2048",
        "memory": "512 MiB",
        "health": "ok",
        "era": "e1",
        "notes": "-",
    }


@pytest.mark.parametrize(
    ("changes", "heading", "text"),
    [
        ({"memory_mib": 1024}, "memory", "1.0 GiB"),
        ({"memory_mib": None}, "memory", "-"),
        ({"cards_mib": 21914.2}, "memory", "512 MiB + 21.4 GiB on cards"),
        ({"cards_mib": 0.0}, "memory", "512 MiB + 0 MiB on cards"),
        ({"memory_fault": "nvidia-smi did not end"}, "notes", "nvidia-smi did not end"),
        ({"health": "HTTP 503"}, "health", "HTTP 503"),
        ({"health": None}, "health", "-"),
        ({"shape": {}}, "shape", "-"),
        ({"shape": {}}, "slots", "-"),
        ({"shape": {**ROW["shape"], "spec_type": "draft"}}, "shape", "4096 q8_0/f16 draft"),
        ({"truth": "slots: expected 2, found 1"}, "notes", "NOT TRUE: slots: expected 2, found 1"),
        ({"truth": None}, "notes", "-"),
        ({"pinned": "rung low", "restarts": 3}, "notes", "pinned to rung low; restarted 3x by systemd"),
        ({"gap_s": 3.21}, "notes", "nothing served for 3.2 s"),
        ({"gap_s": 0.0}, "notes", "-"),
        ({"probes": [{"probe": "chat", "verdict": "pass"}]}, "notes", "1 of 1 probes pass"),
        (
            {
                "probes": [
                    {"probe": name, "verdict": verdict}
                    for name, verdict in (("a", "pass"), ("b", "fail"), ("c", "not-declared"))
                ]
            },
            "notes",
            "b: fail; 1 of 2 probes pass",
        ),
        ({"era": None}, "era", "-"),
        ({"age_s": None}, "age", "-"),
    ],
)
def test_a_cell(changes: dict[str, Any], heading: str, text: str) -> None:
    assert dict(zip(HEADINGS, cells("box", {**ROW, **changes}), strict=True))[heading] == text


def test_table() -> None:
    assert table(("a", "long"), [("wide cell", "x"), ("y", "")]) == "a          long\nwide cell  x\ny"
    assert table(("a", "b"), []) == "a  b"


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.from_regex(r"[a-z]{1,9}", fullmatch=True))))
def test_columns_stand_under_each_other(rows: list[tuple[str, str]]) -> None:
    lines = table(("one", "two"), rows).split("\n")
    assert len(lines) == len(rows) + 1
    assert len({line.rindex("  ") for line in lines}) == 1
    assert [tuple(line.split()) for line in lines[1:]] == rows


class Report(CallbackModule):
    """The callback with what it prints kept."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: list[str] = []
        self._display = SimpleNamespace(banner=self.printed.append, display=self.printed.append)

    def saw(self, host: str, result: Any, failed: bool = False) -> None:
        told = SimpleNamespace(_host=SimpleNamespace(get_name=lambda: host), _result=result)
        (self.v2_runner_on_failed if failed else self.v2_runner_on_ok)(told)

    def lines(self) -> list[str]:
        self.v2_playbook_on_stats(None)
        return self.printed[1].splitlines() if self.printed else []


def test_rows_of_every_form_are_taken_once_in_the_order_first_seen() -> None:
    report = Report()
    report.saw("b", {"endpoint": ROW})
    report.saw("a", {"endpoints": [ROW, {**ROW, "name": "code"}]})
    report.saw("a", {"results": [{"endpoint": {**ROW, "name": "loop"}}, {"skipped": True}]})
    report.saw("b", {"endpoint": {**ROW, "health": "HTTP 503"}})
    lines = report.lines()
    assert [line.split()[:2] for line in lines[1:]] == [["b", "chat"], ["a", "chat"], ["a", "code"], ["a", "loop"]]
    assert "HTTP 503" in lines[1]
    assert report.printed[0] == "ENDPOINTS"


def test_a_failed_task_has_its_row_too() -> None:
    report = Report()
    report.saw("a", {"msg": "x", "endpoint": {**ROW, "truth": "slots: expected 2, found 1"}}, failed=True)
    assert "NOT TRUE: slots" in report.lines()[1]


def test_probes_of_an_earlier_row_stay() -> None:
    report = Report()
    report.saw("a", {"endpoint": {**ROW, "probes": [{"probe": "chat", "verdict": "pass"}]}})
    report.saw("a", {"endpoint": ROW})
    assert "1 of 1 probes pass" in report.lines()[1]
    report.saw("a", {"endpoint": {**ROW, "probes": [{"probe": "chat", "verdict": "fail"}]}})
    report.printed.clear()
    assert "chat: fail" in report.lines()[1]


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        {},
        {"endpoint": "a name"},
        {"endpoints": "text"},
        {"endpoints": ["text"]},
        {"endpoint": {"name": "someone else's"}},
        {"results": None},
        {"results": [None, "text"]},
    ],
)
def test_results_of_other_modules_are_left_alone(result: Any) -> None:
    report = Report()
    report.saw("a", result)
    assert report.lines() == []


FAULT = FleetError(
    "port 80 is taken", expected="a free port", found="pid 7\nof x", remedy="Stop it", went_back_to="era e"
)


def test_a_fault_is_shown_side_by_side() -> None:
    assert fault("box", FAULT.as_result()).splitlines() == [
        "box: port 80 is taken",
        "    expected:    a free port",
        "    found:       pid 7",
        "                 of x",
        "    to do:       Stop it",
        "    serving now: era e",
    ]
    assert fault("box", FleetError("w").as_result()) == "box: w"
    assert fault("box", FleetError("w", found=False).as_result()).splitlines()[1:] == ["    found:       False"]


def test_faults_come_before_the_table_and_only_from_our_modules() -> None:
    report = Report()
    report.saw("a", {"failed": True, "msg": "somebody else's"}, failed=True)
    report.saw("b", {"failed": True, **FAULT.as_result(), "endpoint": ROW}, failed=True)
    good = {"failed": False, "what": "not a fault"}
    report.saw("c", {"failed": True, "results": [good, {"failed": True, "what": "w", "found": 3}]}, failed=True)
    report.v2_playbook_on_stats(None)
    heading, text, table_heading, lines = report.printed
    assert (heading, table_heading) == ("FAULTS", "ENDPOINTS")
    assert text == fault("b", FAULT.as_result()) + "\n\nc: w\n    found:       3"
    assert "chat" in lines
