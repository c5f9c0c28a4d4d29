# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of endpoints as text: an era a row, the newest first, and below it what it changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._table import table

__all__ = ["HEADINGS", "change_lines", "history_text", "last_run_line"]

HEADINGS = ("era", "state", "deployed", "rung", "payload", "shape", "runtime", "memory", "probes", "changed")
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z")
_WIDTH = 100


def change_lines(changes: Mapping[str, Any] | None) -> list[str]:
    """What an era has otherwise than the one before, a line each."""
    if changes is None:
        return []
    lines = list(changes["env"])
    lines += [f"{line[:1]}file {line[1:]}" for line in changes["files"]]
    if changes["runtime"]:
        lines.append(f"runtime {changes['runtime']}")
    lines += [f"{line[:1]}unit {line[1:]}" for line in changes["unit"] if line[1:].strip()]
    if changes["launcher"]:
        lines.append("another launcher")
    for name, (old, new) in changes["ledger"].items():
        lines.append(f"memory on {name} {_mib(old)} -> {_mib(new)} MiB")
    return [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines]


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    marks = [row["state"], *(mark for mark in ("current", "previous", "pinned") if row.get(mark))]
    stamp = _STAMP.fullmatch(str(row.get("created")))
    shape = row.get("shape") or {}
    kinds = f"{shape.get('cache_type_k') or 'f16'}/{shape.get('cache_type_v') or 'f16'}"
    return (
        row["id"],
        ", ".join(marks),
        "{}-{}-{} {}:{}:{}".format(*stamp.groups()) if stamp else "-",
        row.get("rung") or "-",
        row.get("payload") or "-",
        f"{shape['parallel']} x {shape['ctx_per_slot']} {kinds}" if shape else "-",
        f"{row['runtime']} {row['runtime_version']}" if row.get("runtime") else "-",
        ", ".join(f"{one['name']} {_mib(one['total_mib'])} MiB" for one in row.get("ledger") or []) or "-",
        ", ".join(f"{probe}: {verdict}" for probe, verdict in (row.get("probes") or {}).items()) or "-",
    )


def last_run_line(last_run: Mapping[str, Any] | None) -> str:
    """How the last run that did something ended (``EraStore.last_run``), in a line; nothing where there was none."""
    if last_run is None:
        return ""
    told = f"last run {last_run['at'][:19].replace('T', ' ')}: {last_run['kind']}"
    if last_run["served"]:
        return f"{told}, green"
    where = f"red at gate {last_run['gate']}" if last_run["gate"] else "red before the gates"
    back = f"; serving after it: {last_run['went_back_to']}" if last_run.get("went_back_to") else ""
    return f"{told}, {where}: {last_run['error']['what'].splitlines()[0]}{back}"


def history_text(name: str, eras: list[Mapping[str, Any]], last_run: Mapping[str, Any] | None = None) -> str:
    """The table of one endpoint; ``eras`` are the rows of ``_era_history.history``."""
    end = last_run_line(last_run)
    name = f"{name}\n{end}" if end else name
    if not eras:
        return f"{name}\nno era: nothing was deployed yet"
    lines = []
    for row in reversed(eras):
        told = change_lines(row.get("changes"))
        if row.get("reason"):
            told = [f"{row['state']}: {row['reason'].splitlines()[0]}"[:_WIDTH], *told]
        head, *rest = told or ["-"]
        lines.append((*_cells(row), head))
        lines += [("",) * (len(HEADINGS) - 1) + (each,) for each in rest]
    return f"{name}\n{table(HEADINGS, lines)}"
