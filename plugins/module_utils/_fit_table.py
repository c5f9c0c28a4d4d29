# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fit of endpoints as text: a bar a card, in proportion, for the declared shape and for each rung."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_advice import advice_text

__all__ = ["LEGEND", "bar", "fit_lines"]

# The terms of a bar in its order, each a letter.
_LETTERS = (
    ("weights", "W"),
    ("kv", "K"),
    ("recurrent", "R"),
    ("draft_weights", "D"),
    ("draft_kv", "D"),
    ("draft_compute", "D"),
    ("projector", "P"),
    ("adapter", "A"),
    ("compute", "C"),
    ("outputs", "C"),
    ("driver", "G"),
)
LEGEND = "W weights, K cache, R recurrent, D drafter, P projector, A adapter, C compute, G driver, . free, ! over"
_WIDTH = 48


def bar(device: Mapping[str, Any], width: int = _WIDTH) -> str:
    """``[WWWWKKKKCC....|...]``: a device's terms in proportion; ``|`` is where the floor begins, ``!`` what is over.

    The cells add up by rounding the running sum, so that the bar is never a cell longer than its terms together.
    """
    free = device["free_mib"]
    scale = width / max(free or device["total_mib"], 1e-9)
    cells, running = "", 0.0
    for term, letter in _LETTERS:
        running += device[f"{term}_mib"]
        cells = cells.ljust(min(round(running * scale), width), letter)
    if free is None:
        return f"[{cells}]"
    over: int = round((running - free) * scale)
    if over > 0:
        return f"[{cells}]" + "!" * min(over, width // 2)
    cells = cells.ljust(width, ".")
    at = round((free - device["floor_mib"]) * scale)
    if 0 < at < width:
        cells = cells[:at] + "|" + cells[at + 1 :]
    return f"[{cells}]"


def _row(label: str, device: Mapping[str, Any], label_width: int, name_width: int) -> str:
    free = device["free_mib"]
    if free is None:
        figures = f"{device['total_mib']:>9,.0f} MiB"
    else:
        word = "fits" if device["fits"] else "DOES NOT FIT"
        figures = (
            f"{device['total_mib']:>9,.0f} of {free:,.0f} MiB, {device['free_after_mib']:,.0f} left, "
            f"floor {device['floor_mib']:,.0f}: {word}"
        )
    return f"  {label:<{label_width}}  {device['name']:<{name_width}}  {bar(device)} {figures}"


def _shown(fit: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The devices of a row each: the cards, and the host where it holds all or does not hold its part."""
    return [*fit["cards"], *([] if fit["cards"] and fit["host"]["fits"] else [fit["host"]])]


def fit_lines(name: str, told: Mapping[str, Any]) -> list[str]:
    """An endpoint's lines: ``told`` is the module's result with ``fit`` and ``rungs`` (``{name: fit or error}``)."""
    shown = {"declared": told["fit"], **(told.get("rungs") or {})}
    fits = [fit for fit in shown.values() if "cards" in fit]
    names = [device["name"] for fit in fits for device in _shown(fit)]
    label_width, name_width = max(map(len, shown)), max(map(len, names), default=0)
    lines = [name]
    for label, fit in shown.items():
        if "cards" not in fit:
            lines.append(f"  {label:<{label_width}}  {fit['error']}")
            continue
        for number, device in enumerate(_shown(fit)):
            lines.append(_row("" if number else label, device, label_width, name_width))
        extra = []
        if fit["measured"]:
            extra.append(f"with figures measured at this shape: {fit['measured']}")
        if fit["neighbours"]:
            extra.append(f"TENSOR_SPLIT={','.join(map(str, fit['split']))} leaves most room")
        for one in fit["neighbours"]:
            left = ", ".join(f"{mib:,.0f} on {card}" for card, mib in one["free_after_mib"].items())
            extra.append(f"TENSOR_SPLIT={','.join(map(str, one['split']))} would leave {left} MiB")
        extra += [advice_text(one) for one in fit["advice"]]
        lines += [f"  {'':<{label_width}}  {text}" for text in extra]
    notes = dict.fromkeys(text for fit in shown.values() for text in fit.get("notes", []))
    lines += [f"  note: {text}" for text in notes]
    return lines
