# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines, one row each: how an era of theirs is drawn, judged before it is started, and looked at while it runs.

Whoever deploys calls the functions at the end, which find the row; nothing else asks which engine it has before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _blueprint,
    _envspec,
    _gate_fit,
    _gate_ledger,
    _r9v_blueprint,
    _r9v_gates,
    _r9v_truth,
    _systemd,
    _truth,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import Foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link, Observed

__all__ = ["Engine", "chain", "draw", "gate_fit", "gate_ledger", "gate_ready", "outer_pids", "redraw", "serving_pids"]

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Engine:
    """One engine's ways.

    ``chain`` are the links of an era from what was seen; ``ready`` are gates that hold for any start, also of an era
    that served before; ``foretell`` is the memory of a new era; ``weigh`` what a start took; ``pids`` are processes
    that serve an era outside its unit.
    """

    draw: Callable[[Declared, Paths, str | None], Blueprint]
    redraw: Callable[[Era, str], Blueprint]
    chain: Callable[[Era, Paths, Observed, Api], list[Link]]
    ready: Callable[[Facts, Gates, bool], None]
    foretell: Callable[[Declared, str | None, int | None, Gates, Facts | None], Foretold | None]
    weigh: Callable[[str, str, Mapping[str, str], Sequence[Mapping[str, Any]], Ledger | None], dict[str, Any]]
    pids: Callable[[Facts], frozenset[int]]


def _llamacpp_chain(era: Era, paths: Paths, seen: Observed, _api: Api) -> list[Link]:
    return _truth.chain(era, paths.unit, paths.unit_file, seen, era.blueprint.facts["drop_ins"])


def _r9v_chain(era: Era, paths: Paths, seen: Observed, api: Api) -> list[Link]:
    facts = era.blueprint.facts
    within = _r9v_truth.look_inside(facts, api, seen.health)
    return _r9v_truth.chain(era, paths.unit, paths.unit_file, seen, within, facts["drop_ins"])


def _r9v_foretell(
    _declared: Declared, _rung: str | None, _leaving: int | None, gates: Gates, facts: Facts | None = None
) -> None:
    """The state's shape was qualified on these cards: nothing is counted anew. Whether they are free is asked later."""
    if facts is not None:
        _r9v_gates.gate_setup(facts, gates, idle=False)


_ENGINES: Mapping[str, Engine] = {
    "llamacpp": Engine(
        draw=_blueprint.draw,
        redraw=_blueprint.redraw,
        chain=_llamacpp_chain,
        ready=lambda _facts, _gates, _idle: None,
        foretell=_gate_fit.gate_fit,
        weigh=_gate_ledger.gate_ledger,
        pids=lambda _facts: frozenset(),
    ),
    "r9v": Engine(
        draw=_r9v_blueprint.draw,
        redraw=_r9v_blueprint.redraw,
        chain=_r9v_chain,
        ready=lambda facts, gates, idle: _r9v_gates.gate_setup(facts, gates, idle=idle),
        foretell=_r9v_foretell,
        weigh=lambda unit, _invocation, _env, cards, _predicted: _r9v_gates.headroom(unit, cards),
        pids=lambda facts: _r9v_truth.inside(facts["env"], facts["user"]),
    ),
}


def _of(facts: Facts) -> Engine:
    return _ENGINES[facts.get("engine", "llamacpp")]


def draw(declared: Declared, paths: Paths, rung: str | None) -> Blueprint:
    """The blueprint of the era that ``declared`` (with ``rung``) asks for."""
    return _ENGINES[declared.engine].draw(declared, paths, rung)


def redraw(era: Era, stamp_dir: str) -> Blueprint:
    """The blueprint of an era that was proven before, as it was."""
    return _of(era.blueprint.facts).redraw(era, stamp_dir)


def chain(era: Era, paths: Paths, seen: Observed, api: Api) -> list[Link]:
    """The era's chain of truth; what the unit cannot tell is looked at now."""
    return _of(era.blueprint.facts).chain(era, paths, seen, api)


def gate_ready(facts: Facts, gates: Gates, *, idle: bool) -> None:
    """The gates of any start before anything is stopped; ``idle``: nothing of ours runs on the cards."""
    _of(facts).ready(facts, gates, idle)


def gate_fit(
    declared: Declared, rung: str | None, leaving: int | None, gates: Gates, facts: Facts | None = None
) -> Foretold | None:
    """The memory of a new era, or None where the engine's own qualification stands for it."""
    return _ENGINES[declared.engine].foretell(declared, rung, leaving, gates, facts)


def gate_ledger(
    unit: str,
    invocation_id: str,
    env: Mapping[str, str],
    cards: Sequence[Mapping[str, Any]],
    predicted: Ledger | None,
) -> dict[str, Any]:
    """What a start took (see ``_gate_ledger``)."""
    return _ENGINES[_envspec.engine_of(env)].weigh(unit, invocation_id, env, cards, predicted)


def outer_pids(era: Era) -> frozenset[int]:
    """The processes outside its unit that serve ``era`` now."""
    return _of(era.blueprint.facts).pids(era.blueprint.facts)


def serving_pids(endpoints: list[Paths]) -> frozenset[int]:
    """The processes outside their units that serve the current eras of ``endpoints``."""
    found: frozenset[int] = frozenset()
    for paths in endpoints:
        era = EraStore(paths.store).current()
        if era is not None and _systemd.show(paths.unit).main_pid:
            found |= outer_pids(era)
    return found
