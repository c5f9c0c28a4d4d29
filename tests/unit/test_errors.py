# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wording of a refusal, and what of it reaches the result."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"what": "it broke"}, "it broke."),
        ({"what": "it broke."}, "it broke."),
        ({"what": "w", "expected": "e"}, "w; expected e."),
        ({"what": "w", "found": "f"}, "w; found f."),
        ({"what": "w", "expected": "e", "found": "f"}, "w; expected e; found f."),
        ({"what": "w", "remedy": "Mend it"}, "w. Mend it."),
        ({"what": "w", "remedy": "Mend it."}, "w. Mend it."),
        ({"what": "w", "expected": 0, "found": False}, "w; expected 0; found False."),
        ({"what": "w", "found": []}, "w; found []."),
    ],
)
def test_message(given: dict[str, Any], message: str) -> None:
    error = FleetError(given.pop("what"), **given)
    assert error.message == str(error) == message


def test_result_holds_the_sides_and_the_facts() -> None:
    result = FleetError("w", expected=1, found=False, remedy="r", gate="port", links=[]).as_result()
    assert result == {
        "msg": "w; expected 1; found False. r.",
        "what": "w",
        "expected": 1,
        "found": False,
        "remedy": "r",
        "gate": "port",
        "links": [],
    }


def test_unknown_sides_are_left_out() -> None:
    assert FleetError("w").as_result() == {"msg": "w.", "what": "w"}
