# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file that a fetch fills before it is proven, what may continue it, and how it gets its final name."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import sys

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import fsync_dir, open_own
from ansible_collections.dank.llm_fleet.plugins.module_utils._segments import Journal, Progressed, read_journal

__all__ = ["Partial", "kept_aside", "reserve"]


def reserve(fd: int, size: int) -> None:
    """Give the file its length, and the disk's room for it where the file system can; OSError where there is none.

    Not posix_fallocate: where the file system cannot, the C library would write to every block instead.
    """
    if sys.maxsize > 1 << 32:
        call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if call is not None:
            offset, length = ctypes.c_int64(0), ctypes.c_int64(size)
            while call(fd, 0, offset, length):
                code = ctypes.get_errno()
                if code == errno.EINTR:
                    continue
                if code in (errno.EOPNOTSUPP, errno.ENOSYS):
                    break
                raise OSError(code, os.strerror(code))
    os.ftruncate(fd, size)


def kept_aside(final: str, why: str) -> list[str]:
    """The files ``<final>.<why>-<first 12 digits of a sha256>`` that are there; ``why`` is rejected or replaced."""
    folder, name = os.path.split(final)
    mine = re.compile(re.escape(f"{name}.{why}-") + "[0-9a-f]{12}")
    return [os.path.join(folder, entry) for entry in sorted(os.listdir(folder)) if mine.fullmatch(entry)]


class Partial:
    """The file that a fetch fills before it is proven: ``.<name>.part`` in the payload's own directory.

    It has its full length and room from the start; beside it ``.<name>.part.journal`` says which bytes are there. The
    caller holds the directory's lock.
    """

    def __init__(self, directory: str, name: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, f".{name}.part")
        self.note = f"{self.path}.journal"

    def stat(self) -> os.stat_result | None:
        try:
            return os.lstat(self.path)
        except FileNotFoundError:
            return None

    def progressed(self, size: int, digest: str) -> Progressed | None:
        """What is there of the file of this length and digest, None where nothing can be continued."""
        state = self.stat()
        if state is None or not stat.S_ISREG(state.st_mode) or state.st_size != size:
            return None
        return read_journal(self.note, size, digest)

    def open(self, size: int, digest: str, segment: int) -> tuple[int, Journal]:
        """The partial file's descriptor and its journal: continued where that can be, else new and with its room.

        A file system without that room is a FleetError, and nothing is left behind.
        """
        found = self.progressed(size, digest)
        if found is None:
            self.discard()
        fd = open_own(self.path, os.O_RDWR | os.O_CREAT)
        try:
            if found is None:
                os.fchmod(fd, 0o600)
                reserve(fd, size)
            return fd, Journal(self.note, size, digest, segment, found)
        except OSError as exc:
            os.close(fd)
            self.discard()
            raise FleetError(
                f"{self.path}: no room for the whole file",
                expected=f"{size} bytes that can be reserved",
                found=exc.strerror,
                remedy="Free space there, lift the quota, or set another dir; nothing was fetched",
            ) from exc
        except BaseException:
            os.close(fd)
            raise

    def reject(self, final: str, digest: str) -> str:
        """Keep the wrong bytes for a look: ``<name>.rejected-<digest12>``, the only one. Returns its path."""
        for other in kept_aside(final, "rejected"):
            os.unlink(other)
        kept = f"{final}.rejected-{digest[:12]}"
        os.replace(self.path, kept)
        return kept

    def accept(self, final: str, replaces: str | None) -> str | None:
        """Give the proven bytes their final name in one step; the file of digest ``replaces`` is kept aside.

        Returns the path where the old file lies now, or None.
        """
        kept = None
        if replaces is not None:
            kept = f"{final}.replaced-{replaces[:12]}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(kept)
            os.link(final, kept, follow_symlinks=False)
        os.replace(self.path, final)
        self.discard()
        fsync_dir(self.directory)
        return kept

    def discard(self) -> None:
        """Remove the partial file and its journal, if they are there; the journal first, so that it never lies."""
        for path in (self.note, self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
