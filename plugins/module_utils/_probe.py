# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes: requests that show what an endpoint can do, each with a verdict and its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api

__all__ = ["CHAT_PROMPT", "Verdict", "judge_chat", "probe_chat"]

CHAT_PROMPT = "Say the word hello."


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is pass or fail; ``evidence`` is what was seen, in a sentence; counts come from the answer."""

    probe: str
    verdict: str
    evidence: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the probe passed."""
        return self.verdict == "pass"

    def as_dict(self) -> dict[str, Any]:
        """For a result or a certificate."""
        return asdict(self)


def judge_chat(status: int, answer: Any, words: str, seconds: float, max_tokens: int) -> Verdict:
    """The verdict on a ``/v1/chat/completions`` answer: HTTP 200 and a non-empty ``content`` pass."""
    if status != 200:
        return Verdict("chat", "fail", f"expected HTTP 200, found {words}", seconds)
    try:
        choice = answer["choices"][0]
        content = choice["message"].get("content") or ""
        if not isinstance(content, str):
            raise TypeError("content is no text")
        finish = choice["finish_reason"]
        usage, timings = dict(answer.get("usage") or {}), dict(answer.get("timings") or {})
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as exc:
        return Verdict("chat", "fail", f"expected a chat completion, found {str(answer)[:200]} ({exc!r})", seconds)
    facts = {
        "finish_reason": finish,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "tokens_per_s": timings.get("predicted_per_second"),
        "content": content[:500],
    }
    if content.strip():
        return Verdict("chat", "pass", f"answered {content.strip()[:80]!r}", seconds, facts)
    if finish == "length":
        why = f"thinking budget too small: {max_tokens} tokens were spent before any content; raise max_tokens"
        return Verdict("chat", "fail", why, seconds, facts)
    return Verdict("chat", "fail", f"expected content, found none (finish_reason {finish})", seconds, facts)


def probe_chat(api: Api, alias: str, *, prompt: str = CHAT_PROMPT, max_tokens: int, timeout_s: float) -> Verdict:
    """Ask one question at temperature 0 and judge the answer."""
    body = {
        "model": alias,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    answer = api.post("/v1/chat/completions", body, timeout_s=timeout_s)
    parsed = answer.json("/v1/chat/completions") if answer.status == 200 else None
    return judge_chat(answer.status, parsed, answer.words, answer.seconds, max_tokens)
