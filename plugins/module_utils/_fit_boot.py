# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One boot to be judged: the files it loads, its shape, its cards, and the figures measured at that very shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import DRIVER_NOTE, PROJECTOR_NOTE, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger, Line, gather
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Context, Shape, context

__all__ = ["HOST", "MEASURED_TERMS", "Boot", "Measured", "faults_of_terms"]

# What a boot's log or the driver tells: (the term of the ledger, whether the figure takes the prediction's place).
# The total takes the place of all terms of its card.
MEASURED_TERMS = {
    "compute_mib": ("compute", True),
    "draft_compute_mib": ("draft_compute", True),
    "projector_compute_mib": ("projector", False),
    "driver_mib": ("driver", False),
    "total_mib": ("driver", True),
}
# The name of the host's own figures among those of the cards.
HOST = "host"
_ROLES = ("model", "drafter", "mmproj", "lora")


def faults_of_terms(cards: Any) -> Iterator[FleetError]:
    """What is unsound in ``{card: {term_mib: number}}``, each fault named by ``card: term``."""
    if not isinstance(cards, Mapping) or not cards:
        yield FleetError("cards", expected="figures of at least one card, by its name", found=repr(cards))
        return
    for card, terms in cards.items():
        if not isinstance(terms, Mapping) or not terms:
            yield FleetError(f"card {card}", expected="at least one of " + ", ".join(MEASURED_TERMS), found=repr(terms))
            continue
        for term, value in terms.items():
            if term not in MEASURED_TERMS:
                yield FleetError(f"card {card}", expected=", ".join(MEASURED_TERMS), found=repr(term))
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 24:
                yield FleetError(f"card {card}: {term}", expected="a number of MiB", found=repr(value))


@dataclass(frozen=True)
class Measured:
    """Figures of one boot, in MiB by card (or :data:`HOST`) and name of :data:`MEASURED_TERMS`; they hold for that
    very boot alone.

    ``runtime`` and ``payload`` are names of the inventory; ``loads`` and ``devices`` are as in :class:`Boot`.
    """

    name: str
    runtime: str
    payload: str
    shape: Shape
    loads: frozenset[tuple[str, str]]
    devices: tuple[str, ...]
    cards: Mapping[str, Mapping[str, float]]

    def __post_init__(self) -> None:
        for fault in faults_of_terms(self.cards):
            raise FleetError(f"{self.name}: {fault.what}", expected=fault.expected, found=fault.found)


