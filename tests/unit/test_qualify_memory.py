# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory plan that a qualification makes of the profile's settings before its window opens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _qualify_memory
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import asked_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_memory import foretold, released_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import LAYERS, ExpertCosts
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_manifest import bootstrap, catalog

GIB = 1 << 30
PINNED = {"R9V_PLE_RESIDENCY_MODE": "pinned", "R9V_PLE_EXPECTED_BYTES": 50 * GIB, "R9V_PLE_READY_TIMEOUT": 1800}
LOCKED = {7: (0, 2 * GIB), 8: (50 * GIB, 3 * GIB)}  # (locked, its own) of what serves now


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is foretold of a profile of these settings on a host with so much free."""
    monkeypatch.setattr(_qualify_memory, "locked_bytes", lambda pid: LOCKED[pid][0])
    monkeypatch.setattr(_qualify_memory, "anonymous_bytes", lambda pid: LOCKED[pid][1])
    monkeypatch.setattr(_qualify_memory, "available_bytes", lambda: 60 * GIB)
    fork = Fork(str(tmp_path), "ab" * 20, "2d" * 32, "q8", str(tmp_path), (), {})
    qualify = {"profile": "q8", "model_dir": "/m", "port": 7773, "container": "c"}
    declared = Declared(
        "two", "r9v", {"R9V_STATE_FILE": "/s/a.json"}, "rt", {"dir": "/m", "files": []}, "root", "#!",
        rungs={"fresh": {"R9V_STATE_FILE": "/s/b.json", "R9V_MAX_MODEL_LEN": "4096"}},
        setups={"a": {"file": "/s/a.json", "qualify": qualify}, "b": {"file": "/s/b.json", "qualify": qualify}},
    )  # fmt: skip

    def tell(settings: dict[str, Any], *, setup: str = "a", pids: Any = (7, 8), **changes: Any) -> list[str]:
        lines = [f': "${{{key}:={value}}}"' for key, value in settings.items()]
        (tmp_path / "profile.env").write_text("\n".join(lines) + "\n")
        one = replace(declared, **changes)
        return foretold(one, asked_of(one, setup), fork, pids)

    return tell


def names(rows: list[str]) -> list[str]:
    return [row.partition(":")[0] for row in rows]


def test_what_serves_now_gives_its_memory_back(told: Any) -> None:
    assert told(PINNED) == []
    assert released_bytes([7, 8]) == 52 * GIB
    rows = told(PINNED, pids=[7])
    assert names(rows) == ["pinned table", "pinned table, twice while it is pinned anew"]
    assert "Free 4.00 GiB" in rows[0]


def test_the_inventorys_size_of_the_table_counts(told: Any) -> None:
    setups = {"a": {"file": "/s/a.json", "ple_bytes": 100 * GIB,
                    "qualify": {"profile": "q8", "model_dir": "/m", "port": 1, "container": "c"}}}  # fmt: skip
    assert "pinned table" in names(told(PINNED, setups=setups))


def test_a_registration_that_outlasts_the_ready_timeout(told: Any) -> None:
    rows = told({**PINNED, "R9V_PLE_READY_TIMEOUT": 600})
    assert names(rows) == ["registration time"] and "R9V_PLE_READY_TIMEOUT=1800" in rows[0]


@pytest.mark.parametrize(
    ("client", "setup", "red"),
    [
        ({"context_window": 8192}, "a", []),
        ({"context_window": 16384}, "a", ["compaction gap"]),
        ({"context_window": 8192}, "b", ["compaction gap"]),  # the rung's env line wins over the profile
        ({"context_window": 8192, "rungs": {"fresh": 4096}}, "b", []),
    ],
)
def test_what_clients_are_told_of_the_window(told: Any, client: dict[str, Any], setup: str, red: list[str]) -> None:
    assert names(told({"R9V_MAX_MODEL_LEN": 8192}, setup=setup, client=client)) == red


def test_a_profile_that_cannot_be_read_is_warned_of(told: Any, tmp_path: Path) -> None:
    rows = told({"R9V_MAX_MODEL_LEN": "a'b"})
    assert len(rows) == 1 and rows[0].startswith("no memory plan: ") and "profile.env, line 1" in rows[0]


def test_cold_experts_of_a_fixed_placement_are_held_in_host_memory_too(told: Any, tmp_path: Path) -> None:
    """Of 512 experts in 48 layers 112 and 500 are hot, and one weighs 1 MiB on rank 0 and 256 KiB on rank 1."""
    weights = tuple((mib,) * LAYERS for mib in (1 << 20, 1 << 18))
    costs = ExpertCosts((416, 224), (1 << 21,) * LAYERS, (weights[0], weights[1]))
    manifest = bootstrap((112, 500), costs, catalog(costs, "p", []), {})
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    cold = LAYERS * (400 * (1 << 20) + 12 * (1 << 18))  # 18.9 GiB
    rows = told({**PINNED, "R9V_EXPERT_MANIFEST_PATH": tmp_path / "m.json"})
    assert names(rows) == ["pinned table, twice while it is pinned anew"]
    assert f"cold experts {cold:,}" in rows[0]
    assert told({"R9V_EXPERT_MANIFEST_PATH": tmp_path / "m.json"}) == []  # nothing is pinned, nothing is reckoned


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("[]", "found list"),
        ('{"version": 1}', "num_layers None"),
        ("bare", "expert_memory, whose weights"),
    ],
)
def test_a_placement_that_cannot_be_read_is_warned_of(told: Any, tmp_path: Path, text: str | None, words: str) -> None:
    costs = ExpertCosts((416, 224), (2,) * LAYERS, ((1,) * LAYERS, (1,) * LAYERS))
    if text == "bare":
        text = json.dumps({**bootstrap((1, 1), costs, catalog(costs, "p", []), {}), "expert_memory": None})
    if text is not None:
        (tmp_path / "m.json").write_text(text)
    rows = told({**PINNED, "R9V_EXPERT_MANIFEST_PATH": tmp_path / "m.json"})
    assert len(rows) == 1 and rows[0].startswith("no memory plan: ") and words in rows[0]
