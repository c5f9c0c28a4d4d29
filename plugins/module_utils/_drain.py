# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between the old server and the new one: its processes are gone, the port is free, the cards' memory is back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import holders, identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["SLACK_MIB", "drain", "still_held"]

# A driver keeps some memory for itself, and a desktop a little more.
SLACK_MIB = 512.0


def _who(pid: int) -> str:
    """A process for a message: id, unit, command; it may end while it is looked at."""
    try:
        return f"pid {pid} of {_proc.unit_of(pid) or 'no unit'}: {' '.join(_proc.cmdline(pid))[:160]}"
    except (FileNotFoundError, ProcessLookupError):
        return f"pid {pid}, which has ended"


def still_held(pids: Iterable[int], port: int, cards: Sequence[Mapping[str, Any]], *, sys: str = "/sys") -> list[str]:
    """What is not free yet, each with who holds it; [] when all is.

    ``cards`` are the entries of an endpoint's cards; a card is free when all but :data:`SLACK_MIB` of its ``free_mib``
    is. A card whose address the inventory does not know cannot be asked, and is passed over.
    """
    cards = identified(cards)
    held = [f"{_who(pid)} has not ended" for pid in pids if os.path.exists(f"/proc/{pid}")]
    held += [f"port {port} is held by {_who(owner.pid)}" for owner in _proc.listeners(port)]
    states = read_cards(cards, sys=sys)
    short = [card for card in cards if states[card["name"]].free_mib < float(card["free_mib"]) - SLACK_MIB]
    for card in short:
        who = "; ".join(_who(pid) for pid in holders([card], sys=sys)) or "nobody that the driver names"
        held.append(
            f"card {card['name']} has {states[card['name']].free_mib:,.0f} of {float(card['free_mib']):,.0f} MiB free, "
            f"held by {who}"
        )
    return held


def drain(
    name: str,
    pids: Iterable[int],
    port: int,
    cards: Sequence[Mapping[str, Any]],
    *,
    deadline_s: float,
    say: Callable[..., None],
    sys: str = "/sys",
) -> float:
    """Wait until nothing is held; the seconds it took. After ``deadline_s`` a FleetError names who holds what.

    Nothing is killed: whoever holds the port or a card is not ours to end.
    """
    pids, started = tuple(pids), time.monotonic()
    while True:
        held = still_held(pids, port, cards, sys=sys)
        waited = time.monotonic() - started
        if not held:
            return waited
        if waited > deadline_s:
            raise FleetError(
                f"what endpoint {name} needs is not free",
                expected=f"processes gone, port {port} and the cards free within {deadline_s:g} s",
                found="; ".join(held),
                remedy="Stop what is named by its unit or process id, then run again",
                gate="drain",
            )
        say(f"drain: {held[0][:60]}", int(waited))
        time.sleep(0.1 if waited < 5 else 1.0)
