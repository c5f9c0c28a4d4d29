# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd on the host: what a unit is doing, and the few verbs that change it."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = [
    "UNIT_DIR",
    "UnitState",
    "by_start",
    "daemon_reload",
    "drop_ins_of",
    "enable",
    "journal",
    "parse_show",
    "show",
    "start",
    "stop",
    "stop_and_disable",
    "text_digests",
    "verify_unit",
]

UNIT_DIR = "/etc/systemd/system"
# Where the system manager looks for units and drop-ins, the folder that comes first first (systemd.unit(5)).
UNIT_DIRS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    UNIT_DIR,
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "UnitFileState",
    "InvocationID",
    "ActiveEnterTimestampMonotonic",
    "ExecMainCode",
    "ExecMainStatus",
    "ControlGroup",
)


@dataclass(frozen=True)
class UnitState:
    """One reading of ``systemctl show``; times are microseconds of the monotonic clock."""

    load_state: str
    active_state: str
    sub_state: str
    result: str
    main_pid: int
    n_restarts: int
    fragment_path: str
    drop_in_paths: tuple[str, ...]
    need_daemon_reload: bool
    unit_file_state: str
    invocation_id: str
    active_since_us: int
    exit_code: str
    exit_status: str
    control_group: str

    @property
    def running(self) -> bool:
        """True only for active (running) with a main process; ``activating`` is not running."""
        return self.active_state == "active" and self.sub_state == "running" and self.main_pid > 0

    @property
    def words(self) -> str:
        """The state as systemctl words it: ``active (running)``, ``failed (exit-code)``, ``not found``."""
        if self.load_state == "not-found":
            return "not found"
        detail = self.result if self.active_state == "failed" else self.sub_state
        return f"{self.active_state} ({detail})"


