# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trials on a real host: measured, unable to boot, killed; what served before serves again each time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import pytest

PORT = 8092
STORE = "/var/lib/llm-fleet/toy-chat"
TRIALS = "llm-fleet-trial-toy-chat-"
GUARD, CANDIDATE = f"{TRIALS}*Z.service", f"{TRIALS}*Z-1.service"
MODULE = "[A]nsiballZ_endpoint_trial"


def try_out(fleet, *args, **extra):
    return fleet.play("playbooks/trial.yml", *args, endpoint=fleet.endpoint, **extra)


def files(fleet):
    """All that is ours on the host, but the records of trials."""
    lines = fleet.snapshot().splitlines()
    return [line for line in lines if "/trials" not in line and f"{STORE} " not in line and "/lock" not in line]


def record(fleet):
    """The newest record."""
    return json.loads(fleet.run(f"cat $(ls {STORE}/trials/*.json | tail -n 1)"))


def leftovers(fleet):
    """Units of trials that do anything, and their run directories."""
    states = "active,activating,deactivating,reloading"
    return fleet.run(
        f"systemctl list-units --plain --no-legend --state={states} '{TRIALS}*'; ls -d /run/llm-fleet-trial-* || true"
    )


def until(holds, seconds=120):
    """Wait for what ``holds`` tells; a shared machine may be slow."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def back(fleet, before, seconds=120):
    """Wait until another start of the endpoint's unit runs, and nothing of a trial does."""

    def holds():
        now = fleet.start()
        return now["SubState"] == "running" and now["InvocationID"] != before["InvocationID"] and not leftovers(fleet)

    until(holds, seconds)


def begin(fleet, *extra):
    """A trial's playbook in the background."""
    asked = (f"endpoint={fleet.endpoint}", *extra)
    return fleet.begin("playbooks/trial.yml", *(word for each in asked for word in ("-e", each)))


def runs(unit):
    """For ``fleet.when``: one of these units is active."""
    return f"systemctl is-active --quiet '{unit}'"


@contextlib.contextmanager
def frozen(fleet):
    """The module's processes stop as soon as the candidate runs, and go on when this ends: however slow we are."""
    fleet.when(runs(CANDIDATE), f"pkill -STOP -f '{MODULE}'")
    try:
        yield
    finally:
        fleet.run(f"pkill -CONT -f '{MODULE}' || true")


@pytest.fixture
def unharmed(fleet):
    """After the test the files are those of before, what serves was proven, and answers."""
    before = files(fleet)
    yield fleet.start()
    assert files(fleet) == before
    assert leftovers(fleet) == ""
    assert fleet.chat(PORT)


def test_check_mode_tells_and_stops_nothing(fleet, unharmed):
    before = fleet.run(f"ls {STORE}/trials 2>/dev/null || true")
    played = try_out(fleet, "--check", env="CTX_SIZE=1024")
    assert played.rc == 0, played.text
    assert "would boot 1 of 1" in played.text and "CTX_SIZE=1024" in played.text
    assert fleet.start() == unharmed
    assert fleet.run(f"ls {STORE}/trials 2>/dev/null || true") == before


def test_what_is_asked_wrongly_stops_nothing(fleet, unharmed):
    played = try_out(fleet, split="35,30;36,29")
    assert played.rc != 0 and "has no cards to split between" in played.error, played.text
    played = fleet.play("playbooks/trial.yml", "-e", "endpoint=toy-chat", "-e", "env=CTX_SIZE=1024 PARALLEL=1")
    assert played.rc != 0 and "PARALLEL became a variable of Ansible" in played.error, played.text
    assert fleet.start() == unharmed


def test_another_context_is_measured_and_the_endpoint_is_back(fleet, unharmed):
    played = fleet.play("playbooks/trial.yml", "-e", "endpoint=toy-chat", "-e", 'env="CTX_SIZE=1024 PARALLEL=1"')
    assert played.rc == 0, played.text
    assert "1 of 1 measured" in played.text
    assert "toy-chat serves again in era" in played.text and "links of truth hold, health, chat pass" in played.text
    told = record(fleet)
    (row,) = told["rows"]
    assert told["finished"] and told["served_before"] == ["toy-chat"] and told["gap_s"] > 0
    assert (row["outcome"], row["lines"]) == ("measured", {"CTX_SIZE": "1024", "PARALLEL": "1"})
    assert row["shape"]["ctx_size"] == 1024 and row["differences"] == []
    assert row["resident_mib"] > 1 and row["buffers_mib"]["host"] > 1
    assert all(probe["verdict"] != "fail" for probe in row["probes"])
    assert fleet.start()["InvocationID"] != unharmed["InvocationID"]
    assert json.loads(fleet.run(f"curl -sS http://127.0.0.1:{PORT}/props"))["total_slots"] == 2


