# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out an endpoint's plan: stage, cut over, prove, commit; or go back to what served before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import certify, probing_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import (
    Say,
    alive,
    cut_over,
    prove,
    put_files,
    put_launcher,
    remove_files,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._engines import gate_ledger, gate_ready
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import Foretold
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._own_files import own_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire import retire, undo
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import RetireSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link
from ansible_collections.dank.llm_fleet.plugins.module_utils._way_back import as_found

__all__ = ["Done", "Job", "carry_out", "go_back", "prove_anew"]


@dataclass(frozen=True)
class Job:
    """What is to be deployed, over what; ``rivals`` serve now and make way; ``foretold`` is the memory of a new era,
    ``retirement`` what leaves for good. ``since`` is when the first of what makes way began to: in this run, or in one
    that was killed."""

    target: Blueprint
    current: Era | None
    repair: bool
    store: EraStore
    paths: Paths
    say: Say
    gates: Gates
    rivals: Sequence[Paths] = ()
    foretold: Foretold | None = None
    retirement: RetireSpec | None = None
    since: str = ""


@dataclass(frozen=True)
class Done:
    """The proven era; ``ledger`` is what its boot took (see ``_gate_ledger``), ``gap_s`` how long nothing served: from
    the stop to the first healthy answer."""

    era: Era
    links: list[Link]
    probes: list[dict[str, Any]]
    ledger: dict[str, Any]
    gap_s: float


def carry_out(job: Job) -> Done:
    """Do the job. When the proof of a new era breaks, what served before serves again before the error is raised."""
    paths, say = job.paths, job.say
    with job.gates.gate("stage"):
        if job.repair:
            assert job.current is not None
            era = job.current
        else:
            say("stage")
            era = job.store.stage(job.target)
        own_files(era.blueprint.facts, paths, job.rivals)
        put_launcher(era.blueprint, paths)
    with job.gates.gate("unit"):
        _systemd.verify_unit(paths.unit, era.blueprint.unit_text)
    gate_ready(era.blueprint.facts, job.gates, idle=not (_systemd.show(paths.unit).main_pid or job.rivals))
    if job.rivals or job.retirement is not None:
        names = [rival.endpoint for rival in job.rivals]
        job.store.set_made_way({"since": job.since, "rivals": names, "retires": job.retirement is not None})
    try:
        begun = time.monotonic()
        if job.retirement is not None:
            say("retire what it replaces")
            with job.gates.gate("retire"):
                retire(job.retirement)
        say("cut over")
        patience_s = _patience_s(job)
        stopped = cut_over(era.blueprint, paths, say, job.gates, timeout_s=patience_s, rivals=job.rivals)
        proof = prove(era, paths, say, job.gates, fresh=True, expired=() if job.repair else None)
        gap_s = round(proof.healthy_at - (begun if job.retirement is not None else stopped), 1)
        engine = era.blueprint.facts["engine"]
        with job.gates.gate("ledger"), alive(paths.unit, None, engine=engine, gate="ledger"):
            ledger = _ledger(era, job)
    except (FleetError, OSError) as exc:
        fault = job.gates.fault(exc, f"cut over of {paths.unit}")
        if not job.repair or job.rivals or job.retirement is not None:
            try:  # serving again comes first; the record of the failure is written in any case
                go_back(job, fault)
            finally:
                if not job.repair:
                    job.store.fail(era, fault.message)
        else:
            fault.facts["went_back_to"] = _not_put_right(era, job.store)
        if fault is exc:
            raise
        raise fault from exc
    probes = [verdict.as_dict() for verdict in proof.verdicts]
    certificate = certify(
        era.blueprint.digest,
        era.blueprint.facts,
        truth=[link.as_dict() for link in proof.links],
        probes=[*_proven_before(era, probes), *probes],
        ledger=ledger,
        gap_s=gap_s,
        fit=_kept(job.foretold) or (era.meta.get("certificate") or {}).get("fit"),
        probing=probing_of(era.meta.get("certificate")) if job.repair else None,
    )
    proven = job.store.commit(era, certificate)
    job.store.set_made_way(None)
    return Done(proven, proof.links, probes, ledger, gap_s)


def prove_anew(job: Job, wanted: Mapping[str, Any]) -> Done:
    """Prove the current era by the client and probes of ``wanted``, and keep both with the new certificate. It runs on
    whatever comes of it; memory and gap are those of its start."""
    assert job.current is not None
    told = {**job.current.blueprint.facts, **{key: wanted.get(key) or {} for key in ("client", "probes")}}
    era = job.current.with_facts(told)
    try:
        proof = prove(era, job.paths, job.say, job.gates, fresh=False)
    except FleetError as exc:
        exc.facts["went_back_to"] = f"era {era.id}, as before: nothing was restarted"
        raise
    before = era.meta.get("certificate") or {}
    probes = [verdict.as_dict() for verdict in proof.verdicts]
    certificate = certify(
        era.blueprint.digest,
        told,
        truth=[link.as_dict() for link in proof.links],
        probes=probes,
        ledger=before.get("ledger") or {},
        gap_s=before.get("gap_s") or 0.0,
        fit=before.get("fit"),
    )
    return Done(job.store.commit(era, certificate), proof.links, probes, {}, 0.0)


def _not_put_right(era: Era, store: EraStore) -> str:
    """After a repair that failed: the era stays, and which one an operator may choose to go back to."""
    try:
        before = store.previous_certified()
    except FleetError as exc:  # the repair's own fault is the one to raise
        return f"era {era.id}, which was not put right; the one before cannot be read: {exc.message}"
    way = "" if before is None else f"; era {before.id} was certified before it: playbooks/rollback.yml -e era=previous"
    return f"era {era.id}, which was not put right{way}"


