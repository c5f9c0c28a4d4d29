# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bench from beginning to end: its cells, who is asked, what is kept."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import KINDS, Row, record
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_arm import (
    BenchPaths,
    run_in_unit,
    served,
    stood_still,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_ask import Asker, require_idle, warm_up
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_batch import (
    bench_batches,
    cells_of_batches,
    llama_bench,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_shapes import bench_shapes, cells_of_shapes
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_spec import (
    Heard,
    cells_of_spec,
    hear,
    pair,
    rung_without_drafters,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_store import (
    folder_of,
    last_of_another_era,
    stem_of,
    write,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_turns import bench_turns, cells_of_turns
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Target
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths

__all__ = ["Asked", "bench", "cells_of"]

Say = Callable[..., None]
_PROMPTS = (512, 4096, 16384, 65536)
_LONGEST_DOCUMENT = 30_000


@dataclass(frozen=True)
class Asked:
    """What to measure. Lengths are tokens, ``timeout_s`` is for one answer or one llama-bench.

    Without ``prompts`` those of 512, 4096, 16384 and 65536 that the window holds; a ``document`` of 0 is half of it.
    """

    kind: str
    prompts: Sequence[int] = ()
    outputs: Sequence[int] = (128,)
    families: int = 2
    turns: int = 2
    document: int = 0
    batches: Sequence[int] = (2048,)
    ubatches: Sequence[int] = (512,)
    depth: int = 0
    repetitions: int = 3
    timeout_s: float = 600
    stop: bool = False
    rungs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _require_sound(asked: Asked) -> None:
    """Sizes that cannot be measured are refused by name."""
    for name in ("prompts", "outputs", "batches", "ubatches"):
        if any(value < 1 for value in getattr(asked, name)) or (name != "prompts" and not getattr(asked, name)):
            raise FleetError(name, expected="numbers above 0", found=list(getattr(asked, name)))
    for name, least in (("families", 1), ("turns", 1), ("document", 0), ("depth", 0), ("repetitions", 1)):
        if getattr(asked, name) < least:
            raise FleetError(name, expected=f"{least} or more", found=getattr(asked, name))


def cells_of(asked: Asked, window: int) -> list[dict[str, Any]]:
    """The cells of a bench on an endpoint whose slots hold ``window`` tokens."""
    _require_sound(asked)
    longest = max(asked.outputs)
    prompts = asked.prompts or [size for size in _PROMPTS if size + longest <= window] or [window // 2]
    if asked.kind == "shapes":
        return cells_of_shapes(prompts, asked.outputs)
    if asked.kind == "spec_ab":
        return cells_of_spec(prompts[0], asked.outputs[0])
    if asked.kind == "turn_latency":
        document = asked.document or min(window // 2, _LONGEST_DOCUMENT)
        return cells_of_turns(asked.families, asked.turns, document, asked.outputs[0])
    cells = cells_of_batches(asked.batches, asked.ubatches, prompts[0], asked.outputs[0], asked.depth)
    if not cells:
        raise FleetError("batches and ubatches", expected="a ubatch that is not above its batch", found="none")
    return cells


def _target(era: Era, env: Mapping[str, str], timeout_s: float) -> Target:
    facts = {**era.blueprint.facts, "env": dict(env)}
    return Target(api_of(facts["env"]), replace(declare(facts), timeout_s=timeout_s))


@dataclass(frozen=True)
class _Work:
    """One run; ``idle`` refuses while the endpoint serves somebody."""

    asked: Asked
    era: Era
    paths: Paths
    say: Say
    run: str

    @property
    def env(self) -> dict[str, str]:
        """The env that the endpoint was deployed with."""
        env: dict[str, str] = self.era.blueprint.facts["env"]
        return env

    def idle(self) -> None:
        """Refuse where a slot of the endpoint is busy."""
        require_idle(_target(self.era, self.env, self.asked.timeout_s))

    def asker(self, env: Mapping[str, str]) -> Asker:
        """The warm server of ``env``."""
        target = _target(self.era, env, self.asked.timeout_s)
        require_idle(target)
        self.say("warm up")
        return warm_up(target, self.run)

    def place(self, number: int) -> TrialPaths:
        """Where the ``number``-th of what takes the endpoint's place runs."""
        return BenchPaths.of(self.paths, self.run, number)

    def still(self, count: int, limit_s: float) -> contextlib.AbstractContextManager[None]:
        """The endpoint does not run in here, where ``count`` transient units do, one after the other."""
        return stood_still(
            self.era,
            self.paths,
            self.place(0),
            self.say,
            count=count,
            may_stop=self.asked.stop,
            before_stop=self.idle,
            limit_s=limit_s,
        )

    def spec(self, cells: Sequence[Mapping[str, Any]], rung: str) -> Generator[Row, None, None]:
        """Production with its drafters, then the rung without them in its place."""
        on = list(hear(self.asker(self.env), cells, self.asked.repetitions))
        lines = self.asked.rungs[rung]
        limit_s = self.era.blueprint.facts["deadline_s"] + self.asked.timeout_s * len(cells) * self.asked.repetitions
        off: list[Heard] = []
        with self.still(1, limit_s):
            try:
                with served(self.era, self.place(1), lines, self.say, limit_s=limit_s) as env:
                    off = list(hear(self.asker(env), cells, self.asked.repetitions))
            except FleetError as exc:  # what was measured with drafters stands
                off = [Heard({}, error=exc.message)] * len(cells)
        yield from (pair(cell, *arms) for cell, *arms in zip(cells, on, off, strict=True))

    def batches(self, cells: Sequence[Mapping[str, Any]]) -> Generator[Row, None, None]:
        """llama-bench, a process a cell, with the cards to itself."""
        facts = self.era.blueprint.facts
        program = llama_bench(self.env, facts["runtime"]["name"])
        numbers = itertools.count(1)  # the guard's word of a unit keeps its name, so each has its own

        def start(argv: Sequence[str]) -> Completed:
            return run_in_unit(self.era, self.place(next(numbers)), self.asked.timeout_s, argv)

        with self.still(len(cells), self.asked.timeout_s * len(cells)):
            yield from bench_batches(program, self.env, facts["cards"], cells, self.asked.repetitions, start)


def _note(asked: Asked, env: Mapping[str, str], name: str) -> tuple[str, str]:
    """(what a reader of the figures must know, the rung of ``spec_ab``); refuses what cannot be measured."""
    if asked.kind == "batch_ubatch":
        return "without drafters and slots, which llama-bench has not", ""
    if asked.kind != "spec_ab":
        return "", ""
    if env.get("SPEC_TYPE", "none") == "none":
        raise FleetError(
            f"endpoint {name} drafts nothing", expected="a drafter in SPEC_TYPE", found="SPEC_TYPE none or unset"
        )
    rung = rung_without_drafters(asked.rungs)
    lines = ", ".join(f"{key}={value}" for key, value in asked.rungs[rung].items())
    return f"on: {env['SPEC_TYPE']}, off: rung {rung} ({lines})", rung


def _require_runs(asked: Asked, paths: Paths) -> None:
    """Refuse a bench of an endpoint that does not run, and one that would have to stop it without leave."""
    if asked.kind == "batch_ubatch":
        return
    state = _systemd.show(paths.unit)
    if not state.running:
        remedy = f"Start it (systemctl start {paths.unit}, or site.yml)"
        raise FleetError(
            f"endpoint {paths.endpoint} does not run", expected="running", found=state.words, remedy=remedy
        )
    if asked.kind == "spec_ab" and not asked.stop:
        raise FleetError(
            f"spec_ab stops endpoint {paths.endpoint} for its second half",
            expected="leave to do so",
            found="none",
            remedy="Give it with -e stop=true: it is stopped while nobody uses it, and started again",
        )


def bench(asked: Asked, era: Era, paths: Paths, say: Say) -> dict[str, Any]:
    """Measure, keep each row as it comes, and return ``{bench: the record, files: its paths}``.

    The caller holds the endpoint's lock. A FleetError where nothing could be measured; a cell that failed is a row.
    """
    facts = era.blueprint.facts
    if facts["engine"] != "llamacpp" or asked.kind not in KINDS:
        raise FleetError(
            f"bench {asked.kind} of engine {facts['engine']}", expected="llamacpp, whose answers have timings"
        )
    cells = cells_of(asked, facts["shape"]["ctx_per_slot"])
    note, rung = _note(asked, facts["env"], paths.endpoint)
    _require_runs(asked, paths)
    folder, now = folder_of(paths.store), datetime.now(UTC)
    earlier = last_of_another_era(folder, asked.kind, era.id)
    head = {
        "at": now.isoformat(timespec="seconds"),
        "kind": asked.kind,
        "endpoint": paths.endpoint,
        "era": era.id,
        "rung": facts["rung"],
        "runtime": {key: facts["runtime"][key] for key in ("name", "version", "digest")},
        "repetitions": asked.repetitions,
        "note": note,
    }
    work = _Work(asked, era, paths, say, secrets.token_hex(3))
    if asked.kind == "batch_ubatch":
        coming = work.batches(cells)
    elif asked.kind == "spec_ab":
        coming = work.spec(cells, rung)
    else:
        measure = bench_shapes if asked.kind == "shapes" else bench_turns
        coming = measure(work.asker(facts["env"]), cells, asked.repetitions)
    rows: list[Row] = []
    files: list[str] = []
    told: dict[str, Any] = {}
    with contextlib.closing(coming):  # what a generator has stopped is started again, whatever ends us
        say(f"{asked.kind}: cell 1 of {len(cells)}")
        for row in coming:
            rows.append(row)
            told = record(head, rows, earlier)
            files = write(stem_of(folder, asked.kind, now), told)
            if len(rows) < len(cells):
                say(f"{asked.kind}: cell {len(rows) + 1} of {len(cells)}")
    if not any(row.error is None for row in rows):
        raise FleetError(
            f"no cell of {asked.kind} was measured on {paths.endpoint}",
            expected="figures",
            found=rows[0].error,
            remedy="See docs/how-to/bench-an-endpoint.md",
            bench=told,
        )
    return {"bench": told, "files": files}
