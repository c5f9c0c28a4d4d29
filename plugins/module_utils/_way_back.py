# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An era to go back to, among drop-ins that are no longer those it was proven with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era

__all__ = ["as_found"]


def as_found(era: Era, unit: str, declared: Collection[str] = ()) -> tuple[Era, str]:
    """``era`` with the declared drop-ins (its own, and ``declared``) as they are on the disk now, and in words which of
    them differ.

    Drop-ins are their owner's: a deploy writes none, so it cannot put an old one back, and serving again comes first.
    One that nobody declared stays out, and truth is red for it.
    """
    facts = era.blueprint.facts
    own, proven = set(facts["drop_ins"]), facts.get("drop_in_digests", {})
    there = set(_systemd.drop_ins_of(unit, _systemd.show(unit))) & {*own, *declared}
    now = _systemd.text_digests(sorted(proven))
    others = {path for path in proven if path in there and now[path] != proven[path]} | (own ^ there)
    if not others:
        return era, ""
    digests = {path: digest for path, digest in proven.items() if path not in others}
    changed = {**facts, "drop_ins": sorted(there), "drop_in_digests": digests}
    words = f"; of its drop-ins {', '.join(sorted(others))} are not as it was proven"
    return replace(era, blueprint=replace(era.blueprint, facts=changed)), words
