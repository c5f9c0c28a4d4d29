# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One candidate of a trial: what it is foretold to take, and what it took and could do once it was booted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, draw
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_compare import totals
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import (
    Say,
    api_of,
    await_health,
    hold,
    put_launcher,
    start_fault,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import device_names
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import gate_fit
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_ledger import boot_ledger, read_boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import declare, probes_of, run, select
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run as run_command
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import Candidate
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths, candidate_command
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link, chain, observe, require
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth_files import payload_paths

__all__ = ["Drawn", "draw_candidate", "measure", "new_row"]

# Links that are about the endpoint's own unit file.
_OF_THE_FILE = ("unit file", "fragment path", "enabled")
_FORECASTS = ("fit", "second opinion")


@dataclass(frozen=True)
class Drawn:
    """A candidate ready to boot; ``told`` is its forecast as ``_fit.answer`` has it (None: nobody can tell), ``ledger``
    the same by formulas alone."""

    candidate: Candidate
    paths: TrialPaths
    blueprint: Blueprint
    told: dict[str, Any] | None
    ledger: Ledger | None
    note: str = ""


def draw_candidate(
    declared: Declared, candidate: Candidate, trial: TrialPaths, leaving: int | None, *, beyond_fit: bool
) -> Drawn:
    """The boot that ``candidate`` asks for and its forecast; nothing is touched.

    A FleetError as of a deploy (see ``_blueprint.draw``, ``_gate_fit``), but for a boot that does not fit, which is
    told. With ``beyond_fit`` a forecast that cannot be made is no error either.
    """
    rung = f"trial {candidate.number}"
    asked = replace(declared, rungs={rung: candidate.lines})
    blueprint = draw(asked, trial, rung)
    try:
        foretold = gate_fit(asked, rung, leaving, Gates(), blueprint.facts, required=False)
    except FleetError as exc:
        if not beyond_fit or exc.facts.get("gate") not in _FORECASTS:
            raise
        return Drawn(candidate, trial, blueprint, None, None, exc.message)
    return Drawn(candidate, trial, blueprint, foretold.told, foretold.ledger)


def _forecast(told: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a record keeps of a forecast: by place (a card, or "host") MiB taken and left free."""
    if told is None:
        return None
    places = [*told["cards"], told["host"]]
    return {
        "fits": told["fits"],
        "total_mib": {place["name"]: place["total_mib"] for place in places},
        "free_after_mib": {place["name"]: place["free_after_mib"] for place in places},
    }


def new_row(drawn: Drawn, outcome: str) -> dict[str, Any]:
    """A candidate's row in the record before it is booted: ``outcome`` is refused, or waiting."""
    return {
        "number": drawn.candidate.number,
        "label": drawn.candidate.label,
        "lines": dict(drawn.candidate.lines),
        "shape": drawn.blueprint.facts["shape"],
        "argv": drawn.blueprint.facts["argv"],
        "forecast": _forecast(drawn.told),
        "outcome": outcome,
        "notes": [drawn.note] if drawn.note else [],
    }


def measure(drawn: Drawn, makes_way: Sequence[str], *, timeout_s: float, say: Say) -> dict[str, Any]:
    """Boot the candidate and return its row: :func:`new_row`, and what was seen.

    ``outcome`` is measured, probes failed, or failed with the ``fault``; besides, as far as it came, ``boot_s``
    (seconds to the first healthy answer), ``probes``, ``free_mib`` by card, ``below_floor`` (cards), ``resident_mib``,
    ``buffers_mib`` by place, ``measured`` and ``differences`` (see ``_gate_ledger.boot_ledger``). The candidate is
    left running.
    """
    row = new_row(drawn, "failed")
    try:
        _measure(drawn, makes_way, row, timeout_s=timeout_s, say=say)
    except FleetError as exc:
        row["fault"] = exc.as_result()
        return row
    failed = [probe for probe in row["probes"] if probe["verdict"] == "fail"]
    row["outcome"] = "probes failed" if failed else "measured"
    return row


def _measure(drawn: Drawn, makes_way: Sequence[str], row: dict[str, Any], *, timeout_s: float, say: Say) -> None:
    paths, facts = drawn.paths, drawn.blueprint.facts
    tell = f"{drawn.candidate.label}: "
    put_launcher(drawn.blueprint, paths)
    atomic_write(paths.env_file, drawn.blueprint.env_text.encode(), mode=0o644, sync=False)
    say(tell + "start")
    begun = time.monotonic()
    command = candidate_command(
        paths, drawn.blueprint.unit_text, paths.launcher(drawn.blueprint.launcher_text), makes_way
    )
    try:
        run_command(command, timeout_s=timeout_s)
    except FleetError as exc:
        raise start_fault(paths.unit, exc, facts["engine"]) from exc
    # A key that systemd hands over is there once the unit runs.
    api = api_of(facts["env"])
    state = await_health(
        paths.unit, api, facts["deadline_s"], lambda step, seconds=0: say(tell + step, seconds), engine=facts["engine"]
    )
    row["boot_s"] = round(time.monotonic() - begun, 1)
    require(_links(drawn, api), f"{paths.endpoint}, {drawn.candidate.label}")
    declared = declare(facts)
    verdicts = run(api, declared, select(probes_of(declared), None), say=lambda step: say(tell + step))
    row["probes"] = [verdict.as_dict() for verdict in verdicts]
    say(tell + "ledger")
    _ledger(drawn, state, row)
    # What was asked and looked at must have been this very start, and not what came back in its place.
    hold(paths.unit, state, 0.0, lambda *_told: None, engine=facts["engine"])


def _links(drawn: Drawn, api: Api) -> list[Link]:
    """The chain of truth of what runs, without the links of a unit file: an engine may make less of what is asked,
    as of a context beyond the one that its model was trained on."""
    paths, facts = drawn.paths, drawn.blueprint.facts
    seen = observe(paths.unit, paths.unit_file, paths.env_file, api, payload_paths(facts))
    era = Era("trial", "", drawn.blueprint, {"state": "trial"})
    remedy = "Take lines that the engine carries out"
    links = chain(era, paths.unit, paths.unit_file, seen)
    return [replace(link, remedy=remedy) for link in links if link.name not in _OF_THE_FILE]


def _ledger(drawn: Drawn, state: _systemd.UnitState, row: dict[str, Any]) -> None:
    """What the start took, after its probes: what is allocated at the first request counts too."""
    env, cards = drawn.blueprint.facts["env"], drawn.blueprint.facts["cards"]
    known = identified(cards)
    states = read_cards(known)
    boot = read_boot(drawn.paths.unit, state.invocation_id)
    told = boot_ledger(boot, env, cards, states, drawn.ledger)
    if told["note"]:
        row["notes"].append(told["note"])
    row.update({key: told[key] for key in ("free_mib", "measured", "differences")})
    row["buffers_mib"] = totals(boot, {name: str(card["name"]) for name, card in device_names(env, cards).items()})
    row["resident_mib"] = round(_proc.resident_bytes(state.main_pid) / 2**20, 1)
    row["below_floor"] = [
        str(card["name"]) for card in known if states[card["name"]].free_mib < float(card["floor_mib"])
    ]
