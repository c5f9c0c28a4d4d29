# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked for a bench, and which answers are no measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, Response, Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import Row
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_ask import (
    Asker,
    filler,
    merge,
    require_idle,
    samples,
    warm_up,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_shapes import bench_shapes, cells_of_shapes
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_spec import (
    WORKLOADS,
    Heard,
    cells_of_spec,
    difference,
    hear,
    pair,
    rung_without_drafters,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_turns import (
    bench_turns,
    cells_of_turns,
    first_token_s,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Target
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from bench_stand_in import TEMPLATE, BenchStandIn
from conftest import Served
from hypothesis import given
from hypothesis import strategies as st

TIMINGS = {
    "cache_n": 12,
    "prompt_n": 500,
    "prompt_per_second": 1000.0,
    "predicted_n": 64,
    "predicted_per_second": 50.0,
    "draft_n": 40,
    "draft_n_accepted": 30,
}


@pytest.fixture
def server(served: Served) -> BenchStandIn:
    return BenchStandIn(served)


@pytest.fixture
def target(served: Served) -> Target:
    env = {"ALIAS": "one", "CTX_SIZE": "8192", "PARALLEL": "2", "MODEL_FILE": "/m.gguf"}
    return Target(Api("127.0.0.1", served.port), replace(declare({"engine": "llamacpp", "env": env}), timeout_s=5))


@pytest.fixture
def asker(server: BenchStandIn, target: Target) -> Asker:
    return warm_up(target, "run1")


@given(st.integers(0, 200), st.integers(0, 200), st.text(max_size=5))
def test_filler_is_as_long_as_asked_and_a_longer_one_begins_alike(one: int, more: int, seed: str) -> None:
    short, long = filler(one, seed).split(), filler(one + more, seed).split()
    assert len(short) == one and len(long) == one + more and long[:one] == short


def test_an_idle_endpoint_is_let_through_and_a_busy_one_refused(server: BenchStandIn, target: Target) -> None:
    require_idle(target)
    server.busy = [1]
    with pytest.raises(FleetError, match=r"endpoint one is at work; expected no busy slot.*found slot 1 busy"):
        require_idle(target)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"[1]"])
def test_where_slots_are_not_told_nothing_is_measured(served: Served, target: Target, body: bytes) -> None:
    served.answers["/slots"] = (200, body)
    with pytest.raises(FleetError, match="whether the endpoint is idle cannot be told"):
        require_idle(target)
    served.answers["/slots"] = (501, b'{"error": {"message": "not supported"}}')
    with pytest.raises(FleetError, match="found HTTP 501 not supported"):
        require_idle(target)


def test_figures_are_the_engines_own() -> None:
    assert samples(TIMINGS, 64) == {
        "prompt_tokens": 512,
        "prefill_tps": 1000.0,
        "decode_tps": 50.0,
        "acceptance": 0.75,
    }
    assert "acceptance" not in samples({**TIMINGS, "draft_n": 0}, 64)
    assert "decode_tps" not in samples({**TIMINGS, "predicted_n": 1}, 1)
    assert samples({**TIMINGS, "predicted_n": 9}, None)["decode_tps"] == 50.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"predicted_n": 17}, "the answer has another length; expected 64 tokens; found 17"),
        ({"cache_n": 501}, "the prompt was not new to the server.*found 501 of 1001 prompt tokens from the cache"),
        ({"prompt_per_second": None}, "the answer has no timings"),
        ({"predicted_n": True}, "the answer has no timings"),
        ({"predicted_per_second": "fast"}, "the answer has no timings"),
    ],
)
def test_what_is_no_measurement(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        samples({**TIMINGS, **change}, 64)
    with pytest.raises(FleetError, match="found none"):
        samples({}, 64)


def test_samples_are_put_together_by_figure() -> None:
    assert merge([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": [1.0, 3.0], "b": [2.0]}
    assert merge([]) == {}


def test_the_first_answers_are_dropped_and_tell_how_long_prompts_are(server: BenchStandIn, asker: Asker) -> None:
    assert [body["max_tokens"] for body in server.bodies] == [2, 2]
    assert asker.per_word == 1.0 and asker.base == TEMPLATE + 2
    assert len(asker.text(512, "a").split()) == 512 - TEMPLATE
    with pytest.raises(FleetError, match=r"no prompt is as short as 22 tokens.*more than the 22 of the chat template"):
        asker.text(22, "a")


def test_an_endpoint_that_does_not_answer_is_named(server: BenchStandIn, served: Served, target: Target) -> None:
    served.answers["/v1/chat/completions"] = (500, b'{"error": {"message": "out of memory"}}')
    with pytest.raises(FleetError, match=r"endpoint one does not answer.*found.*HTTP 500 out of memory"):
        warm_up(target, "run1")
    assert server.bodies == []


def test_the_same_count_for_more_words_is_no_measure(served: Served, target: Target) -> None:
    message = {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 5}}
    served.answer("/v1/chat/completions", message)
    with pytest.raises(FleetError, match=r"expected more tokens for more words; found \[5, 5\]"):
        warm_up(target, "run1")


def test_shapes(server: BenchStandIn, asker: Asker) -> None:
    server.drafts = (40, 10)
    cells = cells_of_shapes([100, 300], [8, 16])
    rows = list(bench_shapes(asker, cells, 2))
    assert (
        [row.cell for row in rows]
        == cells
        == [
            {"prompt": 100, "output": 8},
            {"prompt": 100, "output": 16},
            {"prompt": 300, "output": 8},
            {"prompt": 300, "output": 16},
        ]
    )
    for row in rows:
        assert row.error is None
        assert row.samples == {
            "prompt_tokens": [row.cell["prompt"]] * 2,
            "prefill_tps": [1000.0] * 2,
            "decode_tps": [50.0] * 2,
            "acceptance": [0.25] * 2,
        }
    measured = server.bodies[2:]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in measured)
    starts = [body["messages"][0]["content"][:24] for body in server.bodies]
    assert len(set(starts[1:])) == len(measured) + 1  # the two that are dropped begin alike
    assert all(start.startswith("run1 ") for start in starts)


def test_a_cell_that_fails_costs_its_row(server: BenchStandIn, asker: Asker) -> None:
    server.window = 250
    rows = list(bench_shapes(asker, cells_of_shapes([300, 100], [8]), 2))
    assert rows[0].samples == {} and "HTTP 400 request (300 tokens) exceeds" in str(rows[0].error)
    assert rows[1].error is None and rows[1].samples["decode_tps"] == [50.0, 50.0]


def test_somebody_who_comes_in_between_costs_a_row(server: BenchStandIn, asker: Asker) -> None:
    rows = bench_shapes(asker, cells_of_shapes([100, 101], [8]), 1)
    assert next(rows).error is None
    server.busy = [0]
    assert "slot 0 busy" in str(next(rows).error)


def test_an_answer_that_ends_by_itself_is_no_measurement(server: BenchStandIn, asker: Asker) -> None:
    server.short = 3
    (row,) = bench_shapes(asker, cells_of_shapes([100], [8]), 1)
    assert row.error == "the answer has another length; expected 8 tokens; found 5."


def test_turns_find_their_document_in_the_cache(server: BenchStandIn, asker: Asker) -> None:
    cells = cells_of_turns(families=2, turns=3, document=200, output=4)
    rows = list(bench_turns(asker, cells, 2))
    assert [(row.cell["family"], row.cell["turn"]) for row in rows] == [(f, t) for f in (0, 1) for t in (1, 2, 3)]
    for row in rows:
        assert row.error is None and len(row.samples["ttft_s"]) == 2 and min(row.samples["ttft_s"]) > 0
        cached = row.samples["cached_tokens"]
        assert cached == [0.0, 0.0] if row.cell["turn"] == 1 else min(cached) > 200, row
        assert row.samples["cached_share"] == [a / b for a, b in zip(cached, row.samples["prompt_tokens"], strict=True)]
    last = server.bodies[-1]
    assert last["stream"] and last["ignore_eos"]
    assert [message["role"] for message in last["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert last["messages"][1]["content"] == "toldtoldtoldtold"


def test_a_turn_that_fails_costs_those_after_it(server: BenchStandIn, asker: Asker) -> None:
    server.window = 230
    rows = list(bench_turns(asker, cells_of_turns(families=1, turns=3, document=200, output=4), 1))
    assert rows[0].error is None
    assert "HTTP 400" in str(rows[1].error) and rows[2].error == "turn 2 failed before it"


def test_a_round_without_idle_slots_costs_its_samples(server: BenchStandIn, asker: Asker) -> None:
    server.busy = [0]
    rows = list(bench_turns(asker, cells_of_turns(families=2, turns=1, document=100, output=2), 1))
    assert [("slot 0 busy" in str(row.error), row.samples) for row in rows] == [(True, {}), (True, {})]


def test_the_first_token_is_the_first_with_text() -> None:
    events = (
        (0.1, json.dumps({"choices": [{"delta": {"role": "assistant", "content": None}}]})),
        (0.4, json.dumps({"choices": [{"delta": {"reasoning_content": "I"}}]})),
        (0.9, json.dumps({"choices": [{"delta": {"content": "hello"}}]})),
        (1.0, "[DONE]"),
    )
    answer = Response(200, b"", 1.0)
    assert first_token_s(Streamed(answer, events)) == 0.4
    with pytest.raises(FleetError, match="no token came"):
        first_token_s(Streamed(answer, (events[0], events[3])))


@pytest.mark.parametrize(
    ("rungs", "name"),
    [
        ({"spec_off": {"SPEC_TYPE": "none"}}, "spec_off"),
        ({"small": {"CTX_SIZE": 1, "SPEC_TYPE": "none"}, "spec_off": {"SPEC_TYPE": "none"}}, "spec_off"),
        ({"b": {"SPEC_TYPE": "none"}, "a": {"SPEC_TYPE": "none"}, "c": {"CTX_SIZE": 1}}, "a"),
    ],
)
def test_the_rung_that_changes_least_turns_the_drafters_off(rungs: dict[str, Any], name: str) -> None:
    assert rung_without_drafters(rungs) == name


@pytest.mark.parametrize("rungs", [{}, {"small": {"CTX_SIZE": 1}}, {"other": {"SPEC_TYPE": "ngram-mod"}}])
def test_without_such_a_rung_it_is_said_how_to_declare_one(rungs: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match=r"no rung turns the drafters off.*rungs: \{spec_off: \{SPEC_TYPE: none\}\}"):
        rung_without_drafters(rungs)


def test_both_arms_are_asked_the_same(server: BenchStandIn, asker: Asker, served: Served) -> None:
    cells = cells_of_spec(120, 8)
    assert [cell["workload"] for cell in cells] == list(WORKLOADS) == ["prose", "echo", "structured", "identity"]
    server.drafts = (8, 6)
    on = list(hear(asker, cells, 2))
    before = [body["messages"] for body in server.bodies[2:]]
    ends = [body.get("ignore_eos", False) for body in server.bodies[2:]]
    assert ends == [True] * 6 + [False] * 2
    server.drafts, server.decode, server.prompts, server.bodies = None, 20.0, [], []
    off = list(hear(warm_up(asker.target, "run1"), cells, 2))
    assert [body["messages"] for body in server.bodies[2:]] == before
    for cell, one, other in zip(cells, on, off, strict=True):
        row = pair(cell, one, other)
        assert row.error is None
        assert row.samples == {
            "on_decode_tps": [50.0, 50.0],
            "off_decode_tps": [20.0, 20.0],
            "speedup": [2.5, 2.5],
            "acceptance": [0.75, 0.75],
            "drafted_tokens": [8.0, 8.0],
            "identical": [1.0, 1.0],
        }


def heard(texts: tuple[str, ...] = ("a b",), error: str | None = None, **figures: list[float]) -> Heard:
    return Heard({"decode_tps": [10.0], **figures}, texts, error)


@pytest.mark.parametrize(
    ("on", "off", "error", "identical"),
    [
        (heard(drafted_tokens=[3.0]), heard(), None, [1.0]),
        (heard(), heard(("a c",)), "character 2 on: 'b' with drafters, 'c' without", [0.0]),
        (heard(), heard(("a b c",)), "character 3 on: '' with drafters, ' c' without", [0.0]),
        (heard(error="HTTP 500"), heard(), "with drafters: HTTP 500", None),
        (heard(), Heard({}, error="does not stay up"), "without drafters: does not stay up", None),
        (heard(), heard(drafted_tokens=[4.0]), "without drafters: tokens were drafted all the same", None),
    ],
)
def test_a_pair_of_arms(on: Heard, off: Heard, error: str | None, identical: list[float] | None) -> None:
    row: Row = pair({"workload": "prose"}, on, off)
    assert row.samples.get("identical") == identical
    assert (row.error is None) if error is None else error in str(row.error)
    assert row.samples["on_decode_tps"] == [10.0]  # what was measured stands


def test_texts_that_are_alike_do_not_differ() -> None:
    assert difference(["a", "b"], ["a", "b"]) is None
    assert difference([], []) is None


def test_an_arm_that_fails_in_one_workload_goes_on(server: BenchStandIn, asker: Asker) -> None:
    server.window = 100
    told = list(hear(asker, cells_of_spec(120, 8), 1))
    assert ["HTTP 400" in str(one.error) for one in told] == [True, True, False, False]
