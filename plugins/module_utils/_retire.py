# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Retire what an endpoint replaces, and put it back: stop, move into the trash, prove; nothing is ever deleted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import sweep
from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Manager, account
from ansible_collections.dank.llm_fleet.plugins.module_utils._manifest import (
    MANIFEST,
    Item,
    Manifest,
    free_folder,
    load_all,
    make_folder,
    save,
    trash_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import Places, RetireSpec, collect, places
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_proof import (
    gates,
    observed,
    prove_gone,
    prove_restored,
    stop,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._trash import move

__all__ = ["RetireSpec", "retire", "undo"]


@dataclass(frozen=True)
class _Work:
    """What a run has to do, known before anything is touched; an empty one means nothing."""

    manifests: tuple[Manifest, ...] = ()
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def retire(
    spec: RetireSpec, *, check_mode: bool = False, manager: Manager | None = None, where: Places | None = None
) -> dict[str, Any]:
    """Stop and move what ``spec`` names into ``~user/.AGENTTRASH/<YYYYMMDD>-<slug>/``, and prove that nothing is left.

    Safe to call again at any time: an unfinished earlier run (killed, or a unit that did not stop in time) is
    finished, what is retired already is left alone (``changed`` False), what came back under its old name is retired
    into a folder of its own. Call it before the new endpoint's files are written, or name those under ``spec.own``.
    A FleetError before the first change leaves everything as it was; one after it says what was done, and both
    ``retire`` and ``undo`` go on from there.

    Returns ``changed``, ``folders``, ``retired`` (names and their folder), ``actions`` (in words), ``warnings``,
    ``diff``. ``manager`` and ``where`` default to the host's.
    """
    host = manager or Manager(spec.scope, account(spec.user))
    there = where or places(spec.scope, host.who)
    if not check_mode:
        _wake(host, spec)
    work = _plan(spec, host, there)
    result = _told(work.manifests, "retired", work.notes, host)
    result["retired"] = _held(load_all(trash_of(host.who), spec.slug, spec.scope, host.who)) | {
        item.name: manifest.folder for manifest in work.manifests for item in manifest.items
    }
    if check_mode or not work.manifests:
        return result
    with file_lock(host.lock_path, wait_s=10, purpose=f"retire {spec.slug}") as lock:
        result["warnings"] += lock.warning
        work = _plan(spec, host, there)  # another run may have ended meanwhile
        for manifest in work.manifests:
            result["warnings"] += _carry_out(manifest, spec, host, there)
    return result


def undo(
    spec: RetireSpec,
    *,
    since: str | None = None,
    check_mode: bool = False,
    manager: Manager | None = None,
    where: Places | None = None,
) -> dict[str, Any]:
    """Put back what was retired under ``spec.slug``, enabled and running as it was before; finished or not.

    With names in ``spec``, only the retirements that hold one of them (each is put back whole); without, the only
    one of that slug. A file at an origin is a FleetError, and nothing is touched. What is back already is left alone
    (``changed`` False). With ``since`` (ISO 8601, UTC) only the retirements begun then or later, and none is no fault.
    Returns what ``retire`` returns, with ``restored`` in the place of ``retired``.
    """
    host = manager or Manager(spec.scope, account(spec.user))
    there = where or places(spec.scope, host.who)
    if not check_mode:
        _wake(host, spec)
    chosen = _choose(spec, host, since)
    result = _told(chosen, "restored", (), host)
    result["restored"] = {item.name: manifest.folder for manifest in chosen for item in manifest.items}
    if check_mode or not chosen:
        return result
    with file_lock(host.lock_path, wait_s=10, purpose=f"restore {spec.slug}") as lock:
        result["warnings"] += lock.warning
        for manifest in _choose(spec, host, since):
            _put_back(manifest, spec, host, there)
    return result


def _wake(host: Manager, spec: RetireSpec) -> None:
    """Only units need the user's manager; files and an empty call do not."""
    if spec.units or spec.quadlets or spec.drop_ins or not spec.files:
        host.wake(spec.wake_s)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _held(manifests: Sequence[Manifest]) -> dict[str, str]:
    return {
        item.name: manifest.folder
        for manifest in manifests
        if manifest.state in ("begun", "retired")
        for item in manifest.items
    }


def _plan(spec: RetireSpec, host: Manager, there: Places) -> _Work:
    """Find what is there, what an earlier run left unfinished, and refuse what could not be proven afterwards."""
    trash = trash_of(host.who)
    known = load_all(trash, spec.slug, spec.scope, host.who)
    asked = set(spec.named(host.who.home))
    held = {item.key: manifest.folder for manifest in known if manifest.state != "restored" for item in manifest.items}
    found, gone = collect(spec, host.who, there, held)
    unfinished = [
        manifest
        for manifest in known
        if manifest.state in ("begun", "restoring") and asked & {item.key for item in manifest.items}
    ]
    manifests = [_resumed(manifest, found) for manifest in unfinished]
    resumed = {item.key for manifest in manifests for item in manifest.items}
    fresh = [item for item in found if item.key not in resumed and item.entries]
    if fresh:
        folder = free_folder(trash, datetime.now().strftime("%Y%m%d"), spec.slug)
        manifests.append(Manifest(folder, spec.slug, spec.scope, host.who.name, "begun", {}, tuple(fresh)))
    if not manifests:
        return _Work(gone=tuple(gone))
    everything = [item for manifest in manifests for item in manifest.items]
    ahead = gates(everything, host, there)
    manifests = [
        replace(manifest, items=tuple(observed(item, host, ahead) for item in manifest.items)) for manifest in manifests
    ]
    return _Work(tuple(manifests), tuple(gone), ahead.notes)


def _resumed(manifest: Manifest, found: Sequence[Item]) -> Manifest:
    """An unfinished retirement, with what lies at the origins now: it may have changed since, or grown."""
    fresh = {item.key: item for item in found}
    items = []
    for item in manifest.items:
        now = fresh.get(item.key)
        if now is not None:
            old = [entry for entry in item.entries if entry.path not in {one.path for one in now.entries}]
            item = replace(
                item, entries=tuple(sorted([*old, *now.entries], key=lambda entry: entry.kind == "directory"))
            )
        items.append(item)
    return replace(manifest, items=tuple(items))


def _carry_out(manifest: Manifest, spec: RetireSpec, host: Manager, there: Places) -> list[str]:
    """Write the intent, then stop and move item by item; returns warnings."""
    make_folder(manifest.folder, spec.scope, host.who)
    sweep(os.path.join(manifest.folder, MANIFEST))
    manifest = manifest.at("begun", _now())
    save(manifest)
    for number, item in enumerate(manifest.items):
        if item.service:
            _stop_or_tell(manifest, number, spec, host)
        for entry in item.entries:
            move(entry, entry.path, manifest.moved_to(entry))
    warnings = []
    if any(item.kind != "file" for item in manifest.items):
        host.reload()
        warnings = prove_gone(manifest, host, there)
    save(manifest.at("retired", _now()))
    return warnings


def _stop_or_tell(manifest: Manifest, number: int, spec: RetireSpec, host: Manager) -> None:
    item = manifest.items[number]
    assert item.service is not None
    seen = host.show(item.service)
    left = stop(item.service, host, spec.timeout_s)
    if left is None:
        return
    was_up = not seen.stopped
    if was_up:
        host.begin_start(item.service)  # waits its turn behind the stop: as it was before
    before = ", ".join(each.name for each in manifest.items[:number]) or "nothing"
    after = ", ".join(each.name for each in manifest.items[number + 1 :]) or "nothing"
    raise FleetError(
        f"{item.service} did not stop",
        expected=f"an end within {spec.timeout_s:g} s",
        found=left,
        remedy=(
            f"Retired before it, into {manifest.folder}: {before}. "
            f"{item.name} has all its files{' and was asked to start again' if was_up else ''}. "
            f"Not touched: {after}. Run again with a longer timeout, or with state: restored to go back"
        ),
        folder=manifest.folder,
        retired=[each.name for each in manifest.items[:number]],
        untouched=[each.name for each in manifest.items[number:]],
    )


def _choose(spec: RetireSpec, host: Manager, since: str | None) -> tuple[Manifest, ...]:
    """The retirements to put back, the newest first; a FleetError where there is none or the choice is not clear."""
    known = load_all(trash_of(host.who), spec.slug, spec.scope, host.who)
    if since is not None:
        known = [one for one in known if one.times.get("begun", "") >= since]
    asked = set(spec.named(host.who.home))
    fitting = [one for one in known if not asked or asked & {item.key for item in one.items}]
    missing = asked - {item.key for manifest in fitting for item in manifest.items}
    if since is None and (not fitting or missing):
        raise FleetError(
            f"nothing of the sort was retired under the slug {spec.slug}",
            expected=f"{', '.join(sorted(name for _kind, name in missing)) or 'a manifest'} in {trash_of(host.who)}",
            found=", ".join(item.name for one in known for item in one.items) or "no retirement of that slug",
            remedy=f"Give the slug, user and scope ({spec.scope}) that it was retired with",
        )
    waiting = [manifest for manifest in reversed(fitting) if manifest.state != "restored"]
    if not asked and len(waiting) > 1:
        raise FleetError(
            f"the slug {spec.slug} has {len(waiting)} retirements",
            expected="names, to tell which is meant",
            found="; ".join(f"{one.folder}: {', '.join(item.name for item in one.items)}" for one in waiting),
        )
    for manifest in waiting:
        _gate_origins(manifest)
    return tuple(waiting)


def _gate_origins(manifest: Manifest) -> None:
    """Refuse before anything moves when an origin is taken; a run that was killed midway has files at both places."""
    if manifest.state != "retired":
        return  # move() compares what is at both places, one by one
    taken = [entry.path for item in manifest.items for entry in item.entries if os.path.lexists(entry.path)]
    if taken:
        raise FleetError(
            f"{taken[0]} is there again",
            expected="nothing where the retired file was",
            found=", ".join(taken),
            remedy=f"Move it aside, or retire it too; what was retired stays in {manifest.folder}",
            taken=taken,
        )


def _put_back(manifest: Manifest, spec: RetireSpec, host: Manager, there: Places) -> None:
    manifest = manifest.at("restoring", _now())
    save(manifest)
    for item in manifest.items:
        # A directory's turn comes last here too: what is inside makes it, and its times are set when all is in.
        for entry in item.entries:
            move(entry, manifest.moved_to(entry), entry.path)
    if any(item.kind != "file" for item in manifest.items):
        host.reload()
        prove_restored(manifest, host, there, spec.timeout_s)
    save(manifest.at("restored", _now()))


def _told(manifests: Sequence[Manifest], state: str, notes: Sequence[str], host: Manager) -> dict[str, Any]:
    """The result as far as it is known before the work: check mode and the real run tell the same."""
    forward = state == "retired"
    before, after, actions = [], [], []
    for manifest in manifests:
        for item in manifest.items:
            was = item.before
            if item.service:
                there = (
                    f"{item.service} {was.get('active')} ({was.get('sub')}), {was.get('unit_file') or 'not enabled'}"
                )
                gone = f"{item.service} not found"
                before.append(there if forward else gone)
                after.append(gone if forward else there)
                up = was.get("up", False)
                actions.append(f"stop {item.service}" if forward else f"start {item.service}" if up else "")
            for entry in item.entries:
                source, destination = entry.path, manifest.moved_to(entry)
                if not forward:
                    source, destination = destination, source
                if os.path.lexists(source):
                    actions.append(f"move {source} to {destination}")
                    before.append(source)
                    after.append(destination)
    return {
        "changed": bool(manifests),
        "folders": [manifest.folder for manifest in manifests],
        "actions": [action for action in actions if action],
        "warnings": list(notes),
        "diff": {
            "before_header": "before",
            "after_header": state,
            "before": "".join(f"{line}\n" for line in before),
            "after": "".join(f"{line}\n" for line in after),
        },
    }
