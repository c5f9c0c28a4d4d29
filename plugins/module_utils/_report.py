# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: the whole fleet as one HTML page that needs nothing but itself.

What hosts told is text and never markup. The page asks for nothing from elsewhere, and its policy forbids it to; no
script runs. Equal data give an equal page: the time on it is that of the newest record.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._report_bench import bench_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen, gather, newest
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_eras import eras_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_fleet import fleet_table, headline, state_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import badge, sign, when
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_ledger import ledger_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_probes import probes_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_style import STYLE
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import esc

__all__ = ["page"]


def _policy() -> str:
    """Nothing may be loaded or run; the one style sheet is allowed by its digest."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _endpoint(one: Seen) -> str:
    kind, state, why = state_of(one)
    what = " \N{MIDDLE DOT} ".join(
        esc(words)
        for words in (
            f"on {one.host}",
            one.row.get("payload"),
            one.row.get("runtime"),
            f"port {one.row['port']}" if one.row.get("port") else None,
            f"pinned to {one.row['pinned']}" if one.row.get("pinned") else None,
        )
        if words
    )
    parts = [
        f'<section class="endpoint" id="{one.anchor}" aria-labelledby="{one.anchor}-name">'
        f'<header><h2 id="{one.anchor}-name">{esc(one.name)}</h2>{badge(kind, state)}</header><p class="sub">{what}</p>'
    ]
    if why:
        parts.append(f'<p class="{"why" if kind == "bad" else "note"}">{esc(why)}</p>')
    if one.trouble and one.row:
        parts.append(f'<p class="why">Not everything could be read of this host: {esc(one.trouble)}</p>')
    sections = [("Memory", ledger_section(one)), ("Eras", eras_section(one)), ("Probes", probes_section(one))]
    sections.append(("Benches", bench_section(one)))
    parts += [f"<h3>{name}</h3>{body}" for name, body in sections if body]
    return "".join([*parts, "</section>"])


def page(hosts: Iterable[Mapping[str, Any]]) -> str:
    """The page of ``hosts`` (see ``_report_data.gather``)."""
    told = list(hosts)
    seen = gather(told)
    kind, lead = headline(seen)
    at = newest(seen)
    names = ", ".join(esc(host.get("host")) for host in told) or "no host"
    faults = "".join(
        f'<p class="why">{esc(host.get("host"))} could not be read: {esc(host["fault"])}</p>'
        for host in told
        if host.get("fault") and not host.get("unreachable")
    )
    dated = f"As of {when(at.isoformat(timespec='seconds'))} UTC, the newest record" if at else "No record is dated"
    shown = "".join(_endpoint(one) for one in seen if one.told)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<title>LLM fleet</title><style>{STYLE}</style></head>\n<body><main class="page"><header><h1>LLM fleet</h1>'
        f'<p class="lead {kind}">{sign(kind)} {esc(lead)}</p>'
        f'<p class="sub">{dated}. Hosts: {names}.</p>{faults}</header>\n'
        f"{fleet_table(seen)}\n{shown}\n"
        "<footer>Written by playbooks/report.yml. Times are UTC; a GiB is 1,024 MiB; the line across a bar is the "
        "floor that has to stay free.</footer></main></body></html>\n"
    )
