# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rates and the state of each file in the progress record."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._meter import FileState, Meter, Rate
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        ([(0, 0)], None),
        ([(0, 0), (1, 100)], 100.0),
        ([(0, 0), (0.1, 100)], None),
        ([(0, 0), (1, 100), (2, 300)], 150.0),
        ([(0, 0), (1, 100), (2, 100), (3, 100)], 100 / 3),
        ([(0, 900), (1, 1000), (2, 0)], None),  # begun anew
        ([(0, 900), (1, 1000), (2, 0), (4, 100)], 50.0),
        ([(second, 10 * second) for second in range(30)] + [(30, 500)], 30.0),  # the first 20 s are forgotten
    ],
)
def test_rate(samples: list[tuple[float, int]], rate: float | None) -> None:
    meter = Rate()
    assert [meter.at(*sample) for sample in samples][-1] == (None if rate is None else pytest.approx(rate))


def test_what_is_in_work_is_shown_and_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class Recorder(Progress):
        def update(self, step: str, **given: Any) -> None:
            seen.append({"step": step, **given})

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    meter = Meter(Recorder(None))
    meter.end([FileState("old", 7, 7, "done")])
    for done in (0, 50):
        meter.show(
            "fetching",
            [
                FileState("a", 10, 10, "done"),
                FileState("b", done, 100, "waiting", "status 429, again in 5 s"),
                FileState("c", 0, 30, "queued"),
            ],
        )
        now[0] += 2
    assert (seen[1]["done"], seen[1]["total"], seen[1]["text"], seen[1]["rate"]) == (67, 147, "1 of 3 files", 25.0)
    assert seen[1]["files"] == [
        {"name": "b", "done": 50, "total": 100, "phase": "waiting", "note": "status 429, again in 5 s", "rate": 25}
    ]
    assert "rate" not in seen[0]["files"][0]
