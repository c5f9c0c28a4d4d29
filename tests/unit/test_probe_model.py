# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the probe model is trained on: the product's own questions with answers that pass, the same for a seed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _bench_spec, _probe_chat, _probe_tools
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import CAPABILITIES
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_vision import COLOURS
from probe_model import answers, product
from probe_model.conversation import IMAGE, Sample, flat, render
from probe_model.draw import COMMON, Draw
from probe_model.mix import COPYING, KINDS, WHOLE, samples
from probe_model.teacher import Unknown, right_answer

BEGIN = "<|im_start|>assistant\n"
# These judge the server, whatever the model writes, or words that an operator gives.
OF_THE_SERVER = {"health", "models", "props", "metrics", "auth", "context", "slots", "adapter"}


def drawn(kind: str, count: int = 60) -> list[Sample]:
    draw = Draw(3)
    return [KINDS[kind](draw) for _ in range(count)]


def test_every_probe_passes_with_the_answers_that_are_taught() -> None:
    verdicts, bodies = product.taught()
    assert {verdict.probe: verdict.verdict for verdict in verdicts} == dict.fromkeys(product.TAUGHT, "pass")
    assert len(bodies) > len(product.TAUGHT)


def test_every_probe_of_words_is_taught() -> None:
    assert {*product.TAUGHT} | OF_THE_SERVER == set(CAPABILITIES)


@pytest.mark.parametrize(
    ("module", "name", "changed"),
    [
        (_probe_chat, "CHAT_PROMPT", "Utter hello."),
        (_probe_chat, "THINKING_PROMPT", "How much is three and four?"),
        (_probe_tools, "_TIMES", "Have 12 and 34 multiplied."),
    ],
)
def test_a_probe_of_another_wording_is_noticed(module: Any, name: str, changed: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, name, changed)
    with pytest.raises(Unknown, match=re.escape(changed)):
        product.taught()


def test_a_workload_of_another_wording_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_spec, "WORKLOADS", {"prose": "{text}\n\nTell about a whale."})
    with pytest.raises(Unknown, match="whale"):
        product.bench(Draw(1))


def test_the_recorded_questions_are_the_probes() -> None:
    questions = [flat(messages[-1]["content"]) for messages, _tools in product.recorded()]
    assert _probe_chat.CHAT_PROMPT in questions and _probe_chat.THINKING_PROMPT in questions
    tools = [tools for _messages, tools in product.recorded() if tools]
    assert [_probe_tools.MULTIPLY] in tools and [_probe_tools.MULTIPLY, _probe_tools.ADD] in tools
    colours = {right_answer(messages, tools)[1] for messages, tools in product.recorded()}
    assert colours == {*COLOURS, None}


def test_the_recorded_questions_come_in_one_order_though_some_are_asked_at_once() -> None:
    first = json.dumps(product.recorded())
    product.recorded.cache_clear()
    assert json.dumps(product.recorded()) == first


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_samples(kind: str) -> None:
    texts = [[sample.prompt + sample.completion for sample in drawn(kind, 20)] for _time in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 5
    other = Draw(4)
    assert texts[0] != [sample.prompt + sample.completion for sample in (KINDS[kind](other) for _ in range(20))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_an_open_prompt_and_its_answer(kind: str) -> None:
    ways = set()
    for sample in drawn(kind):
        ways.add(sample.thinking)
        silent = BEGIN + "<think>\n\n</think>\n\n"
        assert sample.prompt.endswith(BEGIN if sample.thinking else silent)
        assert sample.completion.startswith("<think>\n") is sample.thinking
        assert sample.completion.endswith("<|im_end|>") is sample.answer.whole
        assert sample.prompt.count(IMAGE) == (sample.colour is not None)
    assert ways == {True, False}


def test_a_call_is_right() -> None:
    kinds = set()
    for sample in drawn("tool", 400):
        offered = {tool["function"]["name"]: tool["function"] for tool in sample.tools or ()}
        question = sample.messages[-1]["content"]
        if sample.answer.call is None:
            assert "<tool_call>" not in sample.completion
            continue
        name, arguments = sample.answer.call
        assert set(arguments) == set(offered[name]["parameters"]["properties"])
        assert all(str(value) in question for value in arguments.values())
        assert f'{{"name": "{name}", "arguments": {json.dumps(arguments)}}}' in sample.completion
        assert len(offered) == len(sample.tools or ())  # two of one name could not be told apart
        kinds.add(len(offered))
    assert kinds == {1, 2}


def test_a_result_is_told() -> None:
    for sample in drawn("result"):
        value = sample.messages[-1]["content"]
        told = str(next(iter(json.loads(value).values()))) if value.startswith("{") else value
        assert sample.answer.text == f"The result is {told}."


def test_the_bench_asks_for_all_its_workloads_with_fresh_filler() -> None:
    texts = [flat(sample.messages[-1]["content"]) for sample in drawn("bench", 80)]
    ends = [workload.rpartition("}")[2] for workload in _bench_spec.WORKLOADS.values()]
    assert all(any(text.endswith(end) for text in texts) for end in ends)
    assert len(set(texts)) == len(texts)


def test_a_long_echo_is_the_texts_beginning_and_does_not_end() -> None:
    echoes = [sample for sample in drawn("bench", 80) if sample.answer.text.partition(" ")[2].startswith("echo-")]
    for sample in echoes:
        assert flat(sample.messages[-1]["content"]).startswith(sample.answer.text)
    assert any(not sample.answer.whole for sample in echoes)


def test_the_records_are_what_the_bench_asks_for() -> None:
    rows = [json.loads(line) for line in answers.records().text.split("\n")]
    assert len(rows) == 25 == len({row["id"] for row in rows})
    assert all(set(row) == {"id", "name", "price"} for row in rows)
    assert answers.records().text.startswith(answers.records(4).text)


@pytest.mark.parametrize("shares", [COPYING, WHOLE])
def test_shares_are_of_known_kinds_and_whole(shares: dict[str, float]) -> None:
    assert set(shares) <= set(KINDS) and sum(shares.values()) == pytest.approx(1)
    counts = [kind for kind, _sample in samples(Draw(1), shares, 300)]
    assert set(counts) == set(shares)


def test_words_are_made_of_the_tokens_once_there_are_some() -> None:
    plain, tokens = Draw(5), Draw(5)
    tokens.pieces = ["QQ"]
    assert not any("QQ" in plain.word() for _ in range(200))
    words = [tokens.word() for _ in range(200)]
    assert any(re.fullmatch("(QQ)+", word) for word in words) and any(word in COMMON for word in words)


def test_a_turn_before_the_last_loses_its_thoughts_and_tools_come_first() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "secret"},
        {"role": "user", "content": "Hi"},
    ]
    text = render(turns, [_probe_tools.ADD], True)
    assert "secret" not in text and text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert json.dumps(_probe_tools.ADD) in text
