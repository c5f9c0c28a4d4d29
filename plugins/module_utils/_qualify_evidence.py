# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence of a qualification: a folder of JSON files, their digests, and what is derived from them alone.

Each step of a run writes one file. The runbook and the state that becomes ready are functions of these files; they are
derived anew whenever they are verified, so that no number stands in them that the run did not see.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_write,
    make_dirs,
    read_json,
    read_optional,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_judge import faults
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_runbook import runbook

__all__ = ["FILES", "put", "read", "sha256", "state_of", "verify", "write_derived"]

# In the order in which a run writes them.
FILES = ("asked", "setup", "start", "truth", "probes", "pinning", "headroom", "window")
_DIGESTS = "digests.json"
_AGAIN = "Run qualify.yml with -e again=true: what a run did not measure is not qualified"


def sha256(data: bytes) -> str:
    """In hex."""
    return hashlib.sha256(data).hexdigest()


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def put(run: str, name: str, value: Any) -> None:
    """Write evidence ``name`` of the run in folder ``run``, and its digest beside those of the others."""
    make_dirs(run)
    digests = read_json(os.path.join(run, _DIGESTS)) or {}
    data = _text(value)
    atomic_write(os.path.join(run, f"{name}.json"), data)
    atomic_write(os.path.join(run, _DIGESTS), _text({**digests, f"{name}.json": sha256(data)}))


def read(run: str) -> tuple[dict[str, Any], str]:
    """(the evidence by name, the digest over all digests); a FleetError for a file that is not as the run wrote it."""
    listed = read_optional(os.path.join(run, _DIGESTS))
    digests = read_json(os.path.join(run, _DIGESTS))
    wanted = sorted(f"{name}.json" for name in FILES)
    if listed is None or not isinstance(digests, dict) or sorted(digests) != wanted:
        raise FleetError(
            f"evidence of the run {run}",
            expected=f"{_DIGESTS} with {', '.join(wanted)}",
            found=", ".join(sorted(digests)) if isinstance(digests, dict) else "none",
            remedy=_AGAIN,
        )
    found = {}
    for name in FILES:
        path = os.path.join(run, f"{name}.json")
        data = read_optional(path)
        if data is None or sha256(data) != digests[f"{name}.json"]:
            raise FleetError(
                f"evidence {path} is not what the run wrote",
                expected=f"sha256 {digests[f'{name}.json']}",
                found="no such file" if data is None else f"sha256 {sha256(data)}",
                remedy=_AGAIN,
            )
        found[name] = json.loads(data)
    return found, sha256(listed)


def state_of(evidence: Mapping[str, Any]) -> bytes:
    """The setup state to serve from: what the fork's setup wrote in the run, its own folder now the profile's."""
    told, asked = evidence["setup"]["state"], evidence["asked"]
    inside = f"{asked['scratch_dir']}/"
    home = os.path.dirname(asked["file"])
    config = {
        key: f"{home}/{value.removeprefix(inside)}" if value.startswith(inside) else value
        for key, value in told["config"].items()
    }
    return (json.dumps({**told, "config": config, "ready": True}, indent=2) + "\n").encode()


def _derived(evidence: Mapping[str, Any]) -> dict[str, bytes]:
    return {"runbook.md": runbook(evidence).encode(), "state.json": state_of(evidence)}


def write_derived(run: str) -> None:
    """Write runbook and state of a run; a FleetError where it does not qualify (see :func:`faults`)."""
    evidence, _digest = read(run)
    _require_qualified(run, evidence)
    for name, data in _derived(evidence).items():
        atomic_write(os.path.join(run, name), data, mode=0o600 if name == "state.json" else 0o644)


def verify(run: str, digest: str | None = None) -> dict[str, Any]:
    """The evidence of a run that qualified; a FleetError for any file of it, or any number in what is derived from
    them, that is not what the run saw. ``digest`` is the one that was sealed (see :func:`read`)."""
    evidence, found = read(run)
    if digest is not None and found != digest:
        raise FleetError(
            f"evidence of the run {run} is not what was sealed",
            expected=f"{_DIGESTS} with sha256 {digest}",
            found=f"sha256 {found}",
            remedy=_AGAIN,
        )
    _require_qualified(run, evidence)
    for name, data in _derived(evidence).items():
        path = os.path.join(run, name)
        if read_optional(path) != data:
            raise FleetError(
                f"{path} is not what follows from the run's evidence",
                expected=f"sha256 {sha256(data)}",
                found=f"sha256 {sha256(read_optional(path) or b'')}",
                remedy=_AGAIN,
            )
    return evidence


def _require_qualified(run: str, evidence: Mapping[str, Any]) -> None:
    wrong = faults(evidence)
    if wrong:
        first = wrong[0]
        raise FleetError(
            f"setup {evidence['asked']['setup']} of endpoint {evidence['asked']['endpoint']} does not qualify",
            expected="battery, truth, pinning and headroom, all of them",
            found="; ".join(one.words for one in wrong),
            remedy=first.remedy,
            evidence=run,
        )
