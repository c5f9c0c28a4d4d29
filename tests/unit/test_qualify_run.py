# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A qualification from end to end with the host's edges replaced: whatever happens the window is closed, and the state
is ready only after all of it."""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _qualify_run, _qualify_steps
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_checks import MARK, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_evidence import FILES, put
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_run import qualify
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import read_state
from qualifyevidence import evidence
from r9vhost import make_host

STEPS = [
    "stop what serves", "open", "drain", "setup", "start", "truth", "probes", "pinning", "headroom", "stop the profile",
    "end of the window", "close", "judge", "seal", "ready",
]  # fmt: skip


class Killed(BaseException):
    """Stands for SIGKILL: nothing of this process runs after it but what Python cannot help."""


class Blueprint:
    """What a start gives."""

    facts: dict[str, Any] = {"effective": {}}


class Host:
    """The host's edges, replaced: a list of what was done, in its order; ``at`` maps a step to what happens there."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.r9v = make_host(tmp_path)
        self.folder = tmp_path
        self.done: list[str] = []
        self.at: dict[str, BaseException] = {}
        self.told = evidence()
        self.fork = Fork("/fork", "ab" * 20, "2d" * 32, "standin/q8", "/fork/p", (), {})
        state = tmp_path / "fresh" / "setup.json"
        qualify_ = {"profile": "q8", "model_dir": str(self.r9v.model_dir), "port": 7773, "container": "c"}
        self.declared = Declared(
            "two", "r9v", {"R9V_STATE_FILE": str(state)}, "rt", {"dir": "/m", "files": []}, getpass.getuser(), "#!",
            setups={"q8": {"file": str(state), "qualify": {**qualify_, "battery": ["chat", "tools"]}}},
        )  # fmt: skip
        self.paths, self.state = Paths("two", state=str(tmp_path / "var")), state
        self.scratch = tmp_path / "fresh.qualify"
        for name, value in {
            "look_before": self.look,
            "open_window": lambda *_args: self.step("open"),
            "close": self.close,
            "drain": lambda *_args, **_options: self.step("drain"),
            "require_open": lambda _window: None,
        }.items():
            monkeypatch.setattr(_qualify_run, name, value)
        monkeypatch.setattr(_qualify_run._systemd, "stop", lambda _unit, **_options: None)
        steps = _qualify_steps.Steps
        monkeypatch.setattr(steps, "setup", lambda one, _limit: self.setup(one))
        monkeypatch.setattr(steps, "start", lambda one, _patience: (self.put(one, "start"), (Blueprint(), None))[1])
        for name in ("truth", "probes"):
            monkeypatch.setattr(steps, name, lambda one, _blueprint, _api, name=name: self.put(one, name))
        monkeypatch.setattr(steps, "pinning", lambda one, _effective: self.put(one, "pinning"))
        monkeypatch.setattr(steps, "headroom", lambda one: self.put(one, "headroom"))

    def step(self, what: str) -> None:
        if self.done[-1:] != [what]:
            self.done.append(what)
        if what in self.at:
            raise self.at[what]

    def put(self, steps: Any, name: str) -> None:
        self.step(name)
        put(steps.run, name, self.told[name])

    def look(self, *_args: Any, **options: Any) -> Plan:
        return Plan(self.fork, [], ["two.service"], frozenset(), options["warnings"])

    def setup(self, steps: Any) -> None:
        self.step("setup")
        self.scratch.mkdir()
        for name in (MARK, "setup.json", "hot.json"):
            (self.scratch / name).write_text("{}")
        config = {**self.r9v.state["config"], "R9V_EXPERT_MANIFEST_PATH": f"{self.scratch}/hot.json"}
        told = {**self.told["setup"], "state": {**self.r9v.state, "config": config}}
        put(steps.run, "setup", told)

    def close(self, _window: Any, _say: Any) -> tuple[list[str], float]:
        self.step("close")
        return ["two"], time.monotonic()

    def run(self, **options: Any) -> dict[str, Any]:
        self.done.clear()
        return qualify(self.declared, self.paths, "q8", say=lambda step, _seconds=0: self.step(step), **options)

    def runs(self) -> list[Path]:
        return sorted((self.folder / "var" / "qualifications" / "two" / "q8").glob("2*"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_state_is_ready_last_of_all(host: Host) -> None:
    told = host.run()
    assert host.done == STEPS and told["changed"] is True and told["state"] == str(host.state)
    state = read_state(str(host.state))
    assert state.config["R9V_EXPERT_MANIFEST_PATH"] == f"{host.state.parent}/hot.json"
    assert (host.state.parent / "hot.json").exists() and not (host.state.parent / MARK).exists()
    assert not host.scratch.exists()
    assert told["runbook"].startswith("# two: setup q8") and "standin/q8" in told["runbook"]


def test_a_qualified_one_stays_as_it_is_unless_again(host: Host) -> None:
    first = host.run()
    before = host.state.read_bytes()
    for options in ({}, {"dry": True}):
        told = host.run(**options)
        assert host.done == [] and told["changed"] is False and told["work"] is False
        assert told["run"] == first["run"] and told["runbook"] == first["runbook"]
    assert len(host.runs()) == 1 and host.state.read_bytes() == before
    assert host.run(again=True)["changed"] is True
    assert host.done == STEPS and len(host.runs()) == 2


def test_check_mode_says_what_would_be_done_and_does_nothing(host: Host) -> None:
    told = host.run(dry=True)
    assert told["changed"] is True and told["run"] is None and host.done == []
    assert told["would"]["stops"] == [] and told["would"]["masks"] == ["two.service"]
    assert told["would"]["setup"][:3] == ["/fork/r9v", "setup", "q8"] and told["would"]["ready"] == str(host.state)
    assert not (host.folder / "var").exists()


@pytest.mark.parametrize("step", [step for step in STEPS if STEPS.index(step) < STEPS.index("end of the window")])
@pytest.mark.parametrize("fault", [FleetError("broken here"), OSError(28, "No space left on device")])
def test_a_step_that_fails_closes_the_window(host: Host, step: str, fault: Exception) -> None:
    host.at = {step: fault}
    with pytest.raises(FleetError) as caught:
        host.run()
    assert host.done[-2:] == ["end of the window", "close"]
    assert caught.value.facts["went_back_to"] == "two" and caught.value.facts["evidence"] == str(host.runs()[0])
    assert not host.state.exists()
    host.at = {}
    assert host.run()["changed"] is True and read_state(str(host.state))


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_the_state_is_not_ready_and_the_next_run_makes_it(host: Host, step: str) -> None:
    host.at = {step: Killed()}
    with pytest.raises(Killed):
        host.run()
    assert not host.state.exists()
    host.at = {}
    told = host.run()
    # What was measured and sealed is measured once: the next run only puts the state in its place.
    assert host.done == (["ready"] if step == "ready" else STEPS) and told["changed"] is True
    assert read_state(str(host.state)) and not host.scratch.exists()
    assert host.run()["changed"] is False


@pytest.mark.parametrize("name", FILES)
def test_a_red_verdict_leaves_the_state_as_it_was(host: Host, name: str) -> None:
    """Whatever file the fault is in; where none can be in it, the file is left out."""
    spoil = {
        "probes": lambda: host.told["probes"]["verdicts"].pop(0),
        "pinning": lambda: host.told["pinning"].update(processes=[]),
        "headroom": lambda: host.told["headroom"]["cards"][0].update(free_mib=5.0),
        "truth": lambda: host.told["truth"]["links"][0].update(found=1),
    }.get(name)
    if spoil is None:
        return
    spoil()
    with pytest.raises(FleetError, match="does not qualify"):
        host.run()
    assert host.done[-2:] == ["close", "judge"] and not host.state.exists()


def test_a_state_that_was_changed_by_hand_is_not_qualified(host: Host) -> None:
    host.run()
    text = host.state.read_text()
    host.state.write_text(text.replace("131072", "131073"))
    with pytest.raises(FleetError, match=r"is not the one that run .* qualified"):
        host.run()
    host.state.write_text(text)
    assert host.run()["changed"] is False


def test_a_number_changed_in_the_evidence_is_refused_by_the_next_run(host: Host) -> None:
    host.run()
    (run,) = host.runs()
    path = run / "headroom.json"
    path.write_text(path.read_text().replace("3400.0", "3401.0"))
    with pytest.raises(FleetError, match=r"headroom\.json is not what the run wrote"):
        host.run(dry=True)


def test_another_declaration_is_not_qualified_by_the_run(host: Host) -> None:
    host.run()
    setup = host.declared.setups["q8"]
    moved = {**setup, "qualify": {**setup["qualify"], "port": 7774}}
    host.declared = replace(host.declared, setups={"q8": moved})
    assert host.run()["changed"] is False  # the run's own place is no part of it
    host.declared = replace(host.declared, setups={"q8": {**setup, "headroom_gib": 4.0}})
    with pytest.raises(FleetError, match="is declared otherwise than it was qualified"):
        host.run()


def test_killed_between_seal_and_ready_a_file_lost_meanwhile_is_seen(host: Host) -> None:
    host.at = {"ready": Killed()}
    with pytest.raises(Killed):
        host.run()
    host.at = {}
    host.r9v.table.unlink()
    with pytest.raises(FleetError, match="is not whole any more"):
        host.run()
    assert not host.state.exists()


def test_what_does_not_come_back_is_told_beside_the_first_fault(host: Host) -> None:
    host.at = {"setup": FleetError("no setup"), "close": FleetError("two.service does not start")}
    with pytest.raises(FleetError) as caught:
        host.run()
    assert "no setup" in caught.value.message and "And after it: two.service does not start" in caught.value.message
    assert caught.value.facts["went_back_to"] is None


def test_a_deploy_at_work_is_waited_for_and_told(host: Host) -> None:
    store = Path(host.paths.store)
    store.mkdir(parents=True)
    with (
        file_lock(str(store / "lock"), wait_s=1, purpose="deploy of endpoint two"),
        pytest.raises(FleetError, match="deploy of endpoint two"),
    ):
        host.run()
    assert host.done == []


def test_warnings_that_were_accepted_stand_in_the_runbook(host: Host) -> None:
    told = host.run(warnings=["re-pinning takes 108 GB"], despite_memory=True)
    assert "- re-pinning takes 108 GB" in told["runbook"]
    assert json.loads((host.runs()[0] / "window.json").read_text())["warnings"] == [{"text": "re-pinning takes 108 GB"}]
