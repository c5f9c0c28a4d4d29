# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which card holds which layer, as the engine decides it. Exact.

Read off llama.cpp build 11434, ``llama-model.cpp`` (load_tensors): the engine counts in single precision, so this
does too, by rounding each step to 32 bits.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, pairwise

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["counts", "neighbours", "placement", "splits"]


def _single(number: float) -> float:
    """The nearest 32-bit float. One operation on two such floats, rounded once more, is what the engine has."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError as exc:
        raise FleetError("tensor_split", expected="numbers that fit 32-bit floats", found=number) from exc


def placement(layers_all: int, split: Sequence[float], gpu_layers: int | None = None) -> tuple[int | None, ...]:
    """The card of each layer, and last that of the output; None for the host.

    ``split`` is one number a card (``-ts``; the engine takes free memory where none is given); ``gpu_layers`` as
    ``-ngl``, None for all. An MTP head's layers count whether they are loaded or not.
    """
    total = layers_all + 1
    wanted = total if gpu_layers is None else gpu_layers
    if not split or not wanted:
        return (None,) * total
    ends: list[float] = []
    running = 0.0
    for part in split:
        running = _single(running + _single(part))
        ends.append(running)
    if running <= 0:
        raise FleetError("tensor_split", expected="a share for at least one card", found=list(split))
    ends = [_single(end / running) for end in ends]
    start, active = max(total - wanted, 0), min(wanted, total)
    return tuple(
        None if layer < start else bisect_right(ends, _single((layer - start) / active)) for layer in range(total)
    )


def counts(places: Sequence[int | None], cards: int) -> tuple[int, ...]:
    """Layers a card, the output counted as one: as ``-ts`` they give the very same placement."""
    return tuple(sum(1 for place in places if place == card) for card in range(cards))


def splits(total: int, cards: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``total`` layers (the output among them) into one run a card, some of them empty."""
    for cuts in combinations_with_replacement(range(total + 1), cards - 1):
        edges = (0, *cuts, total)
        yield tuple(end - begin for begin, end in pairwise(edges))


def neighbours(split: Sequence[int]) -> list[tuple[int, ...]]:
    """The splits one layer away: a boundary moved either way."""
    found: list[tuple[int, ...]] = []
    for left in range(len(split) - 1):
        for step in (-1, 1):
            moved = list(split)
            moved[left] += step
            moved[left + 1] -= step
            if min(moved) >= 0:
                found.append(tuple(moved))
    return found
