# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's table: an endpoint a row, and the sentence above it that says how it stands."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import (
    DASH,
    badge,
    code,
    memory,
    number,
    shape_words,
    table,
    when,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import esc

__all__ = ["fleet_table", "free_memory", "headline", "state_of"]

_HEADINGS = ("Endpoint", "State", "Payload", "Shape", "#Window per slot", "#Free memory", "Probes", "Era", "Pin")


def state_of(one: Seen) -> tuple[str, str, str]:
    """(kind of DASH, badge, the state in a word or two, why)."""
    if one.unreachable:
        return "bad", "unreachable", one.trouble or ""
    if not one.row:
        return "bad", "not read", one.trouble or "its host told nothing of it"
    unit = str(one.row.get("unit") or "")
    if not one.row.get("era"):
        return ("warn", "never deployed", "") if one.active else ("idle", "never deployed", "declared as not active")
    truth = one.row.get("truth")
    if truth == "ok":
        failed = [str(probe.get("probe")) for probe in one.probes if probe.get("verdict") == "fail"]
        if failed:
            return "warn", "serves, probes fail", f"failing: {', '.join(failed)}"
        return "good", "serves, proven", ""
    if not one.active and not unit.startswith("active"):
        return "idle", "stands by", "declared as not active"
    return "bad", "not as deployed", str(truth or "")


def headline(seen: Sequence[Seen]) -> tuple[str, str]:
    """(kind, the sentence that the page opens with)."""
    due = [one for one in seen if one.active]
    if not due:
        return "idle", "No endpoint is declared as active."
    well = sum(state_of(one)[0] == "good" for one in due)
    if well == len(due):
        return "good", "The endpoint serves what was declared, proven." if well == 1 else (
            f"All {well} endpoints serve what was declared, proven."
        )
    return "bad", f"{well} of {len(due)} endpoint{'s' * (len(due) > 1)} serve{'s' * (len(due) == 1)} what was declared."


def free_memory(one: Seen) -> list[tuple[str, float, str]]:
    """(card or host, MiB, whence): what the driver says now, else what it said at the proof, else what was foretold."""
    fit, ledger = one.proof.get("fit") or {}, one.proof.get("ledger") or {}
    foretold = {str(each.get("name")): each.get("free_after_mib") for each in fit.get("cards") or []}
    names = list(dict.fromkeys([*foretold, *(str(card.get("name")) for card in one.cards)]))
    if not names and fit.get("host"):
        foretold, names = {"host": fit["host"].get("free_after_mib")}, ["host"]
    found = []
    for name in names:
        for value, whence in (
            ((one.live.get(name) or {}).get("free_mib"), "now"),
            ((ledger.get("free_mib") or {}).get(name), "at the proof"),
            (foretold.get(name), "foretold"),
        ):
            size = number(value)
            if size is not None:
                found.append((name, size, whence))
                break
    return found


def _probes(one: Seen) -> str:
    declared = [probe for probe in one.probes if probe.get("verdict") != "not-declared"]
    if not declared:
        return DASH
    passed = sum(probe.get("verdict") == "pass" for probe in declared)
    return badge("good" if passed == len(declared) else "bad", f"{passed} of {len(declared)}")


def _row(one: Seen) -> list[str]:
    kind, state, why = state_of(one)
    unit, restarts = one.row.get("unit"), number(one.row.get("restarts"))
    lines = [str(unit)] if unit else []
    lines += [why] if why and kind != "bad" else []
    lines += [f"brought back {restarts:.0f} times by systemd"] if restarts else []
    wrong = f'<span class="why">{esc(why)}</span>' if why and kind == "bad" else ""
    payload, window = one.row.get("payload"), number((one.row.get("shape") or {}).get("ctx_per_slot"))
    free = [
        f'{memory(size)} <span class="sub">{esc(name if whence == "now" else f"{name}, {whence}")}</span>'
        for name, size, whence in free_memory(one)
    ]
    era = one.row.get("era")
    proven = f'<span class="sub">proven {when(one.proof["at"])}</span>' if one.proof.get("at") else ""
    return [
        (f'<a href="#{one.anchor}">{esc(one.name)}</a>' if one.told else esc(one.name))
        + f'<span class="sub">on {esc(one.host)}</span>',
        badge(kind, state) + wrong + "".join(f'<span class="sub">{esc(line)}</span>' for line in lines),
        (esc(payload) if payload else DASH)
        + (f'<span class="sub">{esc(one.row["model_file"])}</span>' if one.row.get("model_file") else ""),
        esc(", ".join(shape_words(one.row.get("shape") or {})) or DASH),
        DASH if window is None else f"{window:,.0f}",
        "".join(f'<span class="each">{each}</span>' for each in free) or DASH,
        _probes(one),
        (code(era) if era else DASH) + proven,
        badge("warn", one.row["pinned"]) if one.row.get("pinned") else DASH,
    ]


def fleet_table(seen: Sequence[Seen]) -> str:
    """The table; nothing to show is said in words."""
    if not seen:
        return '<p class="note">The inventory declares no endpoint for these hosts.</p>'
    return table("The endpoints, one a row", _HEADINGS, map(_row, seen), "fleet")
