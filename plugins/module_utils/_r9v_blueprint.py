# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the inventory says of an R9V endpoint to the blueprint of an era."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envfile, _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import (
    Declared,
    Paths,
    dry_run,
    effective_env,
    require_certified,
    require_runtime,
    require_same_argv,
    unit_spec,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, blueprint_digest, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_layers import layered
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_setups import Setup, key_faults, setup_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import State, faults_of, read_state, role_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_unit import render
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import text_digests
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import endpoint_gaps, payload_gaps, refuse_gaps
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import hash_file

__all__ = ["draw", "effective_of", "env_of", "explain", "redraw"]

# Files of the env, outside the payload, that the container mounts.
_MOUNTED = {"R9V_CHAT_TEMPLATE_FILE": "template", "R9V_DEV_QWEN4_EXP_ADAPTER_PY": "adapter"}


def _switch(user: str) -> list[str]:
    """The command that becomes ``user``: the profile is code of his checkout, and no code of root's."""
    entry = pwd.getpwnam(user)
    if entry.pw_uid == os.geteuid():
        return []
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]


def env_of(declared: Declared, rung: str | None, launch: str) -> dict[str, str]:
    """The env file's lines; a FleetError where the schema, or a key that belongs to another setup, is against them."""
    lines = effective_env(declared, rung)
    refuse_gaps(endpoint_gaps(declared.name, _envspec.unknown_keys("r9v", lines)))
    given = _envspec.normalise("r9v", lines)
    env = _envspec.derive("r9v", given, "", (), launch)
    problems = _envspec.check("r9v", env) + key_faults(env, declared.setups)
    if problems:
        raise FleetError(f"endpoint {declared.name}: " + " ".join(problems), gate="setup")
    return env


def effective_of(argv: Sequence[str], env: Mapping[str, str], state: State) -> dict[str, str]:
    """The environment that the launcher's dry run came to; a FleetError where it breaks the law of the layers."""
    for line in argv[1:]:
        if "=" not in line:
            raise FleetError(
                "a line of the launcher's dry run",
                expected="KEY=value, one line each",
                found=repr(line),
                remedy="Give each R9V_ key one line, in the setup state's profile.env too",
                gate="setup",
            )
    found = dict(line.split("=", 1) for line in argv[1:])
    for row in layered(env, state.config, found):
        if found.get(row.key) != row.value:
            raise FleetError(
                f"the launcher lays {row.key} otherwise than the law of the layers",
                expected=f"{row.value!r} from {row.source}",
                found=repr(found.get(row.key)),
                remedy="The profile must set what is unset alone (:=), and the launcher and its twin must agree",
                gate="setup",
            )
    return found


