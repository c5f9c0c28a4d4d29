# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashing a file while it arrives: blocks that come in order from the writer's hand, the rest from the file."""

from __future__ import annotations

import collections
import hashlib
import os
import threading
import time
from collections.abc import Callable

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK

__all__ = ["Hasher"]

_JUDGE_S = 0.25  # seconds of work before it is told whether the digest keeps up
_RING = 8  # blocks that a writer may be ahead of the digest before it waits


class Hasher:
    """The sha256 of the file ``fd`` of ``size`` bytes, computed in a thread of its own while others still write to it.

    ``start``: how many of its first bytes were there before; they are read from the file while new ones arrive.
    A writer hands each block over with ``written``. Where the digest has come just so far, it is computed from that
    very buffer; else the block is read back later, from the page cache, when all before it is there. ``on_end`` is
    called in the hasher's thread when the digest is known or the hasher failed.
    """

    def __init__(self, fd: int, size: int, start: int, on_end: Callable[[], None], *, max_lag: int = 512 << 20) -> None:
        self.size, self.start = size, start
        self.fault: BaseException | None = None
        self.digest: str | None = None
        self._fd, self._on_end, self._max_lag = fd, on_end, max_lag
        self._frontier = start
        self._position = 0  # hashed up to here
        self._tail = 0  # hashed, or taken in hand, up to here
        self._ring: collections.deque[tuple[memoryview, int]] = collections.deque()
        self._spare: list[memoryview] = []
        self._cancelled = False
        self._busy_s = 0.0
        self._since: float | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hasher", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int:
        """How many bytes are hashed."""
        return self._position

    def keeps_up(self) -> bool | None:
        """Whether the digest waits for bytes more than half of the time: faster delivery would end the fetch sooner.

        None in the first moments, when that cannot be told.
        """
        with self._change:
            if self._position < self.start:
                return True  # what was there before tells nothing
            took = 0.0 if self._since is None else time.monotonic() - self._since
            return self._busy_s < 0.5 * took if took > _JUDGE_S else None

    def _next(self) -> tuple[memoryview | None, int]:
        """A block in hand, or how many bytes to read from the file; (None, 0) at the end."""
        with self._change:
            while not self._cancelled:
                if self._ring:
                    return self._ring.popleft()
                if self._position == self.size:
                    break
                want = min(BLOCK - self._position % BLOCK, self.size - self._position)
                if self._frontier - self._position >= want:
                    self._tail = self._position + want
                    return None, want
                self._change.wait()
            return None, 0

    def _run(self) -> None:
        digest, own = hashlib.sha256(), memoryview(bytearray(BLOCK))
        try:
            while True:
                block, count = self._next()
                if not count:
                    break
                begin = time.monotonic()
                if block is None:
                    if os.preadv(self._fd, [own[:count]], self._position) != count:
                        raise FleetError("the partial file was cut while it was written", remedy="Run again")
                    digest.update(own[:count])
                else:
                    digest.update(block[:count])
                with self._change:
                    self._busy_s += time.monotonic() - begin
                    if block is not None:
                        self._spare.append(block)
                    if self._position < self.start <= self._position + count:
                        self._busy_s, self._since = 0.0, None
                    self._position += count
                    self._change.notify_all()
            if not self._cancelled:
                self.digest = digest.hexdigest()
        except BaseException as exc:  # handed to whoever asks for the digest, or writes on
            with self._change:
                self.fault = exc
                self._change.notify_all()
        self._on_end()

    def written(self, buffer: memoryview | None, position: int, count: int, frontier: int) -> memoryview | None:
        """Tell that ``count`` bytes at ``position`` are written, and that all before ``frontier`` are.

        Returns the buffer to go on with: the hasher may keep this one. Waits where the digest is too far behind.
        """
        with self._change:
            self._frontier = max(self._frontier, frontier)
            self._since = self._since or time.monotonic()
            handed = buffer is not None and position == self._tail
            if buffer is not None and handed:
                self._ring.append((buffer, count))
                self._tail = position + count
            self._change.notify_all()
            while not self._cancelled and self.fault is None and self._ahead():
                self._change.wait()
            if self.fault is not None:
                raise self.fault
            if not handed:
                return buffer
            return self._spare.pop() if self._spare else memoryview(bytearray(BLOCK))

    def _ahead(self) -> bool:
        lag = self._frontier - self._position
        return len(self._ring) >= _RING or (self._position >= self.start and lag > self._max_lag)

    def cancel(self) -> None:
        """Stop early, and free writers that wait; harmless after the end."""
        with self._change:
            self._cancelled = True
            self._change.notify_all()
        self._thread.join()
