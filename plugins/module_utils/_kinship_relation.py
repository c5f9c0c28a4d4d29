# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One comparison between two files of a boot, and how a check's answer becomes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf

__all__ = ["Relation", "name_of", "number", "relation_of"]


@dataclass(frozen=True)
class Relation:
    """``what`` names the files compared; ``remedy`` is for a broken one; ``note`` is worth knowing either way."""

    name: str
    what: str
    expected: Any
    found: Any
    ok: bool
    remedy: str | None = None
    note: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a result: the note and the remedy only where they apply."""
        row = asdict(self)
        if self.ok:
            del row["remedy"]
        return {key: value for key, value in row.items() if value is not None}

    def noting(self, note: str) -> Relation:
        """The same with a note."""
        return replace(self, note=note)


def relation_of(name: str, what: str, expected: str, check: Callable[[], Any], remedy: str) -> Relation:
    """What ``check`` says: it returns what was found, or raises the FleetError that tells what is wrong."""
    try:
        found = check()
    except FleetError as exc:
        return Relation(name, f"{what}: {exc.what}", exc.expected, exc.found, False, exc.remedy or remedy)
    return Relation(name, what, expected, found, True, remedy)


def name_of(gguf: Gguf) -> str:
    """The file's own name, the first shard's for a set."""
    return gguf.shards[0].name


def number(gguf: Gguf, key: str) -> int:
    """The architecture's own value as a whole number from 1 up; a FleetError where it is none."""
    value = gguf.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FleetError(
            f"{gguf.architecture}.{key} in {name_of(gguf)}",
            expected="a whole number from 1 up",
            found="no such key" if value is None else repr(value),
            remedy="Fetch the file anew, or convert the model again",
        )
    return value
