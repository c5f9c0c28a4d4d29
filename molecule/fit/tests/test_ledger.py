# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger against a real llama-server: the same KV, recurrent and sliding window sizes, to the log's last digit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_compare import require_agreement
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from boots import Boot, ledger_of, measured, predicted
from cases import CASES, Case
from tinymodels import MODELS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_caches_are_as_predicted(boots: dict[str, Boot], case: Case) -> None:
    boot = boots[case.id]
    assert boot.listening, boot.log[-3000:]
    assert measured(boot.read) == predicted(ledger_of(case), case.shape.drafter_type is not None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_all_else_agrees_too(boots: dict[str, Boot], case: Case) -> None:
    # Weights, adapter and projector as predicted; compute and output buffers within their bounds, which are not loose.
    ledger, boot = ledger_of(case), boots[case.id].read
    require_agreement(ledger, boot, devices={"CPU": None})
    for term in ("compute", "draft_compute"):
        taken = boot.mib(term) or 0.0
        assert getattr(ledger.host, term) / MIB <= 1.35 * (taken + 0.01)


def test_no_other_shape_would_do(boots: dict[str, Boot]) -> None:
    for case in CASES:
        drafts = case.shape.drafter_type is not None
        for change in ({"cache_type_k": "f32"}, {"ctx_size": case.shape.ctx_size + 4096}):
            other = ledger_of(replace(case, shape=replace(case.shape, **change)))
            assert measured(boots[case.id].read) != predicted(other, drafts), case.id
            with pytest.raises(FleetError, match="the boot took other memory than was predicted"):
                require_agreement(other, boots[case.id].read, devices={"CPU": None})


def test_what_was_tried() -> None:
    assert len({case.model for case in CASES}) >= 8
    assert len({case.id for case in CASES}) == len(CASES)
    assert {tiny.architecture for tiny in MODELS.values()} == {
        "llama", "mistral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "qwen35", "dflash",
    }  # fmt: skip
