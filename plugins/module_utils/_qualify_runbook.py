# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runbook of a qualified setup, filled in from the evidence of its run and from nothing else.

The template holds no figure of its own. ``{{a.b}}`` is a value of the evidence, ``{{a.b|,}}`` a number with
thousands parted; lines between ``{{#a.b}}`` and ``{{/}}`` are repeated for each entry of a list, with ``{{.key}}``
from the entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["TEMPLATE", "fill", "runbook"]

TEMPLATE = """\
# {{asked.endpoint}}: setup {{asked.setup}}

Qualified by run `{{asked.run}}`. Every figure below is one that this run saw; its evidence lies beside this page,
file by file, with digests. A figure that was changed by hand is refused by `qualify.yml`.

## What it is

| piece | what was qualified |
| --- | --- |
| profile | `{{asked.profile_id}}` (`{{asked.profile}}`), in `{{asked.profile_folder}}` |
| fork | `{{asked.checkout}}` at commit `{{asked.commit}}` |
| image | `sha256:{{asked.image}}` |
| model folder | `{{asked.model_dir}}` |
| state to serve from | `{{asked.file}}` |

Files of the profile:

| file | bytes | sha256 |
| --- | --- | --- |
{{#asked.profile_files}}
| `{{.name}}` | {{.bytes|,}} | `{{.sha256}}` |
{{/}}

## Setup and start

The fork's `setup` took {{setup.seconds}} s. The start answered `/health` after {{start.seconds}} s. The endpoint
did not serve for {{window.gap_s}} s.

Files that setup verified:

| file | bytes | sha256 |
| --- | --- | --- |
{{#setup.files}}
| `{{.name}}` | {{.bytes|,}} | `{{.sha256}}` |
{{/}}

## Battery

| probe | verdict | what was seen | seconds |
| --- | --- | --- | --- |
{{#probes.verdicts}}
| {{.probe}} | {{.verdict}} | {{.evidence}} | {{.seconds}} |
{{/}}

## Memory

Embedding table: {{pinning.mode}}, {{pinning.table_bytes|,}} bytes. Locked by the processes of the container:

| process | VmLck bytes |
| --- | --- |
{{#pinning.processes}}
| {{.pid}} | {{.bytes|,}} |
{{/}}

Free on the cards after the battery, where {{headroom.floor_gib}} GiB must stay free:

| card | MiB free | of MiB |
| --- | --- | --- |
{{#headroom.cards}}
| {{.name}} | {{.free_mib|,}} | {{.total_mib|,}} |
{{/}}

## Warned of before

{{#window.warnings}}
- {{.text}}
{{/}}

## Deploy and roll back

Serve from it: `R9V_STATE_FILE: {{asked.file}}`, with the lines of its rung, then `site.yml`. Served before the run:

{{#window.served_before}}
- {{.endpoint}}
{{/}}

Never start a probe with this state's folder: copy it, and give the copy a port and a container name of its own.
"""

_VALUE = re.compile(r"\{\{([a-z0-9_.]+)(\|,)?\}\}")


def _find(context: Mapping[str, Any], path: str) -> Any:
    value: Any = context
    for part in path.strip(".").split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise FleetError(f"runbook: {path}", expected="a value of the run's evidence", found="none")
        value = value[part]
    return value


def _line(text: str, evidence: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        path, parted = match[1], match[2]
        found = _find(entry if path.startswith(".") else evidence, path)
        return f"{found:,}" if parted else " ".join(str(found).split()).replace("|", "\\|")

    return _VALUE.sub(value, text)


def fill(template: str, evidence: Mapping[str, Any]) -> str:
    """``template`` with the values of ``evidence``; an empty list leaves "(none)". A FleetError for what is missing."""
    lines: list[str] = []
    block: list[str] | None = None
    entries: list[Mapping[str, Any]] = []
    for text in template.splitlines():
        if text.startswith("{{#"):
            block, entries = [], _find(evidence, text[3:-2])
        elif text == "{{/}}":
            lines += [_line(one, evidence, entry) for entry in entries for one in block or ()]
            if not entries:
                lines.append("(none)")
            block = None
        elif block is not None:
            block.append(text)
        else:
            lines.append(_line(text, evidence, {}))
    return "\n".join(lines) + "\n"


def runbook(evidence: Mapping[str, Any]) -> str:
    """The page of a run, in Markdown."""
    return fill(TEMPLATE, evidence)
