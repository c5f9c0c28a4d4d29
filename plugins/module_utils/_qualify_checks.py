# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that a qualification refuses while production still serves; nothing is touched here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths, require_runtime
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import list_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified
from ansible_collections.dank.llm_fleet.plugins.module_utils._engines import serving_pids
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_cards import gate_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked, scratch_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork, find_fork, package_faults
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_memory import foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_blueprint import env_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import in_use
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import Incumbent, incumbents_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import payload_gaps, refuse_gaps

__all__ = ["MARK", "Plan", "look_before", "productions", "require_apart", "require_memory"]

MARK = ".llm-fleet-qualification"  # in a scratch folder: this collection made it, and may take it away
_UNTOUCHED = "nothing was stopped"


@dataclass(frozen=True)
class Plan:
    """What a qualification will do: ``makes_way`` are the units that may not run meanwhile, ``incumbents`` those of
    them that run and come back, ``served_by`` their processes outside of the units. ``warnings`` are the memory
    plan's, and were accepted."""

    fork: Fork
    incumbents: Sequence[Incumbent]
    makes_way: Sequence[str]
    served_by: frozenset[int]
    warnings: Sequence[str] = ()


def productions(declared: Declared, paths: Paths) -> list[Mapping[str, str]]:
    """The env lines of everything that may serve: declared ones of the endpoint, and current eras of its rivals."""
    found = [{**declared.env, **lines} for lines in ({}, *declared.rungs.values())]
    found += [{"R9V_STATE_FILE": setup["file"]} for setup in declared.setups.values()]
    for name in (declared.name, *declared.rivals):
        era = EraStore(replace(paths, endpoint=name).store).current()
        if era is not None:
            found.append(era.blueprint.facts["env"])
    return [{key: str(value) for key, value in env.items()} for env in found]


def require_apart(asked: Asked, served: Sequence[Mapping[str, str]]) -> None:
    """The run's own state folder, port and container are none of production's; a FleetError names the one that is."""
    where = f"llm_endpoints.{asked.endpoint}.setups.{asked.setup}.qualify"
    own = os.path.realpath(asked.scratch_dir)
    for env in served:
        if env.get("R9V_STATE_FILE"):
            theirs = os.path.realpath(os.path.dirname(env["R9V_STATE_FILE"]))
            if own == theirs or own.startswith(f"{theirs}/") or theirs.startswith(f"{own}/"):
                raise FleetError(
                    f"{where}.state_dir {asked.scratch_dir} is shared with production",
                    expected="a folder of the run's own, in and around no state that is served from",
                    found=f"{env['R9V_STATE_FILE']}",
                    remedy=f"Name another folder, or leave it out; {_UNTOUCHED}",
                )
        ports = {str(env.get("R9V_HOST_PORT", "")), str(env.get("LISTEN_PORT", ""))}
        for key, mine, taken in (
            ("port", str(asked.port), ports),
            ("container", asked.container, {env.get("R9V_CONTAINER_NAME")}),
        ):
            if mine in taken:
                raise FleetError(
                    f"{where}.{key} {mine} is production's",
                    expected="one of the run's own",
                    found=f"the {key} that an endpoint of this host serves with",
                    remedy=f"Choose another; {_UNTOUCHED}",
                )


def require_memory(warnings: Sequence[str], *, despite: bool) -> None:
    """A FleetError for what the memory plan warns of, unless whoever asks wants the window all the same."""
    if warnings and not despite:
        raise FleetError(
            "the memory plan warns of this qualification",
            expected="no warning",
            found="; ".join(warnings),
            remedy=f"Mend what it names, or take the risk with -e despite_memory=true; {_UNTOUCHED}",
        )


