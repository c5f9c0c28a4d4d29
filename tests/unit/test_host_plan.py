# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The survey of a host: steps in order, nothing looked at past the first with work, faults become reasons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _host_plan as host_plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

ROW = {"name": "chat", "unit": "active (running)", "shape": {}}
HOST = {"user": "llm", "groups": [], "packages": [], "folders": []}


LAUNCHERS = ("llamacpp", "r9v")


class World:
    """The four looks, each a stand-in that records that it was asked; ``work`` names the steps that have some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: set[str], fault: str = "") -> None:
        self.asked: list[str] = []

        def look(step: str) -> bool:
            self.asked.append(step)
            if step == fault:
                raise FleetError(f"{step} is broken")
            return step in work

        def host_look(*_args: Any) -> dict[str, Any]:
            busy = look("host")
            return {"complete": not busy, "packages": ["cmake"] if busy else [], "user": False}

        def make_plan(_request: Any) -> Any:
            return SimpleNamespace(action="built" if look("runtime") else "none", reasons=("cmake.X: 1 -> 2",))

        def ensure(_spec: Any, **_options: Any) -> dict[str, Any]:
            busy = look("payload")
            return {"changed": busy, "work": busy, "warnings": ["only a prefix is declared"]}

        def converge(*_args: Any, **options: Any) -> dict[str, Any]:
            assert options == {"plan_only": True}
            busy = look("endpoint")
            return {"changed": busy, "reasons": ["drop-ins"], "endpoint": ROW, "warnings": ["pinned"]}

        monkeypatch.setattr(host_plan._host, "look", host_look)
        monkeypatch.setattr(host_plan._buildplan, "parse_request", lambda entry: entry)
        monkeypatch.setattr(host_plan._buildplan, "make_plan", make_plan)
        monkeypatch.setattr(host_plan._r9v_runtime, "parse_request", lambda entry: entry)
        monkeypatch.setattr(host_plan._r9v_runtime, "plan", lambda _request: ["the shim"] if look("runtime") else [])
        monkeypatch.setattr(host_plan._payload.PayloadSpec, "from_params", lambda entry: entry)
        monkeypatch.setattr(host_plan._payload, "ensure", ensure)
        monkeypatch.setattr(host_plan, "converge", converge)

    def survey(self, engine: str = "llamacpp") -> dict[str, Any]:
        endpoint = {"name": "chat", "engine": engine, "env": {}, "runtime": "cpu", "payload": {}}
        runtime = {"name": "cpu", "engine": engine}
        return host_plan.survey(HOST, [runtime], [{"name": "model"}], [endpoint], dict.fromkeys(LAUNCHERS, "launcher"))


def test_a_converged_host_has_no_work_and_its_rows_and_warnings(monkeypatch):
    told = World(monkeypatch, set()).survey()
    assert told["steps"] == dict.fromkeys(host_plan.STEPS, False)
    assert told["why"] == {}
    assert told["endpoints"] == [ROW]
    assert told["warnings"] == ["only a prefix is declared", "pinned"]


@pytest.mark.parametrize("first", range(len(host_plan.STEPS)))
def test_the_first_step_with_work_takes_all_later_ones_along(monkeypatch, first):
    steps = host_plan.STEPS
    world = World(monkeypatch, {steps[first]})
    told = world.survey()
    assert world.asked == list(steps[: first + 1])
    assert told["steps"] == {step: index >= first for index, step in enumerate(steps)}
    assert len(set(told["why"].values())) == 1
    assert (told["endpoints"], told["warnings"]) == ([], [])


@pytest.mark.parametrize("step", host_plan.STEPS)
def test_a_fault_is_left_to_the_step_itself(monkeypatch, step):
    told = World(monkeypatch, set(), fault=step).survey()
    assert told["steps"][step] is True
    assert told["why"][step] == f"{step} is broken."


def test_reasons_name_the_thing(monkeypatch):
    assert World(monkeypatch, {"host"}).survey()["why"]["host"] == "the host lacks ['packages']"
    assert "runtime cpu: built: cmake.X: 1 -> 2" in World(monkeypatch, {"runtime"}).survey()["why"]["runtime"]
    assert World(monkeypatch, {"runtime"}).survey("r9v")["why"]["runtime"] == "runtime cpu: the shim"
    assert "payload model" in World(monkeypatch, {"payload"}).survey()["why"]["payload"]
    assert "endpoint chat: drop-ins" in World(monkeypatch, {"endpoint"}).survey()["why"]["endpoint"]


@pytest.mark.parametrize("changed", [True, False])
def test_the_check_at_rest_is_work_of_the_payload_step(monkeypatch, changed):
    World(monkeypatch, set())
    asked = []

    def converge(spec, *, dry):
        asked.append((spec.present, spec.stamp_dir, dry))
        return {"changed": changed}

    monkeypatch.setattr(host_plan._rest_install, "converge", converge)
    rest = {"state": "absent", "program": "", "stamp_dir": "/stamps"}
    told = host_plan.survey(HOST, [], [], [], {}, rest)
    assert asked == [(False, "/stamps", True)]
    assert told["steps"] == {"host": False, "runtime": False, "payload": changed, "endpoint": changed}
    assert told["why"].get("payload") == ("the check of payloads at rest is not absent" if changed else None)


def test_an_engine_that_is_not_known_is_refused_before_any_look(monkeypatch):
    world = World(monkeypatch, set())
    with pytest.raises(FleetError, match=r"engine 'other' is not known; expected llamacpp or r9v"):
        world.survey("other")
    assert world.asked == []
