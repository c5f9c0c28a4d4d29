# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of the inventory's own: a request body, what is expected of the answer, and a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find, unmet
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    CHAT,
    Target,
    Verdict,
    failed,
    parsed,
    passed,
)

__all__ = ["custom_name", "expressions", "probe_custom"]


def custom_name(entry: Mapping[str, Any]) -> str:
    """The probe's name among the others."""
    return f"custom:{entry['name']}"


def expressions(entry: Mapping[str, Any]) -> list[str]:
    """Its expectations; one may stand without a list."""
    given = entry["expect"]
    return [given] if isinstance(given, str) else list(given)


def probe_custom(target: Target, entry: Mapping[str, Any]) -> Verdict:
    """Send the body, with model, temperature 0 and budget where it names none; every expectation must hold."""
    name = custom_name(entry)
    budget = entry.get("max_tokens", target.declared.max_tokens)
    body = {"model": target.declared.alias, "temperature": 0, "max_tokens": budget, **entry["body"]}
    answer = target.api.post(CHAT, body, timeout_s=entry.get("timeout_s", target.declared.timeout_s))
    if answer.status != 200:
        return failed(name, f"expected HTTP 200, found {answer.words}", answer.seconds)
    told = parsed(answer)
    content = find("choices[0].message.content", told)
    facts = {
        "finish_reason": find("choices[0].finish_reason", told),
        "prompt_tokens": find("usage.prompt_tokens", told),
        "completion_tokens": find("usage.completion_tokens", told),
        "content": str(content)[:500] if content else None,
    }
    fault = unmet(expressions(entry), told, f"probes.custom {entry['name']}: expect")
    if fault:
        return failed(name, f"{fault}; the content was {str(content)[:80]!r}", answer.seconds, **facts)
    return passed(name, f"{len(expressions(entry))} expectations hold", answer.seconds, **facts)
