# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a bench's results are kept: ``<state>/<endpoint>/bench/<UTC time>-<kind>.{json,tsv,svg}``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import tsv
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_plot import plot
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_json

__all__ = ["folder_of", "last_of_another_era", "stem_of", "write"]

_KEYS = {"at", "kind", "era", "cells"}


def folder_of(store: str) -> str:
    """The folder below an endpoint's store."""
    return os.path.join(store, "bench")


def stem_of(folder: str, kind: str, at: datetime) -> str:
    """The path of one run's files without their suffix; ``at`` is UTC."""
    return os.path.join(folder, f"{at:%Y%m%dT%H%M%SZ}-{kind}")


def last_of_another_era(folder: str, kind: str, era: str) -> dict[str, Any] | None:
    """The newest result of ``kind`` that another era left, None without one; a damaged one is a FleetError."""
    names = sorted(os.listdir(folder), reverse=True) if os.path.isdir(folder) else []
    for name in names:
        if name.startswith(".") or not name.endswith(f"-{kind}.json"):
            continue
        path = os.path.join(folder, name)
        told = read_json(path)
        if not isinstance(told, dict) or not set(told) >= _KEYS:
            raise FleetError(
                f"{path} is no result of a bench",
                expected=", ".join(sorted(_KEYS)),
                found=str(told)[:100],
                remedy="Move it aside and run again",
            )
        if told["era"] != era:
            return told
    return None


def write(stem: str, told: Mapping[str, Any]) -> list[str]:
    """Write the record as JSON, as lines and as a plot; the three paths. Called after each cell, so that a run that
    is killed leaves what it measured."""
    make_dirs(os.path.dirname(stem))
    texts = {"json": json.dumps(told, indent=1) + "\n", "tsv": tsv(told), "svg": plot(told)}
    for suffix, text in texts.items():
        atomic_write(f"{stem}.{suffix}", text.encode())
    return [f"{stem}.{suffix}" for suffix in texts]
