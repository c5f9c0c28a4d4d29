# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expectations: what holds, what does not, and what is no expression."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import compiled, find, unmet

ANSWER: Any = {"choices": [{"message": {"content": "Paris", "none": None}}], "usage": {"n": 0}}


@pytest.mark.parametrize(
    ("expressions", "told"),
    [
        ([], ""),
        (["contains(choices[0].message.content, 'Paris')"], ""),
        (["choices[0].message.content"], ""),
        (["usage.n"], ""),  # a number is there, be it 0
        (["usage.n == `0`", "choices"], ""),
        (["usage.n == `1`"], "expected usage.n == `1`, found False"),
        (["choices", "nothing"], "expected nothing, found None"),
        (["choices[1:]"], "expected choices[1:], found []"),
        (["choices[0].message.none"], "found None"),
        (["contains(nothing, 'Paris')"], "which cannot be asked of the answer"),
        (["length(usage.n)"], "which cannot be asked of the answer"),
        (["no_function(@)"], "which cannot be asked of the answer"),
    ],
)
def test_unmet(expressions: list[str], told: str) -> None:
    assert (unmet(expressions, ANSWER, "x") == "") if not told else (told in unmet(expressions, ANSWER, "x"))


@pytest.mark.parametrize("expression", ["a[", "", "a b", "contains(", "'"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(FleetError, match="probes x is no JMESPath expression; expected an expression such as"):
        compiled(expression, "probes x")


@pytest.mark.parametrize("answer", [None, 1, "x", [], {}, {"choices": None}, {"choices": [None]}])
def test_find_takes_any_answer(answer: Any) -> None:
    assert find("choices[0].message.content", answer) is None


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with pytest.raises(FleetError, match=r"jmespath is missing on .*python3-jmespath"):
        find("a", {})
