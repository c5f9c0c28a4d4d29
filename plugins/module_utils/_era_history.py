# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The eras of an endpoint as a history: what each was, what changed, which may go, and what they still need."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import ERA_VARIABLE

__all__ = [
    "changes",
    "history",
    "model_file",
    "prune",
    "referenced_digests",
    "referenced_files",
    "referenced_runtimes",
]


def history(store: EraStore) -> list[dict[str, Any]]:
    """A row for every era, oldest first; ``changes`` is against the readable one before it, None for the first.

    An era that cannot be read is a row of state ``damaged`` with the reason, and is passed over in the comparison.
    """
    current, previous = store.linked_id("current"), store.linked_id("previous")
    pinned = (store.pin() or {}).get("era")
    rows: list[dict[str, Any]] = []
    before: Era | None = None
    for era_id in store.ids():
        marks = {"current": era_id == current, "previous": era_id == previous, "pinned": era_id == pinned}
        try:
            era = store.load(era_id)
        except FleetError as exc:
            rows.append({"id": era_id, "state": "damaged", "reason": exc.message, "changes": None, **marks})
            continue
        told = None if before is None else changes(before, era)
        rows.append({**_row(era), **marks, "changes": told})
        before = era
    return rows


def model_file(facts: Mapping[str, Any]) -> str:
    """The name of the file that an era serves, its first part where it has several."""
    return str(facts["model_file"]) if "model_file" in facts else os.path.basename(facts["env"]["MODEL_FILE"])


def _row(era: Era) -> dict[str, Any]:
    facts, certificate = era.blueprint.facts, era.meta.get("certificate") or {}
    return {
        "id": era.id,
        "created": era.meta["created"],
        "certified": certificate.get("at"),
        "state": era.state,
        "reason": era.meta.get("reason"),
        "rung": facts["rung"],
        "payload": facts["payload"]["name"],
        "model_file": model_file(facts),
        "runtime": facts["runtime"]["name"],
        "runtime_version": facts["runtime"]["version"],
        "shape": facts["shape"],
        "probes": {probe["probe"]: probe["verdict"] for probe in certificate.get("probes") or []},
        "ledger": _ledger(era),
    }


def _ledger(era: Era) -> list[dict[str, Any]]:
    """The totals of the fit that the era was certified with, a device each, in MiB; without one nothing."""
    fit = (era.meta.get("certificate") or {}).get("fit") or {}
    devices = fit.get("cards") or ([fit["host"]] if fit.get("host") else [])
    return [{key: one.get(key) for key in ("name", "total_mib", "free_after_mib")} for one in devices]


def changes(before: Era, after: Era) -> dict[str, Any]:
    """What the later era has otherwise; a part that is alike is empty or None.

    ``env``, ``unit`` and ``files`` are lines that begin with ``-`` or ``+``; ``ledger`` is
    ``{device: [MiB before, MiB after]}``, None for a device that one of them did not use.
    """
    old, new = before.blueprint, after.blueprint
    totals = [{one["name"]: one["total_mib"] for one in _ledger(era)} for era in (before, after)]
    names = dict.fromkeys([*totals[0], *totals[1]]) if all(totals) else {}  # without a fit there is nothing to compare
    return {
        "env": _lines(old.env_text, new.env_text),
        "files": _files(old.facts["payload"]["files"], new.facts["payload"]["files"]),
        "runtime": _runtime(old.facts["runtime"], new.facts["runtime"]),
        "unit": _lines(_plain(old.unit_text), _plain(new.unit_text)),
        "launcher": before.meta["sha256"]["launcher"] != after.meta["sha256"]["launcher"],
        "ledger": {
            name: [totals[0].get(name), totals[1].get(name)]
            for name in names
            if totals[0].get(name) != totals[1].get(name)
        },
    }


def _lines(old: str, new: str) -> list[str]:
    delta = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return [line for number, line in enumerate(delta) if number > 1 and line[:1] in "+-"]  # two lines of file names


def _plain(unit_text: str) -> str:
    """The unit without the line that differs in every era."""
    lines = unit_text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(f"Environment={ERA_VARIABLE}="))


def _files(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    def lines(files: list[dict[str, Any]]) -> str:
        return "".join(
            f"{file['role']} {file['path']} {(file['sha256'] or 'no sha256')[:12]}\n"
            for file in sorted(files, key=lambda file: (str(file["role"]), str(file["path"])))
        )

    return _lines(lines(old), lines(new))


def _runtime(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    if old["digest"] == new["digest"]:
        return None
    told = [f"{each['name']} {each['version']} ({each['digest'][:8]})" for each in (old, new)]
    return f"{told[0]} -> {told[1]}"


def _of_rung(store: EraStore, era_id: str, rungs: Collection[str]) -> bool:
    """Whether the era was proven at one of ``rungs``; one that cannot be read can be restored by nobody."""
    try:
        era = store.load(era_id)
    except FleetError:
        return False
    return era.state == "certified" and era.blueprint.facts.get("rung") in rungs


def prune(store: EraStore, keep: int, rungs: Collection[str] = ()) -> list[str]:
    """Remove the oldest eras but the last ``keep``, the current, the previous, what a pin names and the certified ones
    of ``rungs``, those that are declared; the ids that went.

    A removal that a killed run began is finished first. The caller holds the store's lock.
    """
    if keep < 1:
        raise FleetError("how many eras to keep", expected="1 or more", found=keep)
    store.sweep()
    known = store.ids()
    pin = store.pin() or {}
    kept = {
        *known[-keep:],
        store.linked_id("current"),
        store.linked_id("previous"),
        pin.get("era"),
        pin.get("restored"),
    }
    gone = [era_id for era_id in known if era_id not in kept and not _of_rung(store, era_id, rungs)]
    for era_id in gone:
        store.remove(era_id)
    return gone


def _all_eras(state_dir: str) -> Iterator[Era]:
    """Every era of every endpoint under ``state_dir``; one that cannot be read is a FleetError, never passed over."""
    for name in sorted(os.listdir(state_dir)) if os.path.isdir(state_dir) else []:
        store = EraStore(os.path.join(state_dir, name))
        for era_id in store.ids():
            yield store.load(era_id)


def referenced_files(state_dir: str) -> set[str]:
    """The paths that any era on the host needs (payload files and what its env names): nobody may remove them."""
    paths: set[str] = set()
    for era in _all_eras(state_dir):
        facts = era.blueprint.facts
        paths.update(file["path"] for file in facts["payload"]["files"])
        paths.update(value for value in facts["env"].values() if value.startswith("/"))
    return paths


def referenced_digests(state_dir: str) -> dict[str, set[str]]:
    """``{path: sha256}`` of the payload files that the eras on the host need, each digest in full or its beginning.

    It is the empty beginning where an era does not say which bytes it needs of a path.
    """
    digests: dict[str, set[str]] = {}
    for era in _all_eras(state_dir):
        facts = era.blueprint.facts
        named = {file["path"]: str(file["sha256"] or "") for file in facts["payload"]["files"]}
        for path in (value for value in facts["env"].values() if value.startswith("/")):
            named.setdefault(path, "")
        for path, digest in named.items():
            digests.setdefault(path, set()).add(digest)
    return digests


def referenced_runtimes(state_dir: str) -> set[str]:
    """The built trees, as real paths, that any era on the host runs from: nobody may remove them."""
    return {era.blueprint.facts["runtime"]["path"] for era in _all_eras(state_dir)}