def _mounted(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Template and adapter with their digests; a FleetError where one is not there."""
    rows = []
    for key, role in _MOUNTED.items():
        if key not in env:
            continue
        if not os.path.isfile(env[key]):
            raise FleetError(f"{key} {env[key]}", expected="a file on this host", found="none", gate="setup")
        rows.append({"path": env[key], "role": role, "sha256": hash_file(env[key])[0]})
    return rows


def _payload(state: State, effective: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = [
        {"path": artifact.path, "role": role_of(artifact.path), "sha256": artifact.sha256}
        for artifact in state.artifacts
    ]
    return rows + _mounted(effective)


def _with_headroom(cards: Sequence[Mapping[str, Any]], setup: Setup | None) -> list[dict[str, Any]]:
    """The cards, each with the setup's headroom as its floor where that is more."""
    least = setup.headroom_gib * 1024 if setup is not None else 0.0
    return [{**card, "floor_mib": max(least, float(card["floor_mib"]))} for card in cards]


def draw(declared: Declared, paths: Paths, rung: str | None) -> Blueprint:
    """The blueprint of the era that ``declared`` (with ``rung``) asks for, on this host as it is.

    Raises a FleetError when a key is unsound or belongs to another setup, the state is not ready, the runtime is not
    on this host, or the launcher refuses. Nothing of the state's shape is copied into the env: it is laid under it.
    """
    runtime, spec = require_runtime(declared, paths), unit_spec(declared, paths)
    env = env_of(declared, rung, runtime["server_bin"])
    state, setup = read_state(env["R9V_STATE_FILE"]), setup_of(env, declared.setups)
    folder = f"{state.config['R9V_MODEL_DIR'].rstrip('/')}/"
    if f"{declared.payload['dir']}/".startswith(folder):
        refuse_gaps(payload_gaps(declared.payload))
    env_text = _envfile.render(env)
    argv = dry_run(declared.launcher, env, _switch(declared.user))
    effective = effective_of(argv, env, state)
    files = _payload(state, effective)
    texts = text_digests(declared.drop_ins)
    digest = blueprint_digest(
        {
            "env": env_text,
            "unit": render(spec, ""),
            "launcher": sha256_text(declared.launcher),
            "drop_ins": sorted(texts.items()),
            "runtime": runtime["digest"],
            "payload": files,
            "argv": argv,
        }
    )
    declared_files = [
        {
            "path": os.path.join(declared.payload["dir"], file["name"]),
            "sha256": file.get("sha256") or file.get("sha256_prefix"),
        }
        for file in declared.payload["files"]
    ]
    facts = {
        "endpoint": declared.name,
        "engine": "r9v",
        "user": declared.user,
        "env": env,
        "effective": effective,
        "argv": argv,
        "shape": _envspec.shape("r9v", effective),
        "runtime": runtime,
        "payload": {
            "name": declared.payload["name"] if rung is None else f"{rung}: {state.profile_id}",
            "files": files,
        },
        # What is declared of the payload that this state serves; another rung's payload is the state's word alone.
        "declared_files": [file for file in declared_files if file["path"].startswith(folder)],
        "model_file": os.path.basename(effective.get("R9V_TARGET_REL", "") or state.path),
        "setup": {
            "name": setup.name if setup is not None else None,
            "ple_bytes": setup.ple_bytes if setup is not None else None,
        },
        "deadline_s": declared.deadline_s,
        "settle_s": declared.settle_s,
        "timeout_stop_s": declared.timeout_stop_s,
        "client": dict(declared.client),
        "probes": dict(declared.probes),
        "drop_ins": list(declared.drop_ins),
        "drop_in_digests": texts,
        "cards": _with_headroom(declared.cards, setup),
        "rung": rung,
    }
    return Blueprint(digest, env_text, render(spec, digest), declared.launcher, facts)


def explain(declared: Declared, paths: Paths, rung: str | None) -> dict[str, Any]:
    """``{state, layers, table}``: the environment that the launcher comes to, and which layer each value is from."""
    env = env_of(declared, rung, require_runtime(declared, paths)["server_bin"])
    state, setup = read_state(env["R9V_STATE_FILE"]), setup_of(env, declared.setups)
    found = effective_of(dry_run(declared.launcher, env, _switch(declared.user)), env, state)
    faults = faults_of(state, setup.ple_bytes if setup is not None else None)
    rows = layered(env, state.config, found)
    wide = max(len(row.key) for row in rows)
    table = []
    for row in rows:
        over = "".join(f"  (over {source}'s {value})" for source, value in row.hides)
        table.append(f"{row.source:<7}  {row.key:<{wide}}  {row.value}{over}")
    return {
        "state": {"path": state.path, "profile_id": state.profile_id, "whole": not faults, "faults": faults},
        "layers": [row.as_dict() for row in rows],
        "table": table,
    }


def redraw(era: Era, _stamp_dir: str) -> Blueprint:
    """The blueprint of an era that was proven before, as it was; a FleetError where what it needs is gone.

    Whether its files are whole the gate ``setup`` asks; here its state must be ready and come to the same environment.
    """
    require_certified(era)
    facts = era.blueprint.facts
    read_state(facts["env"]["R9V_STATE_FILE"])
    require_same_argv(era, dry_run(era.blueprint.launcher_text, facts["env"], _switch(facts["user"])))
    for file in _mounted(facts["effective"]):
        if file not in facts["payload"]["files"]:
            raise FleetError(
                f"era {era.id} cannot be restored: {file['path']} is another file now",
                expected="the file that it was proven with",
                found=f"sha256 {file['sha256']}",
                remedy="Have the old file back, then run again",
                gate="setup",
            )
    return era.blueprint
