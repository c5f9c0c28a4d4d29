# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scripted stand-in for vLLM's OpenAI server: its dialect and nothing else; no model is behind it.

It answers the probes' own requests in the forms of vLLM's documentation (``reasoning`` for the trace, 400 for a prompt
over the window, ``vllm:`` series). What it cannot show is that a real vLLM does so.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_vision import COLOURS
from conftest import Served

WINDOW = 4096


class VllmStandIn:
    """Serves on ``served``; the attributes are what a test may break."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.drafted = self.accepted = 0
        self.drafts = True
        self.sees = True
        self.field = "reasoning"
        self.calls_tools = True
        self.cached: set[str] = set()
        served.answer("/health", {})
        served.answer("/v1/models", {"data": [{"id": "two", "max_model_len": WINDOW, "object": "model"}]})
        served.answers["/metrics"] = lambda _headers, _body: (200, self._metrics().encode())
        served.answers["/v1/chat/completions"] = lambda _headers, body: self._complete(json.loads(body))

    def _metrics(self) -> str:
        label = 'engine="0",model_name="two"'
        rows = {
            "num_requests_running": 0.0,
            "num_requests_waiting": 0.0,
            "kv_cache_usage_perc": 0.01,
            "prompt_tokens_total": 9.0,
            "generation_tokens_total": 9.0,
            "spec_decode_num_draft_tokens_total": float(self.drafted),
            "spec_decode_num_accepted_tokens_total": float(self.accepted),
        }
        return "".join(f"# TYPE vllm:{name} gauge\nvllm:{name}{{{label}}} {value}\n" for name, value in rows.items())

    def _colour(self, url: str) -> str:
        data = b64decode(url.partition(",")[2])
        start = data.index(b"IDAT") + 4
        size = int.from_bytes(data[start - 8 : start - 4], "big")
        pixel = tuple(zlib.decompress(data[start : start + size])[1:4])
        return next(name for name, rgb in COLOURS.items() if rgb == pixel)

    def _message(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        last = body["messages"][-1]
        if body["max_tokens"] <= 8:
            return {"role": "assistant", "content": None, self.field: "I think"}, "length"
        if last["role"] == "tool":
            return {"role": "assistant", "content": f"The result is {last['content']}.", self.field: "t"}, "stop"
        if isinstance(last["content"], list):
            url = next((part["image_url"]["url"] for part in last["content"] if part["type"] == "image_url"), "")
            return {"role": "assistant", "content": self._colour(url) if url else "?", self.field: "t"}, "stop"
        if body.get("tools") and self.calls_tools:
            add = "plus" in last["content"]
            call = ("add", '{"a": 56, "b": 7}') if add else ("multiply", '{"a": 12, "b": 34}')
            calls = [{"id": "call-1", "type": "function", "function": {"name": call[0], "arguments": call[1]}}]
            return {"role": "assistant", "content": None, self.field: "t", "tool_calls": calls}, "tool_calls"
        return {"role": "assistant", "content": "hello", self.field: "I say hello.", "tool_calls": []}, "stop"

    def _complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        last = body["messages"][-1]["content"]
        text = json.dumps(body["messages"])
        if isinstance(last, list) and any(part["type"] == "image_url" for part in last) and not self.sees:
            return self._refuse("two is not a multimodal model")
        count = len(last.split()) if isinstance(last, str) else 20 + 64 * (len(last) - 1)
        if count >= WINDOW:
            return self._refuse(
                f"This model's maximum context length is {WINDOW} tokens. However, your request has {count} tokens."
            )
        cached = count if text in self.cached else 0
        self.cached.add(text)
        if self.drafts:
            self.drafted += 10
            self.accepted += 6
        message, finish = self._message(body)
        usage = {
            "prompt_tokens": count,
            "completion_tokens": min(7, body["max_tokens"]),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if body.get("stream"):
            return 200, self._streamed(message, finish, usage)
        answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
        return 200, json.dumps(answer).encode()

    @staticmethod
    def _refuse(message: str) -> tuple[int, bytes]:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
        return 400, json.dumps({"error": error}).encode()

    def _streamed(self, message: dict[str, Any], finish: str, usage: dict[str, Any]) -> bytes:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {self.field: message[self.field]}]
        if message["content"]:
            deltas += [{"content": letter} for letter in message["content"]]
        for call in message.get("tool_calls") or []:
            head = {"index": 0, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"]}}
            deltas.append({"tool_calls": [head]})
            deltas += [
                {"tool_calls": [{"index": 0, "function": {"arguments": letter}}]}
                for letter in call["function"]["arguments"]
            ]
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({"choices": [], "usage": usage})
        return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
