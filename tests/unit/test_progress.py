# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_is_written(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "p"
    progress = Progress(str(path))
    clock[0] += 10
    progress.update("fetch", done=25, total=100, unit="B", text="m.gguf")
    assert json.loads(path.read_text()) == {
        "step": "fetch",
        "done": 25,
        "total": 100,
        "unit": "B",
        "text": "m.gguf",
        "elapsed_s": 10.0,
        "eta_s": 30.0,
    }


@pytest.mark.parametrize(("done", "total"), [(0, 0), (0, 10), (10, 10), (11, 10), (5, 0)])
def test_no_time_left_is_told_that_is_not_known(tmp_path: Path, done: int, total: int) -> None:
    path = tmp_path / "p"
    Progress(str(path)).update("x", done=done, total=total)
    assert "eta_s" not in json.loads(path.read_text())


def test_at_most_one_write_in_an_interval(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "p"
    progress = Progress(str(path))

    def step() -> str:
        return str(json.loads(path.read_text())["step"])

    progress.update("one")
    progress.update("two")
    assert step() == "one"
    progress.update("three", force=True)
    assert step() == "three"
    clock[0] += 0.6
    progress.update("four")
    assert step() == "four"


def test_close_removes_the_file_and_may_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "p"
    progress = Progress(str(path))
    progress.close()
    progress.update("x")
    progress.close()
    progress.close()
    assert not path.exists()


def test_without_a_path_nothing_happens() -> None:
    progress = Progress(None)
    progress.update("x", force=True)
    progress.close()
