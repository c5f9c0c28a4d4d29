# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of plain conversation: chat, stream, reasoning, greedy."""

from __future__ import annotations

import re

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    absent,
    failed,
    found,
    passed,
    user,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_stream import assemble

__all__ = [
    "CHAT_PROMPT",
    "THINKING_PROMPT",
    "judge_chat",
    "judge_reasoning",
    "judge_stream",
    "look_reasoning",
    "probe_chat",
    "probe_greedy",
    "probe_reasoning",
    "probe_stream",
]

CHAT_PROMPT = "Say the word hello."
THINKING_PROMPT = "What is 3 + 4?"
_SMALL = 8  # tokens that no thought fits in
_ENOUGH = 32  # tokens that show whether two texts part
_FIELDS = ("reasoning_content", "reasoning")
_ENDS = ("stop", "length")  # of an answer without tools; others are faults that came with HTTP 200
_TAGS = ("<think>", "</think>")


def _spoken(content: str) -> str:
    """The content without thinking that was left in it: closed, cut short, or begun by the template."""
    return re.sub(r"<think>.*", "", content.rpartition("</think>")[2], flags=re.DOTALL).strip()


def _leaks(content: str) -> bool:
    return any(tag in content for tag in _TAGS)


def judge_chat(reply: Reply, max_tokens: int) -> Verdict:
    """HTTP 200 and content pass, thinking in it not counted; thinking that took the whole budget is named."""
    if reply.fault:
        return failed("chat", reply.fault, reply.seconds)
    facts = {**reply.facts, "content": reply.content[:500]}
    if reply.finish not in _ENDS:
        return failed("chat", f"expected finish_reason stop or length, found {reply.finish}", reply.seconds, **facts)
    if spoken := _spoken(reply.content):
        return passed("chat", f"answered {spoken[:80]!r}", reply.seconds, **facts)
    if reply.finish == "length":
        why = f"thinking budget too small: {max_tokens} tokens were spent before any content"
        return failed("chat", why, reply.seconds, **facts, budget_too_small=True)
    return failed("chat", f"expected content, found none (finish_reason {reply.finish})", reply.seconds, **facts)


def probe_chat(target: Target) -> Verdict:
    """A question is answered. Where thinking takes the whole budget, the declared larger one is tried once."""
    small, large = target.declared.max_tokens, target.declared.larger_max_tokens
    first = judge_chat(target.ask(user(CHAT_PROMPT)), small)
    if not first.facts.get("budget_too_small") or large <= small:
        return first
    second = judge_chat(target.ask(user(CHAT_PROMPT), max_tokens=large), large)
    seconds = first.seconds + second.seconds
    if second.ok:
        return passed("chat", f"{second.evidence} with {large} tokens; {first.evidence}", seconds, **second.facts)
    return failed("chat", f"{second.evidence}; raise larger_max_tokens", seconds, **second.facts)


def judge_stream(streamed: Streamed) -> Verdict:
    """Events in order with usage and ``[DONE]``, and text in them, be it thinking."""
    reply = assemble(streamed)
    if reply.fault:
        return failed("stream", reply.fault, reply.seconds)
    text = reply.content or next((reply.reasoning(name) for name in _FIELDS if reply.reasoning(name)), "")
    first = streamed.events[0][0]
    facts = {**reply.facts, "events": len(streamed.events), "first_event_s": round(first, 4)}
    if reply.finish not in _ENDS:
        return failed("stream", f"expected finish_reason stop or length, found {reply.finish}", reply.seconds, **facts)
    if not text.strip():
        return failed("stream", f"expected text, found none in {len(streamed.events)} events", reply.seconds, **facts)
    return passed("stream", f"{len(streamed.events)} events in order, then usage and [DONE]", reply.seconds, **facts)


def probe_stream(target: Target) -> Verdict:
    """The same question, streamed."""
    return judge_stream(target.stream(user(CHAT_PROMPT)))


def judge_reasoning(whole: Reply, cut: Reply, name: str) -> Verdict:
    """``whole`` has an answer and its thinking in the field ``name``; ``cut``, of a tiny budget, has thinking alone."""
    seconds = whole.seconds + cut.seconds
    for reply in (whole, cut):
        if reply.fault:
            return failed("reasoning", reply.fault, seconds)
    if not whole.reasoning(name).strip():
        other = next((field for field in _FIELDS if field != name and whole.reasoning(field)), None)
        where = f"it in {other}" if other else "it inside content" if _leaks(whole.content) else "none"
        return failed("reasoning", f"expected the thinking in {name}, found {where}", seconds, **whole.facts)
    if _leaks(whole.content):
        words = f"expected the thinking in {name} alone, found some of it inside content"
        return failed("reasoning", words, seconds, **whole.facts)
    if not whole.content.strip():
        words = f"thinking budget too small: no content after {whole.usage.get('completion_tokens')} tokens"
        return failed("reasoning", f"{words}; raise larger_max_tokens", seconds, **whole.facts)
    spent = cut.usage.get("completion_tokens")
    counted = cut.finish == "length" and not cut.content.strip() and isinstance(spent, int) and spent <= _SMALL
    if not counted:
        seen = f"finish_reason {cut.finish}, {spent} tokens and content {cut.content[:40]!r}"
        words = f"expected the thinking to count against max_tokens {_SMALL} (no content, finish_reason length)"
        return failed("reasoning", f"{words}, found {seen}", seconds, **whole.facts)
    facts = {**whole.facts, "thinking": whole.reasoning(name)[:200]}
    return passed("reasoning", f"thinking arrives in {name} and counts against max_tokens", seconds, **facts)


def probe_reasoning(target: Target) -> Verdict:
    """Thinking arrives in the declared field and counts against the budget."""
    whole = target.ask(user(THINKING_PROMPT), max_tokens=target.declared.larger_max_tokens)
    cut = target.ask(user(THINKING_PROMPT), max_tokens=_SMALL)
    return judge_reasoning(whole, cut, target.declared.reasoning_field)


def look_reasoning(target: Target) -> Verdict:
    """Whether an endpoint that declares no thinking thinks."""
    reply = target.ask(user(THINKING_PROMPT))
    name = next((field for field in _FIELDS if reply.reasoning(field).strip()), None)
    if name is None and _leaks(reply.content):
        name = "inside content"
    elif name is not None:
        name = f"in {name}"
    else:
        return absent("reasoning", reply.fault or "no thinking in the answer", reply.seconds)
    return found("reasoning", f"thinking arrives {name}", reply.seconds, **reply.facts)


def probe_greedy(target: Target) -> Verdict:
    """The same prompt at temperature 0 gives the same text twice, each time computed anew."""
    budget = min(target.declared.max_tokens, _ENOUGH)
    first, second = (target.ask(user(THINKING_PROMPT), max_tokens=budget, **target.dialect.exact) for _time in range(2))
    seconds = first.seconds + second.seconds
    for reply in (first, second):
        if reply.fault:
            return failed("greedy", reply.fault, seconds)
    texts = [
        "\n".join([*(reply.reasoning(name) for name in _FIELDS), reply.content]).strip() for reply in (first, second)
    ]
    if texts[0] != texts[1]:
        return failed("greedy", f"expected the same text twice, found {texts[0][:80]!r} and {texts[1][:80]!r}", seconds)
    if not texts[0]:
        return failed("greedy", "expected text, found none", seconds)
    return passed("greedy", "the same text twice at temperature 0", seconds, **second.facts)
