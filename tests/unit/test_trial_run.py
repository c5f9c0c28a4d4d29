# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A trial from end to end with the host's edges replaced: whatever happens, what served before is started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd, _trial_measure, _trial_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_compare import totals
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import Proof
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import Foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import Verdict
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import Candidate
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_measure import Drawn, draw_candidate, measure
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import fingerprint, try_out
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link
from bootlogs import DEVICES, TWO_CARDS, boot
from test_truth import STATE

Make = Callable[..., Blueprint]
UP = replace(STATE, drop_in_paths=())
DOWN = replace(UP, active_state="inactive", sub_state="dead", main_pid=0)
ID = "20261130T120000Z"
GUARD = f"llm-fleet-trial-chat-{ID}.service"
FIRST = f"llm-fleet-trial-chat-{ID}-1.service"
FITS: dict[str, Any] = {
    "fits": True,
    "cards": [],
    "host": {"name": "host", "total_mib": 5.0, "free_mib": 9.0, "floor_mib": 0.0, "free_after_mib": 4.0, "fits": True},
    "advice": [],
}
TOO_BIG = {**FITS, "fits": False, "host": {**FITS["host"], "free_after_mib": -1.0, "fits": False}}
for _term in ("weights", "kv", "recurrent", "draft_weights", "draft_kv", "draft_compute", "projector", "adapter"):
    TOO_BIG["host"][f"{_term}_mib"] = 1.0
for _term in ("compute", "outputs", "driver"):
    TOO_BIG["host"][f"{_term}_mib"] = 1.0
WALK = [Candidate(number, {"CTX_SIZE": str(1024 * number)}) for number in (1, 2, 3)]


