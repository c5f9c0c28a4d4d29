# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a boot: its shape and its cards, and the context that llama-server makes of them.

Read off llama.cpp build 11434 (``llama-context.cpp``, the constructor; ``server.cpp``, the defaults).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["BACKENDS", "CONTEXT_DRAFTERS", "MIB", "Card", "Context", "Shape", "context", "pad"]

MIB = 1024 * 1024

BACKENDS = ("cuda", "hip", "cpu")
# The drafters that have a context of their own beside the target's; the engine can hold one of them.
CONTEXT_DRAFTERS = ("draft-simple", "draft-mtp", "draft-dflash", "draft-dspark", "draft-eagle3")
# Draftless proposers, and the most tokens that each may propose at the engine's defaults.
NGRAM_DRAFTS = {
    "ngram-simple": 48,
    "ngram-map-k": 48,
    "ngram-map-k4v": 48,
    "ngram-mod": 64,
    "ngram-cache": 8,
}
MAX_SLOTS = 256


def pad(number: int, step: int) -> int:
    """``number`` rounded up to a multiple of ``step``."""
    return -(-number // step) * step


@dataclass(frozen=True)
class Card:
    """One card as the engine will see it; ``free_mib`` is what it can allocate, ``floor_mib`` what must stay free."""

    name: str
    free_mib: float
    floor_mib: float = 0.0


@dataclass(frozen=True)
class Shape:
    """The settings of a llama-server that decide memory. None means that the flag is not given.

    ``split_mode`` is layer also where one card holds all; ``draft_cards`` empty: the drafter stays on the host.

    ``tensor_split`` counts one number per card; ``draft_cards`` names the drafter's cards (None: the target's);
    ``outputs`` are the rows of logits that a batch may ask for (None: the server's, for each slot 1 and its drafts).
    """

    ctx_size: int
    parallel: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    ubatch_size: int = 512
    batch_size: int = 2048
    tensor_split: tuple[float, ...] | None = None
    split_mode: str = "layer"
    kv_unified: bool | None = None
    flash_attn: str = "on"
    spec_type: str | None = None
    spec_draft_n_max: int = 3
    draft_type_k: str = "f16"
    draft_type_v: str = "f16"
    draft_cards: tuple[str, ...] | None = None
    gpu_layers: int | None = None
    swa_full: bool = False
    backend: str = "cuda"
    outputs: int | None = None

    @property
    def spec_types(self) -> tuple[str, ...]:
        """The names in ``spec_type``; empty for none."""
        names = (name.strip() for name in (self.spec_type or "").split(","))
        return tuple(name for name in names if name and name != "none")

    @property
    def drafter_type(self) -> str | None:
        """The one proposer among ``spec_types`` that has a context of its own."""
        backed = [name for name in self.spec_types if name in CONTEXT_DRAFTERS]
        return backed[0] if backed else None

    @property
    def drafts(self) -> int:
        """The most tokens that any armed proposer offers at once."""
        return max(
            (self.spec_draft_n_max if name in CONTEXT_DRAFTERS else NGRAM_DRAFTS[name] for name in self.spec_types),
            default=0,
        )

    @property
    def flash(self) -> bool:
        """Whether attention is fused; ``auto`` is taken as on, which every backend here resolves it to."""
        return self.flash_attn != "off"


@dataclass(frozen=True)
class Context:
    """The engine's own numbers: ``cells`` a stream, ``tokens`` the rows that the worst graph is built for."""

    n_ctx: int
    n_ctx_seq: int
    slots: int
    unified: bool
    ubatch: int
    tokens: int
    outputs: int

    @property
    def streams(self) -> int:
        """How many separate caches the cells are cut into."""
        return 1 if self.unified else self.slots


def _whole(name: str, value: int, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limit = f"a whole number from {least}" + (f" to {most}" if most is not None else " up")
        raise FleetError(name, expected=limit, found=repr(value))


def _check(shape: Shape) -> None:
    _whole("ctx_size", shape.ctx_size, 0)
    if shape.parallel is not None:
        _whole("parallel", shape.parallel, 1, MAX_SLOTS)
    _whole("ubatch_size", shape.ubatch_size, 1)
    _whole("batch_size", shape.batch_size, 1)
    _whole("spec_draft_n_max", shape.spec_draft_n_max, 0)
    if shape.outputs is not None:
        _whole("outputs", shape.outputs, 1)
    if shape.gpu_layers is not None:
        _whole("gpu_layers", shape.gpu_layers, 0)
    if shape.backend not in BACKENDS:
        raise FleetError("backend", expected=" or ".join(BACKENDS), found=repr(shape.backend))
    if shape.flash_attn not in ("on", "off", "auto"):
        raise FleetError("flash_attn", expected="on, off or auto", found=repr(shape.flash_attn))
    known = {*CONTEXT_DRAFTERS, *NGRAM_DRAFTS}
    for name in shape.spec_types:
        if name not in known:
            raise FleetError("spec_type", expected=", ".join(sorted(known)), found=repr(name))
    backed = [name for name in shape.spec_types if name in CONTEXT_DRAFTERS]
    if len(set(backed)) > 1:
        raise FleetError(
            f"spec_type {shape.spec_type}",
            expected="at most one drafter with a context of its own",
            found=" and ".join(backed),
            remedy="Keep one of them; ngram types may ride beside it",
        )
    if shape.tensor_split is not None and (
        any(not math.isfinite(part) or part < 0 for part in shape.tensor_split) or not any(shape.tensor_split)
    ):
        raise FleetError(
            "tensor_split", expected="one number of zero or more a card, not all zero", found=shape.tensor_split
        )


def context(shape: Shape, trained: int) -> Context:
    """The context that the server builds for a shape; ``trained`` is the window in the header, for CTX_SIZE 0.

    The pool is rounded up to 256, then each slot's share is rounded up to 256 and the pool is what those add up
    to: the engine calls it "rounding down". Without ``parallel`` the server takes 4 slots and one unified cache.
    """
    _check(shape)
    wanted = shape.ctx_size or trained
    if wanted < 1:
        raise FleetError("ctx_size", expected="a number, as the header has no context_length", found=shape.ctx_size)
    slots = shape.parallel or 4
    unified = shape.kv_unified if shape.kv_unified is not None else shape.parallel is None
    # The batch is bounded by what was asked for, before any rounding.
    batch = min(wanted, shape.batch_size)
    ubatch = min(batch, shape.ubatch_size)
    pool = pad(wanted, 256)
    if unified:
        share = pool
    else:
        share = pad(pool // slots, 256)
        if not share:
            raise FleetError(
                f"ctx_size {wanted} over {slots} slots", expected="at least one token a slot", found=pool // slots
            )
        pool = share * slots
    rows = pad(min(pool, ubatch), slots)
    outputs = max(1, min(batch, shape.outputs or slots * (1 + shape.drafts)))
    return Context(pool, share, slots, unified, ubatch, rows, outputs)
