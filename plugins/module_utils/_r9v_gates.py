# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold of an R9V era before anything is stopped, and of the cards once it serves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState, identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_ledger import require_floors
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import State, faults_of, in_use, read_state

__all__ = ["crowded_cards", "gate_setup", "headroom", "image_fault", "require_image"]

DOCTOR_MIB = 3072.0  # free on each card: what the fork's doctor asks before a start


def gate_setup(facts: Mapping[str, Any], gates: Gates, *, idle: bool) -> None:
    """Through the gates setup, image and free cards, for the era of these ``facts``; a FleetError at the first fault.

    ``idle``: nothing of ours runs on the cards, so that they must be free by now.
    """
    with gates.gate("setup"):
        state = read_state(facts["env"]["R9V_STATE_FILE"])
        faults = faults_of(state, facts["setup"]["ple_bytes"], facts["declared_files"])
        placement = facts["effective"].get("R9V_EXPERT_MANIFEST_PATH")
        if placement and not os.path.isfile(placement):
            faults.append(f"the placement {placement} is missing")
        if faults:
            raise FleetError(
                f"what setup state {state.path} names is not whole",
                expected="every file as setup verified it",
                found="; ".join(faults),
                remedy="Have the files back and run r9v setup again; nothing was stopped",
            )
        _require_alone(facts, state)
    with gates.gate("image"):
        require_image(facts["runtime"], facts["effective"]["R9V_IMAGE"], Podman(facts["user"]))
    with gates.gate("free cards"):
        cards = identified(facts["cards"])
        crowded = crowded_cards(cards, read_cards(cards)) if idle else []
        if crowded:
            raise FleetError(
                "the cards are not free",
                expected=f"{DOCTOR_MIB:,.0f} MiB free on each, as the fork's doctor asks",
                found="; ".join(crowded),
                remedy="Stop whoever holds them, by its unit or process id, then run again",
            )


def _require_alone(facts: Mapping[str, Any], state: State) -> None:
    """No scratch run works with the production state, and none of its containers with the same cache."""
    if in_use(state.path):
        raise FleetError(
            f"the folder of setup state {state.path} is in use",
            expected="no setup and no start of the fork's in it",
            found="its setup.lock is held",
            remedy="Let that run end, or stop it; a scratch run takes a copy of the folder",
        )
    cache, own = state.config.get("R9V_CACHE_DIR"), facts["env"]["R9V_CONTAINER_NAME"]
    others = [name for name in Podman(facts["user"]).running_with(cache) if name != own] if cache else []
    if others:
        raise FleetError(
            f"setup state {state.path} is shared with a scratch run",
            expected=f"no container but {own} with its cache {cache}",
            found=f"container {', '.join(others)}",
            remedy=f"podman stop {others[0]}, then run again; a scratch run takes folders of its own",
        )


def image_fault(declared: str, wanted: str) -> str:
    """Why the image that the state wants (``R9V_IMAGE``) is not the runtime's (hex digest, or its beginning), or ""."""
    digest = wanted.rpartition("sha256:")[2]
    if "sha256:" not in wanted:
        return f"{wanted}, a name that may move"
    return "" if digest.startswith(declared) else wanted


def require_image(runtime: Mapping[str, Any], wanted: str, podman: Podman) -> None:
    """The state's image is the declared one, and the user's podman has it."""
    digest = runtime["version"]
    fault = image_fault(digest, wanted)
    if fault:
        raise FleetError(
            f"the setup state is of another image than runtime {runtime['name']}",
            expected=f"sha256:{digest}",
            found=fault,
            remedy="Run r9v setup with the declared image, or correct llm_runtimes",
        )
    if podman.image(digest) is None:
        raise FleetError(
            f"image sha256:{digest} of runtime {runtime['name']}",
            expected=f"among {podman.user}'s images",
            found="no image of that digest",
            remedy="Run site.yml with --tags runtime, which loads the bundle",
        )


def crowded_cards(cards: Sequence[Mapping[str, Any]], states: Mapping[str, CardState]) -> list[str]:
    """The cards with less than :data:`DOCTOR_MIB` free, each with what is."""
    rows = [states[str(card["name"])] for card in cards]
    return [f"card {row.name} has {row.free_mib:,.0f} MiB free" for row in rows if row.free_mib < DOCTOR_MIB]


def headroom(unit: str, cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a start took of the cards, as ``gate_ledger`` tells it; a FleetError where one has not its floor free."""
    known = identified(cards)
    states = read_cards(known)
    require_floors(unit, known, states)
    free = {name: state.free_mib for name, state in states.items()}
    return {"free_mib": free, "measured": {}, "differences": [], "note": ""}
