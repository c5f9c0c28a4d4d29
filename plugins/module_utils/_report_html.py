# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the parts of the report share: numbers and times as text, tables that a phone can show, and links."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import esc

__all__ = [
    "DASH",
    "badge",
    "code",
    "figure",
    "fold",
    "memory",
    "moment",
    "note",
    "number",
    "shape_words",
    "sign",
    "slug",
    "table",
    "when",
]

_FORMS = ("%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%S%z")
NBSP, DASH = "\N{NO-BREAK SPACE}", "\N{EN DASH}"
# A sign beside the colour: red and green are alike to many.
_SIGNS = {
    "good": "\N{CHECK MARK}",
    "warn": "!",
    "bad": "\N{MULTIPLICATION SIGN}",
    "idle": DASH,
}


def number(value: Any) -> float | None:
    """A finite number, or None for anything else that a host may have written."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def memory(mib: Any) -> str:
    """``1.3 GiB``, below that ``317 MiB``; a dash for what is no number."""
    size = number(mib)
    if size is None:
        return DASH
    return f"{size / 1024:,.1f}{NBSP}GiB" if abs(size) >= 1000 else f"{size:,.0f}{NBSP}MiB"


def figure(value: Any) -> str:
    """Four digits at most, with separators."""
    found = number(value)
    if found is None:
        return DASH
    return f"{found:,.0f}" if abs(found) >= 100 or found == int(found) else f"{found:.3g}"


def moment(text: Any) -> datetime | None:
    """A time as eras and certificates write it, in UTC; None for what is none."""
    for form in _FORMS:
        try:
            found = datetime.strptime(str(text), form)
        except ValueError:
            continue
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    return None


def when(text: Any) -> str:
    """``30 Nov 2026, 07:52`` in a <time>; a dash for what is no time."""
    found = moment(text)
    if found is None:
        return DASH
    return (
        f'<time datetime="{found:%Y-%m-%dT%H:%M:%SZ}">{found.day}{NBSP}{found:%b}{NBSP}{found:%Y}, {found:%H:%M}</time>'
    )


def slug(*words: str) -> str:
    """A part of an id: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-") or "x"


def shape_words(shape: Mapping[str, Any]) -> list[str]:
    """``3 slots``, ``f16/q8_0``, ``draft-mtp``; what an engine's own state decides is not told."""
    slots, spec, state = shape.get("parallel"), shape.get("spec_type"), shape.get("state_file")
    words = [f"{slots} slot{'s' * (slots != 1)}"] if slots is not None else []
    if slots is not None:  # llama-server's own default where the env has none
        words.append(f"{shape.get('cache_type_k') or 'f16'}/{shape.get('cache_type_v') or 'f16'}")
    words += [str(spec)] if spec and spec != "none" else []
    return [*words, *(["as its state file says"] if state else [])]


def code(text: object) -> str:
    """Text of a machine."""
    return f"<code>{esc(text)}</code>"


def sign(kind: str) -> str:
    """The sign of a state, for the eye alone."""
    return f'<span class="sign" aria-hidden="true">{_SIGNS[kind]}</span>'


def badge(kind: str, words: object) -> str:
    """A state with its sign; ``kind`` is good, warn, bad or idle."""
    return f'<span class="badge {kind}">{sign(kind)}<span>{esc(words)}</span></span>'


def note(words: object, kind: str = "note") -> str:
    """A paragraph aside."""
    return f'<p class="{kind}">{esc(words)}</p>'


def fold(summary: str, body: str, *, unfolded: bool = False) -> str:
    """A part that opens; both are markup already."""
    return f"<details{' open' if unfolded else ''}><summary>{summary}</summary>{body}</details>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Cells are markup already. A heading that begins with ``#`` is one of figures, right-aligned.

    On a phone each row becomes a block, which would take a table's roles away: they are written out, and each cell
    carries its heading.
    """
    names = [(heading.removeprefix("#"), heading.startswith("#")) for heading in headings]

    def sort(right: bool, empty: bool = False) -> str:
        kinds = " ".join(kind for kind, so in (("num", right), ("empty", empty)) if so)
        return f' class="{kinds}"' if kinds else ""

    head = "".join(f'<th scope="col" role="columnheader"{sort(right)}>{esc(name)}</th>' for name, right in names)
    body = ""
    for row in rows:
        first, *rest = row
        cells = "".join(
            f'<td role="cell" data-label="{esc(name)}"{sort(right, cell == DASH)}><div>{cell}</div></td>'
            for cell, (name, right) in zip(rest, names[1:], strict=True)
        )
        body += f'<tr role="row"><th scope="row" role="rowheader">{first}</th>{cells}</tr>'
    return (
        f'<table role="table" class="wide {kind}"><caption>{esc(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table>'
    )
