# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record that a run leaves in which a gate was red, with what serves then."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look, row
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs

__all__ = ["record_red", "recorded"]


@contextlib.contextmanager
def recorded(paths: Paths, gates: Gates, kind: str, *, dry: bool = False) -> Iterator[None]:
    """Around gates: the one that is red leaves its record before its error goes on, unless the run is ``dry``."""
    try:
        yield
    except (FleetError, OSError) as exc:
        fault = gates.fault(exc, f"deploy of endpoint {paths.endpoint}")
        if not dry:
            record_red(paths, gates, kind, fault)
        if fault is exc:
            raise
        raise fault from exc


def _now(paths: Paths) -> dict[str, Any]:
    """The endpoint's row; where its eras cannot be read, what can be told without them, and why."""
    try:
        return look(paths)[0]
    except FleetError as exc:
        state = _systemd.show(paths.unit)
        told = row(None, paths.unit, state, health="not asked", pin=None, links=[], probes=[])
        return {**told, "truth": exc.message}


def record_red(paths: Paths, gates: Gates, kind: str, exc: FleetError) -> None:
    """Leave the record of a run in which a gate was red; the error carries the same, and why there is none."""
    told, path = _now(paths), EraStore(paths.store).last_run_path
    exc.facts.setdefault("endpoint", told)
    exc.facts["gates"] = gates.passed
    try:
        make_dirs(paths.store)
        gates.write(
            path,
            kind=kind,
            served=False,
            gate=exc.facts.get("gate"),
            error={key: str(getattr(exc, key)) for key in ("what", "expected", "found", "remedy")},
            went_back_to=exc.facts.get("went_back_to"),
            serves={key: told[key] for key in ("era", "unit", "health", "truth")},
        )
    except OSError as second:  # the fault itself is the one to raise
        exc.facts["record"] = f"none: {second}"
        with contextlib.suppress(OSError):  # the run's before would contradict; where it cannot go either, that is told
            os.unlink(path)
