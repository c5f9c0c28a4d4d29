# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An era has its own payload files before it is started: those that were replaced under its names are put back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_back import Other, other_files, put_back

__all__ = ["own_files"]


def own_files(facts: Mapping[str, Any], paths: Paths, rivals: Sequence[Paths] = ()) -> list[str]:
    """Put back those payload files of an era (its ``facts``) that are others now; the paths of these.

    A FleetError where one was not kept aside, or where another endpoint that serves, none of ``rivals``, was proven
    with what has its name now.
    """
    others = other_files(facts, paths.stamps)
    if others:
        _require_unused(others, paths, [paths.endpoint, *(rival.endpoint for rival in rivals)])
    return put_back(facts, paths.stamps) if others else []


def _require_unused(others: Sequence[Other], paths: Paths, ours: Sequence[str]) -> None:
    for name in sorted(os.listdir(paths.state)):
        beside = replace(paths, endpoint=name)
        era = None if name in ours else EraStore(beside.store).current()
        if era is None or not _systemd.show(beside.unit).main_pid:
            continue
        proven = {(file["path"], file["sha256"]) for file in era.blueprint.facts["payload"]["files"] if file["sha256"]}
        for other in others:
            if any(path == other.path and other.found.startswith(sha256) for path, sha256 in proven):
                raise FleetError(
                    f"{other.path} is another file now, and endpoint {name} serves it",
                    expected=f"sha256 {other.wanted}",
                    found=f"sha256 {other.found}",
                    remedy="Give the two payloads their own file names or directories, then run again",
                )