class Host:
    """What systemd and the module's own parts do, replaced: a list of what was done, in its order."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
        self.paths = Paths("chat", etc=str(tmp_path / "etc"), state=str(tmp_path / "s"), units=str(tmp_path / "units"))
        self.store = EraStore(self.paths.store)
        self.declared = Declared("chat", "llamacpp", {}, "cpu", {"name": "smol"}, "llm", "#!", deadline_s=5)
        self.done: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.told = {1: FITS, 2: FITS, 3: FITS}
        self.runs = {"chat.service"}
        self.links = [Link("slots", 2, 2)]
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.guard_ends_after = 99
        self.commands: list[list[str]] = []
        os.makedirs(self.paths.units)
        os.makedirs(self.paths.etc)
        Path(self.paths.unit_file).write_text("unit")
        Path(self.paths.env_file).write_text("env")
        self.era = self.store.commit(self.store.stage(make()), {})

        def drawn(_declared: Any, one: Candidate, trial: TrialPaths, leaving: int | None, *, beyond_fit: bool) -> Drawn:
            self.leaving = leaving
            return Drawn(one, trial, make(str(one.number)), self.told[one.number], None)

        def measured(one: Drawn, makes_way: Any, *, timeout_s: float, say: Any) -> dict[str, Any]:
            self.step(f"measure {one.candidate.number}")
            row = _trial_run.new_row(one, "measured")
            return {**row, "probes": [], **self.outcomes.get(one.candidate.number, {})}

        def proven(era: Any, paths: Paths, _say: Any, _gates: Any, *, fresh: bool, expired: Any) -> Proof:
            assert fresh and expired == ()
            self.step(f"prove {paths.endpoint}")
            return Proof(self.links, [Verdict("chat", "pass", "answered")], time.monotonic())

        def command(argv: list[str], *, timeout_s: float = 0, check: bool = True) -> None:
            if argv[0] == "systemctl":
                return
            self.commands.append(argv)
            self.step("guard")

        for name, value in {
            "_new_id": lambda _folder: ID,
            "draw_candidate": drawn,
            "measure": measured,
            "prove": proven,
            "run": command,
            "truth_of": lambda _era, _paths: (self.links, "HTTP 200"),
            "look": lambda paths: ({"name": paths.endpoint}, []),
            "gate_port": lambda units, port: self.step(f"port {port} of {' '.join(units)}"),
            "drain": lambda _name, pids, *_args, **_kw: self.step(f"drain {' '.join(map(str, pids))}".strip()),
        }.items():
            monkeypatch.setattr(_trial_run, name, value)
        monkeypatch.setattr(_systemd, "show", self.show)
        monkeypatch.setattr(_systemd, "start", lambda unit, **_kw: self.step(f"start {unit}"))
        monkeypatch.setattr(_systemd, "stop", lambda unit, **_kw: self.step(f"stop {unit}"))

    def step(self, what: str) -> None:
        self.done.append(what)
        if what in self.faults:
            raise self.faults[what]

    def show(self, unit: str) -> _systemd.UnitState:
        if unit == GUARD:
            return UP if sum(step.startswith("measure") for step in self.done) < self.guard_ends_after else DOWN
        return UP if unit in self.runs or unit.startswith("llm-fleet-trial") else DOWN

    def run(self, count: int = 1, **options: Any) -> dict[str, Any]:
        self.done.clear()
        return try_out(self.declared, self.paths, WALK[:count], **options)

    def record(self) -> dict[str, Any]:
        folder = Path(self.paths.store, "trials")
        (path,) = folder.iterdir()
        value: dict[str, Any] = json.loads(path.read_text())
        return value


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blueprint: Make) -> Host:
    return Host(tmp_path, monkeypatch, blueprint)


ONE = [
    "port 18080 of chat.service",
    "guard",
    "drain 42",
    "measure 1",
    f"stop {FIRST}",
    "drain 42",
    "start chat.service",
    "prove chat",
]


def test_one_candidate_and_the_way_back(host: Host) -> None:
    before = fingerprint(host.paths)
    result = host.run()
    assert host.done == ONE
    assert fingerprint(host.paths) == before
    assert result["trial"] == host.record()
    assert result["record"] == os.path.join(host.paths.store, "trials", f"{result['trial']['id']}.json")
    record = result["trial"]
    assert (record["finished"], record["served_before"], record["fault"]) == (True, ["chat"], None)
    assert record["back"][0]["era"] == host.era.id and record["gap_s"] >= 0
    assert host.leaving == 42  # whose memory comes back
    assert "--property=OnFailure=chat.service" in host.commands[0]
    assert f"--property=RuntimeMaxSec={2 * (5 + 180 + 60) + 900}" in host.commands[0]


def test_a_limit_of_ones_own(host: Host) -> None:
    host.run(limit_s=33)
    assert "--property=RuntimeMaxSec=33" in host.commands[0]


def test_looking_touches_nothing(host: Host) -> None:
    result = host.run(3, dry=True)
    assert host.done == ["port 18080 of chat.service"]
    assert [row["outcome"] for row in result["trial"]["rows"]] == ["waiting"] * 3
    assert not os.path.exists(os.path.join(host.paths.store, "trials"))


def test_the_endpoint_returns_only_at_the_end_of_a_walk(host: Host) -> None:
    host.outcomes[2] = {"outcome": "failed", "fault": {"what": "does not stay up"}}
    result = host.run(3)
    assert [step for step in host.done if "start" in step or "measure" in step or "guard" in step] == [
        "guard",
        "measure 1",
        "measure 2",
        "measure 3",
        "start chat.service",
    ]
    assert [row["outcome"] for row in result["trial"]["rows"]] == ["measured", "failed", "measured"]


def test_a_single_candidate_that_fails_fails_the_run_after_the_way_back(host: Host) -> None:
    fault = FleetError("x does not stay up", expected="up", found="crash", remedy="Mend", diagnosis={"name": "n"})
    host.outcomes[1] = {"outcome": "failed", "fault": fault.as_result()}
    with pytest.raises(
        FleetError, match=r"CTX_SIZE=1024: x does not stay up; expected up; found crash. Mend"
    ) as caught:
        host.run()
    assert host.done == ONE
    facts = caught.value.facts
    assert facts["went_back_to"] == f"chat in era {host.era.id}, proven again"
    assert facts["trial"]["finished"] and facts["diagnosis"] == {"name": "n"}
    assert host.record()["fault"] == caught.value.message


def test_a_single_candidate_whose_probes_fail_fails_the_run(host: Host) -> None:
    probes = [Verdict("tools", "fail", "no call").as_dict(), Verdict("chat", "pass", "hi").as_dict()]
    host.outcomes[1] = {"outcome": "probes failed", "probes": probes}
    with pytest.raises(FleetError, match=r"probe tools; .*found tools: no call"):
        host.run()
    assert host.done == ONE


def test_a_walk_of_which_nothing_is_measured_fails(host: Host) -> None:
    host.outcomes = {number: {"outcome": "failed", "fault": {"what": f"fault {number}"}} for number in (1, 2)}
    with pytest.raises(FleetError, match="fault 1"):
        host.run(2)
    assert [row["outcome"] for row in host.record()["rows"]] == ["failed", "failed"]


@pytest.mark.parametrize("where", ["guard", "drain 42", "measure 1", f"stop {FIRST}"])
@pytest.mark.parametrize("kind", [FleetError("broken"), OSError(28, "No space left")])
def test_whatever_breaks_the_endpoint_comes_back(host: Host, where: str, kind: Exception) -> None:
    host.faults[where] = kind
    with pytest.raises(FleetError, match=r"broken|No space left") as caught:
        host.run(2)
    assert host.done[-2:] == ["start chat.service", "prove chat"]
    assert "proven again" in caught.value.facts["went_back_to"]
    record = host.record()
    assert record["finished"] and record["rows"][1]["outcome"] == "not run"


def test_a_guard_that_ended_ends_the_walk(host: Host) -> None:
    host.guard_ends_after = 2
    with pytest.raises(FleetError, match=r"was ended from outside; .*-e limit_s=SECONDS"):
        host.run(3)
    assert "measure 3" not in host.done and host.done[-2:] == ["start chat.service", "prove chat"]
    assert [row["outcome"] for row in host.record()["rows"]] == ["measured", "measured", "not run"]


@pytest.mark.parametrize("step", ["start chat.service", "prove chat"])
def test_an_endpoint_that_does_not_come_back_is_the_loudest_fault(
    host: Host, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_trial_run, "start_fault", lambda _unit, exc, _engine: exc)
    host.faults[step] = FleetError("it does not serve")
    host.outcomes[1] = {"outcome": "failed", "fault": {"what": "no boot"}}
    with pytest.raises(FleetError, match=r"no boot\. And after it: it does not serve.*Mend what is named") as caught:
        host.run()
    assert caught.value.facts["went_back_to"] is None
    assert not host.record()["finished"]


def test_files_that_changed_meanwhile_are_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = _trial_run.measure

    def and_edit(*args: Any, **kw: Any) -> dict[str, Any]:
        Path(host.paths.env_file).write_text("other")
        return measured(*args, **kw)

    monkeypatch.setattr(_trial_run, "measure", and_edit)
    with pytest.raises(FleetError, match="files of chat changed during the trial"):
        host.run()


def test_what_did_not_run_is_not_started(host: Host) -> None:
    host.runs.clear()
    result = host.run()
    assert host.done == [
        "port 18080 of chat.service",
        "guard",
        "drain",
        "measure 1",
        f"stop {FIRST}",
        "drain 42",
        f"stop {GUARD}",
    ]
    assert "--property=Conflicts=chat.service" in host.commands[0]
    assert not any("OnSuccess" in word for word in host.commands[0])
    assert (result["trial"]["back"], result["trial"]["gap_s"]) == ([], None)


def test_a_rival_that_serves_makes_way_and_comes_back(host: Host) -> None:
    host.declared = replace(host.declared, rivals=["rival"])
    host.runs = {"rival.service"}
    result = host.run()
    assert "--property=OnSuccess=rival.service" in host.commands[0]
    assert "--property=Conflicts=chat.service rival.service" in host.commands[0]
    assert host.done[-1] == "start rival.service"  # without an era there is nothing to prove
    assert result["trial"]["served_before"] == ["rival"] and result["trial"]["back"][0]["era"] is None


def test_what_is_broken_before_is_not_begun_with(host: Host) -> None:
    host.links = [Link("drop-ins", [], ["/stale.conf"], "Move it")]
    with pytest.raises(FleetError, match="chat, which serves before the trial: drop-ins"):
        host.run()
    assert host.done == []


def test_cards_that_are_not_those_of_the_host_stop_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.declared = replace(host.declared, cards=CARDS)
    monkeypatch.setattr(_trial_run, "list_cards", list)
    with pytest.raises(FleetError, match="card card0 is not there"):
        host.run()
    assert "guard" not in host.done


def test_two_at_a_time_are_one_too_many(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _trial_run, "file_lock", lambda path, *, wait_s, purpose: file_lock(path, wait_s=0, purpose=purpose)
    )
    with (
        file_lock(host.store.lock_path, wait_s=0, purpose="deploy of endpoint chat"),
        pytest.raises(FleetError, match=r"held for deploy of endpoint chat, begun .*process [0-9]+\)"),
    ):
        host.run()
    assert host.done == []


def test_what_does_not_fit_is_not_booted_unless_asked(host: Host) -> None:
    host.told = {1: TOO_BIG, 2: FITS, 3: TOO_BIG}
    with pytest.raises(FleetError, match=r"(?s)does not fit the host; .*-e beyond_fit=true"):
        host.run()
    assert host.done == ["port 18080 of chat.service"]
    result = host.run(3)
    assert [row["outcome"] for row in result["trial"]["rows"]] == ["refused", "measured", "refused"]
    assert [step for step in host.done if "measure" in step] == ["measure 2"]
    result = host.run(3, beyond_fit=True)
    assert [row["outcome"] for row in result["trial"]["rows"]] == ["measured"] * 3


def test_no_two_trials_share_a_name(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        names.add(_trial_run._new_id(str(tmp_path)))
        (tmp_path / f"{max(names, key=len)}.json").touch()
    assert len(names) == 3


def test_a_fingerprint_is_of_files_links_and_eras_and_of_no_trial(host: Host) -> None:
    before = fingerprint(host.paths)
    os.makedirs(os.path.join(host.paths.store, "trials"))
    Path(host.paths.store, "trials", "x.json").write_text("{}")
    Path(host.store.lock_path).write_text("process 1")
    assert fingerprint(host.paths) == before
    seen = {before}
    for change in (
        lambda: Path(host.paths.env_file).write_text("x"),
        lambda: Path(host.paths.unit_file).unlink(),
        lambda: Path(host.era.path, "era.json").write_text("{}"),
        lambda: host.store.set_pin({"rung": "r"}),
        lambda: os.replace(_link(host, "elsewhere"), os.path.join(host.paths.store, "current")),
    ):
        change()
        seen.add(fingerprint(host.paths))
    assert len(seen) == 6


def _link(host: Host, target: str) -> str:
    path = os.path.join(host.paths.etc, "link")
    os.symlink(target, path)
    return path


CARDS = [
    {"name": "card0", "vendor": "amd", "pci": "0000:03:00.0", "index": 0, "free_mib": 9000.0, "floor_mib": 500.0},
    {"name": "card1", "vendor": "amd", "pci": "0000:04:00.0", "index": 1, "free_mib": 9000.0, "floor_mib": 500.0},
]


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blueprint: Make) -> Callable[..., dict[str, Any]]:
    """Measure a candidate on two cards, its boot's log that of a real one."""

    def run(**faults: Exception) -> dict[str, Any]:
        plan = blueprint(cards=CARDS)
        told: dict[str, Any] = {}

        def step(name: str, value: Any = None) -> Callable[..., Any]:
            def call(*args: Any, **_kw: Any) -> Any:
                told[name] = args
                if name in faults:
                    raise faults[name]
                return value

            return call

        verdicts = [Verdict("chat", "fail" if "red" in faults else "pass", "x")]
        for name, value in {
            "put_launcher": None,
            "atomic_write": None,
            "run_command": None,
            "await_health": UP,
            "_links": [Link("slots", 2, 3 if "slots" in faults else 2)],
            "run": verdicts,
            "hold": None,
            "read_cards": {"card0": CardState("card0", 9100, 700.0), "card1": CardState("card1", 9100, 499.0)},
            "read_boot": boot(TWO_CARDS),
            "device_names": {name: {"name": card} for name, card in DEVICES.items()},
        }.items():
            monkeypatch.setattr(_trial_measure, name, step(name, value))
        monkeypatch.setattr(_trial_measure, "start_fault", lambda _unit, exc, _engine: exc)
        monkeypatch.setattr(_trial_measure._proc, "resident_bytes", lambda _pid: 3 * 2**20)
        paths = TrialPaths("chat", trial=ID)
        drawn = Drawn(Candidate(1, {"TENSOR_SPLIT": "1,1"}), paths, plan, FITS, None)
        return measure(drawn, ["chat.service"], timeout_s=5, say=lambda *_: None)

    return run


