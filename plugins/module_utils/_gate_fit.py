# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate before an era is staged: its files belong together, and its boot leaves every floor free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, effective_env
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import answer, require_room, told_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import boot_of, host_card, kin
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_opinion import (
    engines_ledger,
    engines_opinion,
    hold_against,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import UnknownMemory
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import read_record

__all__ = ["Foretold", "gate_fit", "known_to"]


@dataclass(frozen=True)
class Foretold:
    """The memory that a boot will take: as the module's result has it, and as it can be held against the boot's log,
    which is by formulas alone (None where there are but measured figures)."""

    told: dict[str, Any]
    ledger: Ledger | None


def known_to(declared: Collection[int], runtime: Mapping[str, Any]) -> tuple[set[int], dict[str, list[int]]]:
    """What the runtime takes of a fork's own: ids of tensor types (those declared, and those that its source tree had),
    and versions of its formats."""
    record = read_record(str(runtime["path"])) if "path" in runtime else None
    can = (record or {}).get("can") or {}
    types = can.get("ggml_types") or {}
    return {*declared, *(types.values() if isinstance(types, Mapping) else ())}, can.get("adapter_versions") or {}


def gate_fit(
    declared: Declared,
    rung: str | None,
    leaving: int | None,
    gates: Gates,
    facts: Mapping[str, Any] | None = None,
    *,
    required: bool = True,
) -> Foretold:
    """The memory of the boot that ``declared`` (with ``rung``) asks for, through the gates kinship, fit and, where the
    blueprint's ``facts`` (env, argv, runtime) are given and the runtime can tell, second opinion.

    ``leaving`` is the process that ends before it, which gives the host's memory back. Of an architecture that is not
    known the engine's own count is taken for the ledger. Without ``required`` a boot that does not fit is only told.
    """
    entry = {
        "name": declared.name,
        "env": declared.env,
        "runtime": declared.runtime,
        "payload": declared.payload,
        "cards": declared.cards,
        "measured": declared.measured,
    }
    with gates.gate("kinship"):
        boot = boot_of(entry, effective_env(declared, rung), host=host_card(leaving))
        kin(boot, *known_to(declared.ggml_types, (facts or {}).get("runtime") or {}))
    opinion = None
    if facts is not None:
        with gates.gate("second opinion"):
            opinion = engines_opinion(facts)
    with gates.gate("fit"):
        try:
            told = answer(boot)
        except UnknownMemory:
            if opinion is None:
                raise
            told = told_of(engines_ledger(opinion, boot, facts or {}, declared.cards), [])
        if required:
            require_room(declared.name, told)
    try:
        ledger = replace(boot, measured=()).ledger()
    except UnknownMemory:
        return Foretold(told, None)
    if opinion is not None:
        with gates.gate("second opinion"):
            hold_against(opinion, boot, facts or {}, declared.cards)
    return Foretold(told, ledger)
