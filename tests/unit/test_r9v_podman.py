# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""podman's answers, sound and broken, and the engines' table."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _engines, _r9v_podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._envspec import ENGINES
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_truth import kin_of
from conftest import StandIn

ROW = {
    "Id": "c1", "Name": "two-r9v", "Image": "c0" * 32, "ImageDigest": f"sha256:{'2d' * 32}",
    "State": {"Status": "running", "Pid": os.getpid(), "ConmonPid": os.getppid(), "ExitCode": 0},
    "Mounts": [{"Destination": "/cache", "Source": "/m/cache"}], "NetworkSettings": {"SandboxKey": "/run/netns/x"},
}  # fmt: skip


@pytest.fixture
def podman(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Podman]:
    def make(body: str) -> Podman:
        script = stand_in("podman", body)
        monkeypatch.setattr(_r9v_podman, "_PATH", f"{script.parent}:/usr/bin:/bin")
        return Podman(getpass.getuser())

    return make


def says(value: Any) -> str:
    return f"cat <<'JSON'\n{json.dumps(value)}\nJSON"


def test_images_and_containers(podman: Callable[[str], Podman]) -> None:
    images = [{"Id": "c0" * 32, "RepoDigests": [f"x@sha256:{'2d' * 32}"], "Names": None}]
    found = podman(says(images)).image("2d2d")
    assert found is not None and found.names == ()
    assert podman(says([])).image("2d2d") is None
    box = podman(says([ROW])).container("two-r9v")
    assert box is not None and (box.status, box.pid, box.image_digest, box.netns) == (
        "running", os.getpid(), "2d" * 32, "/run/netns/x",
    )  # fmt: skip
    assert {os.getpid(), os.getppid()} <= kin_of(box)
    assert kin_of(None) == kin_of(replace(box, pid=0)) == frozenset()


def test_who_has_a_folder_mounted(podman: Callable[[str], Podman]) -> None:
    both = podman(f'case "$1" in ps) echo c1 ;; container) {says([ROW])}\n;; esac')
    assert both.running_with("/m/cache") == ["two-r9v"] and both.running_with("/m") == []
    assert podman("true").running_with("/m/cache") == []


def test_no_such_container_is_none_and_any_other_fault_is_told(podman: Callable[[str], Podman]) -> None:
    assert podman("echo 'Error: no such container x' >&2; exit 125").container("x") is None
    with pytest.raises(FleetError, match="exit status 0; found 125: cannot set up namespace"):
        podman("echo 'cannot set up namespace' >&2; exit 125").container("x")
    with pytest.raises(FleetError, match="podman images --format json; expected JSON; found WARN"):
        podman("echo WARN").images()
    with pytest.raises(FleetError, match="user nobody-of-this-name; expected a user"):
        Podman("nobody-of-this-name")


def test_every_engine_has_a_row() -> None:
    assert set(_engines._ENGINES) == set(ENGINES)


def test_the_row_is_found_by_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    rows = {
        name: SimpleNamespace(
            ready=lambda _facts, _gates, idle, name=name: asked.append(f"{name} {idle}"),
            weigh=lambda unit, *_args, name=name: {"of": f"{name} {unit}"},
            foretell=lambda *_args, name=name: name,
            pids=lambda _facts, name=name: frozenset({len(name)}),
        )
        for name in ENGINES
    }
    monkeypatch.setattr(_engines, "_ENGINES", rows)
    _engines.gate_ready({"engine": "r9v"}, Gates(), idle=True)
    _engines.gate_ready({}, Gates(), idle=False)  # an era of before there were two
    assert asked == ["r9v True", "llamacpp False"]
    assert _engines.gate_ledger("u", "i", {"R9V_STATE_FILE": "/s"}, [], None) == {"of": "r9v u"}
    assert _engines.gate_ledger("u", "i", {"SERVER_BIN": "/s"}, [], None) == {"of": "llamacpp u"}


def test_processes_that_serve_are_asked_for_where_a_unit_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    eras = {"up": {"engine": "r9v"}, "down": {"engine": "r9v"}}

    def store(folder: str) -> Any:
        facts = eras.get(Path(folder).name)
        era = None if facts is None else SimpleNamespace(blueprint=SimpleNamespace(facts=facts))
        return SimpleNamespace(current=lambda: era)

    monkeypatch.setattr(_engines, "EraStore", store)
    monkeypatch.setattr(_engines._systemd, "show", lambda unit: SimpleNamespace(main_pid=int(unit == "up.service")))
    monkeypatch.setattr(_engines, "_ENGINES", {"r9v": SimpleNamespace(pids=lambda _facts: frozenset({7}))})
    paths = {name: Paths(name, state=str(tmp_path)) for name in ("up", "down", "new")}
    assert _engines.serving_pids([paths["down"], paths["new"]]) == frozenset()
    assert _engines.serving_pids(list(paths.values())) == frozenset({7})
