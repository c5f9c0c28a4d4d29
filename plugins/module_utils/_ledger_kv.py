# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cache of a boot, layer by layer: keys and values, sliding windows, recurrent states. Exact.

Read off llama.cpp build 11434: ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-memory-recurrent.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import Facts
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Context, pad

__all__ = ["ALIGNMENT", "KV_TYPES", "LayerCache", "allocated", "cache", "row_bytes", "window_cells"]

# Type -> (elements a block, bytes a block): the types that llama-server takes for a cache.
KV_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}

# A card's buffers start each tensor at a multiple of this; rows of quantized tensors are read 512 at a time.
ALIGNMENT = 128
ROW_PADDING = 512


def row_bytes(kind: str, elements: int) -> int:
    """Bytes of one row of ``elements``; a FleetError for an unknown type or a row that blocks do not fill."""
    if kind not in KV_TYPES:
        raise FleetError(f"cache type {kind}", expected=" or ".join(KV_TYPES), found=kind)
    block, size = KV_TYPES[kind]
    if elements % block:
        raise FleetError(
            f"cache type {kind}",
            expected=f"rows that are a multiple of {block} elements",
            found=f"a row of {elements}",
            remedy="Take f16",
        )
    return elements // block * size


def allocated(nbytes: int, row: int, row_size: int, quantized: bool, device: bool) -> int:
    """What a tensor takes in its buffer: on a card padded to 128 B, and where it is quantized and its row
    (``row`` elements, ``row_size`` B) no multiple of 512, with the rest of one such row behind it."""
    if not device:
        return nbytes
    rest = -row % ROW_PADDING
    if quantized and rest:
        nbytes += -(-rest * row_size // row)
    return pad(nbytes, ALIGNMENT)


@dataclass(frozen=True)
class LayerCache:
    """One layer's bytes; ``f16_copy`` is what attention needs to read its cache as f16, K and V together, and
    ``f16_sides`` how many of the two it has to copy, ``wide`` whether one of those is bf16 or f32."""

    k: int = 0
    v: int = 0
    r: int = 0
    s: int = 0
    f16_copy: int = 0
    f16_sides: int = 0
    wide: bool = False

    @property
    def total(self) -> int:
        """All of it but the copy, which lives in the compute buffer."""
        return self.k + self.v + self.r + self.s


def window_cells(context: Context, window: int, full: bool) -> int:
    """Cells a stream of a sliding window layer's cache."""
    if full:
        return context.n_ctx_seq
    sequences = context.slots if context.unified else 1
    return pad(min(context.n_ctx_seq, window * sequences + context.ubatch), 256)


def cache(
    model: Facts,
    context: Context,
    k_type: str,
    v_type: str,
    *,
    flash: bool,
    swa_full: bool = False,
    rollback: int = 0,
    mtp: bool = False,
    device: bool = True,
) -> tuple[LayerCache, ...]:
    """Each layer's cache, ``layers_all`` of them. ``rollback`` is n_rs_seq, the planes kept beside a recurrent
    state; ``mtp`` asks for the MTP context, which caches the head's layers alone; ``device`` for a card's rules."""
    if not flash and KV_TYPES.get(v_type, (1, 0))[0] > 1:
        raise FleetError(
            f"cache_type_v {v_type} without flash attention",
            expected="flash_attn on, or a V that is not quantized",
            found="flash_attn off",
        )
    # Without flash attention V lies transposed and every layer has the widest row.
    widest = max(model.v_width)
    layers: list[LayerCache] = []
    for layer in range(model.layers_all):
        if mtp != (layer >= model.layers):
            layers.append(LayerCache())
            continue
        if model.recurrent[layer]:
            assert model.state is not None
            rows = context.slots * (1 + rollback)
            r, s = (allocated(4 * rows * width, 1, 4, False, device) for width in (model.state.r, model.state.s))
            layers.append(LayerCache(r=r, s=s))
            continue
        cells = context.n_ctx_seq
        if model.windowed[layer]:
            cells = window_cells(context, model.window, swa_full)
        cells *= context.streams
        sizes, copy, sides = [], 0, 0
        v_width = model.v_width[layer] if flash else widest
        wide = {"bf16", "f32"} & {k_type, v_type} != set()
        for kind, width in ((k_type, model.k_width[layer]), (v_type, v_width)):
            row = row_bytes(kind, width)
            sizes.append(allocated(row * cells, width, row, KV_TYPES[kind][0] > 1, device))
            if kind != "f16":
                copy += 2 * width * cells
                sides += 1
        layers.append(LayerCache(k=sizes[0], v=sizes[1], f16_copy=copy, f16_sides=sides, wide=wide))
    return tuple(layers)
