# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is looked at before a retirement, and what must hold after it: no unit, no process, no container is left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Container, Manager, Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._manifest import Item, Manifest
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import SUFFIXES, DryRun
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import Places, unit_of_drop_in

__all__ = ["Ahead", "gates", "observed", "prove_gone", "prove_restored", "stop"]

_SETTLE_S = 10.0  # conmon and podman tidy up after systemd calls the unit stopped


@dataclass(frozen=True)
class Ahead:
    """What was seen before: units by name, containers, and what podman's generator makes."""

    seen: dict[str, Seen]
    containers: tuple[Container, ...]
    generated: DryRun | None
    notes: tuple[str, ...] = ()


def _quadlet_file(item: Item) -> str:
    """The quadlet itself among the item's entries; the others are its drop-ins and its service's."""
    return next(one.path for one in item.entries if os.path.splitext(one.path)[1] in SUFFIXES)


def _service(item: Item, generated: DryRun | None) -> str | None:
    """The item's service; where podman's generator makes one of the quadlet, its word counts."""
    if item.kind == "quadlet" and generated is not None:
        path = _quadlet_file(item)
        return next((name for name, source in generated.services.items() if source == path), item.service)
    return item.service


def _folders(there: Places) -> tuple[str, ...]:
    return (*there.quadlets, *there.quadlets_of_others)


def gates(items: Sequence[Item], host: Manager, there: Places) -> Ahead:
    """Look at the units; refuse what would take others along, or leave a unit of that name behind."""
    quadlets = [item for item in items if item.kind == "quadlet"]
    generated = host.dry_run() if quadlets or any(item.service for item in items) else None
    services = {name for item in items if (name := _service(item, generated))}
    seen = {name: host.show(name) for name in sorted(services)}
    for name in sorted(services):
        _gate_hangers(name, seen[name], services, host)
    paths = {entry.path for item in items for entry in item.entries}
    for item in quadlets:
        _gate_shadow(str(_service(item, generated)), seen[str(_service(item, generated))], paths, _quadlet_file(item))
    notes = []
    if generated is not None:
        notes = [
            f"podman makes no unit of {_quadlet_file(item)}: {complaint}"
            for item in quadlets
            if _quadlet_file(item) not in generated.services.values()
            and (complaint := generated.of(_quadlet_file(item)))
        ]
        _gate_generator(generated, host.dry_run(_folders(there), {*paths, *there.not_quadlets}), services)
    return Ahead(seen, tuple(host.containers()) if services else (), generated, tuple(notes))


def _gate_hangers(name: str, seen: Seen, services: set[str], host: Manager) -> None:
    active = [other for other in seen.hangers if other not in services and not host.show(other).stopped]
    if active:
        raise FleetError(
            f"other units hang on {name}",
            expected="none that runs and is not retired with it",
            found=", ".join(active),
            remedy="They would stop with it, or start it again: retire them too, or stop them first",
        )


def _gate_shadow(name: str, seen: Seen, paths: set[str], quadlet: str) -> None:
    """A unit file of the generated service's name wins over the quadlet, and would stay."""
    if seen.fragment and "/systemd/generator" not in seen.fragment and seen.fragment not in paths:
        raise FleetError(
            f"{name} does not come from {quadlet}",
            expected="a generated unit",
            found=seen.fragment,
            remedy=f"That file has the name too and wins: name {name} under units as well",
        )


def _gate_generator(now: DryRun, then: DryRun | None, services: set[str]) -> None:
    """Hold what podman would make afterwards against what it makes now."""
    if then is None:
        return
    lost = sorted(set(now.services) - set(then.services) - services)
    if lost:
        raise FleetError(
            f"podman would not make {', '.join(lost)} any more",
            expected="every other quadlet to stay whole",
            found="; ".join(line for line in then.complaints if line not in now.complaints) or "no word why",
            remedy="Retire those too, or change them so that they do without",
        )
    again = sorted(services & set(then.services))
    if again:
        raise FleetError(
            f"{again[0]} would come back",
            expected="no quadlet left that makes a unit of that name",
            found=then.services[again[0]],
            remedy="Name that file under quadlets as well",
        )


def observed(item: Item, host: Manager, ahead: Ahead) -> Item:
    """The item with its service and the state before; what an earlier run saw before it began is kept."""
    service = _service(item, ahead.generated)
    if item.before or service is None:
        return item
    seen = ahead.seen[service]
    pids = set(host.pids(service))
    own = [one for one in ahead.containers if one.unit == service or (one.pid and one.pid in pids)]
    before = {
        "load": seen.load,
        "active": seen.active,
        "sub": seen.sub,
        "up": seen.active in ("active", "activating", "reloading"),
        "unit_file": seen.unit_file,
        "fragment": seen.fragment,
        "drop_ins": list(seen.drop_ins),
        "generated": ahead.generated is not None and service in ahead.generated.services,
        "lingers": host.lingers,
        "containers": [{"id": one.id, "name": one.name, "state": one.state} for one in own],
    }
    return replace(item, service=service, before=before)


