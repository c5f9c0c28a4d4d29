# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the memory plan says of a qualification before its window opens, from the profile's own settings."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._clients import most_tokens
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proc import (
    anonymous_bytes,
    available_bytes,
    locked_bytes,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import read_object
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_manifest import cold_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_memory import REGISTRATIONS, Host, plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_profile_env import first_set, settings_of

__all__ = ["foretold", "released_bytes"]

_COMPACTION_PERCENT = 70  # of the window, where role clients has harnesses compact


def released_bytes(pids: Collection[int]) -> int:
    """What the end of these processes gives back: of each what it has locked, or its own memory where that is more."""
    return sum(max(locked_bytes(pid), anonymous_bytes(pid)) for pid in pids)


def _cold(settings: Mapping[str, str]) -> int:
    """The bytes of experts that a fixed placement leaves in host memory; 0 without one."""
    path = settings.get("R9V_EXPERT_MANIFEST_PATH")
    return cold_bytes(read_object(path, "placement manifest"), path) if path else 0


def foretold(declared: Declared, asked: Asked, fork: Fork, pids: Collection[int]) -> list[str]:
    """A line for each check of ``_r9v_memory`` that the profile does not stand; ``pids`` end before it starts.

    The run's own env lines win over the profile's, as at a start. A profile that cannot be read is a line too: nobody
    knows then what it will take.
    """
    table = {} if asked.ple_bytes is None else {"R9V_PLE_EXPECTED_BYTES": str(asked.ple_bytes)}
    try:
        own = settings_of(os.path.join(fork.profile_folder, "profile.env"), fork.checkout)
        settings = first_set(table, {key: str(value) for key, value in asked.lines.items()}, own)
        cold = _cold(settings)
    except FleetError as exc:
        return [f"no memory plan: {exc.message}"]
    client = None
    if declared.client:
        window = int((declared.client.get("rungs") or {}).get(asked.rung, declared.client["context_window"]))
        where = f"llm_endpoints.{declared.name}"
        most = most_tokens(where, declared.client, window, _COMPACTION_PERCENT)
        client = {"context_window": window, "max_tokens": most, "percent": _COMPACTION_PERCENT}
    checks = plan(settings, Host(available_bytes(), released_bytes(pids), cold), REGISTRATIONS, client=client)
    return [check.words for check in checks if not check.holds]
