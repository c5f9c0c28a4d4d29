# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scripted llama-server for benches: a word is a token, a prompt of many words is computed at a set rate."""

from __future__ import annotations

import json
from typing import Any

from conftest import Served

TEMPLATE = 20  # tokens that come with every prompt


class BenchStandIn:
    """Serves on ``served``; the attributes are what a test may break."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.busy: list[int] = []
        self.window = 4096
        self.prefill, self.decode = 1000.0, 50.0
        self.drafts: tuple[int, int] | None = None
        self.text = "told "
        self.short = 0  # tokens fewer than asked for
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        served.answers["/slots"] = lambda _headers, _body: (200, json.dumps(self._slots()).encode())
        served.answers["/v1/chat/completions"] = lambda _headers, body: self._complete(json.loads(body))

    def _slots(self) -> list[dict[str, Any]]:
        return [{"id": number, "is_processing": number in self.busy} for number in range(2)]

    def _complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        self.bodies.append(body)
        text = " ".join(message["content"] for message in body["messages"])
        count = TEMPLATE + len(text.split())
        if count + body["max_tokens"] > self.window:
            message = f"request ({count} tokens) exceeds the available context size ({self.window} tokens)"
            return 400, json.dumps({"error": {"message": message}}).encode()
        seen = max((len(old.split()) for old in self.prompts if text.startswith(old)), default=0)
        self.prompts.append(text)
        cached = TEMPLATE + seen if seen else 0
        made = body["max_tokens"] - self.short
        timings: dict[str, Any] = {
            "cache_n": cached,
            "prompt_n": count - cached,
            "prompt_per_second": self.prefill,
            "predicted_n": made,
            "predicted_per_second": self.decode,
        }
        if self.drafts:
            timings |= {"draft_n": self.drafts[0], "draft_n_accepted": self.drafts[1]}
        usage = {
            "prompt_tokens": count,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        content = (self.text * made).strip()
        if not body.get("stream"):
            message = {"role": "assistant", "content": content}
            told = {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage, "timings": timings}
            return 200, json.dumps(told).encode()
        chunks: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant", "content": None}}]},
            *({"choices": [{"delta": {"content": word}}]} for word in content.split()),
            {"choices": [{"delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": usage, "timings": timings},
        ]
        return 200, b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
