# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which probes run, in which order, and what comes of their verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _probe
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import (
    Probe,
    Verdict,
    declare,
    only,
    probes_of,
    require_probes,
    run,
    select,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Target
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_chat import CHAT_PROMPT
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import CAPABILITIES
from conftest import Served

CUSTOM = {"name": "capital", "body": {"messages": []}, "expect": "choices[0].message.content"}
DECLARED = declare(
    {
        "engine": "llamacpp",
        "env": {"ALIAS": "one", "CTX_SIZE": "2048", "PARALLEL": "2", "MODEL_FILE": "/m.gguf"},
        "probes": {"max_tokens": 8, "timeout_s": 5, "custom": [CUSTOM]},
    }
)


def names(probes: Any) -> list[str]:
    return [probe.name for probe in probes]


def test_every_capability_has_its_probe_and_the_inventorys_own_come_last() -> None:
    probes = probes_of(DECLARED)
    assert names(probes) == [*CAPABILITIES, "custom:capital"]
    assert {probe.name for probe in probes if probe.declared} == {*DECLARED.capabilities, "custom:capital"}


@pytest.mark.parametrize(
    ("expired", "chosen"),
    [
        ((), ["health", "chat"]),
        (("tools",), ["health", "chat", "tools"]),
        (("slots", "custom:capital", "gone"), ["health", "chat", "slots", "custom:capital"]),
        (None, [*CAPABILITIES, "custom:capital"]),
    ],
)
def test_what_lost_its_proof_runs_and_some_always(expired: Any, chosen: list[str]) -> None:
    assert names(select(probes_of(DECLARED), expired)) == chosen


def test_by_name() -> None:
    assert names(only(probes_of(DECLARED), ["tools", "models"])) == ["models", "tools"]
    with pytest.raises(FleetError, match=r"there is no probe tool; expected of: health, models.*custom:capital"):
        only(probes_of(DECLARED), ["tools", "tool"])


def probe(name: str, verdict: str, *, declared: bool = True, seen: list[str] | None = None) -> Probe:
    def tell(how: str, kind: str) -> Any:
        def ask(_target: Target) -> Verdict:
            if seen is not None:
                seen.append(f"{how} {name}")
            return Verdict(name, kind, "as told")

        return ask

    return Probe(name, tell("ask", verdict), tell("look", "not-declared"), declared)


def test_what_is_not_declared_is_looked_for_and_never_fails(served: Served) -> None:
    seen: list[str] = []
    api = Api("127.0.0.1", served.port)
    verdicts = run(api, DECLARED, [probe("a", "pass", seen=seen), probe("b", "fail", declared=False, seen=seen)])
    assert seen == ["ask a", "look b"]
    assert [(verdict.verdict, verdict.ok) for verdict in verdicts] == [("pass", True), ("not-declared", True)]
    require_probes(verdicts, "endpoint one")


@pytest.mark.parametrize(
    ("stop", "ran"), [(False, ["a", "b", "c"]), (True, ["a", "b"])], ids=["verify tells all", "a deploy stops"]
)
def test_a_failure(served: Served, stop: bool, ran: list[str]) -> None:
    probes = [probe("a", "pass"), probe("b", "fail"), probe("c", "fail")]
    said: list[str] = []
    verdicts = run(Api("127.0.0.1", served.port), DECLARED, probes, stop=stop, say=said.append)
    assert [verdict.probe for verdict in verdicts] == ran
    assert said == [f"probe: {name}" for name in ran]
    wrong = [name for name in ran if name != "a"]
    with pytest.raises(FleetError) as caught:
        require_probes(verdicts, "endpoint one")
    assert caught.value.what == f"probe{'s' if len(wrong) > 1 else ''} {', '.join(wrong)} of endpoint one"
    assert caught.value.found == ("as told" if stop else "b: as told; c: as told")
    assert caught.value.facts["gate"] == "probes"
    assert [told["probe"] for told in caught.value.facts["probes"]] == ran


def test_nothing_is_asked_of_an_endpoint_that_is_not_healthy(served: Served) -> None:
    served.answers["/health"] = (404, b"gone")
    verdicts = run(Api("127.0.0.1", served.port), DECLARED, probes_of(DECLARED))
    assert [(verdict.probe, verdict.verdict) for verdict in verdicts] == [("health", "fail")]
    assert {path for _method, path, _headers, _body in served.seen} == {"/health"}


def test_the_first_request_is_a_warm_up_and_no_measurement(served: Served) -> None:
    slow = [True]

    def answer(_headers: Any, _body: bytes) -> tuple[int, bytes]:
        rate = 2.6 if slow.pop() else 54.7
        slow.append(False)
        told = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
        return 200, json.dumps({**told, "timings": {"predicted_per_second": rate}}).encode()

    served.answer("/health", {})
    served.answers["/v1/chat/completions"] = answer
    verdicts = run(Api("127.0.0.1", served.port), DECLARED, select(probes_of(DECLARED), ()))
    assert [verdict.verdict for verdict in verdicts] == ["pass", "pass"]
    assert verdicts[1].facts["tokens_per_s"] == 54.7
    bodies = [json.loads(body) for method, _path, _headers, body in served.seen if method == "POST"]
    assert [body["max_tokens"] for body in bodies] == [1, 8]
    assert bodies[1] == {
        "model": "one",
        "messages": [{"role": "user", "content": CHAT_PROMPT}],
        "max_tokens": 8,
        "temperature": 0,
    }


def test_a_verdict_travels_as_a_dictionary() -> None:
    told = Verdict("chat", "pass", "answered", 0.5, {"content": "x"}).as_dict()
    assert told == {
        "probe": "chat",
        "verdict": "pass",
        "evidence": "answered",
        "seconds": 0.5,
        "facts": {"content": "x"},
    }
    json.dumps(told)


def test_no_probe_shows_the_key(served: Served) -> None:
    refusal = (401, b'{"error": {"message": "wrong key s3cret"}}')
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/chat/completions", "/lora-adapters"):
        served.answers[path] = refusal
    served.answer("/health", {})
    declared = replace(DECLARED, capabilities=frozenset(CAPABILITIES))
    verdicts = run(Api("127.0.0.1", served.port, "s3cret"), declared, probes_of(declared))
    assert [verdict.probe for verdict in verdicts] == [*CAPABILITIES, "custom:capital"]
    assert [verdict.probe for verdict in verdicts if verdict.ok] == ["health"]
    assert "s3cret" not in json.dumps([verdict.as_dict() for verdict in verdicts])


def test_garbage_is_a_failed_verdict_and_no_exception(served: Served) -> None:
    for body in (b"<html>", b"[]", b"null", b'{"choices": [1]}', b'{"data": 3}', b"\xff"):
        for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/chat/completions", "/lora-adapters"):
            served.answers[path] = (200, body)
        served.answer("/health", {})
        declared = replace(DECLARED, capabilities=frozenset(CAPABILITIES))
        told = {verdict.probe: verdict for verdict in run(Api("127.0.0.1", served.port), declared, probes_of(declared))}
        assert [name for name, verdict in told.items() if verdict.ok and name != "health"] == [], body
        looked = run(Api("127.0.0.1", served.port), replace(declared, capabilities=frozenset()), probes_of(declared))
        json.dumps([verdict.as_dict() for verdict in looked])


def test_the_registry_is_whole() -> None:
    assert tuple(_probe._ASK) == CAPABILITIES
    assert set(_probe._LOOK) < set(CAPABILITIES)
    assert set(_probe.ALWAYS) < set(CAPABILITIES)
