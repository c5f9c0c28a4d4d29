# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a qualification is asked to do: which setup of an R9V endpoint, with which profile, beside which production.

A setup that is to be qualified names under ``qualify:`` the fork's profile and the scratch place for the run: a state
folder, a port and a container name that are nobody else's. Nothing here touches a host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["BATTERY", "HEADROOM_GIB", "Asked", "RunPaths", "asked_of", "scratch_of", "setup_argv"]

BATTERY = ("chat", "tools", "vision", "context")  # what must be proven of a profile, whatever clients are told
HEADROOM_GIB = 3.3  # free on each card under load, where the setup declares no other


@dataclass(frozen=True)
class Asked:
    """One setup to qualify. ``lines`` are the env lines that serve from it, ``headroom_gib`` is free on each card;
    ``scratch_dir``, ``port`` and ``container`` are the run's own; ``arguments`` go to the fork's setup as they are."""

    endpoint: str
    setup: str
    file: str
    profile: str
    model_dir: str
    ple_path: str
    ple_bytes: int | None
    headroom_gib: float
    rung: str
    lines: Mapping[str, Any]
    scratch_dir: str
    port: int
    container: str
    arguments: Sequence[str]
    battery: Sequence[str]

    @property
    def scratch_file(self) -> str:
        """The state that the run's own setup writes and its own start reads."""
        return os.path.join(self.scratch_dir, "setup.json")


@dataclass(frozen=True)
class RunPaths:
    """Where the runs of one setup lie, and run ``id`` among them."""

    folder: str
    id: str = ""

    @classmethod
    def of(cls, paths: Paths, asked: Asked) -> RunPaths:
        """The folder of all runs of a setup."""
        return cls(os.path.join(paths.state, "qualifications", asked.endpoint, asked.setup))

    @property
    def run(self) -> str:
        """The folder of this run's evidence."""
        return os.path.join(self.folder, self.id)

    @property
    def seal(self) -> str:
        """The record of the run that qualified the setup."""
        return os.path.join(self.folder, "qualified.json")


def _lines(declared: Declared, file: str) -> tuple[str, Mapping[str, Any]]:
    """(rung, env lines) with which the endpoint serves from ``file``: its env ("" for the rung), or the first rung that
    names it."""
    for rung, lines in (("", {}), *declared.rungs.items()):
        env = {**declared.env, **lines}
        if env.get("R9V_STATE_FILE") == file:
            return rung, env
    raise FleetError(
        f"endpoint {declared.name} cannot serve from {file}",
        expected="R9V_STATE_FILE with that file in its env or in one of its rungs",
        found="neither",
        remedy=f"Declare a rung under llm_endpoints.{declared.name}.rungs with the lines of this setup",
    )


def asked_of(declared: Declared, name: str) -> Asked:
    """What qualifying setup ``name`` means; a FleetError where the inventory does not say it whole."""
    setup = declared.setups.get(name)
    given = (setup or {}).get("qualify")
    if setup is None or not given:
        known = ", ".join(key for key, one in declared.setups.items() if one.get("qualify")) or "none"
        raise FleetError(
            f"setup {name!r} of endpoint {declared.name}",
            expected=f"one that declares qualify: {known}",
            found="no such setup" if setup is None else "no qualify",
            remedy=f"Add it under llm_endpoints.{declared.name}.setups, or name another with -e setup=NAME",
        )
    file = os.path.normpath(str(setup["file"]))
    rung, lines = _lines(declared, str(setup["file"]))
    return Asked(
        endpoint=declared.name,
        setup=name,
        file=file,
        profile=str(given["profile"]),
        model_dir=os.path.normpath(str(given["model_dir"])),
        ple_path=str(given.get("ple_path") or ""),
        ple_bytes=setup.get("ple_bytes"),
        headroom_gib=float(setup.get("headroom_gib", HEADROOM_GIB)),
        rung=rung,
        lines=lines,
        scratch_dir=os.path.normpath(str(given.get("state_dir") or f"{os.path.dirname(file)}.qualify")),
        port=int(given["port"]),
        container=str(given["container"]),
        arguments=tuple(given.get("arguments") or ()),
        battery=tuple(given.get("battery") or BATTERY),
    )


def scratch_of(declared: Declared, asked: Asked) -> Declared:
    """The endpoint as the run starts it: the lines of the setup over the scratch state, port and container."""
    env = {
        **asked.lines,
        "R9V_STATE_FILE": asked.scratch_file,
        "R9V_HOST_BIND": "127.0.0.1",
        "R9V_HOST_PORT": asked.port,
        "R9V_CONTAINER_NAME": asked.container,
    }
    own = {**declared.setups[asked.setup], "file": asked.scratch_file, "headroom_gib": asked.headroom_gib}
    beside = [*(declared.probes.get("capabilities") or ()), *asked.battery]
    without = [one for one in declared.probes.get("without") or () if one not in asked.battery]
    probes = {**declared.probes, "capabilities": sorted(set(beside)), "without": without}
    return replace(declared, env=env, rungs={}, setups={asked.setup: own}, probes=probes)


def setup_argv(asked: Asked, checkout: str, image: str) -> list[str]:
    """The fork's own setup for the scratch state; ``image`` is the manifest's digest in hex."""
    table = [f"--ple-path={asked.ple_path}"] if asked.ple_path else []
    return [
        os.path.join(checkout, "r9v"),
        "setup",
        asked.profile,
        f"--state-dir={asked.scratch_dir}",
        f"--model-dir={asked.model_dir}",
        *table,
        f"--image=sha256:{image}",
        "--local-image",
        *asked.arguments,
    ]
