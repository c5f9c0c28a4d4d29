# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a runtime is built from, and what a run would do about it: nothing here writes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bundle import Toolkit, toolkit_version
from ansible_collections.dank.llm_fleet.plugins.module_utils._cmake import (
    build_env,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect, parse_expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import (
    intact,
    kept_archive,
    read_record,
    stated_version,
    states_version,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import Source, parse_source, source_digest

__all__ = [
    "Plan",
    "Request",
    "describe",
    "diff_of",
    "differences",
    "expected",
    "input_digest",
    "inputs_of",
    "installed_server",
    "make_plan",
    "parse_request",
]

# Raised when this file builds the same inputs in another way, so that old trees count as other ones.
RECIPE = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FALSE = ("OFF", "0", "NO", "FALSE", "N", "")
# Set by the build itself: the tree would not be movable, or its parts not be found, otherwise.
_OURS = (
    "CMAKE_INSTALL_RPATH",
    "CMAKE_BUILD_WITH_INSTALL_RPATH",
    "CMAKE_SKIP_RPATH",
    "CMAKE_INSTALL_PREFIX",
    "CMAKE_RUNTIME_OUTPUT_DIRECTORY",
    "CMAKE_LIBRARY_OUTPUT_DIRECTORY",
)


@dataclass(frozen=True)
class Request:
    """One runtime as declared; ``cmake`` maps option to value, both text."""

    name: str
    version: str
    source: Source
    cmake: Mapping[str, str]
    targets: tuple[str, ...]
    jobs: int
    prefix: str
    cache_dir: str
    ccache_dir: str
    toolkit: Toolkit | None = None
    expect: Expect = field(default_factory=Expect)
    can: Mapping[str, Any] = field(default_factory=dict)

    @property
    def link(self) -> str:
        """The name under which endpoints know the runtime."""
        return os.path.join(self.prefix, self.name)

    def tree(self, digest: str) -> str:
        """Where the tree of this digest lies."""
        return f"{self.link}@{digest[:12]}"

    def work(self, digest: str) -> str:
        """Where the tree of this digest is built."""
        return os.path.join(self.prefix, ".work", f"{self.name}@{digest[:12]}")

    @property
    def server(self) -> str:
        """The program that serves, as a file name."""
        return "llama-server" if "llama-server" in self.targets else self.targets[0]


@dataclass(frozen=True)
class Plan:
    """What a run would do: ``action`` is none, linked, unpacked or built; ``reasons`` say which input differs."""

    action: str
    digest: str
    inputs: Mapping[str, Any]
    tree: str
    before: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def work(self) -> bool:
        """Whether it takes long."""
        return self.action in ("unpacked", "built")


def parse_request(given: Mapping[str, Any]) -> Request:
    """The module's parameters as a Request; what cannot be built is a FleetError naming the key."""
    name = given["name"]
    where = f"llm_runtimes.{name}"
    if not _NAME.fullmatch(name):
        raise FleetError("name of a runtime", expected="letters, digits and . _ + -", found=repr(name))
    cmake = {}
    for option, value in (given.get("cmake") or {}).items():
        if not _OPTION.fullmatch(option):
            raise FleetError(f"{where}.cmake", expected="names of cmake options", found=repr(option))
        if option in _OURS:
            raise FleetError(
                f"{where}.cmake.{option} is set by runtime_build itself", remedy="Take it out of the inventory"
            )
        cmake[option] = _cmake_text(where, option, value)
    targets = tuple(given.get("targets") or ("llama-server",))
    for target in targets:
        if not _NAME.fullmatch(target):
            raise FleetError(f"{where}.targets", expected="names of cmake targets", found=repr(target))
    source = parse_source(name, given.get("source") or {})
    built = source.kind != "installed"
    expect = parse_expect(where, given.get("arch") or "", given.get("proof") or {}, built=built)
    jobs = int(given.get("jobs") or 0)
    if jobs < 0:
        raise FleetError("jobs", expected="0 (count processors and memory) or more", found=jobs)
    return Request(
        name=name,
        version=str(given.get("version") or ""),
        source=source,
        cmake=cmake,
        targets=targets,
        jobs=jobs,
        prefix=given["prefix"],
        cache_dir=given.get("cache_dir") or "",
        ccache_dir=given.get("ccache_dir") or "",
        toolkit=_toolkit(where, given.get("toolkit") or {}),
        expect=replace(expect, version=str(given.get("version") or ""), cmake={**cmake, **expect.cmake}),
        can=given.get("can") or {},
    )


def _toolkit(where: str, given: Mapping[str, Any]) -> Toolkit | None:
    path = given.get("path")
    if not path:
        return None
    if not os.path.isabs(path):
        raise FleetError(f"{where}.toolkit.path", expected="an absolute path on the host", found=path)
    return Toolkit(path, tuple(given.get("libs") or ()))


def expected(request: Request) -> dict[str, Any]:
    """The expectations as build.json keeps them; the version has a place of its own there."""
    told = asdict(request.expect)
    del told["version"]
    return {key: list(value) if isinstance(value, tuple) else value for key, value in told.items()}


def _cmake_text(where: str, option: str, value: object) -> str:
    """YAML reads a bare ON as a boolean: it means what cmake means by it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, (str, int, float)):
        text = str(value)
        if "\n" not in text:
            return text
    raise FleetError(f"{where}.cmake.{option}", expected="one line of text", found=repr(value))


def inputs_of(request: Request, *, compiler: str, system: str, machine: str, cpu_flags: str) -> dict[str, Any]:
    """Everything that decides what comes out of a build, as JSON-able data."""
    if request.source.kind == "installed":
        path = request.source.path
        return {"recipe": RECIPE, "kind": "installed", "path": path, "source": source_digest(request.source)}
    inputs: dict[str, Any] = {
        "recipe": RECIPE,
        "kind": request.source.kind,
        "source": source_digest(request.source),
        "subdir": request.source.subdir,
        "cmake": dict(request.cmake),
        "targets": sorted(request.targets),
        "compiler": compiler,
        "system": system,
        "machine": machine,
    }
    if request.toolkit is not None:
        version = toolkit_version(request.toolkit.path)
        inputs["toolkit"] = {"path": request.toolkit.path, "version": version, "libs": list(request.toolkit.libs)}
        inputs["toolkit"]["search"] = "inherited"  # see build_options: builds from before it are other ones
        inputs["device_code"] = list(request.expect.device_code)
    if request.cmake.get("GGML_NATIVE", "ON").upper() not in _FALSE:
        inputs["cpu_flags"] = cpu_flags  # native code runs only where these are
    return inputs


def input_digest(inputs: Mapping[str, Any]) -> str:
    """sha256 of the inputs as canonical JSON."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``key: old -> new`` for each leaf that differs, in order of the keys; long values are shortened."""
    found = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {_short(old)} -> {_short(new)}")
    return found


def _short(value: object) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:60]}...({len(text)} characters)"


