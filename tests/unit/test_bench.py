# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of a bench: medians, noise, comparison, lines, drawing, table."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.callback.fleet_report import CallbackModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import (
    Row,
    attempt,
    compare,
    direction,
    figure,
    record,
    tsv,
    verdict,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_plot import plot
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_store import last_of_another_era, stem_of, write
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_table import bench_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from hypothesis import given
from hypothesis import strategies as st

HEAD = {"at": "2026-11-30T13:00:00+00:00", "kind": "shapes", "endpoint": "chat", "era": "e2", "note": ""}
ROWS = [
    Row({"prompt": 512, "output": 64}, {"decode_tps": [50.0, 52.0, 51.0], "acceptance": [0.5, 0.5, 0.5]}),
    Row({"prompt": 4096, "output": 64}, error="no answer:\tHTTP 400\nthe window"),
]


@pytest.mark.parametrize(
    ("samples", "median", "spread"),
    [([3.0], 3.0, 0.0), ([1.0, 9.0, 2.0], 2.0, 8.0), ([1.0, 2.0, 3.0, 10.0], 2.5, 9.0), ([1 / 3, 1 / 3], 0.3333, 0.0)],
)
def test_a_figure_is_median_and_spread(samples: list[float], median: float, spread: float) -> None:
    assert figure(samples) == {"median": median, "spread": spread, "n": len(samples)}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_the_median_lies_within_the_samples_and_the_spread_is_their_width(samples: list[float]) -> None:
    told = figure(samples)
    assert min(samples) - 1e-4 <= told["median"] <= max(samples) + 1e-4
    assert told["spread"] == pytest.approx(max(samples) - min(samples), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("prefill_tps", 1),
        ("on_decode_tps", 1),
        ("acceptance", 1),
        ("identical", 1),
        ("cached_share", 1),
        ("ttft_s", -1),
        ("peak_r9700-1_mib", -1),
        ("prompt_tokens", 0),
        ("drafted_tokens", 0),
    ],
)
def test_which_end_of_a_figure_is_the_good_one(name: str, good: int) -> None:
    assert direction(name) == good


@pytest.mark.parametrize(
    ("now", "before", "good", "told"),
    [
        ((100, 5, 3), (100, 5, 3), 1, "same"),
        ((105, 5, 3), (100, 1, 3), 1, "same"),  # just within the larger spread, the new one's
        ((95, 1, 3), (100, 5, 3), 1, "same"),  # and the old one's
        ((105.1, 5, 3), (100, 1, 3), 1, "better"),
        ((94.9, 1, 3), (100, 5, 3), 1, "worse"),
        ((94.9, 1, 3), (100, 5, 3), -1, "better"),
        ((120, 1, 3), (100, 5, 3), -1, "worse"),
        ((120, 1, 3), (100, 5, 3), 0, None),
        ((120, 0, 1), (100, 5, 3), 1, None),  # one sample says nothing of noise
        ((120, 5, 3), (100, 0, 1), 1, None),
        ((1, 0, 2), (1, 0, 2), 1, "same"),
        ((1, 0, 2), (0.9, 0, 2), 1, "better"),
    ],
)
def test_a_comparison_within_the_noise(
    now: tuple[float, ...], before: tuple[float, ...], good: int, told: str | None
) -> None:
    sides = [dict(zip(("median", "spread", "n"), one, strict=True)) for one in (now, before)]
    assert verdict(sides[0], sides[1], good) == told


def test_a_fault_costs_one_row_and_a_bug_is_no_row() -> None:
    def refuse() -> dict[str, list[float]]:
        raise FleetError("no answer", found="HTTP 400")

    assert attempt({"prompt": 1}, lambda: {"decode_tps": [1.0]}) == Row({"prompt": 1}, {"decode_tps": [1.0]})
    assert attempt({"prompt": 2}, refuse) == Row({"prompt": 2}, {}, "no answer; found HTTP 400.")
    with pytest.raises(ZeroDivisionError):
        attempt({}, lambda: {"x": [1 / 0]})


def earlier(**cell: Any) -> dict[str, Any]:
    rows = [Row({"prompt": 512, "output": 64, **cell}, {"decode_tps": [40.0, 41.0], "prompt_tokens": [500.0, 500.0]})]
    return record({**HEAD, "era": "e1", "at": "2026-11-01T00:00:00+00:00"}, rows)


def test_a_record_is_held_against_the_same_cell_alone() -> None:
    told = record(HEAD, ROWS, earlier())
    assert told["against"] == {"era": "e1", "at": "2026-11-01T00:00:00+00:00"}
    first, second = told["cells"]
    assert first["ok"] and first["error"] is None and first["cell"] == {"prompt": 512, "output": 64}
    assert first["figures"]["decode_tps"] == {"median": 51.0, "spread": 2.0, "n": 3}
    assert {name: one["verdict"] for name, one in first["compared"].items()} == {"decode_tps": "better"}
    assert not second["ok"] and second["figures"] == {} and second["compared"] == {}
    assert compare(first, earlier(output=65)) == {}
    assert compare(first, None) == {} and record(HEAD, ROWS)["against"] is None
    assert json.loads(json.dumps(told)) == told


