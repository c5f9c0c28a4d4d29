# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The qualified sibling of a profile: what its placement was measured with, held against its own shards.

A new profile's hot experts are counted from these bytes and from nothing else. No number is taken from a person: the
setup state must be ready (the fork writes that after a start that passed), name the manifest that was served, and that
manifest's ``hot_bytes`` must be what the headers of the sibling's shards make of its lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import expert_costs, parse_partition
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import digest_of, read_object
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_manifest import manifest_faults
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import State, faults_of, read_state

__all__ = ["Sibling", "read_sibling"]

_DEFAULT_SPLIT = "320,320"  # the fork's, where a profile says nothing


@dataclass(frozen=True)
class Sibling:
    """Where the budget comes from: two files with their digests, and the bytes that were hot on each rank."""

    state_path: str
    state_sha256: str
    profile_id: str
    manifest_path: str
    manifest_sha256: str
    hot_bytes: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """As a manifest's derivation keeps it."""
        return {**asdict(self), "hot_bytes": list(self.hot_bytes)}


def _setting(state: State, key: str) -> str:
    value = state.config.get(key)
    if not value:
        raise FleetError(
            f"setup state {state.path} of the sibling",
            expected=f"config.{key}",
            found="none",
            remedy="Name the state of a profile with a fixed placement: hot bytes are taken from what it served",
        )
    return value


def _checked(manifest: Mapping[str, Any], path: str, state: State) -> tuple[int, int]:
    """The hot bytes of both ranks, once the sibling's own headers come to the same."""
    target = os.path.join(state.config["R9V_MODEL_DIR"], _setting(state, "R9V_TARGET_REL"))
    split = parse_partition(
        state.config.get("R9V_EXPERT_TP_SPLIT") or _DEFAULT_SPLIT, f"setup state {state.path}: R9V_EXPERT_TP_SPLIT"
    )
    costs = expert_costs(target, read_gguf(target, keys=()), split)
    faults = manifest_faults(manifest, costs, path)
    if faults:
        raise FleetError(
            f"the sibling's placement manifest {path} is not of its shards",
            expected=f"the bytes that {target} and its other shards come to",
            found="; ".join(faults),
            remedy="Hot bytes are never invented: name the state whose manifest was measured",
        )
    return manifest["ranks"]["0"]["hot_bytes"], manifest["ranks"]["1"]["hot_bytes"]


def read_sibling(state_path: str) -> Sibling:
    """The sibling whose setup state lies at ``state_path``; a FleetError where a number of it cannot be proven."""
    state = read_state(state_path)
    faults = faults_of(state, None)
    if faults:
        raise FleetError(
            f"what the sibling's setup state {state_path} names is not whole",
            expected="every file as its setup verified it",
            found="; ".join(faults),
            remedy="Have the files back: hot bytes are held against the sibling's own shards",
        )
    path = _setting(state, "R9V_EXPERT_MANIFEST_PATH")
    hot = _checked(read_object(path, "the sibling's placement manifest"), path, state)
    return Sibling(state_path, digest_of(state_path), state.profile_id, path, digest_of(path), hot)
