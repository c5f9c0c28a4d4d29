# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bench's record as an SVG: a panel a figure, a bar a cell, its spread as a whisker; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import direction

__all__ = ["plot"]

_LABEL, _BAR, _FIGURE, _ROW, _HEAD = 240, 380, 130, 24, 34  # pixels
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#1d232b}.title{font-weight:600}.note{fill:#5a6472}
.page{fill:#fff}.bar{fill:#2f6fb5}.worse{fill:#b3541e}.better{fill:#2c7a4b}.whisker{stroke:#1d232b;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.note{fill:#9aa5b4}.page{fill:#15191f}.bar{fill:#6aa3e0}
.worse{fill:#e0915c}.better{fill:#6cc08d}.whisker{stroke:#e6e9ee}}
"""


def _label(cell: Mapping[str, Any]) -> str:
    """``prompt 512, output 128`` without what every cell has alike."""
    return ", ".join(f"{name} {value}" for name, value in cell.items())


def _varying(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of each cell that are not the same in all; all of them where nothing differs."""
    sets = [cell["cell"] for cell in cells]
    names = [name for name in dict.fromkeys(name for one in sets for name in one)
             if len({str(one.get(name)) for one in sets}) > 1]  # fmt: skip
    return [{name: one[name] for name in names or one if name in one} for one in sets]


def _text(x: float, y: float, text: str, kind: str = "note") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def _bar(cell: Mapping[str, Any], name: str, top: float, y: float) -> list[str]:
    """One cell's bar; ``top`` is the figure that fills the panel's width."""
    figure = cell["figures"].get(name)
    if figure is None:
        return [_text(_LABEL, y + 16, "failed" if not cell["ok"] else "-")]
    scale = _BAR / top if top else 0.0
    median, half = figure["median"], figure["spread"] / 2
    told = cell.get("compared", {}).get(name, {}).get("verdict")
    kind = told if told in ("better", "worse") else "bar"
    parts = [f'<rect x="{_LABEL}" y="{y + 4:g}" width="{median * scale:.1f}" height="{_ROW - 8}" class="{kind}"/>']
    if half:
        left, right = _LABEL + max(median - half, 0) * scale, _LABEL + (median + half) * scale
        middle = y + _ROW / 2
        parts.append(f'<path class="whisker" d="M{left:.1f} {middle:g}H{right:.1f}"/>')
    return [*parts, _text(_LABEL + _BAR + 12, y + 16, f"{median:,.6g}" + (f" {told}" if told else ""), "figure")]


def plot(told: Mapping[str, Any]) -> str:
    """The drawing's text; a record without figures has its title alone."""
    cells = told["cells"]
    names = dict.fromkeys(name for cell in cells for name in cell["figures"] if direction(name))
    labels = [_label(one) for one in _varying(cells)]
    parts, y = [_text(12, 22, f"{told.get('endpoint', '')} {told['kind']}", "title")], float(_HEAD)
    parts.append(_text(12, y + 8, f"era {told['era']}, {told['at']}"))
    y += _HEAD
    for name in names:
        shown = [cell["figures"][name] for cell in cells if name in cell["figures"]]
        top = max(one["median"] + one["spread"] / 2 for one in shown)
        parts.append(_text(12, y + 4, name, "title"))
        y += 12
        for cell, label in zip(cells, labels, strict=True):
            parts += [_text(12, y + 16, label, "label"), *_bar(cell, name, top, y)]
            y += _ROW
        y += _HEAD / 2 + 6
    width = _LABEL + _BAR + _FIGURE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y:g}" width="{width}" height="{y:g}">'
        f'<style>{_STYLE}</style><rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )
