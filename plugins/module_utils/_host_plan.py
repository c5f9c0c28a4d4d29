# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a whole host: which of the steps host, runtime, payload, endpoint still has something to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _buildplan,
    _host,
    _payload,
    _r9v_runtime,
    _rest_install,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint import converge
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

__all__ = ["DEPLOYABLE", "STEPS", "refuse_undeployable", "survey"]

STEPS = ("host", "runtime", "payload", "endpoint")
DEPLOYABLE = ("llamacpp", "r9v")


def refuse_undeployable(endpoints: Sequence[Mapping[str, Any]]) -> None:
    """A FleetError for the first endpoint whose engine this version cannot deploy, before anything is fetched."""
    for endpoint in endpoints:
        if endpoint["engine"] not in DEPLOYABLE:
            raise FleetError(
                f"endpoint {endpoint['name']} cannot be deployed by this version",
                expected=f"engine {' or '.join(DEPLOYABLE)}",
                found=f"engine {endpoint['engine']}",
                remedy=f"Set llm_endpoints.{endpoint['name']}.active: false, or name another with -e endpoint=NAME",
            )


def _runtime_work(entry: Mapping[str, Any]) -> str:
    """What is to be done about a runtime, in words; "" for nothing."""
    if entry["engine"] == "r9v":
        return "; ".join(_r9v_runtime.plan(_r9v_runtime.parse_request(entry)))
    plan = _buildplan.make_plan(_buildplan.parse_request(entry))
    return "" if plan.action == "none" else f"{plan.action}: {'; '.join(plan.reasons)}"


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
    A fault in a look is that step's reason; the step itself then runs and raises it.
    """
    refuse_undeployable(endpoints)
    why: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    warnings: list[str] = []

    def host_step() -> str:
        lack = _host.look(host["user"], host["groups"], host["packages"], host["folders"])
        return "" if lack["complete"] else f"the host lacks {sorted(key for key, value in lack.items() if value)}"

    def runtime_step() -> str:
        for entry in runtimes:
            work = _runtime_work(entry)
            if work:
                return f"runtime {entry['name']}: {work}"
        return ""

    def payload_step() -> str:
        for entry in payloads:
            spec = _payload.PayloadSpec.from_params(entry)
            told = _payload.ensure(spec, check_mode=False, progress=Progress(None), plan_only=True)
            warnings.extend(told["warnings"])
            if told["changed"] or told["work"]:
                return f"payload {entry['name']}: files to fetch, verify or mend"
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
