# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of tool calls: auto and required, streamed and not, the right one of two, and the turn after a result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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

__all__ = ["ADD", "MULTIPLY", "call_fault", "look_tools", "probe_tools", "result_fault"]


def _tool(name: str, description: str) -> dict[str, Any]:
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


MULTIPLY = _tool("multiply", "Multiply two integers.")
ADD = _tool("add", "Add two integers.")
_TIMES = "What is 12 times 34? Use the tool."
_WANTED = {"a": 12, "b": 34}
_RESULT = 12 * 34


def call_fault(reply: Reply, name: str, arguments: Mapping[str, Any]) -> str:
    """What is wrong with an answer that must be this one call; "" for nothing."""
    if reply.fault:
        return reply.fault
    if len(reply.calls) != 1:
        return f"expected one call of {name}, found {len(reply.calls)} and content {reply.content[:80]!r}"
    if reply.finish != "tool_calls":
        return f"expected finish_reason tool_calls, found {reply.finish}"
    if not isinstance(reply.calls[0].get("id"), str) or not reply.calls[0]["id"]:
        return f"expected a call with an id, found {reply.calls[0].get('id')!r}"  # its result is handed back by it
    function = reply.calls[0].get("function")
    function = function if isinstance(function, Mapping) else {}
    try:
        given = json.loads(function.get("arguments", ""))
    except (ValueError, TypeError, RecursionError):
        return f"expected arguments in JSON, found {str(function.get('arguments'))[:80]!r}"
    if (function.get("name"), given) != (name, arguments):
        return f"expected {name}({json.dumps(arguments)}), found {function.get('name')}({json.dumps(given)[:80]})"
    return ""


def result_fault(reply: Reply, result: int) -> str:
    """What is wrong with the answer to a tool's result: it must be text that tells the result, and no further call."""
    if reply.fault:
        return reply.fault
    if reply.calls:
        return f"expected an answer from the result, found another call of {reply.calls[0].get('function')}"
    if not re.search(rf"(?<![\d.]){result}(?!\d)", reply.content.replace(",", "")):
        return f"expected the result {result} in the answer, found {reply.content[:80]!r}"
    return ""


def _after(reply: Reply) -> list[dict[str, Any]]:
    """The conversation up to the tool's result."""
    call = {**reply.calls[0], "type": "function"}
    turn = {"role": "assistant", "content": reply.content, "tool_calls": [call]}
    return [*user(_TIMES), turn, {"role": "tool", "tool_call_id": str(call.get("id")), "content": str(_RESULT)}]


def probe_tools(target: Target) -> Verdict:
    """Five requests; the first that goes wrong is the verdict."""
    budget = target.declared.larger_max_tokens
    seconds = 0.0
    asked: list[str] = []

    def wrong(way: str, reply: Reply, fault: str) -> Verdict | None:
        nonlocal seconds
        seconds += reply.seconds
        asked.append(way)
        return failed("tools", f"{way}: {fault}", seconds, **reply.facts) if fault else None

    def ask(way: str, question: str, tools: list[Any], wanted: Any, **more: Any) -> tuple[Reply, Verdict | None]:
        body = {"max_tokens": budget, "tools": tools, **more}
        if way == "streamed":
            reply = assemble(target.stream(user(question), **body))
        else:
            reply = target.ask(user(question), **body)
        return reply, wrong(way, reply, call_fault(reply, *wanted))

    first, verdict = ask("auto", _TIMES, [MULTIPLY], ("multiply", _WANTED), tool_choice="auto")
    if verdict:
        return verdict
    for way, question, tools, wanted, choice in (
        ("required", _TIMES, [MULTIPLY], ("multiply", _WANTED), "required"),
        ("streamed", _TIMES, [MULTIPLY], ("multiply", _WANTED), "auto"),
        ("two tools", "What is 56 plus 7?", [MULTIPLY, ADD], ("add", {"a": 56, "b": 7}), "auto"),
    ):
        _reply, verdict = ask(way, question, tools, wanted, tool_choice=choice)
        if verdict:
            return verdict
    told = target.ask(_after(first), max_tokens=budget, tools=[MULTIPLY])
    verdict = wrong("after the result", told, result_fault(told, _RESULT))
    return verdict or passed("tools", f"right calls: {', '.join(asked)}", seconds, **first.facts)


def look_tools(target: Target) -> Verdict:
    """Whether an endpoint that declares no tools calls one."""
    reply = target.ask(user(_TIMES), tools=[MULTIPLY], tool_choice="auto")
    fault = call_fault(reply, "multiply", _WANTED)
    if fault:
        return absent("tools", fault, reply.seconds)
    return found("tools", "calls a tool when asked to", reply.seconds, **reply.facts)
