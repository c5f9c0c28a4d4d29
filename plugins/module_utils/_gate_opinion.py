# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine itself says of a boot's memory, asked on the very arguments: beside the ledger, or in its place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import device_names
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import DRIVER_NOTE
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger, Line, gather
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import UnknownMemory
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._second_opinion import (
    DRAFTER,
    HOST,
    PROGRAM,
    Opinion,
    ask_engine,
    comparable,
    program_beside,
    require_second_opinion,
)

__all__ = ["engines_ledger", "engines_opinion", "hold_against"]


def engines_opinion(facts: Mapping[str, Any]) -> Opinion | None:
    """The count of the runtime's own tool for a blueprint's arguments; None where the runtime has none."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **facts["env"]}
    return ask_engine(program_beside(facts["runtime"]["server_bin"]), facts["argv"], env=env)


def _devices(facts: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {name: str(card["name"]) for name, card in device_names(facts["env"], cards).items()}


def hold_against(opinion: Opinion, boot: Boot, facts: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> None:
    """A FleetError with both tables where ledger and engine differ by more than their bounds.

    The tool counts the target alone, and so does the ledger that it is held against.
    """
    alone = replace(boot, shape=comparable(boot.shape), drafter=None, mmproj=None, lora=None, measured=())
    require_second_opinion(alone.ledger(), opinion, _devices(facts, cards))


def engines_ledger(
    opinion: Opinion, boot: Boot, facts: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]
) -> Ledger:
    """The engine's count as a ledger, for a model whose memory is not known here: whole MiB, rounded up.

    UnknownMemory where the boot loads what the tool does not count.
    """
    # A proposer without a context of its own takes no buffers: the tool's logits are a whole batch's.
    beside = [what for what in opinion.left_out if what != DRAFTER or boot.shape.drafter_type]
    if beside:
        raise UnknownMemory(
            f"{PROGRAM} counts the model alone",
            expected="nothing beside a model whose memory is not known",
            found=f"{', '.join(beside)} beside it",
            remedy="Give the totals of a boot under `measured`, or take out what is beside the model",
        )
    names = _devices(facts, cards)
    lines = [
        Line(
            term,
            term,
            None if device.name == HOST else names.get(device.name, device.name),
            (mib + 1) * MIB,
            "bound",
            PROGRAM,
        )
        for device in opinion.devices
        for term, mib in (("weights", device.model_mib), ("kv", device.context_mib), ("compute", device.compute_mib))
    ]
    per_card, host = gather(lines, boot.cards, boot.host)
    room = boot.context()
    notes = (f"counted by {PROGRAM}, in whole MiB", *([DRIVER_NOTE] if boot.cards else []))
    return Ledger(per_card, host, tuple(lines), room.n_ctx, room.n_ctx_seq, (), notes)
