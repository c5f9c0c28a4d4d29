# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cards of this host as their drivers tell of them: memory, and who holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = ["CardState", "holders", "identified", "pci_address", "read_cards"]

_NVIDIA = ("nvidia-smi", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class CardState:
    """A card's memory in MiB, as its driver counts it."""

    name: str
    total_mib: float
    free_mib: float


def _seen(card: Mapping[str, Any], found: str) -> FleetError:
    where = card.get("uuid") or card.get("pci")
    return FleetError(
        f"card {card['name']} is not there",
        expected=f"{card['vendor']} card {where}",
        found=found,
        remedy="Correct llm_cards, or see why the driver does not have it (dmesg, lspci)",
    )


def _amd(card: Mapping[str, Any], sys: str) -> CardState:
    """amdgpu tells a card's memory by PCI address."""
    folder = os.path.join(sys, "bus", "pci", "devices", str(card.get("pci")))
    sizes = []
    for name in ("mem_info_vram_total", "mem_info_vram_used"):
        try:
            with open(os.path.join(folder, name), encoding="ascii") as handle:
                sizes.append(int(handle.read()))
        except FileNotFoundError as exc:
            raise _seen(card, f"no {name} in {folder}") from exc
    total, used = sizes
    return CardState(str(card["name"]), total / MIB, (total - used) / MIB)


def _nvidia_rows(query: str) -> list[list[str]]:
    done = run([_NVIDIA[0], query, _NVIDIA[1]], timeout_s=30)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def pci_address(text: str) -> str:
    """nvidia-smi's ``00000000:01:00.0`` as the kernel writes it, ``0000:01:00.0``."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _nvidia(cards: Sequence[Mapping[str, Any]]) -> list[CardState]:
    rows = _nvidia_rows("--query-gpu=pci.bus_id,uuid,memory.total,memory.free")
    found = []
    for card in cards:
        match = [row for row in rows if card.get("uuid") == row[1] or card.get("pci") == pci_address(row[0])]
        if not match:
            known = ", ".join(f"{pci_address(row[0])} {row[1]}" for row in rows) or "no card"
            raise _seen(card, f"nvidia-smi lists {known}")
        found.append(CardState(str(card["name"]), float(match[0][2]), float(match[0][3])))
    return found


def identified(cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those cards whose address the inventory knows; the others cannot be asked."""
    return [card for card in cards if card.get("uuid") or card.get("pci", "unknown") != "unknown"]


def read_cards(cards: Sequence[Mapping[str, Any]], *, sys: str = "/sys") -> dict[str, CardState]:
    """The memory of each declared card (``{name, vendor, pci, uuid}``) now.

    From amdgpu's sysfs and from nvidia-smi; a card that is not there is a FleetError.
    """
    nvidia = [card for card in cards if card["vendor"] == "nvidia"]
    states = [_amd(card, sys) for card in cards if card["vendor"] == "amd"]
    if nvidia:
        states += _nvidia(nvidia)
    return {state.name: state for state in states}


def _kfd_holders(sys: str) -> list[int]:
    """Processes that have a compute queue on an AMD card."""
    folder = os.path.join(sys, "class", "kfd", "kfd", "proc")
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit()) if os.path.isdir(folder) else []


def holders(cards: Sequence[Mapping[str, Any]], *, sys: str = "/sys") -> list[int]:
    """The ids of processes that hold memory on any card of the vendors of ``cards``."""
    vendors = {card["vendor"] for card in cards}
    found = _kfd_holders(sys) if "amd" in vendors else []
    if "nvidia" in vendors:
        found += [int(row[0]) for row in _nvidia_rows("--query-compute-apps=pid") if row[0].isdigit()]
    return found
