# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One endpoint on its host: what is asked for, what is there, what has to be done, and doing it."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths, draw, find_runtime
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import (
    Say,
    api_of,
    gate_drop_ins,
    gate_foreign,
    gate_port,
    prove,
    put_files,
    put_launcher,
    remove_files,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import gate_fit
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import file_lock, make_dirs, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link, chain, first_broken, observe, require

__all__ = ["Plan", "converge", "decide", "look", "require_era", "require_truth", "row"]


@dataclass(frozen=True)
class Plan:
    """What a run has to do: ``none``, ``repair`` (the same era, put right), or ``deploy`` (a new era)."""

    kind: str
    reasons: tuple[str, ...] = ()
    lift_pin: bool = False
    pinned: bool = False


def decide(
    wanted: str,
    current: str | None,
    pin: Mapping[str, Any] | None,
    broken: Link | None,
    *,
    rung: str | None = None,
    unpin: bool = False,
) -> Plan:
    """Choose the work from digests: ``wanted`` by the inventory (with the rung), ``current`` on the host.

    A pin holds the current era against the inventory until it is lifted or both agree; asking for a rung
    replaces a pin. ``broken`` is the first broken link of the current era's truth, if any.
    """
    agrees = pin is not None and rung is None and wanted == current
    lift = pin is not None and rung is None and (unpin or agrees)
    held = pin is not None and rung is None and not lift
    if wanted != current and not held:
        return Plan("deploy", ("first deploy",) if current is None else ("the declared state differs",), lift, held)
    if broken is not None:
        return Plan("repair", (f"{broken.name}: expected {broken.expected}, found {broken.found}",), lift, held)
    return Plan("none", (), lift, held)


def row(
    era: Era | None,
    unit: str,
    state: _systemd.UnitState,
    *,
    health: str,
    pin: Mapping[str, Any] | None,
    links: list[Link],
    probes: list[dict[str, Any]],
) -> dict[str, Any]:
    """An endpoint's line in the tables: ages in seconds, memory in MiB (resident, host)."""
    facts: Mapping[str, Any] = era.blueprint.facts if era is not None else {}
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - state.active_since_us / 1e6 if state.running else None
    broken = first_broken(links)
    return {
        "name": unit.removesuffix(".service"),
        "unit": state.words,
        "age_s": None if age is None else round(age, 1),
        "restarts": state.n_restarts,
        "pid": state.main_pid,
        "payload": facts.get("payload", {}).get("name"),
        "model_file": os.path.basename(facts["env"]["MODEL_FILE"]) if facts else None,
        "runtime": facts.get("runtime", {}).get("name"),
        "shape": facts.get("shape", {}),
        "port": int(facts["env"]["LISTEN_PORT"]) if facts else None,
        "alias": facts["env"]["ALIAS"] if facts else None,
        "memory_mib": round(_proc.resident_bytes(state.main_pid) / 2**20, 1) if state.running else None,
        "health": health,
        "era": era.id if era is not None else None,
        "pinned": None if pin is None else pin["rung"],
        "truth": None
        if not links
        else ("ok" if broken is None else f"{broken.name}: expected {broken.expected}, found {broken.found}"),
        "probes": probes,
    }


def _diff(paths: Paths, blueprint: Blueprint) -> list[dict[str, str]]:
    """Before and after of the env file and the unit file, for ``--diff``."""
    parts = []
    for path, after in ((paths.env_file, blueprint.env_text), (paths.unit_file, blueprint.unit_text)):
        before = (read_optional(path) or b"").decode("utf-8", "replace")
        if before != after:
            parts.append({"before_header": path, "after_header": path, "before": before, "after": after})
    return parts


def _flipped(diff: list[dict[str, str]]) -> list[str]:
    """The changed lines of the env file alone, as ``-KEY=old`` and ``+KEY=new``."""
    lines = []
    for part in diff:
        if part["before_header"].endswith(".env"):
            delta = difflib.unified_diff(part["before"].splitlines(), part["after"].splitlines(), lineterm="", n=0)
            lines += [line for line in delta if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return lines


def _look(era: Era, paths: Paths) -> tuple[list[Link], str]:
    facts = era.blueprint.facts
    seen = observe(paths.unit, paths.unit_file, paths.env_file, api_of(facts["env"]))
    return chain(era, paths.unit, paths.unit_file, seen, facts["drop_ins"]), seen.health


def require_era(paths: Paths) -> Era:
    """The endpoint's current era; a FleetError where nothing was deployed yet."""
    era = EraStore(paths.store).current()
    if era is None:
        raise FleetError(
            f"endpoint {paths.endpoint} was never deployed on this host",
            expected=f"a current era in {paths.store}",
            found="none",
            remedy="Run site.yml for this host",
        )
    return era


def look(paths: Paths) -> tuple[dict[str, Any], list[Link]]:
    """The endpoint's row and its chain of truth as they are now; nothing is changed and nothing raised for a fault."""
    store = EraStore(paths.store)
    era = store.current()
    links, health = _look(era, paths) if era is not None else ([], "never deployed")
    state = _systemd.show(paths.unit)
    return row(era, paths.unit, state, health=health, pin=store.pin(), links=links, probes=[]), links


def require_truth(name: str, told: dict[str, Any], links: list[Link]) -> None:
    """Raise where nothing was ever deployed, or the first broken link; the endpoint's row travels with it."""
    if not links:
        require_era(Paths(name))
    require(links, name, endpoint=told)


def _unforeseeable(declared: Declared, paths: Paths) -> str:
    """Why check mode cannot tell the whole: an earlier step, which did not really run, would make what is missing."""
    if find_runtime(paths.runtimes, declared.runtime) is None:
        return f"the runtime {declared.runtime} is not built yet; the rest cannot be foretold"
    names = [os.path.join(declared.payload["dir"], file["name"]) for file in declared.payload["files"]]
    missing = [name for name in names if not os.path.exists(name)]
    return f"{missing[0]} is not fetched yet; the rest cannot be foretold" if missing else ""


def converge(
    declared: Declared,
    paths: Paths,
    *,
    rung: str | None = None,
    unpin: bool = False,
    check_mode: bool = False,
    plan_only: bool = False,
    say: Say = lambda _step, _seconds=0: None,
) -> dict[str, Any]:
    """Bring the endpoint to its declared state, or say what that would take (``check_mode``, ``plan_only``).

    The result holds ``changed``, ``work`` (something slow is to be done), ``kind``, ``reasons``, ``diff``,
    ``flipped`` (env lines), ``fit`` (of a new era), ``endpoint`` (see :func:`row`), ``links``, ``probes``.
    """
    store = EraStore(paths.store)
    why = _unforeseeable(declared, paths) if check_mode else ""
    if why:
        return {"changed": True, "work": True, "kind": "deploy", "reasons": [why], "warnings": [why]}
    wanted = draw(declared, paths, rung)
    current, pin = store.current(), store.pin()
    links, health = _look(current, paths) if current is not None else ([], "no era yet")
    broken = first_broken(links)
    plan = decide(wanted.digest, current.blueprint.digest if current else None, pin, broken, rung=rung, unpin=unpin)
    target = current.blueprint if current is not None and plan.kind != "deploy" else wanted
    diff = _diff(paths, target)
    result: dict[str, Any] = {
        "changed": plan.kind != "none" or plan.lift_pin or (rung is not None and (pin or {}).get("rung") != rung),
        "kind": plan.kind,
        "reasons": list(plan.reasons),
        "diff": diff,
        "flipped": _flipped(diff),
        "warnings": [],
    }
    result["work"] = result["changed"]
    if plan.pinned and pin is not None:
        behind = wanted.digest != target.digest
        result["warnings"].append(
            f"endpoint {declared.name} is pinned to rung {pin['rung']!r} since {pin['since']}"
            + ("; the inventory asks for another state, which is not rolled out" if behind else "")
            + ". Lift the pin with rollback.yml -e unpin=true."
        )
    if plan.kind != "none":
        state = _systemd.show(paths.unit)
        if current is None:
            gate_foreign(paths, store.staged())
        gate_drop_ins(paths.unit, state, target.facts["drop_ins"])
        gate_port(paths.unit, int(target.facts["env"]["LISTEN_PORT"]))
        if plan.kind == "deploy":
            result["fit"] = gate_fit(declared, rung, state.main_pid)
    if check_mode or plan_only or not result["changed"]:
        state = _systemd.show(paths.unit)
        result["endpoint"] = row(current, paths.unit, state, health=health, pin=pin, links=links, probes=[])
        result["links"] = [link.as_dict() for link in links]
        return result
    make_dirs(paths.store)
    with file_lock(store.lock_path, wait_s=5, purpose=f"deploy of endpoint {declared.name}"):
        if store.current() != current or store.pin() != pin:
            raise FleetError(
                f"endpoint {declared.name} was changed by another run while this one began",
                expected="the era and pin that this run's plan was made for",
                found="another era or pin",
                remedy="Run again",
            )
        try:
            era, links, probes = _carry_out(plan, wanted, current, store, paths, say, result.get("fit"))
        except FleetError as exc:
            exc.facts.setdefault("endpoint", look(paths)[0])
            raise
        if rung is not None:
            since = datetime.now(UTC).isoformat(timespec="seconds")
            store.set_pin({"rung": rung, "lines": dict(declared.rungs[rung]), "since": since, "era": era.id})
        elif plan.lift_pin:
            store.set_pin(None)
    result["endpoint"] = row(
        era, paths.unit, _systemd.show(paths.unit), health="HTTP 200", pin=store.pin(), links=links, probes=probes
    )
    result["links"] = [link.as_dict() for link in links]
    result["probes"] = probes
    return result


def _carry_out(
    plan: Plan,
    wanted: Blueprint,
    current: Era | None,
    store: EraStore,
    paths: Paths,
    say: Say,
    fit: Mapping[str, Any] | None,
) -> tuple[Era, list[Link], list[dict[str, Any]]]:
    """Do the plan; when proof breaks on a new era, the last certified one serves again before the error is raised."""
    if plan.kind == "none":
        assert current is not None  # decide() never answers none without a current era
        return current, _look(current, paths)[0], []
    if plan.kind == "repair":
        assert current is not None
        era = current
    else:
        say("stage")
        era = store.stage(wanted)
    put_launcher(era.blueprint, paths)
    _systemd.verify_unit(paths.unit, era.blueprint.unit_text)
    try:
        say("cut over")
        put_files(era.blueprint, paths)
        _systemd.restart(paths.unit, timeout_s=_restart_s(era, current))
        links, verdicts = prove(era, paths, say, fresh=True)
    except (FleetError, OSError) as exc:
        fault = exc if isinstance(exc, FleetError) else FleetError(f"cut over of {paths.unit}: {exc}")
        if plan.kind == "deploy":
            try:  # serving again comes first; the record of the failure is written in any case
                fault.facts["went_back_to"] = _go_back(era, current, paths, say, fault)
            finally:
                store.fail(era, fault.message)
        if fault is exc:
            raise
        raise fault from exc
    probes = [verdict.as_dict() for verdict in verdicts]
    certificate: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "truth": [link.as_dict() for link in links],
        "probes": probes,
    }
    if fit is not None:
        certificate["fit"] = {key: fit[key] for key in ("cards", "host", "split", "measured")}
    return store.commit(era, certificate), links, probes


def _restart_s(era: Era, before: Era | None) -> int:
    """Seconds that stopping what runs and starting ``era`` may take by the units' own limits."""
    stop_s = max(each.blueprint.facts["timeout_stop_s"] for each in (era, before) if each is not None)
    return int(era.blueprint.facts["deadline_s"]) + int(stop_s) + 60


def _go_back(failed: Era, current: Era | None, paths: Paths, say: Say, fault: FleetError) -> str:
    """Serve the last certified era again and prove it; before the first one, leave nothing behind."""
    if current is None:
        say("the first deploy failed: the unit is taken away again")
        try:
            remove_files(paths, timeout_s=_restart_s(failed, None))
        except (FleetError, OSError) as second:
            raise FleetError(
                f"{fault.message} And its unit {paths.unit} could not be taken away: {second}",
                remedy=f"Mend what the second message names, then run systemctl disable --now {paths.unit}",
                went_back_to=None,
            ) from second
        return "nothing: this was the first deploy; unit and env file were taken away"
    say(f"back to era {current.id}")
    try:
        put_files(current.blueprint, paths)
        _systemd.restart(paths.unit, timeout_s=_restart_s(current, failed))
        prove(current, paths, say, fresh=True, expired=())  # it is certified: what it can do was seen
    except (FleetError, OSError) as second:
        raise FleetError(
            f"{fault.message} And the last certified era {current.id} does not serve either: {second}",
            remedy="The endpoint is down; mend what the second message names and run site.yml again",
            went_back_to=None,
        ) from second
    return f"era {current.id}, which serves again"
