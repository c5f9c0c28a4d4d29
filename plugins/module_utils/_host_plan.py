# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a whole host: which of the steps host, runtime, payload, endpoint still has something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _buildplan,
    _envspec,
    _host,
    _payload,
    _r9v_runtime,
    _rest_install,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint import converge
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import (
    Gap,
    endpoint_gaps,
    payload_gaps,
    refuse_gaps,
    runtime_gaps,
)

__all__ = ["STEPS", "survey"]

STEPS = ("host", "runtime", "payload", "endpoint")


def _gaps(
    runtimes: Sequence[Mapping[str, Any]], payloads: Sequence[Mapping[str, Any]], endpoints: Sequence[Mapping[str, Any]]
) -> list[Gap]:
    """All that the inventory does not know of what is to be deployed."""
    found = [gap for entry in runtimes for gap in runtime_gaps(entry)]
    found += [gap for entry in payloads for gap in payload_gaps(entry)]
    for entry in endpoints:
        found += endpoint_gaps(entry["name"], _envspec.unknown_keys(entry["engine"], entry["env"]))
    return found


def _runtime_look(entry: Mapping[str, Any]) -> Callable[[], str]:
    """The look at what is to be done about a runtime, in words ("" for nothing); its declaration is judged now."""
    if entry["engine"] == "r9v":
        fork = _r9v_runtime.parse_request(entry)
        return lambda: "; ".join(_r9v_runtime.plan(fork))
    request = _buildplan.parse_request(entry)

    def look() -> str:
        plan = _buildplan.make_plan(request)
        return "" if plan.action == "none" else f"{plan.action}: {'; '.join(plan.reasons)}"

    return look


def survey(
    host: Mapping[str, Any],
    runtimes: Sequence[Mapping[str, Any]],
    payloads: Sequence[Mapping[str, Any]],
    endpoints: Sequence[Mapping[str, Any]],
    launchers: Mapping[str, str],
    rest: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``{"steps": {step: has work}, "why": {step: reason}, "endpoints": rows, "warnings": [...]}``; reads only.

    Each step stands on the one before: from the first that has work on, all later ones count as having work too,
    and are not looked at. ``launchers`` are the launchers' texts by engine.
    A fault in a look is that step's reason; the step itself then runs and raises it. A declaration of a runtime or a
    payload that is unsound, or ``unknown`` in part, is a FleetError before any look: by the time its step came to it,
    the steps before would have changed the host.
    """
    refuse_gaps(_gaps(runtimes, payloads, endpoints))
    runtime_looks = {entry["name"]: _runtime_look(entry) for entry in runtimes}
    specs = {entry["name"]: _payload.PayloadSpec.from_params(entry) for entry in payloads}
    why: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    warnings: list[str] = []

    def host_step() -> str:
        lack = _host.look(host["user"], host["groups"], host["packages"], host["folders"])
        return "" if lack["complete"] else f"the host lacks {sorted(key for key, value in lack.items() if value)}"

    def runtime_step() -> str:
        for name, work_on in runtime_looks.items():
            work = work_on()
            if work:
                return f"runtime {name}: {work}"
        return ""

    def payload_step() -> str:
        for name, spec in specs.items():
            told = _payload.ensure(spec, check_mode=False, progress=Progress(None), plan_only=True)
            warnings.extend(told["warnings"])
            if told["changed"] or told["work"]:
                return f"payload {name}: files to fetch, verify or mend"
        if rest and _rest_install.converge(_rest_install.RestSpec.from_params(rest), dry=True)["changed"]:
            return f"the check of payloads at rest is not {rest['state']}"
        return ""

    def endpoint_step() -> str:
        for entry in endpoints:
            told = converge(
                Declared.from_entry(entry, launchers[entry["engine"]]), Paths(entry["name"]), plan_only=True
            )
            rows.append(told["endpoint"])
            warnings.extend(told["warnings"])
            if told["changed"]:
                return f"endpoint {entry['name']}: {'; '.join(told['reasons']) or 'its pin can be lifted'}"
        return ""

    looks = {"host": host_step, "runtime": runtime_step, "payload": payload_step, "endpoint": endpoint_step}
    reason = ""
    for step in STEPS:
        if not reason:
            try:
                reason = looks[step]()
            except FleetError as exc:
                reason = exc.message
        if reason:
            why[step] = reason
    if why:  # the steps that follow say all this themselves
        rows, warnings = [], []
    return {"steps": {step: step in why for step in STEPS}, "why": why, "endpoints": rows, "warnings": warnings}
