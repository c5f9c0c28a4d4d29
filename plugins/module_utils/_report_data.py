# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report shows of an endpoint, gathered from what the modules told of its host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import moment, slug

__all__ = ["Seen", "gather", "newest"]

_Told = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """An endpoint; ``trouble`` is why its host could not be read, and what is empty was not told."""

    host: str
    name: str
    anchor: str = "x"
    active: bool = True
    trouble: str | None = None
    unreachable: bool = False
    row: _Told = field(default_factory=dict)
    eras: Sequence[_Told] = ()  # oldest first
    pin: _Told | None = None
    proof: _Told = field(default_factory=dict)  # the certificate
    cards: Sequence[_Told] = ()  # as declared when the era was deployed
    live: _Told = field(default_factory=dict)  # declared name -> card_info's entry
    benches: Sequence[_Told] = ()
    unread: Sequence[str] = ()

    @property
    def told(self) -> bool:
        """Whether there is more to show of it than its row in the table."""
        return bool(self.row and (self.eras or self.active))

    @property
    def probes(self) -> list[_Told]:
        """The verdicts of the certificate."""
        return list(self.proof.get("probes") or [])

    @property
    def current(self) -> _Told:
        """The current era's row of the history; {} without one."""
        return next((era for era in self.eras if era.get("current")), {})


def _by_name(entries: Any) -> dict[str, _Told]:
    return {str(entry["name"]): entry for entry in entries or []}


def _live(declared: _Told, found: Sequence[_Told]) -> dict[str, _Told]:
    """The cards that the driver lists by the names that the inventory gives them."""
    named: dict[str, _Told] = {}
    for name, card in declared.items():
        for one in found:
            address = any(card.get(key) and card[key] == one.get(key) for key in ("uuid", "pci"))
            place = (card.get("vendor"), card.get("index")) == (one.get("vendor"), one.get("index"))
            if address or (place and card.get("pci", "unknown") == "unknown" and not card.get("uuid")):
                named[str(name)] = one
    return named


def _of_host(told: _Told) -> Iterator[Seen]:
    host, declared = str(told["host"]), dict(told.get("declared") or {})
    unreachable = bool(told.get("unreachable"))
    trouble = str(told["unreachable"]) if unreachable else told.get("fault")
    rows, histories = _by_name(told.get("endpoints")), _by_name(told.get("histories"))
    evidence, live = _by_name(told.get("evidence")), _live(told.get("llm_cards") or {}, told.get("cards") or [])
    for name in dict.fromkeys([*declared, *rows]):
        proven, history = evidence.get(name, {}), histories.get(name, {})
        yield Seen(
            host,
            name,
            active=bool(declared.get(name, True)),
            trouble=trouble,
            unreachable=unreachable,
            row=rows.get(name, {}),
            eras=history.get("eras") or (),
            pin=history.get("pin"),
            proof=proven.get("certificate") or {},
            cards=proven.get("cards") or (),
            # what is free while another has the cards says nothing of this one
            live=live if str(rows.get(name, {}).get("unit") or "").startswith("active") else {},
            benches=proven.get("benches") or (),
            unread=proven.get("unread") or (),
        )
    if unreachable and not declared:
        yield Seen(host, "no endpoint declared", trouble=trouble, unreachable=True)


def gather(hosts: Iterable[_Told]) -> list[Seen]:
    """The endpoints of all hosts in their order, active ones first, each with an anchor of its own.

    A host is ``{host, unreachable, fault, declared, llm_cards}`` with what ``endpoint_info`` (``endpoints``),
    ``era_info`` (``histories``), ``evidence_info`` (``evidence``) and ``card_info`` (``cards``) told of it.
    """
    found = sorted((one for told in hosts for one in _of_host(told)), key=lambda one: not one.active)
    out: list[Seen] = []
    for one in found:
        stem, taken = slug(one.host, one.name), {other.anchor for other in out}
        names = (stem if count == 1 else f"{stem}-{count}" for count in range(1, len(found) + 1))
        anchor = next(name for name in names if name not in taken)
        out.append(Seen(**{**one.__dict__, "anchor": anchor}))
    return out


def newest(seen: Iterable[Seen]) -> datetime | None:
    """The time of the newest record on the page; None where nothing is dated."""
    texts = [
        text
        for one in seen
        for text in (
            one.proof.get("at"),
            *(era.get("created") for era in one.eras),
            *(bench.get("at") for bench in one.benches),
        )
    ]
    return max((found for found in map(moment, texts) if found is not None), default=None)
