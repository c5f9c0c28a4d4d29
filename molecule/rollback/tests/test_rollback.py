# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rungs: flip env lines, prove, pin; lift the pin; nothing rolls forward in silence."""

from __future__ import annotations

import json
import re

PORT = 8090


def slots(fleet):
    return json.loads(fleet.run(f"curl -sS http://127.0.0.1:{PORT}/props"))["total_slots"]


def env(fleet):
    return fleet.run(f"cat /etc/llm-fleet/{fleet.endpoint}.env")


def roll(fleet, *args, **extra):
    return fleet.play("playbooks/rollback.yml", *args, endpoint=fleet.endpoint, **extra)


def test_check_mode_shows_the_lines_and_writes_nothing(fleet):
    before, start = fleet.snapshot(), fleet.start()
    played = roll(fleet, "--check", "--diff", rung="one_slot")
    assert played.rc == 0, played.text
    assert "-PARALLEL=2" in played.text and "+PARALLEL=1" in played.text
    assert played.recap["changed"] >= 1
    assert fleet.snapshot() == before and fleet.start() == start


def test_unknown_rung_and_unknown_endpoint_are_named(fleet):
    start = fleet.start()
    played = roll(fleet, rung="no_such_rung")
    assert played.rc != 0 and "one_slot" in played.error and "no_such_rung" in played.error
    played = fleet.play("playbooks/rollback.yml", endpoint="nobody", rung="one_slot")
    assert played.rc != 0 and "nobody" in played.error and fleet.endpoint in played.error
    assert roll(fleet).rc != 0
    assert fleet.start() == start


def test_rung_flips_only_its_lines_and_is_proven(fleet):
    before = env(fleet)
    played = roll(fleet, rung="one_slot")
    assert played.rc == 0, played.text
    assert "-PARALLEL=2" in played.text and "+PARALLEL=1" in played.text
    assert env(fleet) == before.replace("PARALLEL=2", "PARALLEL=1")
    assert slots(fleet) == 1
    assert fleet.chat(PORT)
    pin = json.loads(fleet.run(f"cat /var/lib/llm-fleet/{fleet.endpoint}/pin.json"))
    assert pin["rung"] == "one_slot" and pin["lines"] == {"PARALLEL": 1}


def test_site_keeps_the_pinned_state_and_says_so(fleet):
    start = fleet.start()
    played = fleet.play("site.yml")
    assert played.rc == 0 and played.recap["changed"] == 0, played.text
    assert "pinned to rung one_slot" in played.error
    assert fleet.start() == start and slots(fleet) == 1
    assert "pinned to rung one_slot" in fleet.play("playbooks/status.yml").text


def test_rolling_back_twice_changes_nothing(fleet):
    start = fleet.start()
    played = roll(fleet, rung="one_slot")
    assert played.rc == 0 and played.recap["changed"] == 0, played.text
    assert fleet.start() == start


def test_a_rung_that_cannot_serve_leaves_the_endpoint_as_it_was(fleet):
    before = env(fleet)
    endpoints = fleet.variables()["llm_endpoints"]
    endpoints[fleet.endpoint]["rungs"]["broken"] = {"CHAT_TEMPLATE_FILE": "/etc/hostname-that-is-not-there"}
    played = roll(fleet, rung="broken", llm_endpoints=endpoints)
    assert played.rc != 0 and "/etc/hostname-that-is-not-there" in played.error
    assert env(fleet) == before and slots(fleet) == 1


def lines_of(text):
    """The env lines that a diff takes out and puts in."""
    return {line.strip() for line in text.splitlines() if re.match(r"\s*[-+][A-Z_]+=", line)}


def test_check_mode_of_unpin_and_of_an_era_tells_what_a_run_would_do(fleet):
    before, start = fleet.snapshot(), fleet.start()
    for asked in ({"unpin": True}, {"era": "previous"}):
        played = roll(fleet, "--check", "--diff", **asked)
        assert played.rc == 0 and played.recap["changed"] >= 1, played.text
        assert lines_of(played.text) == {"-PARALLEL=1", "+PARALLEL=2"}, played.text
    assert fleet.snapshot() == before and fleet.start() == start


def test_unpin_returns_to_the_inventory(fleet):
    played = roll(fleet, unpin=True)
    assert played.rc == 0, played.text
    assert lines_of(played.text) == {"-PARALLEL=1", "+PARALLEL=2"}, played.text
    assert slots(fleet) == 2
    assert fleet.run(f"test ! -e /var/lib/llm-fleet/{fleet.endpoint}/pin.json && echo gone").strip() == "gone"
    assert fleet.play("site.yml").recap["changed"] == 0


def test_a_pin_ends_when_the_inventory_agrees(fleet):
    assert roll(fleet, rung="one_slot").rc == 0
    endpoints = fleet.variables()["llm_endpoints"]
    endpoints[fleet.endpoint]["env"]["PARALLEL"] = 1
    endpoints[fleet.endpoint].pop("client", None)
    start = fleet.start()
    played = fleet.play("site.yml", llm_endpoints=endpoints)
    assert played.rc == 0, played.text
    assert fleet.run(f"test ! -e /var/lib/llm-fleet/{fleet.endpoint}/pin.json && echo gone").strip() == "gone"
    assert fleet.start() == start
    assert fleet.play("site.yml").rc == 0
    assert slots(fleet) == 2
