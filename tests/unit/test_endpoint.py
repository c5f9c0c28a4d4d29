# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One endpoint: choosing the work, its row, and doing it with the host's edges replaced."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _certificate,
    _deploy,
    _endpoint,
    _endpoint_look,
    _endpoint_memory,
    _systemd,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import expired
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import Proof
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint import Asked, converge
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look, require_truth, settling_s
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_plan import Plan, decide
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import Foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import CardLedger, Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import Verdict
from ansible_collections.dank.llm_fleet.plugins.module_utils._replaces import frees, leaving_units, spec_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import RetireSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, write_stamp
from test_payload_back import NEW, OLD, Folder
from test_truth import STATE

PIN = {"rung": "spec_off", "since": "2026", "lines": {}, "era": "e"}
BROKEN = Link("slots", 2, 1)
FIRST, DIFFERS, WHY = ("first deploy",), ("the declared state differs",), ("slots: expected 2, found 1",)


@pytest.mark.parametrize(
    ("wanted", "current", "pin", "broken", "rung", "unpin", "plan"),
    [
        # no pin, no rung
        ("a", None, None, None, None, False, Plan("deploy", FIRST)),
        ("a", "a", None, None, None, False, Plan("none")),
        ("a", "a", None, BROKEN, None, False, Plan("repair", WHY)),
        ("b", "a", None, None, None, False, Plan("deploy", DIFFERS)),
        ("b", "a", None, BROKEN, None, False, Plan("deploy", DIFFERS)),
        # a pin holds against another state
        ("b", "a", PIN, None, None, False, Plan("none", pinned=True)),
        ("b", "a", PIN, BROKEN, None, False, Plan("repair", WHY, pinned=True)),
        # the inventory agrees with the pin: it is lifted
        ("a", "a", PIN, None, None, False, Plan("none", lift_pin=True)),
        ("a", "a", PIN, BROKEN, None, False, Plan("repair", WHY, lift_pin=True)),
        # unpin
        ("b", "a", PIN, None, None, True, Plan("deploy", DIFFERS, lift_pin=True)),
        ("b", "a", PIN, BROKEN, None, True, Plan("deploy", DIFFERS, lift_pin=True)),
        ("a", "a", PIN, None, None, True, Plan("none", lift_pin=True)),
        ("a", "a", None, None, None, True, Plan("none")),
        ("b", "a", None, None, None, True, Plan("deploy", DIFFERS)),
        # a rung replaces a pin, and never lifts it
        ("b", "a", None, None, "r", False, Plan("deploy", DIFFERS)),
        ("b", "a", PIN, None, "r", False, Plan("deploy", DIFFERS)),
        ("a", "a", PIN, None, "r", False, Plan("none")),
        ("a", "a", None, None, "r", False, Plan("none")),
        ("a", "a", PIN, BROKEN, "r", False, Plan("repair", WHY)),
        ("a", None, None, None, "r", False, Plan("deploy", FIRST)),
    ],
)
def test_decide(
    wanted: str, current: str | None, pin: Any, broken: Link | None, rung: str | None, unpin: bool, plan: Plan
) -> None:
    assert decide(wanted, current, pin, broken, asked=rung is not None, unpin=unpin) == plan


