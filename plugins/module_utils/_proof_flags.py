# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of flags: whatever an env file can become must be a flag of this very build.

A build that lacks one does not start, or starts without what was asked for; a renamed one is named with its successor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["Help", "contract_faults", "flags_of_schema", "parse_help"]

_NAMES = re.compile(r"-{1,2}[A-Za-z][\w-]*(?:,\s*-{1,2}[A-Za-z][\w-]*)*")
_NAME = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_REMOVED = re.compile(r"argument has been removed", re.IGNORECASE)
_USE = re.compile(r"use (?:the respective )?(--[\w*-]+)")
_FEWEST = 5

# Names under which other builds know a flag of the schema, the most recent first.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "--n-gpu-layers": ("--gpu-layers",),
    "--ctx-checkpoints": ("--swa-checkpoints",),
    "--log-verbosity": ("--verbosity",),
    "--spec-draft-n-max": ("--draft-max", "--draft-n", "--draft"),
    "--spec-draft-n-min": ("--draft-min", "--draft-n-min"),
    "--spec-draft-p-min": ("--draft-p-min",),
    "--spec-draft-model": ("--model-draft",),
    "--spec-draft-device": ("--device-draft",),
    "--spec-draft-type-k": ("--cache-type-k-draft",),
    "--spec-draft-type-v": ("--cache-type-v-draft",),
}


@dataclass(frozen=True)
class Help:
    """What ``--help`` offers, and what it lists as removed: flag to successor, "" where none is named."""

    offered: frozenset[str]
    removed: Mapping[str, str]


def parse_help(text: str) -> Help:
    """The flags of llama.cpp's ``--help``: each option begins at the start of a line with its names."""
    offered: set[str] = set()
    removed: dict[str, str] = {}
    names: list[str] = []
    told = ""

    def close() -> None:
        if not names:
            return
        flat = " ".join(told.split())
        if _REMOVED.search(flat):
            successor = _USE.search(flat)
            removed.update(dict.fromkeys(names, successor[1] if successor else ""))
        else:
            offered.update(names)

    for line in text.splitlines():
        match = _NAMES.match(line)
        if match:
            close()
            names, told = _NAME.findall(match[0]), line[match.end() :]
        elif line[:1].isspace():
            told += line
        else:
            close()
            names, told = [], ""
    close()
    if len(offered) < _FEWEST:
        raise FleetError(
            "--help lists no flags",
            expected="a line for each flag",
            found=text.strip()[:200] or "no output",
            remedy="Correct source.path: this is no llama-server",
        )
    return Help(frozenset(offered), {flag: use for flag, use in removed.items() if flag not in offered})


def flags_of_schema(without: Collection[str] = ()) -> dict[str, str]:
    """Every flag that an env can become, with the key that makes it; keys in ``without`` are left out."""
    return {
        flag: name
        for name, key in _envspec.keys("llamacpp").items()
        if name not in without
        for flag in (key.flag, key.off)
        if flag
    }


def contract_faults(told: Help, without: Collection[str] = ()) -> list[str]:
    """What an env file may ask of this build in vain, a flag each: its key, and what the build calls it instead."""
    faults = []
    for flag, key in flags_of_schema(without).items():
        if flag in told.offered:
            continue
        if flag in told.removed:
            successor = told.removed[flag]
            faults.append(f"{flag} ({key}) was removed" + (f", its successor is {successor}" if successor else ""))
            continue
        other = [name for name in OTHER_NAMES.get(flag, ()) if name in told.offered]
        faults.append(f"{flag} ({key}) is not there" + (f", here it is {other[0]}" if other else ""))
    return faults
