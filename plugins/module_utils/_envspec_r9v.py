# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Env keys of an R9V endpoint (the radiance-vLLM fork): what its own launcher reads over the qualified state file.

The state file carries the tuned shape, so most keys are absent from an env file, and an absent key is the state's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._envkey import Key

__all__ = ["KEYS", "derive", "rules", "shape"]

_BDF = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"

KEYS: tuple[Key, ...] = (
    Key("R9V_CHECKOUT", "path", "The fork's checkout, whose scripts/launch.sh is run", required=True, form="program",
        note="from the runtime; no line of the inventory"),
    Key("R9V_STATE_FILE", "path", "The qualified setup.json to serve from", required=True, form="r9v",
        note="a rollback to another payload flips this line"),
    Key("R9V_HOST_BIND", "text", "Address to publish on", pattern=r"[0-9A-Fa-f.:]+", required=True, form="r9v"),
    Key("R9V_HOST_PORT", "int", "TCP port to publish on", low=1, high=65535, required=True, form="r9v"),
    Key("R9V_SERVED_MODEL_NAME", "text", "The model's name on the wire", pattern=r"[A-Za-z0-9][A-Za-z0-9._/:-]*",
        required=True, form="r9v"),
    Key("R9V_CONTAINER_NAME", "text", "The container's name", pattern=r"[a-z0-9][a-z0-9._-]*", required=True,
        form="r9v"),
    Key("R9V_EXPECTED_GPU_BDFS", "list", "The cards' PCI addresses in rank order", pattern=_BDF, required=True,
        form="r9v"),
    Key("R9V_VISIBLE_DEVICES", "list", "The cards' HIP indices in rank order", pattern=r"[0-9]+", form="r9v"),
    Key("R9V_DEV_QWEN4_EXP_ADAPTER_PY", "path", "An adapter module mounted over the image's", form="r9v",
        empty="the image's own", note="a Q8_0 payload needs it: its inject shard is quantized"),
    Key("R9V_FULL_MUTABLE_CACHE", "bool", "The 160-slot full-mutable expert cache", form="r9v",
        empty="the overlay's own", note="the q8 state's 80-slot tiered cache needs 0"),
    Key("R9V_PLE_READY_TIMEOUT", "int", "Seconds that the PLE registration may take", low=1, form="r9v",
        note="the engine's own 600 is too short after page cache churn"),
    Key("R9V_ENABLE_PREFIX_CACHING", "bool", "Reuse the cache of shared prompt beginnings", form="r9v"),
    Key("R9V_CHAT_TEMPLATE_FILE", "path", "A chat template to use instead of the tokenizer's", form="r9v",
        empty="the tokenizer's own"),
    Key("R9V_CHAT_TEMPLATE_KWARGS", "json", "Default arguments of the chat template", form="r9v", empty="none"),
    Key("R9V_EXPERT_MANIFEST_PATH", "path", "A fixed expert placement", form="r9v", empty="the state's own"),
    Key("R9V_MTP_SPEC_TOKENS", "int", "Tokens that the MTP head drafts; the one drafter of this engine", low=0, high=8,
        form="r9v"),
    Key("R9V_MAX_MODEL_LEN", "int", "Tokens of context of one conversation", low=256, form="r9v"),
)  # fmt: skip


def derive(env: Mapping[str, str], launch: str) -> dict[str, str]:
    """``env`` with the checkout that ``launch`` (its scripts/launch.sh) lies in, and without its empty lines.

    An empty value would not survive the profile, which sets what is unset or empty; so it is no line at all.
    """
    return {
        **{key: value for key, value in env.items() if value},
        "R9V_CHECKOUT": os.path.dirname(os.path.dirname(launch)),
    }


def _cards(env: Mapping[str, str]) -> list[str]:
    bdfs = env.get("R9V_EXPECTED_GPU_BDFS", "").split(",")
    problems = []
    if len(set(bdfs)) != len(bdfs):
        problems.append(f"R9V_EXPECTED_GPU_BDFS {','.join(bdfs)} names a card twice. Name each once, in rank order.")
    indices = env.get("R9V_VISIBLE_DEVICES")
    if indices is not None and len(indices.split(",")) != len(bdfs):
        problems.append(
            f"R9V_VISIBLE_DEVICES {indices} and R9V_EXPECTED_GPU_BDFS {','.join(bdfs)} differ in number. "
            f"Give one index for each card."
        )
    return problems


def _template(env: Mapping[str, str]) -> list[str]:
    if env.get("R9V_CHAT_TEMPLATE_KWARGS") and not env.get("R9V_CHAT_TEMPLATE_FILE"):
        return [
            "R9V_CHAT_TEMPLATE_KWARGS is set without R9V_CHAT_TEMPLATE_FILE, the template that reads it. "
            "Set both, or neither."
        ]
    return []


def rules() -> Sequence[tuple[frozenset[str], Callable[[Mapping[str, str]], list[str]]]]:
    """(keys whose values must be sound first, the rule), as for llama.cpp."""
    return ((frozenset({"R9V_EXPECTED_GPU_BDFS"}), _cards), (frozenset(), _template))


def shape(env: Mapping[str, str]) -> dict[str, Any]:
    """What the env file itself says of the shape; None where the state file says it."""
    window = int(env["R9V_MAX_MODEL_LEN"]) if "R9V_MAX_MODEL_LEN" in env else None
    depth = env.get("R9V_MTP_SPEC_TOKENS")
    return {
        "ctx_size": window,
        "parallel": None,
        "ctx_per_slot": window,
        "cache_type_k": None,
        "cache_type_v": None,
        "spec_type": None if depth in (None, "0") else f"mtp{depth}",
        "state_file": env.get("R9V_STATE_FILE"),
    }
