# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate that holds an endpoint's cards against those of the host, before anything is stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import FoundCard
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["gate_cards"]


def _told(cards: Sequence[FoundCard]) -> str:
    """All cards for a message."""
    return "; ".join(f"{card.pci} {card.arch or card.vendor} index {card.index}" for card in cards) or "no GPU"


def _found(card: Mapping[str, Any], seen: Sequence[FoundCard]) -> FoundCard:
    where = (card.get("pci"), card.get("uuid"))
    match = [one for one in seen if one.pci == where[0] or (one.uuid and one.uuid == where[1])]
    if not match:
        raise FleetError(
            f"card {card['name']} is not there",
            expected=f"{card['vendor']} card {card.get('uuid') or card.get('pci')}",
            found=_told(seen),
            remedy="Correct llm_cards, or see why the bus does not show it (dmesg, lspci)",
        )
    return match[0]


def _check(card: Mapping[str, Any], one: FoundCard) -> None:
    """Driver, architecture and index are as declared."""
    what = f"card {card['name']} ({one.pci})"
    if one.problem:
        raise FleetError(f"{what} cannot be used", expected="a card that its driver serves", found=one.problem)
    if card.get("arch") not in (None, one.arch):
        raise FleetError(
            f"{what} is of another architecture",
            expected=card["arch"],
            found=one.arch,
            remedy="Correct llm_cards, and have a runtime built for it: code for another one dies on the first use",
        )
    if card.get("index") is not None and int(card["index"]) != one.index:
        raise FleetError(
            f"{what} has another index than declared",
            expected=f"index {card['index']}",
            found=f"index {one.index} in the driver's order",
            remedy="Correct index in llm_cards and the endpoint's visible devices: another card would be served from",
        )


def _check_integrated(env: Mapping[str, str], seen: Sequence[FoundCard]) -> None:
    """No GPU of the CPU's is among those that the engine may see: ROCm counts it, and some engines die of it."""
    visible = env.get("HIP_VISIBLE_DEVICES", env.get("R9V_VISIBLE_DEVICES"))
    for one in seen:
        if one.integrated and (visible is None or str(one.index) in visible.split(",")):
            others = ",".join(str(card.index) for card in seen if not card.integrated and card.vendor == "amd")
            raise FleetError(
                f"the engine would see the GPU inside the CPU, {one.pci} ({one.arch})",
                expected=f"HIP_VISIBLE_DEVICES={others}",
                found=f"HIP_VISIBLE_DEVICES={visible}" if visible is not None else "no HIP_VISIBLE_DEVICES",
                remedy="Mend the line in the endpoint's env",
            )


def _check_atomics(env: Mapping[str, str], cards: Sequence[tuple[str, FoundCard]]) -> None:
    """Tensor parallelism runs collectives, and their kernels want PCIe atomics of every card."""
    if env.get("SPLIT_MODE") != "tensor" or len(cards) < 2:
        return
    for name, one in cards:
        if one.vendor == "amd" and one.atomics is False:
            raise FleetError(
                f"card {name} ({one.pci}) has no PCIe atomics, and SPLIT_MODE=tensor needs them on every card",
                expected="AtomicOps that reach the root port",
                found=one.atomics_why,
                remedy="SPLIT_MODE=layer only copies between cards; or move the card to a slot of the CPU's own",
            )


def _check_strangers(cards: Sequence[tuple[str, FoundCard]], units: Collection[str], pids: Collection[int]) -> None:
    """Nobody holds memory of a card but units that will make way."""
    held = [
        f"card {name}: {'' if holder.mib is None else f'{holder.mib:,.0f} MiB by '}pid {holder.pid} of "
        f"{holder.unit or 'no unit'}: {holder.command}"
        for name, one in cards
        for holder in one.holders
        if holder.unit.partition(" of ")[0] not in units and holder.pid not in pids
    ]
    if held:
        raise FleetError(
            "somebody else holds memory of the endpoint's cards",
            expected="nobody, or " + ", ".join(sorted(units)),
            found="; ".join(held),
            remedy="Stop it by its unit or process id, or name it under the endpoint's replaces, then run again",
        )


def gate_cards(
    cards: Sequence[Mapping[str, Any]],
    env: Mapping[str, str],
    seen: Sequence[FoundCard],
    units: Collection[str],
    pids: Collection[int] = (),
) -> None:
    """Refuse when the host's cards are not those of ``cards`` (an endpoint's, as ``_resolve`` gives them).

    ``env`` are the endpoint's lines, ``seen`` the host's GPUs, ``units`` those that hold cards now and make way,
    ``pids`` their processes elsewhere. Cards whose address the inventory does not know cannot be held against
    anything, and are passed over.
    """
    pairs = [(str(card["name"]), _found(card, seen)) for card in identified(cards)]
    for card, (_name, one) in zip(identified(cards), pairs, strict=True):
        _check(card, one)
    if any(card["vendor"] == "amd" for card in cards):
        _check_integrated(env, seen)
    _check_atomics(env, pairs)
    _check_strangers(pairs, units, pids)
