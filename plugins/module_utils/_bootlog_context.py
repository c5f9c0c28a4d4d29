# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The buffers of one context and of one encoder of a projector, while a boot's log is read.

A buffer that is printed twice for a device is two buffers (a window's cache beside the whole one). Compute buffers are
laid out anew when a graph changes, the old ones freed first: of such repetitions the largest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootContext, Cache, States

__all__ = ["Buffers", "Clip", "Context", "add", "hundredths", "largest", "to_mib"]

# Device -> the figures printed for it, in hundredths of a MiB.
Buffers = dict[str, list[int]]


def hundredths(printed: str) -> int:
    return int(printed.replace(".", ""))


def to_mib(printed: str) -> float:
    return hundredths(printed) / 100


def add(buffers: Buffers, device: str, printed: str) -> None:
    buffers.setdefault(device, []).append(hundredths(printed))


def largest(layouts: Iterable[Buffers]) -> Buffers:
    """Per device the largest of several layouts of the same buffers."""
    most: Buffers = {}
    for layout in layouts:
        for device, figures in layout.items():
            if device not in most or sum(figures) > sum(most[device]):
                most[device] = figures
    return most


@dataclass
class Context:
    """A context while it is read."""

    kind: str
    numbers: dict[str, int] = field(default_factory=dict)
    flash: bool | None = None
    kv_unified: bool | None = None
    cache_kind: str = "full"
    caches: list[Cache] = field(default_factory=list)
    states: States | None = None
    copies: int | None = None
    kv: Buffers = field(default_factory=dict)
    recurrent: Buffers = field(default_factory=dict)
    outputs: Buffers = field(default_factory=dict)
    layouts: list[Buffers] = field(default_factory=list)

    def terms(self) -> list[tuple[str, Buffers]]:
        """Its buffers under the terms of a ledger."""
        lead = "draft_" if self.kind == "draft" else ""
        return [
            (lead + "kv", self.kv),
            (lead + "recurrent", self.recurrent),
            (lead + "compute", largest(self.layouts)),
            ("outputs", self.outputs),
        ]

    def result(self) -> BootContext:
        get = self.numbers.get
        return BootContext(
            n_ctx=get("n_ctx"),
            n_ctx_seq=get("n_ctx_seq"),
            n_seq_max=get("n_seq_max"),
            n_batch=get("n_batch"),
            n_ubatch=get("n_ubatch"),
            n_rs_seq=get("n_rs_seq"),
            n_outputs_max=get("n_outputs_max"),
            flash=self.flash,
            kv_unified=self.kv_unified,
            caches=tuple(self.caches),
            states=self.states,
            copies=self.copies,
            reserves=len(self.layouts),
        )

    def missing(self) -> list[str]:
        whose = "the drafter's" if self.kind == "draft" else "the target's"
        found = [f"{whose} {key}" for key in ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch") if key not in self.numbers]
        # A model without a memory has none to print; one that is cut off has no compute buffers either.
        if not any(self.layouts):
            found.append(f"{whose} compute buffers")
            if not self.kv and not self.recurrent:
                found.append(f"{whose} caches")
        return found


@dataclass
class Clip:
    """An encoder of the projector while it is read."""

    device: str | None
    kind: str | None = None
    mib: str | None = None
    layouts: list[Buffers] = field(default_factory=lambda: [{}])
