# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does a boot fit, which split leaves most room, how long a context does a floor allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import Header
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_search import roomiest
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_split import neighbours

__all__ = ["Split", "best_split", "largest_context", "require_fit"]


@dataclass(frozen=True)
class Split:
    """The best split and its ledger, and those one layer away: an operator's three points to measure."""

    counts: tuple[int, ...]
    ledger: Ledger
    neighbours: tuple[Ledger, ...]


def require_fit(ledger: Ledger) -> None:
    """A FleetError naming the first card whose floor is not kept, its largest term and what is missing."""
    for card in ledger.cards:
        if card.fits:
            continue
        assert card.card is not None
        terms = {name: value for name, value in card.mib().items() if name != "total_mib"}
        largest = max(terms, key=lambda name: terms[name])
        raise FleetError(
            f"card {card.name} cannot hold this boot",
            expected=f"{card.card.floor_mib:,.0f} MiB free of {card.card.free_mib:,.0f} after {card.total / MIB:,.2f}",
            found=f"{card.free_after_mib:,.2f} MiB free; largest: {largest.removesuffix('_mib')} "
            f"{terms[largest]:,.2f} MiB",
            remedy=f"Free {-card.room_mib:,.2f} MiB on it: a smaller CTX_SIZE, quantized keys or values, no drafter",
            terms_mib=terms,
        )


def _plan(
    model: Header,
    shape: Shape,
    drafter: Header | None,
    mmproj: Header | None,
    lora: Header | None,
    cards: Sequence[Card],
) -> Plan:
    shape = replace(shape, tensor_split=None)
    return Plan.of(model, shape, drafter=drafter, mmproj=mmproj, lora=lora, cards=cards)


def _search(plan: Plan) -> tuple[tuple[int, ...], Ledger]:
    """The counts that leave most room on the fullest card."""
    total = plan.parts[0].model.layers_all + 1
    if plan.shape.gpu_layers is not None:
        total = min(total, plan.shape.gpu_layers)
    if not total or not plan.cards:
        raise FleetError("tensor_split", expected="layers on cards to be split", found="all of them on the host")
    return roomiest(plan, total)


def best_split(
    model: Header,
    shape: Shape,
    *,
    drafter: Header | None = None,
    mmproj: Header | None = None,
    lora: Header | None = None,
    cards: Sequence[Card],
) -> Split:
    """The layer boundaries that leave most room above the floor of the fullest card; ``shape.tensor_split`` is
    ignored. The counts add up to block_count + 1 and, given as ``-ts``, place the layers exactly so; a card whose count
    is 0 stays empty."""
    plan = _plan(model, shape, drafter, mmproj, lora, cards)
    cut, ledger = _search(plan)
    return Split(cut, ledger, tuple(plan.at(other) for other in neighbours(cut)))


def largest_context(
    model: Header,
    shape: Shape,
    *,
    drafter: Header | None = None,
    mmproj: Header | None = None,
    lora: Header | None = None,
    cards: Sequence[Card],
    most: int = 1 << 24,
) -> tuple[int, Split] | None:
    """The largest CTX_SIZE, in steps of 256 a slot, whose best split keeps every floor, and that split.

    None where not even one step fits. With ``shape.tensor_split`` given the split stays as it is.
    """
    slots = shape.parallel or 4
    step = 256 if shape.kv_unified or shape.parallel is None else 256 * slots

    def at(steps: int) -> Split:
        asked = replace(shape, ctx_size=steps * step)
        plan = _plan(model, asked, drafter, mmproj, lora, cards)
        if shape.tensor_split is not None:
            ledger = plan.at(shape.tensor_split)
            return Split(ledger.split, ledger, ())
        cut, ledger = _search(plan)
        return Split(cut, ledger, tuple(plan.at(other) for other in neighbours(cut)))

    low, high = 0, most // step
    best: Split | None = None
    while low < high:
        middle = (low + high + 1) // 2
        found = at(middle)
        if found.ledger.fits:
            low, best = middle, found
        else:
            high = middle - 1
    return None if best is None else (low * step, best)
