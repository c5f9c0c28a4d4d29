# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judges over answers recorded from llama-server build 11434 with the models of tests/fixtures/probe_model.

Each recorded answer passes its judge; another one, or one that is spoilt, does not.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, Response, Streamed
from ansible_collections.dank.llm_fleet.plugins.module_utils._dialect import LLAMA_SERVER
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_adapter import judge_effect, judge_loaded
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Reply, Target, read
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_basic import (
    judge_promise,
    judge_props,
    probe_props,
    series,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_chat import (
    judge_chat,
    judge_reasoning,
    judge_stream,
    look_reasoning,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_context import (
    judge_cache,
    judge_context,
    judge_slots,
    most_at_once,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_draft import (
    judge_drafts,
    look_drafting,
    look_ngram,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_stream import assemble, order_fault
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_tools import call_fault, result_fault
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_vision import (
    COLOURS,
    PIXELS,
    judge_vision,
    png,
    probe_vision,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._sse import SseParser
from conftest import Served
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "probe_answers.json"
KEPT: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def response(name: str) -> Response:
    kept = KEPT[name]
    return Response(kept["status"], kept["body"].encode(), kept["seconds"])


def reply(name: str) -> Reply:
    return read(response(name))


def body(name: str) -> Any:
    return json.loads(KEPT[name]["body"])


def edited(data: str, **keys: Any) -> str:
    """A chunk that has a finish_reason, with these keys of its choice replaced; any other as it is."""
    told = None if data == "[DONE]" else json.loads(data)
    if not told or not told["choices"] or not told["choices"][0].get("finish_reason"):
        return data
    return json.dumps({**told, "choices": [{**told["choices"][0], **keys}]})


def streamed(name: str, edit: Any = None) -> Streamed:
    data = SseParser().feed(KEPT[name]["body"].encode())
    data = data if edit is None else edit(data)
    return Streamed(response(name), tuple((0.1 * number, each) for number, each in enumerate(data)))


def test_chat() -> None:
    verdict = judge_chat(reply("chat"), 64)
    assert (verdict.verdict, verdict.evidence) == ("pass", "answered 'hello'")
    assert {key: verdict.facts[key] for key in ("finish_reason", "prompt_tokens", "completion_tokens", "content")} == {
        "finish_reason": "stop",
        "prompt_tokens": 15,
        "completion_tokens": 29,
        "content": "hello",
    }
    assert verdict.facts["tokens_per_s"] > 0 and verdict.seconds > 0


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("thinking_cut", "thinking budget too small: 64 tokens were spent before any content"),
        ("no_image", "expected HTTP 200, found HTTP 500 image input is not supported"),
        ("no_key", "expected HTTP 200, found HTTP 401 Invalid API Key"),
        ("props", "expected a chat completion, found {'default_generation_settings'"),
        ("metrics", "expected a chat completion, found b'# HELP"),
    ],
)
def test_chat_fails(name: str, evidence: str) -> None:
    verdict = judge_chat(reply(name), 64)
    assert (verdict.verdict, verdict.ok) == ("fail", False)
    assert verdict.evidence.startswith(evidence)


def test_no_content_is_not_always_a_budget() -> None:
    verdict = judge_chat(replace(reply("chat"), content=" \n"), 64)
    assert verdict.evidence == "expected content, found none (finish_reason stop)"
    assert "budget_too_small" not in verdict.facts


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"content": "x"}}]},
        {"choices": [{"message": {"content": [{"type": "text"}]}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": [1]},
        [1],
        None,
        "x",
    ],
)
def test_what_is_no_completion_is_a_fault(answer: Any) -> None:
    assert read(Response(200, json.dumps(answer).encode(), 0.1)).fault.startswith("expected a chat completion, found")


def test_an_answer_too_deep_to_be_read_is_a_fault() -> None:
    deep = Response(200, b"[" * 100_000, 0.1)
    assert read(deep).fault.startswith("expected a chat completion, found b'[[[")
    assert replace(deep, status=500).words.startswith("HTTP 500 [[[")
    events = ((0.1, "[" * 100_000), (0.2, "[DONE]"))
    assert judge_stream(Streamed(deep, events)).evidence == "expected JSON in every event before [DONE]"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "delta", "content", "finish_reason", "usage", "tool_calls"]),
            inner,
            max_size=3,
        )
    ),
)


