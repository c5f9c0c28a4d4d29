# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The eras of an endpoint as a timeline: a strip to scale, and below it what each era changed, the newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._history_table import change_lines
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import (
    badge,
    code,
    fold,
    memory,
    moment,
    note,
    number,
    shape_words,
    when,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import Dot, esc, spread_out, strip

__all__ = ["eras_section", "places"]

_Told = Mapping[str, Any]
_KINDS = {"certified": "good", "staged": "warn", "failed": "bad", "damaged": "bad"}
_SHOWN = 4  # eras; older ones are folded
_GAP = 0.035  # of the strip's width between two dots


def places(eras: Sequence[_Told]) -> list[float]:
    """Where each era lies on the strip, 0 to 1 by its time; evenly where the times cannot be told."""
    times = [moment(era.get("created")) for era in eras]
    stamps = [time.timestamp() for time in times if time is not None]
    span = max(stamps) - min(stamps) if stamps else 0.0
    if len(stamps) < len(eras) or not span:
        return [number / max(len(eras) - 1, 1) for number in range(len(eras))]
    return spread_out([(stamp - stamps[0]) / span for stamp in stamps], _GAP)


def _strip(one: Seen) -> str:
    dots = [
        Dot(
            f"dot {_KINDS.get(str(era.get('state')), 'warn')}{' current' if era.get('current') else ''}",
            place,
            f"{era.get('id')}, {era.get('state')}",
        )
        for era, place in zip(one.eras, places(one.eras), strict=True)
    ]
    states = [str(era.get("state")) for era in one.eras]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    label = f"Eras of {one.name} by time: {counts}"
    first, last = when(one.eras[0].get("created")), when(one.eras[-1].get("created"))
    ends = f"<span>{first}</span><span>{last}</span>"
    return f'<div class="line">{strip(dots, label)}<div class="ends" aria-hidden="true">{ends}</div></div>'


def _kind_of(line: str) -> str:
    return {"+": "add", "-": "cut"}.get(line[:1], "note")


def _changes(era: _Told) -> str:
    if era.get("changes") is None:
        return ""
    lines = change_lines(era["changes"])
    if not lines:
        return '<p class="sub">nothing changed against the era before</p>'
    items = "".join(f'<li class="{_kind_of(line)}">{code(line)}</li>' for line in lines)
    listed = f'<ul class="diff">{items}</ul>'
    return listed if len(lines) <= 8 else fold(f"{len(lines)} lines changed", listed)


def _facts(era: _Told) -> str:
    shape, ledger = era.get("shape") or {}, era.get("ledger") or []
    window = number(shape.get("ctx_per_slot"))
    words = [f"rung {era['rung']}" if era.get("rung") else "", str(era.get("payload") or ""), *shape_words(shape)]
    words.append(f"{window:,.0f} tokens a slot" if window is not None else "")
    words.append(f"{era.get('runtime')} {era.get('runtime_version')}" if era.get("runtime") else "")
    sizes = ((one.get("name"), number(one.get("total_mib"))) for one in ledger)
    words += [f"{name} {memory(size)}" for name, size in sizes if size is not None]
    return " \N{MIDDLE DOT} ".join(esc(word) for word in words if word)


def _entry(era: _Told) -> str:
    state = str(era.get("state"))
    kind = _KINDS.get(state, "warn")
    marks = "".join(f'<span class="mark">{name}</span>' for name in ("current", "previous", "pinned") if era.get(name))
    # what an older one was follows from what was changed since
    whole = era.get("current") or era.get("changes") is None
    facts = f"<br>{_facts(era)}" if whole else (f" rung {esc(era['rung'])}" if era.get("rung") else "")
    reason = f'<p class="why">{esc(era["reason"])}</p>' if era.get("reason") else ""
    return (
        f'<li class="{kind}{" current" if era.get("current") else ""}"><div class="era-head">{when(era.get("created"))}'
        f"{badge(kind, state)}{marks}</div>"
        f'<p class="sub">{code(era.get("id"))}{facts}</p>{reason}{_changes(era)}</li>'
    )


def eras_section(one: Seen) -> str:
    """The section's markup."""
    if not one.eras:
        return note("No era: nothing was deployed yet.")
    entries = [_entry(era) for era in reversed(one.eras)]
    older = entries[_SHOWN:]
    line = _strip(one) if len(one.eras) > 1 else ""
    text = f'{line}<ol class="eras" reversed>{"".join(entries[:_SHOWN])}</ol>'
    return text + (fold(f"{len(older)} older", f'<ol class="eras" reversed>{"".join(older)}</ol>') if older else "")
