# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks for the files of payloads: the hub is asked, and its answer held against the inventory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._hub import Hub, HubFile, commit_of, files_at
from ansible_collections.dank.llm_fleet.plugins.module_utils._lock import Lock, Want, fill, wanted

__all__ = ["pin"]

Locks = dict[str, dict[str, dict[str, Any]]]


def pin(hub: Hub, tables: Iterable[Any]) -> Locks:
    """``llm_payload_locks`` for all files of these ``llm_payloads`` that name a ``repo``.

    Each repository and revision is asked for once. Raises FleetError for the first thing that cannot be had, and
    at the end with everything in which hub and inventory disagree.
    """
    groups: dict[tuple[str, str], list[Want]] = {}
    for want in wanted(tables):
        groups.setdefault((want.asked.repo, want.asked.revision), []).append(want)
    locks: Locks = {}
    faults: list[FleetError] = []
    for (repo, revision), wants in sorted(groups.items()):
        who = f"payload {wants[0].payload}"
        commit = commit_of(hub, who, repo, revision)
        files = files_at(hub, who, repo, commit, {want.asked.file for want in wants})
        for want in wants:
            lock = _lock(want, files[want.asked.file], commit).as_dict()
            locks.setdefault(want.payload, {})[want.name] = lock
            try:
                fill(want.payload, want.entry, {want.payload: {want.name: lock}})
            except FleetError as exc:
                faults.append(exc)
    if len(faults) > 1:
        raise FleetError("\n".join([f"{len(faults)} files disagree:", *(fault.message for fault in faults)]))
    if faults:
        raise faults[0]
    return locks


def _lock(want: Want, file: HubFile, commit: str) -> Lock:
    what = f"payload {want.payload}: file {want.name!r}"
    if file.sha256 is None:
        raise FleetError(
            f"{what} has no sha256 on the hub ({want.asked})",
            expected="a file kept by LFS",
            found="one that git keeps, which has the id of a blob alone",
            remedy="Declare its bytes and sha256, and its address under `urls` instead of `repo`",
        )
    if file.bytes == 0:
        raise FleetError(f"{what} is empty on the hub ({want.asked})", expected="at least one byte", found=0)
    return Lock(file.bytes, file.sha256, commit, str(want.asked))
