# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A qualification from end to end: look, window, steps, way back, seal, and only then a state that is ready."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import Say
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_write,
    make_dirs,
    read_json,
    read_optional,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked, RunPaths, asked_of, setup_argv
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_checks import MARK, Plan, look_before
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_evidence import (
    put,
    read,
    sha256,
    verify,
    write_derived,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import as_user
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_steps import Steps, declared_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_window import (
    Window,
    close,
    open_window,
    require_open,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import faults_of, read_state
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths

__all__ = ["qualify"]

_SETUP_S = 4 * 3600.0  # hashing 175 GiB, and deriving a table of 54 GB
_PROBES_S = 1800.0


def _key(asked: Asked) -> str:
    """One digest of what is declared, without the run's own places: another setup is not qualified by this run."""
    told = {key: value for key, value in asdict(asked).items() if key not in ("scratch_dir", "port", "container")}
    return sha256(json.dumps(told, sort_keys=True, default=str).encode())


def _sealed(asked: Asked, runs: RunPaths) -> Mapping[str, Any] | None:
    """The seal of the setup, its run verified; None where no run has qualified it. A FleetError for evidence that was
    changed, and for a setup that is declared otherwise by now."""
    seal: dict[str, Any] | None = read_json(runs.seal)
    if seal is None:
        return None
    verify(os.path.join(runs.folder, seal["run"]), seal["digest"])
    if seal["asked"] != _key(asked):
        raise FleetError(
            f"setup {asked.setup} of endpoint {asked.endpoint} is declared otherwise than it was qualified",
            expected=f"what run {seal['run']} was asked for ({runs.folder}/{seal['run']}/asked.json)",
            found="another declaration",
            remedy="Qualify it anew with -e again=true, or take the change back",
        )
    return seal


def _is_ready(asked: Asked, seal: Mapping[str, Any]) -> bool:
    """Whether the state is the sealed one; False where it is still the one that it replaces."""
    data = read_optional(asked.file)
    found = None if data is None else sha256(data)
    if found == seal["state"]:
        return True
    if found is None or found == seal["replaces"]:
        return False
    raise FleetError(
        f"setup state {asked.file} is not the one that run {seal['run']} qualified",
        expected=f"sha256 {seal['state']}",
        found=f"sha256 {found}",
        remedy="Qualify it anew with -e again=true: a state that was changed is not qualified",
    )


def _promote(declared: Declared, asked: Asked, run: str) -> None:
    """Put the sealed state in its place, the last step of all: from here on it is ready."""
    entry = pwd.getpwnam(declared.user)
    path = os.path.join(run, "state.json")
    faults = faults_of(read_state(path), asked.ple_bytes, declared_files(declared, asked.model_dir))
    if faults:
        raise FleetError(
            f"what run {os.path.basename(run)} qualified is not whole any more",
            expected="every file as its setup verified it",
            found="; ".join(faults),
            remedy="Have the files back, or qualify anew with -e again=true",
        )
    home = os.path.dirname(asked.file)
    make_dirs(home, 0o700, entry.pw_uid, entry.pw_gid)
    if os.path.exists(os.path.join(asked.scratch_dir, MARK)):
        for name in ("setup.json", "setup.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(asked.scratch_dir, name))
        # What setup wrote beside the state, as a placement of its own.
        as_user(declared.user, ["cp", "-a", "--", f"{asked.scratch_dir}/.", home], home, timeout_s=3600)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(home, MARK))
    atomic_write(asked.file, read_optional(path) or b"", 0o600, entry.pw_uid, entry.pw_gid)
    _sweep(asked)


def _sweep(asked: Asked) -> None:
    """Remove the scratch folder, if an earlier run made it."""
    if os.path.exists(os.path.join(asked.scratch_dir, MARK)):
        shutil.rmtree(asked.scratch_dir)


def _new_run(runs: RunPaths) -> RunPaths:
    """The time; the second run of one second has a number."""
    stem = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    return replace(runs, id=next(name for name in names if not os.path.lexists(os.path.join(runs.folder, name))))


def _told(asked: Asked, runs: RunPaths, seal: Mapping[str, Any] | None) -> dict[str, Any]:
    run = None if seal is None else os.path.join(runs.folder, seal["run"])
    page = None if run is None else (read_optional(os.path.join(run, "runbook.md")) or b"").decode()
    return {"setup": asked.setup, "state": asked.file, "run": run, "runbook": page}


def qualify(
    declared: Declared,
    paths: Paths,
    setup: str,
    *,
    again: bool = False,
    incumbent: str = "",
    warnings: Sequence[str] = (),
    despite_memory: bool = False,
    limit_s: float | None = None,
    dry: bool = False,
    say: Say = lambda _step, _seconds=0: None,
) -> dict[str, Any]:
    """Qualify ``setup`` of the endpoint; what served before serves again, proven, when this returns or raises.

    One that is qualified as it is declared stays as it is unless ``again``. ``dry``: say what would be done, and do
    nothing. The result holds ``changed``, ``work``, the ``run``'s folder, ``state`` and the ``runbook``'s text. A
    FleetError where the setup does not qualify, with the ``evidence``'s folder, and where what served does not again.
    """
    asked = asked_of(declared, setup)
    runs = RunPaths.of(paths, asked)
    if dry:
        seal = None if again else _sealed(asked, runs)
        if seal is not None:
            ready = _is_ready(asked, seal)
            return {"changed": not ready, "work": not ready, **_told(asked, runs, seal)}
        plan = look_before(
            declared, paths, asked, incumbent=incumbent, warnings=warnings, despite_memory=despite_memory
        )
        return {"changed": True, "work": True, **_told(asked, runs, None), "would": _would(asked, plan)}
    make_dirs(paths.store)
    with contextlib.ExitStack() as held:
        every = [paths, *(replace(paths, endpoint=name) for name in declared.rivals)]
        for one in sorted(every, key=lambda one: one.store):  # in the order that a deploy takes them
            if os.path.isdir(one.store):
                purpose = f"qualification of setup {setup} of endpoint {declared.name}"
                held.enter_context(file_lock(EraStore(one.store).lock_path, wait_s=5, purpose=purpose))
        seal = None if again else _sealed(asked, runs)
        if seal is None:
            plan = look_before(
                declared, paths, asked, incumbent=incumbent, warnings=warnings, despite_memory=despite_memory
            )
            runs = _new_run(runs)
            _measure(declared, paths, asked, plan, runs, limit_s, say)
            seal = _seal(asked, runs, say)
        elif _is_ready(asked, seal):
            return {"changed": False, "work": False, **_told(asked, runs, seal)}
        say("ready")
        _promote(declared, asked, os.path.join(runs.folder, seal["run"]))
        return {"changed": True, "work": True, **_told(asked, runs, seal)}


def _would(asked: Asked, plan: Plan) -> dict[str, Any]:
    return {
        "stops": [one.paths.unit for one in plan.incumbents],
        "masks": list(plan.makes_way),
        "setup": setup_argv(asked, plan.fork.checkout, plan.fork.image),
        "serves_at": asked.port,
        "container": asked.container,
        "scratch": asked.scratch_dir,
        "ready": asked.file,
    }


def _measure(
    declared: Declared,
    paths: Paths,
    asked: Asked,
    plan: Plan,
    runs: RunPaths,
    limit_s: float | None,
    say: Say,
) -> None:
    """Everything between the stop and the way back; whatever happens, production serves again when this ends."""
    patience_s = float(declared.deadline_s + declared.timeout_stop_s + 60)
    limit = limit_s if limit_s is not None else _SETUP_S + 2 * patience_s + _PROBES_S
    trial = TrialPaths.of(paths, runs.id, 0)
    window = Window(trial, plan.makes_way, plan.incumbents, declared.user, asked.container, limit, patience_s)
    steps = Steps(declared, asked, plan, window, runs.run, say)
    fault: FleetError | None = None
    stopped = time.monotonic()
    try:
        _sweep(asked)
        steps.note_asked()
        say("stop what serves")
        open_window(window, EraStore(paths.store).lock_path)
        _walk(steps, limit, patience_s)
    except (FleetError, OSError) as exc:
        fault = exc if isinstance(exc, FleetError) else FleetError(f"qualification of setup {asked.setup}: {exc}")
    try:
        say("end of the window")
        names, healthy_at = close(window, say)
    except (FleetError, OSError) as second:
        first = f"{fault.message} And after it: " if fault is not None else ""
        raise FleetError(
            f"qualification of setup {asked.setup}: {first}{second}",
            remedy="Mend what is named and run site.yml",
            evidence=runs.run,
            went_back_to=None,
        ) from second
    if fault is not None:
        fault.facts.update(evidence=runs.run, went_back_to=", ".join(names) or "nothing, as before")
        raise fault
    put(
        runs.run,
        "window",
        {
            "gap_s": round(healthy_at - stopped, 1),
            "served_before": [{"endpoint": name} for name in names],
            "warnings": [{"text": text} for text in plan.warnings],
        },
    )


def _walk(steps: Steps, limit_s: float, patience_s: float) -> None:
    """The steps in their order; the window must be open at each."""
    say, asked, window = steps.say, steps.asked, steps.window
    pids = [one.pid for one in window.incumbents if one.pid]
    pids += sorted(steps.plan.served_by)
    drain(asked.endpoint, pids, asked.port, steps.declared.cards, deadline_s=patience_s, say=say)
    require_open(window)
    say("setup")
    steps.setup(limit_s)
    require_open(window)
    say("start")
    blueprint, api = steps.start(patience_s)
    say("truth")
    steps.truth(blueprint, api)
    steps.probes(blueprint, api)
    say("pinning")
    steps.pinning(blueprint.facts["effective"])
    say("headroom")
    steps.headroom()
    require_open(window)
    say("stop the profile")
    _systemd.stop(replace(window.trial, number=2).unit, timeout_s=patience_s)


def _seal(asked: Asked, runs: RunPaths, say: Say) -> Mapping[str, Any]:
    """Derive runbook and state, and record that this run qualifies the setup; a FleetError where it does not."""
    say("judge")
    write_derived(runs.run)
    _evidence, digest = read(runs.run)
    before, state = read_optional(asked.file), read_optional(os.path.join(runs.run, "state.json")) or b""
    seal = {
        "run": runs.id,
        "digest": digest,
        "asked": _key(asked),
        "state": sha256(state),
        "replaces": None if before is None else sha256(before),
    }
    say("seal")
    atomic_write(runs.seal, (json.dumps(seal, indent=2) + "\n").encode())
    return seal
