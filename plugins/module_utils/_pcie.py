# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a card's atomic operations reach the host's memory, read from the PCI configuration space on the way there.

A card may send AtomicOps to the host if every switch port on the way routes them and the root port completes them (PCI
Express Base Specification, Device Capabilities 2; the kernel's pci_enable_atomic_ops_to_root asks the same).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Atomics", "Express", "atomics", "express", "read_way"]

_EXPRESS = 0x10  # id of the capability
_ROOT_PORT, _UPSTREAM, _DOWNSTREAM = 4, 5, 6
_ROUTES, _COMPLETES_32, _COMPLETES_64 = 1 << 6, 1 << 7, 1 << 8  # in Device Capabilities 2
_BLOCKS = 1 << 7  # AtomicOp Egress Blocking, in Device Control 2


@dataclass(frozen=True)
class Express:
    """A device's PCI Express capability: what kind of port it is, and its part in AtomicOps."""

    kind: int
    routes: bool
    completes: bool
    blocks: bool


@dataclass(frozen=True)
class Atomics:
    """``ok`` is None where it cannot be told; ``why`` names the device that decides."""

    ok: bool | None
    why: str


def express(config: bytes) -> Express | None:
    """The capability in a device's configuration space; None where it has none, or no more than 64 bytes are readable
    (which is what the kernel gives to those who are not root)."""
    if len(config) < 64 or not config[0x06] & 1 << 4:
        return None
    at, steps = config[0x34] & ~3, 0
    while at and steps < 48 and at + 2 <= len(config):  # a list that runs in a circle ends too
        if config[at] == _EXPRESS:
            if at + 0x2A > len(config):
                return None
            (flags,) = struct.unpack_from("<H", config, at + 2)
            (able,) = struct.unpack_from("<I", config, at + 0x24)
            (control,) = struct.unpack_from("<H", config, at + 0x28)
            both = _COMPLETES_32 | _COMPLETES_64
            return Express(flags >> 4 & 15, bool(able & _ROUTES), able & both == both, bool(control & _BLOCKS))
        at, steps = config[at + 1] & ~3, steps + 1
    return None


def read_way(pci: str, sys: str = "/sys") -> list[tuple[str, bytes]]:
    """``(address, configuration space)`` of every device from the root port to the card at address ``pci``."""
    real = os.path.realpath(os.path.join(sys, "bus", "pci", "devices", pci))
    names, folder = [], real
    while os.path.exists(os.path.join(folder, "config")):
        names.append(folder)
        folder = os.path.dirname(folder)
    way = []
    for name in reversed(names):
        with open(os.path.join(name, "config"), "rb") as handle:
            way.append((os.path.basename(name), handle.read(256)))
    return way


def atomics(way: Sequence[tuple[str, bytes]]) -> Atomics:
    """Whether AtomicOps of the last device of ``way`` (see ``read_way``) are completed by the first, the root port."""
    if len(way) < 2:
        return Atomics(None, "the card is behind no root port that the kernel shows")
    for address, config in way[:-1]:
        port = express(config)
        if port is None:
            return Atomics(None, f"the PCI Express capability of {address} cannot be read (it takes root)")
        if port.kind == _ROOT_PORT:
            if not port.completes:
                return Atomics(False, f"root port {address} completes no 32 and 64 bit AtomicOps")
        elif not port.routes:
            return Atomics(False, f"bridge {address} routes no AtomicOps")
        elif port.kind == _UPSTREAM and port.blocks:
            return Atomics(False, f"bridge {address} blocks AtomicOps")
    return Atomics(True, f"{way[-1][0]} reaches root port {way[0][0]}")
