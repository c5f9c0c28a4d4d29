# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check at rest under real systemd: installed, run, red at a flipped bit, mended by site.yml, gone again."""

from __future__ import annotations

import re

DIR = "/var/lib/llm-fleet/models/sharded"
METRICS = "/var/lib/llm-fleet/metrics/payload.prom"
CHECK = "llm-fleet-payload-check"


def states(fleet):
    """What systemd says of service and timer."""
    return fleet.run(f"systemctl is-active {CHECK}.timer; systemctl is-enabled {CHECK}.timer", check=False).split()


def metrics(fleet):
    """Path: (age in seconds, mismatch)."""
    text = fleet.run(f"cat {METRICS}")
    ages = dict(
        re.findall(r'^llm_fleet_payload_verified_age_seconds\{payload="sharded",path="(.+)"\} (\d+)$', text, re.M)
    )
    lies = dict(re.findall(r'^llm_fleet_payload_mismatch\{path="(.+)"\} ([01])$', text, re.M))
    assert re.search(r"^llm_fleet_payload_check_last_run_timestamp_seconds \d+$", text, re.M)
    return {path: (int(ages[path]), int(lies[path])) for path in ages}


def make_oldest(fleet, name):
    """Have it look as if nobody had read this file since 1970."""
    fleet.run(f"sed -Ei 's/(verified_at.: )[0-9.]+/\\11000.0/' /var/lib/llm-fleet/payloads/{name}.*.json")


def test_it_is_installed_by_an_option_and_then_costs_nothing(fleet):
    played = fleet.play("site.yml", payload_rest=True)
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    assert states(fleet) == ["active", "enabled"]
    assert fleet.play("site.yml", payload_rest=True).recap["changed"] == 0
    assert fleet.run(f"systemd-analyze verify /etc/systemd/system/{CHECK}.service 2>&1", check=False) == ""
    fleet.run(f"systemd-analyze security --no-pager --threshold=30 {CHECK}.service >/dev/null")


def test_a_run_proves_the_file_that_was_read_longest_ago(fleet):
    first = f"{DIR}/toy-00003-of-00003.gguf"
    make_oldest(fleet, "toy-00003-of-00003.gguf")
    fleet.run(f"systemctl start {CHECK}.service")
    assert f"{first}: sha256" in fleet.run(f"journalctl --sync; journalctl -u {CHECK} -n 10 -o cat")
    told = metrics(fleet)
    assert set(told) == {
        f"{DIR}/{name}"
        for name in ("toy.gguf", "toy-00001-of-00003.gguf", "toy-00002-of-00003.gguf", "toy-00003-of-00003.gguf")
    }
    assert told[first] == (0, 0)
    assert {lie for _age, lie in told.values()} == {0}
    assert "ctime_ns" in fleet.run("cat /var/lib/llm-fleet/payloads/toy-00003-of-00003.gguf.*")


def test_a_bit_flipped_at_rest_turns_status_red_and_site_mends_it(fleet):
    path = f"{DIR}/toy-00002-of-00003.gguf"
    make_oldest(fleet, "toy-00002-of-00003.gguf")
    fleet.run(
        f"touch -r {path} /root/time; printf X | dd of={path} bs=1 seek=7 conv=notrunc status=none; "
        f"touch -r /root/time {path}"
    )
    fleet.run(f"systemctl start {CHECK}.service", check=False)
    assert fleet.run(f"systemctl is-failed {CHECK}.service").strip() == "failed"
    assert metrics(fleet)[path][1] == 1
    status = fleet.play("playbooks/status.yml")
    assert status.rc == 0 and "payload toy-00002-of-00003.gguf is damaged" in status.text.partition("ENDPOINTS")[2], (
        status.text
    )
    verify = fleet.play("playbooks/verify.yml")
    assert verify.rc != 0 and "payload toy-00002-of-00003.gguf is damaged" in verify.error

    played = fleet.play("site.yml", payload_rest=True)
    assert played.rc == 0, played.text
    assert "NOT TRUE" not in fleet.play("playbooks/status.yml").text
    make_oldest(fleet, "toy-00002-of-00003.gguf")
    fleet.run(f"systemctl start {CHECK}.service")
    assert metrics(fleet)[path] == (0, 0)
    assert fleet.run("ls /var/lib/llm-fleet/damaged") == ""


def test_it_goes_when_the_option_is_off(fleet):
    played = fleet.play("site.yml")
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    assert fleet.run(f"systemctl show -p LoadState --value {CHECK}.timer {CHECK}.service").split() == ["not-found"] * 2
    assert (
        fleet.run(
            f"ls -d {METRICS} /opt/llm-fleet/payload-check /etc/systemd/system/*payload-check* 2>/dev/null", check=False
        )
        == ""
    )
