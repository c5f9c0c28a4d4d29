# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The setups that an R9V endpoint may serve from, and the env keys that belong to one of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._envspec_r9v import KEYS

__all__ = ["Setup", "faults_of_setups", "key_faults", "setup_of"]

_NAMES = frozenset(key.name for key in KEYS)


@dataclass(frozen=True)
class Setup:
    """A declared setup: its state file, the embedding table's size in bytes, the memory that each card must keep free
    in GiB, and the env keys that go with its payload."""

    name: str
    file: str
    ple_bytes: int | None
    headroom_gib: float
    keys: tuple[str, ...]


def _setup(name: str, given: Mapping[str, Any]) -> Setup:
    return Setup(
        name,
        str(given["file"]),
        given.get("ple_bytes"),
        float(given.get("headroom_gib", 0)),
        tuple(given.get("keys") or ()),
    )


def setup_of(env: Mapping[str, str], setups: Mapping[str, Mapping[str, Any]]) -> Setup | None:
    """The declared setup whose state file the env names; None where none is."""
    for name, given in setups.items():
        if given.get("file") == env.get("R9V_STATE_FILE"):
            return _setup(name, given)
    return None


def faults_of_setups(setups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keys that the schema does not know, and state files that two setups share."""
    faults = []
    for name, given in setups.items():
        strange = sorted(set(given.get("keys") or ()) - _NAMES)
        if strange:
            faults.append(f"setups.{name}.keys names {', '.join(strange)}, which is no key of engine r9v.")
    files = [given.get("file") for given in setups.values()]
    twice = sorted({str(file) for file in files if files.count(file) > 1})
    return faults + [f"setups: {file} is the state file of two. Give each its own." for file in twice]


def key_faults(env: Mapping[str, str], setups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with the keys that belong to one payload: there without it, or missing with it.

    ``env`` is one effective set of lines (a rung's lie over it). Without declared setups nothing can be judged.
    """
    if not setups:
        return []
    chosen = setup_of(env, setups)
    if chosen is None:
        known = ", ".join(f"{given.get('file')} ({name})" for name, given in setups.items())
        return [f"R9V_STATE_FILE is {env.get('R9V_STATE_FILE')}, which no setup declares; expected one of {known}."]
    bound = {key for given in setups.values() for key in given.get("keys") or ()}
    missing = [key for key in chosen.keys if not env.get(key)]
    strange = sorted(key for key in bound - set(chosen.keys) if env.get(key))
    return [f"{key} is missing: setup {chosen.name} needs it. Set it." for key in missing] + [
        f'{key} is set, and belongs to another setup than {chosen.name}. Opt out with {key}: "".' for key in strange
    ]
