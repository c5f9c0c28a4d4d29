# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of the context: its bound, its cache, and the slots that it is divided among."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    at_once,
    failed,
    parsed,
    passed,
    user,
)

__all__ = ["judge_cache", "judge_context", "judge_slots", "most_at_once", "probe_cache", "probe_context", "probe_slots"]

# Every word is at least one token to every tokeniser.
_WORD = " x"
_OVER = 256  # words more than the window holds
_CACHED = "Repeat the word hello. "
_STREAM_TOKENS = 64


def judge_context(reply: Reply, window: int) -> Verdict:
    """A prompt over the window gets a 400 that names the window, and is never cut to fit."""
    if reply.status == 400 and re.search(rf"(?<!\d){window}(?!\d)", reply.fault):
        return passed("context", f"a longer prompt gets HTTP 400 that names {window} tokens", reply.seconds)
    if reply.fault:
        what = reply.fault.partition("found ")[2] or reply.fault
        return failed("context", f"expected HTTP 400 that names {window} tokens, found {what}", reply.seconds)
    count = reply.usage.get("prompt_tokens")
    words = f"expected HTTP 400 for a prompt over {window} tokens, found an answer to {count} of them"
    return failed("context", words, reply.seconds, **reply.facts)


def probe_context(target: Target) -> Verdict:
    """Ask with a prompt that no slot holds."""
    window = target.declared.window
    if window is None:
        return failed("context", "nobody declares the window: set client.context_window", 0)
    return judge_context(target.ask(user(_WORD * (window + _OVER)), max_tokens=1), window)


def judge_cache(*replies: Reply) -> Verdict:
    """Of an identical prompt the last time most tokens come from the cache."""
    seconds = sum(reply.seconds for reply in replies)
    for reply in replies:
        if reply.fault:
            return failed("cache", reply.fault, seconds)
    last = replies[-1]
    cached = find("prompt_tokens_details.cached_tokens", last.usage)
    count = last.usage.get("prompt_tokens")
    facts = {**last.facts, "cached_tokens": cached}
    if not isinstance(cached, int) or not isinstance(count, int) or not 0 < count <= 2 * cached <= 2 * count:
        words = f"expected most of {count} prompt tokens from the cache, found {cached} cached_tokens in usage"
        return failed("cache", words, seconds, **facts)
    return passed("cache", f"{cached} of {count} prompt tokens from the cache", seconds, **facts)


def probe_cache(target: Target) -> Verdict:
    """The same prompt again and again, one after the other; how often depends on the engine."""
    prompt = user(_CACHED * target.dialect.cache_repeats)
    return judge_cache(*(target.ask(prompt, max_tokens=1) for _round in range(target.dialect.cache_rounds)))


def _span(streamed: Streamed) -> tuple[float, float]:
    """Seconds from the first event to the one at three quarters; the tail may be read late, so it is left out."""
    times = [seconds for seconds, _data in streamed.events]
    return times[0], times[len(times) * 3 // 4]


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The most (from, to) spans that hold one moment in common."""
    return max((sum(start <= moment < end for start, end in spans) for moment, _end in spans), default=0)


def _tasks(listed: Any) -> dict[str, Any]:
    """The task that each slot of a list worked at last."""
    rows = [slot for slot in listed if isinstance(slot, Mapping)] if isinstance(listed, list) else []
    return {str(slot.get("id")): slot.get("id_task") for slot in rows}


def judge_slots(streams: Sequence[Streamed], before: Any, after: Any, slots: int) -> Verdict:
    """At least ``slots`` answers flow at once, the one more that was asked for comes too, and each slot has worked.

    ``before`` and ``after`` are llama-server's lists of slots, None where the engine has none. Their number is told by
    the list first: on a busy host what was sent in turn is read at once, so that more answers than slots are no fault.
    """
    seconds = max(streamed.answer.seconds for streamed in streams)
    for streamed in streams:
        if streamed.answer.status != 200 or len(streamed.events) < 8:
            words = streamed.answer.words if streamed.answer.status != 200 else f"{len(streamed.events)} events"
            return failed("slots", f"expected {len(streams)} answers, found {words} for one of them", seconds)
        if (last := streamed.events[-1][1]) != "[DONE]":
            words = f"expected {len(streams)} whole answers, found one that ends in {last[:100]!r}"
            return failed("slots", words, seconds)
    most = most_at_once([_span(streamed) for streamed in streams])
    facts = {"at_once": most, "asked": len(streams)}
    tasks = [_tasks(before), _tasks(after)]
    if after is not None and len(tasks[1]) != slots:
        return failed("slots", f"expected {slots} slots, found {len(tasks[1])}", seconds, **facts)
    if most < slots:
        words = f"expected {slots} answers to flow at once when {len(streams)} are asked for, found {most}"
        return failed("slots", words, seconds, **facts)
    if idle := [number for number, task in tasks[1].items() if task is None or task == tasks[0].get(number)]:
        words = f"expected {slots} slots at work, found slot {', '.join(idle)} did nothing"
        return failed("slots", words, seconds, **facts)
    came = "one more waited and came" if most == slots else "one more came"
    return passed("slots", f"{slots} at once, {came}", seconds, **facts)


def probe_slots(target: Target) -> Verdict:
    """One conversation more than there are slots, all at once, each of the same length."""
    slots, path = target.declared.slots, target.dialect.slots
    if slots is None:
        return failed("slots", "nobody declares the number of slots", 0)

    def listed() -> Any:
        answer = target.api.get(path) if path else None
        return parsed(answer) if answer is not None and answer.status == 200 else None

    def converse(number: int) -> Streamed:
        return target.stream(user(f"Say the number {number}."), max_tokens=_STREAM_TOKENS, ignore_eos=True)

    before = listed()
    streams = at_once([partial(converse, number) for number in range(slots + 1)])
    return judge_slots(streams, before, listed(), slots)
