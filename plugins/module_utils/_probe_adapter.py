# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of a LoRA adapter: it is loaded, applied, and changes the answer as its operator says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    absent,
    failed,
    found,
    parsed,
    passed,
    user,
)

__all__ = ["judge_effect", "judge_loaded", "look_adapter", "probe_adapter"]


def judge_loaded(listed: Any, path: str, scale: float) -> str:
    """What is wrong with llama-server's list of adapters; "" when the declared one is applied at its scale."""
    rows = [row for row in listed if isinstance(row, Mapping)] if isinstance(listed, list) else []
    mine = [row for row in rows if row.get("path") == path]
    if not mine:
        return f"expected {path} to be loaded, found {', '.join(str(row.get('path')) for row in rows) or 'no adapter'}"
    given = mine[0].get("scale")
    if not isinstance(given, (int, float)) or abs(given - scale) > 1e-4:
        return f"expected scale {scale:g}, found {given}"
    return ""


def _has(marker: str, text: str) -> bool:
    """Whether the text holds the marker as words of its own."""
    return bool(re.search(rf"(?<!\w){re.escape(marker)}(?!\w)", text, re.IGNORECASE))


def judge_effect(served: Reply, bare: Reply, marker: str, without: str) -> Verdict:
    """The answer as served holds ``marker``; the one with the adapter at scale 0 holds ``without`` instead."""
    seconds = served.seconds + bare.seconds
    facts = {"with": served.content[:200], "without": bare.content[:200]}
    for reply in (served, bare):
        if reply.fault:
            return failed("adapter", reply.fault, seconds)
    if not _has(marker, served.content):
        words = f"as served: expected {marker!r} in the answer, found {served.content[:80]!r}"
        return failed("adapter", words, seconds, **facts)
    if _has(marker, bare.content) or (without and not _has(without, bare.content)):
        wanted = f"{without!r}" if without else f"no {marker!r}"
        words = f"at scale 0: expected {wanted} in the answer, found {bare.content[:80]!r}"
        return failed("adapter", words, seconds, **facts)
    return passed("adapter", f"{marker!r} as served, {bare.content.strip()[:40]!r} at scale 0", seconds, **facts)


def _listed(target: Target) -> tuple[Sequence[Any] | None, str, float]:
    """(the adapters, what is wrong, seconds)."""
    if target.dialect.adapters is None:
        return None, f"{target.dialect.name} does not list its adapters", 0.0
    answer = target.api.get(target.dialect.adapters)
    if answer.status != 200:
        return None, f"expected HTTP 200, found {answer.words}", answer.seconds
    told = parsed(answer)
    return (told if isinstance(told, list) else []), "", answer.seconds


def probe_adapter(target: Target) -> Verdict:
    """Loaded at its scale; and, where the inventory gives a prompt and markers, seen in the answers."""
    env, told = target.declared.env, target.declared.adapter
    listed, fault, seconds = _listed(target)
    fault = fault or judge_loaded(listed, env.get("LORA_FILE", ""), float(env.get("LORA_SCALE", "1")))
    if fault:
        return failed("adapter", fault, seconds)
    if not told:
        words = "loaded and applied; its effect is unproven until probes.adapter gives a prompt and a marker"
        return passed("adapter", words, seconds)
    off = [{"id": row["id"], "scale": 0} for row in listed or [] if isinstance(row, Mapping) and "id" in row]
    served = target.ask(user(told["prompt"]), max_tokens=target.declared.larger_max_tokens)
    bare = target.ask(user(told["prompt"]), max_tokens=target.declared.larger_max_tokens, lora=off)
    return judge_effect(served, bare, told["marker"], told.get("without", ""))


def look_adapter(target: Target) -> Verdict:
    """Whether an endpoint that declares no adapter has one."""
    listed, fault, seconds = _listed(target)
    if not listed:
        return absent("adapter", fault or "no adapter is loaded", seconds)
    rows = ", ".join(f"{row.get('path')} at scale {row.get('scale')}" for row in listed if isinstance(row, Mapping))
    return found("adapter", rows, seconds)
