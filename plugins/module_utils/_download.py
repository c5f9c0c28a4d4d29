# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several files at once over a bounded number of connections: files first, left-over connections to ranges of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import Stream, no_write, open_source
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError, Token, Transient
from ansible_collections.dank.llm_fleet.plugins.module_utils._incoming import Incoming, Part
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK

__all__ = ["Download"]

_LOOK_S = 0.1  # how often a connection without work looks for some: whether the digest keeps up is a matter of time


class Download:
    """Fetches the files. ``finish(incoming, digest)`` is called in the caller's thread for each proven one, which it
    gives its final name; ``show()`` a few times a second."""

    def __init__(self, *, connections: int, timeout_s: float, token: Token | None) -> None:
        self._connections, self._timeout_s, self._token = connections, timeout_s, token
        self.files: list[Incoming] = []
        self._change = threading.Condition()
        self._wake = threading.Event()
        self._stopping = False

    def on_hashed(self) -> None:
        """For the hashers: a digest is known."""
        self._wake.set()

    def run(self, files: Sequence[Incoming], finish: Callable[[Incoming, str], None], show: Callable[[], None]) -> None:
        """Return when every file is done. The first file that no source gives ends the download with its fault, and
        what is there of the others stays for a later run."""
        self.files = list(files)
        opened: list[Incoming] = []
        threads: list[threading.Thread] = []
        try:
            for file in self.files:  # all get their room before the first request
                file.open()
                opened.append(file)
            for number in range(self._connections):
                threads.append(threading.Thread(target=self._work, name=f"connection {number}", daemon=True))
                threads[-1].start()
            while not all(file.done for file in self.files):
                self._wake.wait(0.25)
                self._wake.clear()
                for file in self.files:
                    self._settle(file, finish)
                show()
        finally:
            with self._change:
                self._stopping = True
                for file in opened:
                    file.stop()
                self._change.notify_all()
            for file in opened:
                file.hasher.cancel()  # frees connections that wait for it
            for thread in threads:
                thread.join()
            for file in opened:
                file.close()

    def _settle(self, file: Incoming, finish: Callable[[Incoming, str], None]) -> None:
        """Raise the file's fault, or bring it to its end if its digest is known."""
        with self._change:
            if not file.done and file.fault is None:
                file.fault = file.hasher.fault
            if file.fault is not None:
                raise file.fault
            digest = None if file.done else file.hasher.digest
            if digest is None:
                return
        if file.file.digest.matches(digest):
            finish(file, digest)
            with self._change:
                file.done = True
                self._change.notify_all()
            return
        with self._change:
            file.wrong(digest, os.path.join(file.partial.directory, file.file.name))
            file.hasher.digest = None
            self._change.notify_all()
        self._wake.set()

    def _work(self) -> None:
        """One connection: fetch part after part until nothing is left."""
        while (taken := self._take()) is not None:
            file, part = taken
            try:
                self._fetch(file, part)
            except SourceError as exc:
                with self._change:
                    file.failed(part, exc, time.monotonic())
            except BaseException as exc:  # raised in the caller's thread
                with self._change:
                    if not self._stopping:
                        file.fault = file.fault or exc
            finally:
                with self._change:
                    file.leave(part)
                    self._change.notify_all()
                self._wake.set()

    def _take(self) -> tuple[Incoming, Part] | None:
        """A part to fetch: of a file that nobody fetches, else of the one with the fewest connections."""
        with self._change:
            while not self._stopping and not all(file.done for file in self.files):
                now = time.monotonic()
                left = sum(1 for file in self.files if not file.done)
                for file in sorted(self.files, key=lambda file: len(file.active)):
                    try:
                        part = file.next_part(now, alone=left >= self._connections)
                    except (OSError, FleetError) as exc:  # raised in the caller's thread
                        file.fault, part = exc, None
                        self._wake.set()
                    if part is not None:
                        return file, part
                self._change.wait(_LOOK_S)
            return None

    def _fetch(self, file: Incoming, part: Part) -> None:
        """Fetch one part."""
        want = file.want(part)
        with open_source(file.sources[part.source], want, timeout_s=self._timeout_s, token=self._token) as stream:
            with self._change:
                if self._stopping or not file.admit(part, want, stream):
                    return
            self._receive(file, part, stream)

    def _receive(self, file: Incoming, part: Part, stream: Stream) -> None:
        buffer = memoryview(bytearray(BLOCK))  # a new one each time: the hasher may still hold the last
        position, journal, hasher = part.start, file.journal, file.hasher
        while position < part.end:
            room = min(journal.room(position), part.end - position)
            fault: SourceError | None = None
            if part.epoch != file.epoch:
                return
            count, block = stream.copy(file.fd, position, room), None
            if not count:
                count, fault = _fill(stream, buffer[: min(room, BLOCK - position % BLOCK)])
                if part.epoch != file.epoch:
                    return
                if position + count == file.file.bytes and not part.start:
                    _refuse_more(stream, file.file.bytes)
                _write(file.fd, buffer[:count], position)
                block = buffer
            if count:
                frontier = journal.wrote(position, count)
                with self._change:
                    file.received += count  # before the hasher hears of it: with the last block, the file may be done
                kept = hasher.written(block, position, count, frontier)
                buffer = buffer if kept is None else kept
                position += count
            elif fault is None:
                fault = Transient(
                    f"{stream.shown} ended early", expected=f"{part.end} bytes", found=f"{position} bytes"
                )
            if fault is not None:
                raise fault


def _fill(stream: Stream, buffer: memoryview) -> tuple[int, SourceError | None]:
    """Read until the buffer is full or the source ends or fails: the bytes read, and the failure."""
    filled = 0
    try:
        while filled < len(buffer) and (count := stream.read(buffer[filled:])):
            filled += count
    except SourceError as exc:
        return filled, exc
    return filled, None


def _write(fd: int, data: memoryview, position: int) -> None:
    while data:
        try:
            count = os.pwrite(fd, data, position)
        except OSError as exc:
            raise no_write(exc) from exc
        data, position = data[count:], position + count


def _refuse_more(stream: Stream, size: int) -> None:
    """A body without an announced length may be too long: that must be known before the last byte is taken."""
    if stream.read(memoryview(bytearray(1))):
        raise SourceError(
            f"{stream.shown} sends more than declared", expected=f"{size} bytes", found=f"more than {size}"
        )
