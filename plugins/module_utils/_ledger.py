# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory ledger of a llama-server boot before it happens: term by term and card by card, in bytes.

Each line is labelled ``exact`` (the engine's own arithmetic) or ``bound`` (never less than the engine takes, by the
dry runs it was fitted to) and names its source. Not counted, as no header tells it: the driver's own context on a
card, and a projector's compute buffer, which has a line of no bytes labelled ``uncounted``; :attr:`Ledger.notes` says
so where it applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_compute import Graph, card_compute, host_compute
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_kv import KV_TYPES, LayerCache, cache
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import (
    SOURCES,
    TERMS,
    CardLedger,
    Ledger,
    Line,
    gather,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import (
    KNOWN,
    WAY_OUT,
    Facts,
    Header,
    UnknownMemory,
    facts,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Context, Shape, context
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_split import counts, placement
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_weights import (
    Size,
    Weights,
    adapter_pairs,
    projector_size,
    require_source,
    weights,
)

__all__ = ["DRIVER_NOTE", "PROJECTOR_NOTE", "TERMS", "CardLedger", "Ledger", "Line", "Part", "Plan", "predict"]

PROJECTOR_NOTE = "the projector's compute buffer is not counted: the boot's log states it"
DRIVER_NOTE = "the driver's own context on each card is not counted: give free_mib without it"


@dataclass(frozen=True)
class Part:
    """One context: the target's or the drafter's. ``weights`` is None for an MTP head's, which are the target's."""

    model: Facts
    weights: Weights | None
    layers: tuple[LayerCache, ...]
    host_layers: tuple[LayerCache, ...]
    graph: Graph
    device: bool
    gpu_layers: int | None
    cards: tuple[int, ...]
    prefix: str = ""
    borrowed: int = 0


def _pipelined(model: Facts, cards: int, shape: Shape, gpu_layers: int | None) -> int:
    whole = gpu_layers is None or gpu_layers > model.layers_all
    return 4 if cards > 1 and whole and shape.backend != "cpu" else 1


def _caches(
    model: Facts, room: Context, shape: Shape, k_type: str, v_type: str, *, rollback: int = 0, mtp: bool = False
) -> tuple[tuple[LayerCache, ...], tuple[LayerCache, ...]]:
    """Each layer's cache by a card's rules and by the host's."""
    on_card, on_host = (
        cache(
            model,
            room,
            k_type,
            v_type,
            flash=shape.flash,
            swa_full=shape.swa_full,
            rollback=rollback,
            mtp=mtp,
            device=device,
        )
        for device in (True, False)
    )
    return on_card, on_host


def _rotations(model: Facts, k_type: str, v_type: str) -> int:
    """Bytes of the matrices that turn the rows of a quantized cache, f32."""
    head = model.q_width // max(model.heads)
    quantized = [KV_TYPES[kind][0] > 1 for kind in (k_type, v_type)]
    return 4 * (quantized[0] * head * head + quantized[1] * 64 * 64)


@dataclass
class Plan:
    """A boot with everything counted but the split, which :meth:`at` then answers for in no time."""

    shape: Shape
    cards: tuple[Card, ...]
    context: Context
    parts: list[Part]
    projector: Size
    adapter: list[tuple[int | None, str, Size]]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        model: Header,
        shape: Shape,
        *,
        drafter: Header | None = None,
        mmproj: Header | None = None,
        lora: Header | None = None,
        cards: Sequence[Card],
    ) -> Plan:
        """Count everything that no split changes; the refusals are those of :func:`predict`."""
        cards = tuple(cards)
        _check_cards(cards, shape)
        known = facts(model)
        if KNOWN[known.architecture].drafter:
            raise FleetError("model", expected="a model that stands alone", found=f"a {known.architecture} drafter")
        room = context(shape, known.trained)
        armed = shape.drafter_type
        require_source(armed, model, known.layers_all, known.nextn, drafter=drafter is not None)
        rollback = shape.spec_draft_n_max if known.rollback and armed not in (None, "draft-simple") else 0
        device = bool(cards)
        held = weights(model, known, mtp=armed == "draft-mtp")
        layers, host_layers = _caches(known, room, shape, shape.cache_type_k, shape.cache_type_v, rollback=rollback)
        graph = Graph(
            known,
            room,
            layers,
            _pipelined(known, len(cards), shape, shape.gpu_layers),
            shape.flash,
            _rotations(known, shape.cache_type_k, shape.cache_type_v),
            _output_rows(known, room, room.outputs),
            shape.swa_full,
            rollback,
            cpu=not device,
            adapter=lora is not None,
        )
        every = tuple(range(len(cards)))
        borrowed = 0
        if shape.gpu_layers is not None and shape.gpu_layers <= known.layers_all:
            # A split of the graph takes at most 30 weights of the host's: under four layers' worth.
            borrowed = max(4 * max(size.card for size in held.layers), held.twin.card, held.output.card)
        parts = [Part(known, held, layers, host_layers, graph, device, shape.gpu_layers, every, borrowed=borrowed)]
        plan = cls(shape, cards, room, parts, Size(), [])
        if 0 < known.trained < room.n_ctx_seq:
            plan.notes.append(
                f"a slot's {room.n_ctx_seq:,} tokens are beyond the {known.trained:,} that the model was trained for"
            )
        if armed == "draft-mtp":
            parts.append(_mtp_part(parts[0], shape))
        elif drafter is not None:
            parts.append(_draft_part(drafter, known, shape, room, cards))
            if shape.draft_cards and set(parts[-1].cards) != set(every):
                plan.notes.append("the drafter lies on " + ", ".join(shape.draft_cards))
        if mmproj is not None:
            plan.projector = projector_size(mmproj)
            plan.notes.append(PROJECTOR_NOTE)
        if lora is not None:
            plan.adapter = adapter_pairs(lora, model)
        if device:
            plan.notes.append(DRIVER_NOTE)
        if borrowed:
            plan.notes.append("partly offloaded: the compute bound holds a guess at what a large batch copies over")
        if not held.exact:
            plan.notes.append("tensor types unknown to the engine: their sizes are taken from offsets, a bound")
        return plan

    def at(self, split: Sequence[float] | None) -> Ledger:
        """The ledger under a split, one number a card; None for the engine's own, by free memory."""
        shares = tuple(split) if split is not None else tuple(card.free_mib for card in self.cards)
        if len(shares) < len(self.cards):
            raise FleetError("tensor_split", expected=f"{len(self.cards)} numbers, one a card", found=list(shares))
        lines: list[Line] = []
        first: tuple[int, ...] = ()
        for part in self.parts:
            # The drafter takes the target's -ts by position, on its own list of cards.
            own = shares[: len(part.cards)] if part.prefix else shares[: len(self.cards)]
            if part.prefix and not any(own):  # which the engine takes for no split at all
                own = tuple(self.cards[card].free_mib for card in part.cards)
            places = placement(part.model.layers_all, own, part.gpu_layers)
            if not part.prefix:
                first = counts(places, len(self.cards))
                lines += self._extras(places)
            lines += self._lines(part, places)
        return self._sum(lines, first)

    def _card(self, part: Part, place: int | None) -> str | None:
        return None if place is None else self.cards[part.cards[place]].name

    def _lines(self, part: Part, places: Sequence[int | None]) -> Iterable[Line]:
        used = sorted({place for place in places if place is not None} | ({0} if part.borrowed else set()))
        for place in (*used, None):
            own = [layer for layer, where in enumerate(places[:-1]) if where == place]
            output = places[-1] == place
            device = place is not None
            card = self._card(part, place)
            if part.weights is not None:
                yield from _weight_lines(part, own, output, device, card)
            yield from _cache_lines(part, own, card)
            # A large batch runs the host's layers too on the first card, with their weights copied over.
            helps = place == 0 and part.borrowed > 0
            at = [layer for layer, where in enumerate(places[:-1]) if where == place or (helps and where is None)]
            live = [layer for layer in at if part.layers[layer].total]
            if device or not part.device:
                size = card_compute(
                    part.graph,
                    live,
                    output=output or (helps and places[-1] is None),
                    first=place == (used[0] if used else None),
                    borrowed=part.borrowed if helps else 0,
                )
                if size:
                    term = "draft_compute" if part.prefix else "compute"
                    yield Line(term, term, card, size, "bound", SOURCES["compute"])
        if part.device:
            live = [layer for layer in range(part.model.layers_all) if part.layers[layer].total]
            size = host_compute(part.graph, live)
            term = "draft_compute" if part.prefix else "compute"
            yield Line(term, term, None, size, "bound", SOURCES["compute_host"])
        rows = max(part.graph.context.slots, part.graph.outputs)
        outputs = 4 * part.model.vocab * rows
        yield Line(part.prefix + "outputs", "outputs", None, outputs, "bound", SOURCES["outputs"])

    def _extras(self, places: Sequence[int | None]) -> Iterable[Line]:
        """Projector and adapter."""
        first = self.cards[0].name if self.cards else None
        if self.projector != Size():
            size = self.projector.on(first is not None)
            yield Line("projector", "projector", first, size, "bound", SOURCES["projector"])
            # No bytes, and not silent: what fits here by less than this buffer does not fit.
            yield Line("projector_compute", "projector", first, 0, "uncounted", SOURCES["projector_compute"])
        sizes: dict[str | None, int] = {}
        for layer, name, size_of in self.adapter:
            place = None if name.startswith("token_embd.") else places[-1 if layer is None else layer]
            card = None if place is None else self.cards[place].name
            sizes[card] = sizes.get(card, 0) + size_of.on(card is not None)
        for card, total in sizes.items():
            yield Line("adapter", "adapter", card, total, "exact", SOURCES["adapter"])

    def _sum(self, lines: list[Line], split: tuple[int, ...]) -> Ledger:
        cards, host = gather(lines, self.cards)
        return Ledger(cards, host, tuple(lines), self.context.n_ctx, self.context.n_ctx_seq, split, tuple(self.notes))


def _output_rows(model: Facts, room: Context, outputs: int) -> int:
    """Rows of logits in the worst graph: an encoder's drafter makes them for every token."""
    return room.tokens if KNOWN[model.architecture].encoder else min(room.tokens, outputs)


def _check_cards(cards: tuple[Card, ...], shape: Shape) -> None:
    if shape.backend == "cpu" and cards:
        raise FleetError("cards", expected="none for backend cpu", found=[card.name for card in cards])
    if shape.backend != "cpu" and not cards:
        raise FleetError("cards", expected=f"at least one for backend {shape.backend}", found="none")
    if shape.split_mode != "layer":
        raise UnknownMemory("split_mode", expected="layer", found=shape.split_mode, remedy=WAY_OUT)
    if shape.draft_cards == () and shape.drafter_type not in (None, "draft-mtp"):
        raise UnknownMemory("draft_cards", expected="cards for the drafter", found="none", remedy=WAY_OUT)
    names = [card.name for card in cards]
    if len(set(names)) < len(names):
        raise FleetError("cards", expected="a name of its own for each", found=names)
    for name in shape.draft_cards or ():
        if name not in names:
            raise FleetError("draft_cards", expected=" or ".join(names), found=name)
    if shape.tensor_split is not None and cards and len(shape.tensor_split) < len(cards):
        raise FleetError("tensor_split", expected=f"{len(cards)} numbers, one a card", found=list(shape.tensor_split))


def _mtp_part(target: Part, shape: Shape) -> Part:
    """The MTP head's own context over the target's model: its layers alone, over the whole pool."""
    layers, host_layers = _caches(
        target.model, target.graph.context, shape, shape.draft_type_k, shape.draft_type_v, mtp=True
    )
    graph = replace(
        target.graph,
        layers=layers,
        rotations=_rotations(target.model, shape.draft_type_k, shape.draft_type_v),
        outputs=target.graph.context.slots,
        rollback=0,
        mtp=True,
        adapter=False,
    )
    return replace(target, weights=None, layers=layers, host_layers=host_layers, graph=graph, prefix="draft_")


def _draft_part(drafter: Header, target: Facts, shape: Shape, room: Context, cards: tuple[Card, ...]) -> Part:
    """A drafter file's context: as long as the target's, with the same slots, types from its own flags."""
    known = facts(drafter)
    if known.state is not None:
        raise FleetError("drafter", expected="one without recurrent states", found=known.architecture)
    if not known.vocab:
        # It has neither embeddings nor an output of its own and borrows the target's.
        known = replace(known, vocab=target.vocab)
    names = [card.name for card in cards]
    own = tuple(names.index(name) for name in shape.draft_cards) if shape.draft_cards else tuple(range(len(cards)))
    device = bool(cards)
    layers, host_layers = _caches(known, room, shape, shape.draft_type_k, shape.draft_type_v)
    block = shape.drafter_type in ("draft-dflash", "draft-dspark")
    outputs = room.slots * (1 + shape.spec_draft_n_max if block else 1)
    graph = Graph(
        known,
        room,
        layers,
        _pipelined(known, len(own), shape, None),
        shape.flash,
        _rotations(known, shape.draft_type_k, shape.draft_type_v),
        _output_rows(known, room, outputs),
        shape.swa_full,
        cpu=not device,
    )
    held = weights(drafter, known, mtp=False)
    return Part(known, held, layers, host_layers, graph, device, None, own, "draft_")


def _weight_lines(part: Part, own: Sequence[int], output: bool, device: bool, card: str | None) -> Iterable[Line]:
    held = part.weights
    assert held is not None
    size = sum((held.layers[layer] for layer in own), Size())
    if own:
        size += held.everywhere
    if output:
        size += held.output
        if device:
            size += held.twin
    if not device:
        size += held.input
    if size.on(device):
        label = "exact" if held.exact else "bound"
        source = SOURCES["weights" if device else "weights_host"]
        yield Line(part.prefix + "weights", part.prefix + "weights", card, size.on(device), label, source)


def _cache_lines(part: Part, own: Sequence[int], card: str | None) -> Iterable[Line]:
    sums: dict[tuple[str, str, str], int] = {}
    for layer in own:
        held, near = (part.host_layers if card is None else part.layers)[layer], part.model.windowed[layer]
        for kind, size, term in (
            ("k", held.k, "kv"),
            ("v", held.v, "kv"),
            ("r", held.r, "recurrent"),
            ("s", held.s, "recurrent"),
        ):
            if size:
                window = near and term == "kv"
                name = f"{term}_window_{kind}" if window else f"{term}_{kind}"
                key = (part.prefix + name, part.prefix + term, SOURCES["window" if window else kind])
                sums[key] = sums.get(key, 0) + size
    for (name, term, source), total in sums.items():
        yield Line(name, term, card, total, "exact", source)


def predict(
    model: Header,
    shape: Shape,
    *,
    drafter: Header | None = None,
    mmproj: Header | None = None,
    lora: Header | None = None,
    cards: Sequence[Card],
) -> Ledger:
    """The ledger of a boot of ``model`` in ``shape`` on ``cards`` (none: everything on the host).

    A FleetError for an unknown architecture, memory or cache type, a drafter that cannot be, an adapter of another
    model, or settings the engine refuses. Whether it fits is an answer (:attr:`Ledger.fits`), not an error.
    """
    plan = Plan.of(model, shape, drafter=drafter, mmproj=mmproj, lora=lora, cards=cards)
    return plan.at(shape.tensor_split)
