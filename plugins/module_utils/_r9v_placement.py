# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A placement bootstrap for a new R9V profile: hot experts by a sibling's measured bytes, in the fork's wrapper.

Every number of it is from a file: bytes of an expert from the shards' headers, the budget from a sibling that was
qualified, sizes and digests from the package. It says of itself that it certifies nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import (
    EXPERTS,
    ExpertCosts,
    expert_costs,
    expert_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import Draft, json_text, read_object
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_manifest import (
    bootstrap,
    catalog,
    hot_of,
    memory,
    settings,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_package import read_package, target_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_sibling import Sibling, read_sibling
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_trim import Headroom, trimmed

__all__ = ["HARDWARE", "KEYS", "SCHEMA", "SCOPE", "Request", "Sources", "draft", "hot_counts", "read_sources", "tell"]

SCHEMA = "r9v.placement.v1"
HARDWARE = "dual-r9700-32gb-asymmetric"
SCOPE = "Unranked routing bootstrap only; does not certify fit or headroom"
KEYS = ("schema", "id", "model_package", "hardware", "artifact_path", "artifact_sha256", "scope")
_METHOD = "floor(hot_bytes of the sibling / bytes of one expert in every layer), unranked"
_DEFAULT_SLOTS = 16  # what the fork allows a runtime that does not say more


@dataclass(frozen=True)
class Request:
    """Paths on the host; ``path`` is the wrapper's, ``manifest`` that of what it wraps."""

    checkout: str
    profile: str
    package: str
    model_dir: str
    path: str
    manifest: str
    runtime: str | None
    cache_slots: int
    cache_ranks: tuple[int, ...]

    @classmethod
    def from_params(cls, given: Mapping[str, Any]) -> Request:
        """From the module's options; paths of the checkout may be relative to it."""
        checkout = os.path.normpath(given["checkout"])
        ranks = tuple(sorted(set(given["cache_ranks"])))
        if not set(ranks) <= {0, 1} or given["cache_slots"] < 0:
            raise FleetError(
                "cache_slots and cache_ranks",
                expected="0 slots or more, ranks 0 and 1",
                found=f"{given['cache_slots']} on {list(ranks)}",
            )

        def inside(name: str) -> str:
            return os.path.normpath(os.path.join(checkout, str(given[name])))

        return cls(
            checkout=checkout,
            profile=inside("profile"),
            package=inside("package"),
            model_dir=os.path.normpath(given["model_dir"]),
            path=inside("path"),
            manifest=inside("manifest"),
            runtime=inside("runtime") if given["runtime"] else None,
            cache_slots=given["cache_slots"],
            cache_ranks=ranks,
        )


@dataclass(frozen=True)
class Sources:
    """What was read: the profile's descriptor, the package, and what the experts weigh by its shards."""

    profile: Mapping[str, Any]
    package: Mapping[str, Any]
    targets: tuple[Mapping[str, Any], ...]
    costs: ExpertCosts


def hot_counts(hot_bytes: Sequence[int], costs: ExpertCosts) -> tuple[int, int]:
    """How many experts of every layer the sibling's bytes hold, rank by rank: floor(hot bytes / bytes of one).

    With the uncensored IQ4_XS profile as sibling (62 and 428 hot) and Q8_0 shards: 28 and 198. With 80 cache slots on
    rank 0 these are the maxima 108 and 198 that the fork's doctor told.
    """
    found = [min(EXPERTS, budget // total) for budget, total in zip(hot_bytes, costs.totals, strict=True)]
    for rank, count in enumerate(found):
        if count < 1:
            raise FleetError(
                f"the sibling's hot bytes of rank {rank}",
                expected=f"at least one expert of every layer, {costs.totals[rank]:,} bytes",
                found=f"{hot_bytes[rank]:,}",
                remedy="Name a sibling with a larger budget; the engine needs one hot expert in every layer",
            )
    return found[0], found[1]


def _ids(profile: Mapping[str, Any], package: Mapping[str, Any], request: Request) -> list[str]:
    """Where profile, package and hardware name each other otherwise."""
    faults = []
    if not isinstance(profile.get("placement"), str) or not profile["placement"]:
        faults.append(f"{request.profile} names no placement")
    if profile.get("model_package") != package["id"]:
        faults.append(
            f"{request.profile} has model_package {profile.get('model_package')}, the package is {package['id']}"
        )
    if profile.get("hardware") != HARDWARE:
        faults.append(f"{request.profile} has hardware {profile.get('hardware')}, and this is for {HARDWARE}")
    return faults


def _runtime_faults(request: Request, costs: ExpertCosts, gguf: Gguf) -> list[str]:
    """What the runtime's descriptor does not allow: cache slots, the partition, a type of the experts."""
    can = read_object(request.runtime, "runtime").get("capabilities", {}) if request.runtime else {}
    limit, types = can.get("max_cache_slots", _DEFAULT_SLOTS), can.get("target_qtypes")
    faults = []
    if request.cache_slots > limit:
        of = request.runtime or "a runtime that is not named"
        faults.append(f"{request.cache_slots} cache slots, and {of} has at most {limit}")
    partitions = can.get("expert_channel_partitions", [list(costs.partition)])
    if list(costs.partition) not in partitions:
        faults.append(f"partition {list(costs.partition)} is none of the runtime's {partitions}")
    used = {str(t.type_name).upper() for t in gguf.tensors if expert_of(t.name) is not None}
    strange = sorted(used - set(types)) if types is not None else []
    return faults + [f"experts of type {kind}, which the runtime does not read" for kind in strange]


def read_sources(request: Request) -> Sources:
    """Read profile, package and headers; a FleetError where they contradict each other."""
    profile, package = read_object(request.profile, "profile"), read_package(request.package)
    targets = tuple(row for row in package["artifacts"] if row["role"] == "target")
    first, gguf = target_of(package, request.model_dir)
    faults = _ids(profile, package, request)
    for row in targets:
        size = os.path.getsize(os.path.join(request.model_dir, row["path"]))
        if size != row["bytes"]:
            faults.append(f"{row['path']} has {size:,} bytes, and the package says {row['bytes']:,}")
    if faults:
        raise FleetError(
            f"placement for {request.profile}",
            expected="one id for the package, one for the hardware, shards as the package has them",
            found="; ".join(faults),
            remedy="Correct the file that is wrong; r9v_package with state verified tells every lie of a package",
        )
    costs = expert_costs(first, gguf)
    faults = _runtime_faults(request, costs, gguf)
    if faults:
        raise FleetError(
            "the runtime cannot serve this placement", expected="what it is made for", found="; ".join(faults)
        )
    return Sources(profile, package, targets, costs)


def _served(request: Request, room: Headroom, most: Sequence[int]) -> tuple[int, int]:
    """The hot counts that the run of ``room`` served with: those of the manifest that is there, or, where that was
    trimmed by this very run already, those before."""
    manifest = read_object(request.manifest, "placement manifest")
    told = manifest.get("r9v_derivation", {}).get("headroom", {})
    first, second = (max(row) for row in hot_of(manifest, request.manifest))
    if told.get("sha256") == room.sha256:
        first, second = told["hot_counts"]
    if first > most[0] or second > most[1]:
        raise FleetError(
            f"placement manifest {request.manifest}",
            expected=f"at most {most[0]} and {most[1]} hot experts, which the sibling's bytes hold",
            found=f"{first} and {second}",
            remedy="Write it anew without headroom first",
        )
    return first, second


def _derivation(sibling: Sibling, counts: Sequence[int], room: Mapping[str, Any] | None) -> dict[str, Any]:
    told = {
        "method": _METHOD,
        "qualification": "unqualified; routing, fit and headroom must be measured",
        "sibling": sibling.as_dict(),
        "hot_counts": list(counts),
    }
    return told if room is None else {**told, "headroom": dict(room)}


def _wrapper(request: Request, sources: Sources, manifest_text: str) -> dict[str, Any]:
    artifact = os.path.relpath(request.manifest, request.checkout)
    if artifact.startswith(".."):
        raise FleetError(f"manifest {request.manifest}", expected=f"a path below {request.checkout}", found="another")
    values = (
        SCHEMA,
        sources.profile["placement"],
        sources.package["id"],
        HARDWARE,
        artifact,
        hashlib.sha256(manifest_text.encode("utf-8")).hexdigest(),
        SCOPE,
    )
    return dict(zip(KEYS, values, strict=True))


def draft(request: Request, sources: Sources, sibling_state: str, room: Headroom | None = None) -> list[Draft]:
    """Manifest and wrapper as they shall be, in the order in which they are written.

    ``room`` is what a run with the manifest that is there measured: hot counts are lowered by it.
    """
    sibling = read_sibling(sibling_state)
    counts, less = hot_counts(sibling.hot_bytes, sources.costs), None
    if room is not None:
        served = _served(request, room, counts)
        counts, less = trimmed(served, room, sources.costs), {**room.as_dict(), "hot_counts": list(served)}
    weights = catalog(sources.costs, sources.package["id"], sources.targets)
    text = json_text(bootstrap(counts, sources.costs, weights, _derivation(sibling, counts, less)))
    return [Draft(request.manifest, text), Draft(request.path, json_text(_wrapper(request, sources, text)))]


def tell(request: Request, sources: Sources, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the placement takes, and the profile's lines that go with it."""
    counts = hot_of(manifest, request.manifest)
    rows = memory(counts, sources.costs, request.cache_slots, request.cache_ranks)
    return {
        "id": sources.profile["placement"],
        "hot_counts": [max(row) for row in counts],
        "bytes_per_expert": list(sources.costs.totals),
        "memory": [row.as_dict() for row in rows],
        "settings": settings(counts, rows, sources.costs, request.manifest),
    }
