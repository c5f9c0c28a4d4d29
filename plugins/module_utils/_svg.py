# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drawings for the report: inline SVG as wide as the page lets it be, with text that keeps its size.

Across, everything is in percent of the width; down, in pixels. Colours are the page's, by class. All text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Dot", "Mark", "Part", "Series", "bar", "chart", "esc", "spread_out", "stack", "strip"]

# Control characters, halves of pairs, and marks that turn the direction of what follows.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_INSET = 1.5  # percent that dots keep from the ends of a strip
_LEFT, _RIGHT = 2.0, 97.0  # percent between which a chart's points lie
_TOP, _FLOOR, _HIGH = 22, 150, 176  # pixels of a chart: highest point, base line, whole


def esc(text: object) -> str:
    """Text for between tags and inside quotes; what a host says is never markup."""
    return html.escape(_UNFIT.sub("\N{REPLACEMENT CHARACTER}", " ".join(str(text).split())), quote=True)


@dataclass(frozen=True)
class Part:
    """One stretch of a stacked bar; ``kind`` is its class, ``title`` what it says when pointed at."""

    kind: str
    value: float
    title: str


@dataclass(frozen=True)
class Mark:
    """A line across a bar at ``value``."""

    kind: str
    value: float


@dataclass(frozen=True)
class Dot:
    """A point of a strip at ``place``, from 0 to 1."""

    kind: str
    place: float
    title: str


@dataclass(frozen=True)
class Series:
    """A line of a chart: ``(column, value, spread, title)``; ``number`` picks its colour, from 0."""

    number: int
    points: Sequence[tuple[int, float, float, str]]


def _draw(kind: str, high: int, label: str, body: str) -> str:
    return f'<svg class="{kind}" width="100%" height="{high}" role="img" aria-label="{esc(label)}">{body}</svg>'


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def stack(parts: Sequence[Part], top: float, label: str, marks: Sequence[Mark] = (), high: int = 26) -> str:
    """A bar of ``parts`` end to end, ``top`` wide, with ``marks`` across; parts of no size are left out."""
    body, at = "", 0.0
    for part in parts:
        if part.value <= 0 or top <= 0:
            continue
        body += (
            f'<rect class="{part.kind}" x="{_percent(at / top)}" y="4" width="{_percent(part.value / top)}" '
            f'height="{high - 8}"><title>{esc(part.title)}</title></rect>'
        )
        at += part.value
    for mark in marks:
        x = _percent(mark.value / top) if top > 0 else "0%"
        body += f'<line class="{mark.kind}" x1="{x}" x2="{x}" y1="0" y2="{high}"></line>'
    return _draw("stack", high, label, body)


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Ascending ``places`` from 0 to 1 moved so that neighbours are ``gap`` apart, or as far as there is room for."""
    gap = min(gap, 1 / max(len(places) - 1, 1))
    out: list[float] = []
    for place in places:
        out.append(max(place, out[-1] + gap) if out else place)
    for number in range(len(out) - 1, -1, -1):
        out[number] = min(out[number], 1 - gap * (len(out) - 1 - number))
    return out


def strip(dots: Sequence[Dot], label: str, high: int = 28) -> str:
    """A line with dots on it, the last drawn on top."""
    middle = high / 2
    body = f'<line class="rail" x1="{_INSET}%" x2="{100 - _INSET}%" y1="{middle:g}" y2="{middle:g}"></line>'
    for dot in dots:
        x = _INSET + (100 - 2 * _INSET) * min(max(dot.place, 0.0), 1.0)
        radius = 7 if "current" in dot.kind.split() else 5
        body += (
            f'<circle class="{dot.kind}" cx="{x:.2f}%" cy="{middle:g}" r="{radius}">'
            f"<title>{esc(dot.title)}</title></circle>"
        )
    return _draw("strip", high, label, body)


def bar(value: float, spread: float, top: float, label: str, kind: str = "bar") -> str:
    """One bar from 0 to ``value`` of ``top``, with its spread (largest less smallest) as a whisker."""
    if top <= 0:
        return _draw("figure", 16, label, "")
    body = f'<rect class="{kind}" x="0" y="3" width="{_percent(value / top)}" height="10" rx="2"></rect>'
    if spread > 0:
        left, right = _percent((value - spread / 2) / top), _percent((value + spread / 2) / top)
        body += f'<line class="whisker" x1="{left}" x2="{right}" y1="8" y2="8"></line>'
    return _draw("figure", 16, label, body)


def chart(columns: Sequence[str], series: Sequence[Series], label: str, top_text: str) -> str:
    """Lines over evenly spaced ``columns``, from a base line at 0 to the largest value, which ``top_text`` names."""
    top = max((value + spread / 2 for one in series for _c, value, spread, _t in one.points), default=0.0)

    def x(column: int) -> str:
        share = column / (len(columns) - 1) if len(columns) > 1 else 0.5
        return f"{_LEFT + (_RIGHT - _LEFT) * share:.2f}%"

    def y(value: float) -> str:
        return f"{_FLOOR - (_FLOOR - _TOP) * (max(value, 0.0) / top if top > 0 else 0):.1f}"

    body = "".join(
        f'<line class="{kind}" x1="0" x2="100%" y1="{height}" y2="{height}"></line>'
        for kind, height in (("grid", _TOP), ("grid", (_TOP + _FLOOR) // 2), ("base", _FLOOR))
    )
    body += f'<text x="0" y="{_TOP - 7}">{esc(top_text)}</text>'
    for number, name in enumerate(columns):
        anchor = "start" if number == 0 else ("end" if number == len(columns) - 1 else "middle")
        place = "0" if number == 0 else ("100%" if number == len(columns) - 1 else x(number))
        body += f'<text x="{place}" y="{_HIGH - 8}" text-anchor="{anchor}">{esc(name)}</text>'
    for one in series:
        kind = f"s{one.number % 6}"
        for (c1, v1, _s1, _t1), (c2, v2, _s2, _t2) in zip(one.points, one.points[1:], strict=False):
            body += f'<line class="{kind}" x1="{x(c1)}" y1="{y(v1)}" x2="{x(c2)}" y2="{y(v2)}"></line>'
        for column, value, spread, title in one.points:
            if spread > 0:
                ends = f'y1="{y(value - spread / 2)}" y2="{y(value + spread / 2)}"'
                body += f'<line class="{kind} thin" x1="{x(column)}" x2="{x(column)}" {ends}></line>'
            body += (
                f'<circle class="{kind}" cx="{x(column)}" cy="{y(value)}" r="3.5"><title>{esc(title)}</title></circle>'
            )
    return _draw("chart", _HIGH, label, body)
