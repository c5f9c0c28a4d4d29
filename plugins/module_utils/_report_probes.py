# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes of an endpoint, with what was seen of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import badge, fold, note, number, table, when
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import esc

__all__ = ["probes_section"]

_KINDS = {"pass": "good", "fail": "bad", "not-declared": "idle"}
_WORDS = {"not-declared": "not declared"}


def _badge(probe: Mapping[str, Any], words: object) -> str:
    return badge(_KINDS.get(str(probe.get("verdict")), "warn"), words)


def _row(probe: Mapping[str, Any]) -> list[str]:
    verdict, seconds = str(probe.get("verdict")), number(probe.get("seconds"))
    taken = "\N{EN DASH}" if seconds is None else f"{seconds:,.2f}\N{NO-BREAK SPACE}s"
    return [
        esc(probe.get("probe")),
        _badge(probe, _WORDS.get(verdict, verdict)),
        esc(probe.get("evidence") or ""),
        taken,
    ]


def probes_section(one: Seen) -> str:
    """The section's markup: the names and verdicts in a line, the evidence behind a fold, open where one failed."""
    if not one.probes:
        return note("No proof: its current era has no certificate with probes.")
    declared = [probe for probe in one.probes if probe.get("verdict") != "not-declared"]
    wrong = any(probe.get("verdict") == "fail" for probe in declared)
    chips = "".join(f"<li>{_badge(probe, probe.get('probe'))}</li>" for probe in declared)
    rest = len(one.probes) - len(declared)
    gap = number(one.proof.get("gap_s"))
    aside = f"Seen {when(one.proof.get('at'))}." if one.proof.get("at") else ""
    aside += f" {rest} more looked for, and not declared." if rest else ""
    aside += f" The cut over left nothing serving for {gap:,.1f} s." if gap else ""
    body = table(
        "Probes, their verdicts and what was seen",
        ("Probe", "Verdict", "Evidence", "#Took"),
        map(_row, one.probes),
        "probes",
    )
    return f'<ul class="chips">{chips}</ul><p class="note">{aside.strip()}</p>{fold("Evidence", body, unfolded=wrong)}'
