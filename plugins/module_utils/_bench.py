# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of a bench: rows of samples, median and spread, the record, and the comparison with an earlier one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["KINDS", "Row", "attempt", "compare", "direction", "figure", "record", "tsv", "verdict"]

KINDS = ("shapes", "spec_ab", "turn_latency", "batch_ubatch")
# Which end of a figure is the good one, by the end of its name; the others are no merit.
_GOOD = {"_tps": 1, "acceptance": 1, "speedup": 1, "identical": 1, "_share": 1, "_s": -1, "_mib": -1}


@dataclass(frozen=True)
class Row:
    """One cell: what was set, the samples of each figure, and why it failed, None where it did not."""

    cell: Mapping[str, Any]
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    error: str | None = None


def attempt(cell: Mapping[str, Any], measure: Callable[[], Mapping[str, Sequence[float]]]) -> Row:
    """The row of ``measure``; a fault costs this row and no other."""
    try:
        return Row(cell, measure())
    except FleetError as exc:
        return Row(cell, error=exc.message)


def direction(name: str) -> int:
    """1 where more of the figure is better, -1 where less is, 0 where neither."""
    return next((good for end, good in _GOOD.items() if name.endswith(end)), 0)


def figure(samples: Sequence[float]) -> dict[str, float]:
    """Median, spread (largest less smallest) and number of the samples."""
    return {
        "median": round(statistics.median(samples), 4),
        "spread": round(max(samples) - min(samples), 4),
        "n": len(samples),
    }


def verdict(now: Mapping[str, float], before: Mapping[str, float], good: int) -> str | None:
    """``same`` within the larger of both spreads, else ``better`` or ``worse``.

    None where a figure is no merit (``good`` is 0), or rests on one sample, which has no spread to tell noise by.
    """
    if not good or min(now["n"], before["n"]) < 2:
        return None
    change = now["median"] - before["median"]
    if abs(change) <= max(now["spread"], before["spread"]):
        return "same"
    return "better" if change * good > 0 else "worse"


def _key(cell: Mapping[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)


def compare(cell: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """``{figure: {verdict, before}}`` of a row of a record, against the same cell of an ``earlier`` record."""
    for one in (earlier or {}).get("cells", []):
        if _key(one["cell"]) == _key(cell["cell"]):
            told = {
                name: {"verdict": verdict(now, one["figures"][name], direction(name)), "before": one["figures"][name]}
                for name, now in cell["figures"].items()
                if name in one["figures"]
            }
            return {name: entry for name, entry in told.items() if entry["verdict"]}
    return {}


def record(head: Mapping[str, Any], rows: Sequence[Row], earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The result as it is kept: ``head`` (at, kind, endpoint, era, runtime, ...), its cells, and the comparison."""
    cells = []
    for row in rows:
        figures = {name: figure(samples) for name, samples in row.samples.items() if samples}
        told = {"cell": dict(row.cell), "ok": row.error is None, "error": row.error, "figures": figures}
        cells.append({**told, "compared": compare(told, earlier)})
    against = None if earlier is None else {"era": earlier["era"], "at": earlier["at"]}
    return {**head, "against": against, "cells": cells}


def _plain(value: Any) -> str:
    return " ".join(str(value).split())


def tsv(told: Mapping[str, Any]) -> str:
    """The record as tab-separated lines, a cell each, under one of names; a figure is median, spread and count."""
    cells = told["cells"]
    sets = dict.fromkeys(name for cell in cells for name in cell["cell"])
    names = dict.fromkeys(name for cell in cells for name in cell["figures"])
    parts = ("median", "spread", "n")
    lines = [["at", "kind", "era", *sets, "ok", *(f"{name}_{part}" for name in names for part in parts), "error"]]
    for cell in cells:
        figures = [cell["figures"].get(name, {}).get(part, "") for name in names for part in parts]
        own = [cell["cell"].get(name, "") for name in sets]
        lines.append([told["at"], told["kind"], told["era"], *own, int(cell["ok"]), *figures, cell["error"] or ""])
    return "".join("\t".join(map(_plain, line)) + "\n" for line in lines)
