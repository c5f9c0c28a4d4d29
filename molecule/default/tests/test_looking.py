# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only looks changes nothing, and the installed collection does what the checkout does."""

from __future__ import annotations

import subprocess

import pytest
from fleet import ROOT, environment


@pytest.mark.parametrize("how", [(), ("--check", "--diff")], ids=["run", "check"])
def test_status_verify_and_history_change_nothing(fleet, how):
    before, start = fleet.snapshot(), fleet.start()
    for playbook in ("status", "verify", "history"):
        played = fleet.play(f"playbooks/{playbook}.yml", *how)
        assert played.rc == 0 and played.recap["changed"] == 0, played.text
        assert fleet.endpoint in played.text or playbook == "history", played.text
    assert fleet.snapshot() == before and fleet.start() == start


def test_a_stopped_endpoint_is_a_row_for_status_and_red_for_verify(fleet):
    before = fleet.snapshot()
    fleet.run(f"systemctl stop {fleet.unit}")
    try:
        status, verify = fleet.play("playbooks/status.yml"), fleet.play("playbooks/verify.yml")
        assert status.rc == 0 and "inactive" in status.text, status.text
        assert verify.rc != 0 and "inactive" in verify.error, verify.text
        assert fleet.start()["ActiveState"] == "inactive" and fleet.snapshot() == before
    finally:
        fleet.run(f"systemctl start {fleet.unit}")
        fleet.run("for i in $(seq 300); do curl -sf http://127.0.0.1:8080/health && exit 0; sleep 0.1; done; exit 1")


def test_the_installed_collection_finds_what_the_checkout_deployed(fleet, tmp_path):
    before, start = fleet.snapshot(), fleet.start()
    (tmp_path / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {tmp_path}/installed\n")
    own = environment() | {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("ansible-galaxy", "collection", "build", "--output-path", "built", str(ROOT))
    (built,) = (tmp_path / "built").glob("*.tar.gz")
    run("ansible-galaxy", "collection", "install", "--offline", "-p", "installed", str(built))
    for playbook in ("site", "verify"):
        told = run("ansible-playbook", "-i", str(fleet.inventory), f"dank.llm_fleet.{playbook}")
        assert "changed=0" in told and "failed=0" in told, told
    assert fleet.snapshot() == before and fleet.start() == start
