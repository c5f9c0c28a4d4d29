# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint needs, decided from what is asked for and what is there; nothing is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link

__all__ = ["Plan", "decide", "pin_words"]


@dataclass(frozen=True)
class Plan:
    """What a run has to do: ``none``, ``prove`` (the same era, as it runs, by another declaration), ``repair`` (the
    same era, put right), or ``deploy`` (a new era)."""

    kind: str
    reasons: tuple[str, ...] = ()
    lift_pin: bool = False
    pinned: bool = False


def decide(
    wanted: str,
    current: str | None,
    pin: Mapping[str, Any] | None,
    broken: Link | None,
    *,
    asked: bool = False,
    unpin: bool = False,
) -> Plan:
    """Choose the work from digests: ``wanted`` by the inventory (or what is asked for), ``current`` on the host.

    A pin holds the current era against the inventory until it is lifted or both agree; asking for a rung or an era
    (``asked``) replaces a pin. ``broken`` is the first broken link of the current era's truth, if any.
    """
    agrees = pin is not None and not asked and wanted == current
    lift = pin is not None and not asked and (unpin or agrees)
    held = pin is not None and not asked and not lift
    if wanted != current and not held:
        return Plan("deploy", ("first deploy",) if current is None else ("the declared state differs",), lift, held)
    if broken is not None:
        return Plan("repair", (f"{broken.name}: expected {broken.expected}, found {broken.found}",), lift, held)
    return Plan("none", (), lift, held)


def pin_words(pin: Mapping[str, Any]) -> str:
    """What an endpoint is pinned to, for messages and tables."""
    return f"rung {pin['rung']}" if pin.get("rung") else f"era {pin['restored']}"
