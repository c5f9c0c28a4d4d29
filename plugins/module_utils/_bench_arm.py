# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In production's place for a while: the endpoint stands still, and a transient unit runs what a bench needs.

As in a trial a guard stands for the whole time (see ``_trial_unit``): whatever ends it, be it that this process is
killed, has systemd start the endpoint again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths, dry_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import await_health
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import (
    TrialPaths,
    guard_command,
    service_properties,
)

__all__ = ["BenchPaths", "arm_env", "run_in_unit", "served", "stood_still", "transient_argv"]

# Of the unit's [Service]: what a bench runs has its own type and arguments, and reads no env file.
_OURS = ("Type=", "EnvironmentFile=", "Environment=LLM_FLEET_")
_PASSED = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SLACK_S = 30


class BenchPaths(TrialPaths):
    """Where what a bench runs lies; ``unit`` is its transient unit, ``guard`` stands for the whole bench."""

    @property
    def run_name(self) -> str:
        """The guard's name without its suffix."""
        return f"llm-fleet-bench-{self.endpoint}-{self.trial}"


def transient_argv(
    era: Era, place: TrialPaths, limit_s: float, options: Sequence[str], argv: Sequence[str]
) -> list[str]:
    """``systemd-run`` for ``argv`` under the era's own limits (``LimitMEMLOCK`` among them), user and sandbox.

    It ends with the guard and after ``limit_s``, and never runs beside the endpoint.
    """
    env, unit = era.blueprint.facts["env"], f"{place.endpoint}.service"
    properties = [
        *(line for line in service_properties(era.blueprint.unit_text) if not line.startswith(_OURS)),
        *(f"Environment={key}={env[key]}" for key in _PASSED if key in env),
        f"BindsTo={place.guard}",
        f"After={place.guard} {unit}",
        f"Conflicts={unit}",
        f"RuntimeMaxSec={limit_s:g}",
        "OOMScoreAdjust=1000",
    ]
    given = [f"--property={line}" for line in properties]
    return ["systemd-run", "--quiet", "--collect", f"--unit={place.unit}", *options, *given, "--", *argv]


def arm_env(era: Era, place: TrialPaths, lines: Mapping[str, Any], port: int) -> dict[str, str]:
    """The era's env with ``lines`` over it, on this host's loopback alone: clients of the endpoint do not reach it."""
    env = {**era.blueprint.facts["env"], **_envspec.normalise("llamacpp", lines)}
    env |= {"BIND_ADDR": "127.0.0.1", "LISTEN_PORT": str(port)}
    own = f"/run/credentials/{place.endpoint}.service/"
    if env.get("API_KEY_FILE", "").startswith(own):
        env["API_KEY_FILE"] = f"/run/credentials/{place.unit}/{env['API_KEY_FILE'].removeprefix(own)}"
    problems = _envspec.check("llamacpp", env)
    if problems:
        raise FleetError(f"the rung's lines over endpoint {place.endpoint}: " + " ".join(problems))
    return env


@contextmanager
def stood_still(
    era: Era,
    paths: Paths,
    place: TrialPaths,
    say: Callable[..., None],
    *,
    count: int,
    may_stop: bool,
    before_stop: Callable[[], None],
    limit_s: float,
) -> Iterator[None]:
    """The endpoint does not run in here. One that ran is stopped, if that is allowed, and serves again afterwards.

    ``count`` transient units will run in its place, numbered from 1; ``place`` is any of them. ``before_stop`` refuses
    where somebody is served; after ``limit_s`` the host ends what runs in here. The caller
    holds the endpoint's lock, for which the guard waits.
    """
    facts = era.blueprint.facts
    patience_s = facts["deadline_s"] + facts["timeout_stop_s"] + _SLACK_S
    state = _systemd.show(paths.unit)
    ran = state.active_state not in ("inactive", "failed")
    if ran and not may_stop:
        raise FleetError(
            f"endpoint {paths.endpoint} runs",
            expected="it stopped while this bench has its cards",
            found=state.words,
            remedy="Allow it with -e stop=true: it is stopped while nobody uses it, and started again",
        )
    if ran:
        before_stop()
        say("stop what serves")
    comes_back = [paths.unit] if ran else []
    lock = EraStore(paths.store).lock_path
    guard = guard_command(
        place, lock, count=count, makes_way=[paths.unit], comes_back=comes_back, limit_s=limit_s + 2 * patience_s
    )
    try:
        run(guard, timeout_s=patience_s)
        pids = [state.main_pid] if state.main_pid else []
        port = int(facts["env"]["LISTEN_PORT"])
        drain(paths.endpoint, pids, port, facts["cards"], deadline_s=patience_s, say=say)
        yield
    finally:
        if ran:  # this ends the guard, and with it whatever is left
            say("start what served")
            _systemd.start(paths.unit, timeout_s=2 * patience_s)
            await_health(paths.unit, api_of(facts["env"]), facts["deadline_s"], say, engine=facts["engine"])
        else:
            run(["systemctl", "stop", place.guard], timeout_s=patience_s, check=False)  # one that has ended is gone
        run(["systemctl", "reset-failed", place.guard], check=False)  # one whose time was over


@contextmanager
def served(
    era: Era, place: TrialPaths, lines: Mapping[str, Any], say: Callable[..., None], *, limit_s: float
) -> Iterator[dict[str, str]]:
    """A server of the era's own launcher with ``lines`` over its env; yields that env. The endpoint stands still."""
    facts = era.blueprint.facts
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = arm_env(era, place, lines, port)
    argv = dry_run(era.blueprint.launcher_text, env)
    say("start the other arm")
    patience_s = facts["deadline_s"] + _SLACK_S
    run(transient_argv(era, place, limit_s, ["--service-type=exec"], argv), timeout_s=patience_s)
    try:
        await_health(place.unit, api_of(env), facts["deadline_s"], say, engine=facts["engine"])
        yield env
    finally:
        stop_s = facts["timeout_stop_s"] + _SLACK_S
        run(["systemctl", "stop", place.unit], timeout_s=stop_s, check=False)  # one that has ended is gone
        drain(place.endpoint, [], port, facts["cards"], deadline_s=stop_s, say=say)


def run_in_unit(era: Era, place: TrialPaths, limit_s: float, argv: Sequence[str]) -> Completed:
    """Run ``argv`` to its end in the transient unit, and return what it printed."""
    whole = transient_argv(era, place, limit_s, ["--wait", "--pipe"], argv)
    try:
        return run(whole, timeout_s=limit_s + _SLACK_S, check=False)
    finally:
        run(["systemctl", "stop", place.unit], timeout_s=_SLACK_S, check=False)  # one that has ended is gone