def test_a_measured_candidate(booted: Callable[..., dict[str, Any]]) -> None:
    row = booted()
    assert (row["outcome"], row["label"], row["resident_mib"]) == ("measured", "TENSOR_SPLIT=1,1", 3.0)
    assert row["free_mib"] == {"card0": 700.0, "card1": 499.0}
    assert row["below_floor"] == ["card1"]
    assert row["buffers_mib"] == totals(boot(TWO_CARDS), dict(DEVICES))
    assert set(row["buffers_mib"]) >= {"card0", "card1", "host"} and all(row["buffers_mib"].values())
    assert row["probes"][0]["verdict"] == "pass" and "fault" not in row
    assert row["forecast"]["total_mib"] == {"host": 5.0}


@pytest.mark.parametrize("where", ["run_command", "await_health", "hold"])
def test_one_that_does_not_boot_or_hold_keeps_its_diagnosis(booted: Callable[..., dict[str, Any]], where: str) -> None:
    row = booted(**{where: FleetError("does not stay up", found="crash", diagnosis={"name": "crash loop"})})
    assert row["outcome"] == "failed"
    assert (row["fault"]["what"], row["fault"]["diagnosis"]) == ("does not stay up", {"name": "crash loop"})
    assert ("boot_s" in row) == (where == "hold")


