# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the inventory says of an endpoint to the blueprint of an era."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envfile, _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._build_id import build_id
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, blueprint_digest, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import ENDPOINT
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_json
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_back import other_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import text_digests
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, render
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import endpoint_gaps, payload_gaps, refuse_gaps

__all__ = [
    "Declared",
    "Paths",
    "draw",
    "dry_run",
    "effective_env",
    "find_runtime",
    "redraw",
    "require_certified",
    "require_runtime",
    "require_same_argv",
    "unit_spec",
]


@dataclass(frozen=True)
class Paths:
    """Where an endpoint's files lie on its host."""

    endpoint: str
    etc: str = "/etc/llm-fleet"
    state: str = "/var/lib/llm-fleet"
    runtimes: str = "/opt/llm-fleet/runtimes"
    launchers: str = "/opt/llm-fleet/launchers"
    units: str = "/etc/systemd/system"

    @property
    def unit(self) -> str:
        """The unit's name."""
        return f"{self.endpoint}.service"

    @property
    def unit_file(self) -> str:
        """The unit file."""
        return os.path.join(self.units, self.unit)

    @property
    def env_file(self) -> str:
        """The env file that the unit reads."""
        return os.path.join(self.etc, f"{self.endpoint}.env")

    @property
    def stamps(self) -> str:
        """The folder of the stamps of verified payload files."""
        return os.path.join(self.state, "payloads")

    @property
    def damaged(self) -> str:
        """The folder of the marks of damaged payload files."""
        return os.path.join(self.state, "damaged")

    @property
    def store(self) -> str:
        """The folder of the endpoint's eras."""
        return os.path.join(self.state, self.endpoint)

    def launcher(self, text: str, engine: str = "llamacpp") -> str:
        """A launcher is named by its content, so that an old era keeps the one it was proven with."""
        return os.path.join(self.launchers, sha256_text(text)[:12], f"serve-{engine}")


@dataclass(frozen=True)
class Declared:
    """What the inventory says of one endpoint; ``payload`` is ``{name, dir, files}``, durations are seconds.

    ``cards``, ``measured`` and ``ggml_types`` tell whether it fits (see ``_fit_endpoint``); of what is deployed, the
    cards decide which devices the unit may open. ``api_key_file`` is a file of root's that systemd hands to the server.
    ``client`` and ``probes`` say what it must be seen to do (see ``_probe_declare``), ``replaces`` what its deploy
    retires (see ``_replaces``). ``rivals`` are endpoints of this host that want the same port or card and make way.
    ``setups`` are those of engine r9v (see ``_r9v_setups``).
    """

    name: str
    engine: str
    env: Mapping[str, Any]
    runtime: str
    payload: Mapping[str, Any]
    user: str
    launcher: str
    rungs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deadline_s: int = 300
    settle_s: float = 2.0
    client: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, Any] = field(default_factory=dict)
    drop_ins: Sequence[str] = ()
    cards: Sequence[Mapping[str, Any]] = ()
    measured: Sequence[Mapping[str, Any]] = ()
    ggml_types: Sequence[int] = ()
    api_key_file: str = ""
    replaces: Mapping[str, Any] = field(default_factory=dict)
    rivals: Sequence[str] = ()
    keep_eras: int = 10
    timeout_stop_s: int = 180
    restart_sec: int = 10
    setups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], launcher: str) -> Declared:
        """From an entry of ``llm_endpoints`` (or a module's parameters); what it leaves out keeps its default."""
        known = {one.name for one in fields(cls)} - {"launcher"}
        given = {key: value for key, value in entry.items() if key in known and value is not None}
        for key in ("deadline_s", "keep_eras"):
            if key in given and not ENDPOINT[key].test(given[key]):
                raise FleetError(
                    f"llm_endpoints.{entry.get('name')}.{key}", expected=ENDPOINT[key].expected, found=repr(given[key])
                )
        return cls(launcher=launcher, **{"user": "llm", **given})


