# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layers of an R9V endpoint's environment: its env file, the setup state under it, the profile under both.

The law is the launcher's (``serve-r9v``), and this is its twin: a key counts where it first has a value, and an empty
one counts as absent, as the profile's ``:=`` takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Layered", "effective", "layered"]

# Set by the launcher itself from the state's profile; never taken from a layer.
OWN = ("R9V_PROFILE", "R9V_PROFILE_ID", "R9V_PROFILE_ROOT", "R9V_CONFIG_FILE")


@dataclass(frozen=True)
class Layered:
    """One key: its value, the layer that it comes from, and the values of lower layers that it hides."""

    key: str
    value: str
    source: str  # env, state or profile
    hides: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        return {**asdict(self), "hides": dict(self.hides)}


def layered(
    env: Mapping[str, str], state: Mapping[str, str], profile: Mapping[str, str] | None = None
) -> list[Layered]:
    """Every key that has a value in a layer, sorted by key; what hides an equal value hides nothing."""
    layers = (("env", env), ("state", state), ("profile", profile or {}))
    rows = []
    for key in sorted({key for _source, layer in layers for key in layer if key not in OWN}):
        given = [(source, layer[key]) for source, layer in layers if layer.get(key)]
        if given:
            source, value = given[0]
            rows.append(Layered(key, value, source, tuple(pair for pair in given[1:] if pair[1] != value)))
    return rows


def effective(
    env: Mapping[str, str], state: Mapping[str, str], profile: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that ``launch.sh`` gets."""
    return {row.key: row.value for row in layered(env, state, profile)}
