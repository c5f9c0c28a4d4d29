# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A trial from end to end: look, stop what serves, measure each candidate, have serve again what served before."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import list_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import Say, gate_port, prove, start_fault
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look, truth_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import require_room
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_cards import gate_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import Candidate
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_measure import (
    Drawn,
    draw_candidate,
    measure,
    new_row,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths, guard_command
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import require

__all__ = ["Incumbent", "fingerprint", "incumbents_of", "try_out"]

_RUNS = ("active", "activating", "reloading", "refreshing")
_PROBES_S = 900  # what the probes of one candidate may take


@dataclass(frozen=True)
class Incumbent:
    """A unit that runs before the trial and has to run after it; ``era`` is None where it was not deployed by us."""

    paths: Paths
    pid: int
    era: Era | None


@dataclass(frozen=True)
class Plan:
    """What a trial will do. ``makes_way`` are all units that may not run beside it, whether they do or not; ``boots``
    the candidates that will be booted, and ``rows`` of all of them."""

    id: str
    incumbents: Sequence[Incumbent]
    makes_way: Sequence[str]
    boots: Sequence[Drawn]
    rows: list[dict[str, Any]]


def fingerprint(paths: Paths) -> str:
    """One digest of everything that a deploy keeps of an endpoint: unit, env file, eras, links, pin."""
    lines = []
    places = [paths.unit_file, paths.env_file]
    for folder, below, files in os.walk(paths.store):
        below[:] = [name for name in below if os.path.join(folder, name) != os.path.join(paths.store, "trials")]
        names = [*files, *(name for name in below if os.path.islink(os.path.join(folder, name)))]
        places += [os.path.join(folder, name) for name in names]
    for place in sorted(places):
        if place == EraStore(paths.store).lock_path:
            continue
        data = os.readlink(place).encode() if os.path.islink(place) else read_optional(place)
        lines.append(f"{place} {None if data is None else hashlib.sha256(data).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def incumbents_of(paths: Paths, declared: Declared) -> list[Incumbent]:
    """The endpoint and its rivals, where they run; a FleetError where one is not what was proven of it.

    What is broken before the trial would be taken for the trial's fault after it.
    """
    found = []
    for one in (paths, *(replace(paths, endpoint=name) for name in declared.rivals)):
        state = _systemd.show(one.unit)
        if state.active_state not in _RUNS:
            continue
        era = EraStore(one.store).current()
        if era is not None:
            require(truth_of(era, one)[0], f"{one.endpoint}, which serves before the trial")
        found.append(Incumbent(one, state.main_pid, era))
    return found


def _plan(declared: Declared, paths: Paths, wanted: Sequence[Candidate], *, beyond_fit: bool) -> Plan:
    """What the trial will do; a FleetError where nothing of it can be booted."""
    trial = _new_id(os.path.join(paths.store, "trials"))
    incumbents = incumbents_of(paths, declared)
    leaving = next((one.pid for one in incumbents if one.pid), None)
    drawn = [
        draw_candidate(declared, one, TrialPaths.of(paths, trial, one.number), leaving, beyond_fit=beyond_fit)
        for one in wanted
    ]
    makes_way = [paths.unit, *(replace(paths, endpoint=name).unit for name in declared.rivals)]
    for port in dict.fromkeys(int(one.blueprint.facts["env"]["LISTEN_PORT"]) for one in drawn):
        gate_port(makes_way, port)
    for one in drawn:
        gate_cards(declared.cards, one.blueprint.facts["env"], list_cards() if declared.cards else [], makes_way)
    boots = [one for one in drawn if beyond_fit or one.told is None or one.told["fits"]]
    if not boots and drawn[0].told is not None:
        try:
            require_room(f"{declared.name}, {drawn[0].candidate.label},", drawn[0].told)
        except FleetError as exc:
            remedy = f"{exc.remedy}.\nTo boot it all the same: -e beyond_fit=true"
            raise FleetError(exc.what, expected=exc.expected, found=exc.found, remedy=remedy, **exc.facts) from exc
    rows = [new_row(one, "waiting" if one in boots else "refused") for one in drawn]
    return Plan(trial, incumbents, makes_way, boots, rows)


def _new_id(folder: str) -> str:
    """The time; the second trial of one second has a number."""
    stem = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(folder, f"{name}.json")))


def _new_record(declared: Declared, plan: Plan) -> dict[str, Any]:
    return {
        "id": plan.id,
        "endpoint": declared.name,
        "payload": declared.payload["name"],
        "runtime": declared.runtime,
        "cards": [str(card["name"]) for card in declared.cards],
        "served_before": [one.paths.endpoint for one in plan.incumbents],
        "rows": plan.rows,
        "notes": [f"{path} of the endpoint's unit is not in a trial" for path in declared.drop_ins],
        "back": [],
        "gap_s": None,
        "finished": False,
        "fault": None,
    }


