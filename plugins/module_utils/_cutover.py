# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a deploy that touches a running endpoint: put files, restart, wait, prove, and go back on failure."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _proc, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._diagnosis import diagnose, told_by_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._engines import chain
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import (
    Verdict,
    declare,
    probes_of,
    require_probes,
    run,
    select,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import (
    Link,
    Observed,
    launcher_fault,
    observe,
    require,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth_files import payload_paths

__all__ = [
    "Proof",
    "Say",
    "alive",
    "api_of",
    "await_health",
    "cut_over",
    "gate_drop_ins",
    "gate_foreign",
    "gate_port",
    "gate_shadow",
    "hold",
    "look_at",
    "prove",
    "put_files",
    "put_launcher",
    "remove_files",
    "standing",
    "start_fault",
]

Say = Callable[..., None]  # (step, seconds in it = 0)
_LOG_LINES = 5000  # of a start, searched for its cause; a boot at verbosity 4 writes some 300
_LAST_WORDS = 20  # of them, shown
_MOMENT_S = 0.5  # that systemd may take to see that a process has ended


def gate_port(units: Collection[str], port: int, leaving: Collection[str] = (), pids: Collection[int] = ()) -> None:
    """Refuse when anything but ``units`` (the endpoint's, and rivals that make way) listens on the port.

    ``leaving`` are units that will be retired first, of whichever manager, ``pids`` the processes of ``units`` that
    run elsewhere, as a container's do.
    """
    free = {*units, *leaving}
    others = [
        owner
        for owner in _proc.listeners(port)
        # A unit of a user's manager is told as "NAME of user@UID.service".
        if owner.unit not in free and owner.pid not in pids and owner.unit.partition(" of ")[0] not in leaving
    ]
    if others:
        who = "; ".join(owner.words for owner in others)
        raise FleetError(
            f"port {port} is taken",
            expected=f"a free port, or {' or '.join(units)} alone on it",
            found=who,
            remedy="Stop that process by its id (systemctl stop its unit), or give the endpoint another LISTEN_PORT",
            gate="port",
        )


def gate_drop_ins(
    unit: str, state: _systemd.UnitState, declared: list[str], proven: Mapping[str, str] | None = None
) -> None:
    """Refuse an undeclared drop-in before anything is touched: it would override what is deployed.

    ``proven`` are the digests of the declared ones' texts in the era that will be started (see ``text_digests``).
    """
    strange = sorted(set(_systemd.drop_ins_of(unit, state)) - set(declared))
    if strange:
        raise FleetError(
            f"unit {unit} has a drop-in that nobody declared",
            expected=", ".join(declared) or "no drop-in",
            found=", ".join(strange),
            remedy="Move it away; or, if it is wanted (a distribution may have some in service.d, for all services), "
            f"declare it: llm_endpoints.{unit.removesuffix('.service')}.drop_ins: [{', '.join(strange)}]",
            gate="drop-ins",
        )
    for path, digest in _systemd.text_digests(proven or {}).items():
        if digest != (proven or {})[path]:
            raise FleetError(
                f"drop-in {path} of {unit} is not the text that the era was proven with",
                expected=f"sha256 {(proven or {})[path]}",
                found=digest if " " in digest else f"sha256 {digest}",
                remedy="Put its old text back; or deploy what the inventory declares, which takes the new one",
                gate="drop-ins",
            )


def gate_foreign(paths: Paths, staged: Mapping[str, Collection[str]], freed: Collection[str] = ()) -> None:
    """Before a first deploy, refuse files of the endpoint's names that are not ours: they would be overwritten.

    ``staged`` gives the sha256 of every ``env`` and ``unit`` staged so far: a first deploy that was killed midway
    leaves its own files, and the next run goes on with them. ``freed`` are files that will be retired first.
    """
    for path, kind in ((paths.unit_file, "unit"), (paths.env_file, "env")):
        data = read_optional(path)
        if path in freed:
            continue
        if os.path.islink(path):
            found = f"a link to {os.readlink(path)}"
        elif data is None or hashlib.sha256(data).hexdigest() in staged[kind]:
            continue
        else:
            found = f"{'a unit' if kind == 'unit' else 'an env file'} that this collection did not write"
        raise FleetError(
            f"{path} is there already, and no era of endpoint {paths.endpoint} is",
            expected="nothing of that name before the first deploy",
            found=found,
            remedy=f"Name it under llm_endpoints.{paths.endpoint}.replaces, which retires it, and run again",
            gate="foreign files",
        )


def gate_shadow(paths: Paths, state: _systemd.UnitState, leaving: Collection[str] = ()) -> None:
    """Refuse a unit of the endpoint's name from another file: a quadlet's, a package's, or one that comes first.

    ``leaving`` are units that will be retired first.
    """
    if state.fragment_path in ("", paths.unit_file) or paths.unit in leaving:
        return
    raise FleetError(
        f"systemd has a unit {paths.unit} from another file",
        expected=f"{paths.unit_file}, or no unit of that name",
        found=state.fragment_path,
        remedy=f"Name it under llm_endpoints.{paths.endpoint}.replaces, which retires it, or move that file away and "
        "run systemctl daemon-reload",
        gate="foreign files",
    )


def put_launcher(blueprint: Blueprint, paths: Paths) -> None:
    """Write the launcher under its content's name where it is not there as it was proven; nothing runs it yet."""
    path = paths.launcher(blueprint.launcher_text, blueprint.facts["engine"])
    if launcher_fault(path, blueprint.launcher_text):
        make_dirs(os.path.dirname(path))
        atomic_write(path, blueprint.launcher_text.encode(), mode=0o755)


def put_files(blueprint: Blueprint, paths: Paths) -> None:
    """Write launcher, env file and unit file where they are not already so, and have systemd read them."""
    put_launcher(blueprint, paths)
    for path, text in ((paths.env_file, blueprint.env_text), (paths.unit_file, blueprint.unit_text)):
        if os.path.islink(path) or read_optional(path) != text.encode():
            make_dirs(os.path.dirname(path))
            atomic_write(path, text.encode(), mode=0o644)
    _systemd.daemon_reload()
    _systemd.enable(paths.unit)


def standing(rivals: Sequence[Paths]) -> list[Paths]:
    """Those of ``rivals`` that run, or would at the next boot."""
    found = []
    for rival in rivals:
        state = _systemd.show(rival.unit)
        if state.main_pid or state.unit_file_state == "enabled":
            found.append(rival)
    return found


def cut_over(
    blueprint: Blueprint, paths: Paths, say: Say, gates: Gates, *, timeout_s: float, rivals: Sequence[Paths] = ()
) -> float:
    """Put the era's files in place, stop what serves, wait until port and cards are free, start the unit.

    ``rivals`` are endpoints that make way: stopped, and not started at the next boot. Returns when the stop began
    (``time.monotonic``): from then on nothing serves. ``timeout_s`` is for each stop, the wait, and the start.
    """
    with gates.gate("files"):
        put_files(blueprint, paths)
    pids = [state.main_pid for state in map(_systemd.show, [paths.unit, *(rival.unit for rival in rivals)])]
    say("stop what serves")
    stopped = time.monotonic()
    for rival in rivals:
        _systemd.stop_and_disable(rival.unit, timeout_s=timeout_s)
    _systemd.stop(paths.unit, timeout_s=timeout_s)
    port, cards = _envspec.port_of(blueprint.facts["env"]), blueprint.facts.get("cards", [])
    with gates.gate("drain"):
        drain(paths.endpoint, [pid for pid in pids if pid], port, cards, deadline_s=timeout_s, say=say)
    say("start")
    with gates.gate("start"):
        _start(paths.unit, timeout_s=timeout_s, engine=blueprint.facts["engine"])
    return stopped


def remove_files(paths: Paths, timeout_s: float) -> None:
    """Undo a first deploy that failed: the unit is stopped and its two files are gone; the era keeps their text."""
    if os.path.lexists(paths.unit_file):  # a deploy that broke before the unit was written has none to stop
        _systemd.stop_and_disable(paths.unit, timeout_s=timeout_s)
    for path in (paths.unit_file, paths.env_file):
        if os.path.lexists(path):
            os.unlink(path)
    _systemd.daemon_reload()


def _start(unit: str, *, timeout_s: float, engine: str) -> None:
    """Start ``unit``; what systemd refuses or cannot run is diagnosed like a start that dies."""
    try:
        _systemd.start(unit, timeout_s=timeout_s)
    except FleetError as exc:
        raise start_fault(unit, exc, engine) from exc


def start_fault(unit: str, exc: FleetError, engine: str) -> FleetError:
    """The diagnosis of a start that systemd reported as failed by ``exc``."""
    what = f"{unit} does not start"
    expected = "a start that systemd reports as done"
    state = _systemd.show(unit)
    return _fault(what, expected, f"{state.words}; {exc.found}", unit, state, (), engine, gate="start")


def _fault(
    what: str,
    expected: Any,
    found: str,
    unit: str,
    state: _systemd.UnitState,
    seen: Collection[str],
    engine: str,
    *,
    gate: str,
    port: int = 0,
) -> FleetError:
    """The error of a start that failed: the diagnosis, then what was found, then the last words of the log.

    ``seen`` are the invocations that belong to this start; none means that of ``state``. Where it could not have its
    ``port``, who has it.
    """
    log = _systemd.journal(unit, *(seen or (state.invocation_id,)), lines=_LOG_LINES)
    diagnosis = diagnose(state, log, engine)
    last = "\n".join(log.splitlines()[-_LAST_WORDS:])
    evidence = "".join(f"\n  {line}" for line in diagnosis.evidence)
    told = f"\nWhat told:{evidence}" if evidence else ""
    if port and any(cause.signature.name == "port-taken" for cause in diagnosis.causes):
        holders = "; ".join(owner.words for owner in _proc.listeners(port) if owner.unit != unit)
        found += f"; port {port} is held by {holders}" if holders else f"; nobody else holds port {port} now"
    return FleetError(
        what,
        expected=expected,
        found=f"{diagnosis.words} ({found})",
        remedy=f"{diagnosis.remedy}.{told}\nIts last words:\n{last}",
        gate=gate,
        diagnosis=diagnosis.as_dict(),
    )


def await_health(unit: str, api: Api, deadline_s: float, say: Say, *, engine: str = "llamacpp") -> _systemd.UnitState:
    """Wait until the unit runs and ``/health`` answers 200; a start that ends or repeats fails at once."""
    started = time.monotonic()
    last = "nothing yet"
    seen: dict[str, None] = {}  # this start, and those that systemd made of it since
    while True:
        state = _systemd.show(unit)
        if state.invocation_id:
            seen[state.invocation_id] = None
        waited = time.monotonic() - started
        ended = state.active_state in ("failed", "inactive") or state.sub_state.startswith("auto-restart")
        if state.n_restarts > 0 or ended:
            expected = "a server that runs until /health answers 200"
            found = f"{state.words}, exit status {state.exit_status}, {state.n_restarts} restarts"
            what = f"{unit} does not stay up"
            raise _fault(what, expected, found, unit, state, seen, engine, gate="health", port=api.port)
        if state.running:
            answer = api.get("/health", timeout_s=5)
            if answer.status == 200:
                return state
            last = answer.words
        if waited > deadline_s:
            expected = f"HTTP 200 from /health within {deadline_s:g} s"
            what = f"{unit} is not healthy"
            raise _fault(what, expected, last, unit, state, seen, engine, gate="health", port=api.port)
        say(f"waiting for health ({last[:60]})", int(waited))
        time.sleep(0.1 if waited < 5 else 1.0)


@dataclass(frozen=True)
class Proof:
    """``healthy_at`` is when ``/health`` first answered 200 (``time.monotonic``)."""

    links: list[Link]
    verdicts: list[Verdict]
    healthy_at: float


def prove(
    era: Era, paths: Paths, say: Say, gates: Gates, *, fresh: bool, expired: Collection[str] | None = None
) -> Proof:
    """Through the gates health, truth and probes, and with ``fresh`` hold: the start must go on as it was proven.

    ``expired`` names the probes that lost their proof, None all (see ``_probe.select``). Raises a FleetError at the
    first broken link or failed probe.
    """
    facts = era.blueprint.facts
    with gates.gate("health"):
        with alive(paths.unit, None, engine=facts["engine"], gate="health"):
            api = api_of(facts["env"])
        before = await_health(paths.unit, api, facts["deadline_s"], say, engine=facts["engine"])
    healthy_at = time.monotonic()
    say("truth: unit, process, socket, answer")
    with gates.gate("truth"), alive(paths.unit, before, engine=facts["engine"], gate="truth"):
        seen = look_at(era, paths, api)
        links = chain(era, paths, seen, api)
        require(links, paths.endpoint)
    with gates.gate("probes"), alive(paths.unit, before, engine=facts["engine"], gate="probes"):
        declared = declare(facts)
        verdicts = run(api, declared, select(probes_of(declared), expired), stop=True, say=say)
        require_probes(verdicts, paths.unit)
    if fresh:
        with gates.gate("hold"):
            hold(paths.unit, before, facts["settle_s"], say, engine=facts["engine"])
    return Proof(links, verdicts, healthy_at)


def look_at(era: Era, paths: Paths, api: Api) -> Observed:
    """Everything of the endpoint that truth compares with ``era``."""
    text = era.blueprint.launcher_text
    files = payload_paths(era.blueprint.facts)
    launcher = (paths.launcher(text, era.blueprint.facts["engine"]), text)
    return observe(paths.unit, paths.unit_file, paths.env_file, api, files, paths.stamps, launcher)


def _start_of(state: _systemd.UnitState) -> dict[str, Any]:
    """What tells one start from another."""
    return {"pid": state.main_pid, "invocation": state.invocation_id, "restarts": state.n_restarts}


@contextlib.contextmanager
def alive(unit: str, before: _systemd.UnitState | None, *, engine: str, gate: str) -> Iterator[None]:
    """Around checks of a server: where one fails because its start (``before``, if it is known) ended, the error is how
    it ended; where it runs on, the check's own, with what its log tells."""
    try:
        yield
    except FleetError as exc:
        time.sleep(_MOMENT_S)
        after = _systemd.show(unit)
        if after.running and (before is None or _start_of(after) == _start_of(before)):
            told = told_by_log(exc, _systemd.journal(unit, after.invocation_id, lines=_LOG_LINES), engine)
            if told is exc:
                raise
            raise told from exc
        starts = [state.invocation_id for state in (before, after) if state is not None]
        seen = dict.fromkeys(each for each in starts if each)
        what, found = f"{unit} ended at: {exc.what}", f"{after.words}; {exc.found}"
        raise _fault(what, exc.expected, found, unit, after, seen, engine, gate=gate) from exc


def hold(unit: str, before: _systemd.UnitState, settle_s: float, say: Say, *, engine: str) -> None:
    """The start that was proven must still be the one that runs after ``settle_s`` seconds."""
    say(f"hold: {settle_s:g} s on the same start")
    time.sleep(settle_s)
    after = _systemd.show(unit)

    if _start_of(after) != _start_of(before) or not after.running:
        found = str({**_start_of(after), "state": after.words})
        seen = dict.fromkeys(each for each in (before.invocation_id, after.invocation_id) if each)
        raise _fault(f"{unit} did not hold", _start_of(before), found, unit, after, seen, engine, gate="hold")
