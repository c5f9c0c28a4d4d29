# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that a newer one replaced: the latest stays, and every one that an era would need on its way back."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import referenced_digests
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import kept_aside
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec

__all__ = ["needed_copies", "sweep_replaced"]

_MARK = ".replaced-"


def needed_copies(finals: Collection[str], copies: Collection[str], digests: Mapping[str, set[str]]) -> set[str]:
    """Those of ``copies`` of the paths ``finals`` that hold bytes which an era names by its ``digests``."""
    needed = set()
    for copy in copies:
        final, _, start = copy.rpartition(_MARK)
        if final in finals and any(start.startswith(digest[: len(start)]) for digest in digests.get(final, ())):
            needed.add(copy)
    return needed


def sweep_replaced(spec: PayloadSpec, final: str, latest: str) -> str | None:
    """Remove what was put aside of ``final`` before the file of digest ``latest``, but what an era names.

    Returns a warning where an era cannot be read: then all of them stay.
    """
    older = set(kept_aside(final, "replaced")) - {f"{final}{_MARK}{latest[:12]}"}
    if not older:
        return None
    try:
        digests = referenced_digests(spec.state_dir)
    except FleetError as exc:
        return f"payload {spec.name}: {len(older)} older copies of {final} are kept: {exc.message}"
    for path in older - needed_copies({final}, older, digests):
        os.unlink(path)
    return None
