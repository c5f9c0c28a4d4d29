# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a placement: which experts of each layer lie hot on which rank, and what they weigh.

Its form is the fork's (version 1, read by its engine and held by its ``expert_budget.validate_manifest`` and
``expert_memory``): 48 layers, 512 experts, two ranks, the weights embedded as ``expert_memory``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import EXPERTS, LAYERS, ExpertCosts

__all__ = [
    "COSTS_SCHEMA",
    "RankMemory",
    "bootstrap",
    "catalog",
    "cold_bytes",
    "hot_of",
    "manifest_faults",
    "memory",
    "settings",
]

COSTS_SCHEMA = "r9v.expert-memory.v1"
_TOP_K = 10


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank: hot experts and cache slots on the card, the cold rest pinned in the host's memory."""

    rank: int
    hot_bytes: int
    cold_bytes: int
    cache_slots: int
    cache_bytes: int

    def as_dict(self) -> dict[str, int]:
        """For a result."""
        return asdict(self)


def catalog(costs: ExpertCosts, model_package: str, targets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The weights, as the fork embeds them in a manifest; ``targets`` are the package's shards."""
    return {
        "schema": COSTS_SCHEMA,
        "model_package": model_package,
        "num_layers": LAYERS,
        "num_experts": EXPERTS,
        "tensor_parallel_size": 2,
        "expert_partition": list(costs.partition),
        "packed_bytes_per_expert_by_layer_by_rank": {str(rank): list(costs.ranks[rank]) for rank in range(2)},
        "target_artifacts": [{key: row[key] for key in ("path", "bytes", "sha256")} for row in targets],
    }


def bootstrap(
    counts: Sequence[int], costs: ExpertCosts, costs_catalog: Mapping[str, Any], derivation: Mapping[str, Any]
) -> dict[str, Any]:
    """A manifest with the first ``counts[rank]`` experts of every layer hot. Their order means nothing: unranked."""
    return {
        "version": 1,
        "num_layers": LAYERS,
        "num_experts": EXPERTS,
        "top_k": _TOP_K,
        "placement": "uniform",
        "model_package": costs_catalog["model_package"],
        "ranks": {
            str(rank): {
                "hot_count": count,
                "hot_slots": count * LAYERS,
                "hot_bytes": count * costs.totals[rank],
                "hot_experts_by_layer": [list(range(count)) for _ in range(LAYERS)],
            }
            for rank, count in enumerate(counts)
        },
        "expert_memory": dict(costs_catalog),
        "r9v_derivation": dict(derivation),
    }


def hot_of(data: Mapping[str, Any], path: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many experts are hot in each layer, by rank; a FleetError where the manifest is not of the fork's form."""
    faults = _form_faults(data)
    if faults:
        raise FleetError(f"placement manifest {path}", expected="the fork's form, version 1", found="; ".join(faults))
    first, second = (
        tuple(len(layer) for layer in data["ranks"][str(rank)]["hot_experts_by_layer"]) for rank in range(2)
    )
    return first, second


def _form_faults(data: Mapping[str, Any]) -> list[str]:
    wanted = {"version": 1, "num_layers": LAYERS, "num_experts": EXPERTS}
    faults = [f"{key} {data.get(key)!r}, not {value}" for key, value in wanted.items() if data.get(key) != value]
    if data.get("top_k", _TOP_K) != _TOP_K:
        faults.append(f"top_k {data['top_k']!r}, not {_TOP_K}")
    ranks = data.get("ranks")
    if not isinstance(ranks, Mapping) or set(ranks) != {"0", "1"}:
        return [*faults, "ranks are not 0 and 1"]
    for rank, entry in sorted(ranks.items()):
        faults += [f"rank {rank}: {fault}" for fault in _rank_faults(entry)]
    return faults


def _rank_faults(entry: Any) -> list[str]:
    layers = entry.get("hot_experts_by_layer") if isinstance(entry, Mapping) else None
    if not isinstance(layers, list) or len(layers) != LAYERS:
        return [f"hot_experts_by_layer is no list of {LAYERS}"]
    for number, ids in enumerate(layers):
        if not isinstance(ids, list) or not ids:
            return [f"layer {number} has no hot expert, and the engine needs one"]
        if any(type(each) is not int or not 0 <= each < EXPERTS for each in ids) or len(set(ids)) != len(ids):
            return [f"layer {number}: hot experts are not different numbers from 0 to {EXPERTS - 1}"]
    counts = [len(ids) for ids in layers]
    faults = []
    if "hot_count" in entry and any(count != entry["hot_count"] for count in counts):
        faults.append(f"hot_count {entry['hot_count']!r}, and the lists hold {min(counts)} to {max(counts)}")
    if "hot_slots" in entry and entry["hot_slots"] != sum(counts):
        faults.append(f"hot_slots {entry['hot_slots']!r}, and the lists hold {sum(counts)}")
    return faults


def manifest_faults(data: Mapping[str, Any], costs: ExpertCosts, path: str) -> list[str]:
    """What of the manifest the shards' own headers (``costs``) belie, in words; [] when every number is theirs."""
    counts = hot_of(data, path)
    faults = []
    for rank in range(2):
        declared = data["ranks"][str(rank)].get("hot_bytes")
        real = sum(count * cost for count, cost in zip(counts[rank], costs.ranks[rank], strict=True))
        if declared != real:
            number = f"{declared:,}" if type(declared) is int else repr(declared)
            told = "no hot_bytes" if declared is None else f"hot_bytes {number}"
            faults.append(f"rank {rank}: {told}, and {real:,} by the shards' headers")
    embedded = data.get("expert_memory")
    if isinstance(embedded, Mapping):
        faults += _catalog_faults(embedded, costs)
    return faults


def _weights(embedded: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """What one expert of each layer takes of each rank, as a manifest embeds it; [] where it does not say."""
    by_rank = embedded.get("packed_bytes_per_expert_by_layer_by_rank")
    if by_rank is None:
        both = embedded.get("packed_bytes_per_expert_by_layer_per_rank")
        by_rank = {"0": both, "1": both}
    told = [by_rank.get(rank) if isinstance(by_rank, Mapping) else None for rank in ("0", "1")]
    first, second = (rows if isinstance(rows, list) else [] for rows in told)
    return first, second


def cold_bytes(data: Mapping[str, Any], path: str) -> int:
    """What the placement leaves in host memory, by its own lists and weights: (512 - hot) x bytes, layer by layer and
    rank by rank. A FleetError where the manifest is not of the fork's form, or embeds no weights."""
    counts, embedded = hot_of(data, path), data.get("expert_memory")
    weights = _weights(embedded if isinstance(embedded, Mapping) else {})
    for rows in weights:
        if len(rows) != LAYERS or any(type(each) is not int for each in rows):
            raise FleetError(
                f"placement manifest {path}",
                expected=f"expert_memory, whose weights are {LAYERS} numbers for each rank",
                found=f"{len(rows)} of them",
                remedy="Write it with r9v_placement, or have the fork's tools embed them",
            )
    return sum(
        (EXPERTS - count) * weight
        for hot, rows in zip(counts, weights, strict=True)
        for count, weight in zip(hot, rows, strict=True)
    )


def _catalog_faults(embedded: Mapping[str, Any], costs: ExpertCosts) -> list[str]:
    weights = _weights(embedded)
    faults = []
    if embedded.get("expert_partition", [320, 320]) != list(costs.partition):
        faults.append(f"expert_memory: partition {embedded.get('expert_partition')}, not {list(costs.partition)}")
    for rank in range(2):
        told, real = weights[rank], list(costs.ranks[rank])
        if told != real:
            layer = next((n for n, (a, b) in enumerate(zip(told, real, strict=False)) if a != b), 0)
            found = told[layer] if layer < len(told) else "nothing"
            faults.append(f"expert_memory: rank {rank}, layer {layer}: {found}, and {real[layer]} by the headers")
    return faults


def memory(
    counts: Sequence[Sequence[int]], costs: ExpertCosts, slots: int, cache_ranks: Sequence[int]
) -> list[RankMemory]:
    """What a placement takes of card and host, rank by rank; a cache slot holds one expert in every layer.

    Hot: sum over layers of count x bytes; cold: (512 - count) x bytes; cache: slots x bytes of every layer (the fork's
    ``expert_memory``, synchronous cache).
    """
    rows = []
    for rank in range(2):
        pairs = list(zip(counts[rank], costs.ranks[rank], strict=True))
        held = slots if rank in cache_ranks else 0
        rows.append(
            RankMemory(
                rank,
                sum(count * cost for count, cost in pairs),
                sum((EXPERTS - count) * cost for count, cost in pairs),
                held,
                held * costs.totals[rank],
            )
        )
    return rows


def settings(
    counts: Sequence[Sequence[int]], rows: Sequence[RankMemory], costs: ExpertCosts, path: str
) -> dict[str, str]:
    """The lines of the profile that must agree with the placement. The fork's effective maximum of a rank is its hot
    experts and its cache slots together."""
    most = ",".join(str(max(counts[row.rank]) + row.cache_slots) for row in rows)
    return {
        "R9V_EXPERT_MANIFEST_PATH": path,
        "R9V_EXPERT_TP_SPLIT": ",".join(map(str, costs.partition)),
        "R9V_MAX_EFFECTIVE_EXPERTS_PER_RANK": most,
    }
