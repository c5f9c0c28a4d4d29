# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint's processes hold: host memory (resident) and memory of the cards, in MiB."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import FoundCard, list_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB

__all__ = ["held", "memory"]


def held(cards: Sequence[FoundCard], unit: str, pids: Collection[int]) -> float | None:
    """MiB that the processes ``pids`` and those of ``unit`` hold on ``cards``; None where a driver tells no sizes."""
    sizes = [
        holder.mib
        for card in cards
        for holder in card.holders
        if holder.pid in pids or holder.unit.partition(" of ")[0] == unit
    ]
    return None if any(size is None for size in sizes) else round(sum(filter(None, sizes)), 1)


def memory(facts: Mapping[str, Any], unit: str, pids: Collection[int]) -> dict[str, Any]:
    """The keys of an endpoint's row: ``memory_mib``, ``cards_mib`` (None for one without cards) and ``memory_fault``,
    why the cards cannot be asked. ``pids`` are all processes that serve it."""
    resident = round(sum(map(_proc.resident_bytes, pids)) / MIB, 1)
    told: dict[str, Any] = {"memory_mib": resident, "cards_mib": None, "memory_fault": None}
    if facts.get("cards"):
        try:
            told["cards_mib"] = held(list_cards(), unit, pids)
        except FleetError as exc:  # a driver that does not answer is no reason to hide the endpoint
            told["memory_fault"] = exc.message
    return told
