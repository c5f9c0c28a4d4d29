# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bench's record as the table at the end of a play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._table import table

__all__ = ["bench_text"]

_WIDTH = 120


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _figure(cell: Mapping[str, Any], name: str) -> str:
    """``1,234 ±12 better (+3 %)``: the median, its spread, and how it is to the last era's."""
    figure = cell["figures"].get(name)
    if figure is None:
        return "-"
    text = _number(figure["median"]) + (f" ±{_number(figure['spread'])}" if figure["spread"] else "")
    told = cell.get("compared", {}).get(name)
    if told is None:
        return text
    before = told["before"]["median"]
    change = f" ({(figure['median'] - before) / before:+.1%})" if before else ""
    return f"{text} {told['verdict']}{change}"


def bench_text(name: str, told: Mapping[str, Any]) -> str:
    """The cells as lines under ``name``; a cell that failed says why."""
    cells, against = told["cells"], told.get("against")
    sets = list(dict.fromkeys(key for cell in cells for key in cell["cell"]))
    names = list(dict.fromkeys(key for cell in cells for key in cell["figures"]))
    lines = [
        [
            *(str(cell["cell"].get(key, "-")) for key in sets),
            *(_figure(cell, key) for key in names),
            "" if cell["ok"] else f"FAILED: {' '.join(str(cell['error']).split())}"[:_WIDTH],
        ]
        for cell in cells
    ]
    compared = f"against era {against['era']} ({against['at']})" if against else "no other era was measured"
    more = f", {told['note']}" if told.get("note") else ""
    return f"{name}: {told['kind']}, era {told['era']}, {compared}{more}\n{table([*sets, *names, ''], lines)}"
