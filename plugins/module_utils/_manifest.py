# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a retirement: ``~/.AGENTTRASH/<YYYYMMDD>-<slug>/manifest.json``, written before anything moves."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Account
from ansible_collections.dank.llm_fleet.plugins.module_utils._trash import Entry

__all__ = ["MANIFEST", "TRASH", "Item", "Manifest", "free_folder", "load_all", "make_folder", "save", "trash_of"]

TRASH = ".AGENTTRASH"
MANIFEST = "manifest.json"
_STATES = ("begun", "retired", "restoring", "restored")


@dataclass(frozen=True)
class Item:
    """One thing that was named: a unit, a quadlet, a drop-in or a file; ``service`` is the unit to stop, if any.

    ``before`` is the unit's state when the retirement began (active, sub, unit_file, fragment, containers, ...).
    """

    kind: str
    name: str
    service: str | None
    before: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others of a retirement."""
        return (self.kind, self.name)


@dataclass(frozen=True)
class Manifest:
    """One retirement. ``state`` is begun, retired, restoring or restored."""

    folder: str
    slug: str
    scope: str
    user: str
    state: str
    times: Mapping[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()

    def moved_to(self, entry: Entry) -> str:
        """Where the entry lies while it is retired."""
        return self.folder + entry.path

    def at(self, state: str, now: str) -> Manifest:
        """The same in another state, reached at ``now`` (ISO 8601)."""
        return replace(self, state=state, times={**self.times, state: now})

    def as_dict(self) -> dict[str, Any]:
        """The file's value."""
        return {
            "version": 1,
            "slug": self.slug,
            "scope": self.scope,
            "user": self.user,
            "state": self.state,
            "times": dict(self.times),
            "items": [
                {
                    "kind": item.kind,
                    "name": item.name,
                    "service": item.service,
                    "before": dict(item.before),
                    "entries": [entry.as_dict(self.folder) for entry in item.entries],
                }
                for item in self.items
            ],
        }

    @classmethod
    def from_dict(cls, folder: str, given: Any) -> Manifest:
        """Read the file's value; whatever is not of that shape is a FleetError."""
        try:
            if given["version"] != 1 or given["state"] not in _STATES:
                raise ValueError(f"version {given['version']}, state {given['state']}")
            items = tuple(
                Item(
                    one["kind"],
                    one["name"],
                    one["service"],
                    dict(one["before"]),
                    tuple(Entry.from_dict(record) for record in one["entries"]),
                )
                for one in given["items"]
            )
            paths = [entry.path for item in items for entry in item.entries]
            if any(not path.startswith("/") or os.path.normpath(path) != path for path in paths):
                raise ValueError("a path that is not absolute and plain")
            return cls(
                folder, given["slug"], given["scope"], given["user"], given["state"], dict(given["times"]), items
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise FleetError(
                f"{folder}/{MANIFEST} is damaged",
                expected="the record of a retirement, version 1",
                found=f"{type(exc).__name__}: {exc}",
                remedy="What was retired lies below that folder under its old paths; move the folder aside by hand",
            ) from exc


def trash_of(who: Account) -> str:
    """The folder of all retirements of a user; a link in its place is refused, since root would follow it."""
    path = os.path.join(who.home, TRASH)
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        raise FleetError(f"{path} is in the way", expected="a directory", found="a link or a file")
    return path


def load_all(trash: str, slug: str, scope: str, who: Account) -> list[Manifest]:
    """The retirements of this slug, scope and user, the oldest first.

    A manifest that another user could have written is refused: files would be put where it says.
    """
    if not os.path.isdir(trash):
        return []
    pattern = re.compile(rf"(\d{{8}})-{re.escape(slug)}(?:-(\d+))?")
    named = [(match, name) for name in os.listdir(trash) if (match := pattern.fullmatch(name))]
    found = []
    for _match, name in sorted(named, key=lambda each: (each[0].group(1), int(each[0].group(2) or 1))):
        folder = os.path.join(trash, name)
        path = os.path.join(folder, MANIFEST)
        data = None if os.path.islink(folder) else read_optional(path)
        if data is None:
            continue  # a folder that somebody made by hand
        owner = os.lstat(path)
        if owner.st_uid not in {0, os.geteuid(), *((who.uid,) if scope == "user" else ())} or not stat.S_ISREG(
            owner.st_mode
        ):
            raise FleetError(
                f"{path} cannot be trusted",
                expected="a file of root" if scope == "system" else f"a file of root or {who.name}",
                found=f"a file of user id {owner.st_uid}",
                remedy="Look into that folder, and move it aside",
            )
        try:
            value = json.loads(data)
        except ValueError as exc:
            value = {"version": f"not JSON ({exc})", "state": None}
        manifest = Manifest.from_dict(folder, value)
        if (manifest.slug, manifest.scope, manifest.user) == (slug, scope, who.name):
            found.append(manifest)
    return found


def _unused(path: str) -> bool:
    """A folder of ours that a kill left before its manifest was whole."""
    if os.path.islink(path) or not os.path.isdir(path):
        return False
    return all(name.startswith(f".{MANIFEST}.") for name in os.listdir(path))


def free_folder(trash: str, day: str, slug: str) -> str:
    """``<trash>/<day>-<slug>``, or the first of ``-2``, ``-3``, ... that nothing has."""
    number, path = 1, os.path.join(trash, f"{day}-{slug}")
    while os.path.lexists(path) and not _unused(path):
        number += 1
        path = os.path.join(trash, f"{day}-{slug}-{number}")
    return path


def make_folder(folder: str, scope: str, who: Account) -> None:
    """Create the retirement's folder; the trash itself is the user's, the folder is root's in the scope system."""
    trash = os.path.dirname(folder)
    root = os.geteuid() == 0
    if not os.path.isdir(trash):
        os.mkdir(trash, 0o700)
        if root:
            os.chown(trash, who.uid, who.gid)
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o755)
    if root and scope == "user":
        os.chown(folder, who.uid, who.gid)


def save(manifest: Manifest) -> None:
    """Write the manifest, whole or not at all."""
    text = json.dumps(manifest.as_dict(), indent=2) + "\n"
    owner = os.stat(manifest.folder)
    atomic_write(os.path.join(manifest.folder, MANIFEST), text.encode(), 0o644, owner.st_uid, owner.st_gid)
