# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chunks of a streamed chat completion: in order, whole, and put together again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Reply

__all__ = ["assemble", "order_fault"]

_DONE = "[DONE]"
_SAID = ("content", "reasoning_content", "reasoning", "tool_calls")  # of a delta


def _chunks(streamed: Streamed) -> tuple[list[Any], str]:
    """(the chunks before the end, what is wrong with them)."""
    data = [data for _seconds, data in streamed.events]
    if not data:
        return [], "no event"
    if data[-1] != _DONE or _DONE in data[:-1]:
        return [], f"expected [DONE] as the last event, found {data[-1][:100]!r}"
    try:
        chunks = [json.loads(each) for each in data[:-1]]
    except (ValueError, RecursionError):  # the latter of nested brackets without end
        return [], "expected JSON in every event before [DONE]"
    if not all(isinstance(chunk, dict) for chunk in chunks):
        return [], "expected an object in every event before [DONE]"
    return chunks, ""


def order_fault(streamed: Streamed) -> str:
    """What is out of order: role, then deltas, then a finish_reason, then usage, then ``[DONE]``; "" for nothing."""
    if streamed.answer.status != 200:
        return f"expected HTTP 200, found {streamed.answer.words}"
    chunks, fault = _chunks(streamed)
    if fault:
        return fault
    if error := find("[].error | [0]", chunks):
        return f"expected chunks of an answer, found an error: {str(find('message', error) or error)[:200]}"
    if find("[0].choices[0].delta.role", chunks) != "assistant":
        return f"expected the role in the first event, found {str(chunks[0] if chunks else None)[:100]}"
    ends = [place for place, chunk in enumerate(chunks) if find("choices[0].finish_reason", chunk)]
    if len(ends) != 1 or not isinstance(find("choices[0].finish_reason", chunks[ends[0]]), str):
        found = [find("choices[0].finish_reason", chunks[end]) for end in ends]
        return f"expected one finish_reason, found {len(ends)}{f': {found}'[:100] if found else ''}"
    late = [chunk for chunk in chunks[ends[0] + 1 :] if find(f"choices[0].delta.[{', '.join(_SAID)}][?@]", chunk)]
    if late:
        return "expected no content after the finish_reason"
    if not find("usage.completion_tokens", chunks[-1]):
        return "expected usage in the last event before [DONE]"
    return ""


def _join_calls(deltas: Sequence[Any]) -> list[dict[str, Any]]:
    """Tool calls from their pieces: name and id come once, arguments bit by bit."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in deltas:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index")
        place = index if isinstance(index, int) else 0
        call = calls.setdefault(place, {"id": "", "function": {"name": "", "arguments": ""}})
        call["id"] = call["id"] or piece.get("id") or ""
        for key in ("name", "arguments"):
            bit = find(f"function.{key}", piece)
            call["function"][key] += bit if isinstance(bit, str) else ""
    return [calls[index] for index in sorted(calls)]


def assemble(streamed: Streamed) -> Reply:
    """The whole answer from its chunks, as if it had not been streamed."""
    fault = order_fault(streamed)
    if fault:
        return Reply(fault, streamed.answer.seconds, status=streamed.answer.status)
    chunks, _fault = _chunks(streamed)
    message: dict[str, Any] = {"role": "assistant"}
    for name in _SAID[:3]:
        pieces = find(f"[].choices[0].delta.{name}", chunks) or []
        message[name] = "".join(piece for piece in pieces if isinstance(piece, str))
    message["tool_calls"] = _join_calls(find("[].choices[0].delta.tool_calls[]", chunks) or [])
    timings = find("[].timings | [-1]", chunks)
    return Reply(
        "",
        streamed.answer.seconds,
        message["content"],
        message,
        next(iter(find("[].choices[0].finish_reason", chunks)), None),
        chunks[-1]["usage"],
        timings if isinstance(timings, dict) else {},
    )