def effective_env(declared: Declared, rung: str | None) -> dict[str, Any]:
    """The inventory's env lines with a rung's lines over them; an unknown rung is a FleetError that lists the known."""
    env = dict(declared.env)
    if rung is not None:
        if rung not in declared.rungs:
            known = ", ".join(sorted(declared.rungs)) or "none declared"
            raise FleetError(
                f"endpoint {declared.name} has no rung {rung!r}",
                expected=f"one of: {known}",
                found=rung,
                remedy=f"Name one of these, or add it under llm_endpoints.{declared.name}.rungs",
            )
        env.update(declared.rungs[rung])
    return env


def find_runtime(prefix: str, name: str) -> dict[str, Any] | None:
    """``{name, path, server_bin, digest, version}`` of the runtime's built tree, or None when there is none."""
    link = os.path.join(prefix, name)
    if not os.path.exists(link):
        return None
    path = os.path.realpath(link)
    build = read_json(os.path.join(path, "build.json"))
    if build is None:
        raise FleetError(
            f"runtime {name} at {path} has no build.json",
            expected="a tree that runtime_build finished",
            remedy="Run site.yml with --tags runtime",
        )
    return {
        "name": name,
        "path": path,
        "server_bin": build["server_bin"],
        "digest": build["digest"],
        "version": build["version"],
    }


