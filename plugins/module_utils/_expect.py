# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expectations on answers as JMESPath expressions: what is false, null or empty does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._libs import load

__all__ = ["compiled", "find", "unmet"]


def compiled(expression: str, where: str) -> Any:
    """The compiled expression; a FleetError that names ``where`` and shows what is wrong with it."""
    jmespath = load("jmespath")
    try:
        return jmespath.compile(expression)
    except (jmespath.exceptions.JMESPathError, TypeError) as exc:
        raise FleetError(
            f"{where} is no JMESPath expression",
            expected="an expression such as contains(choices[0].message.content, 'Paris')",
            found=f"{expression!r}: {' '.join(str(exc).split())}",
        ) from exc


def find(expression: str, answer: Any) -> Any:
    """What a sound expression finds in an answer; None where the answer is of another form."""
    jmespath = load("jmespath")
    try:
        return jmespath.search(expression, answer)
    except jmespath.exceptions.JMESPathTypeError:
        return None


def unmet(expressions: Sequence[str], answer: Any, where: str) -> str:
    """The first expectation that does not hold and what it gave, as a sentence; "" where all hold."""
    jmespath = load("jmespath")
    for expression in expressions:
        try:
            value = compiled(expression, where).search(answer)
        except jmespath.exceptions.JMESPathError as exc:  # the answer is of a form that the expression cannot judge
            return f"expected {expression}, which cannot be asked of the answer: {' '.join(str(exc).split())[:200]}"
        if value is None or value is False or value in ("", [], {}):
            return f"expected {expression}, found {value!r}"
    return ""
