# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute buffers: bounds, for what the engine's allocator makes of a graph is in no header.

The terms are those of the graph (llama.cpp build 11434: ``llama-graph.cpp``, ``fattn-common.cuh``), the factors were
fitted to some thousands of its dry runs on simulated cards, of eight architectures on one to three cards. In all of
them: masks, which stay alive for the whole graph, plus the widest moment, which is the feed-forward, attention (with
f16 copies of a cache of another type), a recurrent layer or the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_kv import LayerCache, window_cells
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import Facts
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Context

__all__ = ["Graph", "card_compute", "host_compute"]

# Rows of the embedding's width that pipelining keeps besides: on the card that the host feeds, on those after it,
# and on that of an MTP head.
PIPE_FIRST, PIPE_LATER, PIPE_MTP = 12, 7, 9
# Rows of that width that may lie below the logits.
LOGITS = 6


@dataclass(frozen=True)
class Graph:
    """One context's graph. ``copies`` is 4 where layers are pipelined over cards, else 1; ``mtp`` for the MTP
    head's context; ``cpu`` where no card takes part; ``adapter`` where LoRA pairs are applied; ``rotations`` are the
    bytes of the matrices that turn a quantized cache's rows."""

    model: Facts
    context: Context
    layers: Sequence[LayerCache]
    copies: int
    flash: bool
    rotations: int
    outputs: int
    swa_full: bool = False
    rollback: int = 0
    mtp: bool = False
    cpu: bool = False
    adapter: bool = False

    def attends(self, layer: int) -> bool:
        """Whether a layer has keys and values in this context."""
        return self.layers[layer].k + self.layers[layer].v > 0

    def masks(self, places: Iterable[int]) -> int:
        """Bytes of the attention masks of some layers: one for the whole context, one for the window."""
        near = far = False
        for layer in places:
            if self.attends(layer):
                near = near or self.model.windowed[layer]
                far = far or not self.model.windowed[layer]
        cells = self.context.n_ctx_seq if far else 0
        if near:
            cells += window_cells(self.context, self.model.window, self.swa_full)
        return self.copies * (2 if self.flash else 4) * self.context.tokens * cells

    def small(self) -> int:
        """Positions, token ids, cache indices and rotations; the last two once for each kind of cache."""
        caches = 2 if any(self.model.windowed) else 1
        indices = 64 if self.flash else 64 + 8 * caches * max(self.model.v_width)
        return self.copies * (indices * self.context.tokens + caches * self.rotations)


def _feed_forward(graph: Graph, places: Sequence[int]) -> int:
    model = graph.model
    width = 3 * model.ff + (3 if graph.mtp else 4) * model.embd
    if graph.cpu:
        width += 2 * model.embd
    if graph.adapter:
        width += model.ff
    if any(graph.layers[layer].f16_sides for layer in places):
        # The copies leave holes that rows of another width do not fit.
        loose = model.gated or model.scaled or model.q_width != model.embd
        width += max(model.embd if loose else 0, model.q_width - model.embd)
    # A trunk's last layer takes its outputs' rows first, and they are few; a hybrid hands all rows on to a head.
    few = not graph.mtp and not model.gated and set(places) == {model.layers - 1}
    return 4 * (graph.outputs if few else graph.context.tokens) * width


def _attention_width(graph: Graph, layer: int) -> int:
    """Elements a token that are alive while one layer attends."""
    model = graph.model
    e, q = model.embd, model.q_width
    copied = 2 if graph.layers[layer].f16_sides else 0
    if graph.mtp:
        # Two embeddings joined, queries with their gates, and new rows of keys and values.
        new = model.k_width[layer] + model.v_width[layer]
        return max((3 + copied) * q + 2 * e, 3 * q + 2 * e + new, 2 * q + 3 * e, 5 * q + new)
    if model.gated:
        few = q + (5 + graph.cpu) * e if copied else 0
        return max((4 + copied) * q + 2 * e, (1 + copied) * q + 4 * e, few) + (0 if graph.flash else e)
    if graph.flash and not copied:
        return 4 * q + 2 * e
    return max(4 * q + 2 * e, q + (5 + model.scaled) * e, 2 * q + 6 * e if q > e else 0)


