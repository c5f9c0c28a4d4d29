# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading payload files in full, several at once: hashlib releases the interpreter, so threads use every processor."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._meter import FileState, Meter
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, hash_file

__all__ = ["ReadFile", "hash_files"]


_REMEDY = "Look at the disk's health (the kernel's log, smartctl); a file that cannot be read must be moved aside"


@dataclass(frozen=True)
class ReadFile:
    """One file, read in full: its digest, what it was meanwhile, and how long that took."""

    digest: str
    identity: Identity
    seconds: float


class _Stopped(Exception):
    """Another file failed: the rest need not be read."""


def _unreadable(path: str, exc: OSError) -> FleetError:
    return FleetError(f"{path} cannot be read", expected="its bytes", found=exc.strerror, remedy=_REMEDY)


def hash_files(paths: Sequence[str], meter: Meter, faults: dict[str, FleetError] | None = None) -> dict[str, ReadFile]:
    """Hash these files on as many threads as this process may use processors.

    The first failure ends all; with ``faults`` each is put there, by path, and the others are read on.
    """
    if not paths:
        return {}
    sizes = {path: os.lstat(path).st_size if os.path.lexists(path) else 0 for path in paths}
    done = dict.fromkeys(paths, 0)
    begun: set[str] = set()
    stop = threading.Event()

    def one(path: str) -> ReadFile | None:
        begin = time.monotonic()
        begun.add(path)

        def on_bytes(count: int) -> None:
            done[path] = count
            if stop.is_set():
                raise _Stopped

        try:
            digest, identity = hash_file(path, on_bytes)
        except (OSError, FleetError) as exc:
            fault = exc if isinstance(exc, FleetError) else _unreadable(path, exc)
            if faults is None:
                raise fault from exc
            faults[path] = fault
            return None
        return ReadFile(digest, identity, time.monotonic() - begin)

    def states() -> list[FileState]:
        return [
            FileState(
                os.path.basename(path),
                done[path],
                sizes[path],
                "done" if done[path] == sizes[path] else "hashing" if path in begun else "queued",
            )
            for path in paths
        ]

    meter.show("hashing", states(), force=True)
    with ThreadPoolExecutor(min(len(paths), len(os.sched_getaffinity(0)))) as pool:
        # the largest first: one long file at the end would leave the other processors idle
        jobs = {path: pool.submit(one, path) for path in sorted(paths, key=lambda path: -sizes[path])}
        try:
            while wait(jobs.values(), timeout=0.25, return_when=FIRST_EXCEPTION).not_done:
                meter.show("hashing", states())
                for job in jobs.values():
                    if job.done():
                        job.result()
            return {path: file for path in paths if (file := jobs[path].result()) is not None}
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            meter.end(states())
