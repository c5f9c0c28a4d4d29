# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In production's place for a while: the endpoint stands still, and a transient unit runs what a bench needs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths, dry_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import api_of, await_health
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run

__all__ = ["arm_env", "bench_unit", "run_in_unit", "served", "service_properties", "stood_still", "transient_argv"]

# Of a unit's [Service] these are the bench's own: what runs, from which lines, and that nothing brings it back.
_OURS = ("Type", "EnvironmentFile", "ExecStart", "Restart", "RestartPreventExitStatus", "RestartSec", "Environment")
_PASSED = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SLACK_S = 30


def bench_unit(paths: Paths) -> str:
    """The transient unit's name."""
    return f"{paths.endpoint}-bench.service"


def service_properties(unit_text: str) -> list[str]:
    """The lines of [Service] that a transient unit takes over: user, limits, sandbox, devices, the key's credential."""
    section = unit_text.partition("[Service]\n")[2].partition("\n[")[0]
    lines = [line for line in section.splitlines() if line and line.partition("=")[0] not in _OURS]
    caches = [line for line in section.splitlines() if line.startswith("Environment=") and "CACHE" in line]
    return [*lines, *caches]


def transient_argv(era: Era, paths: Paths, limit_s: float, options: Sequence[str], argv: Sequence[str]) -> list[str]:
    """``systemd-run`` for ``argv`` under the era's own limits (``LimitMEMLOCK`` among them) and sandbox.

    Production's start ends it (``Conflicts=``), and so does ``limit_s``: it never stays in production's place.
    """
    env = era.blueprint.facts["env"]
    properties = [
        *service_properties(era.blueprint.unit_text),
        *(f"Environment={key}={env[key]}" for key in _PASSED if key in env),
        f"Conflicts={paths.unit}",
        f"RuntimeMaxSec={limit_s:g}",
    ]
    settings = [word for line in properties for word in ("-p", line)]
    return ["systemd-run", "--quiet", "--collect", f"--unit={bench_unit(paths)}", *options, *settings, *argv]


def arm_env(era: Era, paths: Paths, lines: Mapping[str, Any], port: int) -> dict[str, str]:
    """The era's env with ``lines`` over it, on this host's loopback alone: clients of the endpoint do not reach it."""
    env = {**era.blueprint.facts["env"], **_envspec.normalise("llamacpp", lines)}
    env |= {"BIND_ADDR": "127.0.0.1", "LISTEN_PORT": str(port)}
    own = f"/run/credentials/{paths.unit}/"
    if env.get("API_KEY_FILE", "").startswith(own):
        env["API_KEY_FILE"] = f"/run/credentials/{bench_unit(paths)}/{env['API_KEY_FILE'].removeprefix(own)}"
    problems = _envspec.check("llamacpp", env)
    if problems:
        raise FleetError(f"the rung's lines over endpoint {paths.endpoint}: " + " ".join(problems))
    return env


def _stop(paths: Paths, timeout_s: float) -> None:
    run(["systemctl", "stop", bench_unit(paths)], timeout_s=timeout_s, check=False)  # one that has ended is gone


@contextmanager
def stood_still(
    era: Era, paths: Paths, say: Callable[..., None], *, may_stop: bool, before_stop: Callable[[], None]
) -> Iterator[None]:
    """The endpoint does not run in here. One that ran is stopped, if that is allowed, and serves again afterwards.

    ``before_stop`` refuses where somebody is served.
    """
    facts = era.blueprint.facts
    timeout_s = facts["timeout_stop_s"] + _SLACK_S
    state = _systemd.show(paths.unit)
    if state.active_state in ("inactive", "failed"):
        yield
        return
    if not may_stop:
        raise FleetError(
            f"endpoint {paths.endpoint} runs",
            expected="it stopped while this bench has its cards",
            found=state.words,
            remedy="Allow it with -e stop=true: it is stopped while nobody uses it, and started again",
        )
    before_stop()
    say("stop what serves")
    _systemd.stop(paths.unit, timeout_s=timeout_s)
    try:
        pids = [state.main_pid] if state.main_pid else []
        drain(paths.endpoint, pids, int(facts["env"]["LISTEN_PORT"]), facts["cards"], deadline_s=timeout_s, say=say)
        yield
    finally:
        _stop(paths, timeout_s)
        say("start what served")
        _systemd.start(paths.unit, timeout_s=facts["deadline_s"] + _SLACK_S)
        await_health(paths.unit, api_of(facts["env"]), facts["deadline_s"], say, engine=facts["engine"])


@contextmanager
def served(
    era: Era, paths: Paths, lines: Mapping[str, Any], say: Callable[..., None], *, limit_s: float
) -> Iterator[dict[str, str]]:
    """A server of the era's own launcher with ``lines`` over its env; yields that env. The endpoint stands still."""
    facts = era.blueprint.facts
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = arm_env(era, paths, lines, port)
    argv = dry_run(era.blueprint.launcher_text, env)
    say("start the other arm")
    timeout_s = facts["deadline_s"] + _SLACK_S
    run(transient_argv(era, paths, limit_s, ["--service-type=exec"], argv), timeout_s=timeout_s)
    try:
        credential = env.get("API_KEY_FILE", "")
        reached = {**env, "API_KEY_FILE": facts["env"]["API_KEY_FILE"]} if credential.startswith("/run/cred") else env
        await_health(bench_unit(paths), api_of(reached), facts["deadline_s"], say, engine=facts["engine"])
        yield reached
    finally:
        stop_s = facts["timeout_stop_s"] + _SLACK_S
        _stop(paths, stop_s)
        drain(paths.endpoint, [], port, facts["cards"], deadline_s=stop_s, say=say)


def run_in_unit(era: Era, paths: Paths, limit_s: float, argv: Sequence[str]) -> Completed:
    """Run ``argv`` to its end in the transient unit, and return what it printed."""
    whole = transient_argv(era, paths, limit_s, ["--wait", "--pipe"], argv)
    try:
        return run(whole, timeout_s=limit_s + _SLACK_S, check=False)
    finally:
        _stop(paths, _SLACK_S)
