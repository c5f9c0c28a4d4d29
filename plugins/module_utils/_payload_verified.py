# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload looked at and left alone: every file that is not the declared one, told together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._meter import Meter
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import Done, examine, hold_headers, result_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_facts import observe, owner_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import FileFacts, PayloadSpec, Step, plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

__all__ = ["verified"]


def _lies(
    spec: PayloadSpec, facts: Mapping[str, FileFacts], steps: Sequence[Step], faults: Mapping[str, FleetError]
) -> list[dict[str, str]]:
    """``{path, expected, found}`` of each file that is not there, not what it should be, or at fault by its path."""
    lies = []
    for step in steps:
        path = spec.path(step.file)
        if path in faults:
            found = faults[path].message
        elif step.action in ("fetched", "linked"):
            found = step.why if facts[step.file.name].identity is not None else "no such file"
        else:
            continue
        expected = f"{step.file.bytes} bytes of sha256 {step.file.digest}"
        lies.append({"path": path, "expected": expected, "found": found})
    return lies


def verified(spec: PayloadSpec, *, progress: Progress, plan_only: bool = False) -> dict[str, Any]:
    """Hold every file against its declaration; nothing is written, not even a stamp.

    Which files are read is for ``spec.max_age_s``. With ``plan_only`` none is: ``work`` says whether one would be.
    A FleetError names all files that are not the declared ones (``lies`` in its facts).
    """
    owner, warnings = owner_of(spec, True)
    faults: dict[str, FleetError] = {}
    facts = observe(spec, owner, faults)
    steps = plan(spec, facts, owner)
    work = not all(step.known for step in steps)
    quiet = {"changed": False, "failures": [], "warnings": warnings, "diff": {}}
    if work and plan_only:
        return result_of(spec, facts, steps, {}, owner) | quiet | {"work": True}
    done: dict[str, Done] = {}
    facts = examine(spec, facts, steps, Meter(progress), done, faults)
    steps = plan(spec, facts, owner)
    in_place = [step for step in steps if step.action not in ("fetched", "linked")]
    hold_headers(spec, facts, in_place, deep=True, faults=faults)
    lies = _lies(spec, facts, steps, faults)
    if lies:
        raise FleetError(
            f"payload {spec.name}: {len(lies)} of {len(steps)} files are not the declared ones",
            expected="; ".join(f"{lie['path']}: {lie['expected']}" for lie in lies),
            found="; ".join(f"{lie['path']}: {lie['found']}" for lie in lies),
            remedy="site.yml fetches them anew; playbooks/verify.yml tells whether what serves read the wrong bytes",
            lies=lies,
        )
    warnings += [f"{spec.path(step.file)}: mode or owner is not as declared" for step in steps if step.mend]
    return result_of(spec, facts, steps, done, owner) | quiet | {"work": work}
