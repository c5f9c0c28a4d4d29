# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bench ``turn_latency``: agents that send a long document again with every turn, all at the same time."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import Row
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_ask import Asker, merge, require_idle
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import at_once
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_stream import assemble

__all__ = ["bench_turns", "cells_of_turns", "first_token_s", "turn_samples"]

_DELTAS = ("content", "reasoning_content", "reasoning")


def cells_of_turns(families: int, turns: int, document: int, output: int) -> list[dict[str, Any]]:
    """A cell for each turn of each family; lengths in tokens."""
    return [
        {"family": family, "turn": turn, "document": document, "output": output}
        for family in range(families)
        for turn in range(1, turns + 1)
    ]


def first_token_s(streamed: Streamed) -> float:
    """Seconds to the first event that holds text, be it thinking; a FleetError where none does."""
    for seconds, data in streamed.events:
        chunk = json.loads(data) if data.startswith("{") else None
        if any(find(f"choices[0].delta.{name}", chunk) for name in _DELTAS):
            return seconds
    raise FleetError("no token came", expected="a chunk with text", found=f"{len(streamed.events)} events")


def turn_samples(streamed: Streamed) -> tuple[dict[str, float], str]:
    """(figures of one streamed turn, the answer's text); a FleetError where it is no whole answer."""
    reply = assemble(streamed)
    if reply.fault:
        raise FleetError(f"no answer: {reply.fault}")
    prompt = find("prompt_tokens", reply.usage)
    cached = find("prompt_tokens_details.cached_tokens", reply.usage)
    if not isinstance(prompt, int) or not isinstance(cached, int) or prompt < 1:
        found = ", ".join(reply.usage) or "none"
        raise FleetError("the answer's usage", expected="prompt_tokens and cached_tokens", found=found)
    figures = {
        "ttft_s": first_token_s(streamed),
        "prompt_tokens": float(prompt),
        "cached_tokens": float(cached),
        "cached_share": cached / prompt,
    }
    return figures, reply.content


def _family(asker: Asker, cells: Sequence[Mapping[str, Any]], document: str) -> list[dict[str, float] | str]:
    """The turns of one conversation, each its figures or what went wrong; after a fault the others cannot be asked."""
    messages: list[dict[str, Any]] = []
    told: list[dict[str, float] | str] = []
    for cell in cells:
        question = f"Turn {cell['turn']}: name one thing in the text that nobody has named yet."
        content = question if messages else f"{document}\n\n{question}"
        messages.append({"role": "user", "content": content})
        try:
            figures, text = turn_samples(asker.target.stream(messages, max_tokens=cell["output"], ignore_eos=True))
        except FleetError as exc:
            told.append(exc.message)
            return told + [f"turn {cell['turn']} failed before it" for _cell in cells[len(told) :]]
        told.append(figures)
        messages.append({"role": "assistant", "content": text or "Nothing."})
    return told


def bench_turns(asker: Asker, cells: Sequence[Mapping[str, Any]], repetitions: int) -> Generator[Row, None, None]:
    """A row a turn; in each repetition all families begin at once, each with a document of its own."""
    families = sorted({cell["family"] for cell in cells})
    mine = {family: [cell for cell in cells if cell["family"] == family] for family in families}
    rounds: list[list[dict[str, float] | str]] = []
    for number in range(repetitions):
        try:
            require_idle(asker.target)
            documents = [
                asker.text(mine[family][0]["document"], f"family {family} of round {number}") for family in families
            ]
        except FleetError as exc:
            rounds.append([exc.message] * len(cells))
            continue
        calls = [partial(_family, asker, mine[family], text) for family, text in zip(families, documents, strict=True)]
        rounds.append([entry for told in at_once(calls) for entry in told])
    for place, cell in enumerate(cell for family in families for cell in mine[family]):
        entries = [one[place] for one in rounds]
        faults = [entry for entry in entries if isinstance(entry, str)]
        sound = merge([entry for entry in entries if isinstance(entry, dict)])
        yield Row(cell, sound, faults[0] if faults else None)
