# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests whose answers are measured: the endpoint is idle, the first answer is dropped, prompts have a set length."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Reply, Target, parsed, user

__all__ = ["Asker", "busy_slots", "filler", "merge", "require_idle", "samples", "warm_up"]

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city name team minute idea body"
).split()
_SHORT, _LONG = 16, 144  # words of the two requests that tell how many tokens a word is


def filler(words: int, seed: str) -> str:
    """``words`` common words in an order that the seed decides; a longer text begins with the shorter one's words."""
    order = random.Random(seed)
    return " ".join(order.choice(_WORDS) for _number in range(words))


def busy_slots(target: Target) -> list[int]:
    """The slots that are at work; a FleetError where the server does not tell."""
    answer = target.api.get("/slots")
    listed = parsed(answer) if answer.status == 200 else None
    if not isinstance(listed, list) or not listed or not all(isinstance(slot, dict) for slot in listed):
        raise FleetError(
            "whether the endpoint is idle cannot be told",
            expected="a list of slots from /slots",
            found=answer.words[:200],
            remedy="Start it (site.yml), or see why /slots does not answer",
        )
    return [int(slot.get("id", -1)) for slot in listed if slot.get("is_processing")]


def require_idle(target: Target) -> None:
    """Refuse while any slot works: its requests and ours would slow each other."""
    busy = busy_slots(target)
    if busy:
        raise FleetError(
            f"endpoint {target.declared.alias} is at work",
            expected="no busy slot, before each cell and while nothing else asks",
            found=f"slot {', '.join(map(str, busy))} busy",
            remedy="Wait until its clients are quiet, then run again",
        )


def samples(timings: Mapping[str, Any], output: int | None) -> dict[str, float]:
    """The figures of one answer by the engine's own ``timings``.

    ``output`` is how many tokens were asked for (with ``ignore_eos`` all of them come), None where the answer may end
    by itself. Rates are tokens a second. A FleetError where the timings lack something or the prompt came from the
    cache.
    """
    names = ("prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second")
    told = [timings.get(name) for name in names]
    numbers = [float(value) for value in told if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(names):
        raise FleetError("the answer has no timings", expected=", ".join(names), found=", ".join(timings) or "none")
    prompt, prefill, made, decode = numbers
    cached = float(timings.get("cache_n") or 0)
    if cached > prompt:
        found = f"{cached:g} of {cached + prompt:g} prompt tokens from the cache"
        raise FleetError("the prompt was not new to the server", expected="most of it computed", found=found)
    if output is not None and made != output:
        raise FleetError("the answer has another length", expected=f"{output} tokens", found=f"{made:g}")
    found_figures = {"prompt_tokens": prompt + cached, "prefill_tps": prefill}
    if made > 1:  # the first token belongs to the prompt
        found_figures["decode_tps"] = decode
    drafted = timings.get("draft_n") or 0
    if drafted:
        found_figures["acceptance"] = float(timings.get("draft_n_accepted") or 0) / drafted
    return found_figures


def merge(each: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The samples of several answers by figure; an answer without a figure adds none to it."""
    names = dict.fromkeys(name for one in each for name in one)
    return {name: [one[name] for one in each if name in one] for name in names}


@dataclass(frozen=True)
class Asker:
    """A warm endpoint; ``base`` tokens come with every prompt, ``per_word`` with each word of filler.

    ``run`` makes the beginnings of this run's prompts new to the server, whatever it was asked before.
    """

    target: Target
    run: str
    base: float
    per_word: float

    def words(self, tokens: int) -> int:
        """How many words of filler make a prompt of ``tokens``."""
        words = round((tokens - self.base) / self.per_word)
        if words < 1:
            raise FleetError(
                f"no prompt is as short as {tokens} tokens",
                expected=f"more than the {self.base:.0f} of the chat template",
                found=tokens,
            )
        return words

    def text(self, tokens: int, tag: str) -> str:
        """A text of about ``tokens`` with the template's, that begins as no other does."""
        seed = f"{self.run} {tag}"
        return f"{seed}: {filler(self.words(tokens), seed)}"

    def ask(self, messages: Sequence[Mapping[str, Any]], output: int, *, ends: bool = False) -> Reply:
        """An answer of exactly ``output`` tokens, or with ``ends`` of as many at most; no answer is a FleetError."""
        more = {} if ends else {"ignore_eos": True}
        reply = self.target.ask(messages, max_tokens=output, **more)
        if reply.fault:
            raise FleetError(f"no answer: {reply.fault}")
        return reply


def warm_up(target: Target, run: str) -> Asker:
    """Ask twice and measure neither: after a boot the first answer is slower, and both tell how long prompts are."""
    counts = []
    for words in (_SHORT, _LONG):
        seed = f"{run} warm"
        reply = target.ask(user(f"{seed}: {filler(words, seed)}"), max_tokens=2, ignore_eos=True)
        count = find("prompt_tokens", reply.usage)
        if reply.fault or not isinstance(count, int):
            raise FleetError(
                f"endpoint {target.declared.alias} does not answer",
                expected="a chat completion with its usage",
                found=reply.fault or "no prompt_tokens in usage",
                remedy="Run verify.yml -e full=true, which says what is wrong with it",
            )
        counts.append(count)
    per_word = (counts[1] - counts[0]) / (_LONG - _SHORT)
    if per_word <= 0:
        raise FleetError("the endpoint's token counts", expected="more tokens for more words", found=f"{counts}")
    return Asker(target, run, counts[0] - _SHORT * per_word, per_word)
