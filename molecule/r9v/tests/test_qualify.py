# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile qualified on the stand-in beside a deployed endpoint, killed at its steps: that serves again each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from test_r9v import PORT, podman, roll, start_of

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
STATE = "/srv/r9v/state/fresh/setup.json"
RUNS = "/var/lib/llm-fleet/qualifications/standin-primary/fresh"
LIBRARY = "/opt/walk"
SETUP = "fresh"
PROFILE_RUNS = "systemctl is-active -q 'llm-fleet-trial-*-2.service'"  # the first is the fork's own setup


def qualify(fleet, *args, **extra):
    return fleet.play("playbooks/qualify.yml", *args, endpoint=fleet.endpoint, setup=SETUP, **extra)


def assert_serves(fleet):
    """The endpoint serves, and nothing of a window is left."""
    assert fleet.start()["ActiveState"] == "active" and fleet.chat(PORT) == "hello"
    assert podman(fleet, "ps --all --format '{{.Names}}'").split() == ["standin-primary-r9v"]
    assert fleet.run("find /run/systemd/system.control -lname /dev/null 2>/dev/null || true") == ""
    at_work = "--state=active,activating,deactivating 'llm-fleet-trial-*'"
    assert fleet.run(f"systemctl list-units --plain --no-legend {at_work}") == ""


def endpoints(fleet, **changes):
    """The inventory's endpoints with other places for the run."""
    told = fleet.variables()["llm_endpoints"]
    told[fleet.endpoint]["setups"][SETUP]["qualify"].update(changes)
    return told


@pytest.fixture(scope="module")
def library(fleet):
    """The collection's module_utils, the declaration and the walker on the host."""
    base = f"{LIBRARY}/ansible_collections/dank/llm_fleet/plugins"
    variables = fleet.variables()
    entry = {**variables["llm_endpoints"][fleet.endpoint], "name": fleet.endpoint, "settle_s": 0.2}
    entry["payload"] = {**variables["llm_payloads"]["standin-q8"], "name": "standin-q8"}
    entry["cards"] = [{**variables["llm_cards"][name], "name": name} for name in entry["cards"]]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "declared.json").write_text(json.dumps(entry))
        fleet.run(f"mkdir -p {base}")
        tar = ["tar", "-c", "--exclude=__pycache__", "-C", folder, "declared.json"]
        tar += ["-C", str(ROOT / "plugins"), "module_utils", "-C", str(HERE / "files"), "walk"]
        tar += ["-C", str(ROOT / "roles" / "endpoint" / "files"), "serve-r9v"]
        packed = subprocess.run(tar, capture_output=True, check=True).stdout
        subprocess.run([*fleet.ssh(), f"tar -x -C {base}"], input=packed, check=True)
    yield base
    fleet.run(f"rm -r {LIBRARY}")


def test_a_state_folder_shared_with_production_stops_nothing(fleet):
    before = start_of(fleet)
    played = qualify(fleet, llm_endpoints=endpoints(fleet, state_dir="/srv/r9v/state/q8"))
    words = "qualify.state_dir /srv/r9v/state/q8 is shared with production"
    assert played.rc != 0 and words in played.error and "nothing was stopped" in played.error, played.text
    assert start_of(fleet) == before


def test_check_mode_tells_and_changes_nothing(fleet):
    before = start_of(fleet)
    played = qualify(fleet, "--check")
    assert played.rc == 0 and "--state-dir=/srv/r9v/state/fresh.qualify" in played.text, played.text
    assert start_of(fleet) == before
    assert fleet.run(f"ls -d {RUNS} /srv/r9v/state/fresh* 2>/dev/null || true") == ""


def test_killed_at_its_steps_the_endpoint_serves_again_and_the_state_is_not_ready(fleet, library):
    """A few of them; with LLM_FLEET_WALK_ALL=1 each, in a quarter of an hour. The last run comes to its end."""
    few = "symlink .start.json 'say: ready' fresh.qualify/setup.json fresh/.setup.json"
    names = "all" if os.environ.get("LLM_FLEET_WALK_ALL") else few
    told = fleet.run(f"python3 {library}/walk {LIBRARY} {library}/declared.json {SETUP} {names}")
    rows = [json.loads(line) for line in told.splitlines()]
    print("\n".join(f"{row['step']:3} {row['seconds']:5} s  {row['at']}" for row in rows[:-1]))
    for row in rows[:-1]:
        assert row["serves"] and row["guards"] == "0" and row["masks"] == "", row
        assert row["boxes"] == ["standin-primary-r9v"] and row["ready"] is False, row
    assert len(rows) >= 6 and rows[-1]["status"] == 0, rows[-1]
    assert_serves(fleet)


