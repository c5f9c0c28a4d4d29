# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every probe is made of: whom it asks, what was answered, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, Response, Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._dialect import Dialect, dialect_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import Declaration

__all__ = [
    "CHAT",
    "Reply",
    "Target",
    "Verdict",
    "absent",
    "at_once",
    "failed",
    "found",
    "parsed",
    "passed",
    "read",
    "user",
]

CHAT = "/v1/chat/completions"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is pass, fail or not-declared; ``evidence`` is what was seen, in a sentence; counts by the engine."""

    probe: str
    verdict: str
    evidence: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing that was declared is missing."""
        return self.verdict != "fail"

    def as_dict(self) -> dict[str, Any]:
        """For a result or a certificate."""
        return asdict(self)


def passed(probe: str, evidence: str, seconds: float, **facts: Any) -> Verdict:
    """A verdict ``pass``."""
    return Verdict(probe, "pass", evidence, round(seconds, 4), facts)


def failed(probe: str, evidence: str, seconds: float, **facts: Any) -> Verdict:
    """A verdict ``fail``."""
    return Verdict(probe, "fail", evidence, round(seconds, 4), facts)


def found(probe: str, evidence: str, seconds: float, **facts: Any) -> Verdict:
    """A verdict on what is there and was not declared."""
    return Verdict(probe, "not-declared", f"found: {evidence}", round(seconds, 4), {**facts, "found": True})


def absent(probe: str, evidence: str, seconds: float, **facts: Any) -> Verdict:
    """A verdict on what is neither declared nor there."""
    return Verdict(probe, "not-declared", f"absent: {evidence}", round(seconds, 4), {**facts, "found": False})


def parsed(response: Response) -> Any:
    """The body as JSON, or None where it is none."""
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):  # the latter of nested brackets without end
        return None


@dataclass(frozen=True)
class Reply:
    """A chat completion, streamed or not; ``fault`` says why there is none, and then the rest is empty."""

    fault: str
    seconds: float
    content: str = ""
    message: Mapping[str, Any] = field(default_factory=dict)
    finish: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200

    def reasoning(self, name: str) -> str:
        """The thinking in the field ``name``."""
        value = self.message.get(name)
        return value if isinstance(value, str) else ""

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The tool calls."""
        given = self.message.get("tool_calls")
        return [call for call in given if isinstance(call, Mapping)] if isinstance(given, list) else []

    @property
    def facts(self) -> dict[str, Any]:
        """Counts and rates for a verdict; the engine's own, None where it does not tell."""
        return {
            "finish_reason": self.finish,
            "prompt_tokens": self.usage.get("prompt_tokens"),
            "completion_tokens": self.usage.get("completion_tokens"),
            "tokens_per_s": self.timings.get("predicted_per_second"),
        }


def read(response: Response) -> Reply:
    """The answer to a chat request that was not streamed."""
    if response.status != 200:
        return Reply(f"expected HTTP 200, found {response.words}", response.seconds, status=response.status)
    answer = parsed(response)
    message = find("choices[0].message", answer)
    finish = find("choices[0].finish_reason", answer)
    content = find("choices[0].message.content", answer)
    usage, timings = find("usage", answer) or {}, find("timings", answer) or {}
    sound = isinstance(message, dict) and isinstance(finish, str) and (content is None or isinstance(content, str))
    if not sound or not isinstance(usage, dict) or not isinstance(timings, dict):
        shown = str(answer)[:200] if answer is not None else repr(response.body[:200])
        return Reply(f"expected a chat completion, found {shown}", response.seconds)
    return Reply("", response.seconds, content or "", message, finish, usage, timings)


@dataclass(frozen=True)
class Target:
    """The endpoint that is asked, and what it declares."""

    api: Api
    declared: Declaration

    @property
    def dialect(self) -> Dialect:
        """The ways of its engine."""
        return dialect_of(self.declared.engine)

    def body(self, messages: Sequence[Mapping[str, Any]], max_tokens: int | None, more: Mapping[str, Any]) -> Any:
        """A chat request at temperature 0."""
        return {
            "model": self.declared.alias,
            "messages": list(messages),
            "max_tokens": self.declared.max_tokens if max_tokens is None else max_tokens,
            "temperature": 0,
            **more,
        }

    def ask(self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None = None, **more: Any) -> Reply:
        """Send a chat request; ``more`` are further keys of its body."""
        return read(self.api.post(CHAT, self.body(messages, max_tokens, more), timeout_s=self.declared.timeout_s))

    def stream(self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None = None, **more: Any) -> Streamed:
        """The same, streamed, with usage at the end."""
        body = {**self.body(messages, max_tokens, more), "stream_options": {"include_usage": True}}
        return self.api.stream(CHAT, body, timeout_s=self.declared.timeout_s)


def user(content: Any) -> list[dict[str, Any]]:
    """The messages of a conversation's first turn."""
    return [{"role": "user", "content": content}]


def at_once(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Make all calls at the same time, each in a thread of its own; their results in order."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
