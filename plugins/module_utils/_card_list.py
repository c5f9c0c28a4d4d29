# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every GPU of this host: from the PCI bus, then what amdgpu, its compute driver (KFD) or nvidia-smi tell of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import pci_address
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._pcie import atomics, read_way
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = ["FoundCard", "Holder", "as_dict", "gfx_name", "list_cards", "parse_properties", "parse_smi"]

_VENDORS = {"0x1002": "amd", "0x10de": "nvidia"}
_DISPLAY = "0x03"  # PCI base class of display controllers, 3D ones among them
# Processors that share a die with the CPU, as LLVM's AMDGPU usage guide lists them.
_INTEGRATED = frozenset(
    "gfx801 gfx902 gfx909 gfx90c gfx1013 gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153".split()
)
_SMI = ("index", "pci.bus_id", "uuid", "name", "compute_cap", "memory.total", "memory.reserved", "memory.free")


@dataclass(frozen=True)
class Holder:
    """A process with memory on a card: MiB, and who it is as far as that can be told."""

    pid: int
    mib: float | None
    unit: str
    command: str


@dataclass(frozen=True)
class FoundCard:
    """One GPU. ``index`` is its number in the engine's order (HIP's, nvidia-smi's); memory in MiB, ``addressable_mib``
    what the driver leaves when nothing runs. ``atomics`` is None where it cannot be told; ``problem`` says why its
    driver does not serve it, and is empty where it does."""

    pci: str
    vendor: str
    name: str = ""
    arch: str = ""
    index: int | None = None
    uuid: str = ""
    integrated: bool = False
    driver: str = ""
    total_mib: float | None = None
    addressable_mib: float | None = None
    free_mib: float | None = None
    atomics: bool | None = None
    atomics_why: str = ""
    holders: tuple[Holder, ...] = field(default=())
    problem: str = ""


