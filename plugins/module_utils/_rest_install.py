# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nightly check of payload files on a host: its program, service and timer are there as declared, or gone."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _errors, _io, _rest, _systemd, _verify
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = ["NAME", "RestSpec", "converge"]

NAME = "llm-fleet-payload-check"
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.@:+,=/-]*")  # systemd would split or expand any other
_COLLECTION = "ansible_collections/dank/llm_fleet/plugins/module_utils"


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


def _wanted(spec: RestSpec) -> dict[str, tuple[str, int]]:
    """Path: (text, mode). The few modules that the program needs are copied, so that both judge a file alike."""
    library = os.path.join(spec.home, "lib", _COLLECTION)
    sources = {
        os.path.join(library, f"{module.__name__.rpartition('.')[2]}.py"): inspect.getsource(module)
        for module in (_errors, _io, _verify, _rest)
    }
    # Without it an ansible package of the host's would come first.
    package = {os.path.join(spec.home, "lib", "ansible_collections", "__init__.py"): ""}
    units = {spec.service: _service(spec), spec.timer: _TIMER}
    files = {path: (text, 0o644) for path, text in {**package, **sources, **units}.items()}
    return {**files, os.path.join(spec.home, NAME): (spec.program, 0o755)}


def _text(path: str) -> str | None:
    data = read_optional(path)
    return None if data is None else data.decode("utf-8", "replace")


def _differs(path: str, text: str, mode: int) -> bool:
    return _text(path) != text or stat.S_IMODE(os.stat(path).st_mode) != mode


def _timer_runs() -> bool:
    """Whether the timer is enabled and waits, as systemd read it last."""
    wanted = {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}
    told = run(["systemctl", "show", "--property", ",".join(wanted), f"{NAME}.timer"]).stdout
    return dict(line.split("=", 1) for line in told.splitlines()) == wanted


def _install(spec: RestSpec, different: dict[str, tuple[str, int]]) -> None:
    for folder in (spec.state, spec.stamp_dir):  # systemd refuses to open what is not there
        make_dirs(folder)
    for path, (text, mode) in different.items():
        make_dirs(os.path.dirname(path))
        atomic_write(path, text.encode(), mode)
    _systemd.daemon_reload()
    _systemd.enable(f"{NAME}.timer")
    run(["systemctl", "restart", f"{NAME}.timer"])  # a start would keep the times of an older file


def _remove(spec: RestSpec) -> None:
    """Each step leaves what the next run needs to see that it has to go on; marks of damaged files stay true."""
    if os.path.lexists(spec.timer):
        _systemd.stop_and_disable(f"{NAME}.timer", timeout_s=60)
    if os.path.lexists(spec.service):
        _systemd.stop(f"{NAME}.service", timeout_s=120)
        run(["systemctl", "reset-failed", f"{NAME}.service"], check=False)  # one that never failed has nothing to reset
    for path in (spec.timer, spec.service, spec.metrics):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    _systemd.daemon_reload()
    if os.path.lexists(spec.home):
        shutil.rmtree(spec.home)


def converge(spec: RestSpec, *, dry: bool) -> dict[str, Any]:
    """``changed``, ``files`` (those that change) and ``diff``; ``dry`` only tells."""
    wanted = _wanted(spec)
    if spec.present:
        different = {path: given for path, given in wanted.items() if _differs(path, *given)}
        changed = bool(different) or not _timer_runs()
        told = _told(changed, list(different), {path: text for path, (text, _mode) in different.items()})
    else:
        different = {}
        ours = [path for path in (*wanted, spec.metrics) if os.path.lexists(path)]
        changed = bool(ours) or os.path.lexists(spec.home)
        told = _told(changed, ours, {})
    if changed and not dry:
        if spec.present:
            _install(spec, different)
        else:
            _remove(spec)
    return told


def _told(changed: bool, paths: Sequence[str], after: Mapping[str, str]) -> dict[str, Any]:
    """A result; the library's texts are named, not shown: they are this collection's own."""
    before = {path: text for path in paths if (text := _text(path)) is not None}

    def shown(texts: Mapping[str, str]) -> dict[str, str]:
        return {path: "(library)" if "/lib/" in path and path.endswith(".py") else text for path, text in texts.items()}

    return {"changed": changed, "files": sorted(paths), "diff": {"before": shown(before), "after": shown(after)}}
