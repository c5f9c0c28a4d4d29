# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of an endpoint, as text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["ERA_VARIABLE", "UnitSpec", "frame", "render"]

ERA_VARIABLE = "LLM_FLEET_ERA"
START_LIMIT = 5  # starts, systemd's own default; of a load that takes minutes more would be hours

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
    vendor: str = ""
    api_key_file: str = ""
    unit: str = ""  # another name than the endpoint's

    @property
    def start_limit_s(self) -> int:
        """The time in which systemd gives ``START_LIMIT`` starts: as long as that many take that each use the whole
        deadline to load, and the whole time to stop. In a shorter one a slow start would never be one too many."""
        return START_LIMIT * (self.timeout_start_s + self.timeout_stop_s + self.restart_sec)

    @property
    def credential(self) -> str:
        """Where the server finds its API key: systemd hands the file of root's over, readable for this unit alone."""
        return f"/run/credentials/{self.unit or f'{self.endpoint}.service'}/api-key"


# What every engine bears; what a vendor's driver needs besides is in _OPENED.
_CLOSED = (
    "UMask=0077",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectHome=read-only",  # payloads and engines may lie in a home; nobody writes there
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "LockPersonality=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",  # the last is how libc lists addresses
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
)
_OPENED = {
    # No device at all, and no code made at run time.
    "": ("PrivateDevices=yes", "MemoryDenyWriteExecute=yes"),
    # ROCm compiles kernels at run time, and reaches cards through the render nodes and kfd.
    "amd": (
        "DevicePolicy=closed",
        "DeviceAllow=char-drm rw",
        "DeviceAllow=char-kfd rw",
        "SupplementaryGroups=render video",
    ),
    # CUDA compiles PTX at run time; the names are those under which the driver registers its devices.
    "nvidia": (
        "DevicePolicy=closed",
        "DeviceAllow=char-nvidia rw",
        "DeviceAllow=char-nvidia-frontend rw",
        "DeviceAllow=char-nvidia-uvm rw",
        "DeviceAllow=char-nvidia-caps rw",
        "DeviceAllow=char-drm rw",
    ),
}


def _sandbox(spec: UnitSpec) -> str:
    lines = [*_CLOSED, *_OPENED[spec.vendor]]
    if spec.vendor:  # what was compiled at run time is kept, as the home cannot be written
        cache = f"llm-fleet/{spec.endpoint}"
        lines += [
            f"CacheDirectory={cache}",
            f"Environment=XDG_CACHE_HOME=/var/cache/{cache}",
            f"Environment=CUDA_CACHE_PATH=/var/cache/{cache}/cuda",
        ]
    if spec.api_key_file:
        lines.append(f"LoadCredential=api-key:{spec.api_key_file}")
    return "\n".join(lines)


def _refuse_unsound(spec: UnitSpec) -> None:
    """A FleetError for a name or path that systemd would read in another way than it stands there."""
    if not _PLAIN_UNIT.fullmatch(spec.endpoint):
        raise FleetError(
            f"endpoint {spec.endpoint!r} cannot name a unit",
            expected="letters, digits, _ . and -, beginning with a letter or digit",
            found=repr(spec.endpoint),
            remedy="Rename it under llm_endpoints",
        )
    for path in (spec.launcher, spec.env_file, *([spec.api_key_file] if spec.api_key_file else [])):
        if not _PLAIN_PATH.fullmatch(path):
            raise FleetError(f"path {path!r} cannot stand in a unit", expected="an absolute path of plain characters")
    if not _PLAIN_NAME.fullmatch(spec.user):
        raise FleetError(f"user {spec.user!r} of endpoint {spec.endpoint}", expected="a login name")


def frame(spec: UnitSpec, era_digest: str, *, stop: str = "", rest: str) -> str:
    """What the units of all engines have in common. ``stop`` are whole lines that belong to the end, ``rest`` the last
    lines of the service; ``era_digest`` travels in the process's environment so that truth can read it there.

    ``Type=exec`` makes a missing or unrunnable launcher fail the start instead of passing it. ``Restart=on-failure``
    brings a killed server back, but for what never loads, as a half of a file: that is given up (``start_limit_s``).
    """
    _refuse_unsound(spec)
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=LLM endpoint {spec.endpoint}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec={spec.start_limit_s}
StartLimitBurst={START_LIMIT}

[Service]
Type=exec
User={spec.user}
EnvironmentFile={spec.env_file}
Environment=LLM_FLEET_ENV_FILE={spec.env_file}
Environment={ERA_VARIABLE}={era_digest}
ExecStart={spec.launcher}
{stop}Restart=on-failure
RestartPreventExitStatus=64 66 78
RestartSec={spec.restart_sec}
TimeoutStartSec={spec.timeout_start_s}
TimeoutStopSec={spec.timeout_stop_s}
LimitMEMLOCK=infinity
{rest}

[Install]
WantedBy=multi-user.target
"""


def render(spec: UnitSpec, era_digest: str) -> str:
    """The unit file's text of a llama-server; ``vendor`` (amd, nvidia, or "" for none) opens what that driver needs."""
    return frame(spec, era_digest, rest=_sandbox(spec))
