# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bench ``spec_ab``: the same requests with drafters and without them, and whether the text stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import Row
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_ask import Asker, merge, require_idle, samples
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import user

__all__ = ["WORKLOADS", "Heard", "cells_of_spec", "difference", "hear", "pair", "rung_without_drafters"]

# Which texts can be drafted: hardly any, all, the form alone, a little. {text} is filler.
WORKLOADS: Mapping[str, str] = {
    "prose": "{text}\n\nTell a long story about a lighthouse keeper who finds these words in a bottle.",
    "echo": "{text}\n\nRepeat the text above word for word.",
    "structured": "{tag}: write 25 records as JSON lines with the keys id, name and price. Each id is another one.",
    "identity": "{tag}: list the first five prime numbers, separated by commas, and nothing else.",
}
_ENDS = "identity"  # the one whose answer ends by itself


@dataclass(frozen=True)
class Heard:
    """The answers to a cell's requests: samples by figure, texts in order, or why there are none."""

    samples: Mapping[str, Sequence[float]]
    texts: tuple[str, ...] = ()
    error: str | None = None


def cells_of_spec(prompt: int, output: int) -> list[dict[str, Any]]:
    """A cell a workload; ``prompt`` is the length of the prompts that have filler, in tokens."""
    return [
        {"workload": name, "prompt": prompt if "{text}" in text else 0, "output": output}
        for name, text in WORKLOADS.items()
    ]


def rung_without_drafters(rungs: Mapping[str, Mapping[str, Any]]) -> str:
    """The rung that sets SPEC_TYPE to none and least besides; a FleetError where there is none.

    llama-server has no option of a request for it: build 11434 leaves ``speculative.*`` out of its schema.
    """
    off = [name for name, lines in rungs.items() if str(lines.get("SPEC_TYPE")) == "none"]
    if not off:
        raise FleetError(
            "no rung turns the drafters off",
            expected="a rung with SPEC_TYPE: none",
            found=", ".join(rungs) or "no rungs",
            remedy="Add one to the endpoint, such as rungs: {spec_off: {SPEC_TYPE: none}}",
        )
    return min(off, key=lambda name: (len(rungs[name]), name))


def _one(asker: Asker, cell: Mapping[str, Any], number: int) -> tuple[dict[str, float], str]:
    name = str(cell["workload"])
    tag = f"{name}-{number}"
    text = asker.text(cell["prompt"], tag) if cell["prompt"] else ""
    content = WORKLOADS[name].format(text=text, tag=f"{asker.run} {tag}")
    reply = asker.ask(user(content), cell["output"], ends=name == _ENDS)
    figures = samples(reply.timings, None if name == _ENDS else cell["output"])
    drafted = {"drafted_tokens": float(reply.timings.get("draft_n") or 0)}
    return {**figures, **drafted}, reply.reasoning(asker.target.declared.reasoning_field) + reply.content


def hear(asker: Asker, cells: Sequence[Mapping[str, Any]], repetitions: int) -> Iterator[Heard]:
    """What the server that runs now answers; the prompts are the same for each server of a run."""
    for cell in cells:
        try:
            require_idle(asker.target)
            told = [_one(asker, cell, number) for number in range(repetitions)]
        except FleetError as exc:
            yield Heard({}, error=exc.message)
            continue
        yield Heard(merge([figures for figures, _text in told]), tuple(text for _figures, text in told))


def difference(on: Sequence[str], off: Sequence[str]) -> str | None:
    """Where the first text that differs does so, None where all are alike."""
    for with_drafters, without in zip(on, off, strict=True):
        if with_drafters != without:
            place = next(
                (at for at, pair_ in enumerate(zip(with_drafters, without, strict=False)) if pair_[0] != pair_[1]),
                min(len(with_drafters), len(without)),
            )
            shown = [text[place : place + 30] for text in (with_drafters, without)]
            return (
                f"the greedy text differs from character {place} on: {shown[0]!r} with drafters, {shown[1]!r} without"
            )
    return None


def pair(cell: Mapping[str, Any], on: Heard, off: Heard) -> Row:
    """The row of both arms: rates, the gain, what was drafted and accepted, and whether the text is the same."""
    found: dict[str, Sequence[float]] = {}
    for arm, heard in (("on", on), ("off", off)):
        if heard.samples.get("decode_tps"):
            found[f"{arm}_decode_tps"] = heard.samples["decode_tps"]
    if len(found) == 2:
        found["speedup"] = [one / other for one, other in zip(*found.values(), strict=True)]
    for name in ("acceptance", "drafted_tokens"):
        if on.samples.get(name):
            found[name] = on.samples[name]
    for words, heard in (("with drafters", on), ("without drafters", off)):
        if heard.error:
            return Row(cell, found, f"{words}: {heard.error}")
    if any(off.samples.get("drafted_tokens", ())):
        return Row(cell, found, "without drafters: tokens were drafted all the same")
    found["identical"] = [float(one == other) for one, other in zip(on.texts, off.texts, strict=True)]
    return Row(cell, found, difference(on.texts, off.texts))
