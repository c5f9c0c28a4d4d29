# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which endpoints, runtimes and payloads a run is about, with every reference replaced by what it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import CARD
from ansible_collections.dank.llm_fleet.plugins.module_utils._lock import fill

__all__ = ["hosts_of", "resolve"]


def _get(table: Mapping[str, Any], endpoint: Mapping[str, Any], kind: str) -> dict[str, Any]:
    owner, name = endpoint["name"], endpoint.get(kind)
    if not isinstance(name, str) or not isinstance(table.get(name), Mapping):
        known = ", ".join(sorted(table)) or "none declared"
        raise FleetError(
            f"endpoint {owner} names {kind} {name!r}" if name else f"endpoint {owner} names no {kind}",
            expected=f"one of llm_{kind}s: {known}",
            found="no such entry" if name else f"no key {kind}",
            remedy=f"Mend llm_endpoints.{owner}.{kind}, or declare it under llm_{kind}s",
        )
    return {**table[name], "name": name}


def _card(cards: Mapping[str, Any], endpoint: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(cards.get(name), Mapping):
        owner, known = endpoint["name"], ", ".join(sorted(cards)) or "none declared"
        raise FleetError(
            f"endpoint {owner} names card {name!r}",
            expected=f"one of llm_cards: {known}",
            found="no such entry",
            remedy=f"Mend llm_endpoints.{owner}.cards, or declare it under llm_cards",
        )
    card = cards[name]
    for key, value in card.items():
        if key in CARD and not CARD[key].test(value):
            raise FleetError(f"llm_cards.{name}.{key}", expected=CARD[key].expected, found=repr(value))
    free = card.get("addressable_mib") or card.get("total_mib")
    if free is None:
        raise FleetError(f"llm_cards.{name}", expected="total_mib, or addressable_mib", found="neither")
    told = {key: card[key] for key in ("vendor", "arch", "index", "pci", "uuid", "floor_mib") if key in card}
    return {"name": name, **told, "free_mib": free}


def _wants(entry: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The port and the cards that only one endpoint can have."""
    env = {key: str(value) for key, value in (entry.get("env") or {}).items()}
    port = _envspec.address_of(entry["engine"], env)[1] if entry.get("engine") in _envspec.ENGINES else None
    return {("card", str(card)) for card in entry.get("cards") or ()} | ({("port", port)} if port else set())


def _rivals(name: str, endpoints: Mapping[str, Mapping[str, Any]]) -> list[str]:
    mine = _wants(endpoints[name])
    return [
        other
        for other, entry in endpoints.items()
        if other != name and not entry.get("active", True) and mine & _wants(entry)
    ]


def _activated(endpoints: Mapping[str, Mapping[str, Any]], activate: str) -> Mapping[str, Mapping[str, Any]]:
    """The endpoints with ``activate`` active, and those inactive that want what it has."""
    if not activate or activate not in endpoints:
        return endpoints  # another host of the run may have it
    mine = _wants(endpoints[activate])
    return {
        name: {**entry, "active": True, "activate": True}
        if name == activate
        else ({**entry, "active": False} if mine & _wants(entry) else entry)
        for name, entry in endpoints.items()
    }


def resolve(
    endpoints: Mapping[str, Mapping[str, Any]],
    runtimes: Mapping[str, Mapping[str, Any]],
    payloads: Mapping[str, Mapping[str, Any]],
    only: str | None = None,
    cards: Mapping[str, Mapping[str, Any]] | None = None,
    inactive: bool = False,
    activate: str = "",
    locks: Mapping[str, Any] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """``{endpoints, runtimes, payloads}`` of this host's active endpoints, each entry with its own ``name``.

    In ``endpoints`` the payload is the whole entry; the runtime stays a name, with the ``ggml_types`` that it knows
    beside the engine's. Given ``cards`` (``llm_cards``), an endpoint's cards become ``{name, vendor, index, uuid,
    floor_mib, free_mib}``, of which the last is what the driver leaves when nothing runs. ``only`` narrows to one
    endpoint; naming one that is not active is a FleetError, since nothing would be done, unless ``inactive`` are
    wanted too. An endpoint's ``rivals`` are the inactive ones that want its port or one of its cards; ``activate``
    makes one active in place of its rivals, whatever the inventory says. ``locks`` (``llm_payload_locks``) fill sizes,
    digests and commits of the payloads' files, and what contradicts them is a FleetError.
    """
    for name, entry in endpoints.items():
        if not isinstance(entry, Mapping):
            raise FleetError(f"llm_endpoints.{name}", expected="a dictionary", found=repr(entry))
    endpoints = _activated(endpoints, activate)
    if only and only in endpoints and not (inactive or endpoints[only].get("active", True)):
        raise FleetError(
            f"endpoint {only!r} is not active on this host",
            expected="active: true",
            found="active: false",
            remedy=f"Set llm_endpoints.{only}.active: true (and its rival's on the same port to false)",
        )
    chosen = [
        {**entry, "name": name}
        for name, entry in endpoints.items()
        if (inactive or entry.get("active", True)) and only in (None, "", name)
    ]
    used_runtimes: dict[str, dict[str, Any]] = {}
    used_payloads: dict[str, dict[str, Any]] = {}
    for endpoint in chosen:
        runtime = _get(runtimes, endpoint, "runtime")
        payload = _get(payloads, endpoint, "payload")
        if locks and "files" in payload:
            payload["files"] = [fill(payload["name"], file, locks) for file in payload["files"]]
        used_runtimes[runtime["name"]] = runtime
        used_payloads[payload["name"]] = payload
        endpoint["payload"] = payload
        rivals = _rivals(endpoint["name"], endpoints)
        if rivals:
            endpoint["rivals"] = rivals
        if "ggml_types" in runtime:
            endpoint["ggml_types"] = runtime["ggml_types"]
        if cards is not None:
            endpoint["cards"] = [_card(cards, endpoint, name) for name in endpoint.get("cards") or ()]
    return {
        "endpoints": chosen,
        "runtimes": list(used_runtimes.values()),
        "payloads": list(used_payloads.values()),
    }


def hosts_of(endpoint: str, endpoints_by_host: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The hosts that declare ``endpoint``; a FleetError that lists what is declared where none does."""
    hosts = [host for host, endpoints in endpoints_by_host.items() if endpoint in endpoints]
    if not hosts:
        known = sorted({name for endpoints in endpoints_by_host.values() for name in endpoints})
        raise FleetError(
            f"no host of this run declares endpoint {endpoint!r}",
            expected=f"one of: {', '.join(known) or 'none declared'}",
            found=endpoint or "an empty name",
            remedy="Name it with -e endpoint=NAME, and check -i and -l",
        )
    return hosts
