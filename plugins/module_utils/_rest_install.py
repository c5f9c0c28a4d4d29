# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nightly check of payload files on a host: its program, service and timer are there as declared, or gone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _rest, _systemd, _timed_program
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["NAME", "RestSpec", "converge"]

NAME = "llm-fleet-payload-check"
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.@:+,=/-]*")  # systemd would split or expand any other


@dataclass(frozen=True)
class RestSpec:
    """What is declared; ``program`` is the program's text. The folders differ in tests alone."""

    present: bool
    program: str
    stamp_dir: str
    home: str = f"/opt/llm-fleet/{NAME.removeprefix('llm-fleet-')}"
    units: str = _systemd.UNIT_DIR
    state: str = "/var/lib/llm-fleet"

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> RestSpec:
        """From module options; a path that no unit can hold is a FleetError."""
        stamp_dir = str(params["stamp_dir"])
        if not _PLAIN_PATH.fullmatch(stamp_dir):
            raise FleetError(
                f"stamp_dir {stamp_dir!r} cannot stand in a unit", expected="an absolute path of plain characters"
            )
        return cls(params["state"] == "present", str(params["program"]), stamp_dir)

    @property
    def service(self) -> str:
        """The service's file."""
        return os.path.join(self.units, f"{NAME}.service")

    @property
    def timer(self) -> str:
        """The timer's file."""
        return os.path.join(self.units, f"{NAME}.timer")

    @property
    def metrics(self) -> str:
        """What the check writes for a collector."""
        return os.path.join(self.state, "metrics", "payload.prom")


def _service(spec: RestSpec) -> str:
    """It may read every file and write its records alone: the check can never harm a model."""
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=Read the payload file that was read longest ago, and prove it again

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {spec.home}/{NAME} --stamp-dir {spec.stamp_dir}
Nice=19
CPUSchedulingPolicy=idle
IOSchedulingClass=idle
CapabilityBoundingSet=CAP_DAC_READ_SEARCH
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={spec.state} {spec.stamp_dir}
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
PrivateNetwork=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=none
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""


_TIMER = """\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=One payload file a night is proven again

[Timer]
OnCalendar=*-*-* 03:00:00
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
"""


def converge(spec: RestSpec, *, dry: bool) -> dict[str, Any]:
    """``changed``, ``files`` (those that change) and ``diff``; ``dry`` only tells. Marks of damaged files stay true."""
    wish = _timed_program.TimedProgram(
        name=NAME,
        present=spec.present,
        program=spec.program,
        modules=_timed_program.closure(_rest),
        service=_service(spec),
        timer=_TIMER,
        home=spec.home,
        units=spec.units,
        written=(spec.metrics,),
        folders=(spec.state, spec.stamp_dir),
    )
    return _timed_program.converge(wish, dry=dry)
