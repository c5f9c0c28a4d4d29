# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benches of an endpoint as plots: lines where a size was varied, bars where ways were compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import (
    code,
    figure,
    fold,
    note,
    number,
    table,
    when,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import Series, bar, chart, esc

__all__ = ["axis_of", "bench_section"]

_Told = Mapping[str, Any]
_KINDS = {
    "shapes": "Speed by prompt and answer",
    "spec_ab": "With and without drafting",
    "turn_latency": "Turns of conversations at once",
    "batch_ubatch": "Batch sizes",
}
_FIGURES = {
    "prefill_tps": "reading the prompt, tokens/s",
    "decode_tps": "writing the answer, tokens/s",
    "acceptance": "drafted tokens accepted",
}
_SERIES = 6  # lines that can be told apart
_POINTS = 3  # values of a setting that make it an axis


def _figures(cell: _Told) -> dict[str, tuple[float, float]]:
    """figure -> (median, spread), of those that are numbers."""
    found = {}
    for name, told in (cell.get("figures") or {}).items():
        median = number((told or {}).get("median"))
        if median is not None:
            found[str(name)] = (median, number(told.get("spread")) or 0.0)
    return found


def _settings(cells: Sequence[_Told]) -> dict[str, list[Any]]:
    """Each setting that is not the same in all cells, with its values in the order met."""
    names = dict.fromkeys(name for cell in cells for name in cell.get("cell") or {})
    values = {name: list(dict.fromkeys(str((cell.get("cell") or {}).get(name)) for cell in cells)) for name in names}
    return {str(name): found for name, found in values.items() if len(found) > 1}


def axis_of(cells: Sequence[_Told]) -> str | None:
    """The setting with most values, where these are at least three numbers and the rest make no more lines than can be
    told apart; None where a plot of bars says more."""
    settings = _settings(cells)
    sizes = {name: len(values) for name, values in settings.items()
             if len(values) >= _POINTS and all(number((cell.get("cell") or {}).get(name)) is not None
                                               for cell in cells)}  # fmt: skip
    if not sizes:
        return None
    axis = max(sizes, key=lambda name: sizes[name])
    lines = {_label(cell, [name for name in settings if name != axis]) for cell in cells}
    return axis if len(lines) <= _SERIES else None


def _label(cell: _Told, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {(cell.get('cell') or {}).get(name, '-')}" for name in names)


def _chart(name: str, cells: Sequence[_Told], axis: str) -> str:
    """One figure over the axis, a line for each of the other settings' values."""
    columns = sorted({number(cell["cell"][axis]) or 0.0 for cell in cells})
    others = [setting for setting in _settings(cells) if setting != axis]
    lines: dict[str, list[tuple[int, float, float, str]]] = {
        label: [] for label in (_label(cell, others) for cell in cells)
    }
    for cell in cells:
        if name in _figures(cell):
            median, spread = _figures(cell)[name]
            title = f"{_label(cell, [axis, *others])}: {figure(median)}"
            lines[_label(cell, others)].append(
                (columns.index(number(cell["cell"][axis]) or 0.0), median, spread, title)
            )
    series = [Series(place, sorted(points)) for place, points in enumerate(lines.values())]
    top = max((value + spread / 2 for one in series for _c, value, spread, _t in one.points), default=0.0)
    said = "; ".join(title for one in series for *_rest, title in one.points)
    drawn = chart([figure(column) for column in columns], series, f"{_FIGURES.get(name, name)}: {said}", figure(top))
    keys = "".join(
        f'<li><span class="swatch s{place % _SERIES}" aria-hidden="true"></span>{esc(label)}</li>'
        for place, label in enumerate(lines)
        if label
    )
    return f'{drawn}<p class="axis">{esc(axis)}, tokens</p><ul class="keys">{keys}</ul>'


def _bars(name: str, cells: Sequence[_Told]) -> str:
    settings = list(_settings(cells)) or list(
        dict.fromkeys(str(key) for cell in cells for key in cell.get("cell") or {})
    )
    found = [_figures(cell).get(name) for cell in cells]
    top = max((median + spread / 2 for median, spread in (each for each in found if each is not None)), default=0.0)
    rows = ""
    for cell, each in zip(cells, found, strict=True):
        label = _label(cell, settings)
        if each is None:
            rows += f'<li><span class="bar-name">{esc(label)}</span><span class="sub">{_missing(cell)}</span></li>'
            continue
        told = str(((cell.get("compared") or {}).get(name) or {}).get("verdict") or "")
        words = f"{figure(each[0])}{f' {told}' if told else ''}"
        kind = told if told in ("better", "worse") else "bar"
        drawn = bar(*each, top, f"{label}: {words}", kind)
        rows += f'<li><span class="bar-name">{esc(label)}</span>{drawn}<span class="bar-value">{esc(words)}</span></li>'
    return f'<ul class="bars">{rows}</ul>'


def _missing(cell: _Told) -> str:
    return "\N{EN DASH}" if cell.get("ok", True) else "failed"


def _table(cells: Sequence[_Told], names: Sequence[str]) -> str:
    settings = list(dict.fromkeys(str(key) for cell in cells for key in cell.get("cell") or {}))

    def told(cell: _Told, name: str) -> str:
        each = _figures(cell).get(name)
        if each is None:
            return _missing(cell)
        return figure(each[0]) + (f' <span class="sub">\N{PLUS-MINUS SIGN}{figure(each[1])}</span>' if each[1] else "")

    rows = ([esc(_label(cell, settings)), *(told(cell, name) for name in names)] for cell in cells)
    return table("The cells of this bench", ("Cell", *(f"#{name}" for name in names)), rows, "small")


def _bench(told: _Told) -> str:
    cells = [cell for cell in told.get("cells") or [] if isinstance(cell, Mapping)]
    names = list(dict.fromkeys(name for cell in cells for name in _figures(cell)))
    shown = [name for name in names if name in _FIGURES] or names[:3]
    axis = axis_of(cells)
    plots = "".join(
        f"<figure><figcaption>{esc(_FIGURES.get(name, name))}</figcaption>"
        f"{_chart(name, cells, axis) if axis else _bars(name, cells)}</figure>"
        for name in shown
    )
    failed = [cell for cell in cells if not cell.get("ok", True)]
    faults = "".join(
        f"<li>{esc(_label(cell, list(cell.get('cell') or {})))}: {esc(cell.get('error'))}</li>" for cell in failed
    )
    kind = str(told.get("kind"))
    return (
        f'<div class="bench"><h4>{esc(_KINDS.get(kind, kind))} <span class="sub">{when(told.get("at"))}, era '
        f'{code(told.get("era"))}</span></h4><div class="plots">{plots}</div>'
        + (note("No cell gave a figure.") if not shown else fold("Every cell", _table(cells, names)))
        + (f'<ul class="why">{faults}</ul>' if faults else "")
        + "</div>"
    )


def bench_section(one: Seen) -> str:
    """The section's markup; '' where nothing was measured."""
    unread = "".join(note(words, "why") for words in one.unread)
    return "".join(map(_bench, one.benches)) + unread
