# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says of a process: its program, arguments, environment, sockets."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "HeldFile",
    "SocketOwner",
    "age_s",
    "anonymous_bytes",
    "available_bytes",
    "cgroup_of",
    "cmdline",
    "environ",
    "exe",
    "held_files",
    "listeners",
    "listening_inodes",
    "locked_bytes",
    "mapped_as",
    "parent_of",
    "resident_bytes",
    "unit_of",
]

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h


@dataclass(frozen=True)
class SocketOwner:
    """One process that holds a listening socket."""

    pid: int
    inode: int
    unit: str
    command: str

    @property
    def words(self) -> str:
        """For a message: its id, its unit, its command."""
        return f"pid {self.pid} of {self.unit or 'no unit'}: {self.command}"


def _read(pid: int, name: str, root: str = "/proc") -> bytes:
    with open(f"{root}/{pid}/{name}", "rb") as handle:
        return handle.read()


def cmdline(pid: int) -> list[str]:
    """The process's arguments, the program first; empty for a zombie."""
    raw = _read(pid, "cmdline")
    return [part.decode("utf-8", "surrogateescape") for part in raw.split(b"\0")[:-1]] if raw else []


def environ(pid: int) -> dict[str, str]:
    """The environment the process was started with (later changes by the process itself do not show)."""
    pairs = (item.split(b"=", 1) for item in _read(pid, "environ").split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape") for key, value in pairs}


def exe(pid: int) -> str:
    """The program file the process runs; ends in `` (deleted)`` when the file is gone."""
    return os.readlink(f"/proc/{pid}/exe")


@dataclass(frozen=True)
class HeldFile:
    """A file that a process has mapped or open. ``path`` is its name now, or its last one when that was taken from it.

    ``mapped``: ``device`` and ``inode`` are those of ``/proc/PID/maps``, which on some file systems (btrfs, overlay)
    are not those of stat(2); see :func:`mapped_as`.
    """

    path: str
    device: int
    inode: int
    mapped: bool


_DELETED = " (deleted)"


def _mapping(line: str) -> tuple[int, HeldFile] | None:
    """``(address, file)`` of a line of ``/proc/PID/maps``; None for what is no file (proc_pid_maps(5))."""
    fields = line.split(None, 5)
    if len(fields) < 6 or not fields[5].startswith("/"):
        return None
    major, minor = (int(part, 16) for part in fields[3].split(":"))
    path = fields[5].removesuffix(_DELETED)
    return int(fields[0].partition("-")[0], 16), HeldFile(path, os.makedev(major, minor), int(fields[4]), True)


def held_files(pid: int) -> list[HeldFile]:
    """The files that the process has mapped or open, each once; not its sockets and pipes, nor devices it has open."""
    found: dict[HeldFile, None] = {}
    for line in _read(pid, "maps").decode("utf-8", "surrogateescape").split("\n"):
        mapping = _mapping(line)
        if mapping is not None:
            found[mapping[1]] = None
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            path, state = os.readlink(f"{folder}/{name}"), os.stat(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # closed since the listing
        if path.startswith("/") and stat.S_ISREG(state.st_mode):
            found[HeldFile(path.removesuffix(_DELETED), state.st_dev, state.st_ino, False)] = None
    return list(found)


def mapped_as(path: str) -> tuple[int, int] | None:
    """(device, inode) that ``/proc/PID/maps`` would tell of the file ``path``: it is mapped here, and looked up.

    None for an empty file, which nobody can map.
    """
    with open(path, "rb") as handle:
        try:
            ours = mmap.mmap(handle.fileno(), 1, access=mmap.ACCESS_COPY)
        except ValueError:
            return None
        with ours:
            window = ctypes.c_char.from_buffer(ours)
            address = ctypes.addressof(window)
            lines = _read(os.getpid(), "maps").decode("utf-8", "surrogateescape").split("\n")
            del window  # it would keep the mapping open
        for mapping in map(_mapping, lines):
            if mapping is not None and mapping[0] == address:
                return mapping[1].device, mapping[1].inode
    raise OSError(f"{path} was mapped and /proc/self/maps does not tell of it")


def _status_bytes(pid: int, *fields: bytes) -> int:
    """The sum of some sizes in ``/proc/PID/status``, in bytes; 0 when the process has ended."""
    try:
        status = _read(pid, "status")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(fields))


def resident_bytes(pid: int) -> int:
    """VmRSS of the process in bytes; 0 when it has ended."""
    return _status_bytes(pid, b"VmRSS:")


def anonymous_bytes(pid: int) -> int:
    """What of the process's memory only its end gives back: mapped files are free for others already."""
    return _status_bytes(pid, b"RssAnon:", b"RssShmem:")


def locked_bytes(pid: int) -> int:
    """VmLck of the process in bytes: what it has locked in memory; 0 when it has ended."""
    return _status_bytes(pid, b"VmLck:")


def age_s(pid: int) -> float:
    """Seconds since the process began (starttime of proc_pid_stat(5), in ticks since the machine's start)."""
    # The name, in brackets, may hold blanks and brackets itself.
    ticks = int(_read(pid, "stat").rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int | None:
    """The process that is its parent; None when it has ended."""
    try:
        status = _read(pid, "status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(b"PPid:"))


def available_bytes() -> int:
    """MemAvailable: what this machine can give without swapping."""
    with open("/proc/meminfo", "rb") as handle:
        for line in handle:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def cgroup_of(pid: int) -> str:
    """The process's cgroups as the kernel lists them; "" when it has ended."""
    try:
        return _read(pid, "cgroup").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def unit_of(pid: int) -> str:
    """The systemd unit whose cgroup holds the process, or "" when none does (cgroups v1 and v2).

    A unit of a user's manager is told as ``chat.service of user@1000.service``: it is another one than the
    system's of the same name.
    """
    for line in _read(pid, "cgroup").decode().splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            if units:
                managers = [part for part in units[:-1] if part.startswith("user@")]
                return f"{units[-1]} of {managers[-1]}" if managers else units[-1]
    return ""


def listening_inodes(table: str, port: int) -> set[int]:
    """Socket inodes in LISTEN on ``port`` in the text of ``/proc/net/tcp`` or ``tcp6``."""
    found = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
            found.add(int(fields[9]))
    return found


def _socket_inodes(pid: int) -> Iterable[int]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # closed since the listing
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _owners(inodes: set[int]) -> list[SocketOwner]:
    owners = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            held = sorted(inodes.intersection(_socket_inodes(pid)))
            owners += [SocketOwner(pid, inode, unit_of(pid), " ".join(cmdline(pid))[:200]) for inode in held]
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process ended while we looked: it holds nothing any more
        except PermissionError:
            continue  # not ours to look into; a socket of the port that it holds is listed as one of nobody
    return owners


def listeners(port: int) -> list[SocketOwner]:
    """Every process that holds a socket listening on TCP ``port``, on any address, v4 or v6.

    Two servers with SO_REUSEPORT have two inodes and both are listed. A listening socket whose owner
    cannot be seen (another user namespace, no right to look) is listed with pid 0.
    """
    inodes: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as handle:
                inodes |= listening_inodes(handle.read(), port)
        except FileNotFoundError:
            continue  # a kernel without IPv6 has no tcp6
    if not inodes:
        return []
    owners = _owners(inodes)
    unseen = inodes - {owner.inode for owner in owners}
    return owners + [SocketOwner(0, inode, "", "a process that cannot be seen from here") for inode in sorted(unseen)]