def test_what_was_qualified_is_ready_and_told_from_what_was_seen(fleet):
    state = json.loads(fleet.run(f"cat {STATE}"))
    assert state["ready"] is True and fleet.run(f"stat -c '%a %U' {STATE}").split() == ["600", "owner"]
    seal = json.loads(fleet.run(f"cat {RUNS}/qualified.json"))
    pinning = json.loads(fleet.run(f"cat {RUNS}/{seal['run']}/pinning.json"))
    assert pinning["mode"] == "pinned" and max(row["bytes"] for row in pinning["processes"]) >= 1048576
    with tempfile.TemporaryDirectory() as folder:
        before = start_of(fleet)
        played = qualify(fleet, runbook=f"{folder}/page.md")
        assert played.rc == 0 and start_of(fleet) == before, played.text
        page = Path(folder, "page.md").read_text()
    assert f"Qualified by run `{seal['run']}`" in page and "| long context | pass | 3072 tokens" in page
    assert "Embedding table: pinned, 1,048,576 bytes." in page
    assert played.recap["changed"] == 1  # the page on this machine


def test_a_number_that_the_run_did_not_see_is_refused(fleet):
    run = json.loads(fleet.run(f"cat {RUNS}/qualified.json"))["run"]
    page = f"{RUNS}/{run}/runbook.md"
    fleet.run(f"cp -a {page} /root/page && sed -i 's/1,048,576/1,048,577/' {page}")
    played = qualify(fleet)
    fleet.run(f"mv /root/page {page}")
    assert played.rc != 0 and "runbook.md is not what follows from the run's evidence" in played.error, played.text


def test_it_is_deployed_like_any_other_setup(fleet):
    played = roll(fleet, rung=SETUP)
    assert played.rc == 0, played.text
    assert STATE in fleet.run(f"cat /etc/llm-fleet/{fleet.endpoint}.env")
    assert roll(fleet, unpin=True).rc == 0


def begin(fleet):
    """A qualification's playbook in the background."""
    asked = (f"endpoint={fleet.endpoint}", f"setup={SETUP}", "again=true")
    return fleet.begin("playbooks/qualify.yml", *(word for each in asked for word in ("-e", each)))


def in_the_window(fleet, then):
    """What the host says to ``then`` as soon as the profile's server runs there."""
    return fleet.run(f"for n in $(seq 3000); do {PROFILE_RUNS} && {{ {then}; exit 0; }}; sleep 0.1; done; exit 1")


def test_a_controller_that_is_killed_leaves_the_host_to_finish(fleet):
    before = fleet.run(f"cat {RUNS}/qualified.json")
    process = begin(fleet)
    told = in_the_window(fleet, f"systemctl show -P LoadState {fleet.unit}; systemctl start {fleet.unit} 2>&1 || true")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert told.startswith("masked\n") and f"{fleet.unit} is masked" in told, told  # nobody starts it meanwhile
    end = time.monotonic() + 120
    while fleet.run("cat /var/lib/llm-fleet/standin-primary/lock"):
        assert time.monotonic() < end
        time.sleep(0.5)
    assert fleet.run(f"cat {RUNS}/qualified.json") != before
    assert_serves(fleet)


def test_a_host_that_loses_power_in_the_window_boots_into_the_endpoint(fleet):
    before = fleet.run(f"cat {RUNS}/qualified.json {STATE}")
    process = begin(fleet)
    in_the_window(fleet, "true")
    fleet.cut_power()
    fleet.run(f"for n in $(seq 300); do curl -sf http://127.0.0.1:{PORT}/health && exit; sleep 0.2; done; exit 1")
    text = " ".join(process.communicate()[0].split())
    assert process.returncode != 0 and "left no result" in text, text
    assert_serves(fleet)
    assert fleet.run(f"cat {RUNS}/qualified.json {STATE}") == before
    assert fleet.play("playbooks/verify.yml").rc == 0


def test_a_host_whose_module_is_killed_brings_the_endpoint_back(fleet):
    before = fleet.run(f"cat {RUNS}/qualified.json {STATE}")
    fleet.when(f"{PROFILE_RUNS} && {fleet.locked()}", 'kill -KILL "$pid"')
    played = qualify(fleet, again=True)
    assert played.rc != 0 and "it was killed" in played.error, played.text
    fleet.run(f"for n in $(seq 300); do curl -sf http://127.0.0.1:{PORT}/health && exit; sleep 0.2; done; exit 1")
    assert_serves(fleet)
    assert fleet.run(f"cat {RUNS}/qualified.json {STATE}") == before
    assert qualify(fleet).recap["changed"] == 0
    played = fleet.play("site.yml")
    assert played.rc == 0 and "was killed midway (qualification of setup fresh" in played.error, played.text
