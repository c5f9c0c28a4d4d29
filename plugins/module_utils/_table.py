# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of endpoints that every play ends with, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["HEADINGS", "age", "cells", "fault", "table"]

HEADINGS = ("host", "endpoint", "unit", "age", "payload", "shape", "slots", "memory", "health", "era", "notes")


def age(seconds: float | None) -> str:
    """Seconds as ``12s``, ``3m05s``, ``2h07m`` or ``4d03h``; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def _size(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _memory(mib: float | None, cards_mib: float | None) -> str:
    """The host's, and where there are cards theirs."""
    if mib is None:
        return "-"
    return _size(mib) if cards_mib is None else f"{_size(mib)} + {_size(cards_mib)} on cards"


def cells(host: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """One endpoint's row (see ``_endpoint.row``) as the texts under :data:`HEADINGS`."""
    shape = row.get("shape") or {}
    notes = []
    if row.get("truth") not in (None, "ok"):
        notes.append(f"NOT TRUE: {row['truth']}")
    if row.get("pinned"):
        notes.append(f"pinned to {row['pinned']}")
    if row.get("gap_s"):
        notes.append(f"nothing served for {row['gap_s']:.1f} s")
    if row.get("restarts"):
        notes.append(f"restarted {row['restarts']}x by systemd")
    probes = [probe for probe in row.get("probes") or [] if probe["verdict"] != "not-declared"]
    notes += [f"{probe['probe']}: {probe['verdict']}" for probe in probes if probe["verdict"] == "fail"]
    passed = sum(probe["verdict"] == "pass" for probe in probes)
    notes += [f"{passed} of {len(probes)} probes pass"] if probes else []
    notes += [row["memory_fault"]] if row.get("memory_fault") else []
    spec = shape.get("spec_type")
    form = str(shape["ctx_size"]) if shape else "-"
    if shape and shape.get("parallel"):  # of an R9V endpoint the state says the rest
        form += f" {shape.get('cache_type_k') or 'f16'}/{shape.get('cache_type_v') or 'f16'}"
    if spec and spec != "none":
        form += f" {spec}"
    return (
        host,
        str(row["name"]),
        str(row["unit"]),
        age(row.get("age_s")),
        str(row.get("payload") or "-"),
        form,
        f"{shape['parallel']} x {shape['ctx_per_slot']}" if shape.get("parallel") else "-",
        _memory(row.get("memory_mib"), row.get("cards_mib")),
        "ok" if row.get("health") == "HTTP 200" else str(row.get("health") or "-"),
        str(row.get("era") or "-"),
        "; ".join(notes) or "-",
    )


def fault(host: str, result: Mapping[str, Any]) -> str:
    """A refusal (see ``FleetError.as_result``) as a block: host and what, then expected, found, remedy and the like."""
    labels = (("expected", "expected"), ("found", "found"), ("remedy", "to do"), ("went_back_to", "serving now"))
    lines = [f"{host}: {result['what']}"]
    for key, label in labels:
        if result.get(key) is not None:
            head, *rest = str(result[key]).strip().splitlines() or [""]
            lines += [f"    {label + ':':<13}{head}", *(f"    {'':<13}{line}" for line in rest)]
    return "\n".join(lines)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns two blanks apart, each as wide as its widest cell; no trailing blanks."""
    lines = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