def _system() -> str:
    release = platform.freedesktop_os_release()
    return f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip()


def _cpu_flags() -> str:
    """The first processor's feature flags, sorted."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as handle:
        for line in handle:
            key, _colon, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return " ".join(sorted(value.split()))
    return ""


def _compiler(request: Request) -> str:
    """The first line by which the C++ compiler names itself, or "" where there is none yet."""
    program = request.cmake.get("CMAKE_CXX_COMPILER") or "c++"
    if shutil.which(program) is None:
        return ""
    return run([program, "--version"], env=build_env()).stdout.splitlines()[0]


def make_plan(request: Request) -> Plan:
    """Look at the host and say what is to be done; nothing is written, no source is read or fetched."""
    if os.path.lexists(request.link) and not os.path.islink(request.link):
        raise FleetError(
            f"{request.link} is in the way",
            expected="a symbolic link to a runtime, or nothing",
            found="a folder" if os.path.isdir(request.link) else "a file",
            remedy="Move it aside; runtime_build removes nothing that it did not make",
        )
    building = request.source.kind != "installed"
    compiler = _compiler(request) if building else ""
    inputs = inputs_of(request, compiler=compiler, system=_system(), machine=platform.machine(), cpu_flags=_cpu_flags())
    digest = input_digest(inputs)
    tree = request.tree(digest)
    target = os.readlink(request.link) if os.path.islink(request.link) else None
    record = (read_record(os.path.realpath(request.link)) if target else None) or {}
    before = {"link": target, "inputs": record.get("inputs", {})}
    linked = target is not None and os.path.realpath(request.link) == os.path.realpath(tree)
    if not building:
        stated_version(installed_server(request), request.version)
    reasons: tuple[str, ...]
    if intact(tree, digest):
        proven = read_record(tree) or {}
        if request.version:
            _check_stated(tree, str(proven.get("states", "")), request.version)
        if not linked:
            return Plan("linked", digest, inputs, tree, before, (f"link: {target} -> {os.path.basename(tree)}",))
        if request.version and request.version != proven.get("version"):
            reasons = (f"declared version: {proven.get('version')} -> {request.version}",)
            return Plan("linked", digest, inputs, tree, before, reasons)
        if proven.get("expect") != expected(request):
            told = differences(proven.get("expect") or {}, expected(request), "proof.")
            return Plan("linked", digest, inputs, tree, before, tuple(told))
        if proven.get("declared_can", {}) != dict(request.can):
            return Plan("linked", digest, inputs, tree, before, ("can: declared anew",))
        return Plan("none", digest, inputs, tree, before, ())
    if not building:
        reasons = ("no link yet",) if target is None else ("another runtime is linked, or the installed one changed",)
        return Plan("linked", digest, inputs, tree, before, reasons)
    if linked:
        reasons = (f"{tree} is not as it was built",)
    elif target is None:
        reasons = ("no runtime of this name yet",)
    elif not record:
        reasons = (f"{request.link} points at {target}, which holds no finished build",)
    else:
        reasons = tuple(differences(before["inputs"], inputs))
    kept = request.cache_dir and kept_archive(request.cache_dir, digest)
    return Plan("unpacked" if kept else "built", digest, inputs, tree, before, reasons)


def _check_stated(tree: str, states: str, version: str) -> None:
    """A version newly declared for an unchanged build is compared with what the binary said when it was built."""
    if not states_version(states, version):
        raise FleetError(
            f"{tree} is another version than declared",
            expected=version,
            found=states,
            remedy="Correct version, the source's pin, or the cmake options that set the build number",
        )


def installed_server(request: Request) -> str:
    """The server program of an installed runtime; ``source.path`` is its folder or the program itself."""
    path = request.source.path
    for candidate in (path, os.path.join(path, "bin", request.server), os.path.join(path, request.server)):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.realpath(candidate)
    raise FleetError(
        f"{path} is no installed runtime",
        expected=f"the program {request.server}, or a folder with it in bin/",
        found="nothing of that name that can be executed" if os.path.lexists(path) else "nothing at this path",
        remedy=f"Correct llm_runtimes.{request.name}.source.path, or build it from a pinned source",
    )


def diff_of(request: Request, plan: Plan) -> dict[str, Any]:
    """``{"before", "after"}``: link and inputs, and why anything is to be done."""
    after: dict[str, Any] = {"link": os.path.basename(plan.tree), "inputs": dict(plan.inputs)}
    if plan.action == "none":
        return {"before": after, "after": after}
    after["action"] = f"{plan.action}: {'; '.join(plan.reasons)}"
    return {"before": dict(plan.before), "after": after}


def describe(request: Request, plan: Plan, seconds: float = 0.0) -> dict[str, Any]:
    """The module's ``runtime`` result."""
    record = read_record(plan.tree) or {}
    return {
        "name": request.name,
        "path": plan.tree,
        "link": request.link,
        "server_bin": record.get("server_bin") or _server_bin(request, plan.tree),
        "version": record.get("version") or request.version,
        "states": record.get("states", ""),
        "build_id": record.get("build_id", ""),
        "can": record.get("can", {}),
        "proofs": record.get("proofs", []),
        "digest": plan.digest,
        "action": plan.action,
        "seconds": round(seconds, 1),
    }


def _server_bin(request: Request, tree: str) -> str:
    if request.source.kind == "installed":
        return installed_server(request)
    return os.path.join(tree, "bin", request.server)