@given(_JSON)
def test_no_answer_at_all_breaks_a_judge(answer: Any) -> None:
    told = read(Response(200, json.dumps(answer).encode(), 0.1))
    assert judge_chat(told, 8).verdict in ("pass", "fail")
    assert call_fault(told, "multiply", {})
    events = [(0.1, json.dumps(answer)), (0.2, "[DONE]")]
    assert judge_stream(Streamed(Response(200, b"", 0.1), tuple(events))).verdict == "fail"
    assert judge_props(answer, answer, {"MODEL_FILE": "/m", "ALIAS": "a"}, 1, 256, False)
    assert judge_loaded(answer, "/l", 1)


THOUGHT = "<think>\nOkay, the user wants a greeting."


@pytest.mark.parametrize(
    ("content", "finish", "evidence"),
    [
        (THOUGHT, "length", "thinking budget too small: 64 tokens"),
        (f"{THOUGHT}</think>\n\n", "length", "thinking budget too small: 64 tokens"),
        ("I think so.\n</think>\n", "stop", "expected content, found none (finish_reason stop)"),
        ("hello", "error", "expected finish_reason stop or length, found error"),
        ("hello", "content_filter", "expected finish_reason stop or length, found content_filter"),
    ],
)
def test_thinking_is_no_answer_and_a_fault_no_end(content: str, finish: str, evidence: str) -> None:
    verdict = judge_chat(replace(reply("chat"), content=content, finish=finish), 64)
    assert verdict.verdict == "fail" and verdict.evidence.startswith(evidence)


def test_an_answer_after_its_thinking_is_one() -> None:
    assert judge_chat(replace(reply("chat"), content=f"{THOUGHT}</think> hello"), 64).evidence == "answered 'hello'"


def test_thinking_that_leaks_beside_its_field_fails() -> None:
    for content in ("</think> 7", "<think>3 and 4</think> 7"):
        verdict = judge_reasoning(
            replace(reply("thinking"), content=content), reply("thinking_cut"), "reasoning_content"
        )
        assert verdict.evidence == "expected the thinking in reasoning_content alone, found some of it inside content"


def test_undeclared_thinking_is_found_inside_content(served: Served) -> None:
    message = {"role": "assistant", "content": THOUGHT}
    served.answer("/v1/chat/completions", {"choices": [{"message": message, "finish_reason": "length"}]})
    env = {"ALIAS": "toy", "CTX_SIZE": "1024", "PARALLEL": "1", "MODEL_FILE": "/m"}
    verdict = look_reasoning(Target(Api("127.0.0.1", served.port), declare({"env": env})))
    assert (verdict.facts["found"], verdict.evidence) == (True, "found: thinking arrives inside content")


def test_stream() -> None:
    verdict = judge_stream(streamed("stream"))
    assert (verdict.verdict, verdict.facts["events"]) == ("pass", 27)
    assert verdict.facts["completion_tokens"] == 29
    whole = assemble(streamed("stream"))
    assert (whole.content, whole.finish, whole.message["reasoning_content"][:9]) == ("hello", "stop", "The user ")


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda data: data[:-1], "expected [DONE] as the last event"),
        (lambda data: [*data, data[0]], "expected [DONE] as the last event"),
        (lambda data: ["[DONE]", *data], "expected [DONE] as the last event"),
        (lambda data: data[1:], "expected the role in the first event"),
        (lambda data: [*data[:-3], *data[-2:]], "expected one finish_reason, found 0"),
        (lambda data: [*data[:-3], data[-3], *data[-3:]], "expected one finish_reason, found 2"),
        (lambda data: [*data[:-2], data[-1]], "expected usage in the last event before [DONE]"),
        (lambda data: [*data[:-4], data[-3], data[-4], *data[-2:]], "expected no content after the finish_reason"),
        (lambda data: [data[0], "{", *data[1:]], "expected JSON in every event"),
        (lambda data: [data[0], "1", *data[1:]], "expected an object in every event"),
        (lambda _data: [], "no event"),
        (lambda data: [data[0], '{"error": {"message": "decode failed"}}', *data[1:]], "found an error: decode failed"),
        (
            lambda data: [*data[:-2], '{"choices": [{"delta": {"tool_calls": [{}]}}]}', *data[-2:]],
            "expected no content",
        ),
        (lambda data: [edited(each, finish_reason={"a": 1}) for each in data], "expected one finish_reason, found"),
        (lambda data: [edited(each, finish_reason="error") for each in data], "expected finish_reason stop or length"),
        (lambda data: [data[0], *data[-3:]], "expected text, found none in 4 events"),
    ],
)
def test_a_stream_out_of_order_fails(edit: Any, fault: str) -> None:
    assert fault in judge_stream(streamed("stream", edit)).evidence


