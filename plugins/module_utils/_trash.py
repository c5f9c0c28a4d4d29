# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving files away and back so that a kill at any moment loses nothing: described, moved, found again."""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import fsync_dir

__all__ = ["Entry", "describe", "move", "walk"]

_CHUNK = 1 << 20
# What a file system answers that cannot hold two names of one file, or not these two.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Entry:
    """One file, link or directory as it was at ``path``; sizes are bytes, times nanoseconds since the epoch."""

    path: str
    kind: str
    uid: int
    gid: int
    mode: int
    mtime_ns: int
    atime_ns: int
    size: int = 0
    sha256: str | None = None
    target: str | None = None

    def as_dict(self, folder: str) -> dict[str, Any]:
        """The manifest's record; ``to`` is the absolute path mirrored below ``folder``."""
        return {
            "from": self.path,
            "to": folder + self.path,
            "kind": self.kind,
            "sha256": self.sha256,
            "target": self.target,
            "size": self.size,
            "mode": f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
            "owner": _name(pwd.getpwuid, self.uid),
            "group": _name(grp.getgrgid, self.gid),
            "mtime_ns": self.mtime_ns,
            "atime_ns": self.atime_ns,
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Entry:
        """Read a manifest's record."""
        return cls(
            path=record["from"],
            kind=record["kind"],
            uid=int(record["uid"]),
            gid=int(record["gid"]),
            mode=int(record["mode"], 8),
            mtime_ns=int(record["mtime_ns"]),
            atime_ns=int(record["atime_ns"]),
            size=int(record["size"]),
            sha256=record["sha256"],
            target=record["target"],
        )


def _name(look: Any, number: int) -> str:
    """The name of a user or group, or its number where it has none (any more)."""
    try:
        return str(look(number)[0])
    except KeyError:
        return str(number)


def _digest(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def describe(path: str) -> Entry:
    """What lies at ``path``, a file hashed; a link is itself, never its target. Sockets and devices are refused."""
    found = os.lstat(path)
    common: dict[str, Any] = {
        "path": path,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime_ns": found.st_mtime_ns,
        "atime_ns": found.st_atime_ns,
    }
    if stat.S_ISLNK(found.st_mode):
        return Entry(kind="link", target=os.readlink(path), **common)
    if stat.S_ISDIR(found.st_mode):
        if os.path.ismount(path):
            raise FleetError(f"{path} is a mount point", expected="a file, link or directory", found="a file system")
        return Entry(kind="directory", **common)
    if stat.S_ISREG(found.st_mode):
        return Entry(kind="file", size=found.st_size, sha256=_digest(path), **common)
    raise FleetError(
        f"{path} cannot be retired",
        expected="a file, a link or a directory",
        found="a socket, pipe or device",
        remedy="Stop the program that made it",
    )


def walk(path: str) -> Iterator[Entry]:
    """``path`` and all below it, what is inside a directory before the directory: the order in which it moves."""
    entry = describe(path)
    if entry.kind == "directory":
        for name in sorted(os.listdir(path)):
            if not _ours(name):
                yield from walk(os.path.join(path, name))
    yield entry


def _set_meta(path: str, entry: Entry) -> None:
    """Owner, mode and times; the owner first, since changing it clears the set-user-id bit."""
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        os.chmod(path, entry.mode)
    os.utime(path, ns=(entry.atime_ns, entry.mtime_ns), follow_symlinks=False)


def _make_parents(path: str, twin: str) -> None:
    """Create the missing parents of ``path`` with owner and mode of the same parents of ``twin``."""
    missing = []
    here, other = os.path.dirname(path), os.path.dirname(twin)
    while not os.path.lexists(here):
        missing.append((here, other))
        here, other = os.path.dirname(here), os.path.dirname(other)
    if os.path.islink(here) or not os.path.isdir(here):
        raise FleetError(f"{here} is in the way", expected="a directory", found="a link or a file")
    for new, like in reversed(missing):
        unfinished, found = _partial(new), os.stat(like)
        if not os.path.isdir(unfinished):  # else an earlier run's, killed midway
            os.mkdir(unfinished, 0o700)
        os.chown(unfinished, found.st_uid, found.st_gid)
        os.chmod(unfinished, stat.S_IMODE(found.st_mode))
        os.rename(unfinished, new)
        fsync_dir(os.path.dirname(new))


def _partial(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".llm-fleet-{os.path.basename(path)}.partial")


def _ours(name: str) -> bool:
    """A name that only an unfinished move of ours has."""
    return name.startswith(".llm-fleet-") and name.endswith(".partial")


def _clear(path: str) -> None:
    """Remove what a killed move left unfinished at ``path``: never more than half a copy or an empty directory."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _same(entry: Entry, one: str, other: str) -> bool:
    """Whether both paths hold the entry: two names of one inode, or equal type and content."""
    first, second = os.lstat(one), os.lstat(other)
    if os.path.samestat(first, second):
        return True
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    return first.st_size == second.st_size and _digest(one) == _digest(other) == entry.sha256


def _unchanged(entry: Entry, path: str) -> bool:
    """Whether the file is still the one that was hashed: by length and time, else by its digest."""
    found = os.lstat(path)
    if entry.kind == "link":
        return stat.S_ISLNK(found.st_mode) and os.readlink(path) == entry.target
    if not stat.S_ISREG(found.st_mode):
        return False
    return (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns) or _digest(path) == entry.sha256


def _copy(entry: Entry, source: str, destination: str) -> None:
    """Copy across file systems: whole, on the disk and read back before it has its name, which must be free."""
    if entry.kind == "link":
        os.symlink(os.readlink(source), destination)
        _set_meta(destination, entry)
        return
    partial = _partial(destination)
    before = os.lstat(source)
    with open(source, "rb") as given, open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as taken:
        while chunk := given.read(_CHUNK):
            taken.write(chunk)
        for name in os.listxattr(source):
            os.setxattr(partial, name, os.getxattr(source, name))
        taken.flush()
        os.fsync(taken.fileno())
    found, after = _digest(partial), os.lstat(source)
    if found != entry.sha256 or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        os.unlink(partial)
        raise FleetError(
            f"{source} changed while it was moved",
            expected=f"sha256 {entry.sha256}",
            found=f"sha256 {found}",
            remedy="It is still where it was. Stop what writes to it, and run again",
        )
    _set_meta(partial, entry)
    os.link(partial, destination)
    os.unlink(partial)


def _move_directory(entry: Entry, source: str, destination: str) -> None:
    """What was inside has moved already: have the directory there, and the empty one here no more."""
    if os.path.islink(destination) or not os.path.isdir(destination):
        _make_parents(destination, source)
        os.mkdir(destination, 0o700)
    for name in filter(_ours, os.listdir(source)):
        _clear(os.path.join(source, name))
    left = os.listdir(source)
    if left:
        raise FleetError(
            f"{source} holds what was not there before",
            expected="what the manifest lists, and nothing else",
            found=", ".join(sorted(left)),
            remedy="Run again: it is taken along then",
        )
    _set_meta(destination, entry)
    fsync_dir(destination)
    os.rmdir(source)


def move(entry: Entry, source: str, destination: str) -> bool:
    """Move what ``entry`` describes; True when something was left to do. Never overwrites, may be killed anywhere.

    The new name is made before the old one goes (a second link, or a verified copy across file systems), so that
    both exist for a moment and none never does. A rerun after a kill goes on from what is on the disk.
    """
    for path in (source, destination):
        _clear(_partial(path))
    if not os.path.lexists(source):
        if os.path.lexists(destination):
            return False
        raise FleetError(
            f"{entry.path} is neither where it was nor where it was to go",
            expected=f"{source} or {destination}",
            found="neither",
            remedy="Something else moved it; put it back at either place, and run again",
        )
    if entry.kind == "directory":
        _move_directory(entry, source, destination)
        fsync_dir(os.path.dirname(source))
        return True
    if os.path.lexists(destination):
        if not _same(entry, source, destination):
            raise FleetError(
                f"{destination} is taken",
                expected=f"no file of that name, to move {source} there",
                found="another file",
                remedy="Move one of them aside, and run again",
            )
        _set_meta(destination, entry)
    else:
        _make_parents(destination, source)
        if not _unchanged(entry, source):
            raise FleetError(
                f"{source} changed after it was listed",
                expected=f"sha256 {entry.sha256}",
                found="other content",
                remedy="Stop what writes to it, and run again",
            )
        try:
            os.link(source, destination, follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in _NO_LINK:
                raise
            _copy(entry, source, destination)
    fsync_dir(os.path.dirname(destination))
    os.unlink(source)
    fsync_dir(os.path.dirname(source))
    return True
