# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bench ``batch_ubatch``: llama-bench over batch sizes, a process a cell, with each card's peak memory.

llama-bench's own ways: ``/`` joins the devices of one configuration and ``,`` separates values to try, so the lists of
the env are written anew; there is no context size (it is prompt + output + depth) and no drafter; a test that cannot
allocate ends the process.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import Row, attempt
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState, identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed

__all__ = ["Peak", "bench_batches", "cells_of_batches", "llama_bench", "llama_bench_argv", "rates"]

_FLAGS = {
    "NGL": "-ngl",
    "FLASH_ATTN": "-fa",
    "CACHE_TYPE_K": "-ctk",
    "CACHE_TYPE_V": "-ctv",
    "SPLIT_MODE": "-sm",
    "DEVICE": "-dev",
    "TENSOR_SPLIT": "-ts",
    "THREADS": "-t",
}
_POLL_S = 0.2
Run = Callable[[Sequence[str]], Completed]


def cells_of_batches(
    batches: Sequence[int], ubatches: Sequence[int], prompt: int, output: int, depth: int
) -> list[dict[str, Any]]:
    """Every batch with every ubatch that is not larger, in tokens."""
    return [
        {"batch": batch, "ubatch": ubatch, "prompt": prompt, "output": output, "depth": depth}
        for batch, ubatch in itertools.product(batches, ubatches)
        if ubatch <= batch
    ]


def llama_bench(env: Mapping[str, str], runtime: str) -> str:
    """The llama-bench beside the server; a FleetError where the runtime was built without it."""
    path = os.path.join(os.path.dirname(env["SERVER_BIN"]), "llama-bench")
    if not os.access(path, os.X_OK):
        raise FleetError(
            f"runtime {runtime} has no llama-bench",
            expected=path,
            found="no such program",
            remedy=f"Add llama-bench to llm_runtimes.{runtime}.targets and run site.yml",
        )
    return path


def llama_bench_argv(program: str, env: Mapping[str, str], cell: Mapping[str, Any], repetitions: int) -> list[str]:
    """llama-bench for one cell, with the endpoint's own devices, split, cache types and threads."""
    argv = [program, "-m", env["MODEL_FILE"], "-o", "jsonl", "-r", str(repetitions)]
    for flag, name in (("-b", "batch"), ("-ub", "ubatch"), ("-p", "prompt"), ("-n", "output"), ("-d", "depth")):
        argv += [flag, str(cell[name])]
    for key, flag in _FLAGS.items():
        value = env.get(key, "")
        if key == "NGL" and value in ("auto", "all"):
            value = "-1"  # its word for all
        if value:
            argv += [flag, value.replace(",", "/") if key in ("DEVICE", "TENSOR_SPLIT") else value]
    return argv


def rates(lines: str) -> dict[str, list[float]]:
    """``prefill_tps`` and ``decode_tps`` of llama-bench's JSON lines, a sample a repetition; tokens a second."""
    found: dict[str, list[float]] = {}
    for line in lines.splitlines():
        if not line.startswith("{"):
            continue
        try:
            told = json.loads(line)
            name = "prefill_tps" if told["n_prompt"] else "decode_tps"
            found[name] = [float(value) for value in told["samples_ts"]]
        except (ValueError, KeyError, TypeError) as exc:
            expected = "JSON with n_prompt and samples_ts"
            raise FleetError("llama-bench's line cannot be read", expected=expected, found=line[:120]) from exc
    if not any(found.values()):
        raise FleetError("llama-bench measured nothing", expected="a line of JSON a test", found=lines[-200:] or "none")
    return found


class Peak:
    """While it is entered, watches how much of each card is used; ``used`` is the most that was, in MiB."""

    def __init__(
        self,
        cards: Sequence[Mapping[str, Any]],
        read: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, CardState]] = read_cards,
    ) -> None:
        self.used: dict[str, float] = {}
        self._cards, self._read = identified(cards), read
        self._fault: FleetError | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            try:
                for name, card in self._read(self._cards).items():
                    self.used[name] = max(self.used.get(name, 0.0), card.total_mib - card.free_mib)
            except FleetError as exc:
                self._fault = exc  # told by the thread that waits
                return
            if self._end.wait(_POLL_S):
                return

    def __enter__(self) -> Peak:
        if self._cards:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        self._end.set()
        if self._cards:
            self._thread.join()
        if self._fault is not None and kind is None:
            raise self._fault


def _measure(argv: Sequence[str], cards: Sequence[Mapping[str, Any]], run: Run) -> dict[str, list[float]]:
    with Peak(cards) as peak:
        done = run(argv)
    if done.rc != 0:
        last = done.tail.splitlines()[-3:]
        raise FleetError("llama-bench failed", expected="exit status 0", found=f"{done.rc}: {' | '.join(last)}")
    return {**rates(done.stdout), **{f"peak_{name}_mib": [mib] for name, mib in peak.used.items()}}


def bench_batches(
    program: str,
    env: Mapping[str, str],
    cards: Sequence[Mapping[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    repetitions: int,
    run: Run,
) -> Generator[Row, None, None]:
    """A row and a process a cell; ``run`` starts the command where its memory may be locked."""
    for cell in cells:
        argv = llama_bench_argv(program, env, cell, repetitions)
        yield attempt(cell, partial(_measure, argv, cards, run))
