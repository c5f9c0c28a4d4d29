# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An endpoint as it is now: its era, its truth, its line in the tables; nothing is touched."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import api_of, look_at
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_memory import memory
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_plan import pin_words
from ansible_collections.dank.llm_fleet.plugins.module_utils._engines import chain, outer_pids
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import model_file
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._rest import damage_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import (
    Link,
    first_broken,
    require,
)

__all__ = ["damage_links", "hold_link", "look", "require_era", "require_truth", "row", "settling_s", "truth_of"]


def _memory(era: Era | None, unit: str, state: _systemd.UnitState) -> dict[str, Any]:
    if not state.running:
        return dict.fromkeys(("memory_mib", "cards_mib", "memory_fault"))
    if era is None:
        return memory({}, unit, {state.main_pid})
    return memory(era.blueprint.facts, unit, {state.main_pid, *outer_pids(era)})


def row(
    era: Era | None,
    unit: str,
    state: _systemd.UnitState,
    *,
    health: str,
    pin: Mapping[str, Any] | None,
    links: list[Link],
    probes: list[dict[str, Any]],
) -> dict[str, Any]:
    """An endpoint's line in the tables: ages in seconds, memory in MiB (see ``_endpoint_memory``)."""
    facts: Mapping[str, Any] = era.blueprint.facts if era is not None else {}
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - state.active_since_us / 1e6 if state.running else None
    broken = first_broken(links)
    return {
        "name": unit.removesuffix(".service"),
        "unit": state.words,
        "age_s": None if age is None else round(age, 1),
        "restarts": state.n_restarts,
        "pid": state.main_pid,
        "payload": facts.get("payload", {}).get("name"),
        "model_file": model_file(facts) if facts else None,
        "runtime": facts.get("runtime", {}).get("name"),
        "shape": facts.get("shape", {}),
        "port": _envspec.port_of(facts["env"]) if facts else None,
        "alias": (_envspec.alias_of(facts["env"]) or None) if facts else None,
        **_memory(era, unit, state),
        "health": health,
        "era": era.id if era is not None else None,
        "pinned": None if pin is None else pin_words(pin),
        "truth": None
        if not links
        else ("ok" if broken is None else f"{broken.name}: expected {broken.expected}, found {broken.found}"),
        "probes": probes,
    }


def truth_of(era: Era, paths: Paths) -> tuple[list[Link], str]:
    """The era's chain of truth, and what ``/health`` says."""
    facts = era.blueprint.facts
    api = api_of(facts["env"], key_needed=False)
    seen = look_at(era, paths, api)
    return chain(era, paths, seen, api), seen.health


def require_era(paths: Paths) -> Era:
    """The endpoint's current era; a FleetError where nothing was deployed yet."""
    era = EraStore(paths.store).current()
    if era is None:
        raise FleetError(
            f"endpoint {paths.endpoint} was never deployed on this host",
            expected=f"a current era in {paths.store}",
            found="none",
            remedy="Run site.yml for this host",
        )
    return era


def damage_links(era: Era, damaged: str) -> list[Link]:
    """A broken link for each payload file of the era that the check at rest has marked in the folder ``damaged``."""
    files = era.blueprint.facts["payload"]["files"]
    return [
        Link(
            f"payload {os.path.basename(file['path'])} is damaged",
            damage.expected,
            damage.found,
            "Run site.yml: it fetches the file anew; move one that cannot be read aside first",
        )
        for file in files
        if (damage := damage_of(damaged, file["path"])) is not None
    ]


def settling_s(unit_text: str) -> float:
    """How long a start must have lasted to be no turn of a loop: longer than systemd waits between two."""
    match = re.search(r"^RestartSec=([0-9.]+)$", unit_text, re.MULTILINE)
    return float(match[1]) + 1 if match else 1.0


def hold_link(unit: str, before: _systemd.UnitState, settle_s: float) -> Link:
    """The start that was looked at (``before``) goes on until it is ``settle_s`` seconds old; one that is older by now
    needs no wait. A server that dies and comes back is whole whenever one looks once."""
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - before.active_since_us / 1e6
    if age < settle_s:
        time.sleep(settle_s - age)
    after = _systemd.show(unit)
    told = [
        {
            "state": state.words,
            "pid": state.main_pid,
            "invocation": state.invocation_id,
            "restarts": state.n_restarts,
        }
        for state in (before, after)
    ]
    return Link("the start goes on", told[0], told[1], f"It does not stay up: see journalctl -u {unit}")


def look(paths: Paths, settle_s: float | None = 0.0) -> tuple[dict[str, Any], list[Link]]:
    """The endpoint's row and its chain of truth as they are now; nothing is changed and nothing raised for a fault.

    A damaged payload file comes first: whatever else is broken may be its consequence. Where nothing is broken the
    start is looked at again when it is ``settle_s`` seconds old; None for a second more than its RestartSec, 0 for one
    look.
    """
    store = EraStore(paths.store)
    era = store.current()
    state = _systemd.show(paths.unit)
    links, health = truth_of(era, paths) if era is not None else ([], "never deployed")
    if era is not None:
        links = [*damage_links(era, paths.damaged), *links]
        wanted = settling_s(era.blueprint.unit_text) if settle_s is None else settle_s
        if wanted and first_broken(links) is None:
            links.append(hold_link(paths.unit, state, wanted))
            state = _systemd.show(paths.unit)
    return row(era, paths.unit, state, health=health, pin=store.pin(), links=links, probes=[]), links


def require_truth(name: str, told: dict[str, Any], links: list[Link]) -> None:
    """Raise where nothing was ever deployed, or the first broken link; the endpoint's row travels with it."""
    if not links:
        require_era(Paths(name))
    require(links, name, endpoint=told)