@pytest.mark.parametrize("index", [None, [1], {}, "0"])
def test_odd_pieces_of_a_call_are_put_together_all_the_same(index: Any) -> None:
    def odd(data: list[str]) -> list[str]:
        return [each.replace('"index":0,"id"', f'"index":{json.dumps(index)},"id"') for each in data]

    assert assemble(streamed("tool_streamed", odd)).calls[0]["function"]["name"] == "multiply"
    said = [each if each == "[DONE]" else json.dumps({**json.loads(each), "timings": "x"})
            for each in (data for _at, data in streamed("stream").events)]  # fmt: skip
    assert judge_stream(streamed("stream", lambda _data: said)).verdict == "pass"


def test_a_stream_that_is_refused_fails() -> None:
    assert order_fault(Streamed(response("no_image"), ())).startswith("expected HTTP 200, found HTTP 500")
    broken = Streamed(Response(0, b"", 1, "no answer (TimeoutError: timed out)"), ((0.1, "{}"),))
    assert order_fault(broken) == "expected HTTP 200, found no answer (TimeoutError: timed out)"


def test_reasoning() -> None:
    verdict = judge_reasoning(reply("thinking"), reply("thinking_cut"), "reasoning_content")
    assert verdict.verdict == "pass"
    assert verdict.facts["thinking"].startswith("I add 3 and 4.")


@pytest.mark.parametrize(
    ("whole", "cut", "field", "evidence"),
    [
        ("thinking", "thinking_cut", "reasoning", "the thinking in reasoning, found it in reasoning_content"),
        ("vision_bare", "thinking_cut", "reasoning_content", "found it inside content"),
        ("thinking_cut", "thinking_cut", "reasoning_content", "thinking budget too small: no content after 8 tokens"),
        ("thinking", "thinking", "reasoning_content", "to count against max_tokens 8"),
        ("thinking", "no_key", "reasoning_content", "HTTP 401"),
        ("no_key", "thinking_cut", "reasoning_content", "HTTP 401"),
    ],
)
def test_reasoning_fails(whole: str, cut: str, field: str, evidence: str) -> None:
    verdict = judge_reasoning(reply(whole), reply(cut), field)
    assert verdict.verdict == "fail" and evidence in verdict.evidence


TIMES = ("multiply", {"a": 12, "b": 34})


@pytest.mark.parametrize("name", ["tool_auto", "tool_required"])
def test_tool_calls(name: str) -> None:
    assert call_fault(reply(name), *TIMES) == ""


def test_other_tool_answers() -> None:
    assert call_fault(assemble(streamed("tool_streamed")), *TIMES) == ""
    assert call_fault(reply("tool_two"), "add", {"a": 56, "b": 7}) == ""
    assert result_fault(reply("tool_after"), 408) == ""


def call(**changes: Any) -> Reply:
    """A call with these keys of its function replaced."""
    told = reply("tool_auto")
    function = {**told.calls[0]["function"], **changes}
    return replace(told, message={**told.message, "tool_calls": [{**told.calls[0], "function": function}]})


