# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer to "does it fit": a boot's ledger as plain data, with the split's neighbours and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_advice import advice_text, advise
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_fit import best_split, largest_context
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import TERMS, CardLedger, Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB

__all__ = ["answer", "require_room", "told_of", "with_best_split", "with_largest_context"]


def _number(value: float) -> float | None:
    """JSON knows no endless number: None where nobody said what is free."""
    return None if value == float("inf") else value


def _device(held: CardLedger) -> dict[str, Any]:
    return {
        "name": held.name,
        **held.mib(),
        "free_mib": None if held.card is None else held.card.free_mib,
        "floor_mib": None if held.card is None else held.card.floor_mib,
        "free_after_mib": _number(held.free_after_mib),
        "fits": held.fits,
    }


def _near(ledger: Ledger) -> dict[str, Any]:
    return {
        "split": list(ledger.split),
        "fits": ledger.fits,
        "room_mib": _number(ledger.room_mib),
        "free_after_mib": {card.name: _number(card.free_after_mib) for card in ledger.cards},
    }


def answer(boot: Boot, *, near: Sequence[Ledger] = ()) -> dict[str, Any]:
    """A boot's ledger in MiB, not rounded: ``fits``, ``n_ctx``, ``n_ctx_seq``, ``split`` (layers a card), ``cards``,
    ``host``, ``lines``, ``neighbours``, ``advice``, ``measured`` (the name of the figures that were used), ``notes``.

    The refusals are those of ``_ledger.predict``.
    """
    ledger = boot.ledger()
    used = boot.applying()
    advice = [asdict(one) for one in advise(boot, ledger)]
    return told_of(ledger, advice, near=near, measured=None if used is None else used.name)


def told_of(
    ledger: Ledger, advice: Sequence[Mapping[str, Any]], *, near: Sequence[Ledger] = (), measured: str | None = None
) -> dict[str, Any]:
    """A ledger as plain data; see :func:`answer`."""
    return {
        "fits": ledger.fits,
        "n_ctx": ledger.n_ctx,
        "n_ctx_seq": ledger.n_ctx_seq,
        "split": list(ledger.split),
        "cards": [_device(card) for card in ledger.cards],
        "host": _device(ledger.host),
        "lines": [
            {
                "name": line.name,
                "term": line.term,
                "card": line.card,
                "mib": line.bytes / MIB,
                "label": line.label,
                "source": line.source,
            }
            for line in ledger.lines
        ],
        "neighbours": [_near(one) for one in near],
        "advice": list(advice),
        "measured": measured,
        "notes": list(ledger.notes),
    }


def with_best_split(boot: Boot) -> tuple[Boot, tuple[Ledger, ...]]:
    """The boot under the split that leaves most room on the fullest card, and the ledgers one layer either way."""
    if len(boot.cards) < 2:
        return replace(boot, shape=replace(boot.shape, tensor_split=None)), ()
    found = best_split(
        boot.model, boot.shape, drafter=boot.drafter, mmproj=boot.mmproj, lora=boot.lora, cards=boot.cards
    )
    split = tuple(float(share) for share in found.counts)
    return replace(boot, shape=replace(boot.shape, tensor_split=split)), found.neighbours


def with_largest_context(boot: Boot) -> tuple[Boot, tuple[Ledger, ...]]:
    """The boot with the largest context that keeps every floor, its split chosen anew unless the shape has one."""
    if not boot.cards:
        raise FleetError("ctx_size", expected="cards with a floor to fill up to", found="a boot without cards")
    found = largest_context(
        boot.model, boot.shape, drafter=boot.drafter, mmproj=boot.mmproj, lora=boot.lora, cards=boot.cards
    )
    if found is None:
        raise FleetError(
            "no context fits",
            expected="at least 256 tokens a slot above every floor",
            found="the weights alone leave less",
            remedy="Take a smaller model, or more of the cards",
        )
    size, split = found
    shape = replace(boot.shape, ctx_size=size)
    if len(boot.cards) > 1:
        shape = replace(shape, tensor_split=tuple(float(share) for share in split.counts))
    return replace(boot, shape=shape), split.neighbours


def require_room(name: str, told: dict[str, Any]) -> None:
    """A FleetError naming the fullest card that does not keep its floor, its largest terms, and what would help."""
    if told["fits"]:
        return
    devices = [device for device in (*told["cards"], told["host"]) if not device["fits"]]
    worst = min(devices, key=lambda device: device["free_after_mib"] - device["floor_mib"])
    terms = sorted(((worst[f"{term}_mib"], term) for term in TERMS), reverse=True)
    largest = ", ".join(f"{term.replace('_', ' ')} {mib:,.0f}" for mib, term in terms[:3] if mib)
    lines = told["advice"]
    if lines:
        remedy = "Change one of these env lines, what costs least first:\n" + "\n".join(map(advice_text, lines))
    else:
        remedy = "Take a smaller model, or a larger card"
    where = "the host" if worst["name"] == "host" else f"card {worst['name']}"
    raise FleetError(
        f"endpoint {name} does not fit {where}",
        expected=f"{worst['floor_mib']:,.0f} MiB free of {worst['free_mib']:,.0f} with the endpoint up",
        found=f"{worst['total_mib']:,.0f} MiB needed, {worst['free_after_mib']:,.0f} left; largest: {largest} MiB",
        remedy=remedy,
        fit=told,
    )
