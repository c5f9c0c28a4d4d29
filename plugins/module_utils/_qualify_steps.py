# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a qualification within its window: each does one thing and writes what it saw as evidence."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc, _r9v_blueprint, _r9v_truth
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import (
    Say,
    await_health,
    put_launcher,
    start_fault,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_write,
    make_dirs,
    read_json,
    read_optional,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import declare, probes_of, select
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import run as run_probes
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    failed,
    passed,
    user,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import Declaration
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked, scratch_of, setup_argv
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_checks import MARK, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_evidence import put
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork, search_path
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_window import Window
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman, processes
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import faults_of, read_state
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import candidate_command
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import observe
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth_files import payload_paths

__all__ = ["Steps", "declared_files", "judge_long_context", "setup_command"]

# Links that are about a unit file, which a transient unit has not.
_OF_THE_FILE = ("unit file", "fragment path", "enabled")
_WORD = " x"  # at least one token to every tokeniser, and hardly more
_SLOWEST = 100.0  # tokens of a prompt in a second, below which a long prompt is given up


def setup_command(window: Window, argv: Sequence[str], checkout: str, out: str) -> list[str]:
    """The command that runs the fork's setup as a unit bound to the guard, so that it does not outlive the window."""
    trial = replace(window.trial, number=1)
    makes_way = " ".join(window.makes_way)
    properties = [
        f"Description=Setup of an R9V profile for LLM endpoint {trial.endpoint}",
        f"BindsTo={trial.guard}",
        f"After={trial.guard} {makes_way}",
        f"Conflicts={makes_way}",
        f"User={window.user}",
        f"WorkingDirectory={checkout}",
        f"Environment=PATH={search_path(checkout)}",
        "LimitMEMLOCK=infinity",
        "UMask=0077",
        f"StandardOutput=append:{out}",
        f"StandardError=append:{out}",
    ]
    given = [f"--property={line}" for line in properties]
    return ["systemd-run", "--quiet", "--wait", "--collect", f"--unit={trial.unit}", *given, "--", *argv]


def declared_files(declared: Declared, model_dir: str) -> list[dict[str, Any]]:
    """``{path, sha256}`` of the inventory's files of that model folder."""
    files = [
        {
            "path": os.path.join(declared.payload["dir"], file["name"]),
            "sha256": file.get("sha256") or file.get("sha256_prefix"),
        }
        for file in declared.payload["files"]
    ]
    return [file for file in files if file["path"].startswith(f"{model_dir}/")]


def judge_long_context(reply: Reply, window: int) -> Verdict:
    """A prompt of three quarters of the window is taken whole and answered."""
    count = reply.usage.get("prompt_tokens")
    if reply.fault:
        return failed("long context", reply.fault, reply.seconds)
    if not isinstance(count, int) or 2 * count < window:
        return failed("long context", f"expected most of {window} tokens to be read, found {count}", reply.seconds)
    return passed("long context", f"{count} tokens of prompt, answered", reply.seconds, **reply.facts)


def _long_context(api: Api, declared: Declaration) -> Verdict:
    if declared.window is None:
        return failed("long context", "nobody declares the window: set client.context_window", 0)
    patient = replace(declared, timeout_s=max(declared.timeout_s, declared.window / _SLOWEST))
    reply = Target(api, patient).ask(user(_WORD * (declared.window * 3 // 4)), max_tokens=16)
    return judge_long_context(reply, declared.window)


@dataclass
class Steps:
    """One run's work between stop and way back; ``run`` is the folder of its evidence."""

    declared: Declared
    asked: Asked
    plan: Plan
    window: Window
    run: str
    say: Say

    def note_asked(self) -> None:
        """Evidence: what was asked for, of which fork."""
        fork: Fork = self.plan.fork
        told = {**asdict(self.asked), **{key: value for key, value in asdict(fork).items() if key != "descriptors"}}
        put(self.run, "asked", {**told, "run": os.path.basename(self.run), "at": datetime.now(UTC).isoformat()})

    def setup(self, timeout_s: float) -> None:
        """Run the fork's setup for the scratch state; a FleetError where it fails, or what it wrote is not whole."""
        asked, fork = self.asked, self.plan.fork
        entry = pwd.getpwnam(self.declared.user)
        make_dirs(asked.scratch_dir, 0o700, entry.pw_uid, entry.pw_gid)
        with open(os.path.join(asked.scratch_dir, MARK), "wb"):
            pass  # its name says all; a file beside it, left by a kill, would look like somebody else's
        out = os.path.join("/run", self.window.trial.run_name, "setup.out")
        argv = setup_argv(asked, fork.checkout, fork.image)
        begun = time.monotonic()
        done = run(setup_command(self.window, argv, fork.checkout, out), timeout_s=timeout_s, check=False)
        seconds = round(time.monotonic() - begun, 1)
        tail = (read_optional(out) or b"").decode("utf-8", "replace").splitlines()[-20:]
        if done.rc != 0:
            raise FleetError(
                f"the fork's setup of profile {asked.profile} fails",
                expected="exit status 0",
                found=f"{done.rc}: {' / '.join(tail) or done.tail}",
                remedy="Mend what it names, then run qualify.yml again",
            )
        state = read_state(asked.scratch_file)
        faults = faults_of(state, asked.ple_bytes, declared_files(self.declared, asked.model_dir))
        if state.config.get("R9V_IMAGE") != f"sha256:{fork.image}":
            faults.append(f"its image is {state.config.get('R9V_IMAGE')}, and sha256:{fork.image} was asked for")
        if state.profile_id != fork.profile_id:
            faults.append(f"its profile is {state.profile_id}, and {fork.profile_id} was asked for")
        if faults:
            raise FleetError(
                f"setup state {asked.scratch_file} is not whole",
                expected="every file, image and profile as declared",
                found="; ".join(faults),
                remedy="Mend the payload, or what is declared of it, then run qualify.yml again",
            )
        folder = state.config["R9V_MODEL_DIR"]
        files = [
            {"name": os.path.relpath(one.path, folder), "bytes": one.bytes, "sha256": one.sha256}
            for one in state.artifacts
        ]
        told = {"argv": argv, "seconds": seconds, "tail": tail, "files": files, "state": read_json(asked.scratch_file)}
        put(self.run, "setup", told)

    def start(self, patience_s: float) -> tuple[Blueprint, Api]:
        """Start the profile from the scratch state, as its endpoint would be; returns once it is healthy."""
        scratch, trial = scratch_of(self.declared, self.asked), replace(self.window.trial, number=2)
        blueprint = _r9v_blueprint.draw(scratch, trial, None)
        put_launcher(blueprint, trial)
        atomic_write(trial.env_file, blueprint.env_text.encode(), mode=0o644, sync=False)
        launcher = trial.launcher(blueprint.launcher_text, "r9v")
        begun = time.monotonic()
        try:
            run(candidate_command(trial, blueprint.unit_text, launcher, self.window.makes_way), timeout_s=patience_s)
        except FleetError as exc:
            raise start_fault(trial.unit, exc, "r9v") from exc
        api = api_of(blueprint.facts["env"])
        await_health(trial.unit, api, blueprint.facts["deadline_s"], self.say, engine="r9v")
        seconds = round(time.monotonic() - begun, 1)
        facts = blueprint.facts
        told = {"seconds": seconds, "unit": trial.unit, "env": facts["env"], "effective": facts["effective"]}
        put(self.run, "start", told)
        return blueprint, api

    def truth(self, blueprint: Blueprint, api: Api) -> None:
        """Evidence: the chain of truth of what runs, without the links of a unit file."""
        trial = replace(self.window.trial, number=2)
        seen = observe(trial.unit, trial.unit_file, trial.env_file, api, payload_paths(blueprint.facts))
        within = _r9v_truth.look_inside(blueprint.facts, api, seen.health)
        era = Era("qualification", "", blueprint, {"state": "trial"})
        links = _r9v_truth.chain(era, trial.unit, trial.unit_file, seen, within)
        kept = [asdict(link) for link in links if link.name not in _OF_THE_FILE]
        put(self.run, "truth", {"links": kept, "argv": list(within.argv), "images": sorted(within.image_digests)})

    def probes(self, blueprint: Blueprint, api: Api) -> None:
        """Evidence: the workload battery, in the engine's dialect."""
        declared = declare(blueprint.facts)
        verdicts = run_probes(api, declared, select(probes_of(declared), None), say=self.say)
        self.say("probe: long context")
        verdicts.append(_long_context(api, declared))
        put(self.run, "probes", {"verdicts": [verdict.as_dict() for verdict in verdicts], "window": declared.window})

    def pinning(self, effective: Mapping[str, str]) -> None:
        """Evidence: the bytes that each process of the container has locked, against the table's."""
        box = Podman(self.declared.user).container(self.asked.container)
        rows = [{"pid": pid, "bytes": _proc.locked_bytes(pid)} for pid in processes(box.pid)] if box is not None else []
        size = os.path.getsize(effective["R9V_PLE_PATH"])
        mode = effective.get("R9V_PLE_RESIDENCY_MODE", "not told")
        put(self.run, "pinning", {"mode": mode, "table_bytes": size, "processes": rows})

    def headroom(self) -> None:
        """Evidence: what each card has free with the profile up, by its driver's count."""
        states = read_cards(identified(self.declared.cards))
        rows = [{"name": one.name, "free_mib": one.free_mib, "total_mib": one.total_mib} for one in states.values()]
        put(self.run, "headroom", {"floor_gib": self.asked.headroom_gib, "cards": rows})
