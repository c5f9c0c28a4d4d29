# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint's processes hold of the host's memory and of the cards'."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _endpoint_memory
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import FoundCard, Holder
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_memory import held, memory
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

UNIT = "llm-chat.service"
CARDS = [
    FoundCard("0000:03:00.0", "amd", holders=(Holder(7, 1000.0, UNIT, "llama-server"), Holder(8, 50.0, "x", "y"))),
    FoundCard("0000:04:00.0", "amd", holders=(Holder(9, 500.5, "libpod.scope of dank", "python"),)),
]


@pytest.mark.parametrize(
    ("unit", "pids", "mib"),
    [(UNIT, (), 1000.0), (UNIT, (9,), 1500.5), ("other.service", (), 0.0), ("libpod.scope", (), 500.5)],
)
def test_memory_of_the_cards_is_that_of_its_unit_and_of_its_container(
    unit: str, pids: tuple[int, ...], mib: float
) -> None:
    assert held(CARDS, unit, pids) == mib


def test_a_driver_that_tells_no_size_makes_no_sum() -> None:
    assert held([FoundCard("a", "nvidia", holders=(Holder(7, None, UNIT, ""),))], UNIT, ()) is None


def test_the_hosts_memory_is_that_of_all_its_processes() -> None:
    alone = memory({}, UNIT, {os.getpid()})
    both = memory({}, UNIT, {os.getpid(), os.getppid()})
    assert both["memory_mib"] > alone["memory_mib"] > 1
    assert alone["cards_mib"] is alone["memory_fault"] is None


def test_cards_are_asked_for_where_the_endpoint_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"cards": [{"name": "r9700"}]}
    monkeypatch.setattr(_endpoint_memory, "list_cards", lambda: CARDS)
    assert memory(facts, UNIT, {9})["cards_mib"] == 1500.5

    def hangs() -> list[FoundCard]:
        raise FleetError("nvidia-smi did not end in 30 s")

    monkeypatch.setattr(_endpoint_memory, "list_cards", hangs)
    told = memory(facts, UNIT, {os.getpid()})
    assert told["memory_fault"].startswith("nvidia-smi did not end") and told["cards_mib"] is None
    assert told["memory_mib"] > 1