def nameless(name: Any) -> Reply:
    """The call with another id: without one its result cannot be handed back."""
    told = reply("tool_auto")
    return replace(told, message={**told.message, "tool_calls": [{**told.calls[0], "id": name}]})


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (reply("chat"), "expected one call of multiply, found 0 and content 'hello'"),
        (reply("tool_two"), "found add("),
        (reply("no_key"), "HTTP 401"),
        (replace(reply("tool_auto"), finish="stop"), "expected finish_reason tool_calls, found stop"),
        (
            call(arguments='{"a": 12, "b": 35}'),
            'expected multiply({"a": 12, "b": 34}), found multiply({"a": 12, "b": 35})',
        ),
        (call(arguments='{"a": "12", "b": "34"}'), "found multiply("),
        (call(arguments='{"a": 12'), "expected arguments in JSON"),
        (call(arguments=None), "expected arguments in JSON"),
        (call(arguments=""), "expected arguments in JSON"),
        (call(arguments="[" * 100_000), "expected arguments in JSON"),
        (nameless(None), "expected a call with an id, found None"),
        (nameless(""), "expected a call with an id, found ''"),
    ],
)
def test_a_wrong_call_is_told(told: Reply, fault: str) -> None:
    assert fault in call_fault(told, *TIMES)


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (reply("tool_auto"), "found another call of"),
        (reply("chat"), "expected the result 408 in the answer, found 'hello'"),
        (replace(reply("chat"), content="It is 14080."), "expected the result 408 in the answer"),
        (replace(reply("chat"), content="It is 1.408."), "expected the result 408 in the answer"),
        (reply("no_key"), "HTTP 401"),
    ],
)
def test_an_answer_without_the_tools_result_is_told(told: Reply, fault: str) -> None:
    assert fault in result_fault(told, 408)


def test_vision() -> None:
    verdict = judge_vision(["red", "blue"], [reply("vision_red"), reply("vision_blue")], reply("vision_bare"))
    assert verdict.verdict == "pass" and verdict.facts["image_tokens"] > 0


@pytest.mark.parametrize(
    ("names", "bare", "evidence"),
    [
        (["vision_blue", "vision_red"], "vision_bare", "showed red, found 'blue'"),
        (["vision_red", "vision_red"], "vision_bare", "showed blue, found 'red'"),
        (["vision_red", "chat"], "vision_bare", "showed blue, found 'hello'"),
        (["vision_red", "no_image"], "vision_bare", "image input is not supported"),
        (["vision_red", "vision_blue"], "vision_red", "expected an image to cost prompt tokens, found 0"),
        (["thinking_cut", "vision_blue"], "vision_bare", "thinking budget too small for an image of red"),
    ],
)
def test_vision_fails(names: list[str], bare: str, evidence: str) -> None:
    verdict = judge_vision(["red", "blue"], [reply(name) for name in names], reply(bare))
    assert verdict.verdict == "fail" and evidence in verdict.evidence


def test_two_colours_in_one_answer_are_no_sight() -> None:
    told = replace(reply("vision_red"), content="It is red, or blue.")
    assert judge_vision(["red"], [told], reply("vision_bare")).verdict == "fail"
    assert judge_vision(["red"], [replace(told, content="**Red**.")], reply("vision_bare")).verdict == "pass"
    assert judge_vision(["red"], [replace(told, content="bored")], reply("vision_bare")).verdict == "fail"


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_more_than_one_colour_is_shown_however_few_the_slots(served: Served, slots: int) -> None:
    """A model that says red to everything names the first one by luck."""
    told = {**json.loads(KEPT["vision_red"]["body"]), "usage": {"prompt_tokens": 40, "completion_tokens": 1}}
    served.answer("/v1/chat/completions", told)
    env = {"ALIAS": "toy", "CTX_SIZE": str(1024 * slots), "PARALLEL": str(slots), "MODEL_FILE": "/m"}
    verdict = probe_vision(Target(Api("127.0.0.1", served.port), declare({"env": env})))
    assert verdict.verdict == "fail" and verdict.evidence == "showed blue, found 'red'"


@pytest.mark.parametrize("count", [None, "40", True])
def test_an_image_without_a_count_of_its_tokens_is_no_sight(count: Any) -> None:
    told = replace(reply("vision_red"), usage={"prompt_tokens": count})
    verdict = judge_vision(["red"], [told], reply("vision_bare"))
    assert verdict.evidence == "expected prompt_tokens in usage, by which an image's cost is told"
    assert judge_vision(["red"], [reply("vision_red")], told).verdict == "fail"


