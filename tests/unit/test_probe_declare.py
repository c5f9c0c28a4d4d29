# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows from env and client, and what ``probes`` adds to it and takes from it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import PROBES
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import CAPABILITIES, DEFAULTS, declare

LLAMA = {"ALIAS": "one", "CTX_SIZE": "8192", "PARALLEL": "4", "MODEL_FILE": "/m.gguf"}
R9V = {"R9V_SERVED_MODEL_NAME": "two", "R9V_STATE_FILE": "/s.json"}
PLAIN = {"health", "models", "chat", "stream", "greedy", "props", "context", "slots", "cache"}
BARE = {"health", "models", "chat", "stream", "greedy", "metrics", "context"}


def of(env: dict[str, str], client: Any = None, probes: Any = None, engine: str = "llamacpp") -> Any:
    return declare({"engine": engine, "env": env, "client": client, "probes": probes})


@pytest.mark.parametrize(
    ("env", "client", "probes", "more"),
    [
        ({}, {}, {}, set()),
        ({"METRICS": "1"}, {}, {}, {"metrics"}),
        ({"METRICS": "0"}, {}, {}, set()),
        ({"API_KEY_FILE": "/k"}, {}, {}, {"auth"}),
        ({"API_KEY_FILE": ""}, {}, {}, set()),
        ({"MMPROJ_FILE": "/p"}, {}, {}, {"vision"}),
        ({"MMPROJ_FILE": ""}, {"input": ["text", "image"]}, {}, set()),  # a text-only rung
        ({"LORA_FILE": "/l"}, {}, {}, {"adapter"}),
        ({"LORA_FILE": "/l", "LORA_SCALE": "0.5"}, {}, {}, {"adapter"}),
        ({"LORA_FILE": "/l", "LORA_SCALE": "0"}, {}, {}, set()),
        ({"SPEC_TYPE": "draft-mtp"}, {}, {}, {"drafting"}),
        ({"SPEC_TYPE": "draft-dflash,ngram-mod"}, {}, {}, {"drafting", "ngram"}),
        ({"SPEC_TYPE": "none"}, {}, {}, set()),
        ({}, {"reasoning_field": "reasoning_content"}, {}, {"reasoning"}),
        ({"REASONING": "off"}, {"reasoning_field": "reasoning_content"}, {}, set()),
        ({}, {}, {"capabilities": ["tools", "reasoning"]}, {"tools", "reasoning"}),
        ({"METRICS": "1"}, {}, {"without": ["metrics"]}, set()),
    ],
)
def test_llamacpp(env: dict[str, str], client: Any, probes: Any, more: set[str]) -> None:
    assert of({**LLAMA, **env}, client, probes).capabilities == PLAIN | more


@pytest.mark.parametrize(
    ("env", "client", "more"),
    [
        ({}, {}, set()),
        ({"R9V_ENABLE_PREFIX_CACHING": "1"}, {}, {"cache"}),
        ({"R9V_MTP_SPEC_TOKENS": "4"}, {}, {"drafting"}),
        ({"R9V_MTP_SPEC_TOKENS": "0"}, {}, set()),
        ({}, {"input": ["text", "image"], "context_window": 131072}, {"vision", "props"}),
        ({}, {"reasoning_field": "reasoning"}, {"reasoning"}),
    ],
)
def test_r9v(env: dict[str, str], client: Any, more: set[str]) -> None:
    declared = of({**R9V, **env}, client, engine="r9v")
    assert declared.capabilities == BARE | more
    assert (declared.alias, declared.slots, declared.window) == ("two", None, client.get("context_window"))


def test_a_cache_that_needs_checkpoints_is_not_taken_for_granted() -> None:
    assert of({**LLAMA, "CTX_CHECKPOINTS": "0"}).capabilities == PLAIN - {"cache"}
    declared = of({**LLAMA, "CTX_CHECKPOINTS": "0"}, probes={"capabilities": ["cache"]})
    assert declared.capabilities == PLAIN


def test_measures() -> None:
    declared = of(LLAMA)
    assert (declared.window, declared.slots, declared.alias) == (2048, 4, "one")
    assert (declared.max_tokens, declared.larger_max_tokens, declared.timeout_s) == (64, 1024, 120)
    assert declared.reasoning_field == "reasoning_content"
    assert declared.floors == DEFAULTS["acceptance"]
    given = of(
        LLAMA,
        {"reasoning_field": "reasoning"},
        {"max_tokens": 2000, "timeout_s": 9, "acceptance": {"ngram": 0.9}, "adapter": {"prompt": "?", "marker": "y"}},
    )
    assert (given.max_tokens, given.larger_max_tokens, given.timeout_s) == (2000, 2000, 9)
    assert given.floors == {"drafting": 0.1, "ngram": 0.9}
    assert (given.reasoning_field, given.adapter) == ("reasoning", {"prompt": "?", "marker": "y"})
    assert of(R9V, engine="r9v").reasoning_field == "reasoning"


def test_an_era_of_before_declares_by_its_env_alone() -> None:
    assert declare({"env": LLAMA}).capabilities == PLAIN


def test_the_schema_takes_every_default() -> None:
    assert [key for key, value in DEFAULTS.items() if not PROBES[key].test(value)] == []
    assert PROBES["capabilities"].test(list(CAPABILITIES))
