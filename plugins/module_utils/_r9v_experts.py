# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the routed experts of an R9V target weigh, by the headers of its own shards, and how two ranks share them.

A tensor's bytes reach from its offset to the next one in its shard: a table of type sizes would misjudge a tail without
a word. A rank holds a slice of each expert's channels: 416 of 640 by the profile that this is for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, Tensor

__all__ = [
    "CHANNELS",
    "EXPERTS",
    "KINDS",
    "LAYERS",
    "PARTITION",
    "ExpertCosts",
    "expert_costs",
    "expert_of",
    "extents",
    "parse_partition",
]

# The fork's manifest has room for exactly this target.
LAYERS, EXPERTS, CHANNELS = 48, 512, 640
PARTITION = (416, 224)
KINDS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_WIDTHS = (192, 224, 320, 416, 448)  # what the fork's kernels are made for
_REMEDY = "Take the shards that the fork's adapter reads: one tensor each for gate, up and down in every layer"


@dataclass(frozen=True)
class ExpertCosts:
    """Bytes of one expert, layer by layer: whole, and as each rank holds it."""

    partition: tuple[int, int]
    full: tuple[int, ...]
    ranks: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def totals(self) -> tuple[int, int]:
        """What one expert in every layer takes of each rank, in bytes."""
        return sum(self.ranks[0]), sum(self.ranks[1])


def parse_partition(text: str, where: str) -> tuple[int, int]:
    """``416,224`` as the fork's ``R9V_EXPERT_TP_SPLIT`` has it; a FleetError that names ``where`` for anything else."""
    parts = text.split(",")
    widths = tuple(int(part) for part in parts if part.strip().isdigit())
    if len(parts) != 2 or len(widths) != 2 or sum(widths) != CHANNELS or not set(widths) <= set(_WIDTHS):
        known = ", ".join(map(str, _WIDTHS))
        raise FleetError(where, expected=f"two of {known} with the sum {CHANNELS}", found=repr(text))
    return widths[0], widths[1]


def expert_of(name: str) -> tuple[int, str] | None:
    """(layer, kind) of an expert tensor, None for any other tensor.

    ``blk.7.ffn_up_exps.weight`` has four parts, the layer is the second. A name that speaks of experts and is made
    otherwise is a FleetError: what it holds would be left out of every sum.
    """
    parts = name.split(".")
    if not any(part.endswith("_exps") for part in parts):
        return None
    if (
        len(parts) != 4
        or parts[0] != "blk"
        or not parts[1].isdecimal()
        or parts[2] not in KINDS
        or parts[3] != "weight"
    ):
        raise FleetError(
            f"expert tensor {name!r}",
            expected=f"blk.LAYER.KIND.weight, KIND one of {', '.join(KINDS)}",
            found=f"{len(parts)} parts",
            remedy=_REMEDY,
        )
    return int(parts[1]), parts[2]


def extents(gguf: Gguf) -> dict[str, int]:
    """Bytes of each tensor by consecutive offsets: up to the next one of its shard, the last up to the file's end."""
    by_shard: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in gguf.tensors:
        by_shard[tensor.shard].append(tensor)
    found = {}
    for number, tensors in by_shard.items():
        shard = gguf.shards[number]
        ordered = sorted(tensors, key=lambda tensor: tensor.offset)
        ends = [*(tensor.offset for tensor in ordered[1:]), shard.file_bytes - shard.data_offset]
        for tensor, end in zip(ordered, ends, strict=True):
            extent = end - tensor.offset
            if tensor.exact and extent - tensor.nbytes >= shard.alignment:
                raise FleetError(
                    f"{shard.name}: tensor {tensor.name!r} ends before the next one begins",
                    expected=f"{tensor.nbytes:,} bytes by its type and shape",
                    found=f"{extent:,} bytes by the offsets",
                    remedy="Fetch the shard anew and check its digest",
                )
            found[tensor.name] = extent
    return found


def _per_expert(name: str, tensor: Tensor, extent: int, partition: tuple[int, int]) -> int:
    """Bytes of one expert in this tensor; a FleetError where experts or ranks do not divide it."""
    channels = tensor.dims[0] if "down" in tensor.name else tensor.dims[1] if len(tensor.dims) > 1 else 0
    if len(tensor.dims) != 3 or tensor.dims[2] != EXPERTS or channels != CHANNELS:
        raise FleetError(
            f"{name}: the shape of {tensor.name!r}",
            expected=f"three dimensions, {CHANNELS} channels, {EXPERTS} experts",
            found=tensor.dims,
            remedy="The fork's manifest, and the rank slices, are made for that target alone",
        )
    if extent % EXPERTS or extent // EXPERTS * partition[0] % CHANNELS:
        raise FleetError(
            f"{name}: the bytes of {tensor.name!r}",
            expected=f"a multiple of {EXPERTS} experts that {partition[0]} of {CHANNELS} channels divide",
            found=f"{extent:,}",
            remedy="The partition cuts a packed block: take another quantization, or another partition",
        )
    return extent // EXPERTS


def expert_costs(name: str, gguf: Gguf, partition: tuple[int, int] = PARTITION) -> ExpertCosts:
    """What one expert weighs in each layer of the model ``name``, whole and by rank.

    Per layer (gate + up + down) / 512; of that rank 0 holds x 416 // 640 (by the default partition) and rank 1 the
    rest: the bootstrap law of the reference page. Raises FleetError where a layer lacks a tensor, or has one of another
    shape than the fork's target.
    """
    sizes = extents(gguf)
    drafter = range(LAYERS, LAYERS + gguf.nextn_predict_layers)  # MTP blocks, which the manifest leaves out
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for tensor in gguf.tensors:
        place = expert_of(tensor.name)
        if place is not None and place[0] not in drafter:
            found[place[0]][place[1]] = _per_expert(name, tensor, sizes[tensor.name], partition)
    missing = [f"blk.{layer}.{kind}" for layer in range(LAYERS) for kind in KINDS if kind not in found.get(layer, {})]
    if missing or len(found) != LAYERS:
        more = sorted(layer for layer in found if layer >= LAYERS)
        raise FleetError(
            f"{name}: expert tensors",
            expected=f"{', '.join(KINDS)} in each of {LAYERS} layers",
            found=_lacking(missing, more),
            remedy=_REMEDY,
        )
    full = tuple(sum(found[layer].values()) for layer in range(LAYERS))
    first = tuple(cost * partition[0] // CHANNELS for cost in full)
    second = tuple(cost - part for cost, part in zip(full, first, strict=True))
    return ExpertCosts(partition, full, (first, second))


def _lacking(missing: Sequence[str], more: Sequence[int]) -> str:
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing, {missing[0]} the first")
    if more:
        parts.append(f"experts in layer {more[0]} too")
    return ", ".join(parts)