@pytest.mark.parametrize("colour", COLOURS)
def test_png_is_one(colour: str) -> None:
    """Read as the standard has it: signature, chunks with their sums, header, rows."""
    data = png(COLOURS[colour])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        kind, inner = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size)[0] == zlib.crc32(kind + inner)
        chunks[kind] = inner
        place += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (PIXELS, PIXELS, 8, 2, 0, 0, 0)
    rows = zlib.decompress(chunks[b"IDAT"])
    assert rows == (b"\0" + bytes(COLOURS[colour]) * PIXELS) * PIXELS
    assert PIXELS >= 256


def test_context() -> None:
    assert judge_context(reply("over_the_window"), 2048).verdict == "pass"


@pytest.mark.parametrize(
    ("name", "window", "evidence"),
    [
        ("over_the_window", 4096, "expected HTTP 400 that names 4096 tokens, found HTTP 400 request (4616 tokens)"),
        ("over_the_window", 204, "expected HTTP 400 that names 204 tokens"),
        ("chat", 2048, "found an answer to 15 of them"),
        ("no_key", 2048, "found HTTP 401"),
    ],
)
def test_context_fails(name: str, window: int, evidence: str) -> None:
    verdict = judge_context(reply(name), window)
    assert verdict.verdict == "fail" and evidence in verdict.evidence


def test_cache() -> None:
    verdict = judge_cache(reply("cache_first"), reply("cache_second"))
    assert (verdict.verdict, verdict.facts["cached_tokens"]) == ("pass", 199)
    assert judge_cache(reply("cache_second"), reply("cache_first")).verdict == "fail"
    assert "HTTP 401" in judge_cache(reply("cache_first"), reply("no_key")).evidence
    for count, cached in ((0, 0), (-2, -1), (20, 199)):
        usage = {"prompt_tokens": count, "prompt_tokens_details": {"cached_tokens": cached}}
        assert judge_cache(replace(reply("cache_second"), usage=usage)).verdict == "fail"
    untold = replace(reply("cache_second"), usage={"prompt_tokens": 200})
    assert "found None cached_tokens" in judge_cache(reply("cache_first"), untold).evidence


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),
        ([(0, 2), (1, 3)], 2),
        ([(0, 3), (0, 3), (3.1, 5)], 2),
        ([(0, 9), (1, 2), (3, 4), (1.5, 3.5)], 3),
    ],
)
def test_most_at_once(spans: Sequence[tuple[float, float]], most: int) -> None:
    assert most_at_once(spans) == most


def flow(start: float, end: float, status: int = 200, events: int = 100) -> Streamed:
    step = (end - start) / events
    data = [*["{}"] * (events - 1), "[DONE]"]
    return Streamed(
        Response(status, b"busy", end), tuple((start + number * step, each) for number, each in enumerate(data))
    )


def with_last(streamed: Streamed, data: str) -> Streamed:
    return replace(streamed, events=(*streamed.events[:-1], (streamed.events[-1][0], data)))


@pytest.mark.parametrize(
    ("streams", "evidence"),
    [
        ([flow(0, 4), flow(0.1, 4.1), flow(4.1, 6)], ""),
        ([flow(0, 4), flow(4, 8), flow(8, 12)], "expected 2 answers to flow at once when 3 are asked for, found 1"),
        ([flow(0, 4), flow(0, 4), flow(4, 5, 503)], "expected 3 answers, found HTTP 503 busy for one of them"),
        ([flow(0, 4), flow(0, 4), flow(4, 5, events=2)], "found 2 events for one of them"),
        (
            [flow(0, 4), flow(0, 4), with_last(flow(4, 5), '{"error": {"message": "no memory"}}')],
            'expected 3 whole answers, found one that ends in \'{"error": {"message": "no memory',
        ),
    ],
)
def test_slots(streams: list[Streamed], evidence: str) -> None:
    verdict = judge_slots(streams, body("slots_before"), body("slots_after"), 2)
    assert verdict.verdict == ("fail" if evidence else "pass")
    assert evidence in verdict.evidence


