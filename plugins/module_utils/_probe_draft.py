# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of speculative decoding: what was drafted and accepted, not what was said at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    absent,
    failed,
    found,
    parsed,
    passed,
    user,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_basic import series

__all__ = ["judge_drafts", "look_drafting", "look_ngram", "probe_drafting", "probe_ngram"]

_COUNT = "Count from 1 to 30."
_LONG = "Write a long text."
_AGAIN = "Repeat your last answer word for word."
_TOKENS = 256


def _counters(target: Target) -> tuple[float, float] | None:
    """(drafted, accepted) tokens since the start by ``/metrics``; None where it does not tell."""
    answer = target.api.get("/metrics")
    told = series(answer.body.decode("utf-8", "replace")) if answer.status == 200 else {}
    drafted, accepted = (told.get(name) for name in target.dialect.draft_counters)
    return None if drafted is None or accepted is None else (drafted, accepted)


def _drafted(reply: Reply) -> tuple[int, int]:
    """(drafted, accepted) tokens of one answer by its ``timings``; what is no count is none."""
    told = [reply.timings.get(name) for name in ("draft_n", "draft_n_accepted")]
    drafted, accepted = (count if isinstance(count, int) else 0 for count in told)
    return drafted, accepted


def judge_drafts(
    probe: str,
    groups: Mapping[str, Sequence[Reply]],
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    floor: float,
    by_timings: bool,
    *,
    metrics: bool = False,
) -> Verdict:
    """In each group of answers, and by the counters between them, tokens were drafted and ``floor`` of them accepted.

    ``before`` and ``after`` are the counters of ``/metrics``; with ``metrics`` they have to be there: alerts read them.
    Without ``by_timings`` the engine tells of a request nothing, and the counters alone count.
    """
    replies = [reply for group in groups.values() for reply in group]
    seconds = sum(reply.seconds for reply in replies)
    for reply in replies:
        if reply.fault:
            return failed(probe, reply.fault, seconds)
    counted = (after[0] - before[0], after[1] - before[1]) if before and after else None
    shares: dict[str, Any] = {}
    rows: list[tuple[str, float, float]] = []
    for name, group in groups.items() if by_timings else ():
        pairs = [_drafted(reply) for reply in group]
        rows.append((name, sum(drafted for drafted, _ok in pairs), sum(accepted for _all, accepted in pairs)))
    if counted is not None:
        rows.append(("/metrics", *counted))
    if metrics and counted is None:
        return failed(probe, "/metrics: expected counters of drafted and accepted tokens, found none", seconds)
    if not rows:
        return failed(probe, "neither timings nor /metrics tell what was drafted; set METRICS", seconds)
    for name, drafted, accepted in rows:
        shares[name] = {"drafted": drafted, "accepted": accepted}
        if not drafted > 0:  # of NaN too
            return failed(probe, f"{name}: expected drafted tokens, found none", seconds, shares=shares)
        if not accepted / drafted >= floor:
            words = f"{name}: expected {floor:.0%} of the drafted tokens accepted, found {accepted / drafted:.0%}"
            return failed(probe, f"{words} ({accepted:g} of {drafted:g})", seconds, shares=shares)
    told = ", ".join(f"{name} {accepted:g} of {drafted:g}" for name, drafted, accepted in rows)
    return passed(probe, f"drafted tokens accepted: {told}", seconds, shares=shares, **replies[-1].facts)


def probe_drafting(target: Target) -> Verdict:
    """A predictable text in each slot by itself."""
    slots = (target.declared.slots or 1) if target.dialect.pins_slots else 1
    before = _counters(target)
    groups = {
        f"slot {number}": [
            target.ask(user(_COUNT), max_tokens=_TOKENS, **({"id_slot": number} if target.dialect.pins_slots else {}))
        ]
        for number in range(slots)
    }
    floor = target.declared.floors["drafting"]
    by_timings, metrics = target.dialect.drafted is not None, "metrics" in target.declared.capabilities
    return judge_drafts("drafting", groups, before, _counters(target), floor, by_timings, metrics=metrics)


def probe_ngram(target: Target) -> Verdict:
    """Echo traffic: a text is written once, then again by the same request, then as a repetition of it."""
    first = target.ask(user(_LONG), max_tokens=_TOKENS)
    if first.fault:
        return failed("ngram", first.fault, first.seconds)
    before = _counters(target)
    turn = {"role": "assistant", "content": first.content}
    echoes = [
        target.ask(user(_LONG), max_tokens=_TOKENS),
        target.ask([*user(_LONG), turn, *user(_AGAIN)], max_tokens=_TOKENS),
    ]
    floor = target.declared.floors["ngram"]
    by_timings, metrics = target.dialect.drafted is not None, "metrics" in target.declared.capabilities
    after = _counters(target)
    return judge_drafts("ngram", {"echo": echoes}, before, after, floor, by_timings, metrics=metrics)


def _look(probe: str, target: Target) -> Verdict:
    """Nothing is generated for this: llama-server says of each slot whether it may speculate, others count."""
    other = {"drafting", "ngram"} & target.declared.capabilities
    if other:
        return absent(probe, f"it could not be told from the declared {other.pop()}", 0)
    if target.dialect.slots is not None:
        answer = target.api.get(target.dialect.slots)
        if find("[?speculative]", parsed(answer)):
            return found(probe, "the slots speculate", answer.seconds)
        return absent(probe, "no slot speculates", answer.seconds)
    counted = _counters(target)
    if counted is not None and counted[0] > 0:
        return found(probe, "tokens are drafted", 0)
    return absent(probe, "no token is drafted", 0)


def look_drafting(target: Target) -> Verdict:
    """Whether an endpoint that declares no drafting drafts."""
    return _look("drafting", target)


def look_ngram(target: Target) -> Verdict:
    """The same; what drafts cannot be told apart."""
    return _look("ngram", target)
