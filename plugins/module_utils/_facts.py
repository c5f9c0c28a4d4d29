# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host knows of its cards and endpoints, for Prometheus: read once, written in one step.

Module facts_export installs this file on hosts, with those that it imports, for llm-fleet-facts.service.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import expired
from ansible_collections.dank.llm_fleet.plugins.module_utils._envspec import alias_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_json
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from ansible_collections.dank.llm_fleet.plugins.module_utils._series import Sample, text
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import UnitState
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import (
    Link,
    Observed,
    chain,
    environment_link,
    first_broken,
    observe,
    stray_link,
    unit_links,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth_files import payload_paths

__all__ = [
    "card_samples",
    "endpoint_samples",
    "endpoints_of",
    "gate_samples",
    "main",
    "metrics_status",
    "proof_samples",
]

_METRICS = "/var/lib/llm-fleet/metrics/facts.prom"


def _at(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def card_samples(cards: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """Total and free memory of the cards (``llm_cards`` with their names) by their drivers, and their floors."""
    states = read_cards(identified(cards))
    floors = {str(card["name"]): card["floor_mib"] for card in cards if card.get("floor_mib") is not None}
    samples = []
    for name, state in states.items():
        label = {"card": name}
        samples += [
            Sample("llm_fleet_card_total_bytes", state.total_mib * MIB, label),
            Sample("llm_fleet_card_free_bytes", state.free_mib * MIB, label),
        ]
    return samples + [
        Sample("llm_fleet_card_floor_bytes", floors[name] * MIB, {"card": name}) for name in states if name in floors
    ]


def endpoints_of(state: str) -> list[str]:
    """The endpoints that the folder ``state`` has records of, by name: a current era, or a deploy that failed."""
    names = os.listdir(state) if os.path.isdir(state) else []
    records = ("current", "last-run.json")
    return sorted(name for name in names if any(os.path.lexists(os.path.join(state, name, one)) for one in records))


def metrics_status(api: Api, props: Mapping[str, Any]) -> int:
    """The status of ``/metrics``, 0 where nobody answers.

    llama-server averages some of its gauges between two scrapes, and a look from here would be one. So it is asked
    only where ``/props`` does not say that ``/metrics`` is on.
    """
    return 200 if props.get("endpoint_metrics") is True else api.get("/metrics").status


def _started(state: UnitState, now: float) -> float:
    """Seconds since 1970, whole: two clocks are read, and the start of one process is one number."""
    if not state.running:
        return 0.0
    return round(now - time.clock_gettime(time.CLOCK_MONOTONIC) + state.active_since_us / 1e6)


def proof_samples(era: Era, label: dict[str, str]) -> list[Sample]:
    """What the era was proven to do, by what it declares."""
    facts, certificate = era.blueprint.facts, era.meta.get("certificate")
    declared = declare(facts)
    names = [*sorted(declared.capabilities), *(f"custom:{probe['name']}" for probe in declared.custom)]
    lost = expired(certificate, era.blueprint.digest, facts, names)
    samples = [Sample("llm_fleet_certificate_expired_probes", len(lost), label)]
    if certificate:
        samples.append(Sample("llm_fleet_certificate_timestamp_seconds", _at(certificate["at"]), label))
    if declared.slots is not None:
        samples.append(Sample("llm_fleet_endpoint_slots", declared.slots, label))
    if "drafting" in declared.capabilities:
        samples.append(Sample("llm_fleet_endpoint_acceptance_floor", declared.floors["drafting"], label))
    return samples


def gate_samples(last_run: Mapping[str, Any] | None, label: dict[str, str]) -> list[Sample]:
    """How the last deploy ended, from ``last-run.json``; nothing where there was none."""
    if last_run is None:
        return []
    red = [row["gate"] for row in last_run["gates"] if not row["ok"]]
    return [
        Sample("llm_fleet_last_run_timestamp_seconds", _at(last_run["at"]), label),
        # One series of each endpoint, green or red, so that one query finds it.
        Sample("llm_fleet_last_run_red", len(red[:1]), {**label, "gate": red[0] if red else ""}),
    ]


def endpoint_samples(paths: Paths, now: float) -> list[Sample]:
    """Everything of one endpoint; a damaged record is a FleetError."""
    label = {"endpoint": paths.endpoint}
    store = EraStore(paths.store)
    era = store.current()
    gates = gate_samples(store.last_run(), label)
    return gates if era is None else [*_era_samples(era, paths, now), *gates]


def _links(era: Era, paths: Paths, seen: Observed) -> list[Link]:
    """The chain of truth; of R9V the unit's part of it. The container is its user's podman's, whom this program may not
    become: playbook verify follows the chain into it."""
    drop_ins = era.blueprint.facts["drop_ins"]
    if era.blueprint.facts["engine"] == "r9v":
        unit = unit_links(era, paths.unit, paths.unit_file, seen, drop_ins)
        return [*unit, environment_link(era, seen), stray_link(era, seen)]
    return chain(era, paths.unit, paths.unit_file, seen, drop_ins)


def _era_samples(era: Era, paths: Paths, now: float) -> list[Sample]:
    facts, label = era.blueprint.facts, {"endpoint": paths.endpoint}
    api = api_of(facts["env"])
    seen = observe(paths.unit, paths.unit_file, paths.env_file, api, payload_paths(facts))
    broken = first_broken(_links(era, paths, seen))
    told = {
        "era": era.id,
        "alias": alias_of(facts["env"]),
        "payload": facts["payload"]["name"],
        "runtime": facts["runtime"]["name"],
        "rung": facts.get("rung") or "",
    }
    return [
        Sample("llm_fleet_era_info", 1, {**label, **told}),
        Sample("llm_fleet_endpoint_start_time_seconds", _started(seen.unit, now), label),
        Sample("llm_fleet_unit_restarts_total", seen.unit.n_restarts, label),
        Sample("llm_fleet_endpoint_true", int(broken is None), label),
        Sample("llm_fleet_endpoint_metrics_status", metrics_status(api, seen.props), label),
        *proof_samples(era, label),
    ]


def _read(paths: Paths, cards: Sequence[Mapping[str, Any]], now: float) -> tuple[list[Sample], list[str]]:
    """All samples, and a line for each part that could not be read: the others are told all the same."""
    samples, faults = [], []
    parts: dict[str, Any] = {"cards": lambda: card_samples(cards)}
    for name in endpoints_of(paths.state):
        parts[f"endpoint {name}"] = lambda name=name: endpoint_samples(replace(paths, endpoint=name), now)
    for what, part in parts.items():
        try:
            samples += part()
        except (FleetError, OSError) as exc:  # the latter of an era that was pruned meanwhile
            faults.append(exc.message if isinstance(exc, FleetError) else f"{what}: {exc}")
    samples += [
        Sample("llm_fleet_facts_timestamp_seconds", round(now), {}),
        Sample("llm_fleet_facts_errors", len(faults), {}),
    ]
    return samples, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Write the metrics file; the exit status is 1 where a part could not be read."""
    defaults = Paths("")
    parser = argparse.ArgumentParser(description="Write what this host knows of its cards and endpoints for Prometheus")
    parser.add_argument("--cards", required=True, help="a JSON file: a list of {name, vendor, pci, uuid, floor_mib}")
    parser.add_argument("--metrics", default=_METRICS)
    parser.add_argument("--state", default=defaults.state)
    given = parser.parse_args(argv)
    samples, faults = _read(replace(defaults, state=given.state), read_json(given.cards) or [], time.time())
    make_dirs(os.path.dirname(given.metrics))
    atomic_write(given.metrics, text(samples).encode(), sync=False)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0