def _require_free(asked: Asked, user: str) -> None:
    """Nobody has the run's port, container or scratch folder."""
    listeners = _proc.listeners(asked.port)
    if listeners:
        raise FleetError(
            f"port {asked.port}, where the profile would be probed",
            expected="nobody",
            found="; ".join(f"pid {one.pid} of {one.unit or 'no unit'}: {one.command}" for one in listeners),
            remedy=f"Stop that process by its id, or choose another port; {_UNTOUCHED}",
        )
    box = Podman(user).container(asked.container)
    if box is not None and box.pid:
        raise FleetError(
            f"container {asked.container} runs",
            expected="none of that name",
            found=f"one of image {box.image_digest or box.image_id}, {box.status}",
            remedy=f"podman stop {asked.container}, as {user}; {_UNTOUCHED}",
        )
    for path in (asked.file, asked.scratch_file):
        if in_use(path):
            raise FleetError(
                f"the folder of {path} is in use",
                expected="no setup and no start of the fork's in it",
                found="its setup.lock is held",
                remedy=f"Let that run end, or stop it; {_UNTOUCHED}",
            )
    names = os.listdir(asked.scratch_dir) if os.path.isdir(asked.scratch_dir) else []
    if os.path.lexists(asked.scratch_dir) and names and MARK not in names:
        raise FleetError(
            f"scratch folder {asked.scratch_dir}",
            expected="none, or one that an earlier run left",
            found="files that this collection did not write",
            remedy=f"Name another with qualify.state_dir; {_UNTOUCHED}",
        )


def _require_cards(declared: Declared, asked: Asked) -> None:
    """Every card can tell what it has free."""
    dumb = [str(card["name"]) for card in declared.cards if card not in identified(declared.cards)]
    if asked.headroom_gib and (dumb or not declared.cards):
        raise FleetError(
            f"headroom of setup {asked.setup} cannot be measured",
            expected=f"cards with an address, for {asked.headroom_gib:g} GiB each",
            found=f"no address of {', '.join(dumb)}" if dumb else "no card declared",
            remedy=f"Give their pci under llm_cards, or headroom_gib: 0 for none to be asked; {_UNTOUCHED}",
        )


def _incumbents(declared: Declared, paths: Paths, incumbent: str) -> Sequence[Incumbent]:
    """What serves and will come back; ``incumbent`` is a name, "none" for a host on which nothing serves, or empty."""
    found = incumbents_of(paths, declared)
    names = [one.paths.endpoint for one in found]
    wanted = {"": bool(found), "none": not found}.get(incumbent, incumbent in names)
    if not wanted:
        raise FleetError(
            f"the incumbent of endpoint {declared.name}",
            expected=incumbent or "an endpoint that serves on these cards and comes back",
            found=", ".join(names) or "none serves",
            remedy=f"Name it with -e incumbent=NAME, or say -e incumbent=none where nothing serves; {_UNTOUCHED}",
        )
    return found


def look_before(
    declared: Declared, paths: Paths, asked: Asked, *, incumbent: str, warnings: Sequence[str], despite_memory: bool
) -> Plan:
    """What the run will do; a FleetError for all that can be known to be wrong before anything is stopped."""
    require_apart(asked, productions(declared, paths))
    runtime = require_runtime(declared, paths)
    env_of(replace(declared, env=asked.lines), None, runtime["server_bin"])
    _require_cards(declared, asked)
    checkout = os.path.dirname(os.path.dirname(runtime["server_bin"]))
    fork = find_fork(checkout, declared.user, runtime["version"], asked)
    files = [{"path": os.path.join(declared.payload["dir"], one["name"]), "bytes": one.get("bytes")}
             for one in declared.payload["files"]]  # fmt: skip
    below = [file for file in files if file["path"].startswith(f"{asked.model_dir}/")]
    refuse_gaps(payload_gaps(declared.payload) if below else [])
    faults = package_faults(asked, fork, below)
    if faults:
        raise FleetError(
            f"the payload of setup {asked.setup} is not whole",
            expected="every file of it, in its size",
            found="; ".join(faults),
            remedy=f"Have the files back; {_UNTOUCHED}",
        )
    _require_free(asked, declared.user)
    incumbents = _incumbents(declared, paths, incumbent)
    every = [paths, *(replace(paths, endpoint=name) for name in declared.rivals)]
    units, pids = [one.unit for one in every], serving_pids(every)
    scratch = {key: str(value) for key, value in scratch_of(declared, asked).env.items()}
    gate_cards(declared.cards, scratch, list_cards() if declared.cards else [], units, pids)
    leaving = pids | {one.pid for one in incumbents if one.pid}
    warned = [*warnings, *foretold(declared, asked, fork, leaving)]
    require_memory(warned, despite=despite_memory)
    return Plan(fork, incumbents, units, pids, warned)