def _attention(graph: Graph, places: Sequence[int]) -> int:
    """The widest attention layer: its rows, and the f16 copies or the scores that it needs."""
    model, context = graph.model, graph.context
    most = 0
    for layer in places:
        if not graph.attends(layer):
            continue
        width = _attention_width(graph, layer) + (model.q_width if graph.adapter else 0)
        extra = 0 if graph.cpu else graph.layers[layer].f16_copy
        if not graph.flash:
            cells = context.n_ctx_seq
            if model.windowed[layer]:
                cells = window_cells(context, model.window, graph.swa_full)
            extra = 4 * cells * context.tokens * model.heads[layer]
        # Before that, the layer's new keys and values lie beside the queries.
        new = model.k_width[layer] + model.v_width[layer]
        before = 5 * model.q_width + 2 * model.embd if model.gated else 3 * model.q_width + model.embd
        if graph.cpu:
            before += 2 * model.embd
            if not graph.flash:
                width += max(model.embd - model.q_width, 0)
        most = max(most, extra + 4 * context.tokens * width)
        if not graph.mtp:
            most = max(most, 4 * context.tokens * (before + new))
    return most


def _recurrent(graph: Graph, places: Sequence[int]) -> int:
    state = graph.model.state
    if state is None or not any(graph.layers[layer].s for layer in places):
        return 0
    rows = 3 * (state.channels + state.inner) + graph.model.embd
    planes = graph.context.slots * (2 + graph.rollback)
    return 4 * (graph.context.tokens * rows + planes * (state.s + state.r))


def card_compute(graph: Graph, places: Sequence[int], *, output: bool, first: bool, borrowed: int = 0) -> int:
    """A bound in bytes of one device's compute buffer, for the layers in ``places``.

    ``output``: the logits are made here; ``first``: the host feeds this card; ``borrowed``: the largest layer kept
    on the host, whose weights are copied here for a large batch.
    """
    model, tokens = graph.model, graph.context.tokens
    peak = 0
    if output:
        peak = 4 * graph.outputs * (model.vocab + (LOGITS + model.scaled) * model.embd)
        if model.gated and not graph.mtp:
            peak += 4 * tokens * model.embd * (graph.copies + 1)
    masks = graph.masks(places)
    if places:
        forward = _feed_forward(graph, places)
        if graph.mtp and graph.copies == 1:
            # The one layer's mask is done with by then, but only a tensor that fits can take its place.
            forward += min(masks, 4 * tokens * model.ff) - masks
        peak = max(peak, _attention(graph, places), _recurrent(graph, places), forward)
        extra = model.embd if any(graph.layers[layer].wide for layer in places) else 0
        if graph.copies > 1:
            rows = PIPE_MTP if graph.mtp else PIPE_FIRST if first else PIPE_LATER
            spare = model.embd if model.gated else model.embd // 2
            if model.q_width < model.embd:
                spare = max(spare, model.q_width)
            extra += model.embd * (rows + model.scaled) + max(spare, model.q_width - model.embd)
        peak += 4 * tokens * extra
        if model.encoder_width:
            # Its encoder takes the target's rows of several layers side by side; the buffer is shared.
            peak = max(peak, 4 * tokens * (model.encoder_width + 2 * model.embd))
        peak += graph.small()
    return masks + peak + borrowed


def host_compute(graph: Graph, places: Sequence[int]) -> int:
    """A bound in bytes of the pinned host buffer that feeds the cards: masks and the embeddings' rows."""
    rows = 10 if graph.copies > 1 else 4
    if graph.mtp:
        rows //= 2
    width = max(rows * graph.model.embd, graph.model.encoder_width)
    return graph.masks(places) + 4 * graph.context.tokens * width + graph.small()
