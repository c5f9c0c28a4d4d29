# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cards' memory as stacked bars: what was foretold, what was measured, and the floor that has to stay free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import (
    DASH,
    badge,
    fold,
    memory,
    note,
    number,
    table,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import Mark, Part, esc, stack

__all__ = ["CardView", "card_views", "ledger_section", "measured_parts", "parts_of"]

_Told = Mapping[str, Any]
# (class, name, terms of the ledger that it adds up)
_GROUPS = (
    ("weights", "weights", ("weights",)),
    ("kv", "KV cache", ("kv",)),
    ("recurrent", "recurrent state", ("recurrent",)),
    ("draft", "draft", ("draft_weights", "draft_kv", "draft_compute")),
    ("projector", "projector", ("projector",)),
    ("adapter", "adapter", ("adapter",)),
    ("compute", "compute", ("compute", "outputs", "driver")),
)


@dataclass(frozen=True)
class CardView:
    """One device in MiB. ``free`` is what was measured, ``whence`` when; None where nobody could tell."""

    name: str
    capacity: float | None
    floor: float | None
    foretold: _Told
    booted: _Told
    free: float | None
    whence: str

    @property
    def foretold_free(self) -> float | None:
        """What the forecast leaves free."""
        return number(self.foretold.get("free_after_mib"))


def card_views(one: Seen) -> list[CardView]:
    """The devices of the endpoint's current era; its host alone where it has no card."""
    fit, ledger = one.proof.get("fit") or {}, one.proof.get("ledger") or {}
    foretold = {str(card.get("name")): card for card in fit.get("cards") or []}
    declared = {str(card.get("name")): card for card in one.cards}
    booted, free = ledger.get("measured") or {}, ledger.get("free_mib") or {}
    views = []
    for name in dict.fromkeys([*foretold, *declared]):
        told, card, live = foretold.get(name, {}), declared.get(name, {}), one.live.get(name, {})
        seen, whence = number(free.get(name)), "at the proof"
        if seen is None:
            seen, whence = number(live.get("free_mib")), "now"
        capacity = next(
            (
                size
                for size in map(number, (told.get("free_mib"), card.get("free_mib"), live.get("total_mib")))
                if size is not None
            ),
            None,
        )
        floor = number(told.get("floor_mib")) if told else number(card.get("floor_mib"))
        views.append(CardView(name, capacity, floor, told, booted.get(name) or {}, seen, whence))
    if not views and fit.get("host"):
        host = fit["host"]
        sizes = (number(host.get("free_mib")), number(host.get("floor_mib")))
        views.append(CardView("host", *sizes, host, booted.get("host") or {}, None, ""))
    return views


def parts_of(told: _Told) -> list[tuple[str, str, float]]:
    """(class, name, MiB) of each part of a forecast that takes anything."""
    sums = [
        (kind, name, sum(number(told.get(f"{term}_mib")) or 0.0 for term in terms)) for kind, name, terms in _GROUPS
    ]
    return [part for part in sums if part[2] > 0]


def measured_parts(view: CardView) -> list[tuple[str, str, float]]:
    """What is in use, by the driver's count, cut into the forecast's parts with the boot log's figures in place of
    bounds; what no part explains is ``driver and others``. [] where the driver was not asked."""
    if view.free is None or view.capacity is None:
        return []
    used = view.capacity - view.free
    logged = {
        "compute_mib": view.booted.get("compute_mib"),
        "draft_compute_mib": view.booted.get("draft_compute_mib"),
    }
    told = {**view.foretold, **{key: value for key, value in logged.items() if number(value) is not None}}
    parts = parts_of(told)
    projector = number(view.booted.get("projector_compute_mib")) or 0.0
    parts = [(kind, name, size + projector * (kind == "projector")) for kind, name, size in parts]
    rest = used - sum(size for _kind, _name, size in parts)
    if rest < 0 or not parts:  # the bounds exceed what was taken: which part takes less cannot be told
        return [("used", "in use", used)] if used > 0 else []
    return [*parts, ("other", "driver and others", rest)]


def _words(parts: Sequence[tuple[str, str, float]], free: float | None) -> str:
    words = [f"{name} {memory(size)}" for _kind, name, size in parts]
    return ", ".join([*words, *([] if free is None else [f"free {memory(free)}"])])


