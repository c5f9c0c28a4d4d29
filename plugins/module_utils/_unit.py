# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of an endpoint, as text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["ERA_VARIABLE", "UnitSpec", "render"]

ERA_VARIABLE = "LLM_FLEET_ERA"

# systemd splits ExecStart= and EnvironmentFile= at blanks and reads % and $ itself: such paths are refused.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.@:+,=/-]*")
_PLAIN_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_-]*")


@dataclass(frozen=True)
class UnitSpec:
    """What a unit is made of; durations are seconds."""

    endpoint: str
    user: str
    launcher: str
    env_file: str
    restart_sec: int = 10
    timeout_start_s: int = 300
    timeout_stop_s: int = 180


def render(spec: UnitSpec, era_digest: str) -> str:
    """The unit file's text; ``era_digest`` travels in the process's environment so that truth can read it there.

    ``Type=exec`` makes a missing or unrunnable launcher fail the start instead of passing it; ``Restart=on-failure``
    brings a killed server back, and the start limit is off because a drained card may take minutes to come back.
    """
    if not _PLAIN_UNIT.fullmatch(spec.endpoint):
        raise FleetError(
            f"endpoint {spec.endpoint!r} cannot name a unit",
            expected="letters, digits, _ . and -, beginning with a letter or digit",
            found=repr(spec.endpoint),
            remedy="Rename it under llm_endpoints",
        )
    for path in (spec.launcher, spec.env_file):
        if not _PLAIN_PATH.fullmatch(path):
            raise FleetError(f"path {path!r} cannot stand in a unit", expected="an absolute path of plain characters")
    if not _PLAIN_NAME.fullmatch(spec.user):
        raise FleetError(f"user {spec.user!r} of endpoint {spec.endpoint}", expected="a login name")
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=LLM endpoint {spec.endpoint}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={spec.user}
EnvironmentFile={spec.env_file}
Environment=LLM_FLEET_ENV_FILE={spec.env_file}
Environment={ERA_VARIABLE}={era_digest}
ExecStart={spec.launcher}
Restart=on-failure
RestartPreventExitStatus=64 66 78
RestartSec={spec.restart_sec}
TimeoutStartSec={spec.timeout_start_s}
TimeoutStopSec={spec.timeout_stop_s}
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"""
