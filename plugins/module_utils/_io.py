# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files: the only writer of this collection."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import stat
import tempfile
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = [
    "atomic_link",
    "atomic_write",
    "fsync_dir",
    "make_dirs",
    "open_own",
    "read_json",
    "read_optional",
    "sweep",
]


def fsync_dir(path: str) -> None:
    """Make a rename inside the directory ``path`` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: str, mode: int = 0o755, uid: int = -1, gid: int = -1) -> None:
    """Create ``path`` and its parents; owner and mode are set on what was created, never on what was there."""
    missing = []
    here = os.path.abspath(path)
    while not os.path.isdir(here):
        if os.path.lexists(here):
            raise FleetError(f"{here} is in the way", expected="a directory", found="a file or a dead link")
        missing.append(here)
        here = os.path.dirname(here)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            os.mkdir(directory)
            # By descriptor: who owns the directory above could put a link in its place meanwhile.
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(fd, mode)
                if uid != -1 or gid != -1:
                    os.fchown(fd, uid, gid)
            finally:
                os.close(fd)


def open_own(path: str, flags: int, mode: int = 0o600) -> int:
    """A descriptor of the regular file ``path``, for work in a directory that another user may own.

    What lies there as a link, as a second name of some file, or as no file at all is a FleetError: root would write to
    whatever its owner chose. ``flags`` without O_TRUNC, which would come before that look.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as exc:
        if exc.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise _in_the_way(path, "a symbolic link" if exc.errno == errno.ELOOP else "something else") from exc
    state = os.fstat(fd)
    if stat.S_ISREG(state.st_mode) and state.st_nlink <= 1:
        return fd
    os.close(fd)
    raise _in_the_way(path, "a file with a second name" if stat.S_ISREG(state.st_mode) else "something else")


def _in_the_way(path: str, found: str) -> FleetError:
    return FleetError(
        f"{path} is in the way",
        expected="a regular file of one name, or nothing",
        found=found,
        remedy="Remove it, and ask who put it there",
    )


def read_optional(path: str) -> bytes | None:
    """The file's bytes, or None where there is no such file; every other failure is raised."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def read_json(path: str) -> Any:
    """The file's JSON value, or None where there is no such file. A file that is not JSON is a FleetError."""
    data = read_optional(path)
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError as exc:
        raise FleetError(
            f"{path} is damaged",
            expected="JSON",
            found=f"{len(data)} bytes that do not parse ({exc})",
            remedy="Move it aside and run again; it will be written anew",
        ) from exc


def atomic_write(path: str, data: bytes, mode: int = 0o644, uid: int = -1, gid: int = -1, *, sync: bool = True) -> None:
    """Replace ``path`` by ``data`` so that a reader, or a kill at any moment, sees the old file or the new one.

    The temporary file lies beside the destination (same file system) and is removed on failure;
    data and directory are synced before and after the rename, unless ``sync`` is off: a file that need not survive a
    power cut does not wait for the disk.
    """
    directory = os.path.dirname(os.path.abspath(path))
    fd, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(fd, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fchmod(handle.fileno(), mode)
            if uid != -1 or gid != -1:
                os.fchown(handle.fileno(), uid, gid)
            if sync:
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if sync:
        fsync_dir(directory)


def sweep(path: str) -> None:
    """Remove what killed runs left of unfinished writes of ``path``; the caller's lock keeps others from writing it."""
    stem = glob.escape(os.path.basename(path))
    for name in glob.glob(f".{stem}.*.tmp", root_dir=os.path.dirname(path)) + glob.glob(
        f"{stem}.*.tmp", root_dir=os.path.dirname(path)
    ):
        os.unlink(os.path.join(os.path.dirname(path), name))


def atomic_link(target: str, path: str) -> None:
    """Point the symbolic link ``path`` at ``target`` in one step; what is there must be a link or nothing."""
    if os.path.lexists(path) and not os.path.islink(path):
        raise FleetError(f"{path} is in the way", expected="a symbolic link or nothing", found="a file or directory")
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(target, temporary)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    fsync_dir(os.path.dirname(os.path.abspath(path)))
