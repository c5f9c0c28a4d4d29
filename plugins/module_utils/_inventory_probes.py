# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with an endpoint's ``probes`` in the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import compiled
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import (
    ACCEPTANCE,
    ADAPTER,
    CUSTOM,
    PROBES,
    check_keys,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_custom import expressions
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import DEFAULTS

__all__ = ["probe_problems"]


def _custom_problems(where: str, entry: Mapping[str, Any]) -> list[str]:
    problems = check_keys(where, entry, CUSTOM)
    if problems:
        return problems
    messages = entry["body"].get("messages")
    if not isinstance(messages, list) or not messages:
        problems.append(f"{where}.body.messages is {messages!r}; expected the messages of a chat request.")
    for expression in expressions(entry):
        try:
            compiled(expression, f"{where}.expect")
        except FleetError as exc:
            problems.append(exc.message)
    return problems


def probe_problems(where: str, given: Mapping[str, Any]) -> list[str]:
    """Every problem, each a sentence; expectations must be sound JMESPath."""
    problems = check_keys(where, given, PROBES)
    if problems:
        return problems
    for key, fields in (("acceptance", ACCEPTANCE), ("adapter", ADAPTER)):
        if key in given:
            problems += check_keys(f"{where}.{key}", given[key], fields)
    both = sorted(set(given.get("capabilities", ())) & set(given.get("without", ())))
    if both:
        problems.append(f"{where} has {', '.join(both)} in capabilities and in without. Take one of the two out.")
    small = given.get("max_tokens", DEFAULTS["max_tokens"])
    if given.get("larger_max_tokens", small) < small:
        problems.append(
            f"{where}.larger_max_tokens {given['larger_max_tokens']} is below max_tokens {small}. Raise it."
        )
    entries = given.get("custom", ())
    for number, entry in enumerate(entries):
        problems += _custom_problems(f"{where}.custom[{entry.get('name', number)}]", entry)
    names = [str(entry.get("name")) for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"{where}.custom names {', '.join(twice)} twice. Give each a name of its own.")
    return problems
