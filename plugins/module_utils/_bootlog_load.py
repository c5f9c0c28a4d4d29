# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is gathered of one load of a model while its log is read: each ``on_`` method takes the fields of one message.

What the engine's own fit measures before it loads is no buffer, and is kept apart.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_context import (
    Buffers,
    Clip,
    Context,
    add,
    hundredths,
    largest,
    to_mib,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import (
    BootContext,
    BootLine,
    Cache,
    Fit,
    Projector,
    States,
)

__all__ = ["Load"]


class Load:
    """One load of a model, filled line by line."""

    def __init__(self) -> None:
        self.model: str | None = None
        self.drafter: str | None = None
        self.contexts: dict[str, Context] = {}
        self.last: Context | None = None
        self.reserving: Context | None = None
        self.weights: dict[str, Buffers] = {"weights": {}, "draft_weights": {}}
        self.adapter: Buffers = {}
        self.adapters: list[str] = []
        self.clips: list[Clip] = []
        self.worst: str | None = None
        self.offloaded: tuple[int, int] | None = None
        self.speculation: list[str] = []
        self.dropped = False
        self.slots: tuple[int, int] | None = None
        self.loaded = False
        self.fitting = False
        self.fit: dict[str, Any] = {}
        self.unchanged = False
        self.fit_devices: list[tuple[str, int, int]] = []
        self.unread: list[str] = []
        self.notes: list[str] = []

    # What is loaded.
    def on_drafter(self, name: str) -> None:
        self.drafter = name

    def on_mtp(self) -> None:
        self.drafter = "mtp"

    def on_weights(self, device: str, size: str) -> None:
        add(self.weights["draft_weights" if self.drafter else "weights"], device, size)

    def on_offloaded(self, layers: str, of: str) -> None:
        if not self.drafter:
            self.offloaded = int(layers), int(of)

    def on_adapter(self, name: str) -> None:
        self.adapters.append(name)

    def on_adapter_buffer(self, device: str, size: str) -> None:
        add(self.adapter, device, size)

    # Contexts.
    def on_context(self) -> None:
        kind = "draft" if self.drafter else "target"
        # Constructed again, it takes the place of the one before.
        self.last = self.reserving = self.contexts[kind] = Context(kind)

    def on_number(self, key: str, value: str) -> None:
        if self.last is not None:
            self.last.numbers[key] = int(value)

    def on_flash(self, value: str) -> None:
        if self.last is not None and value != "auto":
            self.last.flash = value == "enabled"

    def on_unified(self, value: str) -> None:
        if self.last is not None:
            self.last.kv_unified = value == "true"

    def on_cache_kind(self, word: str) -> None:
        if self.last is not None:
            self.last.cache_kind = {"non-SWA": "full", "SWA": "window"}.get(word, word)

    def on_kv(self, device: str, size: str) -> None:
        if self.last is not None:
            add(self.last.kv, device, size)

    def on_cache(
        self,
        size: str,
        cells: str,
        layers: str,
        sequences: str,
        streams: str,
        k_type: str,
        k_mib: str,
        v_type: str,
        v_mib: str,
    ) -> None:
        if self.last is not None:
            numbers = int(cells), int(layers), int(sequences), int(streams)
            cache = Cache(self.last.cache_kind, *numbers, k_type, to_mib(k_mib), v_type, to_mib(v_mib), to_mib(size))
            self.last.caches.append(cache)

    def on_recurrent(self, device: str, size: str) -> None:
        if self.last is not None:
            add(self.last.recurrent, device, size)

    def on_states(
        self,
        size: str,
        cells: str,
        layers: str,
        sequences: str,
        rollback: str,
        r_type: str,
        r_mib: str,
        s_type: str,
        s_mib: str,
    ) -> None:
        if self.last is not None:
            numbers = int(cells), int(layers), int(sequences), int(rollback)
            self.last.states = States(*numbers, r_type, to_mib(r_mib), s_type, to_mib(s_mib), to_mib(size))

    def on_outputs(self, device: str, size: str) -> None:
        if self.last is not None:
            add(self.last.outputs, device, size)

    # Compute buffers.
    def on_reserve(self) -> None:
        # The log does not say whose graph is laid out. A new context's own comes first. Between the slots' line and
        # "model loaded" the engine tries the drafter; before and after, only the target's graph changes (adapters,
        # samplers, the layers that a drafter reads).
        draft, target = self.contexts.get("draft"), self.contexts.get("target")
        if self.last is not None and not self.last.layouts:
            self.reserving = self.last
        elif draft is not None and self.slots is not None and not self.loaded:
            self.reserving = draft
        else:
            self.reserving = target
        if self.reserving is not None:
            self.reserving.layouts.append({})

    def on_compute(self, device: str, size: str) -> None:
        if self.reserving is not None and self.reserving.layouts:
            add(self.reserving.layouts[-1], device, size)

    def on_copies(self, copies: str) -> None:
        if self.reserving is not None:
            self.reserving.copies = int(copies)

    def on_resolved(self, outcome: str) -> None:
        if self.reserving is not None:
            self.reserving.flash = outcome == "enabled"

    def on_unpipelined(self) -> None:
        self.notes.append("the compute buffers of pipelining found no room: laid out again without it")

    # The projector. Only what comes after the target's context is loaded; before it is an estimate.
    def on_worst(self, size: str) -> None:
        self.worst = size

    def on_clip(self, device: str) -> None:
        if "target" in self.contexts:
            self.clips.append(Clip(device))

    def on_projector(self, kind: str) -> None:
        if self.clips:
            self.clips[-1].kind = kind

    def on_projector_size(self, size: str) -> None:
        if self.clips:
            self.clips[-1].mib = size

    def on_projector_compute(self, device: str, size: str) -> None:
        if self.clips:
            add(self.clips[-1].layouts[-1], device, size)

    def on_projector_end(self) -> None:
        if self.clips:
            self.clips[-1].layouts.append({})

    # The server.
    def on_slots(self, slots: str, each: str) -> None:
        self.slots = int(slots), int(each)

    def on_speculation(self, name: str) -> None:
        self.speculation.append(name)

    def on_no_speculation(self) -> None:
        self.dropped = self.drafter is not None

    def on_loaded(self) -> None:
        self.loaded = True

    # The engine's own fit.
    def on_fit(self) -> None:
        self.fitting = True
        self.fit = {"verdict": "unfinished"}

    def on_projected(self, used: str, memory: str, free: str) -> None:
        self.fit |= {"projected_mib": int(used), "memory": memory, "free_mib": int(free)}

    def on_leaves(self, left: str, margin: str) -> None:
        self.fit |= {"left_mib": int(left), "margin_mib": int(margin)}
        self.unchanged = True

    def on_lacks(self, margin: str, short: str) -> None:
        self.fit |= {"margin_mib": int(margin), "short_mib": int(short)}

    def on_lacks_together(self, short: str) -> None:
        self.fit["short_mib"] = int(short)

    def on_fit_device(self, name: str, used: str, free: str) -> None:
        self.fit_devices.append((name, int(used), int(free)))

    def on_unchanged(self) -> None:
        self.unchanged = True

    def on_cut(self, _before: str, n_ctx: str) -> None:
        self.fit["n_ctx"] = int(n_ctx)

    def on_blind(self) -> None:
        self.fit["with_drafter"] = False

    def on_fitted(self) -> None:
        self.fit["verdict"] = "fits" if self.unchanged else "changed"

    def on_unfitted(self, words: str) -> None:
        self.fit |= {"verdict": "refused", "words": words}

    def on_fit_error(self, words: str) -> None:
        self.fit |= {"verdict": "error", "words": words}

    def on_fit_end(self) -> None:
        self.fitting = False

    # What it comes to.
    def lines(self) -> list[BootLine]:
        """Every term by device, target first."""
        found: list[BootLine] = []
        for kind in ("target", "draft"):
            lead = "draft_" if kind == "draft" else ""
            terms = [(lead + "weights", self.weights[lead + "weights"])]
            if kind in self.contexts:
                terms += self.contexts[kind].terms()
            if kind == "target":
                terms += [("adapter", self.adapter), *self._projector_terms()]
            for term, buffers in terms:
                for device, cents in buffers.items():
                    found.append(BootLine(term, device, kind, sum(cents) / 100, len(cents) * 0.005))
        return found

    def _projector_terms(self) -> list[tuple[str, Buffers]]:
        weights: Buffers = {}
        compute: Buffers = {}
        for clip in self.clips:
            # Each encoder of a file prints the whole file's size.
            if clip.device and clip.mib:
                weights[clip.device] = max(weights.get(clip.device, [0]), [hundredths(clip.mib)])
            for device, cents in largest(clip.layouts).items():
                compute.setdefault(device, []).extend(cents)
        return [("projector", weights), ("projector_compute", compute)]

    def context(self, kind: str) -> BootContext | None:
        """The target's or the drafter's; None where it was never constructed."""
        return self.contexts[kind].result() if kind in self.contexts else None

    def fitted(self) -> Fit | None:
        """The engine's own fit; None where it did not run."""
        if not self.fit:
            return None
        get = self.fit.get
        return Fit(
            verdict=self.fit["verdict"],
            memory=get("memory"),
            projected_mib=get("projected_mib"),
            free_mib=get("free_mib"),
            margin_mib=get("margin_mib"),
            left_mib=get("left_mib"),
            short_mib=get("short_mib"),
            n_ctx=get("n_ctx"),
            devices=tuple(self.fit_devices),
            with_drafter=get("with_drafter", True),
            words=get("words", ""),
        )

    def projector(self) -> Projector | None:
        """The projector; None where none was loaded."""
        if not self.clips:
            return None
        clip = self.clips[0]
        worst = None if self.worst is None else to_mib(self.worst)
        return Projector(clip.kind, clip.device, None if clip.mib is None else to_mib(clip.mib), worst)

    def missing(self) -> list[str]:
        """What a whole boot's log would have of this load."""
        found: list[str] = []
        for kind, whose in (("target", "the target's"), ("draft", "the drafter's")):
            if kind == "draft" and self.drafter is None:
                continue
            if kind == "target" and not self.weights["weights"]:
                found.append("the target's weights")
            elif kind == "draft" and self.drafter != "mtp" and not self.weights["draft_weights"]:
                found.append("the drafter's weights")
            found += self.contexts[kind].missing() if kind in self.contexts else [f"{whose} context"]
        if self.slots is None:
            found.append("the slots")
        return found
