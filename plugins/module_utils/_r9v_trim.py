# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fewer hot experts after a start that left a card too little room: how many, by what that run measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import ExpertCosts
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import digest_of, read_object

__all__ = ["Headroom", "read_headroom", "trimmed"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Headroom:
    """A run's headroom evidence: its file with its digest, and the MiB that each rank's card had free."""

    path: str
    sha256: str
    floor_gib: float
    cards: tuple[str, ...]
    free_mib: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """As a manifest's derivation keeps it."""
        return {**asdict(self), "cards": list(self.cards), "free_mib": list(self.free_mib)}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_headroom(path: str, cards: Sequence[str]) -> Headroom:
    """What the run whose evidence lies at ``path`` measured of ``cards``, which are named in rank order."""
    told = read_object(path, "headroom evidence")
    rows = told.get("cards")
    free: dict[str, Any] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            free[str(row.get("name"))] = row.get("free_mib")
    known = [free[name] for name in cards if _number(free.get(name))]
    if len(set(cards)) != 2 or len(known) != 2 or not _number(told.get("floor_gib")):
        raise FleetError(
            f"headroom evidence {path}",
            expected=f"floor_gib, and free_mib of two cards in rank order ({', '.join(cards) or 'cards names none'})",
            found=f"floor_gib {told.get('floor_gib')}, cards {', '.join(free) or 'none'}",
            remedy="Name the file that qualify.yml wrote, and the two cards as llm_cards has them",
        )
    return Headroom(path, digest_of(path), float(told["floor_gib"]), tuple(cards), tuple(map(float, known)))


def trimmed(counts: Sequence[int], room: Headroom, costs: ExpertCosts) -> tuple[int, int]:
    """``counts``, which that run served with, each less by what the card lacked of the floor, in whole experts.

    A FleetError where that leaves a rank without any.
    """
    found = []
    for rank, count in enumerate(counts):
        lacking = max(0.0, room.floor_gib * 1024 - room.free_mib[rank]) * _MIB
        left = count - math.ceil(lacking / costs.totals[rank])
        if left < 1:
            raise FleetError(
                f"rank {rank} ({room.cards[rank]}) lacks more than its hot experts take",
                expected=f"{room.floor_gib:g} GiB free with at least one hot expert",
                found=f"{room.free_mib[rank]:,.0f} MiB free with {count} hot experts of {costs.totals[rank]:,} bytes",
                remedy="Fewer cache slots, a smaller KV cache or another split must make the room",
            )
        found.append(left)
    return found[0], found[1]
