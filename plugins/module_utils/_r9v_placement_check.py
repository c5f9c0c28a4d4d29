# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A placement that is there, held against the files that its numbers are from: every lie is told, in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import digest_of, read_object
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_manifest import hot_of, manifest_faults
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_placement import (
    HARDWARE,
    KEYS,
    SCHEMA,
    SCOPE,
    Request,
    Sources,
    hot_counts,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_sibling import read_sibling
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_trim import read_headroom, trimmed

__all__ = ["require_placement", "wrapper_faults"]


def wrapper_faults(wrapper: Mapping[str, Any], request: Request, sources: Sources) -> list[str]:
    """What of the wrapper is not the schema's, or names another profile, package or manifest."""
    faults = [f"no {key}" for key in KEYS if key not in wrapper]
    faults += [f"{key} is no key of {SCHEMA}" for key in sorted(set(wrapper) - set(KEYS))]
    wanted = {
        "schema": SCHEMA,
        "id": sources.profile["placement"],
        "model_package": sources.package["id"],
        "hardware": HARDWARE,
        "scope": SCOPE,
        "artifact_sha256": digest_of(request.manifest),
    }
    faults += [
        f"{key} is {wrapper[key]!r}, not {value!r}"
        for key, value in wanted.items()
        if key in wrapper and wrapper[key] != value
    ]
    # The fork's own placements name it relative to the model folder, a bootstrap relative to the checkout.
    homes = (request.checkout, request.model_dir)
    artifact = wrapper.get("artifact_path")
    if artifact is not None and request.manifest not in [
        os.path.normpath(os.path.join(home, str(artifact))) for home in homes
    ]:
        faults.append(f"artifact_path is {artifact!r}, which is not {request.manifest}")
    return faults


def _source_faults(manifest: Mapping[str, Any], sources: Sources, path: str) -> list[str]:
    """What the manifest says of its sources, against them."""
    faults = []
    embedded = manifest.get("expert_memory")
    embedded = embedded if isinstance(embedded, Mapping) else {}
    if embedded.get("model_package") != sources.package["id"]:
        faults.append(f"expert_memory is of {embedded.get('model_package')}, not of {sources.package['id']}")
    targets = [{key: row[key] for key in ("path", "bytes", "sha256")} for row in sources.targets]
    if embedded.get("target_artifacts") != targets:
        faults.append("expert_memory: target_artifacts are not the package's shards")
    told = manifest.get("r9v_derivation")
    told = told.get("sibling") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(told.get("state_path"), str):
        return [*faults, "r9v_derivation names no sibling: hot counts without a measurement are invented"]
    sibling = read_sibling(told["state_path"])
    faults += [
        f"sibling.{key} is {told.get(key)!r}, not {value!r}"
        for key, value in sibling.as_dict().items()
        if told.get(key) != value
    ]
    most = hot_counts(sibling.hot_bytes, sources.costs)
    found = [max(counts) for counts in hot_of(manifest, path)]
    for rank, count in enumerate(found):
        if count > most[rank]:
            faults.append(f"rank {rank}: {count} hot experts, and the sibling's bytes hold {most[rank]}")
    room = manifest["r9v_derivation"].get("headroom")
    return faults if room is None else faults + _headroom_faults(room, found, most, sources)


def _headroom_faults(told: Any, found: Sequence[int], most: Sequence[int], sources: Sources) -> list[str]:
    """What the manifest says of the run that it was trimmed by, against that run's evidence."""
    keys = {"path", "sha256", "floor_gib", "cards", "free_mib", "hot_counts"}
    if not isinstance(told, Mapping) or set(told) != keys:
        return [f"r9v_derivation.headroom has not the keys {', '.join(sorted(keys))}"]
    room = read_headroom(str(told["path"]), list(told["cards"]))
    faults = [
        f"headroom.{key} is {told[key]!r}, not {value!r}" for key, value in room.as_dict().items() if told[key] != value
    ]
    served = list(told["hot_counts"])
    if len(served) != 2 or any(not isinstance(n, int) or n > limit for n, limit in zip(served, most, strict=False)):
        return [*faults, f"headroom.hot_counts are {served}, and the sibling's bytes hold {list(most)}"]
    wanted = list(trimmed(served, room, sources.costs))
    return (
        faults if wanted == list(found) else [*faults, f"hot experts {list(found)}, and {wanted} by the headroom run"]
    )


def require_placement(request: Request, sources: Sources) -> dict[str, Any]:
    """The manifest, once wrapper and manifest hold; a FleetError tells everything that does not (``lies``)."""
    wrapper = read_object(request.path, "placement")
    manifest = read_object(request.manifest, "placement manifest")
    lies = wrapper_faults(wrapper, request, sources)
    lies += manifest_faults(manifest, sources.costs, request.manifest)
    lies += _source_faults(manifest, sources, request.manifest)
    if lies:
        raise FleetError(
            f"placement {request.path} is not what its sources make of it",
            expected="every number as its file has it",
            found="; ".join(lies),
            remedy="Write it anew with state present; after a trim of the fork's, lower hot counts alone may differ",
            lies=lies,
        )
    return manifest
