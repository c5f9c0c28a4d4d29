# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A trial as text: a row for each candidate, its memory as measured and as foretold, and what serves after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._table import age, table

__all__ = ["trial_text"]


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _both(measured: float | None, foretold: float | None) -> str:
    """A figure as measured, and in brackets as foretold."""
    return f"{_mib(measured)} ({_mib(foretold)})"


def _memory(row: Mapping[str, Any], cards: list[str]) -> list[str]:
    """The cells under the headings of :func:`_headings`."""
    forecast = row.get("forecast") or {}
    if cards:
        free, left = row.get("free_mib") or {}, forecast.get("free_after_mib") or {}
        return [_both(free.get(card), left.get(card)) for card in cards]
    buffers = row.get("buffers_mib") or {}
    return [
        _mib(row.get("resident_mib")),
        _both(buffers.get("host"), (forecast.get("total_mib") or {}).get("host")),
    ]


def _headings(cards: list[str]) -> list[str]:
    if cards:
        return [f"{card}: MiB free (foretold)" for card in cards]
    return ["process MiB", "buffers MiB (foretold)"]


def _notes(row: Mapping[str, Any]) -> str:
    probes = [probe for probe in row.get("probes") or [] if probe["verdict"] != "not-declared"]
    notes = [f"{probe['probe']}: {probe['evidence']}" for probe in probes if probe["verdict"] == "fail"]
    if probes:
        notes.append(f"{sum(probe['verdict'] == 'pass' for probe in probes)} of {len(probes)} probes pass")
    notes += [f"{card} is below its floor: a deploy would be refused" for card in row.get("below_floor") or []]
    if row.get("fault"):
        told = str(row["fault"].get("found", "")).splitlines()
        notes.append(": ".join([row["fault"]["what"], *told[:1]]))
    if row["outcome"] == "refused":
        notes.append("the forecast leaves a floor short; -e beyond_fit=true boots it all the same")
    return "; ".join(notes) or "-"


def trial_text(host: str, record: Mapping[str, Any]) -> str:
    """The lines of a trial's record (see ``_trial_run``), with what was noted below the table."""
    rows, cards = record["rows"], list(record["cards"])
    done = sum(row["outcome"] == "measured" for row in rows)
    ran = any(row["outcome"] != "waiting" for row in rows if row["outcome"] != "refused")
    head = f"{record['endpoint']} on {host}: "
    head += f"{done} of {len(rows)} measured" if ran else f"would boot {_waiting(rows)} of {len(rows)}"
    lines = [
        head,
        table(
            ["lines", "outcome", "boot", *_headings(cards), "notes"],
            [[row["label"], row["outcome"], age(row.get("boot_s")), *_memory(row, cards), _notes(row)] for row in rows],
        ),
    ]
    lines += [f"note: {row['label']}: {text}" for row in rows for text in [*row["notes"], *row.get("differences", [])]]
    lines += [f"note: {text}" for text in record.get("notes", [])]
    return "\n".join([*lines, _end(record, ran)])


def _waiting(rows: list[Mapping[str, Any]]) -> int:
    return sum(row["outcome"] == "waiting" for row in rows)


def _end(record: Mapping[str, Any], ran: bool) -> str:
    before = " and ".join(record["served_before"])
    if not ran:
        return f"{before} would stop for it and serve again" if before else "nothing serves that would have to stop"
    if not before:
        return "nothing served before the trial, and nothing does after it"
    if not record["finished"]:
        return f"{before} was NOT proven to serve again"
    told = [
        f"{one['endpoint']} serves again in era {one['era']}: {one['links']} links of truth hold, "
        f"{', '.join(probe['probe'] for probe in one['probes'])} pass"
        if one["era"]
        else f"{one['endpoint']} runs again, not proven, as it has no era"
        for one in record["back"]
    ]
    return f"{'; '.join(told)}; its files are as before; it did not serve for {record['gap_s']:.1f} s"