def _bar(title: str, view: CardView, parts: Sequence[tuple[str, str, float]], free: float | None) -> str:
    used = sum(size for _kind, _name, size in parts)
    top = max(view.capacity or 0.0, used)
    drawn = [Part(kind, size, f"{name} {memory(size)}") for kind, name, size in parts]
    drawn.append(Part("free", max(top - used, 0.0), f"free {memory(free)}"))
    marks = []
    if view.capacity and view.floor:
        marks.append(Mark("floor", view.capacity - view.floor))
    if view.capacity and used > view.capacity:
        marks.append(Mark("edge", view.capacity))
    label = f"{title} on {view.name}: {_words(parts, free)}"
    label += f"; floor {memory(view.floor)}" if view.floor else ""
    told = "" if free is None else f"{memory(free)} free"
    return (
        f'<div class="meter"><span class="meter-name">{esc(title)}</span>{stack(drawn, top, label, marks)}'
        f'<span class="meter-free">{told}</span></div>'
    )


def _card(view: CardView) -> str:
    foretold, measured = parts_of(view.foretold), measured_parts(view)
    free = view.free if view.free is not None else view.foretold_free
    sound = free is None or view.floor is None or free >= view.floor
    head = f'<span class="sub">{memory(view.capacity)} to allocate</span>' if view.capacity is not None else ""
    floor = f"floor {memory(view.floor)}" if view.floor else "no floor"
    state = badge(
        ("good" if view.floor else "idle") if sound else "bad", floor + ("" if sound else " is not left free")
    )
    bars = _bar("foretold", view, foretold, view.foretold_free) if foretold else ""
    bars += _bar(f"measured {view.whence}", view, measured, view.free) if measured else ""
    shown = {kind: name for kind, name, _size in [*foretold, *measured]}
    sizes = {kind: size for kind, _name, size in [*measured, *foretold]}
    keys = "".join(
        f'<li><span class="swatch {kind}" aria-hidden="true"></span>{esc(name)} <b>{memory(sizes[kind])}</b></li>'
        for kind, name in shown.items()
    )
    asides = "" if foretold else note("No forecast: its certificate has none.")
    if not measured and view.name != "host":
        asides += note("Not measured: nothing in llm_cards tells which of the driver's cards this is.")
    return (
        f'<div class="card"><h4>{esc(view.name)} {head}<span class="right">{state}</span></h4>'
        f'{bars}<ul class="keys">{keys}</ul>{asides}</div>'
    )


def _figures(views: Sequence[CardView]) -> str:
    """Every figure of the bars, for those who want it to the MiB."""
    rows = []
    for view in views:
        foretold = {kind: (name, size) for kind, name, size in parts_of(view.foretold)}
        measured = {kind: (name, size) for kind, name, size in measured_parts(view)}
        for kind in dict.fromkeys([*foretold, *measured]):
            name = (foretold.get(kind) or measured[kind])[0]
            rows.append([view.name, name, foretold.get(kind, ("", None))[1], measured.get(kind, ("", None))[1]])
        rows.append([view.name, "free", view.foretold_free, view.free])
        rows.append([view.name, "floor", view.floor, None])

    def mib(value: Any) -> str:
        size = number(value)
        return DASH if size is None else f"{size:,.0f}"

    cells = ([esc(card), esc(part), mib(first), mib(second)] for card, part, first, second in rows)
    body = table("Memory by card and part, in MiB", ("Card", "Part", "#Foretold MiB", "#Measured MiB"), cells, "small")
    return fold("Every figure", body)


def ledger_section(one: Seen) -> str:
    """The section's markup."""
    views = card_views(one)
    if not views:
        return note("No ledger: the era's certificate holds no forecast and names no card.")
    ledger = one.proof.get("ledger") or {}
    told = [str(line) for line in ledger.get("differences") or []]
    asides = "".join(f"<li>{esc(line)}</li>" for line in told)
    more = fold(
        f"{len(told)} figure{'s differ' if len(told) != 1 else ' differs'} from the forecast",
        f"<ul>{asides}</ul>",
    )
    return "".join(
        [
            *map(_card, views),
            _figures(views),
            more if told else "",
            note(ledger["note"]) if ledger.get("note") else "",
        ]
    )
