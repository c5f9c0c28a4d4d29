# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container of the R9V fork was given: its arguments and mounts, against the environment of ``launch.sh``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link

__all__ = ["argument_link", "mount_link", "option"]

_TEMPLATE = "/opt/r9v/share/chat-template.jinja"
# Where launch.sh mounts what a key names: there, or below it. Of the adapter only the tree that it lies in is known.
_PLACES = {
    "R9V_MODEL_DIR": "/models",
    "R9V_PLE_PATH": "/ple",
    "R9V_CACHE_DIR": "/cache",
    "R9V_EXPERT_MANIFEST_PATH": "/placement",
    "R9V_CHAT_TEMPLATE_FILE": _TEMPLATE,
    "R9V_DEV_QWEN4_EXP_ADAPTER_PY": "/opt/r9v",
}
# Over these nothing else may lie.
_CLOSED = ("/models", "/ple", "/placement", _TEMPLATE)
# What launch.sh hands on under another name; compared where the engine was told it.
_ALIKE = {
    "--max-num-seqs": "R9V_MAX_NUM_SEQS",
    "--max-num-batched-tokens": "R9V_MAX_NUM_BATCHED_TOKENS",
    "--kv-cache-memory-bytes": "R9V_KV_CACHE_MEMORY_BYTES",
    "--tensor-parallel-size": "R9V_TENSOR_PARALLEL_SIZE",
    "--cpu-offload-gb": "R9V_CPU_OFFLOAD_GB",
    "--tool-call-parser": "R9V_TOOL_CALL_PARSER",
    "--reasoning-parser": "R9V_REASONING_PARSER",
}
_CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of the last ``--name VALUE`` or ``--name=VALUE``, "" for a switch, None where it is not there."""
    value = None
    for number, word in enumerate(argv):
        if word == name:
            after = argv[number + 1] if number + 1 < len(argv) else "--"
            value = "" if after.startswith("--") else after
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _depth(argv: Sequence[str]) -> str:
    """How many tokens the one drafter drafts, by the engine's own arguments; without a drafter there are none."""
    told = option(argv, "--speculative-config")
    if told is None:
        return "0"
    try:
        config = json.loads(told)
    except ValueError:
        return "(no JSON)"
    return str(config.get("num_speculative_tokens", "(none)")) if isinstance(config, dict) else "(no object)"


def argument_link(effective: Mapping[str, str], argv: Sequence[str], again: str) -> Link:
    """What the engine was told, against the environment that ``launch.sh`` had; of what differs, where any does."""
    both: dict[str, tuple[Any, Any]] = {
        "--served-model-name": (effective["R9V_SERVED_MODEL_NAME"], option(argv, "--served-model-name")),
        "--chat-template": (
            _TEMPLATE if effective.get("R9V_CHAT_TEMPLATE_FILE") else None,
            option(argv, "--chat-template"),
        ),
        "--default-chat-template-kwargs": (
            effective.get("R9V_CHAT_TEMPLATE_KWARGS"),
            option(argv, "--default-chat-template-kwargs"),
        ),
    }
    if "R9V_ENABLE_PREFIX_CACHING" in effective:
        said = [word for word in argv if word in _CACHING]
        both[_CACHING[0]] = (effective["R9V_ENABLE_PREFIX_CACHING"] == "1", said[-1:] == [_CACHING[0]])
    if "R9V_MAX_MODEL_LEN" in effective:
        both["--max-model-len"] = (effective["R9V_MAX_MODEL_LEN"], option(argv, "--max-model-len"))
    if "R9V_MTP_SPEC_TOKENS" in effective:
        both["num_speculative_tokens"] = (effective["R9V_MTP_SPEC_TOKENS"], _depth(argv))
    if "R9V_TARGET_REL" in effective:
        model = f"/models/{effective['R9V_TARGET_REL']}"
        others = [word for word in argv if word.startswith("/models/")]
        both["model"] = (model, model if model in argv else next(iter(others), None))
    for name, key in _ALIKE.items():
        if key in effective and option(argv, name) is not None:
            both[name] = (effective[key], option(argv, name))
    differ = {name: pair for name, pair in both.items() if pair[0] != pair[1]} or both
    sides = [{name: pair[side] for name, pair in differ.items()} for side in (0, 1)]
    return Link("container arguments", sides[0], sides[1], again)


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def mount_link(effective: Mapping[str, str], mounts: Mapping[str, str], again: str) -> Link:
    """Every file and folder that a key names is mounted where it belongs, and nothing else is.

    Else: what ``launch.sh`` mounts by itself is from its own checkout, or from a developer's key (``R9V_DEV_*``,
    ``R9V_*_DIR``), and lies not over the payload. ``mounts`` is destination to source.
    """
    left = {os.path.normpath(to): os.path.realpath(source) for to, source in mounts.items()}
    wanted, found = [], []
    for key, place in _PLACES.items():
        if not effective.get(key):
            continue
        source = os.path.realpath(effective[key])
        wanted.append(f"{source} at {place}")
        there = sorted(
            (to for to, given in left.items() if given == source), key=lambda to: (not _below(to, place), to)
        )
        if there:
            left.pop(there[0])
        right = bool(there) and _below(there[0], place)
        found.append(wanted[-1] if right else f"{source} at {there[0]}" if there else f"{source}: not mounted")
    checkout = os.path.realpath(effective["R9V_CHECKOUT"])
    folders = [os.path.realpath(value) for key, value in effective.items() if _is_developers(key)]
    for to, source in sorted(left.items()):
        own = _below(source, checkout) or source in folders
        if not own or any(_below(to, place) for place in _CLOSED):
            found.append(f"{source} at {to}, and no key of the env says so")
    return Link("mounts", wanted, found, again)


def _is_developers(key: str) -> bool:
    return key.startswith("R9V_DEV_") or (key.endswith("_DIR") and key not in _PLACES)
