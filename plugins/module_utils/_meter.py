# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes of several files on their way, as one progress record: rates, and what is being done for each."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

__all__ = ["FileState", "Meter", "Rate"]

_SPAN_S = 10.0


class Rate:
    """Bytes a second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: collections.deque[tuple[float, int]] = collections.deque()

    def at(self, now: float, done: int) -> float | None:
        """The rate with ``done`` bytes at ``now``; None where it cannot be told, as after a step back."""
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        if not self._samples or now - self._samples[-1][0] >= 0.2:
            self._samples.append((now, done))
        while now - self._samples[0][0] > _SPAN_S and len(self._samples) > 2:
            self._samples.popleft()
        (then, before), span = self._samples[0], now - self._samples[0][0]
        return (done - before) / span if span >= 0.2 and done > before and then < now else None


@dataclass(frozen=True)
class FileState:
    """One file in work: bytes done and in all, a word for what is being done, a note for people."""

    name: str
    done: int
    total: int
    phase: str
    note: str = ""


class Meter:
    """Adds up the bytes of all long work of one run; ``show`` writes them to the progress file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._before = 0  # bytes of steps that are over
        self._rates: dict[str, Rate] = collections.defaultdict(Rate)

    def show(self, step: str, files: Sequence[FileState], *, force: bool = False) -> None:
        """Where ``step`` stands; ``files`` are all of the step, those that are done too."""
        now = time.monotonic()
        done = sum(file.done for file in files)
        shown: list[dict[str, Any]] = []
        for file in files:
            rate = self._rates[f"{step} {file.name}"].at(now, file.done)
            if file.phase in ("done", "queued"):
                continue
            entry: dict[str, Any] = {
                "name": file.name,
                "done": file.done,
                "total": file.total,
                "phase": file.phase,
                "note": file.note,
            }
            if rate is not None:
                entry["rate"] = round(rate)
            shown.append(entry)
        finished = sum(1 for file in files if file.phase == "done")
        self._progress.update(
            step,
            done=self._before + done,
            total=self._before + sum(file.total for file in files),
            unit="B",
            text=f"{finished} of {len(files)} files" if len(files) > 1 else files[0].name if files else "",
            rate=self._rates[step].at(now, done),
            files=shown,
            force=force,
        )

    def end(self, files: Sequence[FileState]) -> None:
        """These bytes are done; what comes is counted on top of them."""
        self._before += sum(file.total for file in files)