@dataclass
class _Book:
    """The record on disk; it is written after each step, so that a killed trial leaves what it saw."""

    path: str
    record: dict[str, Any]

    def write(self) -> None:
        make_dirs(os.path.dirname(self.path))
        atomic_write(self.path, (json.dumps(self.record, indent=2) + "\n").encode())


def try_out(
    declared: Declared,
    paths: Paths,
    wanted: Sequence[Candidate],
    *,
    beyond_fit: bool = False,
    limit_s: float | None = None,
    dry: bool = False,
    say: Say = lambda _step, _seconds=0: None,
) -> dict[str, Any]:
    """Boot and measure each of ``wanted``; what served before serves again, proven, when this returns or raises.

    ``limit_s`` is when the host ends the trial, whatever this process does. ``dry``: say what would be done, and do
    nothing. The result holds ``trial`` (the record), ``record`` (its path), ``endpoints`` (see ``_endpoint_look.row``).
    A FleetError, which holds the same, where no candidate was measured, and where what served before does not again.
    """
    if dry:
        plan = _plan(declared, paths, wanted, beyond_fit=beyond_fit)
        return {"trial": _new_record(declared, plan), "record": None, "endpoints": _rows(paths, plan)}
    make_dirs(paths.store)
    with contextlib.ExitStack() as held:
        every = [paths, *(replace(paths, endpoint=name) for name in declared.rivals)]
        for one in sorted(every, key=lambda one: one.store):  # in the order that a deploy takes them
            if os.path.isdir(one.store):
                lock = EraStore(one.store).lock_path
                held.enter_context(file_lock(lock, wait_s=5, purpose=f"trial of endpoint {declared.name}"))
        plan = _plan(declared, paths, wanted, beyond_fit=beyond_fit)
        record = _new_record(declared, plan)
        book = _Book(os.path.join(paths.store, "trials", f"{plan.id}.json"), record)
        fault = _carry_out(declared, paths, plan, book, limit_s, say)
    result = {"trial": record, "record": book.path, "endpoints": _rows(paths, plan)}
    if fault is not None:
        fault.facts.update(result, went_back_to=_back_words(record))
        raise fault
    return result


def _rows(paths: Paths, plan: Plan) -> list[dict[str, Any]]:
    """The lines in the tables of what serves, or of the endpoint where nothing does."""
    return [look(one.paths)[0] for one in plan.incumbents] or [look(paths)[0]]


def _carry_out(
    declared: Declared, paths: Paths, plan: Plan, book: _Book, limit_s: float | None, say: Say
) -> FleetError | None:
    """Run the trial and end it; the fault of it, if any. A FleetError where what served before does not serve again."""
    patience_s = declared.deadline_s + declared.timeout_stop_s + 60
    limit = limit_s if limit_s is not None else len(plan.boots) * (2 * patience_s + _PROBES_S)
    before = [fingerprint(one.paths) for one in plan.incumbents]
    record, fault = book.record, None
    book.write()
    stopped = time.monotonic()
    try:
        _walk(declared, paths, plan, book, limit, patience_s, say)
        fault = _verdict(declared, record)
    except (FleetError, OSError) as exc:
        fault = exc if isinstance(exc, FleetError) else FleetError(f"trial of endpoint {declared.name}: {exc}")
        for row in record["rows"]:
            if row["outcome"] == "waiting":
                row["outcome"] = "not run"
    record["fault"] = None if fault is None else fault.message
    try:
        healthy_at = _bring_back(paths, plan, record, patience_s, say)
        if [fingerprint(one.paths) for one in plan.incumbents] != before:
            raise FleetError(
                f"files of {' or '.join(record['served_before'])} changed during the trial",
                expected="unit, env file, eras and links as they were before",
                found="others",
                remedy="See who changed them (playbooks/history.yml, playbooks/status.yml)",
            )
    except (FleetError, OSError) as second:
        first = f"{fault.message} And after it: " if fault is not None else ""
        raise FleetError(
            f"trial of endpoint {declared.name}: {first}{second}",
            remedy="Mend what is named and run site.yml",
            trial=record,
            record=book.path,
            went_back_to=None,
        ) from second
    finally:
        book.write()
    record.update(gap_s=round(healthy_at - stopped, 1) if plan.incumbents else None, finished=True)
    book.write()
    return fault


