# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the evidence of a run qualifies a setup, and what to do where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Fault", "faults", "trim_advice"]

_PAGE = 4096
_PROBED = "See docs/how-to/declare-probes.md for what each probe asks; mend the profile, then run qualify.yml again"


@dataclass(frozen=True)
class Fault:
    """What keeps a setup from being qualified, and the way out."""

    words: str
    remedy: str


def trim_advice(short: Mapping[str, float]) -> str:
    """What frees the MiB that each card (in ``short``) lacks: fewer hot experts there, and what follows from it."""
    missing = ", ".join(f"{name} by {mib:,.0f} MiB" for name, mib in short.items())
    return (
        f"Fewer experts may stay on the cards. Lower the hot count of {missing}, divided by the size of one expert on "
        "that rank: module r9v_placement does, given the headroom.json of this run (the fork's own way is "
        "tools/trim_experts.py --hot-counts); then run qualify.yml again"
    )


def _battery(evidence: Mapping[str, Any]) -> list[Fault]:
    verdicts = {row["probe"]: row for row in evidence["probes"]["verdicts"]}
    found = [
        Fault(f"probe {name}: {row['evidence']}", _PROBED)
        for name, row in verdicts.items()
        if row["verdict"] == "fail" or (name in evidence["asked"]["battery"] and row["verdict"] != "pass")
    ]
    asked = [*evidence["asked"]["battery"], "long context"]
    return found + [Fault(f"probe {name} was not asked", _PROBED) for name in asked if name not in verdicts]


def _truth(evidence: Mapping[str, Any]) -> list[Fault]:
    return [
        Fault(f"{link['name']}: expected {link['expected']}, found {link['found']}", link["remedy"] or "Run again")
        for link in evidence["truth"]["links"]
        if link["expected"] != link["found"]
    ]


def _pinning(evidence: Mapping[str, Any]) -> list[Fault]:
    told = evidence["pinning"]
    if told["mode"] != "pinned":
        return []
    most = max((row["bytes"] for row in told["processes"]), default=0)
    if most + _PAGE > told["table_bytes"]:
        return []
    words = f"the embedding table is not pinned: VmLck {most:,} of {told['table_bytes']:,} bytes"
    return [Fault(words, "See LimitMEMLOCK and the container's memlock limit, and the memory that is available")]


def _headroom(evidence: Mapping[str, Any]) -> list[Fault]:
    told = evidence["headroom"]
    floor = told["floor_gib"] * 1024
    short = {card["name"]: floor - card["free_mib"] for card in told["cards"] if card["free_mib"] < floor}
    if floor and not told["cards"]:
        return [Fault("no card told its free memory", "Declare the cards with their addresses under llm_cards")]
    if not short:
        return []
    words = ", ".join(f"{card['name']} has {card['free_mib']:,.0f} MiB free" for card in told["cards"]
                      if card["name"] in short)  # fmt: skip
    return [Fault(f"headroom: {words} of {told['floor_gib']:g} GiB that must stay", trim_advice(short))]


def faults(evidence: Mapping[str, Any]) -> list[Fault]:
    """What keeps the setup from being qualified; [] when nothing does. Headroom comes first: it is cured by another
    placement, and what was asked of a crowded card means little."""
    return [*_headroom(evidence), *_pinning(evidence), *_truth(evidence), *_battery(evidence)]
