# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The split that leaves most room: dynamic programming over the boundaries between cards, and so exact.

What a card takes depends on the run of layers that it holds and on nothing else, with one exception: a drafter that
lies on some of the cards, or on all in another order, is cut by the target's shares at other boundaries. It is left
out of the bound then, and the search goes on until no other split can be better.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import accumulate

from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, Part, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_compute import card_compute
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_split import counts, placement

__all__ = ["Loads", "roomiest"]

# The rooms of some cards in MiB, least first. The larger one is that of the better split: of two whose fullest cards
# are equal, the one whose next is less full. A card that nothing can relieve then does not hide the others.
Rooms = tuple[float, ...]


class _Run:
    """Bytes of runs of one part's layers on one card, the output being the layer after the last."""

    def __init__(self, part: Part, start: int, adapter: dict[int, int]) -> None:
        self.part, self.start, self.layers = part, start, part.model.layers_all
        held, model = part.weights, part.model
        sizes = [part.layers[layer].total + adapter.get(layer, 0) for layer in range(self.layers)]
        sizes.append(adapter.get(self.layers, 0))
        if held is not None:
            sizes = [
                size + more.card for size, more in zip(sizes, (*held.layers, held.output + held.twin), strict=True)
            ]
        self.sums = list(accumulate(sizes, initial=0))
        # Layers of one kind make one graph, and there are few kinds: card_compute is asked once for each set of them.
        kinds = [
            (part.layers[layer], model.windowed[layer], model.k_width[layer], model.v_width[layer], model.heads[layer])
            for layer in range(self.layers)
        ]
        self.live = [layer for layer in range(self.layers) if part.layers[layer].total]
        # How many layers of each kind lie before each.
        self.before = {
            kind: list(accumulate((each == kind for each in kinds), initial=0)) for kind in kinds if kind[0].total
        }
        self.known: dict[tuple[object, ...], int] = {}

    def bytes(self, begin: int, end: int, *, lead: bool) -> int:
        """What the card takes that holds the layers from ``begin`` up to ``end``; ``lead``: it is the first card,
        which runs the host's layers too where there are any."""
        borrowed = self.part.borrowed if lead else 0
        if begin == end and not borrowed:
            return 0
        size = self.sums[end] - self.sums[begin] + self._compute(begin, end, borrowed)
        if self.part.weights is not None and begin < min(end, self.layers):
            size += self.part.weights.everywhere.card
        return size

    def _compute(self, begin: int, end: int, borrowed: int) -> int:
        output, last = begin < end == self.layers + 1, min(end, self.layers)
        first = borrowed > 0 if self.part.borrowed else begin == self.start
        spans = [(0, self.start), (begin, last)] if borrowed else [(begin, last)]
        held = {
            kind: count
            for kind, before in self.before.items()
            if (count := sum(before[high] - before[low] for low, high in spans if low < high))
        }
        # A lone last layer is a case of its own.
        lone = sum(held.values()) == 1 and begin < last == self.layers
        key = (frozenset(held), lone, output, first, borrowed)
        if key not in self.known:
            places = [layer for layer in self.live if any(low <= layer < high for low, high in spans)]
            self.known[key] = card_compute(self.part.graph, places, output=output, first=first, borrowed=borrowed)
        return self.known[key]


class Loads:
    """What each card takes by the layers that lie before it and those up to its end, counted from the first that lies
    on a card. ``exact`` is False where a drafter had to be left out."""

    def __init__(self, plan: Plan, total: int) -> None:
        self.exact = True
        self.fixed = [0] * len(plan.cards)
        self.fixed[0] += plan.projector.on(True)
        self.parts: list[tuple[_Run, Sequence[int]]] = []
        layers = plan.parts[0].model.layers_all
        adapter: dict[int, int] = {}
        for layer, name, size in plan.adapter:
            if not name.startswith("token_embd."):
                at = layers if layer is None else layer
                adapter[at] = adapter.get(at, 0) + size.card
        start = layers + 1 - total
        for number, part in enumerate(plan.parts):
            if not part.prefix or part.weights is None:  # the target, or its MTP head
                run = _Run(part, start, adapter if not number else {})
                self.parts.append((run, range(start, start + total + 1)))
                continue
            run, own = _Run(part, 0, {}), part.model.layers_all
            if len(part.cards) == 1:
                self.fixed[part.cards[0]] += run.bytes(0, own + 1, lead=True)
            elif part.cards == tuple(range(len(plan.cards))):
                ends = [counts(placement(own, (end, total - end)), 2)[0] for end in range(total + 1)]
                self.parts.append((run, ends))
            else:
                self.exact = False
        self.cards = plan.cards

    def room_mib(self, card: int, begin: int, end: int) -> float:
        """As CardLedger.room_mib."""
        size = self.fixed[card]
        for run, at in self.parts:
            size += run.bytes(at[begin], at[end], lead=card == 0)
        held = self.cards[card]
        return held.free_mib - size / MIB - held.floor_mib


def _with(room: float, rooms: Rooms) -> Rooms:
    joined = list(rooms)
    insort(joined, room)
    return tuple(joined)


def _best_rests(room_mib: Callable[[int, int, int], float], total: int, cards: int) -> list[list[Rooms]]:
    """For each card and number of layers before it the best rooms of it and those after it."""
    rests: list[list[Rooms]] = [[()] * (total + 1) for _ in range(cards)]
    rests[-1] = [(room_mib(cards - 1, begin, total),) for begin in range(total + 1)]
    for card in range(cards - 2, -1, -1):
        for begin in range(total + 1) if card else (0,):
            best: Rooms = ()
            for end in range(begin, total + 1):
                room, rest = room_mib(card, begin, end), rests[card + 1][end]
                if best and min(room, rest[0]) < best[0]:
                    continue
                best = max(best, _with(room, rest))
            rests[card][begin] = best
    return rests


def roomiest(plan: Plan, total: int) -> tuple[tuple[int, ...], Ledger]:
    """The counts, ``total`` layers in all, that leave most room on the fullest card, and then on the next; of equal
    ones the first. A card may stay empty."""
    loads, cards = Loads(plan, total), len(plan.cards)
    memo: dict[tuple[int, int, int], float] = {}

    def room_mib(card: int, begin: int, end: int) -> float:
        key = (card, begin, end)
        if key not in memo:
            memo[key] = loads.room_mib(*key)
        return memo[key]

    rests = _best_rests(room_mib, total, cards)
    best: tuple[Rooms, tuple[int, ...], Ledger] | None = None

    def walk(cut: tuple[int, ...], rooms: Rooms) -> None:
        nonlocal best
        card, begin = len(cut), sum(cut)
        if card == cards:
            ledger = plan.at(cut)
            found = tuple(sorted(one.room_mib for one in ledger.cards))
            if best is None or found > best[0]:
                best = found, cut, ledger
            return
        ends = range(begin, total + 1) if card < cards - 1 else (total,)
        hopes = []
        for end in ends:
            hope = room = _with(room_mib(card, begin, end), rooms)
            for rest in rests[card + 1][end] if card < cards - 1 else ():
                hope = _with(rest, hope)
            hopes.append((hope, -end, room))
        for hope, end, room in sorted(hopes, reverse=True):
            if best is not None and hope <= best[0]:
                return
            walk((*cut, -end - begin), room)

    walk((), ())
    assert best is not None
    return best[1], best[2]
