# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What failing engines say in their logs: each message by name, with what it means and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _signatures_host,
    _signatures_llamacpp,
    _signatures_r9v,
)

__all__ = ["ENGINES", "SIGNATURES", "Match", "Signature", "match_log"]

ENGINES = ("llamacpp", "r9v")
_ANY = "any"
# No message is longer; a cut line keeps the search linear in the log, whatever a pattern costs on one line.
_LINE = 2000
_SHOWN = 300


@dataclass(frozen=True)
class Signature:
    """One known message. ``engine`` is ``any`` for what drivers, systemd and podman say.

    ``needs`` is a second pattern that some line of the log must match too: it tells apart two faults that end with
    the same message.
    """

    name: str
    engine: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    needs: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Match:
    """A signature found in a log: the first line it was found in, and in how many lines."""

    signature: Signature
    line: str
    count: int

    def as_dict(self) -> dict[str, Any]:
        """For a result: name, meaning, remedy, line and count."""
        told = self.signature
        return {
            "name": told.name,
            "meaning": told.meaning,
            "remedy": told.remedy,
            "line": self.line,
            "count": self.count,
        }


def _built(engine: str, rows: Sequence[tuple[str, ...]]) -> list[Signature]:
    return [
        Signature(name, engine, re.compile(pattern), meaning, remedy, re.compile(rest[0]) if rest else None)
        for name, pattern, meaning, remedy, *rest in rows
    ]


# In the order of how much they explain: a cause stands before what follows from it, in each table and among them.
SIGNATURES: tuple[Signature, ...] = (
    *_built(_ANY, _signatures_host.CAUSES),
    *_built("llamacpp", _signatures_llamacpp.CAUSES),
    *_built("r9v", _signatures_r9v.CAUSES),
    *_built("llamacpp", _signatures_llamacpp.CONSEQUENCES),
    *_built("r9v", _signatures_r9v.CONSEQUENCES),
    *_built(_ANY, _signatures_host.CONSEQUENCES),
)


def match_log(engine: str, text: str) -> list[Match]:
    """The signatures of ``engine`` (and of the host below it) that ``text`` shows, causes before consequences.

    A line that one signature explained counts for no later one.
    """
    lines = [line[:_LINE] for line in text.splitlines()]
    explained: set[int] = set()
    found = []
    for each in SIGNATURES:
        if each.engine not in (engine, _ANY):
            continue
        hits = [number for number, line in enumerate(lines) if each.pattern.search(line)]
        if not set(hits) - explained:
            continue
        if each.needs is None or any(each.needs.search(line) for line in lines):
            explained.update(hits)
            found.append(Match(each, lines[hits[0]].strip()[:_SHOWN], len(hits)))
    return found