def dry_run(launcher_text: str, env: Mapping[str, str], switch: Sequence[str] = ()) -> list[str]:
    """The argv that the launcher would run in this environment, nothing started; its refusal is a FleetError.

    ``switch`` is a command before it, as to become another user.
    """
    argv = [*switch, "/usr/bin/bash", "-s"]
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv,
            input=launcher_text,
            env={**bare, **env, "LLM_FLEET_DRY_RUN": "1"},
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise FleetError(
            "the launcher's dry run did not end",
            expected="its arguments within 30 s",
            found="still running",
            remedy="Mend the launcher: with LLM_FLEET_DRY_RUN=1 it prints its arguments and starts nothing",
        ) from exc
    if done.returncode != 0:
        raise FleetError(f"the launcher refuses this env: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout.split("\n")[:-1]  # not splitlines: it also splits at characters that a value may hold


def _credential(declared: Declared, spec: UnitSpec) -> dict[str, str]:
    """The env line that names the API key where systemd puts it."""
    if not declared.api_key_file:
        return {}
    if declared.env.get("API_KEY_FILE"):
        raise FleetError(
            f"endpoint {declared.name} has api_key_file and the env line API_KEY_FILE",
            expected="one of the two",
            found="both",
            remedy="Take API_KEY_FILE out: systemd hands the key over without it",
        )
    if not os.path.isfile(declared.api_key_file):
        raise FleetError(
            f"api_key_file {declared.api_key_file} of endpoint {declared.name}",
            expected="a file on this host, for root's eyes alone",
            found="none",
            remedy="Put the key there (mode 0600), or take api_key_file out",
        )
    return {"API_KEY_FILE": spec.credential}


def require_runtime(declared: Declared, paths: Paths) -> dict[str, Any]:
    """The runtime of an endpoint (see :func:`find_runtime`); a FleetError where it is not on this host."""
    runtime = find_runtime(paths.runtimes, declared.runtime)
    if runtime is None:
        raise FleetError(
            f"runtime {declared.runtime} of endpoint {declared.name} is not on this host",
            expected=os.path.join(paths.runtimes, declared.runtime),
            found="no such tree",
            remedy="Run site.yml, which builds it first",
        )
    return runtime


def unit_spec(declared: Declared, paths: Paths) -> UnitSpec:
    """What the endpoint's unit is made of."""
    return UnitSpec(
        endpoint=declared.name,
        user=declared.user,
        launcher=paths.launcher(declared.launcher, declared.engine),
        env_file=paths.env_file,
        restart_sec=declared.restart_sec,
        timeout_start_s=declared.deadline_s,
        timeout_stop_s=declared.timeout_stop_s,
        vendor=next((str(card["vendor"]) for card in declared.cards), ""),
        api_key_file=declared.api_key_file,
        unit=paths.unit,
    )


def draw(declared: Declared, paths: Paths, rung: str | None) -> Blueprint:
    """The blueprint of the era that ``declared`` (with ``rung``) asks for, on this host as it is.

    Raises a FleetError when a rule between env keys is broken, the runtime is not built, the launcher refuses (a file
    missing, a key unknown), or a value is ``unknown``.
    """
    gaps = endpoint_gaps(declared.name, _envspec.unknown_keys(declared.engine, effective_env(declared, rung)))
    refuse_gaps([*payload_gaps(declared.payload), *gaps])
    runtime, spec = require_runtime(declared, paths), unit_spec(declared, paths)
    given = _envspec.normalise(declared.engine, effective_env(declared, rung) | _credential(declared, spec))
    env = _envspec.derive(
        declared.engine, given, declared.payload["dir"], declared.payload["files"], runtime["server_bin"]
    )
    problems = _envspec.check(declared.engine, env)
    if problems:
        raise FleetError(f"endpoint {declared.name}: " + " ".join(problems))
    env_text = _envfile.render(env)  # first: it refuses what cannot stand in an environment
    argv = dry_run(declared.launcher, env)
    files = [
        {
            "path": os.path.join(declared.payload["dir"], file["name"]),
            "role": file["role"],
            "sha256": file.get("sha256") or file.get("sha256_prefix"),
        }
        for file in declared.payload["files"]
    ]
    texts = text_digests(declared.drop_ins)
    digest = blueprint_digest(
        {
            "env": env_text,
            "unit": render(spec, ""),
            "launcher": sha256_text(declared.launcher),
            "drop_ins": sorted(texts.items()),
            "runtime": runtime["digest"],
            "payload": files,
        }
    )
    facts = {
        "endpoint": declared.name,
        "engine": declared.engine,
        "env": env,
        "argv": argv,
        "shape": _envspec.shape(declared.engine, env),
        "runtime": {**runtime, "build_id": build_id(env["SERVER_BIN"]) if os.path.isfile(env["SERVER_BIN"]) else None},
        "payload": {"name": declared.payload["name"], "files": files},
        "deadline_s": declared.deadline_s,
        "settle_s": declared.settle_s,
        "timeout_stop_s": declared.timeout_stop_s,
        "client": dict(declared.client),
        "probes": dict(declared.probes),
        "drop_ins": list(declared.drop_ins),
        "drop_in_digests": texts,
        "cards": [dict(card) for card in declared.cards],
        "rung": rung,
    }
    return Blueprint(digest, env_text, render(spec, digest), declared.launcher, facts)


def _payload_now(era: Era, stamp_dir: str) -> None:
    """Refuse an era whose payload files are others now and not kept aside; one whose stamp does not fit is read."""
    for other in other_files(era.blueprint.facts, stamp_dir, thorough=True):
        if other.copy is None:
            raise other.fault(f"era {era.id} cannot be restored: ")


def require_certified(era: Era) -> None:
    """A FleetError for an era that was never proven."""
    if era.state != "certified":
        raise FleetError(
            f"era {era.id} cannot be restored",
            expected="an era that was proven (certified)",
            found=era.state,
            remedy="Choose one that playbooks/history.yml shows as certified",
        )


def require_same_argv(era: Era, argv: Sequence[str]) -> None:
    """A FleetError where the launcher's dry run comes to other arguments by now than those that were proven."""
    if list(argv) != era.blueprint.facts["argv"]:
        raise FleetError(
            f"era {era.id} cannot be restored",
            expected=f"the arguments {era.blueprint.facts['argv']}",
            found=list(argv),
            remedy="Choose another era",
        )


def redraw(era: Era, stamp_dir: str) -> Blueprint:
    """The blueprint of an era that was proven before, as it was; a FleetError where what it needs is gone.

    Its payload files must be the same, or kept aside, from where the deploy puts them back; and its launcher's dry run
    still come to the arguments that were proven.
    """
    require_certified(era)
    _payload_now(era, stamp_dir)
    require_same_argv(era, dry_run(era.blueprint.launcher_text, era.blueprint.facts["env"]))
    return era.blueprint
