# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says of a runtime's proof, and what that means for the endpoints on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import (
    PATCH,
    PROOF,
    TOOLKIT,
    check_keys,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import parse_expect

__all__ = ["runtime_problems", "unusable"]


def runtime_problems(where: str, given: Mapping[str, Any]) -> list[str]:
    """Everything wrong with a runtime's toolkit, proof and patches."""
    problems = []
    for key, fields in (("toolkit", TOOLKIT), ("proof", PROOF)):
        if isinstance(given.get(key), Mapping):
            problems += check_keys(f"{where}.{key}", given[key], fields)
    source = given.get("source")
    patches = source.get("patches") if isinstance(source, Mapping) else None
    for number, patch in enumerate(patches if isinstance(patches, (list, tuple)) else ()):
        problems += check_keys(f"{where}.source.patches[{number}]", patch, PATCH)
    if not problems:
        try:
            parse_expect(where, str(given.get("arch") or ""), given.get("proof") or {}, built=True)
        except FleetError as exc:
            problems.append(exc.message)
    return problems


def unusable(where: str, name: str, runtime: Any, env: Mapping[str, Any], rungs: Mapping[str, Any]) -> Iterable[str]:
    """Why an endpoint cannot run on the runtime ``name``: it is to be removed, or lacks the flag of an env key."""
    if not isinstance(runtime, Mapping):
        return
    if runtime.get("state") == "absent":
        yield f"{where}.runtime {name} is absent in llm_runtimes. Name another, or let it be present."
    proof = runtime.get("proof")
    without = proof.get("without_keys") if isinstance(proof, Mapping) else None
    for key in without if isinstance(without, (list, tuple)) else ():
        places = ["env"] if key in env else []
        places += [f"rungs.{rung}" for rung, lines in rungs.items() if isinstance(lines, Mapping) and key in lines]
        for place in places:
            yield f"{where}.{place}.{key}: runtime {name} has no flag for it (proof.without_keys). Take the line out."
