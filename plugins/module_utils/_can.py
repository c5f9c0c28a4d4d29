# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine can do, read from the tables of its source tree; a string in a binary proves nothing.

Read off llama.cpp build 11434: ``src/llama-arch.cpp``, ``ggml/include/ggml.h``, ``common/speculative.cpp``,
``common/arg.cpp``, and cmake's cache for the pairs that the card's attention kernels were compiled for.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["capabilities", "kv_pairs", "merged"]

_ARCH_TABLE = re.compile(r"LLM_ARCH_NAMES\s*=\s*\{(.*?)\n\};", re.DOTALL)
_ARCH_ROW = re.compile(r"\{\s*LLM_ARCH_\w+\s*,\s*\"([^\"]+)\"\s*\}")
_TYPE_TABLE = re.compile(r"enum ggml_type\s*\{(.*?)\n\s*\};", re.DOTALL)
_TYPE_ROW = re.compile(r"^\s*GGML_TYPE_(\w+)\s*=\s*(\d+)\s*,", re.MULTILINE)
_SPEC_TABLE = re.compile(r"common_speculative_type_from_name_map\s*=\s*\{(.*?)\n\};", re.DOTALL)
_SPEC_ROW = re.compile(r"\{\s*\"([\w-]+)\"\s*,")
_KV_TABLE = re.compile(r"kv_cache_types\s*=\s*\{(.*?)\n\};", re.DOTALL)
_KV_ROW = re.compile(r"GGML_TYPE_(\w+)")
_ADAPTER = re.compile(r"adapter_type\s*!=\s*\"(\w+)\"")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PSEUDO = ("(unknown)", "clip")


def _table(project: str, name: str, table: re.Pattern[str]) -> str:
    """The body of a table of the source file ``name`` without comments, or "" where this tree has none."""
    try:
        with open(os.path.join(project, name), encoding="utf-8", errors="replace") as handle:
            found = table.search(handle.read())
    except FileNotFoundError:
        return ""
    return _COMMENT.sub("", found[1]) if found else ""


def capabilities(project: str, cache: Mapping[str, str]) -> dict[str, Any]:
    """``{architectures, ggml_types, spec_types, adapters, kv_types, kv_pairs}`` of the engine in ``project``.

    ``ggml_types`` maps a name to its id. ``kv_pairs`` (K-V) are those that the card's kernels take, None where a
    processor alone takes any. What the tree does not tell is left out.
    """
    kv_types = [name.lower() for name in _KV_ROW.findall(_table(project, "common/arg.cpp", _KV_TABLE))]
    types = {
        name.lower(): int(number)
        for name, number in _TYPE_ROW.findall(_table(project, "ggml/include/ggml.h", _TYPE_TABLE))
        if name != "COUNT"
    }
    told: dict[str, Any] = {
        "architectures": [
            name
            for name in _ARCH_ROW.findall(_table(project, "src/llama-arch.cpp", _ARCH_TABLE))
            if name not in _PSEUDO
        ],
        "ggml_types": types,
        "spec_types": [
            name for name in _SPEC_ROW.findall(_table(project, "common/speculative.cpp", _SPEC_TABLE)) if name != "none"
        ],
        "adapters": _ADAPTER.findall(_whole(project, "src/llama-adapter.cpp")),
        "kv_types": kv_types,
    }
    told = {key: value for key, value in told.items() if value}
    if kv_types:
        told["kv_pairs"] = kv_pairs(cache, kv_types)
    return told


def _whole(project: str, name: str) -> str:
    path = os.path.join(project, name)
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as handle:
        return handle.read()


def kv_pairs(cache: Mapping[str, str], kv_types: list[str]) -> list[str] | None:
    """The pairs of K and V types that the card's attention kernels were compiled for: ``GGML_CUDA_FA_QUANTS``.

    None for a build without a card's backend, and for one whose tree has no such option.
    """
    carded = any(cache.get(option, "").upper() in ("ON", "TRUE", "1") for option in ("GGML_CUDA", "GGML_HIP"))
    declared = cache.get("GGML_CUDA_FA_QUANTS")
    if not carded or not declared:
        return None
    if declared.strip().lower() == "all":
        return ["-".join(pair) for pair in itertools.product(kv_types, repeat=2)]
    return [pair.strip().lower() for pair in declared.split(";") if pair.strip()]


def merged(told: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """What the tree tells, with what the inventory declares beside it, for a fork that came without its source."""
    out = dict(told)
    for key, value in declared.items():
        own = out.get(key)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            out[key] = {**own, **value}
        elif isinstance(own, list) and isinstance(value, (list, tuple)):
            out[key] = [*own, *(item for item in value if item not in own)]
        else:
            out[key] = value
    return out