@dataclass(frozen=True)
class Boot:
    """A boot as it would happen. ``cards`` in the engine's order, none for a boot on the host alone.

    ``host`` says what the host has free, where that is known; ``runtime``, ``payload`` and ``files`` (paths by role)
    pick what of ``measured`` may apply. ``carried`` are lines that no header tells, for a shape that is not measured.
    """

    model: Gguf
    shape: Shape
    cards: tuple[Card, ...] = ()
    drafter: Gguf | None = None
    mmproj: Gguf | None = None
    lora: Gguf | None = None
    host: Card | None = None
    runtime: str = ""
    payload: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    carried: tuple[Line, ...] = ()

    @property
    def loads(self) -> frozenset[tuple[str, str]]:
        """(role, path) of each file that it loads."""
        return frozenset((role, self.files.get(role, "")) for role in _ROLES if getattr(self, role) is not None)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of its cards, in the engine's order."""
        return tuple(card.name for card in self.cards)

    def applying(self) -> Measured | None:
        """The measured figures of this very runtime, payload, shape, files and cards; the last of several."""
        mine = (self.runtime, self.payload, self.shape, self.loads, self.devices)
        fitting = [
            one for one in self.measured if (one.runtime, one.payload, one.shape, one.loads, one.devices) == mine
        ]
        return fitting[-1] if fitting else None

    def context(self) -> Context:
        """The context that the server makes of its shape, whatever the architecture."""
        trained = self.model.metadata.get(f"{self.model.architecture}.context_length")
        return context(self.shape, trained if isinstance(trained, int) else 0)

    def plan(self) -> Plan:
        """Everything counted but the split."""
        return Plan.of(
            self.model, self.shape, drafter=self.drafter, mmproj=self.mmproj, lora=self.lora, cards=self.cards
        )

    def ledger(self) -> Ledger:
        """The ledger, with the measured figures of this boot over it.

        The refusals are those of ``_ledger.predict``. A boot whose total was measured on every card needs no
        prediction, and so no knowledge of its architecture.
        """
        found = self.applying()
        if found is not None and all("total_mib" in found.cards.get(name, {}) for name in self.devices or (HOST,)):
            return self._as_measured(found)
        ledger = self.plan().at(self.shape.tensor_split)
        if found is not None:
            return self._over(ledger, found)
        return self._summed(ledger, [*ledger.lines, *self.carried])

    def beyond(self) -> tuple[Line, ...]:
        """What the measured figures show on each device above the prediction; nothing of what they show below it.

        It is what a boot nearby has to reckon with too, where a smaller figure would be no credit for it.
        """
        found = self.applying()
        if found is None:
            return ()
        ledger = self.plan().at(self.shape.tensor_split)
        seen = self._over(ledger, found)
        lines = []
        for before, after in zip((*ledger.cards, ledger.host), (*seen.cards, seen.host), strict=True):
            if "total_mib" in found.cards.get(before.name, {}):
                more = max(0, after.total - before.total)
            else:
                terms = {term for term, _ in MEASURED_TERMS.values()}
                more = sum(max(0, getattr(after, term) - getattr(before, term)) for term in terms)
            if more:
                card = None if before is ledger.host else before.name
                lines.append(Line("beyond the prediction", "driver", card, more, "measured", found.name))
        return tuple(lines)

    def _figures(self, found: Measured) -> Iterator[tuple[str | None, Mapping[str, float]]]:
        """The figures of each device that this boot uses; None for the host."""
        for name in (*self.devices, HOST):
            if name in found.cards:
                yield (name if name in self.devices else None), found.cards[name]

    def _as_measured(self, found: Measured) -> Ledger:
        lines = [
            Line("total", "driver", card, round(terms["total_mib"] * MIB), "measured", found.name)
            for card, terms in self._figures(found)
            if "total_mib" in terms
        ]
        room = self.context()
        cards, host = gather(lines, self.cards, self.host)
        notes = () if host.total else ("the cards' totals are measured, and nothing is counted on the host",)
        return Ledger(cards, host, tuple(lines), room.n_ctx, room.n_ctx_seq, (), notes)

    def _over(self, ledger: Ledger, found: Measured) -> Ledger:
        """The ledger with the figures in the place of their terms, or beside them."""
        lines = list(ledger.lines)
        told = dict(self._figures(found))
        for card, terms in told.items():
            if "total_mib" in terms:
                lines = [line for line in lines if line.card != card]
                terms = {"total_mib": terms["total_mib"]}
            for name, value in terms.items():
                term, instead = MEASURED_TERMS[name]
                if instead:
                    lines = [line for line in lines if (line.card, line.term) != (card, term)]
                label = name.removesuffix("_mib")
                # It stands in the place of the line that says that nobody knows it.
                lines = [line for line in lines if (line.card, line.name, line.label) != (card, label, "uncounted")]
                lines.append(Line(label, term, card, round(value * MIB), "measured", found.name))
        counted = set()
        if {"projector_compute_mib", "total_mib"} & set(told.get(self.devices[0] if self.devices else None, {})):
            counted.add(PROJECTOR_NOTE)
        if all({"driver_mib", "total_mib"} & set(told.get(name, {})) for name in self.devices):
            counted.add(DRIVER_NOTE)
        notes = tuple(note for note in ledger.notes if note not in counted)
        return self._summed(replace(ledger, notes=notes), lines)

    def _summed(self, ledger: Ledger, lines: list[Line]) -> Ledger:
        cards, host = gather(lines, self.cards, self.host)
        return replace(ledger, cards=cards, host=host, lines=tuple(lines))
