# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On the test host: inject one fault, run the collection's own modules against it, take it away, look again.

Reads orders ``{do, args, fault}`` (do: settle, look, drill), one JSON object a line, from standard input, and answers
each with a line of what happened. ``args`` are those of the module endpoint that the inventory asks for. The modules
are the ones that a playbook would send here, run in this process: each takes a second less, and a fault can be
injected at a step of a deploy, as the module's own progress tells it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils import _deploy, _progress, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.modules import endpoint, endpoint_truth

HERE = Path(__file__).resolve().parent
EXEC = '0) exec "$SERVER_BIN" "${argv[@]}" ;;'
NAME = "drill"
SECOND = {"name": "drill-second", "env": {"LISTEN_PORT": 8091, "ALIAS": "drill-second"}}
GOING_BACK = ("back to era", "the first deploy failed")


def module(run: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The module's result, be it of a failure; ``seconds`` is how long it ran."""
    said = io.StringIO()
    started = time.monotonic()
    with patch_module_args(args), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run()
    result: dict[str, Any] = json.loads(said.getvalue().splitlines()[-1])
    return {**result, "seconds": round(time.monotonic() - started, 2)}


def bash(script: str) -> None:
    """Run a fault's script, which finds the launcher's path in LAUNCHER; what it says goes to standard error."""
    unit = Path(Paths(NAME).unit_file)
    lines = unit.read_text().splitlines() if unit.exists() else []
    launcher = next((line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")), "")
    command = ["bash", "-euo", "pipefail", "-c", script]
    env = {**os.environ, "LAUNCHER": launcher, "DRILL": str(HERE)}
    subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=60)


class Steps:
    """Listens to a deploy's steps: injects at those that a fault names, and notes when it began to go back."""

    def __init__(self, at: dict[str, str]) -> None:
        self.at = dict(at)
        self.red_at: float | None = None
        self.seen: list[str] = []

    def __call__(self, step: str, **_more: Any) -> None:
        """In place of ``Progress.update`` (on the class, so that no progress comes along)."""
        self.seen.append(step)
        if self.red_at is None and step.startswith(GOING_BACK):
            self.red_at = time.monotonic()
        for name in [name for name in self.at if step.startswith(name)]:
            bash(self.at.pop(name))


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid upon it, dictionaries key by key; a None takes the key away."""
    whole = copy.deepcopy(base)
    for key, value in over.items():
        if value is None:
            whole.pop(key, None)
        elif isinstance(value, dict) and isinstance(whole.get(key), dict):
            whole[key] = merged(whole[key], value)
        else:
            whole[key] = value
    return whole


def declared(base: dict[str, Any], fault: dict[str, Any]) -> dict[str, Any]:
    """What the fault's deploy declares: another temperature at the least, or a second endpoint."""
    args = merged(base, SECOND if fault.get("second") else {"env": {"TEMP": 0.5}})
    args = merged(args, fault.get("declare", {}))
    if "launcher" in fault:
        assert EXEC in args["launcher"]
        args["launcher"] = args["launcher"].replace(EXEC, f"0) {fault['launcher']} ;;")
    return args


def start() -> dict[str, Any]:
    """What tells one start of the unit from another."""
    state = _systemd.show(Paths(NAME).unit)
    return {"pid": state.main_pid, "invocation": state.invocation_id, "state": state.words}


def chat() -> str:
    """A real answer of the endpoint to a question that only its model can answer."""
    era = EraStore(Paths(NAME).store).current()
    assert era is not None
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 256}
    api = api_of(era.blueprint.facts["env"])
    answer = api.post("/v1/chat/completions", {**body, "temperature": 0}, timeout_s=30)
    return str(answer.json("chat")["choices"][0]["message"]["content"]) if answer.status == 200 else answer.words


def served() -> dict[str, Any]:
    """Whether the endpoint is whole, what it answers, and in which era."""
    truth = module(endpoint_truth.main, {"name": NAME, "settle_s": 0})
    era = os.path.basename(os.readlink(f"{Paths(NAME).store}/current"))
    return {"truth": truth.get("msg", "whole"), "answer": chat(), "era": era, "seconds": truth["seconds"]}


def drill(fault: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """One fault from its injection to the endpoint that serves again."""
    told: dict[str, Any] = {"before": served(), "start_before": start()}
    steps = Steps(fault.get("at", {}))
    patience = _deploy._patience_s
    if "patience_s" in fault:
        _deploy._patience_s = lambda *_eras: fault["patience_s"]
    _progress.Progress.update = steps
    try:
        bash(fault.get("do", "true"))
        if "link" in fault:
            told["truth"] = module(endpoint_truth.main, {"name": NAME})
            told["seconds"] = told["truth"]["seconds"]
            told["start_hit"] = start()
            told["run"] = module(endpoint.main, base)
        else:
            args = declared(base, fault)
            told["start_hit"] = start()
            began = time.monotonic()
            told["run"] = module(endpoint.main, args)
            told["seconds"] = round((steps.red_at or time.monotonic()) - began, 2)
            paths = Paths(args["name"])
            told["left"] = [path for path in (paths.unit_file, paths.env_file) if os.path.lexists(path)]
        told["start_after"] = start()
    finally:
        _deploy._patience_s = patience
        bash(fault.get("undo", "true"))
    told["not_injected"] = list(steps.at)
    told["steps"] = steps.seen
    told["again"] = module(endpoint.main, base)
    told["after"] = served()
    return told


def settle(base: dict[str, Any]) -> dict[str, Any]:
    """Deploy another era and then the declared one, now with these arguments' settling time, which no digest holds."""
    for args in (merged(base, {"env": {"TEMP": 0.5}}), base):
        result = module(endpoint.main, args)
        assert not result.get("failed"), result
    return served()


def looked(base: dict[str, Any]) -> dict[str, Any]:
    """How the endpoint is served, and what a run would have to do."""
    plan = module(endpoint.main, {**base, "plan_only": True})
    return {**served(), "plan": plan.get("kind", plan.get("msg"))}


def main() -> None:
    """Answer orders until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "drill":
                told = drill(order["fault"], order["args"])
            else:
                told = settle(order["args"]) if order["do"] == "settle" else looked(order["args"])
        except Exception as exc:  # the test says what broke, and the next order is answered all the same
            told = {"broke": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
