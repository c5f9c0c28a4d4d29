# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate after a start: the cards have their floor left, and what the boot took is held against what was foretold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import parse_boot_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_compare import compare, measured_terms
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootLog
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState, identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import device_names
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger

__all__ = ["boot_ledger", "gate_ledger", "read_boot", "require_floors"]

_LOG_LINES = 20000


def require_floors(unit: str, cards: Sequence[Mapping[str, Any]], states: Mapping[str, CardState]) -> None:
    """A FleetError naming the card whose floor is not left free, by its driver's own count."""
    for card in cards:
        state = states[card["name"]]
        if state.free_mib < float(card["floor_mib"]):
            raise FleetError(
                f"card {card['name']} is too full with {unit} up",
                expected=f"{float(card['floor_mib']):,.0f} MiB free",
                found=f"{state.free_mib:,.0f} of {state.total_mib:,.0f} MiB",
                remedy="Take a smaller shape (playbooks/fit.yml shows what rungs free), or lower the card's floor_mib",
                gate="floor",
            )


def gate_ledger(
    unit: str,
    invocation_id: str,
    env: Mapping[str, str],
    cards: Sequence[Mapping[str, Any]],
    predicted: Ledger | None,
) -> dict[str, Any]:
    """What this start took (see :func:`boot_ledger`); a FleetError where a floor is not left free.

    A difference to ``predicted`` is told and not refused: what is to be kept free is judged by what is free.
    """
    known = identified(cards)
    states = read_cards(known)
    require_floors(unit, known, states)
    return boot_ledger(read_boot(unit, invocation_id), env, cards, states, predicted)


def read_boot(unit: str, invocation_id: str) -> BootLog:
    """What the journal holds of this start."""
    return parse_boot_log(_systemd.journal(unit, invocation_id, lines=_LOG_LINES))


def boot_ledger(
    boot: BootLog,
    env: Mapping[str, str],
    cards: Sequence[Mapping[str, Any]],
    states: Mapping[str, CardState],
    predicted: Ledger | None,
) -> dict[str, Any]:
    """What a start took: ``{free_mib, measured, differences, note}``.

    ``free_mib`` by card from its driver, ``measured`` by card the terms that only a boot can tell (as an endpoint's
    ``measured`` takes them), ``differences`` between its log and ``predicted``.
    """
    told: dict[str, Any] = {
        "free_mib": {name: state.free_mib for name, state in states.items()},
        "measured": {},
        "differences": [],
        "note": "",
    }
    devices: dict[str, str | None] = {name: str(card["name"]) for name, card in device_names(env, cards).items()}
    try:
        told["measured"] = measured_terms(boot, devices)
        if predicted is not None:
            told["differences"] = [one.sentence for one in compare(predicted, boot, devices=devices) if not one.ok]
    except FleetError as exc:  # a log that tells nothing is no fault of the endpoint
        told["note"] = exc.message
    return told