def test_one_that_is_not_what_was_asked_for_is_not_measured(booted: Callable[..., dict[str, Any]]) -> None:
    row = booted(slots=FleetError(""))
    assert row["outcome"] == "failed" and row["fault"]["what"] == "truth of endpoint chat, TENSOR_SPLIT=1,1: slots"
    assert "probes" not in row


def test_a_failed_probe_is_an_outcome(booted: Callable[..., dict[str, Any]]) -> None:
    row = booted(red=FleetError(""))
    assert row["outcome"] == "probes failed" and row["free_mib"]["card0"] == 700.0


@pytest.mark.parametrize(
    ("gate", "beyond", "goes_on"),
    [("fit", True, True), ("second opinion", True, True), ("kinship", True, False), ("fit", False, False)],
)
def test_a_forecast_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, blueprint: Make, gate: str, beyond: bool, goes_on: bool
) -> None:
    def fit(*_args: Any, required: bool) -> Foretold:
        assert not required
        raise FleetError("nobody knows", gate=gate)

    seen: list[Any] = []
    monkeypatch.setattr(_trial_measure, "draw", lambda *args: seen.append(args) or blueprint())
    monkeypatch.setattr(_trial_measure, "gate_fit", fit)
    declared = Declared("chat", "llamacpp", {"CTX_SIZE": 1}, "cpu", {"name": "smol"}, "llm", "#!")
    if not goes_on:
        with pytest.raises(FleetError, match="nobody knows"):
            draw_candidate(declared, WALK[0], TrialPaths("chat", trial=ID), None, beyond_fit=beyond)
        return
    drawn = draw_candidate(declared, WALK[0], TrialPaths("chat", trial=ID), None, beyond_fit=beyond)
    assert (drawn.told, drawn.note) == (None, "nobody knows.")
    asked, paths, rung = seen[0]
    assert asked.rungs[rung] == {"CTX_SIZE": "1024"} and asked.env == {"CTX_SIZE": 1}
    assert paths.unit == FIRST
    assert _trial_measure.new_row(drawn, "waiting")["notes"] == ["nobody knows."]
