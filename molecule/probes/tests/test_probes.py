# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every probe passes on a real llama-server, and is seen to fail when its cause is taken away."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import contextmanager

import pytest

WHOLE = """health models props metrics auth chat stream greedy cache context reasoning tools vision adapter drafting
slots custom:capital""".split()
SMOL = "/var/cache/llm-fleet/sources/SmolLM2-135M-Instruct.Q4_1.gguf"


def certificate(fleet):
    era = json.loads(fleet.run(f"cat /var/lib/llm-fleet/{fleet.endpoint}/current/era.json"))
    return {probe["probe"]: probe for probe in era["certificate"]["probes"]}


def argv(fleet):
    """The arguments of the running server."""
    return fleet.run(f"tr '\\0' '\\n' </proc/{fleet.start()['MainPID']}/cmdline").splitlines()


def without(args, flag, values=0):
    """``args`` without a flag and its values; the flag must be there."""
    place = args.index(flag)
    return args[:place] + args[place + 1 + values :]


def changed(args, flag, value):
    """``args`` with another value of a flag."""
    place = args.index(flag)
    return [*args[: place + 1], value, *args[place + 2 :]]


@contextmanager
def served_by(fleet, args):
    """Another server in the endpoint's place, on its port; afterwards its own again."""
    port = args[args.index("--port") + 1]
    healthy = (
        f"for i in $(seq 200); do curl -sf http://127.0.0.1:{port}/health >/dev/null && exit 0; sleep 0.1; done; exit 1"
    )
    fleet.run(f"systemctl stop {fleet.unit}")
    try:
        fleet.run(f"systemd-run --quiet --unit=instead -p User=llm {shlex.join(args)}; {healthy}")
        yield
    finally:
        fleet.run(
            f"systemctl stop instead; systemctl reset-failed {fleet.unit}; systemctl start {fleet.unit}; {healthy}"
        )


def test_the_deploy_proved_all_that_is_declared(whole, echo):
    passed = {name for name, probe in certificate(whole).items() if probe["verdict"] == "pass"}
    assert passed == set(WHOLE)
    passed = {name: probe for name, probe in certificate(echo).items() if probe["verdict"] == "pass"}
    assert "ngram" in passed and "slots" in passed
    assert passed["vision"]["evidence"] == "text only: refuses an image with HTTP 500"


def test_a_full_run_passes_again_and_in_time(whole, echo):
    started = time.monotonic()
    played = whole.play("playbooks/verify.yml", full=True)
    assert played.rc == 0, played.text
    assert time.monotonic() - started < 60
    told = whole.probe(full=True)
    assert [name for name in WHOLE if told[name]["verdict"] != "pass"] == []
    assert told["ngram"]["verdict"] == "not-declared"
    assert "molecule-key" not in json.dumps(told) + played.text


def test_what_is_not_declared_is_reported(echo):
    told = echo.probe(full=True)
    assert {name: told[name]["evidence"].partition(":")[0] for name in ("tools", "reasoning", "metrics", "auth")} == {
        "tools": "found",
        "reasoning": "found",
        "metrics": "absent",
        "auth": "absent",
    }


def test_an_unchanged_endpoint_is_asked_little(whole):
    told = whole.probe()
    assert list(told) == ["health", "chat"]
    assert sum(verdict["seconds"] for verdict in told.values()) < 5


def test_what_is_declared_anew_is_proven_on_the_running_server(whole):
    """A change of probes alone: nothing restarts; what does not hold is red and not kept."""
    endpoints, start = whole.variables()["llm_endpoints"], whole.start()
    custom = endpoints[whole.endpoint]["probes"]["custom"][0]
    for expect, rc in (("usage.completion_tokens < `0`", 2), ("usage.completion_tokens < `63`", 0)):
        custom["expect"][1] = expect
        played = whole.play("site.yml", llm_endpoints=endpoints)
        assert played.rc == rc and whole.start() == start, played.text
        assert ("probe custom:capital" if rc else "17 of 17 probes pass") in played.error, played.text
    assert played.recap["changed"] == 1
    assert whole.play("site.yml", llm_endpoints=endpoints).recap["changed"] == 0
    assert whole.play("site.yml").recap["changed"] == 1 and whole.start() == start
    assert whole.play("site.yml").recap["changed"] == 0