def test_lines_of_tabs_are_one_a_cell() -> None:
    lines = [line.split("\t") for line in tsv(record(HEAD, ROWS)).splitlines()]
    assert [len(line) for line in lines] == [13, 13, 13]
    first, second = (dict(zip(lines[0], line, strict=True)) for line in lines[1:])
    assert first["prompt"] == "512" and first["ok"] == "1" and first["error"] == ""
    assert (first["decode_tps_median"], first["decode_tps_spread"], first["decode_tps_n"]) == ("51.0", "2.0", "3")
    assert second["ok"] == "0" and second["decode_tps_median"] == ""
    assert second["error"] == "no answer: HTTP 400 the window"


def test_a_drawing_is_well_formed_and_shows_each_cell() -> None:
    rows = [*ROWS, Row({"prompt": 1, "output": 64}, {"decode_tps": [1.0, 1.0]})]
    text = plot(record({**HEAD, "endpoint": "<chat> & co's"}, rows, earlier()))
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    texts = ["".join(one.itertext()) for one in root.iter(f"{space}text")]
    assert "<chat> & co's shapes" in texts and texts.count("prompt 512") == 2 and texts.count("failed") == 2
    assert (
        "51 better" in texts and "prefers-color-scheme:dark" in text and "http://" not in text.replace(space[1:-1], "")
    )
    bars = [one for one in root.iter(f"{space}rect") if one.get("class") in ("bar", "better")]
    assert [float(one.get("width", "")) for one in bars] == [pytest.approx(380 * 51 / 52, abs=0.1), 7.3, 380.0]
    assert len(list(root.iter(f"{space}path"))) == 1  # the one figure that varied


def test_nothing_measured_is_drawn_too() -> None:
    assert ElementTree.fromstring(plot(record(HEAD, [Row({}, error="gone")])))


def test_a_table_shows_figures_comparison_and_failures() -> None:
    text = bench_text("chat on host", record({**HEAD, "note": "a note"}, ROWS, earlier()))
    head, names, first, second = text.splitlines()
    assert head == "chat on host: shapes, era e2, against era e1 (2026-11-01T00:00:00+00:00), a note"
    assert names.split() == ["prompt", "output", "decode_tps", "acceptance"]
    assert "51 ±2 better (+25.9%)" in first and "0.5" in first
    assert second.split()[:4] == ["4096", "64", "-", "-"] and "FAILED: no answer: HTTP 400 the window" in second
    assert "no other era was measured" in bench_text("x", record(HEAD, ROWS))


class Report(CallbackModule):
    """The callback with a display that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._display = SimpleNamespace(banner=self.said.append, display=self.said.append)


@pytest.mark.parametrize("failed", [False, True])
def test_a_play_ends_with_the_benches_also_of_one_that_failed(failed: bool) -> None:
    report = Report()
    told = {"failed": failed, "bench": record(HEAD, ROWS)}
    result = SimpleNamespace(
        _host=SimpleNamespace(get_name=lambda: "h"), _result={"results": [told, {"skipped": True}]}
    )
    (report.v2_runner_on_failed if failed else report.v2_runner_on_ok)(result)
    report.v2_playbook_on_stats(None)
    assert report.said[0] == "BENCH" and report.said[1].startswith("chat on h: shapes, era e2")


def test_results_are_kept_and_the_last_of_another_era_is_found(tmp_path: Path) -> None:
    folder = str(tmp_path / "bench")
    assert last_of_another_era(folder, "shapes", "e2") is None
    for day, era, kind in ((1, "e0", "shapes"), (2, "e1", "shapes"), (3, "e2", "shapes"), (4, "e1", "spec_ab")):
        at = datetime(2026, 11, day, 9, 8, 7, tzinfo=UTC)
        paths = write(stem_of(folder, kind, at), record({**HEAD, "era": era, "kind": kind}, ROWS))
        assert [Path(path).name for path in paths] == [
            f"202611{day:02}T090807Z-{kind}.{suffix}" for suffix in ("json", "tsv", "svg")
        ]
    found = last_of_another_era(folder, "shapes", "e2")
    assert found is not None and found["era"] == "e1" and found["kind"] == "shapes"
    assert last_of_another_era(folder, "shapes", "e9") == {**found, "era": "e2"}
    assert last_of_another_era(folder, "turn_latency", "e2") is None


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is damaged"), ("[]", "is no result of a bench"), ("{}", "at, cells")]
)
def test_a_damaged_result_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "20261130T000000Z-shapes.json").write_text(text)
    with pytest.raises(FleetError, match=words) as caught:
        last_of_another_era(str(tmp_path), "shapes", "e2")
    assert "20261130T000000Z-shapes.json" in caught.value.what
