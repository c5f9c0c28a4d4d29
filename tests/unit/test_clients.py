# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a harness is told: windows, longest answers, efforts, keys, and a file of which the rest is not ours."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._clients import effort_map, most_tokens, providers
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.plugin_utils._models_file import merged

CHAT: dict[str, Any] = {
    "engine": "llamacpp",
    "env": {"BIND_ADDR": "0.0.0.0", "LISTEN_PORT": 7771, "ALIAS": "frank-zealot", "CTX_SIZE": 602112, "PARALLEL": 3},
    "client": {
        "context_window": 200704,
        "max_tokens": 16384,
        "input": ["text", "image"],
        "reasoning_field": "reasoning_content",
        "reasoning_efforts": ["xhigh", "medium", "low"],
        "sampling": {"temperature": 1.0, "top_k": 20},
        "rungs": {"two": 100352},
    },
}
R9V: dict[str, Any] = {
    "engine": "r9v",
    "env": {"R9V_HOST_BIND": "0.0.0.0", "R9V_HOST_PORT": 7770, "R9V_SERVED_MODEL_NAME": "frank-primary"},
    "client": {"context_window": 131072, "max_tokens": 36864, "reasoning_field": "reasoning"},
}


def fleet(**endpoints: Any) -> dict[str, Any]:
    return {
        "box": {"address": "10.0.0.7", "endpoints": {name.replace("_", "-"): one for name, one in endpoints.items()}}
    }


def test_two_endpoints() -> None:
    told = providers(fleet(frank_zealot=CHAT, frank_primary=R9V, idle={**CHAT, "active": False}, bare={"env": {}}))
    assert list(told) == ["frank-zealot", "frank-primary"]
    assert told["frank-zealot"] == {
        "baseUrl": "http://10.0.0.7:7771/v1",
        "api": "openai-completions",
        "auth": "none",
        "models": [
            {
                "id": "frank-zealot",
                "name": "frank-zealot",
                "reasoning": True,
                "input": ["text", "image"],
                "contextWindow": 200704,
                "maxTokens": 16384,
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "compat": {
                    "supportsStore": False,
                    "supportsDeveloperRole": False,
                    "supportsReasoningEffort": True,
                    "maxTokensField": "max_tokens",
                    "reasoningContentField": "reasoning_content",
                    "reasoningEffortMap": {
                        "minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh",
                    },
                    "extraBody": {"temperature": 1.0, "top_k": 20},
                },
            }
        ],
    }  # fmt: skip
    (model,) = told["frank-primary"]["models"]
    assert (model["id"], model["input"], model["maxTokens"]) == ("frank-primary", ["text"], 36864)
    assert model["compat"]["reasoningContentField"] == "reasoning"
    assert model["compat"]["supportsReasoningEffort"] is False and "extraBody" not in model["compat"]


@pytest.mark.parametrize(
    "declared",
    [{"env": {**CHAT["env"], "API_KEY_FILE": "/etc/llm-fleet/key"}}, {"api_key_file": "/etc/llm-fleet/keys/zealot"}],
)
def test_an_endpoint_with_a_key(declared: dict[str, Any]) -> None:
    told = providers(fleet(frank_zealot={**CHAT, **declared}))
    one = told["frank-zealot"]
    assert (one["apiKey"], one["authHeader"], "auth" in one) == ("FRANK_ZEALOT_API_KEY", True, False)


def test_the_window_of_the_rung_that_it_is_pinned_to() -> None:
    told = providers(fleet(chat=CHAT), rungs={"chat": "two", "other": "x"})
    assert told["chat"]["models"][0]["contextWindow"] == 100352
    assert providers(fleet(chat=CHAT), rungs={"chat": "unknown"})["chat"]["models"][0]["contextWindow"] == 200704


