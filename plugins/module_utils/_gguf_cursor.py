# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Walking through a header: a window over a source of bytes that is read ahead, kept small, and never overrun."""

from __future__ import annotations

import struct

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    LengthBeyondFile,
    LimitExceeded,
    TruncatedHeader,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import Source

__all__ = ["HEADER_LIMIT", "STRING_LIMIT", "Cursor"]

HEADER_LIMIT = 256 << 20
STRING_LIMIT = 64 << 20
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in ``source``. ``place`` is what lies there, for messages: "key 3", "tensor 17"."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = b""
        self._start = 0  # position of the buffer's first byte
        self._at = 0  # index into the buffer; may point beyond it after a long step
        self._end = source.size
        self._window, self._largest = source.windows
        self.name = source.name
        self.place = "its first bytes"

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._start + self._at

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self._end - self.position

    def _load(self, count: int) -> None:
        """Have ``count`` bytes from here in the buffer, and as many more as a read-ahead brings."""
        position = self.position
        if count > self._end - position:
            raise TruncatedHeader(
                f"{self.name} ends inside {self.place}",
                expected=f"{count} bytes at byte {position}",
                found=f"{max(0, self._end - position)} bytes",
            )
        if position + count > HEADER_LIMIT:
            raise LimitExceeded(
                f"{self.name} has a header beyond all measure",
                expected=f"at most {HEADER_LIMIT} bytes",
                found=f"{self.place} at byte {position}",
            )
        kept = self._buffer[self._at :]
        start = position + len(kept)
        length = min(max(count - len(kept), self._window), self._end - start)
        self._window = min(2 * self._window, self._largest)
        self._buffer = kept + self._source.read(start, length)
        self._start, self._at = position, 0

    def peek(self, count: int) -> bytes:
        """The next bytes, fewer than ``count`` where the file ends."""
        count = min(count, self.left)
        if self._at + count > len(self._buffer):
            self._load(count)
        return self._buffer[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        at = self._at
        if at + count > len(self._buffer):
            self._load(count)
            at = 0
        self._at = at + count
        return self._buffer[at : self._at]

    def u32(self) -> int:
        """The next four bytes as a number."""
        return int.from_bytes(self.take(4), "little")

    def skip(self, count: int) -> None:
        """Step over ``count`` bytes, which the caller has compared with ``left``; they are not read."""
        self._at += count

    def _check(self, what: str, length: int, limit: int) -> None:
        if length > self.left:
            raise LengthBeyondFile(
                f"{self.name}: {what} of {self.place} is longer than the file",
                expected=f"at most the {self.left} bytes left",
                found=f"{length} bytes",
            )
        if length > limit:
            raise LimitExceeded(
                f"{self.name}: {what} of {self.place} is too long",
                expected=f"at most {limit} bytes",
                found=f"{length} bytes",
            )

    def string(self, what: str, limit: int) -> bytes:
        """The next string: its length as eight bytes, then itself."""
        at = self._at
        if at + 8 > len(self._buffer):
            self._load(8)
            at = 0
        (length,) = _U64.unpack_from(self._buffer, at)
        self._at = at + 8
        if length > limit or self._at + length > len(self._buffer):
            self._check(what, length, limit)
        return self.take(length)

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings: only their lengths are looked at."""
        unpack_from = _U64.unpack_from
        done = 0
        while done < count:
            if self._at + 8 > len(self._buffer):
                self._load(8)
            buffer, at, length = self._buffer, self._at, 0
            last = len(buffer) - 8
            # The one loop that runs once for each token of a vocabulary.
            for index in range(done, count):  # noqa: B007 (it is used below the loop)
                (length,) = unpack_from(buffer, at)
                at += 8 + length
                if at > last:
                    break
            done = index + 1
            # Only the last one can reach beyond the buffer.
            self._at = at - length
            self._check("a string", length, STRING_LIMIT)
            self._at = at
