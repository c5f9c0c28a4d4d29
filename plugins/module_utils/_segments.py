# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which bytes of a partial file are truly there: a journal of counters, one per segment, that a kill cannot make lie.

The journal file is a head of 4096 bytes (JSON, padded with spaces) and then one little-endian counter of 64 bits per
segment: the bytes of that segment, from its start, that are written. A counter is raised by one write of 8 bytes after
the write of the bytes it counts, so a killed process has written at least what the counters say, and at most one block
per open range more. (After a power cut they may say too much; the digest finds that, and the fetch starts over.)
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import strong_validator
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import open_own

__all__ = ["Journal", "Progressed", "read_journal"]

_HEAD = 4096
_COUNTER = struct.Struct("<Q")


class Progressed:
    """What a journal on the disk says: ``counts`` per segment of ``segment`` bytes, and the ``sources`` that gave them
    (a hash of each URL, and its strong validator)."""

    def __init__(self, segment: int, counts: list[int], sources: dict[str, str]) -> None:
        self.segment, self.counts, self.sources = segment, counts, sources

    @property
    def bytes(self) -> int:
        """How many bytes are there in all."""
        return sum(self.counts)


def _spans(size: int, segment: int) -> list[int]:
    """The length of each segment of a file."""
    return [min(segment, size - start) for start in range(0, size, segment)]


def read_journal(path: str, size: int, digest: str) -> Progressed | None:
    """The journal at ``path`` if it may be continued for a file of this length and digest, else None."""
    try:
        fd = open_own(path, os.O_RDONLY)
    except (FileNotFoundError, FleetError):  # what is not this user's own file cannot be continued, and is removed
        return None
    with open(fd, "rb") as handle:
        data = handle.read()
    if len(data) < _HEAD:
        return None
    try:
        head: Any = json.loads(data[:_HEAD])
        segment, sources = int(head["segment"]), {str(key): str(value) for key, value in head["sources"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if (head.get("bytes"), head.get("digest")) != (size, digest) or segment <= 0:
        return None
    if not sources or not all(map(strong_validator, sources.values())):
        return None
    spans, body = _spans(size, segment), data[_HEAD:]
    if len(body) != _COUNTER.size * len(spans):
        return None
    counts = [count for (count,) in _COUNTER.iter_unpack(body)]
    if any(count > span for count, span in zip(counts, spans, strict=True)):
        return None
    return Progressed(segment, counts, sources)


class Journal:
    """The journal of one open partial file, and which of its bytes are being fetched by whom. Safe for threads."""

    def __init__(self, path: str, size: int, digest: str, segment: int, found: Progressed | None = None) -> None:
        """Continue ``found`` or, without it, begin a new file at ``path`` that says nothing is there yet."""
        self.size, self.digest = size, digest
        self.segment = found.segment if found else segment
        self.sources: dict[str, str | None] = dict(found.sources) if found else {}
        self._spans = _spans(size, self.segment)
        self._counts = list(found.counts) if found else [0] * len(self._spans)
        self._claimed = [False] * len(self._spans)
        self._first = 0  # no segment before this one lacks a byte
        self._lock = threading.Lock()
        self._fd = open_own(path, os.O_WRONLY | os.O_CREAT)
        if not found:
            try:
                os.ftruncate(self._fd, 0)
                self._write_head()
                os.pwrite(self._fd, bytes(_COUNTER.size * len(self._spans)), _HEAD)
            except BaseException:
                os.close(self._fd)
                raise

    def _write_head(self) -> None:
        head: Mapping[str, Any] = {
            "bytes": self.size,
            "digest": self.digest,
            "segment": self.segment,
            "sources": self.sources,
        }
        os.pwrite(self._fd, json.dumps(head).encode().ljust(_HEAD), 0)

    def name_source(self, source: str, validator: str | None) -> None:
        """Before the first bytes of a source are written: which file of it they are. None: they prove nothing later."""
        with self._lock:
            if self.sources.get(source, "") != validator:
                self.sources[source] = validator
                self._write_head()

    def claim(self, limit: int, most: int) -> tuple[int, int] | None:
        """``(start, end)`` of the next missing bytes, up to ``most`` segments in a row that begin before ``limit``.

        They are the caller's until it gives them back with ``release``; None where all are there or taken.
        """
        with self._lock:
            for index in range(self._first, len(self._spans)):
                if index * self.segment >= limit:
                    return None
                if self._claimed[index] or self._counts[index] == self._spans[index]:
                    continue
                last = index
                while last + 1 - index < most and last + 1 < len(self._spans) and self._free(last + 1):
                    last += 1
                self._claimed[index : last + 1] = [True] * (last + 1 - index)
                return (
                    index * self.segment + self._counts[index],
                    last * self.segment + self._spans[last],
                )
            return None

    def _free(self, index: int) -> bool:
        return not self._claimed[index] and not self._counts[index]

    def release(self, start: int, end: int) -> None:
        """Give back a claim, whether it was filled or not."""
        with self._lock:
            for index in range(start // self.segment, (end - 1) // self.segment + 1):
                self._claimed[index] = False

    def room(self, position: int) -> int:
        """How many bytes from ``position`` to the end of its segment: a write must not cross it."""
        index = position // self.segment
        return index * self.segment + self._spans[index] - position

    def wrote(self, position: int, count: int) -> int:
        """``count`` bytes at ``position``, within one segment and next to those there, are written; the frontier."""
        index = position // self.segment
        with self._lock:
            total = position + count - index * self.segment
            os.pwrite(self._fd, _COUNTER.pack(total), _HEAD + _COUNTER.size * index)
            self._counts[index] = total
            while self._first < len(self._spans) and self._counts[self._first] == self._spans[self._first]:
                self._first += 1
            return self._frontier()

    def _frontier(self) -> int:
        if self._first == len(self._spans):
            return self.size
        return self._first * self.segment + self._counts[self._first]

    @property
    def frontier(self) -> int:
        """All bytes before this position are there."""
        with self._lock:
            while self._first < len(self._spans) and self._counts[self._first] == self._spans[self._first]:
                self._first += 1
            return self._frontier()

    @property
    def bytes(self) -> int:
        """How many bytes are there in all."""
        with self._lock:
            return sum(self._counts)

    def close(self) -> None:
        os.close(self._fd)
