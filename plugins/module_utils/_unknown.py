# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says that it does not know: validation lets it pass, and no deploy begins with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["UNKNOWN", "Gap", "endpoint_gaps", "payload_gaps", "refuse_gaps", "runtime_gaps"]

UNKNOWN = "unknown"
_OF_FILE = ("name", "bytes", "sha256", "revision")
_OF_SOURCE = ("sha256", "archive_sha256")
_LOCK = "Run playbooks/lock.yml, which asks the hub for the files that declare `repo`"
_HAND = "Write bytes and sha256 as `stat -c %s` and `sha256sum` tell them of a file that you trust"
_SOURCE = "Write the sha256 that the publisher states of the runtime's source"
_PATH = "Write the whole paths on the host in the endpoint's env"


@dataclass(frozen=True)
class Gap:
    """Keys of one thing whose value is ``unknown``, and what gives their values."""

    owner: str  # such as "payload chat"
    part: str  # a file, or a dictionary of the owner's
    keys: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return f"{self.part} ({', '.join(self.keys)})"


def _unknown(entry: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if entry.get(key) == UNKNOWN)


def payload_gaps(payload: Mapping[str, Any]) -> list[Gap]:
    """Of an entry of ``llm_payloads`` with its ``name``: one for each file that has a gap."""
    found = []
    for entry in payload.get("files") or ():
        keys = _unknown(entry, _OF_FILE) if isinstance(entry, Mapping) else ()
        if keys:
            part = f"the {entry.get('role')}" if "name" in keys else str(entry.get("name"))
            remedy = _LOCK if entry.get("repo") and "name" not in keys else _HAND
            found.append(Gap(f"payload {payload.get('name')}", part, keys, remedy))
    return found


def runtime_gaps(runtime: Mapping[str, Any]) -> list[Gap]:
    """Of an entry of ``llm_runtimes`` with its ``name``."""
    source = runtime.get("source")
    keys = _unknown(source, _OF_SOURCE) if isinstance(source, Mapping) else ()
    return [Gap(f"runtime {runtime.get('name')}", "source", keys, _SOURCE)] if keys else []


def endpoint_gaps(name: str, keys: Sequence[str]) -> list[Gap]:
    """Of an endpoint whose env lines ``keys`` are unknown (see ``_envspec.unknown_keys``)."""
    return [Gap(f"endpoint {name}", "env", tuple(keys), _PATH)] if keys else []


def refuse_gaps(gaps: Sequence[Gap]) -> None:
    """One FleetError that names every gap, with what fills it; nothing where there is none."""
    if not gaps:
        return
    owners = {gap.owner: [str(other) for other in gaps if other.owner == gap.owner] for gap in gaps}
    raise FleetError(
        f"{' and '.join(owners)} cannot be deployed: the inventory does not know all of it",
        expected=f"values in place of `{UNKNOWN}`",
        found="; ".join(f"{owner}: {', '.join(parts)}" for owner, parts in owners.items()),
        remedy=". ".join(dict.fromkeys(gap.remedy for gap in gaps)),
        unknown=[{"of": gap.owner, "part": gap.part, "keys": list(gap.keys)} for gap in gaps],
    )
