# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a payload in the inventory, and what is right but weaker than it could be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import (
    FILE,
    PAYLOAD,
    check_digest,
    check_keys,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._lock import fill
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import UNKNOWN, payload_gaps

__all__ = ["judge_payload"]


def _missing(file: str, entry: Mapping[str, Any]) -> Iterable[str]:
    """A file's size must be declared or locked; of a hub's file, the revision too."""
    remedy = " Run playbooks/lock.yml: it asks the hub." if entry.get("repo") else ""
    if "bytes" not in entry:
        yield f"{file}.bytes is missing; expected {FILE['bytes'].expected}.{remedy}"
    if entry.get("repo") and "revision" not in entry:
        yield f"{file}.revision is missing; expected a commit, a tag or a branch.{remedy}"


def judge_payload(name: str, given: Any, locks: Any, *, used: bool) -> tuple[list[str], list[str]]:
    """(problems, warnings) of ``llm_payloads.<name>``; what ``locks`` say of its files counts as declared.

    Of a payload that no endpoint of the host names (``used``), only what is unknown is a warning.
    """
    where = f"llm_payloads.{name}"
    problems = check_keys(where, given, PAYLOAD)
    if problems:
        return problems, []
    names, weak, unknown = [], [], 0
    for number, entry in enumerate(given["files"]):
        file = f"{where}.files[{entry.get('name', number)}]"
        names.append(entry.get("name"))
        faults = check_keys(file, entry, FILE)
        try:
            entry = entry if faults else fill(name, entry, locks)
        except FleetError as exc:
            faults.append(exc.message)
        faults += _missing(file, entry)
        found, prefixes = check_digest(file, entry)
        problems += faults + found
        gaps = payload_gaps({"files": [entry]})
        if gaps or prefixes:
            part = gaps[0].part if gaps else entry.get("name")
            weak.append(f"{part} ({UNKNOWN if gaps else 'a prefix'})")
            unknown += len(gaps)
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"{where} declares {', '.join(twice)} twice. Keep one entry for each file.")
    if weak and used:
        return problems, [f"{where}: no full size, sha256 and revision for {', '.join(weak)}"]
    if unknown:
        words = f"{unknown} of its {len(names)} files have an {UNKNOWN} size, sha256 or revision"
        return problems, [f"{where}: no endpoint of this host names it, and {words}"]
    return problems, []
