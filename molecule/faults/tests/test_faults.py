# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fault of faults.yml is caught where it says, named by its cause, and the endpoint answers afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from driver import FOLDER
from record import FAULTS

BY_MODULE = [each for each in FAULTS if each.get("owner") != "only"]
BY_OWNER = [each for each in FAULTS if "owner" in each]


def named(faults: list[dict[str, Any]]) -> Any:
    """One case for each."""
    return pytest.mark.parametrize("fault", faults, ids=[each["id"] for each in faults])


def whole(told: dict[str, Any]) -> bool:
    """Whether the endpoint is what was declared, and its model answers."""
    return told["truth"] == "whole" and "Paris" in told["answer"]


TELLING = "msg what gate kind changed reasons went_back_to seconds failed truth answer era pid state left steps".split()


def shown(value: Any) -> str:
    """For a failed assertion: what tells of what happened."""
    told = {key: {k: v for k, v in part.items() if k in TELLING} if isinstance(part, dict) else part
            for key, part in value.items()}  # fmt: skip
    return json.dumps(told, indent=1)


def says(message: str, fault: dict[str, Any]) -> None:
    """The message has the fault's words, and none that belong to another."""
    message = " ".join(message.split())
    for words in fault["says"]:
        assert words in message, f"{words!r} is not in: {message}"
    for words in fault.get("never", []):
        assert words not in message, f"{words!r} is in: {message}"


def test_there_are_enough_and_each_has_its_name():
    assert len(FAULTS) >= 30
    assert len({each["id"] for each in FAULTS}) == len(FAULTS)
    assert len({each["fault"] for each in FAULTS}) == len(FAULTS)


def on_host(fleet: Any, fault: dict[str, Any], key: str) -> None:
    """Run a fault's script as the driver would."""
    fleet.run(f"export DRILL={FOLDER}\nset -euo pipefail\n{fault.get(key, 'true')}")


@named(BY_MODULE)
def test_fault(driver, record, fault):
    told = driver.order("drill", fault)
    assert whole(told["before"]), "an earlier fault was not mended: " + shown(told["before"])
    assert told["not_injected"] == [], shown(told)
    run = told["run"]
    then = fault["then"]
    if "link" in fault:
        truth = told["truth"]
        assert truth.get("failed"), shown(told)
        assert truth["what"] == f"truth of endpoint drill: {fault['link']}", truth["msg"]
        says(truth["msg"], fault)
    else:
        assert run.get("failed"), shown(told)
        assert run.get("gate") == fault.get("gate"), run["msg"]
        says(run["msg"], fault)
    record.seconds[fault["id"]] = told["seconds"]

    if then == "repaired":
        assert not run.get("failed"), run["msg"]
        assert (run["kind"], run["changed"]) == ("repair", True)
    elif then == "refused":
        assert run.get("failed"), shown(told)
        assert run["gate"] == fault["refused_by"], run["msg"]
        assert told["start_after"] == told["start_hit"]
    elif then == "back":
        assert told["before"]["era"] in run["went_back_to"], run["msg"]
        assert "serves again" in run["went_back_to"]
        assert told["start_after"]["state"] == "active (running)"
    else:
        assert then in ("stays", "nothing")
        assert told["start_after"] == told["start_hit"], "the server that ran was touched: " + run["msg"]
        if then == "nothing":
            assert "this was the first deploy" in run["went_back_to"]
            assert told["left"] == []

    again = told["again"]
    assert not again.get("failed"), again["msg"]
    assert whole(told["after"]), shown(told["after"])
    assert told["after"]["era"] == told["before"]["era"]
    if then != "refused":
        assert not again["changed"], again["reasons"]


@named(BY_OWNER)
def test_fault_as_the_owner_meets_it(fleet, driver, record, fault, capsys):
    endpoints = fleet.variables()["llm_endpoints"]
    for key, value in fault.get("declare", {}).items():
        old = endpoints["drill"].get(key)
        endpoints["drill"][key] = {**old, **value} if isinstance(value, dict) else value
    before = driver.order("look")
    assert whole(before), shown(before)
    then = fault["then"]
    try:
        on_host(fleet, fault, "do")
        if fault["owner"] == "only":
            hit = driver.order("look")
            assert hit["truth"].startswith(f"truth of endpoint drill: {fault['link']};"), hit["truth"]
            says(hit["truth"], fault)
            record.seconds[fault["id"]] = hit["seconds"]
            played = fleet.play("site.yml")
        else:
            played = fleet.play("playbooks/verify.yml" if "link" in fault else "site.yml", llm_endpoints=endpoints)
            assert played.rc != 0, played.text
            says(played.error, fault)
            assert then != "back" or "serves again" in played.error
        with capsys.disabled():
            end = max(played.text.find("FAULTS *"), played.text.find("ENDPOINTS *"), 0)
            end = played.text.find("FAULTS *") if "FAULTS *" in played.text else end
            print(f"\n--- {fault['fault']}: what the owner sees\n{played.text[end:].strip()}")
        if then == "refused":
            refused = fleet.play("site.yml")
            assert refused.rc != 0 and "drop-in that nobody declared" in refused.error, refused.text
    finally:
        on_host(fleet, fault, "undo")
    if then == "refused":
        played = fleet.play("site.yml")
    assert then not in ("refused", "repaired") or played.rc == 0, played.text
    after = driver.order("look")
    assert whole(after) and after["plan"] == "none", shown(after)
    assert after["era"] == before["era"]
