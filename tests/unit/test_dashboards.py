# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grafana's dashboards: the files are what the table says, and every panel stands and asks as it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import dashboards
from ansible_collections.dank.llm_fleet.plugins.module_utils._promql import series_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_file_is_what_the_table_says(name: str) -> None:
    text = (dashboards.FOLDER / f"{name}.json").read_text()
    assert json.loads(text) == dashboards.dashboard(name), "run python tools/dashboards.py"
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_check_names_what_is_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(dashboards, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["dashboards.py", "--check"])
    assert dashboards.main() == 1 and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "argv", ["dashboards.py"])
    assert dashboards.main() == 0
    board = tmp_path / "fleet.json"
    board.write_text(board.read_text().replace("LLM fleet", "LLM flood"))
    monkeypatch.setattr(sys, "argv", ["dashboards.py", "--check"])
    capsys.readouterr()
    assert dashboards.main() == 1 and capsys.readouterr().out.startswith("fleet.json is out of date")


def test_it_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "dashboards.py", "--check"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    panels = dashboards.dashboard(name)["panels"]
    places = [
        (x, y) for one in panels for p in [one["gridPos"]] for x in range(p["x"], p["x"] + p["w"]) for y in [p["y"]]
    ]
    assert len(set(places)) == len(places) and max(x for x, _y in places) < 24
    assert len({one["id"] for one in panels}) == len(panels)
    assert len({one["title"] for one in panels}) == len(panels)


def test_both_engines_are_shown_and_every_query_can_be_read() -> None:
    for name in dashboards.DASHBOARDS:
        board = dashboards.dashboard(name)
        asked = dashboards.queries(board)
        assert len(asked) == sum(len(one["targets"]) for one in board["panels"]) + len(dashboards.DASHBOARDS[name][2])
        assert all(series_of(query) for query in asked.values())
    names = set().union(*map(series_of, dashboards.queries(dashboards.dashboard("endpoint")).values()))
    assert {name.partition(":")[0] for name in names if ":" in name} == {"llamacpp", "vllm", "llm_fleet"}
