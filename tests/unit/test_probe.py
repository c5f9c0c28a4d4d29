# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chat probe's verdicts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import CHAT_PROMPT, judge_chat, probe_chat
from conftest import Served
from hypothesis import given
from hypothesis import strategies as st


def completion(content: Any, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": finish}], **more}


@pytest.mark.parametrize(
    ("status", "answer", "verdict", "evidence"),
    [
        (200, completion("Hello."), "pass", "answered 'Hello.'"),
        (200, completion(" Hi \n"), "pass", "answered 'Hi'"),
        (200, completion("cut off", "length"), "pass", "answered 'cut off'"),
        (200, completion(""), "fail", "expected content, found none (finish_reason stop)"),
        (200, completion(None), "fail", "found none (finish_reason stop)"),
        (200, completion(" \n"), "fail", "found none"),
        (200, completion("", "length"), "fail", "thinking budget too small: 64 tokens"),
        (200, completion([{"type": "text"}]), "fail", "expected a chat completion"),
        (200, completion("ok", usage=[1]), "fail", "expected a chat completion"),
        (200, {}, "fail", "expected a chat completion, found {}"),
        (200, {"choices": []}, "fail", "expected a chat completion"),
        (200, {"choices": [{"message": "text"}]}, "fail", "expected a chat completion"),
        (200, {"choices": [{"message": {"content": "x"}}]}, "fail", "expected a chat completion"),
        (200, [1], "fail", "expected a chat completion"),
        (200, None, "fail", "expected a chat completion"),
        (503, None, "fail", "expected HTTP 200, found HTTP 503 loading"),
        (0, None, "fail", "expected HTTP 200"),
    ],
)
def test_verdicts(status: int, answer: Any, verdict: str, evidence: str) -> None:
    judged = judge_chat(status, answer, "HTTP 503 loading", 1.5, 64)
    assert (judged.probe, judged.verdict, judged.ok, judged.seconds) == ("chat", verdict, verdict == "pass", 1.5)
    assert evidence in judged.evidence


def test_counts_come_from_the_answer() -> None:
    answer = completion(
        "x" * 900, usage={"prompt_tokens": 5, "completion_tokens": 7}, timings={"predicted_per_second": 9.5}
    )
    assert judge_chat(200, answer, "", 0.1, 64).as_dict()["facts"] == {
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "tokens_per_s": 9.5,
        "content": "x" * 500,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "finish_reason", "usage"]), inner, max_size=3
        )
    ),
)


@given(json_values)
def test_no_answer_at_all_breaks_the_judge(answer: Any) -> None:
    judged = judge_chat(200, answer, "", 0.1, 8)
    assert judged.verdict in ("pass", "fail")
    json.dumps(judged.as_dict())


def test_what_is_asked(served: Served) -> None:
    served.answer("/v1/chat/completions", completion("hello"))
    verdict = probe_chat(Api("127.0.0.1", served.port), "chat", max_tokens=8, timeout_s=5)
    assert verdict.ok
    assert 0 < verdict.seconds < 5
    method, path, _headers, body = served.seen[-1]
    assert (method, path) == ("POST", "/v1/chat/completions")
    assert json.loads(body) == {
        "model": "chat",
        "messages": [{"role": "user", "content": CHAT_PROMPT}],
        "max_tokens": 8,
        "temperature": 0,
    }


def test_a_server_in_trouble_is_a_failed_verdict(served: Served) -> None:
    served.answers["/v1/chat/completions"] = (500, b"oom")
    verdict = probe_chat(Api("127.0.0.1", served.port), "chat", prompt="?", max_tokens=8, timeout_s=5)
    assert (verdict.ok, verdict.evidence) == (False, "expected HTTP 200, found HTTP 500 oom")


def test_an_answer_that_is_no_json_is_refused(served: Served) -> None:
    served.answers["/v1/chat/completions"] = (200, b"<html>")
    with pytest.raises(FleetError, match="answered no JSON"):
        probe_chat(Api("127.0.0.1", served.port), "chat", max_tokens=8, timeout_s=5)