def _walk(
    declared: Declared, paths: Paths, plan: Plan, book: _Book, limit_s: float, patience_s: float, say: Say
) -> None:
    """Stop what serves and measure each candidate; a row for each, whatever becomes of it."""
    trial = TrialPaths.of(paths, plan.id, 0)
    say("stop what serves")
    command = guard_command(
        trial,
        EraStore(paths.store).lock_path,
        count=len(plan.rows),
        makes_way=plan.makes_way,
        comes_back=[one.paths.unit for one in plan.incumbents],
        limit_s=limit_s,
    )
    run(command, timeout_s=patience_s)
    pids = [one.pid for one in plan.incumbents if one.pid]
    for drawn in plan.boots:
        port = int(drawn.blueprint.facts["env"]["LISTEN_PORT"])
        drain(declared.name, pids, port, declared.cards, deadline_s=patience_s, say=say)
        _require_guard(trial.guard, declared.name, limit_s)
        row = measure(drawn, plan.makes_way, timeout_s=patience_s, say=say)
        plan.rows[drawn.candidate.number - 1] = row
        book.write()
        _require_guard(trial.guard, declared.name, limit_s)
        pids = [pid for pid in (_systemd.show(drawn.paths.unit).main_pid,) if pid]
        _systemd.stop(drawn.paths.unit, timeout_s=patience_s)
    last = plan.boots[-1]
    port = int(last.blueprint.facts["env"]["LISTEN_PORT"])
    drain(declared.name, pids, port, declared.cards, deadline_s=patience_s, say=say)


def _require_guard(guard: str, name: str, limit_s: float) -> None:
    state = _systemd.show(guard)
    if not state.running:
        raise FleetError(
            f"the trial of endpoint {name} was ended from outside",
            expected=f"{guard} running until the trial is over, {limit_s:g} s at most",
            found=state.words,
            remedy=f"Give it more time with -e limit_s=SECONDS, or see who stopped it (journalctl -u {guard})",
        )


def _verdict(declared: Declared, record: Mapping[str, Any]) -> FleetError | None:
    """The fault of a trial in which no candidate is measured whole; that of the first one booted."""
    booted = [row for row in record["rows"] if row["outcome"] != "refused"]
    if any(row["outcome"] == "measured" for row in booted):
        return None
    first = booted[0]
    what = f"trial of endpoint {declared.name}: {first['label']}"
    if "fault" in first:
        told = first["fault"]
        kept = {key: told[key] for key in ("gate", "diagnosis") if key in told}
        return FleetError(
            f"{what}: {told['what']}",
            expected=told.get("expected"),
            found=told.get("found"),
            remedy=told.get("remedy"),
            **kept,
        )
    failed = [probe for probe in first["probes"] if probe["verdict"] == "fail"]
    return FleetError(
        f"{what}: probe{'s' if len(failed) > 1 else ''} {', '.join(probe['probe'] for probe in failed)}",
        expected="what the endpoint declares that it can do",
        found="; ".join(f"{probe['probe']}: {probe['evidence']}" for probe in failed),
        remedy="Take other lines, or see docs/how-to/declare-probes.md for what is declared",
    )


def _bring_back(paths: Paths, plan: Plan, record: dict[str, Any], patience_s: float, say: Say) -> float:
    """Have serve again, and prove, what served before; when it first answered (``time.monotonic``).

    Starting it ends the guard, which conflicts with it, and with the guard its candidate.
    """
    healthy_at = time.monotonic()
    guard = TrialPaths.of(paths, plan.id, 0).guard
    if not plan.incumbents and _systemd.show(guard).load_state != "not-found":
        _systemd.stop(guard, timeout_s=patience_s)
    for one in plan.incumbents:
        say(f"back to {one.paths.endpoint}")
        try:
            _systemd.start(one.paths.unit, timeout_s=2 * patience_s)
        except FleetError as exc:
            raise start_fault(one.paths.unit, exc, "llamacpp") from exc
        told: dict[str, Any] = {"endpoint": one.paths.endpoint, "era": None, "links": 0, "probes": []}
        if one.era is not None:
            proof = prove(one.era, one.paths, say, Gates(), fresh=True, expired=())
            healthy_at = proof.healthy_at
            told.update(era=one.era.id, links=len(proof.links), probes=[each.as_dict() for each in proof.verdicts])
        record["back"].append(told)
    run(["systemctl", "reset-failed", guard], check=False)  # one whose time was over; what is to be said of it was said
    return healthy_at


def _back_words(record: Mapping[str, Any]) -> str:
    """What serves after the trial, in words."""
    if not record["back"]:
        return "nothing, as before the trial"
    return ", ".join(
        f"{one['endpoint']} in era {one['era']}, proven again"
        if one["era"]
        else f"{one['endpoint']}, not proven: no era"
        for one in record["back"]
    )