def parse_show(text: str) -> UnitState:
    """Read the ``Key=value`` lines that ``systemctl show`` prints; a missing key is a FleetError."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    missing = [key for key in _PROPERTIES if key not in values]
    if missing:
        raise FleetError("systemctl show answered in part", expected=", ".join(_PROPERTIES), found=f"no {missing[0]}")
    return UnitState(
        load_state=values["LoadState"],
        active_state=values["ActiveState"],
        sub_state=values["SubState"],
        result=values["Result"],
        main_pid=int(values["MainPID"] or 0),
        n_restarts=int(values["NRestarts"] or 0),
        fragment_path=values["FragmentPath"],
        drop_in_paths=tuple(values["DropInPaths"].split()),
        need_daemon_reload=values["NeedDaemonReload"] == "yes",
        unit_file_state=values["UnitFileState"],
        invocation_id=values["InvocationID"],
        active_since_us=int(values["ActiveEnterTimestampMonotonic"] or 0),
        exit_code=values["ExecMainCode"],
        exit_status=values["ExecMainStatus"],
        control_group=values["ControlGroup"],
    )


def show(unit: str) -> UnitState:
    """The state of ``unit`` (``name.service``) now."""
    return parse_show(run(["systemctl", "show", "--property", ",".join(_PROPERTIES), unit]).stdout)


def drop_ins_of(unit: str, state: UnitState, roots: Sequence[str] = UNIT_DIRS) -> list[str]:
    """The drop-ins of ``unit``: those that systemd has read, and those on disk that the next reload would read.

    ``roots`` are in the order in which they come first. Of files of one name the first folder's counts: the unit's own
    and those of its name's beginnings (``a-b-.service.d``, ``a-.service.d``), by root, before those of its type
    (``service.d``).
    """
    stem = unit.removesuffix(".service")
    dashes = [at for at, char in enumerate(stem) if char == "-"]
    names = [f"{unit}.d", *(f"{stem[: at + 1]}.service.d" for at in reversed(dashes))]
    folders = [f"{root}/{name}" for root in roots for name in names] + [f"{root}/service.d" for root in roots]
    first: dict[str, str] = {}
    for folder in map(os.path.realpath, folders):  # as systemd names what lies in a folder that is a link
        for path in glob.glob(f"{glob.escape(folder)}/*.conf"):
            first.setdefault(os.path.basename(path), path)
    return sorted({*state.drop_in_paths, *first.values()})


def text_digests(paths: Iterable[str]) -> dict[str, str]:
    """``{path: hex sha256 of what the file holds, or "no such file"}``."""
    texts = {path: read_optional(path) for path in paths}
    return {path: "no such file" if text is None else hashlib.sha256(text).hexdigest() for path, text in texts.items()}


def daemon_reload() -> None:
    """Have systemd read the unit files anew."""
    run(["systemctl", "daemon-reload"], timeout_s=120)


def enable(unit: str) -> None:
    """Start ``unit`` at boot."""
    run(["systemctl", "enable", "--quiet", unit])


def start(unit: str, *, timeout_s: float) -> None:
    """Start ``unit``; the start counter and the failed state of earlier tries are cleared first."""
    run(["systemctl", "reset-failed", unit], check=False)  # not failed is fine; start itself reports a real fault
    run(["systemctl", "start", unit], timeout_s=timeout_s)


def stop(unit: str, *, timeout_s: float) -> None:
    """Stop ``unit``; one that does not run is left as it is."""
    run(["systemctl", "stop", unit], timeout_s=timeout_s)


def stop_and_disable(unit: str, *, timeout_s: float) -> None:
    """Stop ``unit`` now and at the next boot."""
    run(["systemctl", "disable", "--now", "--quiet", unit], timeout_s=timeout_s)
    run(["systemctl", "reset-failed", unit], check=False)  # a unit that never failed has nothing to reset


def journal(unit: str, *invocations: str, lines: int = 20) -> str:
    """The last journal lines of these very starts of ``unit``: the process's own and systemd's about it.

    Where systemd knows none (it refused the unit, or forgot an ended one), the newest start that the journal holds.
    Errors of older starts are not this one's.
    """
    run(["journalctl", "--sync"], check=False)  # what a dying process wrote last may be on its way still
    fields = "MESSAGE,UNIT,INVOCATION_ID,_SYSTEMD_UNIT,_SYSTEMD_INVOCATION_ID,_SOURCE_REALTIME_TIMESTAMP"
    argv = ["journalctl", "--no-pager", "--output", "json", "--all", f"--output-fields={fields}"]
    argv += ["--lines", str(lines), f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}"]
    told = by_start(unit, run(argv, check=False).stdout)
    known = [each for each in invocations if each] or [start for start, _words in told[-1:]]
    return "\n".join(words for start, words in told if start in known)


def by_start(unit: str, entries: str) -> list[tuple[str, str]]:
    """(invocation, message) of each of ``journalctl --output json``'s lines about ``unit``, in the order of their time.

    The invocation is empty for what systemd said of a unit that it did not start. Of a process that ends at once the
    journal may not learn of which start it was: it is then of the last one before.
    """
    told = [json.loads(line) for line in entries.split("\n") if line]  # a message may hold other ends of lines
    # What systemd says carries the time when it said so, a process's line that of its arrival, which may be late.
    told.sort(key=lambda entry: int(entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry["__REALTIME_TIMESTAMP"]))
    last, found = "", []
    for entry in told:
        if entry.get("_SYSTEMD_UNIT") == unit:
            start = entry.get("_SYSTEMD_INVOCATION_ID") or last
        else:
            start = entry.get("INVOCATION_ID", "")
        last = start or last
        found.append((start, _message(entry.get("MESSAGE"))))
    return found


def _message(value: object) -> str:
    """A message, which is a list of bytes where it is not UTF-8."""
    if isinstance(value, list):
        return bytes(value).decode("utf-8", "replace")
    return "" if value is None else str(value)


def verify_unit(name: str, text: str) -> None:
    """Hold a unit's text against ``systemd-analyze verify``; any output at all is a FleetError (its status lies)."""
    with tempfile.TemporaryDirectory(prefix="llm-fleet-verify-") as folder:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text)
        done = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path], check=False)
    complaint = (done.stderr + done.stdout).strip().replace(path, name)
    if complaint or done.rc != 0:
        raise FleetError(
            f"unit {name} is not sound",
            expected="no word from systemd-analyze verify",
            found=complaint or f"exit status {done.rc}",
            remedy="Mend what it names: the file that ExecStart runs, or the endpoint's unit settings",
        )
