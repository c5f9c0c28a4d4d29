# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Eras: the deployed states of an endpoint, kept on the host so that any of them can serve again."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_link,
    atomic_write,
    fsync_dir,
    make_dirs,
    read_json,
    read_optional,
    sweep,
)

__all__ = ["Blueprint", "Era", "EraStore", "blueprint_digest", "sha256_text"]

_META = ("digest", "state", "sha256", "facts")


def sha256_text(text: str) -> str:
    """Hex sha256 of the text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def blueprint_digest(parts: Mapping[str, Any]) -> str:
    """Hex sha256 over the canonical JSON (sorted keys, no blanks) of everything that decides what is served."""
    return sha256_text(json.dumps(parts, sort_keys=True, separators=(",", ":")))


@dataclass(frozen=True)
class Blueprint:
    """An era before it is on the host: three texts, what they stand for, and the digest that names the whole.

    ``facts`` is the JSON-able rest of ``era.json``: env, shape, runtime, payload, user, port, argv, rung.
    """

    digest: str
    env_text: str
    unit_text: str
    launcher_text: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Era:
    """One era on the host. ``state`` is staged, certified or failed; ``meta`` is the whole of ``era.json``."""

    id: str
    path: str
    blueprint: Blueprint
    meta: dict[str, Any]

    @property
    def state(self) -> str:
        """staged (not proven yet), certified (proven, was or is current), failed (proof broke)."""
        return str(self.meta["state"])

    def with_facts(self, facts: Mapping[str, Any]) -> Era:
        """The same era with these facts, which are on the disk once it is committed."""
        told = dict(facts)
        digests = {**self.meta["sha256"], "facts": blueprint_digest(told)}
        meta = {**self.meta, "facts": told, "sha256": digests}
        return replace(self, blueprint=replace(self.blueprint, facts=told), meta=meta)


class EraStore:
    """The folder ``<state_dir>/<endpoint>``: ``eras/<id>/{env,unit,launcher,era.json}``, two links and a pin."""

    _TEXTS = (("env", "env_text"), ("unit", "unit_text"), ("launcher", "launcher_text"))

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock_path = os.path.join(folder, "lock")

    def _path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def _way_out(self) -> str:
        return (
            "An era is a record and is never edited: choose another era, or, if it is the current one, "
            f"remove the link {self._path('current')} and run site.yml, which deploys anew"
        )

    def load(self, era_id: str) -> Era:
        """Read an era whole; a file missing, or changed since it was written, is a FleetError."""
        folder = self._path("eras", era_id)
        try:
            meta = read_json(os.path.join(folder, "era.json"))
        except FleetError as exc:
            raise FleetError(exc.what, expected=exc.expected, found=exc.found, remedy=self._way_out()) from exc
        if meta is None:
            raise FleetError(f"era {era_id} is not on this host", expected=f"{folder}/era.json", found="no such file")
        lacking = [key for key in _META if not isinstance(meta, dict) or key not in meta]
        if lacking or not set(meta["sha256"]) >= {"facts", *(file for file, _field in self._TEXTS)}:
            raise FleetError(
                f"{folder}/era.json is damaged",
                expected=", ".join(_META),
                found=f"no {lacking[0]}" if lacking else "digests of other files",
                remedy=self._way_out(),
            )
        if blueprint_digest(meta["facts"]) != meta["sha256"]["facts"]:
            raise FleetError(
                f"{folder}/era.json is not as it was staged",
                expected=f"facts of sha256 {meta['sha256']['facts']}",
                found=f"sha256 {blueprint_digest(meta['facts'])}",
                remedy=self._way_out(),
            )
        texts = {}
        for file, field in self._TEXTS:
            path = os.path.join(folder, file)
            data = read_optional(path)
            found = "no such file" if data is None else f"sha256 {hashlib.sha256(data).hexdigest()}"
            if data is None or hashlib.sha256(data).hexdigest() != meta["sha256"][file]:
                raise FleetError(
                    f"{path} is not as it was staged",
                    expected=f"sha256 {meta['sha256'][file]}",
                    found=found,
                    remedy=self._way_out(),
                )
            texts[field] = data.decode()
        return Era(era_id, folder, Blueprint(meta["digest"], **texts, facts=meta["facts"]), meta)

    def _linked(self, name: str) -> Era | None:
        era_id = self.linked_id(name)
        return None if era_id is None else self.load(era_id)

    def current(self) -> Era | None:
        """The era that was last proven and committed, or None before the first one."""
        return self._linked("current")

    def previous(self) -> Era | None:
        """The era that was current before."""
        return self._linked("previous")

    def ids(self) -> list[str]:
        """The ids of all eras, oldest first; those of one second in the order of their number."""
        eras = self._path("eras")
        names = [name for name in os.listdir(eras) if not name.startswith(".")] if os.path.isdir(eras) else []

        def age(name: str) -> tuple[str, int, str]:
            created, _, rest = name.partition("-")
            digest, _, number = rest.partition("-")
            return created, int(number) if number.isdigit() else 1, digest

        return sorted(names, key=age)

    def find(self, wanted: str) -> Era:
        """An era by the beginning of its id, or ``previous``; a FleetError that lists the known where it is not one."""
        if wanted == "previous":
            era = self.previous_certified()
            if era is None:
                raise FleetError(
                    f"{self.folder} has no previous era", expected="two eras that were proven", found="one"
                )
            return era
        known = self.ids()
        found = [wanted] if wanted in known else [name for name in known if wanted and name.startswith(wanted)]
        if len(found) != 1:
            raise FleetError(
                f"era {wanted!r} of {os.path.basename(self.folder)}",
                expected=f"the beginning of one of: {', '.join(known) or 'none yet'}, or previous",
                found=", ".join(found) or "none of these",
            )
        return self.load(found[0])

    def linked_id(self, name: str) -> str | None:
        """The id that the link ``current`` or ``previous`` names, the era unread; None where there is no link."""
        try:
            return os.path.basename(os.readlink(self._path(name)))
        except FileNotFoundError:
            return None

    def previous_certified(self) -> Era | None:
        """The era to go back to: ``previous``, or without that link the newest certified one before the current."""
        previous = self.previous()
        if previous is not None:
            return previous
        current, known = self.linked_id("current"), self.ids()
        for era_id in reversed(known[: known.index(current)] if current in known else known):
            era = self.load(era_id)
            if era.state == "certified":
                return era
        return None

    def remove(self, era_id: str) -> None:
        """Take an era away whole: it gets a name that is no era's in one step, then its files go."""
        eras = self._path("eras")
        gone = os.path.join(eras, f".{era_id}.gone")
        os.rename(os.path.join(eras, era_id), gone)
        fsync_dir(eras)
        shutil.rmtree(gone)

    def sweep(self) -> None:
        """Finish the removals that a killed run began, and remove what it left of unfinished writes."""
        eras = glob.escape(self._path("eras"))
        for folder in [*glob.glob(os.path.join(eras, ".*.gone")), *glob.glob(os.path.join(eras, ".*.tmp"))]:
            shutil.rmtree(folder)
        files = ("pin.json", "stood-down.json", "made-way.json", "last-run.json", "current", "previous")
        for path in [self._path(name) for name in files] + glob.glob(os.path.join(eras, "*", "era.json")):
            sweep(path)

    def stage(self, blueprint: Blueprint, *, now: datetime | None = None) -> Era:
        """Write a new era; one that a killed run left staged with the same digest is taken up again."""
        eras = self._path("eras")
        make_dirs(eras)
        known, current = self.ids(), self.linked_id("current")
        # A certified one that is newer than the current was killed in its commit.
        newer = known[known.index(current) + 1 :] if current in known else []
        for name in reversed(known):
            meta = read_json(os.path.join(eras, name, "era.json"))
            if not isinstance(meta, dict) or meta.get("digest") != blueprint.digest:
                continue
            if meta.get("state") != "staged" and not (meta.get("state") == "certified" and name in newer):
                continue
            # The digest leaves out how to prove an era (deadline, probe): with other terms it is another era.
            if meta.get("facts") == json.loads(json.dumps(blueprint.facts)):
                return self.load(name)
        created = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        stem = f"{created}-{blueprint.digest[:8]}"
        names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        era_id = next(name for name in names if not os.path.lexists(os.path.join(eras, name)))
        building = os.path.join(eras, f".{era_id}.tmp")
        shutil.rmtree(building, ignore_errors=True)  # left by a killed run; never an era, its name begins with a dot
        os.mkdir(building)
        digests = {"facts": blueprint_digest(blueprint.facts)}
        for file, field in self._TEXTS:
            text = getattr(blueprint, field)
            atomic_write(os.path.join(building, file), text.encode(), mode=0o755 if file == "launcher" else 0o644)
            digests[file] = sha256_text(text)
        meta = {
            "id": era_id,
            "digest": blueprint.digest,
            "state": "staged",
            "created": created,
            "sha256": digests,
            "facts": blueprint.facts,
        }
        atomic_write(os.path.join(building, "era.json"), _dump(meta))
        os.rename(building, os.path.join(eras, era_id))
        fsync_dir(eras)
        return self.load(era_id)

    def staged(self) -> dict[str, set[str]]:
        """``{file: sha256 of it in every era}`` for env, unit and launcher, whatever became of the eras."""
        found: dict[str, set[str]] = {file: set() for file, _field in self._TEXTS}
        eras = self._path("eras")
        for name in os.listdir(eras) if os.path.isdir(eras) else []:
            meta = None if name.startswith(".") else read_json(os.path.join(eras, name, "era.json"))
            for file, digests in found.items():
                if meta is not None:
                    digests.add(meta["sha256"][file])
        return found

    def commit(self, era: Era, certificate: Mapping[str, Any]) -> Era:
        """Record the proof and make the era current; the one that was current becomes previous."""
        meta = {**era.meta, "state": "certified", "certificate": dict(certificate)}
        atomic_write(os.path.join(era.path, "era.json"), _dump(meta))
        before = self.linked_id("current")
        if before and before != era.id:
            atomic_link(os.path.join("eras", before), self._path("previous"))
        atomic_link(os.path.join("eras", era.id), self._path("current"))
        return self.load(era.id)

    def fail(self, era: Era, reason: str) -> None:
        """Record that the era's proof broke, and why."""
        atomic_write(os.path.join(era.path, "era.json"), _dump({**era.meta, "state": "failed", "reason": reason}))

    def pin(self) -> dict[str, Any] | None:
        """The pin that holds this endpoint at an era, or None."""
        pin = read_json(self._path("pin.json"))
        return None if pin is None else dict(pin)

    def set_pin(self, pin: Mapping[str, Any] | None) -> None:
        """Write the pin, or lift it with None."""
        self._put("pin.json", pin)

    def stood_down(self) -> dict[str, Any] | None:
        """``{for, since}`` where this endpoint made way for another by an operator's word, else None."""
        told = read_json(self._path("stood-down.json"))
        return None if told is None else dict(told)

    def set_stood_down(self, told: Mapping[str, Any] | None) -> None:
        """Write that record, or remove it with None."""
        self._put("stood-down.json", told)

    def made_way(self) -> dict[str, Any] | None:
        """``{since, rivals, retires}``: what made way for an era of this endpoint that is not proven yet, else None.

        A run that was killed leaves it to the next one, which brings it all back if the era cannot be proven.
        """
        told = read_json(self._path("made-way.json"))
        return None if told is None else dict(told)

    def set_made_way(self, told: Mapping[str, Any] | None) -> None:
        """Write that record, or remove it with None."""
        self._put("made-way.json", told)

    @property
    def last_run_path(self) -> str:
        """Where a run that did something leaves the record of the gates that it went through."""
        return self._path("last-run.json")

    def last_run(self) -> dict[str, Any] | None:
        """That record, ``{at, kind, served, gates, ...}`` (see ``Gates.write``), or None."""
        told = read_json(self.last_run_path)
        return None if told is None else dict(told)

    def _put(self, name: str, value: Mapping[str, Any] | None) -> None:
        if value is not None:
            atomic_write(self._path(name), _dump(value))
        elif os.path.lexists(self._path(name)):
            os.unlink(self._path(name))
            fsync_dir(self.folder)


def _dump(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
