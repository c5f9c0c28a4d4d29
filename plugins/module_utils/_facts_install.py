# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that tells Prometheus what a host knows: its service and timer are there as declared, or gone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _facts, _systemd, _timed_program

__all__ = ["NAME", "FactsSpec", "converge"]

NAME = "llm-fleet-facts"
_OF_A_CARD = ("name", "vendor", "pci", "uuid", "floor_mib")


@dataclass(frozen=True)
class FactsSpec:
    """What is declared; ``program`` is the program's text. The folders differ in tests alone."""

    present: bool
    program: str
    cards: Sequence[Mapping[str, Any]] = ()
    interval_s: int = 60
    home: str = "/opt/llm-fleet/facts"
    units: str = _systemd.UNIT_DIR
    state: str = "/var/lib/llm-fleet"

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> FactsSpec:
        """From module options; ``cards`` is ``llm_cards``."""
        cards = [
            {key: value for key, value in {**card, "name": name}.items() if key in _OF_A_CARD}
            for name, card in sorted(params["cards"].items())
        ]
        return cls(params["state"] == "present", str(params["program"]), cards, int(params["interval_s"]))

    @property
    def cards_file(self) -> str:
        """The cards, for the program."""
        return os.path.join(self.home, "cards.json")

    @property
    def metrics(self) -> str:
        """What the program writes for a collector."""
        return os.path.join(self.state, "metrics", "facts.prom")


def _service(spec: FactsSpec) -> str:
    """It sees every process and reads every file, as the chain of truth has to, and writes its metrics alone."""
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=Tell Prometheus what this host knows of its cards and endpoints

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {spec.home}/{NAME} --cards {spec.cards_file}
TimeoutStartSec=55
Nice=10
CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SYS_PTRACE
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={spec.state}/metrics
ProtectHome=read-only
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""


def _timer(spec: FactsSpec) -> str:
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=What this host knows of its cards and endpoints is read again

[Timer]
OnActiveSec=0
OnUnitActiveSec={spec.interval_s}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def converge(spec: FactsSpec, *, dry: bool) -> dict[str, Any]:
    """``changed``, ``files`` (those that change) and ``diff``; ``dry`` only tells."""
    wish = _timed_program.TimedProgram(
        name=NAME,
        present=spec.present,
        program=spec.program,
        modules=_timed_program.closure(_facts),
        service=_service(spec),
        timer=_timer(spec),
        home=spec.home,
        units=spec.units,
        extra={spec.cards_file: json.dumps(list(spec.cards), indent=2, sort_keys=True) + "\n"},
        written=(spec.metrics,),
        folders=(os.path.join(spec.state, "metrics"),),
    )
    return _timed_program.converge(wish, dry=dry)