def test_answers_that_are_read_at_once_do_not_tell_of_more_slots_but_the_servers_list_does() -> None:
    """A host at load 15 made a red of this, and gave up a sound deploy."""
    streams = [flow(0, 4), flow(0.1, 4), flow(0.2, 4)]
    before, after = body("slots_before"), body("slots_after")
    verdict = judge_slots(streams, before, after, 2)
    assert verdict.ok and verdict.evidence == "2 at once, one more came"
    after.append({**after[0], "id": 2})
    assert judge_slots(streams, before, after, 2).evidence == "expected 2 slots, found 3"


@pytest.mark.parametrize("second", [0.1, 4])
def test_the_list_tells_of_too_few_slots_however_the_answers_were_read(second: float) -> None:
    streams = [flow(0, 4), flow(second, second + 4), flow(9, 12)]
    assert judge_slots(streams, body("slots_before"), body("slots_after")[:1], 2).evidence == (
        "expected 2 slots, found 1"
    )


def test_a_slot_that_did_nothing_is_told() -> None:
    streams = [flow(0, 4), flow(0.1, 4.1), flow(4.1, 6)]
    before, after = body("slots_before"), body("slots_after")
    after[1]["id_task"] = before[1]["id_task"]
    assert judge_slots(streams, before, after, 2).evidence == "expected 2 slots at work, found slot 1 did nothing"
    assert judge_slots(streams, None, None, 2).ok  # an engine without a list of its slots
    assert "slot 0, 1 did nothing" in judge_slots(streams, body("slots"), body("slots"), 2).evidence


@pytest.mark.parametrize("listed", [{"error": {"code": 501}}, ["a", None], "x", [{"id": [1], "id_task": {}}]])
def test_a_list_of_slots_that_is_none_is_told(listed: Any) -> None:
    verdict = judge_slots([flow(0, 4), flow(0.1, 4.1), flow(4.1, 6)], listed, listed, 2)
    assert verdict.verdict == "fail" and verdict.evidence.startswith("expected 2 slots, found ")


def counters(name: str) -> tuple[float, float]:
    told = series(KEPT[name]["body"])
    drafted, accepted = (told[each] for each in LLAMA_SERVER.draft_counters)
    return drafted, accepted


SLOTS = {"slot 0": [reply("draft_slot_0")], "slot 1": [reply("draft_slot_1")]}


def test_drafting() -> None:
    verdict = judge_drafts("drafting", SLOTS, counters("draft_before"), counters("draft_after"), 0.5, True)
    assert verdict.verdict == "pass"
    assert set(verdict.facts["shares"]) == {"slot 0", "slot 1", "/metrics"}
    rows = verdict.facts["shares"]
    assert rows["/metrics"]["drafted"] == rows["slot 0"]["drafted"] + rows["slot 1"]["drafted"]


@pytest.mark.parametrize(
    ("groups", "before", "after", "floor", "by_timings", "evidence"),
    [
        (
            SLOTS,
            "draft_before",
            "draft_after",
            0.99,
            True,
            "slot 0: expected 99% of the drafted tokens accepted, found 96%",
        ),
        (SLOTS, "draft_before", "draft_before", 0.5, True, "/metrics: expected drafted tokens, found none"),
        ({**SLOTS, "slot 2": [reply("echo_first")]}, "", "", 0.5, True, "slot 2: expected drafted tokens, found none"),
        ({"slot 0": [reply("no_key")]}, "", "", 0.5, True, "HTTP 401"),
        (SLOTS, "", "", 0.5, False, "neither timings nor /metrics tell"),
    ],
)
def test_drafting_fails(groups: Any, before: str, after: str, floor: float, by_timings: bool, evidence: str) -> None:
    counted = [counters(name) if name else None for name in (before, after)]
    verdict = judge_drafts("drafting", groups, counted[0], counted[1], floor, by_timings)
    assert verdict.verdict == "fail" and evidence in verdict.evidence


def test_odd_counts_of_drafts_are_none() -> None:
    told = replace(reply("draft_slot_0"), timings={"draft_n": "many", "draft_n_accepted": [1]})
    assert judge_drafts("drafting", {"slot 0": [told]}, None, None, 0.5, True).evidence.endswith("found none")
    nan = (float("nan"), 0.0)
    assert judge_drafts("drafting", SLOTS, nan, (9.0, 9.0), 0.5, True).evidence.startswith("/metrics: expected drafted")
    assert judge_drafts("drafting", SLOTS, (0.0, *nan[:1]), (9.0, 9.0), 0.5, True).verdict == "fail"