def _text(*parts: str) -> str:
    """A small file's content without its line end; "" where it is not there or cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def _bus(sys: str) -> list[FoundCard]:
    """The GPUs on the bus, whether a driver has them or not, by address."""
    root, found = os.path.join(sys, "bus", "pci", "devices"), []
    for pci in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        vendor = _VENDORS.get(_text(root, pci, "vendor"))
        if vendor is None or not _text(root, pci, "class").startswith(_DISPLAY):
            continue
        driver = os.path.basename(os.path.realpath(os.path.join(root, pci, "driver")))
        reach = atomics(read_way(pci, sys))
        card = FoundCard(pci, vendor, driver="" if driver == "driver" else driver)
        found.append(replace(card, atomics=reach.ok, atomics_why=reach.why))
    return found


def parse_properties(text: str) -> dict[str, int]:
    """A KFD node's ``properties``: one ``name number`` a line; others are passed over."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def gfx_name(version: int) -> str:
    """KFD's ``gfx_target_version`` (120001) as compilers write it (gfx1201): decimal, then hexadecimal minor, step."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _address(properties: Mapping[str, int]) -> str:
    """The PCI address that ``domain`` and ``location_id`` (bus, device, function) give."""
    where = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{where >> 8 & 255:02x}:{where >> 3 & 31:02x}.{where & 7}"


def _holder(pid: int, mib: float | None) -> Holder:
    try:
        return Holder(pid, mib, _proc.unit_of(pid) or "", " ".join(_proc.cmdline(pid))[:160])
    except (FileNotFoundError, ProcessLookupError):
        return Holder(pid, mib, "", "")


def _kfd_holders(kfd: str, gpu: str) -> tuple[Holder, ...]:
    """Processes with memory on the GPU that KFD calls ``gpu``."""
    folder, found = os.path.join(kfd, "proc"), []
    for pid in sorted(filter(str.isdigit, os.listdir(folder)), key=int) if os.path.isdir(folder) else []:
        used = _text(folder, pid, f"vram_{gpu}")
        if used.isdigit() and int(used):
            found.append(_holder(int(pid), int(used) / MIB))
    return tuple(found)


def _kfd_nodes(kfd: str) -> dict[str, tuple[int, str, dict[str, int]]]:
    """Address: (HIP index, KFD's id, properties) of each GPU node; HIP counts the nodes in their order."""
    folder = os.path.join(kfd, "topology", "nodes")
    nodes: dict[str, tuple[int, str, dict[str, int]]] = {}
    for node in sorted(filter(str.isdigit, os.listdir(folder)), key=int) if os.path.isdir(folder) else []:
        properties = parse_properties(_text(folder, node, "properties"))
        if properties.get("simd_count"):
            nodes[_address(properties)] = (len(nodes), _text(folder, node, "gpu_id"), properties)
    return nodes


def _amd(card: FoundCard, nodes: Mapping[str, tuple[int, str, dict[str, int]]], sys: str) -> FoundCard:
    folder, kfd = os.path.join(sys, "bus", "pci", "devices", card.pci), os.path.join(sys, "class", "kfd", "kfd")
    sizes = [_text(folder, name) for name in ("mem_info_vram_total", "mem_info_vram_used")]
    if card.driver != "amdgpu" or not all(map(str.isdigit, sizes)):
        return replace(card, problem=f"driver {card.driver or 'none'} instead of amdgpu has it; see dmesg and lspci -k")
    total, used = (int(size) / MIB for size in sizes)
    serial = _text(folder, "unique_id")
    card = replace(
        card,
        name=_text(folder, "product_name"),
        uuid=f"GPU-{serial}" if serial else "",
        total_mib=total,
        addressable_mib=total,
        free_mib=total - used,
    )
    if card.pci not in nodes:
        return replace(
            card, problem="the compute driver (KFD) does not list it; see dmesg, and whether /dev/kfd is there"
        )
    index, gpu, properties = nodes[card.pci]
    arch = gfx_name(properties.get("gfx_target_version", 0))
    return replace(
        card, index=index, arch=arch, integrated=arch in _INTEGRATED, holders=_kfd_holders(kfd, gpu) if gpu else ()
    )


def parse_smi(output: str) -> list[dict[str, str]]:
    """The rows of a ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` with the fields of ``_SMI``."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    for row in rows:
        if len(row) != len(_SMI):
            raise FleetError("nvidia-smi", expected=f"rows of {', '.join(_SMI)}", found=", ".join(row))
    return [dict(zip(_SMI, row, strict=True)) for row in rows]


def _number(text: str) -> float | None:
    """nvidia-smi's number; None for [N/A] and the like."""
    return float(text) if text.replace(".", "", 1).isdigit() else None


def _smi(query: str) -> str:
    return run(["nvidia-smi", query, "--format=csv,noheader,nounits"], timeout_s=30).stdout


def _nvidia(cards: Sequence[FoundCard], dev: str) -> list[FoundCard]:
    problem = ""
    if not os.path.exists(os.path.join(dev, "nvidiactl")):
        problem = "/dev/nvidiactl is missing: run nvidia-modprobe -u -c=0 (package nvidia-modprobe), or load the driver"
    elif shutil.which("nvidia-smi") is None:
        problem = "nvidia-smi is missing: install the driver's tools"
    if problem:
        return [replace(card, problem=problem) for card in cards]
    rows = {pci_address(row["pci.bus_id"]): row for row in parse_smi(_smi("--query-gpu=" + ",".join(_SMI)))}
    held: dict[str, list[Holder]] = {}
    for line in _smi("--query-compute-apps=gpu_uuid,pid,used_gpu_memory").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdigit():
            held.setdefault(cells[0], []).append(_holder(int(cells[1]), _number(cells[2])))
    return [_from_row(card, rows.get(card.pci), held) for card in cards]


def _from_row(card: FoundCard, row: Mapping[str, str] | None, held: Mapping[str, list[Holder]]) -> FoundCard:
    if row is None:
        return replace(card, problem="nvidia-smi does not list it; see dmesg and lspci -k")
    total, reserved = _number(row["memory.total"]), _number(row["memory.reserved"])
    return replace(
        card,
        name=row["name"],
        arch="sm_" + row["compute_cap"].replace(".", ""),
        index=int(row["index"]),
        uuid=row["uuid"],
        total_mib=total,
        addressable_mib=None if total is None else total - (reserved or 0.0),
        free_mib=_number(row["memory.free"]),
        holders=tuple(held.get(row["uuid"], ())),
    )


def list_cards(*, sys: str = "/sys", dev: str = "/dev") -> list[FoundCard]:
    """Every AMD and NVIDIA GPU by PCI address; one that its driver does not serve says so in ``problem``."""
    found = _bus(sys)
    nodes = _kfd_nodes(os.path.join(sys, "class", "kfd", "kfd"))
    nvidia = [card for card in found if card.vendor == "nvidia"]
    cards = [_amd(card, nodes, sys) for card in found if card.vendor == "amd"]
    if nvidia:
        cards += _nvidia(nvidia, dev)
    return sorted(cards, key=lambda card: card.pci)


def as_dict(card: FoundCard) -> dict[str, Any]:
    """For a module's result."""
    told = {key: value for key, value in vars(card).items() if key != "holders"}
    return told | {"holders": [vars(holder) for holder in card.holders]}