BREAKS = {
    "no --metrics": (lambda a: without(a, "--metrics"), {"metrics": "/metrics is off: HTTP 501"}),
    "no projector": (
        lambda a: without(a, "--mmproj", 1),
        {"vision": "image input is not supported", "props": "vision"},
    ),
    "a drafter and no spec type": (lambda a: without(a, "--spec-type", 1), {"drafting": "expected drafted tokens"}),
    "fewer slots": (
        lambda a: changed(changed(a, "--parallel", "1"), "--ctx-size", "2048"),
        {"slots": "expected 2 slots, found 1", "props": "total_slots: expected 2"},
    ),
    "more slots": (
        lambda a: changed(changed(a, "--parallel", "3"), "--ctx-size", "6144"),
        {"slots": "expected 2 slots, found 3", "props": "total_slots: expected 2, found 3"},
    ),
    "wrong alias": (lambda a: changed(a, "--alias", "other"), {"models": "expected toy-whole, found other"}),
    "a smaller window": (lambda a: changed(a, "--ctx-size", "2048"), {"context": "(1024 tokens)", "props": "n_ctx"}),
    "no cache": (lambda a: [*a, "--no-cache-prompt"], {"cache": "expected most of"}),
    "adapter at scale 0": (
        lambda a: changed(a, "--lora-scaled", a[a.index("--lora-scaled") + 1].rpartition(":")[0] + ":0"),
        {"adapter": "expected scale 1, found 0"},
    ),
    "no key": (lambda a: without(a, "--api-key-file", 1), {"auth": "expected HTTP 401 without a key, found HTTP 200"}),
    "another sampler": (lambda a: changed(a, "--temp", "0.3"), {"props": "temperature: expected 0.8 by TEMP"}),
    "another chat template": (lambda a: [*a, "--chat-template", "zephyr"], {"tools": "auto: expected one call"}),
    "thinking inside content": (
        lambda a: changed(a, "--reasoning-format", "none"),
        {"reasoning": "expected the thinking in reasoning_content, found it inside content"},
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_set_up_is_seen(whole, name):
    edit, expected = BREAKS[name]
    with served_by(whole, edit(argv(whole))):
        told = whole.probe(only=[*expected])
    assert {probe: verdict["verdict"] for probe, verdict in told.items()} == dict.fromkeys(told, "fail"), told
    for probe, words in expected.items():
        assert words in told[probe]["evidence"]


def test_another_model_under_the_same_alias_is_seen(whole):
    args = changed(argv(whole), "--model", SMOL)
    for flag, values in (("--mmproj", 1), ("--lora-scaled", 1), ("--spec-type", 1), ("--spec-draft-model", 1)):
        args = without(args, flag, values)
    with served_by(whole, args):
        told = whole.probe(only=["props", "tools", "reasoning"])
    assert [verdict["verdict"] for verdict in told.values()] == ["fail", "fail", "fail"]
    assert f"found {SMOL}" in told["props"]["evidence"]


def test_no_ngrams_are_seen(echo):
    with served_by(echo, without(argv(echo), "--spec-type", 1)):
        told = echo.probe(only=["ngram"])
    assert told["ngram"]["evidence"] == "echo: expected drafted tokens, found none"


def test_too_small_a_budget_is_named(whole):
    told = whole.probe(only=["chat"], probes={"max_tokens": 4, "larger_max_tokens": 8})
    assert "thinking budget too small: 8 tokens" in told["chat"]["evidence"]
    told = whole.probe(only=["chat"], probes={"max_tokens": 4, "larger_max_tokens": 256})
    assert told["chat"]["verdict"] == "pass"
    assert "thinking budget too small: 4 tokens" in told["chat"]["evidence"]


def test_an_image_of_another_colour_and_a_wrong_expectation_are_seen(whole):
    from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_vision import image_part

    text = {"type": "text", "text": "What colour is this image? Answer with one word."}

    def shown(colour, expect):
        body = {"messages": [{"role": "user", "content": [text, image_part(colour)]}]}
        return {"custom": [{"name": "colour", "body": body, "expect": expect}], "larger_max_tokens": 256}

    expect = "contains(choices[0].message.content, 'red')"
    told = whole.probe(only=["custom:colour"], probes=shown("red", expect))
    assert told["custom:colour"]["verdict"] == "pass"
    told = whole.probe(only=["custom:colour"], probes=shown("blue", expect))
    assert told["custom:colour"]["verdict"] == "fail"
    assert "the content was 'blue'" in told["custom:colour"]["evidence"]


def test_an_endpoint_that_is_gone_is_seen_and_asked_no_further(whole):
    whole.run(f"systemctl stop {whole.unit}")
    try:
        told = whole.probe(full=True)
        assert list(told) == ["health"] and told["health"]["verdict"] == "fail"
    finally:
        whole.run(f"systemctl reset-failed {whole.unit}; systemctl start {whole.unit}")


def test_a_deploy_whose_declaration_is_not_kept_goes_back(echo):
    """The text-only endpoint is declared to keep another answer, which no server will give."""
    era = echo.run(f"readlink /var/lib/llm-fleet/{echo.endpoint}/current")
    endpoints = echo.variables()["llm_endpoints"]
    own = {"name": "hopeless", "body": {"messages": [{"role": "user", "content": "Say the word hello."}]}}
    endpoints[echo.endpoint]["probes"] = {"custom": [{**own, "expect": "contains(choices[0].message.content, 'xyz')"}]}
    endpoints[echo.endpoint]["env"]["TEMP"] = 0.5
    played = echo.play("site.yml", llm_endpoints=endpoints, endpoint=echo.endpoint)
    assert played.rc != 0
    assert "probe custom:hopeless of toy-echo.service" in played.error and "serves again" in played.error
    assert echo.run(f"readlink /var/lib/llm-fleet/{echo.endpoint}/current") == era
