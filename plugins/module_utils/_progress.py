# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of long work: a small file on the host that the controller reads while the play runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write

__all__ = ["Progress"]


class Progress:
    """Writes ``{"step", "done", "total", "unit", "text", "elapsed_s", "eta_s"}`` to ``path`` at most twice a second.

    Where they are given, also ``rate`` (units a second of late, which then decides ``eta_s``) and ``files``, the parts
    in work: ``{"name", "done", "total", "phase", "note", "rate"}`` each.

    ``path`` may be None: then nothing is written and the caller needs no branch of its own.
    ``done`` and ``total`` count ``unit`` ("B" for bytes, "steps" for build steps).
    """

    def __init__(self, path: str | None, *, interval_s: float = 0.5) -> None:
        self.path = path
        self.interval_s = interval_s
        self._started = time.monotonic()
        self._last_write = float("-inf")

    def update(
        self,
        step: str,
        *,
        done: int = 0,
        total: int = 0,
        unit: str = "",
        text: str = "",
        rate: float | None = None,
        files: Sequence[Mapping[str, Any]] = (),
        force: bool = False,
    ) -> None:
        """Record where the work stands; a call within the interval is dropped unless ``force``."""
        now = time.monotonic()
        if self.path is None or (not force and now - self._last_write < self.interval_s):
            return
        self._last_write = now
        elapsed = now - self._started
        state: dict[str, Any] = {
            "step": step,
            "done": done,
            "total": total,
            "unit": unit,
            "text": text,
            "elapsed_s": round(elapsed, 1),
        }
        if rate:
            state["rate"] = round(rate)
        if files:
            state["files"] = [dict(file) for file in files]
        if 0 < done < total:
            state["eta_s"] = round((total - done) / rate if rate else elapsed * (total - done) / done, 1)
        atomic_write(self.path, json.dumps(state).encode(), mode=0o644, sync=False)

    def close(self) -> None:
        """Remove the file: nothing runs any more."""
        if self.path is not None and os.path.lexists(self.path):
            os.unlink(self.path)
