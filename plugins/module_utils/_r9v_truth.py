# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Truth of an R9V endpoint: the chain from the unit through its container to the answer."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_container import argument_link, mount_link
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Container, Podman, processes
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import faults_of, read_state
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import (
    Link,
    Observed,
    environment_link,
    stray_link,
    unit_links,
)

__all__ = ["Inside", "chain", "inside", "kin_of", "look_inside"]

_PAGE = 4096


@dataclass(frozen=True)
class Inside:
    """What one look at the container found; process facts are empty when it does not run."""

    container: Container | None
    image_digests: frozenset[str]
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    locked_bytes: int  # the most that one of its processes has locked in memory
    pids: frozenset[int]  # its processes, and those of podman that serve it
    age_s: float  # of its first process
    models: Mapping[str, Any]  # the first row of /v1/models
    faults: tuple[str, ...]  # of the files that the setup state names


def kin_of(container: Container | None) -> frozenset[int]:
    """The container's processes, and those that serve its network: conmon, and a rootless port forwarder."""
    if container is None or not container.pid:
        return frozenset()
    found = {*processes(container.pid), container.conmon_pid}
    home = _proc.cgroup_of(container.conmon_pid)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = _proc.cmdline(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or is not ours to look at: no kin then
        # pasta is told the network of the container; rootlessport is started beside its conmon.
        beside = words[:1] and "rootlessport" in words[0] and _proc.cgroup_of(int(name)) == home
        if beside or (container.netns and container.netns in words):
            found.add(int(name))
    return frozenset(found - {0})


def _served(api: Api) -> dict[str, Any]:
    told = api.get("/v1/models")
    if told.status != 200:
        return {"error": told.words}
    try:
        row = told.json("/v1/models")["data"][0]
    except (FleetError, LookupError, TypeError):
        return {"error": "an answer without models"}
    return row if isinstance(row, dict) else {"error": "an answer without models"}


def look_inside(facts: Mapping[str, Any], api: Api, health: str) -> Inside:
    """Look once at the container, its process and its answer; what ends midway shows as gone."""
    podman = Podman(facts["user"])
    container = podman.container(facts["env"]["R9V_CONTAINER_NAME"])
    argv: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    age, locked = 0.0, 0
    digests: frozenset[str] = frozenset()
    if container is not None:
        image = podman.image(container.image_id)
        digests = frozenset({container.image_id, container.image_digest} | (image.digests if image else set()))
    if container is not None and container.pid:
        try:
            argv, environ = tuple(_proc.cmdline(container.pid)), _proc.environ(container.pid)
            age = _proc.age_s(container.pid)
            locked = max((_proc.locked_bytes(pid) for pid in processes(container.pid)), default=0)
        except (FileNotFoundError, ProcessLookupError):
            pass  # the links of the container say that it does not run
    try:
        state = read_state(facts["env"]["R9V_STATE_FILE"])
        faults = tuple(faults_of(state, facts["setup"]["ple_bytes"], facts["declared_files"]))
    except FleetError as exc:
        faults = (exc.message,)
    models = _served(api) if health == "HTTP 200" else {"error": "not asked"}
    return Inside(container, digests, argv, environ, locked, kin_of(container), age, models, faults)


def chain(
    era: Era, unit: str, unit_path: str, seen: Observed, within: Inside, drop_ins: Sequence[str] = ()
) -> list[Link]:
    """All links in order; the first broken one is the fault, later ones often its consequence."""
    facts = era.blueprint.facts
    env, effective = facts["env"], facts["effective"]
    again = "Run site.yml: it puts the era's files back and restarts the unit"
    logs = f"See journalctl -u {unit} and podman logs {env['R9V_CONTAINER_NAME']}, as {facts['user']}"
    box = within.container
    strangers = sorted(
        f"pid {pid} of {name or 'no unit'}: {command}"
        for pid, name, command in seen.owners
        if name != unit and pid not in within.pids
    )
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC) - seen.unit.active_since_us / 1e6
    mutable = effective.get("R9V_FULL_MUTABLE_CACHE")
    window = effective.get("R9V_MAX_MODEL_LEN")
    links = [
        *unit_links(era, unit, unit_path, seen, drop_ins),
        environment_link(era, seen),
        stray_link(era, seen),
        Link("container", "running", box.status if box is not None else "no container of that name", logs),
        # A container that is older than the start that should have made it is not this start's.
        Link("container is of this start", True, box is not None and within.age_s <= uptime + 5, again),
        Link(
            "image", True, any(digest.startswith(facts["runtime"]["version"]) for digest in within.image_digests), again
        ),
        argument_link(effective, within.argv, again),
        mount_link(effective, box.mounts if box is not None else {}, again),
    ]
    if mutable is not None:
        found = within.environ.get("R9V_FULL_MUTABLE_CACHE", "(not set)")
        links.append(Link("container's R9V_FULL_MUTABLE_CACHE", mutable, found, "The launcher must pass it last"))
    links += [
        Link("strangers on the port", [], strangers, "Stop that process by its id; it is not this endpoint's"),
        Link("container listens", True, any(pid in within.pids for pid, _name, _cmd in seen.owners), logs),
        Link("health", "HTTP 200", seen.health, logs),
        Link("payload files", [], list(within.faults), "Have the files back and run r9v setup again, then site.yml"),
        Link("served model", env["R9V_SERVED_MODEL_NAME"], within.models.get("id", within.models.get("error")), again),
    ]
    if window is not None:
        links.append(Link("context", int(window), within.models.get("max_model_len"), again))
    if effective.get("R9V_PLE_RESIDENCY_MODE") == "pinned":
        need = facts["setup"]["ple_bytes"] or os.path.getsize(effective["R9V_PLE_PATH"])
        enough = within.locked_bytes + _PAGE > need
        told = "pinned" if enough else f"{within.locked_bytes:,} of {need:,} bytes locked (VmLck)"
        links.append(Link("embedding table", "pinned", told, "See LimitMEMLOCK and the container's memlock limit"))
    return links


def inside(paths_env: Mapping[str, str], user: str) -> frozenset[int]:
    """The processes of the container that an era's env names."""
    return kin_of(Podman(user).container(paths_env["R9V_CONTAINER_NAME"]))
