# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint declares that it can do: from its env lines, its client's promises and its ``probes``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._dialect import dialect_of

__all__ = ["CAPABILITIES", "DEFAULTS", "Declaration", "declare"]

# In the order in which they are probed: cheap ones first.
CAPABILITIES = (
    "health",
    "models",
    "props",
    "metrics",
    "auth",
    "chat",
    "stream",
    "greedy",
    "cache",
    "context",
    "reasoning",
    "tools",
    "vision",
    "adapter",
    "drafting",
    "ngram",
    "slots",
)
# Thinking counts against max_tokens; where 64 are spent on it, the larger budget is tried once.
DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 64,
    "larger_max_tokens": 1024,
    "timeout_s": 120,
    "acceptance": {"drafting": 0.1, "ngram": 0.5},
}


@dataclass(frozen=True)
class Declaration:
    """What must pass, and by which measure; ``window`` (tokens) and ``slots`` are None where nobody declares them.

    ``env`` is the endpoint's whole env; ``floors`` are least shares of drafted tokens that are accepted;
    ``adapter`` is ``{prompt, marker, without}``; ``custom`` are the inventory's own probes; ``promised`` the window in
    tokens that clients are told (of the era's rung, where that has its own), ``shows`` whether they may send images.
    """

    engine: str
    alias: str
    env: Mapping[str, str]
    capabilities: frozenset[str]
    window: int | None
    slots: int | None
    max_tokens: int
    larger_max_tokens: int
    timeout_s: float
    reasoning_field: str
    floors: Mapping[str, float]
    adapter: Mapping[str, str] = field(default_factory=dict)
    custom: Sequence[Mapping[str, Any]] = ()
    promised: int | None = None
    shows: bool = False


def _of_llamacpp(env: Mapping[str, str], client: Mapping[str, Any]) -> set[str]:
    spec = env.get("SPEC_TYPE", "none").split(",")
    found = {"props", "context", "slots"}
    if env.get("CTX_CHECKPOINTS") != "0":  # a model with recurrent layers reuses a prompt by its checkpoints alone
        found.add("cache")
    for capability, holds in {
        "metrics": env.get("METRICS") == "1",
        "auth": bool(env.get("API_KEY_FILE")),
        "vision": bool(env.get("MMPROJ_FILE")),
        "adapter": bool(env.get("LORA_FILE")) and float(env.get("LORA_SCALE", "1")) != 0,
        "drafting": any(name.startswith("draft-") for name in spec),
        "ngram": any(name.startswith("ngram-") for name in spec),
        "reasoning": "reasoning_field" in client and env.get("REASONING") != "off",
    }.items():
        if holds:
            found.add(capability)
    return found


def _of_r9v(env: Mapping[str, str], client: Mapping[str, Any]) -> set[str]:
    found = {"metrics", "context"}
    for capability, holds in {
        "props": "R9V_MAX_MODEL_LEN" in env or "context_window" in client,
        "cache": env.get("R9V_ENABLE_PREFIX_CACHING") == "1",
        "drafting": env.get("R9V_MTP_SPEC_TOKENS", "0") != "0",
        "vision": "image" in client.get("input", ()),
        "reasoning": "reasoning_field" in client,
    }.items():
        if holds:
            found.add(capability)
    return found


def declare(facts: Mapping[str, Any]) -> Declaration:
    """From an era's facts: ``engine``, ``env`` (as it was drawn) and, where declared, ``client`` and ``probes``.

    ``probes.capabilities`` come beside what follows from env and client, ``probes.without`` are taken out again.
    """
    engine, env = facts.get("engine", "llamacpp"), facts["env"]
    client, given = facts.get("client") or {}, {**DEFAULTS, **(facts.get("probes") or {})}
    found = {"health", "models", "chat", "stream", "greedy"}
    # Of an R9V endpoint the setup state says most, and the env file has but what lies over it.
    found |= _of_llamacpp(env, client) if engine == "llamacpp" else _of_r9v(facts.get("effective") or env, client)
    found = (found | set(given.get("capabilities") or ())) - set(given.get("without") or ())
    shape = _envspec.shape(engine, facts.get("effective") or env)
    window = shape["ctx_per_slot"] if shape["ctx_per_slot"] is not None else client.get("context_window")
    return Declaration(
        engine=engine,
        alias=_envspec.alias_of(env),
        env=env,
        capabilities=frozenset(found),
        window=None if window is None else int(window),
        slots=shape["parallel"],
        max_tokens=given["max_tokens"],
        larger_max_tokens=max(given["larger_max_tokens"], given["max_tokens"]),
        timeout_s=given["timeout_s"],
        reasoning_field=client.get("reasoning_field") or dialect_of(engine).reasoning_field,
        floors={**DEFAULTS["acceptance"], **(given["acceptance"] or {})},
        adapter=given.get("adapter") or {},
        custom=tuple(given.get("custom") or ()),
        promised=(client.get("rungs") or {}).get(facts.get("rung"), client.get("context_window")),
        shows="image" in (client.get("input") or ()),
    )
