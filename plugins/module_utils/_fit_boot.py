# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One boot to be judged: the files it loads, its shape, its cards, and the figures measured at that very shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger, Line, gather
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape

__all__ = ["MEASURED_TERMS", "Boot", "Measured"]

# What a boot's log or the driver tells: (the term of the ledger, whether the figure takes the prediction's place).
MEASURED_TERMS = {
    "compute_mib": ("compute", True),
    "draft_compute_mib": ("draft_compute", True),
    "projector_compute_mib": ("projector", False),
    "driver_mib": ("driver", False),
    "total_mib": ("", True),
}


@dataclass(frozen=True)
class Measured:
    """Figures of one boot, in MiB by card and name of :data:`MEASURED_TERMS`; they hold for that boot's shape alone.

    ``runtime`` and ``payload`` are names of the inventory, ``loads`` the roles of the files beside the model.
    """

    name: str
    runtime: str
    payload: str
    shape: Shape
    loads: frozenset[str]
    cards: Mapping[str, Mapping[str, float]]

    def __post_init__(self) -> None:
        for card, terms in self.cards.items():
            for term, value in terms.items():
                where = f"{self.name}: card {card}"
                if term not in MEASURED_TERMS:
                    raise FleetError(where, expected=", ".join(MEASURED_TERMS), found=repr(term))
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 24:
                    raise FleetError(f"{where}: {term}", expected="a number of MiB", found=repr(value))


@dataclass(frozen=True)
class Boot:
    """A boot as it would happen. ``cards`` in the engine's order, none for a boot on the host alone.

    ``host`` says what the host has free, where that is known; ``runtime`` and ``payload`` pick what of ``measured``
    may apply.
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
    measured: tuple[Measured, ...] = ()

    @property
    def loads(self) -> frozenset[str]:
        """The roles of the files beside the model."""
        return frozenset(role for role in ("drafter", "mmproj", "lora") if getattr(self, role) is not None)

    def applying(self) -> Measured | None:
        """The measured figures of this very runtime, payload and shape; the last where there are several."""
        mine = (self.runtime, self.payload, self.shape, self.loads)
        fitting = [one for one in self.measured if (one.runtime, one.payload, one.shape, one.loads) == mine]
        return fitting[-1] if fitting else None

    def plan(self) -> Plan:
        """Everything counted but the split."""
        return Plan.of(
            self.model, self.shape, drafter=self.drafter, mmproj=self.mmproj, lora=self.lora, cards=self.cards
        )

    def ledger(self, split: Sequence[float] | None = None, plan: Plan | None = None) -> Ledger:
        """The ledger under ``split`` (None: the shape's own), with the measured figures of this shape over it.

        The refusals are those of ``_ledger.predict``. A boot whose total was measured on every card needs no
        prediction, and so no knowledge of its architecture.
        """
        found = self.applying() if split is None or tuple(split) == self.shape.tensor_split else None
        if found is not None and self.cards and all("total_mib" in found.cards.get(c.name, {}) for c in self.cards):
            return self._as_measured(found)
        ledger = (plan or self.plan()).at(self.shape.tensor_split if split is None else split)
        return self._over(ledger, found)

    def _as_measured(self, found: Measured) -> Ledger:
        lines = tuple(
            Line("total", "driver", card.name, round(found.cards[card.name]["total_mib"] * MIB), "measured", found.name)
            for card in self.cards
        )
        cards, host = gather(lines, self.cards, self.host)
        slots = self.shape.parallel or 4
        return Ledger(cards, host, lines, self.shape.ctx_size, self.shape.ctx_size // slots, (), ())

    def _over(self, ledger: Ledger, found: Measured | None) -> Ledger:
        lines = list(ledger.lines)
        for card, terms in (found.cards if found is not None else {}).items():
            if card not in [each.name for each in self.cards]:
                continue
            for name, value in terms.items():
                term, instead = MEASURED_TERMS[name]
                if instead:
                    lines = [line for line in lines if (line.card, line.term) != (card, term)]
                assert found is not None
                label = name.removesuffix("_mib")
                lines.append(Line(label, term, card, round(value * MIB), "measured", found.name))
        cards, host = gather(lines, self.cards, self.host)
        return replace(ledger, cards=cards, host=host, lines=tuple(lines))