def _proven_before(era: Era, again: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts of the same era's certificate that were not asked for again: a restart takes no proof away."""
    asked = {probe["probe"] for probe in again}
    return [probe for probe in (era.meta.get("certificate") or {}).get("probes", []) if probe["probe"] not in asked]


def _kept(foretold: Foretold | None) -> dict[str, Any] | None:
    """What a certificate keeps of the memory that was foretold."""
    return None if foretold is None else {key: foretold.told[key] for key in ("cards", "host", "split", "measured")}


def _ledger(era: Era, job: Job) -> dict[str, Any]:
    """What the start that was just proven took of the cards."""
    job.say("ledger: the boot's log and the cards' memory")
    facts = era.blueprint.facts
    state = _systemd.show(job.paths.unit)
    predicted = None if job.foretold is None else job.foretold.ledger
    return gate_ledger(job.paths.unit, state.invocation_id, facts["env"], facts.get("cards", []), predicted)


def _unretired(job: Job, fault: FleetError) -> str:
    """Put back what was retired, as it was before; in words."""
    if job.retirement is None:
        return ""
    job.say("what was retired comes back")
    try:
        told = undo(job.retirement, since=job.since)
    except (FleetError, OSError) as second:
        raise FleetError(
            f"{fault.message} And what was retired did not come back whole: {second}",
            remedy=f"Run playbooks/retire.yml -e slug={job.retirement.slug} -e restore=true",
            went_back_to=None,
        ) from second
    return f"; what was retired is back: {', '.join(told['restored']) or 'nothing had been'}"


def _patience_s(job: Job) -> int:
    """Seconds that stopping what runs and starting the other may take by the units' own limits."""
    facts = [job.target.facts, *([] if job.current is None else [job.current.blueprint.facts])]
    return max(int(each["deadline_s"]) for each in facts) + max(int(each["timeout_stop_s"]) for each in facts) + 60


def go_back(job: Job, fault: FleetError) -> None:
    """Have serve again what served before, and put back what was retired; ``fault`` tells then what serves."""
    fault.facts["went_back_to"] = _served_before(job, fault) + _unretired(job, fault)
    job.store.set_made_way(None)


def _served_before(job: Job, fault: FleetError) -> str:
    """Start what served before, and prove it; says what that is."""
    current = None if job.rivals else job.current
    if current is not None:
        job.say(f"back to era {current.id}")
        try:
            current, differs = as_found(current, job.paths.unit, job.target.facts["drop_ins"])
            back = _own_files(current, job.paths, (), _patience_s(job))
            cut_over(current.blueprint, job.paths, job.say, Gates(), timeout_s=_patience_s(job))
            # It is certified: what it can do was seen.
            prove(current, job.paths, job.say, Gates(), fresh=True, expired=())
        except (FleetError, OSError) as second:
            raise FleetError(
                f"{fault.message} And the last certified era {current.id} does not serve either: {second}",
                remedy="The endpoint is down; mend what the second message names and run site.yml again",
                went_back_to=None,
            ) from second
        return f"era {current.id}, which serves again{differs}{back}"
    try:
        if job.current is None:
            job.say("the first deploy failed: the unit is taken away again")
            remove_files(job.paths, timeout_s=_patience_s(job))
        else:
            put_files(job.current.blueprint, job.paths)
            _systemd.stop_and_disable(job.paths.unit, timeout_s=_patience_s(job))
    except (FleetError, OSError) as second:
        raise FleetError(
            f"{fault.message} And its unit {job.paths.unit} could not be taken away: {second}",
            remedy=f"Mend what the second message names, then run systemctl disable --now {job.paths.unit}",
            went_back_to=None,
        ) from second
    if not job.rivals:
        return "nothing: this was the first deploy; unit and env file were taken away"
    return ", ".join(_stand_up(rival, job, fault) for rival in job.rivals) + ", which serves again"


def _own_files(era: Era, paths: Paths, rivals: Sequence[Paths], patience_s: float) -> str:
    """Have the era's own payload files under their names; says which were others. Where that cannot be, the unit is
    stopped: it would serve what was never proven."""
    try:
        back = own_files(era.blueprint.facts, paths, rivals)
    except (FleetError, OSError):
        put_files(era.blueprint, paths)
        _systemd.stop_and_disable(paths.unit, timeout_s=patience_s)
        raise
    return f", with its own {', '.join(back)} put back" if back else ""


def _stand_up(rival: Paths, job: Job, fault: FleetError) -> str:
    """Start and prove an endpoint that had made way."""
    say = job.say
    say(f"back to {rival.endpoint}")
    try:
        era = EraStore(rival.store).current()
        if era is None:
            _systemd.enable(rival.unit)
            _systemd.start(rival.unit, timeout_s=300)
            return f"{rival.unit} (started, not proven: it has no era)"
        era, differs = as_found(era, rival.unit)
        facts = era.blueprint.facts
        patience_s = int(facts["deadline_s"]) + int(facts["timeout_stop_s"]) + 60
        back = _own_files(era, rival, [job.paths], patience_s)
        cut_over(era.blueprint, rival, say, Gates(), timeout_s=patience_s)
        prove(era, rival, say, Gates(), fresh=True, expired=())
    except (FleetError, OSError) as second:
        raise FleetError(
            f"{fault.message} And {rival.endpoint}, which had made way, does not serve either: {second}",
            remedy=f"Both are down; mend what the second message names, then run systemctl start {rival.unit}",
            went_back_to=None,
        ) from second
    return f"{rival.endpoint} in era {era.id}{differs}{back}"
