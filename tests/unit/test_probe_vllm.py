# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes in vLLM's dialect, against a scripted stand-in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import Verdict, declare, probes_of, run
from conftest import Served
from vllm_stand_in import WINDOW, VllmStandIn

FACTS = {
    "engine": "r9v",
    "env": {"R9V_SERVED_MODEL_NAME": "two", "R9V_ENABLE_PREFIX_CACHING": "1", "R9V_MTP_SPEC_TOKENS": "4"},
    "client": {"context_window": WINDOW, "reasoning_field": "reasoning", "input": ["text", "image"]},
    "probes": {"capabilities": ["tools"], "timeout_s": 10},
}


def told(vllm: VllmStandIn, **facts: Any) -> dict[str, Verdict]:
    declared = declare({**FACTS, **facts})
    verdicts = run(Api("127.0.0.1", vllm.served.port), declared, probes_of(declared))
    return {verdict.probe: verdict for verdict in verdicts}


def test_all_that_it_declares_passes(served: Served) -> None:
    verdicts = told(VllmStandIn(served))
    assert [name for name, verdict in verdicts.items() if verdict.verdict != "pass"] == [
        "auth",
        "adapter",
        "ngram",
        "slots",
    ]
    assert all(verdict.ok for verdict in verdicts.values()), verdicts
    assert verdicts["adapter"].evidence == "absent: vLLM does not list its adapters"
    assert verdicts["ngram"].evidence == "absent: it could not be told from the declared drafting"


@pytest.mark.parametrize(
    ("spoil", "probe", "evidence"),
    [
        (lambda v: v.served.answer("/v1/models", {"data": [{"id": "old"}]}), "models", "expected two, found old"),
        (lambda v: v.served.answer("/v1/models", {"data": [{"id": "two", "max_model_len": 9}]}), "props", "found 9"),
        (lambda v: v.served.answers.pop("/metrics"), "metrics", "/metrics is off"),
        (lambda v: v.served.answers.update({"/metrics": (200, b"up 1\n")}), "metrics", "vllm:num_requests_running"),
        (lambda v: setattr(v, "field", "reasoning_content"), "reasoning", "found it in reasoning_content"),
        (lambda v: setattr(v, "calls_tools", False), "tools", "auto: expected one call of multiply, found 0"),
        (lambda v: setattr(v, "sees", False), "vision", "HTTP 400 two is not a multimodal model"),
        (lambda v: setattr(v, "drafts", False), "drafting", "/metrics: expected drafted tokens, found none"),
        (lambda v: setattr(v, "cached", _Nothing()), "cache", "found 0 cached_tokens"),
    ],
)
def test_each_is_seen_to_fail(served: Served, spoil: Callable[[VllmStandIn], Any], probe: str, evidence: str) -> None:
    vllm = VllmStandIn(served)
    spoil(vllm)
    verdict = told(vllm)[probe]
    assert (verdict.verdict, verdict.ok) == ("fail", False)
    assert evidence in verdict.evidence


class _Nothing(set):  # type: ignore[type-arg]
    def __contains__(self, _item: object) -> bool:
        return False


def test_the_window_is_named_or_it_fails(served: Served) -> None:
    vllm = VllmStandIn(served)
    told_window = told(vllm, client={**FACTS["client"], "context_window": WINDOW + 1000})["context"]
    assert (told_window.verdict, told_window.evidence[:52]) == (
        "fail",
        "expected HTTP 400 that names 5096 tokens, found HTTP",
    )


def test_a_text_only_one_must_refuse_an_image(served: Served) -> None:
    vllm = VllmStandIn(served)
    text = {**FACTS["client"], "input": ["text"]}
    assert told(vllm, client=text)["vision"].evidence.startswith("found: takes an image and answers 'red'")
    vllm.sees = False
    verdict = told(vllm, client=text)["vision"]
    assert (verdict.verdict, verdict.evidence) == ("pass", "text only: refuses an image with HTTP 400")