def test_an_address_of_ip_version_6() -> None:
    told = providers({"box": {"address": "fd00::7", "endpoints": {"chat": CHAT}}})
    assert told["chat"]["baseUrl"] == "http://[fd00::7]:7771/v1"


@pytest.mark.parametrize(
    ("window", "given", "percent", "most"),
    [
        (131072, 36864, 70, 36864),  # 91,750 + 36,864 = 128,614
        (131072, None, 70, 131072 - 91750),
        (1000, 300, 70, 300),
        (1000, None, 85, 150),
    ],
)
def test_the_longest_answer(window: int, given: int | None, percent: int, most: int) -> None:
    client = {} if given is None else {"max_tokens": given}
    assert most_tokens("e", client, window, percent) == most


def test_an_answer_that_the_window_would_cut() -> None:
    with pytest.raises(
        FleetError, match=r"llm_endpoints\.chat\.client\.max_tokens leaves no room; expected at most 300: .*"
    ):
        most_tokens("llm_endpoints.chat", {"max_tokens": 301}, 1000, 70)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["low", "xhigh"], ["low", "low", "low", "xhigh", "xhigh"]),
        (["medium"], ["medium"] * 5),
        (["minimal", "low", "medium", "high", "xhigh"], ["minimal", "low", "medium", "high", "xhigh"]),
    ],
)
def test_efforts(known: list[str], found: list[str]) -> None:
    assert list(effort_map(known).values()) == found


@pytest.mark.parametrize("known", [[], ["low", "most"]])
def test_efforts_that_are_none(known: list[str]) -> None:
    with pytest.raises(FleetError, match="reasoning_efforts"):
        effort_map(known)


def test_what_cannot_be_reached_is_not_told() -> None:
    local = {**CHAT, "env": {**CHAT["env"], "BIND_ADDR": "127.0.0.1"}}
    with pytest.raises(FleetError, match="cannot be reached from another machine"):
        providers(fleet(chat=local))
    told = providers({"here": {"address": "127.0.0.1", "endpoints": {"chat": local}}})
    assert told["chat"]["baseUrl"] == "http://127.0.0.1:7771/v1"


def test_one_name_on_two_hosts() -> None:
    with pytest.raises(FleetError, match="endpoint chat is active on two hosts"):
        providers({**fleet(chat=CHAT), "other": {"address": "b", "endpoints": {"chat": CHAT}}})


# --- the file

MINE = """# my models
providers:
  # paid for
  elsewhere:
    baseUrl: "https://api.example.com/v1"   # do not touch
    apiKey: KEY
  chat:
    baseUrl: http://old:1/v1
other: [1, 2]
"""
TOLD = {"chat": {"baseUrl": "http://10.0.0.7:7771/v1", "models": [{"id": "a", "input": ["text"]}]}}


def test_a_new_file() -> None:
    text = merged("", TOLD)
    assert yaml.safe_load(text) == {"providers": TOLD}
    assert merged(text, TOLD) == text
    assert merged("", {}) == "providers: {}\n"


def test_the_rest_of_a_file_is_kept() -> None:
    text = merged(MINE, TOLD)
    for line in (
        "# my models",
        "  # paid for",
        '    baseUrl: "https://api.example.com/v1"   # do not touch',
        "other: [1, 2]",
    ):
        assert line in text.splitlines()
    assert yaml.safe_load(text)["providers"] == {"elsewhere": yaml.safe_load(MINE)["providers"]["elsewhere"], **TOLD}
    assert merged(text, TOLD) == text


def test_an_unchanged_file_is_left_to_the_byte() -> None:
    odd = "providers: {chat:   {baseUrl: 'x'}}   # mine\n"
    assert merged(odd, {"chat": {"baseUrl": "x"}}) == odd


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "providers: 3\n"])
def test_a_file_that_is_not_the_harnesss(text: str) -> None:
    with pytest.raises(FleetError, match=r"/home/x/models\.yml"):
        merged(text, TOLD, "/home/x/models.yml")
