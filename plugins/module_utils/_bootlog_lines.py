# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a boot's log says about memory: figures by device, contexts, the engine's own fit, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import TERMS

__all__ = [
    "BOOT_TERMS",
    "BootContext",
    "BootLine",
    "BootLog",
    "Cache",
    "Device",
    "Failure",
    "Fit",
    "Projector",
    "States",
]

# Two more than a ledger has: it counts neither a projector's compute buffer nor a drafter's recurrent state.
BOOT_TERMS = (*TERMS, "projector_compute", "draft_recurrent")


@dataclass(frozen=True)
class BootLine:
    """One term on one device, in MiB as printed, duplicates summed; ``resolution`` is the most that rounding hid."""

    term: str
    device: str
    context: str  # target or draft
    mib: float
    resolution: float


@dataclass(frozen=True)
class Cache:
    """One cache of keys and values over all devices; ``kind`` full or window, or the engine's word for another."""

    kind: str
    cells: int
    layers: int
    sequences: int
    streams: int
    k_type: str
    k_mib: float
    v_type: str
    v_mib: float
    mib: float


@dataclass(frozen=True)
class States:
    """The recurrent states over all devices: convolution's (R) and recurrence's (S); ``rollback`` is n_rs_seq."""

    cells: int
    layers: int
    sequences: int
    rollback: int
    r_type: str
    r_mib: float
    s_type: str
    s_mib: float
    mib: float


@dataclass(frozen=True)
class BootContext:
    """What the engine made of the settings. None where the log does not say; ``flash`` is auto's outcome too,
    ``copies`` 4 where layers are pipelined over cards, ``reserves`` how often its compute buffers were laid out."""

    n_ctx: int | None
    n_ctx_seq: int | None
    n_seq_max: int | None
    n_batch: int | None
    n_ubatch: int | None
    n_rs_seq: int | None
    n_outputs_max: int | None
    flash: bool | None
    kv_unified: bool | None
    caches: tuple[Cache, ...]
    states: States | None
    copies: int | None
    reserves: int


@dataclass(frozen=True)
class Device:
    """A device as the engine found it, in MiB."""

    name: str
    description: str
    total_mib: int
    free_mib: int


@dataclass(frozen=True)
class Fit:
    """The engine's own fit: ``verdict`` fits, changed (it took other settings), refused (and loads all the same),
    error or unfinished. ``memory`` is device or host; ``devices`` are (name, used, free) of several cards, MiB."""

    verdict: str
    memory: str | None
    projected_mib: int | None
    free_mib: int | None
    margin_mib: int | None
    left_mib: int | None
    short_mib: int | None  # what is missing to the margin, of several cards together
    n_ctx: int | None  # what a changed context was cut to
    devices: tuple[tuple[str, int, int], ...]
    with_drafter: bool  # False: it could not measure the drafter and fitted without it
    words: str


@dataclass(frozen=True)
class Projector:
    """``mib`` of its file on ``device``; ``worst_mib`` with compute, the engine's estimate before it loads."""

    kind: str | None
    device: str | None
    mib: float | None
    worst_mib: float | None


@dataclass(frozen=True)
class Failure:
    """Why a boot ended: in our words where the cause is known, then in the engine's."""

    what: str
    remedy: str | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class BootLog:
    """The last boot of a log. ``missing`` names what a whole boot's log would have; ``unread`` are lines with a
    buffer that this reader does not know; ``notes`` are for a person."""

    lines: tuple[BootLine, ...]
    target: BootContext | None
    draft: BootContext | None
    build: int | None
    commit: str | None
    verbosity: int | None
    devices: tuple[Device, ...]
    model: str | None
    drafter: str | None  # its file; "mtp" for the model's own head
    speculation: tuple[str, ...]  # the proposers that were set up
    slots: int | None
    slot_ctx: int | None
    offloaded: tuple[int, int] | None  # layers on cards, of all
    fit: Fit | None
    projector: Projector | None
    adapters: tuple[str, ...]
    address: str | None
    failure: Failure | None
    boots: int
    quiet: bool  # it loaded, and the log's verbosity is too low to tell the sizes
    missing: tuple[str, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def state(self) -> str:
        """How far it came: failed, listening or unfinished."""
        if self.failure is not None:
            return "failed"
        return "unfinished" if self.address is None else "listening"

    def mib(self, term: str, device: str | None = None) -> float | None:
        """A term's sum on one device or on all of them; None where the log has nothing of it."""
        return total(line.mib for line in self.lines if line.term == term and device in (None, line.device))


def total(figures: Iterable[float]) -> float | None:
    """The sum of printed figures to their two decimals; None for none."""
    cents = [round(figure * 100) for figure in figures]
    return sum(cents) / 100 if cents else None