def stop(service: str, host: Manager, timeout_s: float) -> str | None:
    """Stop the unit; None when it has, else what still runs after ``timeout_s`` seconds, in words."""
    seen = host.show(service)
    if not seen.stopped:
        host.begin_stop(service)
    started = time.monotonic()
    while not (seen := host.show(service)).stopped:
        if time.monotonic() - started > timeout_s:
            return f"{seen.active} ({seen.sub}); {host.words_of(host.pids(service)) or 'no process'}"
        time.sleep(0.1)
    return None


def prove_gone(manifest: Manifest, host: Manager, there: Places) -> list[str]:
    """Nothing of the retired units is left: not loaded, no process, no running container; returns warnings.

    A container that is stopped holds neither port nor memory; it is named in a warning and left alone.
    """
    services = sorted({item.service for item in manifest.items if item.service})
    for service in services:
        host.forget_failure(service)
    started = time.monotonic()
    while left := _left(services, manifest, host):
        if time.monotonic() - started > _SETTLE_S:
            raise FleetError(
                f"something of what was retired into {manifest.folder} is left",
                expected="no unit, no process, no running container",
                found="; ".join(left),
                remedy="Stop it by its id, and run again; or restore with state: restored",
                folder=manifest.folder,
            )
        time.sleep(0.2)
    warnings = [
        f"container {one.name} ({one.id[:12]}, {one.state}) of {one.unit} is still there, stopped; it was left alone"
        for one in (host.containers() if services else [])
        if one.unit in services
    ]
    for item in manifest.items:
        unit = unit_of_drop_in(item.name) if item.kind == "drop_in" else None
        if unit and unit not in services:
            warnings += _prove_drop_in(item, unit, host)
    return warnings


def _left(services: Sequence[str], manifest: Manifest, host: Manager) -> list[str]:
    known = {one["id"] for item in manifest.items for one in item.before.get("containers", ())}
    left = []
    for service in services:
        seen = host.show(service)
        if seen.load != "not-found" or not seen.stopped:
            left.append(f"{service} is {seen.load}, {seen.active} ({seen.fragment or 'no file'})")
        pids = host.pids(service)
        if pids:
            left.append(f"{service}: {host.words_of(pids)}")
    if services:
        left += [
            f"container {one.name} ({one.id[:12]}) is {one.state}"
            for one in host.containers()
            if one.running and (one.unit in services or one.id in known)
        ]
    return left


def _prove_drop_in(item: Item, unit: str, host: Manager) -> list[str]:
    """The unit that the drop-in changed does not read it any more; it runs as it was started, which is a warning."""
    if not unit.endswith((".service", ".socket", ".timer", ".path")):
        return []  # a quadlet's: its service is generated anew
    seen = host.show(unit)
    paths = {entry.path for entry in item.entries}
    if paths & set(seen.drop_ins):
        raise FleetError(f"{unit} still reads {item.name}", expected="no such drop-in", found=", ".join(seen.drop_ins))
    if seen.stopped:
        return []
    return [f"{unit} runs as it was started, with the drop-in {item.name}, until it is restarted"]


def prove_restored(manifest: Manifest, host: Manager, there: Places, timeout_s: float) -> None:
    """Every unit is loaded and enabled as before, and those that ran run again; else a FleetError that says which."""
    generated = host.dry_run() if any(item.kind == "quadlet" for item in manifest.items) else None
    items = [item for item in manifest.items if item.service and item.before]
    for item in items:
        service, before = str(item.service), item.before
        if before["generated"] and generated is not None and service not in generated.services:
            raise FleetError(
                f"podman makes no {service} of the restored {item.name}",
                expected="the unit that was there before",
                found=generated.of(_quadlet_file(item)) or "no word why",
                remedy="Mend the file, and run again",
            )
        seen = host.show(service)
        was = (before["load"], before["unit_file"])
        if before["load"] != "not-found" and (seen.load, seen.unit_file) != was:
            raise FleetError(
                f"{service} is not as it was",
                expected=f"{was[0]}, {was[1] or 'not enabled'}",
                found=f"{seen.load}, {seen.unit_file or 'not enabled'}",
            )
    for item in items:
        if item.before["up"]:
            host.start(str(item.service), timeout_s)
    for item in items:
        seen = host.show(str(item.service))
        if item.before["up"] and seen.stopped:
            raise FleetError(
                f"{item.service} does not run again",
                expected=f"{item.before['active']} ({item.before['sub']})",
                found=f"{seen.active} ({seen.sub})",
                remedy=f"Its files are back. See journalctl -u {item.service}, mend what it says, and run again",
            )
