# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Truth: is what runs what was declared? A chain of links from the unit to the answer, each with two sides."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, Response
from ansible_collections.dank.llm_fleet.plugins.module_utils._build_id import build_id
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import (
    UnitState,
    drop_ins_of,
    show,
    text_digests,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth_files import (
    held_otherwise,
    stamped_digests,
    strange_files,
    unproven_files,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import ERA_VARIABLE

__all__ = [
    "Link",
    "Observed",
    "chain",
    "digests_link",
    "environment_link",
    "first_broken",
    "keys_set_by",
    "launcher_fault",
    "observe",
    "pad256",
    "require",
    "stray_link",
    "unit_links",
]

_OF_THE_UNIT = (ERA_VARIABLE, "LLM_FLEET_ENV_FILE")
# Of the loader, the engines, the libraries of the cards and their compilers, and our launchers.
_FAMILIES = tuple(
    "LD_ GGML_ LLAMA_ CUDA_ HIP_ HIPBLASLT_ HSA_ ROCR_ ROCBLAS_ TENSILE_ GPU_ AMD_ NVIDIA_ VK_ OMP_ R9V_ "
    "LLM_FLEET_".split()
)


@dataclass(frozen=True)
class Link:
    """One comparison: ``ok`` is computed from the two sides, never given."""

    name: str
    expected: Any
    found: Any
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether both sides are equal."""
        return bool(self.expected == self.found)

    def as_dict(self) -> dict[str, Any]:
        """For a result: name, ok, expected, found, and the remedy where it is broken."""
        row = asdict(self)
        row["ok"] = self.ok
        if self.ok:
            del row["remedy"]
        return row


@dataclass(frozen=True)
class Observed:
    """Everything one look at the host found. Process facts are empty when no main process runs."""

    unit: UnitState
    unit_text: str | None  # None: no such file
    env_text: str | None
    exe: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    owners: tuple[tuple[int, str, str], ...]  # (pid, unit, command) of every listener on the port
    health: str
    props: Mapping[str, Any]
    strange_files: tuple[str, ...] = ()  # payload files that are others than those the process has read, with why
    build_id: str | None = None  # of the running program
    drop_ins: tuple[str, ...] = ()
    launcher_fault: str = ""
    drop_in_digests: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)  # of payload files, by their stamps
    drop_in_keys: frozenset[str] = frozenset()  # of the environment, that the drop-ins set


def pad256(n: int) -> int:
    """``n`` rounded up to a multiple of 256, as llama.cpp pads a context."""
    return -(-n // 256) * 256


def _text_of(path: str) -> str | None:
    """The file's text, or what it is a link to: a file of ours is never one."""
    if os.path.islink(path):
        return f"a link to {os.readlink(path)}\n"
    data = read_optional(path)
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _file_link(name: str, declared: str, found: str | None, remedy: str) -> Link:
    """Digests of two texts; where they differ, the lines that only one has, which say more."""
    if found is None:
        return Link(name, sha256_text(declared), "no such file", remedy)
    if found == declared:
        return Link(name, sha256_text(declared), sha256_text(found), remedy)
    mine, theirs = declared.splitlines(), found.splitlines()
    only_mine = [line for line in mine if line not in theirs]
    only_theirs = [line for line in theirs if line not in mine]
    if only_mine == only_theirs:  # the same lines in another order, twice, or ended otherwise
        return Link(
            name, sha256_text(declared), hashlib.sha256(found.encode("utf-8", "surrogateescape")).hexdigest(), remedy
        )
    return Link(name, only_mine, only_theirs, remedy)


def _keys_link(name: str, declared: Mapping[str, str], found: Mapping[str, str], remedy: str) -> Link:
    """Two dictionaries; where they differ, the keys that differ alone."""
    differing = [key for key in declared if declared[key] != found[key]]
    keys = differing or list(declared)
    return Link(name, {key: declared[key] for key in keys}, {key: found[key] for key in keys}, remedy)


def _props_of(told: Response) -> dict[str, Any]:
    """The answer's object, or ``{"error": why}``: whoever answers, a look never breaks off here."""
    if told.status != 200:
        return {"error": told.words}
    try:
        props = told.json("/props")
    except FleetError as exc:
        return {"error": exc.message}
    return props if isinstance(props, dict) else {"error": f"/props answered {str(props)[:200]}"}


def launcher_fault(path: str, text: str) -> str:
    """What is wrong with the launcher at ``path``, which must hold ``text`` and be a program; "" if nothing is."""
    data = read_optional(path)
    if data is None:
        return f"{path}: no such file"
    if data != text.encode():
        ends = " (Windows line ends)" if b"\r\n" in data else ""
        first = "" if data.startswith(b"#!") else " (no #! line)"
        return f"{path} was edited{ends or first}"
    return "" if os.stat(path).st_mode & 0o555 == 0o555 else f"{path} is not executable for all"


def observe(
    unit: str,
    unit_path: str,
    env_path: str,
    api: Api,
    files: Sequence[str] = (),
    stamp_dir: str = "",
    launcher: tuple[str, str] | None = None,
) -> Observed:
    """Look once, in the order unit, files, process, socket, answer. A process that ends midway shows as gone.

    ``files`` are the payload's paths, ``stamp_dir`` holds their stamps; ``launcher`` is its path and text.
    """
    state = show(unit)
    exe = ""
    argv: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    strange = unproven_files(files, stamp_dir) if stamp_dir else ()
    build = None
    if state.main_pid:
        try:
            exe, argv, environ = (
                _proc.exe(state.main_pid),
                tuple(_proc.cmdline(state.main_pid)),
                _proc.environ(state.main_pid),
            )
            build = _build_of(state.main_pid)
            started = time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - state.active_since_us / 1e6)
            replaced, others = held_otherwise(_proc.held_files(state.main_pid), files)
            strange = (*strange_files(files, replaced, started), *others) or strange
        except (FileNotFoundError, ProcessLookupError):
            exe = "the main process ended while it was looked at"
    owners = tuple((owner.pid, owner.unit, owner.command) for owner in _proc.listeners(api.port))
    health = "not asked: no main process"
    props: dict[str, Any] = {}
    if state.main_pid:
        answer = api.get("/health")
        health = "HTTP 200" if answer.status == 200 else answer.words
        if answer.status == 200:
            told = api.get("/props")
            props = _props_of(told)
    drop_ins = tuple(drop_ins_of(unit, state))
    return Observed(
        state,
        _text_of(unit_path),
        _text_of(env_path),
        exe,
        argv,
        environ,
        owners,
        health,
        props,
        strange,
        build,
        drop_ins,
        launcher_fault(*launcher) if launcher is not None else "",
        text_digests(drop_ins),
        stamped_digests(files, stamp_dir) if stamp_dir else {},
        frozenset(key for path in drop_ins for key in keys_set_by(_text_of(path) or "")),
    )


def _build_of(pid: int) -> str | None:
    try:
        return build_id(f"/proc/{pid}/exe")
    except FleetError as exc:
        return exc.message  # a look never breaks off here


def unit_links(era: Era, unit: str, unit_path: str, seen: Observed, drop_ins: Sequence[str] = ()) -> list[Link]:
    """The links of every engine's chain up to the process: the unit is the deployed one, and runs."""
    again = "Run site.yml: it puts the era's files back and restarts the unit"
    texts: Mapping[str, str] = era.blueprint.facts.get("drop_in_digests", {})  # eras of older versions have none
    found = {path: seen.drop_in_digests.get(path, "no such file") for path in texts}
    changed = "Put its old text back, or run site.yml, which deploys with the new one"
    return [
        _file_link("unit file", era.blueprint.unit_text, seen.unit_text, again),
        _file_link("env file", era.blueprint.env_text, seen.env_text, again),
        Link("launcher", "", seen.launcher_fault, again),
        Link("fragment path", unit_path, seen.unit.fragment_path, "Remove the unit of the same name that shadows it"),
        Link(
            "drop-ins",
            sorted(drop_ins),
            sorted(seen.drop_ins),
            "Move the undeclared drop-in away (it overrides what was deployed), then run site.yml",
        ),
        *([_keys_link("drop-in texts", texts, found, changed)] if texts else []),
        Link("pending reload", False, seen.unit.need_daemon_reload, again),
        Link("enabled", "enabled", seen.unit.unit_file_state, again),
        Link("unit state", "active (running)", seen.unit.words, f"See journalctl -u {unit}; then run site.yml"),
    ]


def environment_link(era: Era, seen: Observed) -> Link:
    """The main process has the era's environment."""
    env: Mapping[str, str] = era.blueprint.facts["env"]
    found = {key: seen.environ.get(key, "(not set)") for key in [*env, ERA_VARIABLE]}
    again = "Run site.yml: it puts the era's files back and restarts the unit"
    return _keys_link("environment", {**env, ERA_VARIABLE: era.blueprint.digest}, found, again)


def keys_set_by(unit_text: str) -> set[str]:
    """The names that a unit's or a drop-in's text sets in the environment: Environment=, PassEnvironment= and the
    lines of each EnvironmentFile= that is there."""
    found: set[str] = set()
    for line in unit_text.splitlines():
        setting, _, value = line.partition("=")
        if setting == "Environment":
            found |= {word.strip("\"'").partition("=")[0] for word in value.split()}
        elif setting == "PassEnvironment":
            found |= set(value.split())
        elif setting == "EnvironmentFile":
            lines = (read_optional(value.removeprefix("-")) or b"").decode("utf-8", "surrogateescape").splitlines()
            found |= {line.partition("=")[0].strip() for line in lines if "=" in line}
    return found


def stray_link(era: Era, seen: Observed) -> Link:
    """The main process has no variable that changes what a server does but those of the env file, the unit and its
    drop-ins. The names alone are told: a value may be a secret."""
    known = {*era.blueprint.facts["env"], *keys_set_by(era.blueprint.unit_text), *seen.drop_in_keys, *_OF_THE_UNIT}
    strays = sorted(key for key in seen.environ if key.startswith(_FAMILIES) and key not in known)
    return Link(
        "environment from elsewhere",
        [],
        strays,
        "It is from systemd's own environment: see systemctl show-environment (unset-environment takes it out), "
        "DefaultEnvironment= in /etc/systemd/system.conf and its .d; then restart the unit. What is wanted stands in "
        "a declared drop-in",
    )


def digests_link(era: Era, seen: Observed) -> Link:
    """The payload files that were verified are those that the era was proven with, by the beginning that both know."""
    files = era.blueprint.facts["payload"]["files"]
    declared = {f["path"]: f["sha256"] for f in files if f["sha256"] and f["path"] in seen.digests}
    found = {path: seen.digests[path][: len(sha256)] for path, sha256 in declared.items()}
    return _keys_link(
        "payload digests",
        declared,
        found,
        "A start would serve this file, which the era was not proven with. Run site.yml, which puts the file that was "
        "kept aside (.replaced-*) back, or have the role payload fetch it with its digest in the inventory",
    )


def chain(era: Era, unit: str, unit_path: str, seen: Observed, drop_ins: Sequence[str] = ()) -> list[Link]:
    """All links in order, of llama-server; the first broken one is the fault, later ones often its consequence."""
    facts = era.blueprint.facts
    env: Mapping[str, str] = facts["env"]
    again = "Run site.yml: it puts the era's files back and restarts the unit"
    strangers = sorted(
        {f"pid {pid} of {name or 'no unit'}: {command}" for pid, name, command in seen.owners if name != unit}
    )
    untold = seen.props.get("error", "(not told)")
    settings = seen.props.get("default_generation_settings")
    n_ctx = settings.get("n_ctx", untold) if isinstance(settings, dict) else untold
    build = facts["runtime"].get("build_id")  # eras of older versions have none
    per_slot = pad256(int(env["CTX_SIZE"]) // int(env["PARALLEL"]))
    return [
        *unit_links(era, unit, unit_path, seen, drop_ins),
        Link("program", os.path.realpath(env["SERVER_BIN"]), seen.exe, again),
        *([Link("build id", build, seen.build_id, again)] if build else []),
        Link("arguments", list(facts["argv"]), list(seen.argv), again),
        environment_link(era, seen),
        stray_link(era, seen),
        Link("strangers on the port", [], strangers, "Stop that process by its id; it is not this endpoint's"),
        Link(
            "main process listens",
            True,
            any(pid == seen.unit.main_pid for pid, _name, _cmd in seen.owners),
            f"See journalctl -u {unit}",
        ),
        Link("health", "HTTP 200", seen.health, f"See journalctl -u {unit}"),
        digests_link(era, seen),
        Link(
            "payload files", [], list(seen.strange_files), "Run site.yml: it verifies the files and restarts the unit"
        ),
        Link("served file", env["MODEL_FILE"], seen.props.get("model_path", untold), again),
        Link("slots", int(env["PARALLEL"]), seen.props.get("total_slots", untold), again),
        Link("context per slot", per_slot, n_ctx, again),
    ]


def first_broken(links: Sequence[Link]) -> Link | None:
    """The first link whose sides differ, or None."""
    return next((link for link in links if not link.ok), None)


def require(links: Sequence[Link], name: str, **facts: Any) -> None:
    """Raise the first broken link as a FleetError that carries every broken one and ``facts``."""
    broken = first_broken(links)
    if broken is not None:
        raise FleetError(
            f"truth of endpoint {name}: {broken.name}",
            expected=broken.expected,
            found=broken.found,
            remedy=broken.remedy,
            gate="truth",
            links=[link.as_dict() for link in links if not link.ok],
            **facts,
        )