def test_declared_metrics_have_to_count_drafts() -> None:
    """Without these counters the alert on dead drafting would never cease."""
    assert judge_drafts("drafting", SLOTS, None, None, 0.5, True).ok
    verdict = judge_drafts("drafting", SLOTS, None, None, 0.5, True, metrics=True)
    assert verdict.evidence == "/metrics: expected counters of drafted and accepted tokens, found none"


def test_echo_is_drafted_and_new_text_is_not() -> None:
    echo = {"echo": [reply("echo_again"), reply("echo_repeat")]}
    assert judge_drafts("ngram", echo, None, None, 0.5, True).verdict == "pass"
    assert judge_drafts("ngram", {"echo": [reply("echo_first")]}, None, None, 0.5, True).verdict == "fail"


def test_adapter() -> None:
    listed = body("adapters")
    assert judge_loaded(listed, "/models/toy-lora-yes.gguf", 1) == ""
    assert judge_loaded(listed, "/models/other.gguf", 1).startswith("expected /models/other.gguf to be loaded, found")
    assert judge_loaded(listed, "/models/toy-lora-yes.gguf", 0) == "expected scale 0, found 1.0"
    assert judge_loaded([], "/l", 1) == "expected /l to be loaded, found no adapter"
    verdict = judge_effect(reply("adapter_on"), reply("adapter_off"), "yes", "no")
    assert (verdict.verdict, verdict.evidence) == ("pass", "'yes' as served, 'no' at scale 0")


@pytest.mark.parametrize(
    ("served", "bare", "without", "evidence"),
    [
        ("adapter_off", "adapter_off", "no", "as served: expected 'yes' in the answer, found 'no'"),
        ("adapter_on", "adapter_on", "no", "at scale 0: expected 'no' in the answer, found 'yes'"),
        ("adapter_on", "adapter_on", "", "at scale 0: expected no 'yes' in the answer, found 'yes'"),
        ("adapter_on", "chat", "no", "at scale 0: expected 'no' in the answer, found 'hello'"),
        ("adapter_on", "no_key", "no", "HTTP 401"),
    ],
)
def test_adapter_fails(served: str, bare: str, without: str, evidence: str) -> None:
    verdict = judge_effect(reply(served), reply(bare), "yes", without)
    assert verdict.verdict == "fail" and evidence in verdict.evidence


PROPS_ENV = {"MODEL_FILE": "/models/toy.gguf", "ALIAS": "toy", "TEMP": "0.8", "TOP_P": "0.95", "TOP_K": "40"}


def test_props() -> None:
    assert judge_props(body("props"), body("slots"), PROPS_ENV, 2, 2048, True) == []
    assert judge_props(body("props"), None, {**PROPS_ENV, "TEMP": ""}, 2, 2048, True) == []


@pytest.mark.parametrize(
    ("env", "slots", "window", "vision", "problem"),
    [
        (
            {"MODEL_FILE": "/models/other.gguf"},
            2,
            2048,
            True,
            "model_path: expected /models/other.gguf, found /models/toy",
        ),
        ({"ALIAS": "other"}, 2, 2048, True, "model_alias: expected other, found toy"),
        ({"TEMP": "0.7"}, 2, 2048, True, "temperature: expected 0.7 by TEMP, found 0.8"),
        ({"PRESENCE_PENALTY": "1.0"}, 2, 2048, True, "presence_penalty: expected 1.0 by PRESENCE_PENALTY, found 0.0"),
        ({}, 3, 2048, True, "total_slots: expected 3, found 2"),
        ({}, 2, 4096, True, "n_ctx: expected 4096, found 2048"),
        ({}, 2, 2048, False, "modalities.vision: expected False, found True"),
    ],
)
def test_props_fail(env: dict[str, str], slots: int, window: int, vision: bool, problem: str) -> None:
    problems = judge_props(body("props"), body("slots"), {**PROPS_ENV, **env}, slots, window, vision)
    assert any(problem in each for each in problems), problems


