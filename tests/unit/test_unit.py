# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import verify_unit
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, render

SPEC = UnitSpec("frank-zealot", "llm", "/opt/llm-fleet/launchers/ab/serve-llamacpp", "/etc/llm-fleet/frank-zealot.env")


def test_every_line() -> None:
    spec = replace(SPEC, restart_sec=11, timeout_start_s=222, timeout_stop_s=33)
    lines = [line for line in render(spec, "d1ge57").splitlines() if line and line[0] not in "#["]
    assert lines == [
        "Description=LLM endpoint frank-zealot",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=0",
        "Type=exec",
        "User=llm",
        "EnvironmentFile=/etc/llm-fleet/frank-zealot.env",
        "Environment=LLM_FLEET_ENV_FILE=/etc/llm-fleet/frank-zealot.env",
        "Environment=LLM_FLEET_ERA=d1ge57",
        "ExecStart=/opt/llm-fleet/launchers/ab/serve-llamacpp",
        "Restart=on-failure",
        "RestartPreventExitStatus=64 66 78",
        "RestartSec=11",
        "TimeoutStartSec=222",
        "TimeoutStopSec=33",
        "LimitMEMLOCK=infinity",
        "WantedBy=multi-user.target",
    ]


@pytest.mark.parametrize("field", ["launcher", "env_file"])
@pytest.mark.parametrize("path", ["relative", "/a b", "/a%b", "/a$b", "/a\nb", "/a\n", "/a;b", "/a*b", '/a"b', ""])
def test_paths_that_systemd_would_read_otherwise(field: str, path: str) -> None:
    changes: dict[str, Any] = {field: path}
    with pytest.raises(FleetError, match="cannot stand in a unit"):
        render(replace(SPEC, **changes), "d")


@pytest.mark.parametrize("user", ["", "Root", "0", "a b", "a\nGroup=root", "a\n", "%u"])
def test_users_that_are_no_login_name(user: str) -> None:
    with pytest.raises(FleetError, match="expected a login name"):
        render(replace(SPEC, user=user), "d")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "a%i", "a@b", "-a", ".a", "a\nb", "a\n", "ü"])
def test_names_that_cannot_be_a_unit(name: str) -> None:
    with pytest.raises(FleetError, match="cannot name a unit"):
        render(replace(SPEC, endpoint=name), "d")


def test_the_real_systemd_analyze_finds_nothing_to_say(stand_in: Callable[[str, str], Any]) -> None:
    if run(["sh", "-c", "command -v systemd-analyze"], check=False).rc != 0:
        pytest.skip("no systemd-analyze on this machine")
    launcher = stand_in("serve-llamacpp", "exit 0")
    verify_unit("llm-fleet-test.service", render(replace(SPEC, launcher=str(launcher)), "d" * 64))
