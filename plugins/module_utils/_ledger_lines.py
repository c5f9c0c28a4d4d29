# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a ledger is made of: lines with a label and a source, the terms of a card, and the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card

__all__ = ["SOURCES", "TERMS", "CardLedger", "Ledger", "Line", "gather"]

TERMS = (
    "weights",
    "kv",
    "recurrent",
    "draft_weights",
    "draft_kv",
    "draft_compute",
    "projector",
    "adapter",
    "compute",
    "outputs",
    "driver",
)

SOURCES = {
    "weights": "tensor bytes padded to 128, quantized rows to 512 elements (llama-model-loader, ggml-cuda)",
    "weights_host": "tensor bytes as mapped; token_embd always stays here (llama-model, dev_input)",
    "k": "row_bytes(type_k, head_dim * kv_heads) * cells * streams (llama-kv-cache)",
    "v": "row_bytes(type_v, head_dim * kv_heads) * cells * streams (llama-kv-cache)",
    "window": "as K and V over pad256(min(n_ctx_seq, window + ubatch)) cells (llama-kv-cache-iswa)",
    "r": "f32 * slots * (1 + n_rs_seq) * (conv_kernel - 1) * (inner + 2 * groups * state) (llama-memory-recurrent)",
    "s": "f32 * slots * (1 + n_rs_seq) * state * inner (llama-memory-recurrent)",
    "compute": "masks + widest of feed-forward, attention, recurrent and logits rows (dry runs of build 11434)",
    "compute_host": "masks + the embeddings' rows, pinned (dry runs of build 11434)",
    "outputs": "outputs * n_vocab * 4 (llama-context, output_reserve)",
    "projector": "the projector's tensors on the first card, padded as weights are (clip)",
    "projector_compute": "no header tells it: the boot's log does, and `measured` takes it as projector_compute_mib",
    "adapter": "each LoRA pair beside its base tensor (llama-adapter)",
}


@dataclass(frozen=True)
class Line:
    """One entry: ``card`` None for the host; ``label`` exact, bound, measured or uncounted (no bytes, as nobody knows
    them); ``source`` formula or boot."""

    name: str
    term: str
    card: str | None
    bytes: int
    label: str
    source: str


@dataclass(frozen=True)
class CardLedger:
    """One device's terms in bytes; ``card`` is None for a host of which nobody said what it has free."""

    name: str
    weights: int = 0
    kv: int = 0
    recurrent: int = 0
    draft_weights: int = 0
    draft_kv: int = 0
    draft_compute: int = 0
    projector: int = 0
    adapter: int = 0
    compute: int = 0
    outputs: int = 0
    driver: int = 0
    card: Card | None = None

    @property
    def total(self) -> int:
        """All terms, in bytes."""
        return sum(int(getattr(self, term)) for term in TERMS)

    @property
    def free_after_mib(self) -> float:
        """What stays free of ``card.free_mib``; endless where that is not known."""
        return float("inf") if self.card is None else self.card.free_mib - self.total / MIB

    @property
    def room_mib(self) -> float:
        """What stays above the floor; negative where it does not fit."""
        return self.free_after_mib - (self.card.floor_mib if self.card else 0.0)

    @property
    def fits(self) -> bool:
        """Whether the floor stays free."""
        return self.room_mib >= 0

    def mib(self) -> dict[str, float]:
        """Every term and the total as ``<term>_mib``, not rounded."""
        return {f"{term}_mib": getattr(self, term) / MIB for term in (*TERMS, "total")}


@dataclass(frozen=True)
class Ledger:
    """A boot's memory. ``split`` are the layers a card, which as ``-ts`` give this placement."""

    cards: tuple[CardLedger, ...]
    host: CardLedger
    lines: tuple[Line, ...]
    n_ctx: int
    n_ctx_seq: int
    split: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every card, and the host, keeps its floor."""
        return all(device.fits for device in (*self.cards, self.host))

    @property
    def room_mib(self) -> float:
        """The room above the floor of the fullest card; the host's where there is none."""
        return min((card.room_mib for card in self.cards), default=self.host.room_mib)


def gather(
    lines: Iterable[Line], cards: Sequence[Card], host: Card | None = None
) -> tuple[tuple[CardLedger, ...], CardLedger]:
    """The cards' sums and the host's."""
    devices: dict[str | None, CardLedger] = {card.name: CardLedger(card.name, card=card) for card in cards}
    devices[None] = CardLedger("host", card=host)
    for line in lines:
        before = devices[line.card]
        devices[line.card] = replace(before, **{line.term: getattr(before, line.term) + line.bytes})
    return tuple(devices[card.name] for card in cards), devices[None]