@pytest.mark.parametrize(
    ("client", "rung", "window", "sees", "problems"),
    [
        ({}, None, 2048, False, []),
        ({"context_window": 2048, "input": ["text", "image"]}, None, 2048, True, []),
        ({"context_window": 1024, "input": ["text", "image"]}, None, 2048, None, []),
        ({"context_window": 4096}, None, 2048, True, ["clients are told 4096 tokens, and a conversation holds 2048"]),
        ({"context_window": 4096, "rungs": {"half": 2048}}, "half", 2048, True, []),
        ({"context_window": 2048, "rungs": {"big": 4096}}, "big", 2048, True, ["clients are told 4096 tokens"]),
        ({"input": ["image"]}, None, 2048, False, ["clients are told that images go in, and none do"]),
    ],
)
def test_clients_are_told_no_more_than_there_is(
    client: dict[str, Any], rung: str | None, window: int, sees: bool | None, problems: list[str]
) -> None:
    env = {**PROPS_ENV, "CTX_SIZE": "4096", "PARALLEL": "2"}
    found = judge_promise(declare({"engine": "llamacpp", "env": env, "client": client, "rung": rung}), window, sees)
    assert len(found) == len(problems) and all(map(str.startswith, found, problems)), found


@pytest.mark.parametrize(("promised", "verdict"), [(2048, "pass"), (4096, "fail")])
def test_props_holds_the_promise_against_the_engine(served: Served, promised: int, verdict: str) -> None:
    env = {**PROPS_ENV, "CTX_SIZE": "4096", "PARALLEL": "2", "MMPROJ_FILE": "/models/toy-mmproj.gguf"}
    declared = declare({"engine": "llamacpp", "env": env, "client": {"context_window": promised, "input": ["image"]}})
    served.answer("/props", body("props"))
    served.answer("/slots", body("slots"))
    told = probe_props(Target(Api("127.0.0.1", served.port), declared))
    assert told.verdict == verdict and ("4096 tokens" in told.evidence) is (verdict == "fail"), told


@pytest.mark.parametrize(("status", "verdict"), [(501, "pass"), (500, "fail"), (404, "fail")])
def test_a_list_of_slots_may_be_off_and_nothing_else(served: Served, status: int, verdict: str) -> None:
    env = {**PROPS_ENV, "CTX_SIZE": "4096", "PARALLEL": "2", "MMPROJ_FILE": "/models/toy-mmproj.gguf"}
    served.answer("/props", body("props"))
    served.answers["/slots"] = (status, b"not now")
    told = probe_props(Target(Api("127.0.0.1", served.port), declare({"engine": "llamacpp", "env": env})))
    assert told.verdict == verdict and (
        verdict == "pass" or f"/slots: expected HTTP 200, found HTTP {status}" in told.evidence
    )


def test_series() -> None:
    told = series(KEPT["metrics"]["body"])
    assert set(LLAMA_SERVER.families) <= set(told) and len(told) >= 15
    text = 'a 1\n# HELP a b 9\nb{x="1"} 2\nb{x="2"} 3.5\nc NaN\nd x\ne{} 1e3 1700000000\n'
    told = series(text)
    assert {key: told[key] for key in ("a", "b", "e")} == {"a": 1.0, "b": 5.5, "e": 1000.0}
    assert "d" not in told and "c" in told


@pytest.mark.parametrize("look", [look_drafting, look_ngram])
def test_an_undeclared_drafter_is_found_without_a_token(served: Served, look: Any) -> None:
    declared = declare({"engine": "llamacpp", "env": {**PROPS_ENV, "CTX_SIZE": "2048", "PARALLEL": "1"}})
    target = Target(Api("127.0.0.1", served.port), declared)
    served.answer("/slots", body("slots"))
    assert (look(target).verdict, look(target).evidence) == ("not-declared", "found: the slots speculate")
    served.answer("/slots", [{**slot, "speculative": False} for slot in body("slots")])
    assert look(target).evidence == "absent: no slot speculates"
    assert {method for method, _path, _headers, _body in served.seen} == {"GET"}
    assert (
        "declared ngram"
        in look(replace(target, declared=replace(declared, capabilities=frozenset({"ngram"})))).evidence
    )
