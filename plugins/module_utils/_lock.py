# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lock says of a payload's file: it fills what the inventory leaves open and refuses what contradicts it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import LOCK, UNKNOWN, check_keys
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import HUB, hub_link
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Digest

__all__ = ["COMMIT", "Asked", "Lock", "Want", "asked_of", "fill", "wanted"]

COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN = "main"  # the branch of a file that names no revision
_TEXTS = ("name", "repo", "revision", "file", "sha256", "sha256_prefix")
_AGAIN = "Run playbooks/lock.yml again"


@dataclass(frozen=True)
class Asked:
    """A file of the hub as the inventory names it; as text it is what a lock keeps of that (``of``)."""

    repo: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}:{self.file}"


@dataclass(frozen=True)
class Lock:
    """What the hub has: the length, all 64 digits, the commit (40 digits), and what was asked for."""

    bytes: int
    sha256: str
    revision: str
    of: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Want:
    """One file to be locked, with its entry in the inventory."""

    payload: str
    name: str
    entry: Mapping[str, Any]
    asked: Asked


def _told(entry: Mapping[str, Any], key: str) -> Any:
    """The entry's value; None where it is absent or unknown."""
    value = entry.get(key)
    return None if value == UNKNOWN else value


def _named(payload: str, entry: Any) -> str:
    """How messages name the file; refuses an entry whose texts are none, as a bare number in YAML."""
    if not isinstance(entry, Mapping):
        raise FleetError(f"payload {payload}: files", expected="dictionaries", found=repr(entry))
    what = f"payload {payload}: file {entry.get('name')!r}"
    for key in _TEXTS:
        if not isinstance(entry.get(key, ""), str) or (key == "name" and not entry.get(key)):
            raise FleetError(f"{what}: {key}", expected="text (in quotes where it is all digits)", found=entry.get(key))
    return what


def asked_of(payload: str, entry: Mapping[str, Any]) -> Asked | None:
    """What the entry names on the hub, at branch main where it names no revision; None where it names no ``repo``."""
    what = _named(payload, entry)
    revision = _told(entry, "revision") or (_MAIN if entry.get("repo") else None)
    if hub_link(what, {**entry, "revision": revision}, HUB) is None:
        return None
    return Asked(entry["repo"], str(revision), entry.get("file") or entry["name"])


def _lock_of(locks: Any, payload: str, name: str) -> Lock | None:
    where = "llm_payload_locks"
    for key in (payload, name):
        if not isinstance(locks, Mapping):
            raise FleetError(where, expected="a dictionary", found=type(locks).__name__, remedy=_AGAIN)
        if key not in locks:
            return None
        locks, where = locks[key], f"{where}.{key}"
    if problems := check_keys(where, locks, LOCK):
        raise FleetError(problems[0], remedy=_AGAIN)
    return Lock(**{key: locks[key] for key in LOCK})


def fill(payload: str, entry: Mapping[str, Any], locks: Any) -> dict[str, Any]:
    """The file's entry with size, digest and commit of its lock in ``llm_payload_locks``; as it is without one.

    Raises FleetError where lock and entry contradict each other, or the lock was made for another file.
    """
    what = _named(payload, entry)
    asked = asked_of(payload, entry)
    lock = _lock_of(locks, payload, entry["name"])
    if lock is None:
        return dict(entry)
    if str(asked) != lock.of:
        raise FleetError(
            f"{what} is locked as another file",
            expected=f"a lock of {asked}" if asked else "no lock, since the inventory names no `repo`",
            found=f"one of {lock.of}",
            remedy=_AGAIN,
        )
    hub = f"which the hub has at commit {lock.revision}"
    mend = "Correct the inventory or name another revision, then run playbooks/lock.yml again"
    size = _told(entry, "bytes")
    if size is not None and size != lock.bytes:
        raise FleetError(f"{what}: bytes", expected=f"{size}, as declared", found=f"{lock.bytes}, {hub}", remedy=mend)
    full, prefix = _told(entry, "sha256"), entry.get("sha256_prefix")
    if full or prefix:
        digest = Digest.declared(what, full, prefix)
        if not digest.matches(lock.sha256):
            raise FleetError(
                f"{what}: sha256", expected=f"{digest}, as declared", found=f"{lock.sha256}, {hub}", remedy=mend
            )
    if asked and COMMIT.fullmatch(asked.revision) and asked.revision != lock.revision:
        raise FleetError(f"{what}: revision", expected=asked.revision, found=f"{lock.revision} (locked)", remedy=_AGAIN)
    kept = {key: value for key, value in entry.items() if key != "sha256_prefix"}
    return {**kept, "bytes": lock.bytes, "sha256": lock.sha256, "revision": lock.revision}


def wanted(tables: Iterable[Any]) -> list[Want]:
    """Every file of these ``llm_payloads`` (one for each host) that names a ``repo``.

    Raises FleetError where two entries of one payload and name ask for different files: they would share a lock.
    """
    wants: list[Want] = []
    asked_by: dict[tuple[str, str], Asked] = {}
    for table in tables:
        if not isinstance(table, Mapping):
            raise FleetError("llm_payloads", expected="a dictionary of payloads", found=type(table).__name__)
        for payload, given in table.items():
            files = given.get("files") if isinstance(given, Mapping) else None
            if not isinstance(files, list | tuple):
                raise FleetError(f"llm_payloads.{payload}.files", expected="a list", found=type(files).__name__)
            for entry in files:
                asked = asked_of(payload, entry)
                if asked is None:
                    continue
                first = asked_by.setdefault((payload, entry["name"]), asked)
                if first != asked:
                    raise FleetError(
                        f"payload {payload}: file {entry['name']!r} is declared twice",
                        expected=f"one file of the hub, as {first}",
                        found=f"also {asked}",
                        remedy="Give one of the two payloads another name",
                    )
                wants.append(Want(payload, entry["name"], entry, asked))
    return wants
