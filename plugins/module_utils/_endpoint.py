# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One endpoint on its host: what is asked for, what is there, what has to be done, and having it done."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import (
    Declared,
    Paths,
    find_runtime,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import list_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import declaration, outdated
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import (
    Say,
    gate_drop_ins,
    gate_foreign,
    gate_port,
    gate_shadow,
    standing,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._deploy import Done, Job, carry_out, go_back, prove_anew
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look, row, truth_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_plan import Plan, decide, pin_words
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_record import record_red, recorded
from ansible_collections.dank.llm_fleet.plugins.module_utils._engines import draw, gate_fit, redraw, serving_pids
from ansible_collections.dank.llm_fleet.plugins.module_utils._envspec import port_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import prune
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import Held, file_lock, left_behind
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_cards import gate_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import Foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs, read_optional, sweep
from ansible_collections.dank.llm_fleet.plugins.module_utils._own_files import own_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._replaces import frees, leaving_units, spec_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire import RetireSpec, retire
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import first_broken
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, read_stamp

__all__ = ["Asked", "converge"]

_LOCK_WAIT_S = 5.0
_ANEW = "what clients are told, or what has to be seen of it, was declared anew"
_OLDER = "the probes ask more by now than when it was proven"


@dataclass(frozen=True)
class Asked:
    """What a run asks beyond the inventory: a rung, or an era by id or ``previous``, to roll back to and be pinned at;
    lifting the pin; or that this endpoint take over from its rivals although the inventory has one of them active."""

    rung: str | None = None
    era: str | None = None
    unpin: bool = False
    activate: bool = False

    @property
    def pins(self) -> bool:
        """Whether the endpoint will be pinned."""
        return self.rung is not None or self.era is not None


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


def _unforeseeable(declared: Declared, paths: Paths) -> str:
    """Why check mode cannot tell the whole: an earlier step, which did not really run, would make what is missing."""
    if find_runtime(paths.runtimes, declared.runtime) is None:
        return f"the runtime {declared.runtime} is not built yet; the rest cannot be foretold"
    for file in declared.payload["files"]:
        path = os.path.join(declared.payload["dir"], file["name"])
        why = _not_there_yet(path, file.get("sha256") or file.get("sha256_prefix") or "", paths.stamps)
        if why:
            return f"{path} {why}; the rest cannot be foretold"
    return ""


def _not_there_yet(path: str, digest: str, stamp_dir: str) -> str:
    """Why what lies at ``path`` is not what will be deployed, by its stamp; "" where that is not known to be so."""
    if not os.path.exists(path):
        return "is not fetched yet"
    stamp = read_stamp(stamp_dir, path)
    if stamp is None:
        return ""
    if not stamp.identity.same_content(Identity.of(os.stat(path))):
        return "was changed since it was verified"
    return "" if stamp.sha256.startswith(digest.lower()) else "is another file than the declared one"


def _pin_warning(name: str, pin: Mapping[str, Any], behind: bool) -> str:
    return (
        f"endpoint {name} is pinned to {pin_words(pin)} since {pin['since']}"
        + ("; the inventory asks for another state, which is not rolled out" if behind else "")
        + ". Lift the pin with rollback.yml -e unpin=true."
    )


def _stood_down(paths: Paths, store: EraStore, told: Mapping[str, Any]) -> dict[str, Any]:
    """The result for an endpoint that made way for another by an operator's word: it is left as it is."""
    return {
        "changed": False,
        "work": False,
        "kind": "none",
        "reasons": [],
        "diff": [],
        "flipped": [],
        "links": [],
        "endpoint": look(paths)[0],
        "warnings": [
            f"endpoint {paths.endpoint} made way for {told['for']} at {told['since']} and stays down. "
            f"Have it back with site.yml -e activate={paths.endpoint}."
        ],
    }


def _pin_of(asked: Asked, declared: Declared, era: Era, restored: str | None) -> dict[str, Any]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    lines = dict(declared.rungs[asked.rung]) if asked.rung is not None else {}
    return {"rung": asked.rung, "restored": restored, "lines": lines, "since": since, "era": era.id}


def _agrees(pin: Mapping[str, Any] | None, asked: Asked, restored: str | None) -> bool:
    return pin is not None and (pin.get("rung"), pin.get("restored")) == (asked.rung, restored)


def converge(
    declared: Declared,
    paths: Paths,
    *,
    asked: Asked = Asked(),
    check_mode: bool = False,
    plan_only: bool = False,
    say: Say = lambda _step, _seconds=0: None,
) -> dict[str, Any]:
    """Bring the endpoint to its declared state, or say what that would take (``check_mode``, ``plan_only``).

    The result holds ``changed``, ``work`` (something slow is to be done), ``kind``, ``reasons``, ``diff``,
    ``flipped`` (env lines), ``fit`` (of a new era), ``endpoint`` (see ``_endpoint_look.row``), ``links``, ``probes``,
    ``gates`` (see ``_gates``), ``ledger`` (what the boot took), ``gap_s`` (how long nothing served).
    """
    store, gates, dry = EraStore(paths.store), Gates(), check_mode or plan_only
    with recorded(paths, gates, "plan", dry=dry), gates.gate("blueprint"):
        down, killed = store.stood_down(), left_behind(store.lock_path)
        if down is not None and not asked.activate and not asked.pins:
            return _stood_down(paths, store, down)
        restored = store.find(asked.era) if asked.era is not None else None
        why = _unforeseeable(declared, paths) if check_mode and restored is None else ""
        if why:
            return {"changed": True, "work": True, "kind": "deploy", "reasons": [why], "warnings": [why]}
        wanted = redraw(restored, paths.stamps) if restored is not None else draw(declared, paths, asked.rung)
        current, pin = store.current(), store.pin()
        retirement = spec_of(declared, paths)
        leaving = retire(retirement, check_mode=True)["actions"] if retirement is not None else []
    links, health = truth_of(current, paths) if current is not None else ([], "no era yet")
    plan = decide(
        wanted.digest,
        current.blueprint.digest if current else None,
        pin,
        first_broken(links),
        asked=asked.pins,
        unpin=asked.unpin,
    )
    if current is not None and plan.kind != "deploy" and not plan.pinned and _rebuilt(wanted, current.blueprint):
        plan = replace(plan, kind="deploy", reasons=("the runtime was built anew",))
    others = [replace(paths, endpoint=name) for name in declared.rivals]
    up, owed = standing(others), store.made_way() or {}
    # What a killed run stopped comes back like what stands now, if the new era cannot be proven.
    rivals = [*up, *(one for one in others if one not in up and _owed(one, owed))]
    more = [f"the run of {owed['since']} was killed before its proof"] if owed else []
    more += [f"{', '.join(one.endpoint for one in up)} makes way"] if up else []
    more += leaving
    if more:
        plan = replace(plan, kind="repair" if plan.kind == "none" else plan.kind, reasons=(*plan.reasons, *more))
    pinned = plan.pinned or asked.pins  # a pin is proven by its era's own declaration
    facts = current.blueprint.facts if current is not None and pinned else wanted.facts
    if current is not None and plan.kind == "none":
        anew = declaration(facts) != declaration(current.blueprint.facts)
        if anew or outdated(current.meta.get("certificate")):
            plan = replace(plan, kind="prove", reasons=(_ANEW if anew else _OLDER,))
    target = current.blueprint if current is not None and plan.kind != "deploy" else wanted
    diff = _diff(paths, target)
    restored_id = restored.id if restored is not None else None
    result: dict[str, Any] = {
        "changed": plan.kind != "none"
        or plan.lift_pin
        or (asked.pins and not _agrees(pin, asked, restored_id))
        or (asked.activate and any(_to_tell(one, declared) for one in others))
        or down is not None
        or killed is not None,
        "kind": plan.kind,
        "reasons": [*plan.reasons, *(["the last run did not come to its end"] if killed is not None else [])],
        "diff": diff,
        "flipped": _flipped(diff),
        "warnings": [],
    }
    result["work"] = result["changed"]
    if plan.pinned and pin is not None:
        result["warnings"].append(_pin_warning(declared.name, pin, wanted.digest != target.digest))
    job = Job(
        target,
        current,
        plan.kind == "repair",
        store,
        paths,
        say,
        gates,
        rivals,
        retirement=retirement if leaving or owed.get("retires") else None,
        since=owed.get("since") or datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if plan.kind not in ("none", "prove"):  # what starts nothing has nothing to wait for
        try:
            foretold = _gates_before(job, declared, asked, retirement, wanted.facts if restored is None else None)
        except (FleetError, OSError) as exc:
            fault = gates.fault(exc, f"deploy of endpoint {declared.name}")
            if not dry:
                _turned_back(job, plan, declared, fault, owed=bool(owed))
            if fault is exc:
                raise
            raise fault from exc
        job = replace(job, foretold=foretold)
        if foretold is not None:
            result["fit"] = foretold.told
    if dry or not result["changed"]:
        state = _systemd.show(paths.unit)
        result["endpoint"] = row(current, paths.unit, state, health=health, pin=pin, links=links, probes=[])
        result["links"] = [link.as_dict() for link in links]
        return result
    with _alone(declared, paths) as held:
        overtaken = held.waited and plan.kind == "repair"  # it may be right by now
        if overtaken or store.current() != current or store.pin() != pin or standing(others) != up:
            raise FleetError(
                f"endpoint {declared.name} was changed by another run while this one began",
                expected="the era, pin and rivals that this run's plan was made for",
                found="another run's work",
                remedy="Run again",
            )
        result["warnings"] += held.warning
        done = _carried_out(plan, job, facts)
        if asked.pins:
            store.set_pin(_pin_of(asked, declared, done.era, restored_id))
        elif plan.lift_pin:
            store.set_pin(None)
        _tell_who_stands(store, others, declared, asked)
        job.gates.write(store.last_run_path, kind=plan.kind, era=done.era.id, served=True)
        result["pruned"] = prune(store, declared.keep_eras, declared.rungs)
    result["endpoint"] = row(
        done.era,
        paths.unit,
        _systemd.show(paths.unit),
        health="HTTP 200",
        pin=store.pin(),
        links=done.links,
        probes=done.probes,
    )
    result["links"] = [link.as_dict() for link in done.links]
    result["probes"] = done.probes
    result["gates"] = job.gates.passed
    result["ledger"] = done.ledger
    result["warnings"] += done.ledger.get("differences", [])
    result["gap_s"] = result["endpoint"]["gap_s"] = done.gap_s
    return result


def _rebuilt(wanted: Blueprint, current: Blueprint) -> bool:
    """Whether the same runtime is another build by now than the one that the era was proven with."""
    now, then = (each.facts["runtime"].get("build_id") for each in (wanted, current))
    return bool(now and then and now != then)


def _owed(rival: Paths, owed: Mapping[str, Any]) -> bool:
    """Whether a run that was killed stopped this rival, and it is still on the host."""
    return rival.endpoint in owed.get("rivals", ()) and os.path.lexists(rival.unit_file)


def _gates_before(
    job: Job, declared: Declared, asked: Asked, retirement: RetireSpec | None, fresh: Mapping[str, Any] | None
) -> Foretold | None:
    """The gates before anything is touched; what the boot of a new era (``fresh``: its facts) will take."""
    paths, gates, facts = job.paths, job.gates, job.target.facts
    state = _systemd.show(paths.unit)
    with gates.gate("foreign files"):
        if job.current is None:
            gate_foreign(paths, job.store.staged(), frees(retirement, paths))
        gate_shadow(paths, state, leaving_units(retirement))
    with gates.gate("drop-ins"):
        gate_drop_ins(paths.unit, state, facts["drop_ins"], facts.get("drop_in_digests"))
    with gates.gate("port"):
        units = [paths.unit, *(rival.unit for rival in job.rivals)]
        pids = serving_pids([paths, *job.rivals])
        gate_port(units, port_of(facts["env"]), leaving_units(retirement), pids)
    with gates.gate("cards"):
        cards, making_way = facts.get("cards", []), {*units, *leaving_units(retirement)}
        gate_cards(cards, facts.get("effective", facts["env"]), list_cards() if cards else [], making_way, pids)
    if job.repair or fresh is None:
        return None
    return gate_fit(declared, asked.rung, state.main_pid, gates, fresh)


@contextlib.contextmanager
def _alone(declared: Declared, paths: Paths) -> Iterator[Held]:
    """Hold the endpoint's lock, and those of its rivals, which a deploy stops and starts too; all in one order, so that
    no two runs wait for each other. What killed runs left unfinished on the disk is swept away."""
    purpose = f"deploy of endpoint {declared.name}"
    with contextlib.ExitStack() as stack:
        held = {}
        try:
            for name in sorted({declared.name, *declared.rivals}):
                store = EraStore(replace(paths, endpoint=name).store)
                make_dirs(store.folder)
                held[name] = stack.enter_context(file_lock(store.lock_path, wait_s=_LOCK_WAIT_S, purpose=purpose))
            for name in held:
                EraStore(replace(paths, endpoint=name).store).sweep()
            for path in (paths.env_file, paths.unit_file, paths.launcher(declared.launcher, declared.engine)):
                sweep(path)
        except OSError as exc:  # a full disk takes not even the lock's holder
            raise FleetError(f"{purpose}: its lock cannot be had: {exc}", gate="stage") from exc
        yield replace(held[declared.name], waited=any(one.waited for one in held.values()))


def _turned_back(job: Job, plan: Plan, declared: Declared, exc: FleetError, *, owed: bool) -> None:
    """A gate was red before the cut-over: bring back what a killed run had stopped, and leave the record.

    Raises the error of a way back that fails too, which tells of both.
    """
    if job.current is not None and not owed:
        with contextlib.suppress(FleetError), _alone(declared, job.paths):  # where another run is at work, it is its
            _own_files_again(job, exc)
    if owed:
        try:
            with _alone(declared, job.paths):
                go_back(job, exc)
        except FleetError as second:
            second.facts.setdefault("gate", exc.facts.get("gate"))
            record_red(job.paths, job.gates, plan.kind, second)
            raise
    record_red(job.paths, job.gates, plan.kind, exc)


def _own_files_again(job: Job, exc: FleetError) -> None:
    """Nothing was touched by this run: what serves, and would be started again at a boot, has its own payload files
    under their names, though the payload was changed before. Where that fails, truth is red and says so."""
    if job.current is None:
        return
    try:
        own_files(job.current.blueprint.facts, job.paths, job.rivals)
    except (FleetError, OSError) as second:
        exc.facts["files_not_put_back"] = str(second)


def _carried_out(plan: Plan, job: Job, wanted: Mapping[str, Any]) -> Done:
    if plan.kind == "none":
        assert job.current is not None  # decide() never answers none without a current era
        return Done(job.current, truth_of(job.current, job.paths)[0], [], {}, 0.0)
    try:
        return prove_anew(job, wanted) if plan.kind == "prove" else carry_out(job)
    except (FleetError, OSError) as exc:
        fault = job.gates.fault(exc, f"deploy of endpoint {job.paths.endpoint}")
        if "went_back_to" not in fault.facts:  # it was red before the cut-over
            _own_files_again(job, fault)
        record_red(job.paths, job.gates, plan.kind, fault)
        if fault is exc:
            raise
        raise fault from exc


def _to_tell(rival: Paths, declared: Declared) -> bool:
    """Whether a rival that was ever deployed does not know yet that it stands down for ``declared``."""
    store = EraStore(rival.store)
    return store.linked_id("current") is not None and (store.stood_down() or {}).get("for") != declared.name


def _tell_who_stands(store: EraStore, others: Sequence[Paths], declared: Declared, asked: Asked) -> None:
    """Rivals that made way by an operator's word stay down until his next; by the inventory's they are inactive.

    What made way for one of them, in a run that was killed, no longer waits for it.
    """
    since = datetime.now(UTC).isoformat(timespec="seconds")
    for other in others:
        rival = EraStore(other.store)
        rival.set_made_way(None)
        if asked.activate:
            if _to_tell(other, declared):
                rival.set_stood_down({"for": declared.name, "since": since})
        elif rival.stood_down() is not None:
            rival.set_stood_down(None)
    if store.stood_down() is not None:
        store.set_stood_down(None)