class Host:
    """The host's edges, replaced: what was done is listed, and what ``prove`` says is scripted by era tag."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Blueprint]) -> None:
        self.make = make
        self.paths = Paths(
            "chat",
            etc=str(tmp_path / "etc"),
            state=str(tmp_path / "state"),
            runtimes=str(tmp_path / "rt"),
            launchers=str(tmp_path / "launchers"),
            units=str(tmp_path / "units"),
        )
        self.store = EraStore(self.paths.store)
        self.done: list[str] = []
        self.links = [Link("slots", 2, 2)]
        self.faults: dict[str, Exception] = {}
        self.runtime: dict[str, Any] | None = {"name": "cpu"}
        self.state = replace(STATE, fragment_path=self.paths.unit_file)
        self.declared = Declared(
            "chat",
            "llamacpp",
            {},
            "cpu",
            {"dir": str(tmp_path), "files": [{"name": "m.gguf"}]},
            "llm",
            "#!",
            rungs={"low": {"PARALLEL": 1}},
        )
        self.tag = "one"
        self.expired: list[Any] = []
        self.proven: list[Era] = []
        self.facts: dict[str, Any] = {}
        self.fresh: list[bool] = []
        self.verdicts = [Verdict("chat", "pass", "answered")]
        self.fits: list[tuple[str | None, int | None]] = []
        (tmp_path / "m.gguf").write_text("")
        os.makedirs(self.paths.units)

        def prove(era: Any, _paths: Paths, _say: Any, _gates: Gates, *, fresh: bool, expired: Any = None) -> Proof:
            tag = era.blueprint.facts["env"]["TAG"]
            self.done.append(f"prove {tag}")
            assert expired in (None, ())
            self.fresh.append(fresh)
            self.expired.append(expired)
            self.proven.append(era)
            if tag in self.faults:
                raise self.faults[tag]
            return Proof([Link("slots", 2, 2)], self.verdicts, time.monotonic())

        def step(name: str) -> Callable[..., None]:
            def call(*_args: Any, **_kw: Any) -> None:
                self.done.append(name)
                if name in self.faults:
                    raise self.faults[name]

            return call

        def put(plan: Blueprint, paths: Paths) -> None:
            self.done.append(f"put {plan.facts['env']['TAG']}")
            if "put" in self.faults:
                raise self.faults["put"]
            os.makedirs(paths.etc, exist_ok=True)
            Path(paths.env_file).write_text(plan.env_text)
            Path(paths.unit_file).write_text(plan.unit_text)

        def cut_over(
            plan: Blueprint, paths: Paths, _say: Any, _gates: Gates, *, timeout_s: float, rivals: Any = ()
        ) -> float:
            put(plan, paths)
            for rival in rivals:
                self.standing.discard(rival.endpoint)
                self.done.append(f"stop {rival.endpoint}")
            self.standing.add(paths.endpoint)
            self.done.append("restart")
            self.timeouts.append(timeout_s)
            return time.monotonic()

        for name, value in {
            "draw": lambda _declared, _paths, rung: self.make(
                f"{self.tag}-{rung}" if rung else self.tag, **{"rung": rung, **self.facts}
            ),
            "gate_fit": self.fit,
            "find_runtime": lambda _prefix, _name: self.runtime,
            "truth_of": lambda _era, _paths: (self.links, "HTTP 200"),
            "gate_port": step("gate port"),
            "standing": lambda rivals: [rival for rival in rivals if rival.endpoint in self.standing],
        }.items():
            monkeypatch.setattr(_endpoint, name, value)
        monkeypatch.setattr(_endpoint_look, "truth_of", lambda _era, _paths: (self.links, "HTTP 200"))
        for name, value in {
            "cut_over": cut_over,
            "put_launcher": lambda *_args: None,
            "put_files": put,
            "remove_files": step("remove"),
            "prove": prove,
            "gate_ledger": self.ledger,
        }.items():
            monkeypatch.setattr(_deploy, name, value)
        monkeypatch.setattr(_systemd, "show", self.show)
        monkeypatch.setattr(_systemd, "verify_unit", step("verify"))
        self.timeouts: list[float] = []
        self.standing: set[str] = set()
        self.ever: list[str] = []
        monkeypatch.setattr(_systemd, "stop_and_disable", lambda unit, **_kw: self.done.append(f"disable {unit}"))
        monkeypatch.setattr(_endpoint_memory._proc, "resident_bytes", lambda _pid: 3 * 2**20)

    def show(self, unit: str) -> _systemd.UnitState:
        ours = self.state.fragment_path.startswith(self.paths.units)
        return replace(self.state, fragment_path=f"{self.paths.units}/{unit}") if ours else self.state

    def fit(self, _declared: Declared, rung: str | None, leaving: int | None, _gates: Gates, _facts: Any) -> Foretold:
        self.fits.append((rung, leaving))
        if "fit" in self.faults:
            raise self.faults["fit"]
        told = {"fits": True, "cards": [], "host": {"total_mib": 5.0}, "split": [], "measured": None, "advice": []}
        return Foretold(told, Ledger((), CardLedger("host"), (), 256, 256, ()))

    def ledger(self, unit: str, _id: str, _env: Any, _cards: Any, predicted: Ledger | None) -> dict[str, Any]:
        self.done.append("ledger")
        if "ledger" in self.faults:
            raise self.faults["ledger"]
        return {"differences": [] if predicted is None else ["kv on the host: 1 MiB, not 2"]}

    def run(self, **options: Any) -> dict[str, Any]:
        self.done.clear()
        asked = Asked(**{key: options.pop(key) for key in ("rung", "era", "unpin", "activate") if key in options})
        return converge(self.declared, self.paths, asked=asked, **options)

    @property
    def serves(self) -> str:
        era = self.store.current()
        return era.blueprint.facts["env"]["TAG"] if era else ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blueprint: Callable[..., Blueprint]) -> Host:
    made = Host(tmp_path, monkeypatch, blueprint)
    made.state = replace(made.state, drop_in_paths=())
    return made


DEPLOY_ONE = ["gate port", "verify", "put one", "restart", "prove one", "ledger"]


def test_first_deploy_and_a_second_run(host: Host) -> None:
    result = host.run()
    assert (result["changed"], result["kind"], result["reasons"]) == (True, "deploy", ["first deploy"])
    assert (host.done, host.fresh) == (DEPLOY_ONE, [True])
    assert host.timeouts == [5 + 7 + 60]
    era = host.store.current()
    assert era is not None
    assert era.meta["certificate"]["probes"][0]["verdict"] == "pass"
    assert era.meta["certificate"]["truth"] == [{"name": "slots", "ok": True, "expected": 2, "found": 2}]
    assert (result["endpoint"]["era"], result["probes"][0]["probe"]) == (era.id, "chat")
    assert "+TAG=one" in result["flipped"]
    assert era.meta["certificate"]["ledger"] == result["ledger"]
    record = json.loads(Path(host.paths.store, "last-run.json").read_text())
    assert (record["kind"], record["served"], record["era"]) == ("deploy", True, era.id)
    assert [row["gate"] for row in record["gates"]] == [
        "blueprint",
        "foreign files",
        "drop-ins",
        "port",
        "cards",
        "stage",
        "unit",
        "ledger",
    ]
    assert record["gates"] == result["gates"] and all(row["ok"] for row in record["gates"])
    assert result["warnings"] == ["kv on the host: 1 MiB, not 2"]
    again = host.run()
    assert (again["changed"], again["work"], again["kind"], again["diff"]) == (False, False, "none", [])
    assert host.done == []


def test_a_new_era_is_held_against_the_memory_and_its_ledger_goes_into_the_certificate(host: Host) -> None:
    result = host.run()
    era = host.store.current()
    assert era is not None
    assert era.meta["certificate"]["fit"] == {"cards": [], "host": {"total_mib": 5.0}, "split": [], "measured": None}
    assert result["fit"]["fits"]
    host.run()  # nothing to do: no header is read
    assert host.fits == [(None, 42)]
    host.links = [Link("slots", 2, 1)]  # put right: the era has its ledger
    assert "fit" not in host.run()
    assert host.fits == [(None, 42)]


@pytest.mark.parametrize("option", [{}, {"check_mode": True}, {"plan_only": True}])
def test_what_does_not_fit_is_refused_before_anything_is_touched(host: Host, option: dict[str, Any]) -> None:
    host.faults["fit"] = FleetError("endpoint chat does not fit card rtx")
    with pytest.raises(FleetError, match="does not fit"):
        host.run(**option)
    assert os.path.exists(host.paths.state) is not bool(option)
    assert option or os.listdir(host.paths.store) == ["last-run.json"]
    assert not os.path.exists(host.paths.etc)
    assert host.done == ["gate port"]


def test_a_rung_that_does_not_fit_leaves_the_endpoint_as_it_was(host: Host) -> None:
    host.run()
    host.faults["fit"] = FleetError("endpoint chat does not fit card rtx")
    with pytest.raises(FleetError, match="does not fit"):
        host.run(rung="low")
    assert (host.serves, host.store.pin(), host.fits[-1]) == ("one", None, ("low", 42))


@pytest.mark.parametrize("option", ["check_mode", "plan_only"])
def test_looking_changes_nothing_and_foretells_the_truth(host: Host, option: str) -> None:
    told = host.run(**{option: True})
    assert not os.path.exists(host.paths.state)
    assert not os.path.exists(host.paths.etc)
    assert host.done == ["gate port"]
    real = host.run()
    for key in ("changed", "kind", "reasons", "diff", "flipped", "work"):
        assert told[key] == real[key], key


def test_check_mode_without_a_runtime_says_what_it_cannot_know(host: Host) -> None:
    host.runtime = None
    result = host.run(check_mode=True)
    assert result["changed"] is True
    assert "runtime cpu is not built yet" in result["warnings"][0]


@pytest.mark.parametrize(
    ("declared", "rewritten", "says"),
    [
        ({}, False, ""),
        ({"sha256": "a" * 64}, False, ""),
        ({"sha256_prefix": "aaaa"}, False, ""),
        ({"sha256": "b" * 64}, False, "m.gguf is another file than the declared one"),
        ({"sha256_prefix": "bbbb"}, False, "m.gguf is another file than the declared one"),
        ({"sha256": "a" * 64}, True, "m.gguf was changed since it was verified"),
    ],
)
def test_check_mode_foretells_nothing_from_another_file(
    host: Host, tmp_path: Path, declared: dict[str, str], rewritten: bool, says: str
) -> None:
    file = tmp_path / "m.gguf"
    write_stamp(host.paths.stamps, str(file), "a" * 64, Identity.of(os.stat(file)))
    if rewritten:
        file.write_text("other")
    host.declared = replace(host.declared, payload={"dir": str(tmp_path), "files": [{"name": "m.gguf", **declared}]})
    told = host.run(check_mode=True)
    assert told["changed"] is True
    assert ("fit" in told, bool(host.fits)) == (not says, not says)
    assert [says in warning and "cannot be foretold" in warning for warning in told["warnings"]] == [True] * bool(says)
    host.run()  # what the payload's role has put there is nobody's doubt
    assert host.fits


def test_check_mode_without_a_payload_says_what_it_cannot_know(host: Host, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").unlink()
    result = host.run(check_mode=True)
    assert (result["changed"], host.done) == (True, [])
    assert "m.gguf is not fetched yet" in result["warnings"][0]


def test_a_changed_inventory_is_a_new_era_with_its_diff(host: Host) -> None:
    host.run()
    host.tag = "two"
    result = host.run()
    assert (result["kind"], result["flipped"]) == ("deploy", ["-TAG=one", "+TAG=two"])
    assert [part["before_header"] for part in result["diff"]] == [host.paths.env_file, host.paths.unit_file]
    assert host.serves == "two"
    before = host.store.previous()
    assert before is not None and before.blueprint.facts["env"]["TAG"] == "one"


def test_repair_is_the_same_era_put_right(host: Host) -> None:
    host.run()
    era = host.store.current()
    Path(host.paths.env_file).write_text("TAG=edited\n")
    host.links = [BROKEN]
    result = host.run()
    assert (result["kind"], result["reasons"]) == ("repair", list(WHY))
    assert "-TAG=edited" in result["flipped"]
    assert host.done == DEPLOY_ONE
    assert era is not None
    assert len(os.listdir(os.path.join(host.paths.store, "eras"))) == 1
    assert host.serves == "one"


def test_a_repair_that_fails_leaves_the_era_and_does_not_go_back(host: Host) -> None:
    host.run()
    host.links = [BROKEN]
    host.faults["one"] = FleetError("still broken")
    with pytest.raises(FleetError, match="still broken") as caught:
        host.run()
    era = host.store.current()
    assert era is not None and era.state == "certified"
    assert caught.value.facts["went_back_to"] == f"era {era.id}, which was not put right"


def test_a_repair_that_fails_names_the_era_before(host: Host) -> None:
    host.run()
    first = host.store.current()
    host.tag = "two"
    host.run()
    host.links = [BROKEN]
    host.faults["two"] = FleetError("still broken")
    with pytest.raises(FleetError, match="still broken") as caught:
        host.run()
    told = caught.value.facts["went_back_to"]
    assert first is not None and f"; era {first.id} was certified before it: playbooks/rollback.yml" in told

    Path(first.path, "env").write_text("spoilt")
    with pytest.raises(FleetError, match="still broken") as caught:
        host.run()
    told = caught.value.facts["went_back_to"]
    assert "the one before cannot be read" in told and "is not as it was staged" in told


def test_a_rung_pins_and_the_pin_stays(host: Host) -> None:
    host.run()
    result = host.run(rung="low")
    assert (result["kind"], host.serves) == ("deploy", "one-low")
    pin = host.store.pin()
    assert pin is not None
    assert (pin["rung"], pin["lines"], pin["era"]) == ("low", {"PARALLEL": 1}, result["endpoint"]["era"])
    assert result["endpoint"]["pinned"] == "rung low"
    again = host.run()
    assert (again["changed"], host.serves, host.done) == (False, "one-low", [])
    assert "pinned to rung low" in again["warnings"][0]
    assert "not rolled out" in again["warnings"][0]
    assert host.store.pin() == pin
    same = host.run(rung="low")
    assert (same["changed"], host.done, host.store.pin()) == (False, [], pin)


def test_a_pin_is_lifted_when_the_inventory_agrees(host: Host) -> None:
    host.run()
    host.run(rung="low")
    host.tag = "one-low"
    foretold = host.run(check_mode=True)
    assert foretold["changed"] is True and host.store.pin() is not None
    result = host.run()
    assert (result["changed"], result["kind"], host.store.pin(), host.done) == (True, "none", None, [])
    assert host.run()["changed"] is False


def test_unpin_goes_to_the_inventory(host: Host) -> None:
    host.run()
    host.run(rung="low")
    result = host.run(unpin=True)
    assert (result["kind"], host.serves, host.store.pin()) == ("deploy", "one", None)


def test_a_rung_equal_to_the_current_state_pins_without_a_restart(host: Host) -> None:
    host.tag = "x-low"
    host.run()
    host.tag = "x"
    result = host.run(rung="low")
    assert (result["changed"], result["kind"], host.done) == (True, "none", [])
    pin = host.store.pin()
    assert pin is not None and pin["rung"] == "low"


def test_an_era_is_restored_and_pinned(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_endpoint, "redraw", lambda era, _stamps: era.blueprint)
    first = host.run()["endpoint"]["era"]
    host.tag = "two"
    second = host.run()["endpoint"]["era"]
    result = host.run(era="previous")
    assert (result["kind"], host.serves) == ("deploy", "one")
    assert result["endpoint"]["pinned"] == f"era {first}"
    assert "fit" not in result  # it served before
    assert host.run(era=first)["changed"] is False
    told = host.run()
    assert (told["changed"], f"pinned to era {first}" in told["warnings"][0]) == (False, True)
    host.run(era=second)
    assert (host.serves, (host.store.pin() or {})["restored"]) == ("two", second)
    host.run(unpin=True)
    assert host.store.pin() is None
    with pytest.raises(FleetError, match=rf"era 'nope' of chat; expected the beginning of one of: .*{first}"):
        host.run(era="nope")


def test_a_runtime_that_was_built_anew_is_a_new_era(host: Host) -> None:
    first = host.run()["endpoint"]["era"]
    plain = host.make

    def built(build: str | None) -> None:
        def make(tag: str, **given: Any) -> Blueprint:
            plan = plain(tag, **given)
            return replace(plan, facts={**plan.facts, "runtime": {**plan.facts["runtime"], "build_id": build}})

        host.make = make

    built("aa")
    assert host.run()["changed"] is False  # the era is of a version that did not know
    host.links = [BROKEN]
    assert host.run()["kind"] == "repair"
    host.links = [Link("slots", 2, 2)]
    host.tag = "two"
    second = host.run()["endpoint"]["era"]
    assert host.run()["changed"] is False
    built("bb")
    result = host.run()
    assert (result["kind"], result["reasons"]) == ("deploy", ["the runtime was built anew"])
    assert len({first, second, result["endpoint"]["era"]}) == 3
    built(None)
    assert host.run()["changed"] is False


def test_a_restart_takes_no_proof_away(host: Host) -> None:
    host.verdicts = [Verdict("chat", "pass", "answered"), Verdict("tools", "pass", "called")]
    host.run()
    host.verdicts = [Verdict("chat", "pass", "again")]
    host.links = [BROKEN]
    assert host.run()["kind"] == "repair"
    era = host.store.current()
    assert era is not None
    told = era.meta["certificate"]
    assert {probe["probe"]: probe["evidence"] for probe in told["probes"]} == {"tools": "called", "chat": "again"}
    assert told["fit"]["host"] == {"total_mib": 5.0}
    assert expired(told, era.blueprint.digest, era.blueprint.facts, ["chat", "tools"]) == set()


def declared_anew(host: Host, **facts: Any) -> None:
    """From now on the inventory declares other ``client`` or ``probes``."""
    plain = host.make
    host.make = lambda tag, **given: plain(tag, **given, **facts)


@pytest.mark.parametrize("facts", [{"probes": {"capabilities": ["tools"]}}, {"client": {"context_window": 2048}}])
def test_what_is_declared_anew_is_proven_without_a_restart(host: Host, facts: dict[str, Any]) -> None:
    first = host.run()
    before = host.store.current()
    declared_anew(host, **facts)
    foretold = host.run(plan_only=True)
    assert (foretold["changed"], foretold["kind"], host.done) == (True, "prove", [])
    host.verdicts = [Verdict("chat", "pass", "again")]
    told = host.run()
    assert told["reasons"] == ["what clients are told, or what has to be seen of it, was declared anew"]
    assert (host.done, host.fresh[-1], host.expired[-1]) == (["prove one"], False, None)
    era = host.store.current()
    assert era is not None and before is not None and era.id == before.id
    assert {key: era.blueprint.facts[key] for key in facts} == facts
    certificate = era.meta["certificate"]
    assert [probe["evidence"] for probe in certificate["probes"]] == ["again"]
    assert expired(certificate, era.blueprint.digest, era.blueprint.facts, ["chat"]) == set()
    kept = ("ledger", "fit", "gap_s")
    assert {key: certificate[key] for key in kept} == {key: before.meta["certificate"][key] for key in kept}
    assert (told["probes"][0]["evidence"], told["endpoint"]["era"]) == ("again", first["endpoint"]["era"])
    assert host.run()["changed"] is False


def test_what_is_declared_anew_and_not_kept_is_red_and_serves_on(host: Host) -> None:
    host.run()
    before = host.store.current()
    assert before is not None
    declared_anew(host, probes={"capabilities": ["tools"]})
    host.faults["one"] = FleetError("probe tools", gate="probes")
    with pytest.raises(FleetError) as caught:
        host.run()
    assert caught.value.facts["went_back_to"] == f"era {before.id}, as before: nothing was restarted"
    assert host.done == ["prove one"]
    assert host.store.current() == before
    record = host.store.last_run() or {}
    assert (record["kind"], record["served"], record["gate"]) == ("prove", False, "probes")


def test_a_pin_holds_the_old_declaration_too(host: Host) -> None:
    host.run(rung="low")
    declared_anew(host, probes={"capabilities": ["tools"]})
    assert host.run()["kind"] == "none"
    assert host.run(rung="low")["kind"] == "none"


def test_what_older_probes_proved_is_proven_anew(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    monkeypatch.setattr(_certificate, "PROBING", _certificate.PROBING + 1)
    host.links = [BROKEN]
    assert host.run()["kind"] == "repair"  # it asks the least again, and lends the rest no newer date
    host.links = [Link("slots", 2, 2)]
    told = host.run()
    assert (told["kind"], told["reasons"]) == ("prove", ["the probes ask more by now than when it was proven"])
    assert (host.done, host.expired[-1]) == (["prove one"], None)
    assert host.run()["changed"] is False


def test_a_pinned_endpoint_is_proven_anew_by_its_own_declaration(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run(rung="low")
    declared_anew(host, probes={"capabilities": ["tools"]})
    monkeypatch.setattr(_certificate, "PROBING", _certificate.PROBING + 1)
    assert host.run()["kind"] == "prove"
    era = host.store.current()
    assert era is not None and "capabilities" not in era.blueprint.facts["probes"]
    assert host.run()["kind"] == "none"


def test_old_eras_go(host: Host) -> None:
    host.declared = replace(host.declared, keep_eras=1)
    for number in range(4):
        host.tag = f"t{number}"
        pruned = host.run()["pruned"]
    assert len(pruned) == 1
    assert len(host.store.ids()) == 2  # the current and the one before


@pytest.fixture
def rival(host: Host) -> EraStore:
    """An endpoint that wants the same port, and serves."""
    host.declared = replace(host.declared, rivals=["other"])
    host.standing = {"other"}
    store = EraStore(replace(host.paths, endpoint="other").store)
    store.commit(store.stage(host.make("theirs")), {})
    return store


def test_a_rival_makes_way(host: Host, rival: EraStore) -> None:
    told = host.run(check_mode=True)
    assert told["reasons"] == ["first deploy", "other makes way"]
    result = host.run()
    assert host.done == ["gate port", "verify", "put one", "stop other", "restart", "prove one", "ledger"]
    assert result["gap_s"] >= 0
    assert rival.stood_down() is None  # the inventory has it so
    host.standing = set()
    assert host.run()["changed"] is False
    host.standing = {"other"}  # somebody started it by hand
    assert host.run()["kind"] == "repair"


def test_a_rival_serves_again_when_the_new_one_cannot_be_proven(host: Host, rival: EraStore) -> None:
    host.faults["one"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert host.done[-5:] == ["prove one", "remove", "put theirs", "restart", "prove theirs"]
    assert str(caught.value.facts["went_back_to"]).startswith("other in era ")
    host.standing = set()
    host.faults.clear()
    host.run()
    host.standing, host.tag = {"other"}, "two"
    host.faults["two"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer"):
        host.run()  # this one has an era of its own, and yet it is the rival that served
    assert host.done[-5:] == ["put one", "disable chat.service", "put theirs", "restart", "prove theirs"]


def test_taking_over_by_an_operators_word_lasts(host: Host, rival: EraStore) -> None:
    host.run(activate=True)
    assert (rival.stood_down() or {})["for"] == "chat"
    host.standing = set()
    own, paths = host.declared, host.paths
    host.declared, host.paths = replace(own, name="other", rivals=["chat"]), replace(paths, endpoint="other")
    host.standing = {"chat"}
    told = host.run()
    assert (told["changed"], told["kind"], host.done) == (False, "none", [])
    assert "other made way for chat" in told["warnings"][0]
    host.run(activate=True)
    assert rival.stood_down() is None
    assert (EraStore(paths.store).stood_down() or {})["for"] == "other"
    host.declared, host.paths, host.standing = own, paths, {"other"}
    host.run(activate=True)
    assert (host.store.stood_down(), (rival.stood_down() or {})["for"]) == (None, "chat")
    host.standing = set()
    host.tag = "two"
    host.run()  # the inventory agrees by now: the record has done its work
    assert rival.stood_down() is None


@pytest.fixture
def retirements(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[RetireSpec]:
    """A quadlet to retire, until it is."""
    host.declared = replace(host.declared, replaces={"quadlets": ["old.container"], "units": ["older"]})
    asked: list[RetireSpec] = []

    def retire(spec: RetireSpec, *, check_mode: bool = False) -> dict[str, Any]:
        gone = "retire" in host.ever
        if not check_mode:
            host.done.append("retire")
            host.ever.append("retire")
            asked.append(spec)
            if "retire" in host.faults:
                raise host.faults["retire"]
        return {"actions": [] if gone else ["retire old.container"]}

    def undo(spec: RetireSpec, *, since: str) -> dict[str, Any]:
        assert since
        host.done.append("undo")
        host.ever.clear()
        if "undo" in host.faults:
            raise host.faults["undo"]
        return {"restored": {"old.container": spec.slug}}

    monkeypatch.setattr(_endpoint, "retire", retire)
    monkeypatch.setattr(_deploy, "retire", retire)
    monkeypatch.setattr(_deploy, "undo", undo)
    return asked


def test_what_it_replaces_is_retired_once(host: Host, retirements: list[RetireSpec]) -> None:
    assert host.run(check_mode=True)["reasons"] == ["first deploy", "retire old.container"]
    host.run()
    assert host.done == ["gate port", "verify", "retire", "put one", "restart", "prove one", "ledger"]
    (spec,) = retirements
    assert (spec.slug, spec.user, spec.scope, spec.units) == ("chat", "llm", "system", ("older",))
    assert set(spec.own) == {host.paths.unit_file, host.paths.env_file}
    assert host.run()["changed"] is False
    host.ever.clear()  # somebody brought it back
    assert (host.run()["kind"], host.done.count("retire")) == ("repair", 1)


@pytest.mark.parametrize("step", ["retire", "one"])
def test_what_was_retired_comes_back_with_a_failed_deploy(host: Host, retirements: list[RetireSpec], step: str) -> None:
    host.faults[step] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert host.done[-1] == "undo"
    assert str(caught.value.facts["went_back_to"]).endswith("what was retired is back: old.container")
    told = json.loads(Path(host.paths.store, "last-run.json").read_text())
    assert told["gate"] == caught.value.facts.get("gate") == ("retire" if step == "retire" else None)
    host.faults["undo"] = FleetError("stuck")
    with pytest.raises(FleetError, match=r"no answer.* And what was retired did not come back whole: stuck.*restore"):
        host.run()


def test_the_names_that_a_retirement_frees(host: Host) -> None:
    host.declared = replace(host.declared, replaces={"units": ["chat"], "files": [host.paths.env_file]})
    spec = spec_of(host.declared, host.paths)
    assert frees(spec, host.paths) == {host.paths.unit_file, host.paths.env_file}
    assert leaving_units(spec) == {"chat.service"}
    other = spec_of(replace(host.declared, replaces={"quadlets": ["/x/old.container"], "user": "me"}), host.paths)
    assert other is not None
    assert (other.user, frees(other, host.paths), leaving_units(other)) == ("me", set(), {"old.service"})
    assert spec_of(replace(host.declared, replaces={"scope": "user"}), host.paths) is None
    assert (frees(None, host.paths), leaving_units(None)) == (set(), set())


@pytest.mark.parametrize("fault", [FleetError("no answer", gate="probes"), OSError(28, "No space left on device")])
def test_a_failed_proof_goes_back_to_the_last_era(host: Host, fault: Exception) -> None:
    host.run()
    one = host.store.current()
    host.tag = "two"
    host.faults["two"] = fault
    with pytest.raises(FleetError, match=r"no answer|No space left") as caught:
        host.run()
    assert one is not None
    assert host.done == ["gate port", "verify", "put two", "restart", "prove two", "put one", "restart", "prove one"]
    assert caught.value.facts["went_back_to"] == f"era {one.id}, which serves again"
    assert host.expired[-2:] == [None, ()]  # all of the new era's probes, and of the certified one's the least
    record = json.loads(Path(host.paths.store, "last-run.json").read_text())
    assert (record["kind"], record["served"]) == ("deploy", False)
    assert record["went_back_to"] == caught.value.facts["went_back_to"]
    assert caught.value.facts["gates"] == record["gates"]
    assert host.store.current() == one
    states = {host.store.load(name).state for name in os.listdir(os.path.join(host.paths.store, "eras"))}
    assert states == {"certified", "failed"}


def test_the_way_back_bears_drop_ins_that_were_declared_and_changed_since(host: Host, tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.conf", tmp_path / "new.conf"
    kept.write_text("[Service]\n")
    host.facts = {"drop_ins": [str(kept)], "drop_in_digests": {str(kept): sha256_text("[Service]\n")}}
    host.state = replace(host.state, drop_in_paths=(str(kept),))
    host.run()
    one = host.store.current()
    assert one is not None
    kept.write_text("[Unit]\n")
    texts = {str(kept): sha256_text("[Unit]\n"), str(new): "no such file"}
    host.tag, host.facts = "two", {"drop_ins": list(texts), "drop_in_digests": texts}
    host.state = replace(host.state, drop_in_paths=(str(kept), str(new)))
    host.faults["two"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert caught.value.facts["went_back_to"] == (
        f"era {one.id}, which serves again; of its drop-ins {kept}, {new} are not as it was proven"
    )
    facts = host.proven[-1].blueprint.facts
    assert (facts["env"]["TAG"], facts["drop_ins"], facts["drop_in_digests"]) == ("one", [str(kept), str(new)], {})
    assert host.store.current() == one  # the record stays as it was proven


def test_a_card_that_is_too_full_goes_back_too(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_systemd, "journal", lambda *_args, **_kw: "failed to load draft model, '/d.gguf'")
    host.run()
    host.tag = "two"
    host.faults["ledger"] = FleetError("card rtx is too full", gate="floor")
    with pytest.raises(FleetError, match=r"(?s)too full.*drafter-not-loaded: the drafter could not be set up"):
        host.run()
    assert host.done[-5:] == ["prove two", "ledger", "put one", "restart", "prove one"]
    assert host.serves == "one"


def test_pruning_keeps_the_eras_of_declared_rungs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(_endpoint, "prune", lambda _store, keep, rungs: asked.append((keep, list(rungs))))
    host.declared = replace(host.declared, keep_eras=3)
    host.run()
    assert asked == [(3, ["low"])]


def test_a_failed_rung_pins_nothing(host: Host) -> None:
    host.run()
    host.faults["one-low"] = FleetError("no answer")
    with pytest.raises(FleetError):
        host.run(rung="low")
    assert (host.store.pin(), host.serves) == (None, "one")


def test_a_failed_unpin_keeps_the_pin(host: Host) -> None:
    host.run()
    host.run(rung="low")
    host.faults["one"] = FleetError("no answer")
    with pytest.raises(FleetError):
        host.run(unpin=True)
    assert host.serves == "one-low"
    assert host.store.pin() is not None


def test_a_first_deploy_that_fails_is_taken_away(host: Host) -> None:
    host.faults["one"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert host.done[-2:] == ["prove one", "remove"]
    assert str(caught.value.facts["went_back_to"]).startswith("nothing: this was the first deploy")
    assert host.store.current() is None


def test_going_back_that_fails_names_both(host: Host) -> None:
    host.run()
    host.tag = "two"
    host.faults.update({"two": FleetError("first fault"), "one": FleetError("second fault")})
    with pytest.raises(FleetError) as caught:
        host.run()
    assert "first fault" in caught.value.message
    assert "second fault" in caught.value.message
    assert "The endpoint is down" in caught.value.message
    assert caught.value.facts["went_back_to"] is None


def test_taking_away_that_fails_names_both(host: Host) -> None:
    host.faults.update({"one": FleetError("first fault"), "remove": FleetError("second fault")})
    with pytest.raises(FleetError) as caught:
        host.run()
    assert "first fault" in caught.value.message
    assert "second fault" in caught.value.message


def test_an_unsound_unit_touches_nothing(host: Host) -> None:
    host.run()
    host.tag = "two"
    host.faults["verify"] = FleetError("unit is not sound")
    with pytest.raises(FleetError, match="not sound"):
        host.run()
    assert host.done == ["gate port", "verify"]
    assert host.serves == "one"


@pytest.mark.parametrize("check_mode", [True, False])
def test_gates_stand_before_anything_is_touched(host: Host, check_mode: bool) -> None:
    host.faults["gate port"] = FleetError("port is taken")
    with pytest.raises(FleetError, match="taken"):
        host.run(check_mode=check_mode)
    assert host.done == ["gate port"]
    assert os.path.exists(host.paths.store) is not check_mode  # only the record, see below


@pytest.mark.parametrize("deployed", [False, True])
def test_a_gate_that_is_red_before_the_cut_over_leaves_its_record(host: Host, deployed: bool) -> None:
    record = Path(host.paths.store, "last-run.json")
    if deployed:
        host.run()
        host.tag = "two"
    before = record.read_bytes() if deployed else None
    host.faults["gate port"] = FleetError("port is taken", expected="a free one", found="pid 7", remedy="Stop it")
    for option in ("check_mode", "plan_only"):
        with pytest.raises(FleetError):
            host.run(**{option: True})
        assert (record.read_bytes() if record.exists() else None) == before
    with pytest.raises(FleetError) as caught:
        host.run()
    told = json.loads(record.read_text())
    error = {"what": "port is taken", "expected": "a free one", "found": "pid 7", "remedy": "Stop it"}
    assert (told["kind"], told["served"], told["gate"], told["error"]) == ("deploy", False, "port", error)
    assert (told["gates"][-1]["gate"], told["gates"][-1]["ok"], told["went_back_to"]) == ("port", False, None)
    era = host.store.current()
    assert told["serves"]["era"] == (era.id if era else None)
    assert told["serves"]["truth"] == ("ok" if deployed else None)
    assert caught.value.facts["gates"] == told["gates"]
    assert caught.value.facts["endpoint"]["name"] == "chat"


def damage(host: Host, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """One fault before the first gate that asks the host."""
    if what == "era store":
        (Path(host.paths.store) / "current" / "era.json").write_text("{")
    else:

        def draw(*_args: Any) -> Blueprint:
            raise OSError(5, "I/O error") if what == "host" else FleetError("runtime cpu is not on this host")

        monkeypatch.setattr(_endpoint, "draw", draw)


@pytest.mark.parametrize(
    ("what", "says"),
    [("drawing", "runtime cpu is not on this host"), ("era store", "is damaged"), ("host", "I/O error")],
)
@pytest.mark.parametrize("deployed", [False, True])
def test_what_cannot_be_drawn_leaves_its_record(
    host: Host, monkeypatch: pytest.MonkeyPatch, what: str, says: str, deployed: bool
) -> None:
    if not deployed and what == "era store":
        host.store.stage(host.make("one"))
        os.symlink("eras/none", os.path.join(host.paths.store, "current"))
        says = "is not on this host"
    else:
        if deployed:
            host.run()
        damage(host, monkeypatch, what)
    record = Path(host.paths.store, "last-run.json")
    before = record.read_bytes() if record.exists() else None
    for option in ("check_mode", "plan_only"):
        with pytest.raises(FleetError, match=says):
            host.run(**{option: True})
        assert (record.read_bytes() if record.exists() else None) == before
    with pytest.raises(FleetError, match=says) as caught:
        host.run()
    assert caught.value.facts["gate"] == "blueprint"
    told = json.loads(record.read_text())
    assert (told["kind"], told["served"], told["gate"]) == ("plan", False, "blueprint")
    assert says in " ".join(told["error"].values())
    assert [(row["gate"], row["ok"]) for row in told["gates"]] == [("blueprint", False)]
    assert told["serves"]["unit"] == "active (running)"
    if what == "era store":
        assert says in told["serves"]["truth"]


@pytest.mark.parametrize("fault", [FleetError("era is in the way"), OSError(28, "No space left on device")])
def test_staging_that_fails_leaves_its_record(host: Host, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    host.run()
    host.tag = "two"

    def stage(*_args: Any) -> Era:
        raise fault

    monkeypatch.setattr(EraStore, "stage", stage)
    with pytest.raises(FleetError, match=r"era is in the way|No space left on device") as caught:
        host.run()
    told = json.loads(Path(host.paths.store, "last-run.json").read_text())
    assert caught.value.facts["gate"] == told["gate"] == "stage"
    assert (told["kind"], told["served"], told["gates"][-1]["gate"]) == ("deploy", False, "stage")
    assert host.done == ["gate port"] and host.serves == "one"


@pytest.mark.parametrize("red", [None, "port is taken"])
def test_a_lock_that_a_full_disk_does_not_take_hides_no_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch, red: str | None
) -> None:
    host.run()
    host.tag = "two"
    if red is not None:
        host.faults["gate port"] = FleetError(red, gate="port")

    def full(*_args: Any, **_kw: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_endpoint, "file_lock", full)
    with pytest.raises(FleetError, match=red or "No space left on device") as caught:
        host.run()
    assert caught.value.facts["gate"] == ("stage" if red is None else "port")
    assert host.done == ["gate port"] and host.serves == "one"


def test_a_record_that_cannot_be_written_hides_no_fault(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    host.tag = "two"
    host.faults["gate port"] = FleetError("port is taken")

    def write(*_args: Any, **_kw: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Gates, "write", write)
    with pytest.raises(FleetError, match="port is taken") as caught:
        host.run()
    assert "No space left on device" in caught.value.facts["record"]
    assert not os.path.exists(os.path.join(host.paths.store, "last-run.json"))  # the one before would contradict


def test_a_run_with_nothing_to_do_leaves_no_record(host: Host) -> None:
    host.run()
    record = Path(host.paths.store, "last-run.json")
    record.unlink()
    assert host.run()["changed"] is False
    assert not record.exists()


def test_an_undeclared_drop_in_is_refused(host: Host) -> None:
    host.state = replace(host.state, drop_in_paths=STATE.drop_in_paths)
    with pytest.raises(FleetError, match="drop-in that nobody declared"):
        host.run()
    assert host.done == []


def test_a_lock_held_by_another_run_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(host.paths.store)
    monkeypatch.setattr(
        _endpoint, "file_lock", lambda path, wait_s, purpose: file_lock(path, wait_s=0, purpose=purpose)
    )
    with (
        file_lock(host.store.lock_path, wait_s=0, purpose="deploy of endpoint chat"),
        pytest.raises(FleetError, match=r"held for deploy of endpoint chat, begun .* \(process \d+\)"),
    ):
        host.run()
    assert host.serves == ""


def test_a_plan_made_before_another_run_ended_is_not_carried_out(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(path: str, *, wait_s: float, purpose: str) -> Any:
        host.store.commit(host.store.stage(host.make("theirs")), {})
        return file_lock(path, wait_s=wait_s, purpose=purpose)

    monkeypatch.setattr(_endpoint, "file_lock", lock)
    with pytest.raises(FleetError, match="changed by another run"):
        host.run()
    assert host.serves == "theirs"
    assert "restart" not in host.done


def test_row_of_a_running_endpoint(host: Host) -> None:
    host.run()
    host.state = _systemd.UnitState(
        **{
            **host.state.__dict__,
            "active_since_us": int((time.clock_gettime(time.CLOCK_MONOTONIC) - 90) * 1e6),
            "n_restarts": 2,
        }
    )
    row, links = look(host.paths)
    assert links == host.links
    assert row.pop("age_s") == pytest.approx(90, abs=1)
    era = host.store.current()
    assert era is not None
    assert row == {
        "name": "chat",
        "unit": "active (running)",
        "restarts": 2,
        "pid": 42,
        "payload": "smol",
        "model_file": "m.gguf",
        "runtime": "cpu",
        "shape": {"ctx_size": 4096, "parallel": 2, "ctx_per_slot": 2048},
        "port": 18080,
        "alias": "chat",
        "memory_mib": 3.0,
        "cards_mib": None,
        "memory_fault": None,
        "health": "HTTP 200",
        "era": era.id,
        "pinned": None,
        "truth": "ok",
        "probes": [],
    }


def test_row_of_an_endpoint_that_was_never_deployed(host: Host) -> None:
    host.state = _systemd.UnitState(
        **{**STATE.__dict__, "load_state": "not-found", "active_state": "inactive", "sub_state": "dead", "main_pid": 0}
    )
    row, links = look(host.paths)
    assert links == []
    assert (row["unit"], row["health"], row["era"], row["age_s"], row["memory_mib"], row["truth"], row["port"]) == (
        "not found",
        "never deployed",
        None,
        None,
        None,
        None,
        None,
    )


def test_row_names_the_first_broken_link(host: Host) -> None:
    host.run()
    host.links = [Link("a", 1, 1), BROKEN, Link("c", 1, 2)]
    assert look(host.paths)[0]["truth"] == WHY[0]


def test_row_names_a_damaged_payload_before_all_else(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    host.links = [BROKEN]
    marked = {host.paths.damaged: [Link("payload m.gguf is damaged", "aa", "bb")]}
    monkeypatch.setattr(_endpoint_look, "damage_links", lambda _era, folder: marked.get(folder, []))
    row, links = look(host.paths)
    assert row["truth"] == "payload m.gguf is damaged: expected aa, found bb"
    assert len(links) == 2


@pytest.mark.parametrize(
    ("settle_s", "age_s", "waits_s"), [(None, 3.0, 8.0), (None, 12.0, 0.0), (5.0, 3.0, 2.0), (5.0, 6.0, 0.0)]
)
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, None),
        ({"n_restarts": 1, "invocation_id": "j" * 32, "main_pid": 43}, "restarts"),
        ({"invocation_id": "j" * 32}, "invocation"),
        ({"active_state": "activating", "sub_state": "auto-restart", "main_pid": 0}, "pid"),
    ],
)
def test_a_young_start_is_looked_at_again(
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    settle_s: float | None,
    age_s: float,
    waits_s: float,
    change: dict[str, Any],
    found: str | None,
) -> None:
    make = host.make
    host.make = lambda tag, **facts: replace(make(tag, **facts), unit_text="[Service]\nRestartSec=10\n")
    host.run()
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    host.state = replace(host.state, active_since_us=int((now - age_s) * 1e6))
    slept: list[float] = []

    def between(_era: Any, _paths: Paths) -> tuple[list[Link], str]:
        host.state = replace(host.state, **change)  # the unit restarts after it was first asked for
        return host.links, "HTTP 200"

    monkeypatch.setattr(_endpoint_look, "truth_of", between)
    monkeypatch.setattr(_endpoint_look.time, "sleep", slept.append)
    links = look(host.paths, settle_s)[1]
    assert sum(slept) == pytest.approx(waits_s, abs=0.5)
    assert (links[-1].name, links[-1].ok) == ("the start goes on", found is None)
    if found is not None:
        assert links[-1].expected[found] != links[-1].found[found]


def test_one_look_is_enough_where_it_is_asked_for_or_something_is_broken(host: Host) -> None:
    host.run()
    assert len(look(host.paths)[1]) == 1
    host.links = [BROKEN]
    assert len(look(host.paths, None)[1]) == 1


@pytest.mark.parametrize(
    ("text", "settle_s"), [("RestartSec=10\n", 11.0), ("X=1\nRestartSec=0.5\nY=2", 1.5), ("#RestartSec=9\n", 1.0)]
)
def test_a_start_settles_for_longer_than_systemd_waits_between_two(text: str, settle_s: float) -> None:
    assert settling_s(text) == settle_s


def test_require_truth() -> None:
    told = {"name": "chat"}
    require_truth("chat", told, [Link("a", 1, 1)])
    with pytest.raises(FleetError, match=r"truth of endpoint chat: slots; expected 2; found 1\. Mend it") as caught:
        require_truth("chat", told, [Link("a", 1, 1), Link("slots", 2, 1, "Mend it"), Link("c", 1, 3)])
    assert caught.value.facts["gate"] == "truth"
    assert caught.value.facts["endpoint"] == told
    assert [link["name"] for link in caught.value.facts["links"]] == ["slots", "c"]


def test_truth_of_what_was_never_deployed() -> None:
    with pytest.raises(FleetError, match="endpoint no-such-endpoint was never deployed"):
        require_truth("no-such-endpoint", {}, [])


def test_a_first_deploy_that_was_killed_is_run_again(host: Host) -> None:
    host.faults["one"] = KeyboardInterrupt()  # as a kill: nothing cleans up, files and a staged era stay
    with pytest.raises(KeyboardInterrupt):
        host.run()
    assert host.store.current() is None
    assert os.path.exists(host.paths.env_file)
    host.faults.clear()
    host.run()
    era = host.store.current()
    assert era is not None
    assert era.state == "certified"
    assert len(os.listdir(os.path.join(host.paths.store, "eras"))) == 1


def test_a_unit_that_shadows_ours_stops_a_deploy_and_a_repair(host: Host) -> None:
    host.run()
    shadow = "/etc/systemd/system.control/chat.service"
    host.state = replace(host.state, fragment_path=shadow)
    assert not host.run()["changed"]  # truth is scripted: nothing is to be done, and nothing is asked
    host.links = [Link("fragment path", host.paths.unit_file, shadow)]
    with pytest.raises(FleetError, match="from another file") as caught:
        host.run()
    assert (caught.value.facts["gate"], caught.value.found) == ("foreign files", shadow)
    assert host.done == []


def test_somebody_elses_env_file_stops_a_first_deploy(host: Host) -> None:
    os.makedirs(host.paths.etc)
    Path(host.paths.env_file).write_text("MINE=1\n")
    with pytest.raises(FleetError, match="is there already") as caught:
        host.run()
    assert caught.value.facts["gate"] == "foreign files"
    assert host.done == []
    assert Path(host.paths.env_file).read_text() == "MINE=1\n"


@pytest.fixture
def payload(host: Host, tmp_path: Path) -> Folder:
    """Era ``one`` was proven with the old bytes, which the role payload has replaced for ``two``."""
    folder = Folder(tmp_path)
    folder.model.write_bytes(b"old")
    write_stamp(host.paths.stamps, str(folder.model), OLD, Identity.of(folder.model.stat()))
    make, digests = host.make, {"one": OLD, "two": NEW}
    host.make = lambda tag, **facts: make(tag, **facts, **folder.facts(digests[tag]))
    host.run()
    folder.model.rename(folder.kept(OLD))
    folder.model.write_bytes(b"new")
    write_stamp(host.paths.stamps, str(folder.model), NEW, Identity.of(folder.model.stat()))
    host.tag = "two"
    return folder


def test_going_back_has_the_old_bytes_again(host: Host, payload: Folder) -> None:
    host.faults["two"] = FleetError("no answer", gate="probes")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert host.done[-3:] == ["put one", "restart", "prove one"]
    assert payload.model.read_bytes() == b"old"
    told = str(caught.value.facts["went_back_to"])
    assert told.endswith(f"which serves again, with its own {payload.model} put back")


def test_without_the_old_bytes_nothing_is_started_and_the_fault_says_so(host: Host, payload: Folder) -> None:
    payload.kept(OLD).unlink()
    host.faults["two"] = FleetError("no answer", gate="probes")
    with pytest.raises(FleetError, match=r"no answer.*is not kept beside it.*The endpoint is down") as caught:
        host.run()
    assert host.done[-3:] == ["prove two", "put one", "disable chat.service"]
    assert caught.value.facts["went_back_to"] is None


@pytest.mark.parametrize("fault", ["gate port", "verify"])
def test_a_gate_before_the_cut_over_leaves_the_old_bytes_under_their_name(
    host: Host, payload: Folder, fault: str
) -> None:
    host.faults[fault] = FleetError("red")
    for option in ("check_mode", "plan_only"):
        if fault == "gate port":
            with pytest.raises(FleetError, match="red"):
                host.run(**{option: True})
        assert payload.model.read_bytes() == b"new"
    with pytest.raises(FleetError, match="red") as caught:
        host.run()
    assert (host.done[-1], payload.model.read_bytes()) == (fault, b"old")
    assert "files_not_put_back" not in caught.value.facts
    host.faults.clear()
    host.tag = "one"
    host.links = [Link("slots", 2, 1)]
    assert host.run()["kind"] == "repair"


def test_a_gate_before_the_cut_over_says_where_the_old_bytes_are_gone(host: Host, payload: Folder) -> None:
    payload.kept(OLD).unlink()
    host.faults["gate port"] = FleetError("red")
    with pytest.raises(FleetError, match="red") as caught:
        host.run()
    assert "is not kept beside it" in caught.value.facts["files_not_put_back"]


def test_a_repair_of_a_pinned_era_is_on_its_own_bytes(host: Host, payload: Folder) -> None:
    host.tag, host.links = "one", [Link("payload digests", "old", "new")]
    host.run()
    assert (host.done[-3:], payload.model.read_bytes()) == (["restart", "prove one", "ledger"], b"old")


def test_an_era_is_restored_with_its_bytes(host: Host, payload: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    assert (host.serves, payload.model.read_bytes()) == ("two", b"new")
    monkeypatch.setattr(_endpoint, "redraw", lambda era, _stamps: era.blueprint)
    host.run(era="previous")
    assert (host.serves, payload.model.read_bytes()) == ("one", b"old")
    host.faults["two"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer"):
        host.run(unpin=True)
    assert (host.serves, payload.model.read_bytes()) == ("one", b"old")


def test_a_rival_that_had_made_way_has_its_bytes_again(host: Host, payload: Folder) -> None:
    host.declared = replace(host.declared, rivals=["other"])
    rival = EraStore(replace(host.paths, endpoint="other").store)
    rival.commit(rival.stage(host.make("one")), {})
    host.standing = {"other"}
    host.faults["two"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        host.run()
    assert payload.model.read_bytes() == b"old"
    assert str(caught.value.facts["went_back_to"]).startswith("other in era ")
