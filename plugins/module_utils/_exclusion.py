# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks between two runs: one holds, the other is told who; a killed holder is told from a live one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import open_own, read_optional

__all__ = ["CONTROLLER", "Held", "Holder", "file_lock", "left_behind"]

# Set by the action plugins: user@host of the controller.
CONTROLLER = "LLM_FLEET_CONTROLLER"


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. ``started`` is the process's start in clock ticks since the boot ``boot_id``: a process id
    alone may be another process's by now. ``by`` is user@host of the controller, or empty."""

    pid: int
    started: int
    boot_id: str
    since: str
    purpose: str
    by: str = ""

    @classmethod
    def me(cls, purpose: str) -> Holder:
        """This process, from now on."""
        pid, since = os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        return cls(pid, _started(pid) or 0, _boot_id(), since, purpose, os.environ.get(CONTROLLER, ""))

    @classmethod
    def read(cls, data: bytes) -> Holder | None:
        """From a lock file's bytes; None where they name no holder (empty, half written, an older version's)."""
        try:
            told = json.loads(data)
            if set(told) != {field.name for field in fields(cls)}:
                return None
            return cls(**told)
        except (ValueError, TypeError):
            return None

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return self.boot_id == _boot_id() and _started(self.pid) == self.started

    @property
    def words(self) -> str:
        """Purpose, who, since when, which process."""
        return f"{self.purpose}, begun {self.since}{f' by {self.by}' if self.by else ''} (process {self.pid})"


@dataclass(frozen=True)
class Held:
    """A lock that is held. ``fd``: a child that inherits it keeps the lock for as long as the child lives.

    ``waited``: another run held it when this one came. ``killed``: the holder before did not come to its end.
    """

    fd: int
    waited: bool = False
    killed: Holder | None = None

    @property
    def warning(self) -> list[str]:
        """One line of the run that did not come to its end, or none."""
        if self.killed is None:
            return []
        end = "was killed midway" if self.killed.boot_id == _boot_id() else "ended with the host"
        return [f"the last run {end} ({self.killed.words}); going on"]


def left_behind(path: str) -> Holder | None:
    """The last holder, if it did not come to its end and nobody has held the lock since; takes no lock."""
    holder = Holder.read(read_optional(path) or b"")
    return None if holder is None or holder.alive else holder


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        return handle.read().strip()


def _started(pid: int) -> int | None:
    """Field 22 of ``/proc/PID/stat``, clock ticks since the boot; None where no such process runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            stat = handle.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields_from_state = stat[stat.rindex(b")") + 2 :].split()  # the program's name may hold blanks and brackets
    return None if fields_from_state[0] in (b"Z", b"X") else int(fields_from_state[19])


def _refusal(path: str, fd: int, wait_s: float, purpose: str) -> FleetError:
    """The error of a lock that stayed held: by whom, and what to do."""
    data = os.pread(fd, 4096, 0)
    holder = Holder.read(data)
    if holder is None:
        found = data.decode("utf-8", "replace").strip() or "a process that did not leave its name"
        remedy = f"Wait for it to end (fuser {path} lists its process), then run again"
    elif holder.alive:
        found = f"held for {holder.words}"
        remedy = f"Wait for that run to end, or stop it (process {holder.pid} on this host), then run again"
    else:
        found = f"still held by what a killed run has left running: {holder.words}"
        remedy = f"Wait until its last process ends (fuser {path} lists them), then run again"
    return FleetError(
        f"another run is at work: {path} is locked",
        expected=f"a free lock within {wait_s:g} s for {purpose}",
        found=found,
        remedy=remedy,
        holder=None if holder is None else asdict(holder),
    )


@contextlib.contextmanager
def file_lock(path: str, *, wait_s: float, purpose: str) -> Iterator[Held]:
    """Hold an exclusive lock on ``path``, a file that stays and names its holder while it is held.

    Waits ``wait_s`` seconds, then raises a FleetError that names the holder. The kernel frees the lock when the holder
    dies, whatever the file says: a name in a lock that is free is that of a run that was killed.
    """
    fd, waited = _hold(path, wait_s, purpose)
    try:
        killed = Holder.read(os.pread(fd, 4096, 0))
        text = json.dumps(asdict(Holder.me(purpose))).encode() + b"\n"
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
        try:
            yield Held(fd, waited, killed)
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _hold(path: str, wait_s: float, purpose: str) -> tuple[int, bool]:
    """The lock's descriptor, held, and whether another run held it before."""
    deadline, waited = time.monotonic() + wait_s, False
    while True:
        try:
            fd = open_own(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as exc:
            if not waited:
                raise
            raise FleetError(
                f"{path} is gone, with its folder",
                expected=f"a lock for {purpose}",
                found="another run removed them while this one waited",
                remedy="Run again if the folder shall be there",
            ) from exc
        try:
            if _taken(fd) and _still(path, fd):
                return fd, waited
            waited = True
            if time.monotonic() >= deadline:
                raise _refusal(path, fd, wait_s, purpose)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(0.2)


def _still(path: str, fd: int) -> bool:
    """Whether ``path`` names this very file: a lock on one that was removed meanwhile keeps nobody out."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise
        return False
    return True
