# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file on its way: its sources in turn, the bytes that are there, who fetches the rest, and what went wrong so far.

All methods but ``open`` and ``close`` are called with the lock of the Download that the file belongs to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import Stream, Want
from ansible_collections.dank.llm_fleet.plugins.module_utils._hasher import Hasher
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import (
    RangeRefused,
    RemoteChanged,
    SourceError,
    Transient,
    shown_url,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import FileSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK

__all__ = ["Incoming", "Part", "Tuning", "source_key"]


@dataclass(frozen=True)
class Tuning:
    """Sizes in bytes, times in seconds. ``segment`` is a multiple of BLOCK: what one connection asks for at once while
    others help; ``run``: so many of them where none does. ``window``: how far from the digest a range may begin.
    ``attempts``: failures in a row, without a block of progress, that one source is allowed; ``pause_s``: the wait
    after the first, doubled each time. ``longest_wait_s``: the longest wait that a source may ask for."""

    segment: int = 32 << 20
    run: int = 8
    window: int = 512 << 20
    attempts: int = 4
    pause_s: float = 1.0
    longest_wait_s: float = 120.0


@dataclass(eq=False)
class Part:
    """A run of missing bytes that one connection fetches. ``epoch``: the beginning that it belongs to."""

    start: int
    end: int
    source: int
    epoch: int
    stream: Stream | None = field(default=None)


class Incoming:
    """One file of a Download. ``fault`` ends the whole download; ``done`` is set when it has its final name."""

    def __init__(
        self,
        what: str,
        file: FileSpec,
        partial: Partial,
        sources: list[str],
        tuning: Tuning,
        connections: int,
        on_hashed: Callable[[], None],
    ) -> None:
        self.what = what
        self.file, self.partial, self.sources, self.tuning = file, partial, sources, tuning
        self.failures: list[dict[str, str]] = []
        self.fault: BaseException | None = None
        self.done = False
        self.received = 0  # bytes written in this run, those of a beginning that was given up among them
        self.begun: float | None = None
        self.active: list[Part] = []
        self.epoch = 0
        self.source = 0
        self.waits_until = 0.0
        self.note = ""
        self._connections = self._limit = connections
        self._ranged: bool | None = None  # whether the source gives ranges of a file it can name; None: not known yet
        self._starts_over = False
        self._restarts = self._troubles = self._best = 0
        self._single_source = False  # this beginning takes bytes from one source alone, on trial
        self._on_hashed = on_hashed
        self._is_open = False

    def open(self) -> None:
        """Open the partial file and begin to hash what is there of it."""
        self.fd, self.journal = self.partial.open(self.file.bytes, self.file.digest.hex, self.tuning.segment)
        self._is_open = True
        self._resumed_at = self.journal.bytes
        # A new beginning is no progress: a source that breaks off at the same place each time must come to its end.
        self._best = max(self._best, self.journal.bytes)
        self.hasher = Hasher(
            self.fd, self.file.bytes, self.journal.frontier, self._on_hashed, max_lag=self.tuning.window
        )
        if not self.sources and self.journal.bytes < self.file.bytes:
            self.fault = self.exhausted()

    def _let_go(self) -> None:
        """Close what is open, once: by a second time the number may be another file's, of another thread."""
        self.hasher.cancel()
        if self._is_open:
            self._is_open = False
            self.journal.close()
            os.close(self.fd)

    def close(self) -> None:
        """Let go of the partial file; it stays where a later run can go on with it. No connection may be active."""
        self._let_go()
        found = None if self.done else self.partial.progressed(self.file.bytes, self.file.digest.hex)
        if not self.done and (found is None or not found.bytes):
            self.partial.discard()

    # --- what to fetch next

    def next_part(self, now: float, alone: bool) -> Part | None:
        """The next bytes that one more connection may fetch now. ``alone``: no connection will be left to help it."""
        if self.done or self.fault or now < self.waits_until or len(self.active) >= self._limit:
            return None
        if self._starts_over:
            if self.active:
                return None
            self._begin_anew()
        keeps_up = self.hasher.keeps_up()
        if self.active and not (self._ranged and keeps_up):
            return None
        if self._ranged is False:
            claim = self.journal.claim(self.file.bytes, self.file.bytes)
        else:
            near = max(self.hasher.position, self.hasher.start) + self.tuning.window
            claim = self.journal.claim(near, self.tuning.run if alone or keeps_up is False else 1)
        if claim is None:
            return None
        self.begun = self.begun or now
        part = Part(*claim, self.source, self.epoch)
        self.active.append(part)
        return part

    def want(self, part: Part) -> Want:
        """What to ask the source of ``part`` for."""
        return Want(
            self.file.name,
            self.file.bytes,
            part.start,
            part.end,
            self.journal.sources.get(source_key(self.sources[part.source])),
        )

    def admit(self, part: Part, want: Want, stream: Stream) -> bool:
        """Whether the stream's bytes may be written. Raises RangeRefused where the file must be begun anew first."""
        if part.epoch != self.epoch or self.fault:
            return False
        part.stream, self.note = stream, ""
        as_asked = (stream.start, stream.end) == (want.start, want.end)
        if as_asked and not want.whole:
            if stream.validator is None:
                self._ranged = False
                if self.journal.bytes:
                    raise RangeRefused(f"{stream.shown} names no version of the file", expected="a strong ETag")
                self._starts_over = True
                return False
            self._ranged = True
        elif not as_asked:  # the whole file instead of a range of it
            changed = want.validator is not None and stream.validator not in (None, want.validator)
            kind = RemoteChanged if changed else RangeRefused
            refusal = kind(
                f"{stream.shown} gives " + ("another file by now" if changed else "no ranges"),
                expected="status 206",
                found="status 200",
                remedy="Started over",
            )
            if len(self.active) > 1:
                raise refusal
            if self.journal.bytes:
                self._tell(part, refusal)
            self._ranged = None if changed else False
            self.journal.release(part.start, part.end)
            self._begin_anew()
            self.journal.claim(self.file.bytes, self.file.bytes)
            part.start, part.end, part.epoch = 0, self.file.bytes, self.epoch
        self.journal.name_source(source_key(self.sources[part.source]), stream.validator)
        return True

    def leave(self, part: Part) -> None:
        """The connection of ``part`` is closed."""
        self.active.remove(part)
        if part.epoch == self.epoch:
            self.journal.release(part.start, part.end)

    # --- what went wrong

    def failed(self, part: Part, exc: SourceError, now: float) -> None:
        """Tell the failure, and decide: once more, from the start, or the next source."""
        if part.epoch != self.epoch or self.fault:
            return  # it was ended by us
        self._tell(part, exc)
        if part.source != self.source:
            return
        if isinstance(exc, RangeRefused):
            self._restarts += 1
            if not isinstance(exc, RemoteChanged):
                self._ranged = False
            self.start_over()
            if self._restarts > 2:
                self.next_source()
        elif isinstance(exc, Transient):
            self._trouble(part, exc, now)
        else:
            self.next_source()

    def _trouble(self, part: Part, exc: Transient, now: float) -> None:
        if not all(self.journal.sources.values()):
            self.start_over()  # without a strong validator nothing can be gone on with
        if exc.busy:
            self._limit = 1
        if now < self.waits_until:
            return  # several connections met the same trouble
        if self.journal.bytes >= self._best + BLOCK:
            self._troubles, self._best = 0, self.journal.bytes
        self._troubles += 1
        wait = self.tuning.pause_s * 2 ** (self._troubles - 1) if exc.wait_s is None else exc.wait_s
        if self._troubles > self.tuning.attempts or wait > self.tuning.longest_wait_s:
            self.next_source()
            return
        self.waits_until = now + wait
        self.note = f"{exc.found}, again in {wait:.0f} s"

    def _tell(self, part: Part, exc: SourceError) -> None:
        url = shown_url(self.sources[part.source]) if self.sources else self.partial.path
        self.failures.append({"file": self.file.name, "url": url, "error": exc.message})

    def next_source(self) -> None:
        """Go on with the next source; what is there stays where it can be gone on with."""
        self.source += 1
        self._ranged, self._limit = None, self._connections
        self._restarts = self._troubles = 0
        if self._single_source or not all(self.journal.sources.values()):
            self.start_over()
        self._best = 0 if self._starts_over else self.journal.bytes
        if self.source >= len(self.sources):
            self.fault = self.exhausted()
            self.stop()

    def exhausted(self) -> FleetError:
        """No source is left."""
        told = [note["error"].rstrip(".") for note in self.failures]
        return FleetError(
            f"{self.what}: {self.file.name} could not be fetched from {len(self.sources)} source(s)",
            expected=f"{self.file.bytes} bytes with sha256 {self.file.digest}",
            found=" | ".join(dict.fromkeys(told)) or "no source in `urls`",
            remedy="Correct the URL or the digest in the inventory, or put the file at "
            f"{os.path.join(self.partial.directory, self.file.name)}; nothing was replaced",
            failures=self.failures,
        )

    def start_over(self) -> None:
        """Give up the bytes that are there, once no connection writes any more."""
        self._starts_over = True
        self.stop()

    def stop(self) -> None:
        """End the connections that are active; what they still bring is not written."""
        self.epoch += 1
        for part in self.active:
            if part.stream is not None:
                part.stream.abort()

    def _begin_anew(self) -> None:
        """An empty partial file in place of this one."""
        self._starts_over = False
        self.epoch += 1
        self._let_go()
        self.partial.discard()
        self.open()

    # --- the end

    def wrong(self, digest: str, final: str) -> None:
        """All bytes are there and are others than declared: blame the source, unless they may be a mixture."""
        part = Part(0, self.file.bytes, min(self.source, len(self.sources) - 1), self.epoch)
        shown = shown_url(self.sources[part.source]) if self.sources else self.partial.path
        mixed = bool(self._resumed_at) or len(self.journal.sources) > 1
        if mixed and not self._single_source:
            why = (
                f"after continuing at byte {self._resumed_at}"
                if self._resumed_at
                else f"from {len(self.journal.sources)} sources together"
            )
            error = SourceError(
                f"{shown} gives other bytes than declared",
                expected=f"sha256 {self.file.digest}",
                found=f"sha256 {digest} {why}",
                remedy="Started over, from one source",
            )
            self._tell(part, error)
            self._single_source = True
            self.start_over()
            return
        where = self.partial.reject(final, digest)
        self._tell(
            part,
            SourceError(
                f"{shown} gives other bytes than declared",
                expected=f"sha256 {self.file.digest}",
                found=f"sha256 {digest}, kept as {where}",
            ),
        )
        self.start_over()
        self.next_source()

    def phase(self, now: float) -> str:
        """What is being done for this file, in a word."""
        if self.done:
            return "done"
        if self.journal.bytes == self.file.bytes:
            return "hashing"
        if now < self.waits_until:
            return "waiting"
        if not self.active:
            return "queued" if self.begun is None else "downloading"
        return "downloading" if any(part.stream for part in self.active) else "connecting"


def source_key(url: str) -> str:
    """How the journal names a source: a URL may hold a signature, and that is nobody's business."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]