def test_one_that_cannot_boot_is_told_and_the_endpoint_is_back(fleet, unharmed):
    """A chat template that only the server reads, and cannot."""
    fleet.run("echo '{% for %}' >/srv/broken.jinja")
    played = try_out(fleet, env="CHAT_TEMPLATE_FILE=/srv/broken.jinja")
    assert played.rc != 0
    assert "does not stay up" in played.error and "template" in played.error
    assert "serving now: toy-chat in era" in played.error and "0 of 1 measured" in played.text
    told = record(fleet)
    assert told["finished"] and told["rows"][0]["outcome"] == "failed"
    assert told["rows"][0]["fault"]["diagnosis"]["name"]
    back(fleet, unharmed)


@pytest.mark.parametrize("unit", [GUARD, CANDIDATE])
def test_a_killed_module_costs_a_moment(fleet, unharmed, unit):
    """SIGKILL as soon as the guard runs, before there is a candidate; and once the candidate runs."""
    fleet.when(runs(unit), f"pkill -9 -f '{MODULE}'")
    played = try_out(fleet, env="CTX_SIZE=1024")
    assert played.rc != 0 and "left no result" in played.error, played.text
    back(fleet, unharmed, seconds=10)  # by itself, long ago
    assert not record(fleet)["finished"]


def test_a_killed_controller_changes_nothing_for_the_host(fleet, unharmed):
    """SIGKILL of all its processes while the candidate runs: the trial goes on to its end."""
    with frozen(fleet):  # so that we are not too late
        controller = begin(fleet, "env=CTX_SIZE=512")
        until(lambda: "active" in fleet.run(f"systemctl is-active '{CANDIDATE}' || true").split())
        os.killpg(controller.pid, signal.SIGKILL)
        controller.communicate()
    back(fleet, unharmed)
    until(lambda: not fleet.run(f"pgrep -f '{MODULE}' || true"))
    told = record(fleet)
    assert told["finished"] and told["rows"][0]["lines"] == {"CTX_SIZE": "512"}
    assert told["rows"][0]["outcome"] == "measured"


def test_a_module_that_hangs_is_not_waited_for(fleet, unharmed):
    """The host ends the trial when its time is over; the module finds that out when it goes on."""
    with frozen(fleet):
        controller = begin(fleet, "env=CTX_SIZE=512", "limit_s=8")
        back(fleet, unharmed)
        assert fleet.run(f"ps -o stat= -p $(pgrep -d, -f '{MODULE}')").startswith("T")  # it hangs still
        assert fleet.chat(PORT)
    text = " ".join(controller.communicate()[0].split())
    assert controller.returncode != 0 and "was ended from outside" in text and "limit_s" in text
    assert record(fleet)["finished"]


def test_a_power_cut_during_a_trial(fleet):
    """The host boots, and the endpoint serves again by its own unit; the controller does not wait for ever."""
    before = files(fleet)
    with frozen(fleet):
        controller = begin(fleet, "env=CTX_SIZE=512")
        until(lambda: "active" in fleet.run(f"systemctl is-active '{CANDIDATE}' || true").split())
        fleet.cut_power()
    until(lambda: fleet.run(f"curl -sf http://127.0.0.1:{PORT}/health || true"))
    assert leftovers(fleet) == "" and files(fleet) == before
    assert fleet.chat(PORT) and not record(fleet)["finished"]
    text = " ".join(controller.communicate()[0].split())
    assert controller.returncode != 0 and "left no result" in text, text
    played = fleet.play("site.yml")
    assert played.rc == 0 and "the last run was killed midway (trial of endpoint toy-chat" in played.error, played.text


def test_site_has_nothing_to_do_after_all_that(fleet, unharmed):
    played = fleet.play("site.yml")
    assert played.rc == 0 and played.recap["changed"] == 0, played.text
    assert fleet.start() == unharmed


def test_what_did_not_run_before_does_not_after(fleet):
    fleet.run(f"systemctl stop {fleet.unit}")
    played = try_out(fleet, env="CTX_SIZE=1024")
    assert played.rc == 0, played.text
    assert "nothing served before the trial" in played.text
    assert fleet.start()["ActiveState"] == "inactive" and leftovers(fleet) == ""
    played = fleet.play("site.yml")
    assert played.rc == 0 and fleet.chat(PORT)
