# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Building an engine: what goes in, whether that needs work, and the way from a source to a linked, proven tree."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_link, file_lock, make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import (
    RPATH,
    bundle,
    intact,
    keep_archive,
    kept_archive,
    prove_closure,
    read_record,
    stated_version,
    states_version,
    take_archive,
    write_record,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import Source, obtain, parse_source, source_digest

__all__ = [
    "Plan",
    "Request",
    "carry_out",
    "configure_argv",
    "describe",
    "diff_of",
    "differences",
    "input_digest",
    "inputs_of",
    "job_count",
    "make_plan",
    "parse_ninja",
    "parse_request",
]

# Raised when this file builds the same inputs in another way, so that old trees count as other ones.
RECIPE = 1
BYTES_PER_JOB = 1536 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
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
_LOCK_WAIT_S = 2.0
_ORPHANS_WAIT_S = 600.0
_TAIL_LINES = 25


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
    jobs = int(given.get("jobs") or 0)
    if jobs < 0:
        raise FleetError("jobs", expected="0 (count processors and memory) or more", found=jobs)
    return Request(
        name=name,
        version=str(given.get("version") or ""),
        source=parse_source(name, given["source"]),
        cmake=cmake,
        targets=targets,
        jobs=jobs,
        prefix=given["prefix"],
        cache_dir=given.get("cache_dir") or "",
        ccache_dir=given.get("ccache_dir") or "",
    )


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


def job_count(asked: int, cpus: int, available_bytes: int) -> int:
    """``asked`` jobs, or with 0 as many as processors and memory (1.5 GiB a job) allow, at least one."""
    return asked or max(1, min(cpus, available_bytes // BYTES_PER_JOB))


def parse_ninja(line: str) -> tuple[int, int] | None:
    """``(finished, total)`` of a line that starts with ``[n/m]``, else None."""
    match = _NINJA.match(line)
    return (int(match[1]), int(match[2])) if match else None


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


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="utf-8") as handle:
        for line in handle:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _compiler(request: Request) -> str:
    """The first line by which the C++ compiler names itself, or "" where there is none yet."""
    program = request.cmake.get("CMAKE_CXX_COMPILER") or "c++"
    if shutil.which(program) is None:
        return ""
    return run([program, "--version"], env=_build_env(request, "")).stdout.splitlines()[0]


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
        stated_version(_installed_server(request), request.version)
    if intact(tree, digest):
        proven = read_record(tree) or {}
        if request.version:
            _check_stated(tree, str(proven.get("states", "")), request.version)
        if not linked:
            return Plan("linked", digest, inputs, tree, before, (f"link: {target} -> {os.path.basename(tree)}",))
        if request.version and request.version != proven.get("version"):
            reasons = (f"declared version: {proven.get('version')} -> {request.version}",)
            return Plan("linked", digest, inputs, tree, before, reasons)
        return Plan("none", digest, inputs, tree, before, ())
    if not building:
        reasons: tuple[str, ...] = (
            ("no link yet",) if target is None else ("another runtime is linked, or the installed one changed",)
        )
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


def _installed_server(request: Request) -> str:
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
        "digest": plan.digest,
        "action": plan.action,
        "seconds": round(seconds, 1),
    }


def _server_bin(request: Request, tree: str) -> str:
    if request.source.kind == "installed":
        return _installed_server(request)
    return os.path.join(tree, "bin", request.server)


def carry_out(request: Request, progress: Progress, warnings: list[str]) -> tuple[Plan, float]:
    """Do what the plan says, under the runtime's lock; returns the plan and the seconds it took.

    The link is swapped last: a fault, or a kill at any line, leaves the old link and the old tree.
    """
    started = time.monotonic()
    make_dirs(request.prefix)
    make_dirs(os.path.join(request.prefix, ".work"))
    lock = os.path.join(request.prefix, ".work", f"{request.name}.lock")
    with file_lock(lock, wait_s=_LOCK_WAIT_S, purpose=f"runtime_build of {request.name}"):
        try:
            plan = make_plan(request)  # anew: another run may have finished it meanwhile
            if plan.work:
                plan = _make_tree(request, plan, progress, warnings)
            elif plan.action == "linked":
                _mend(request, plan)
            if plan.action != "none":
                progress.update("link", force=True)
                atomic_link(os.path.basename(plan.tree), request.link)
                shutil.rmtree(request.work(plan.digest), ignore_errors=True)
            if plan.action == "built" and request.cache_dir:
                _keep(request, plan, progress, warnings)
        finally:
            progress.close()
    return plan, time.monotonic() - started


def _make_tree(request: Request, plan: Plan, progress: Progress, warnings: list[str]) -> Plan:
    """Unpack or build ``plan.tree``; an archive that turns out bad is a warning and then a build."""
    work = request.work(plan.digest)
    make_dirs(work)
    # A killed run's compilers may still write into the build folder: they hold this lock by inheritance.
    with file_lock(os.path.join(work, "lock"), wait_s=_ORPHANS_WAIT_S, purpose="compiling") as lock_fd:
        staged = os.path.join(work, "tree")
        shutil.rmtree(staged, ignore_errors=True)
        if plan.action == "unpacked":
            if _unpack_kept(request, plan, staged, progress, warnings):
                return plan
            shutil.rmtree(staged, ignore_errors=True)
            plan = replace(plan, action="built")
        _build(request, plan, work, staged, progress, warnings, lock_fd)
    return plan


def _keep(request: Request, plan: Plan, progress: Progress, warnings: list[str]) -> None:
    """Keep the tree for other hosts. This one has its runtime by now, so a full disk here is a warning."""
    progress.update("keep for other hosts", text=request.cache_dir, force=True)
    try:
        make_dirs(request.cache_dir)
        keep_archive(plan.tree, request.cache_dir, plan.digest)
    except (FleetError, OSError) as exc:
        warnings.append(f"the finished build was not kept in {request.cache_dir}: {exc}")


def _mend(request: Request, plan: Plan) -> None:
    """The short work before a link: adopt an installed runtime, or record a version declared later."""
    if not intact(plan.tree, plan.digest):
        _adopt(request, plan)
    elif request.version and (record := read_record(plan.tree)) and record.get("version") != request.version:
        write_record(plan.tree, {**record, "version": request.version})


def _unpack_kept(request: Request, plan: Plan, staged: str, progress: Progress, warnings: list[str]) -> bool:
    """Unpack a kept archive, prove and publish it; False, with a warning, when it is damaged."""
    archive = kept_archive(request.cache_dir, plan.digest)
    if archive is None:
        return False
    progress.update("unpack a kept build", text=archive, force=True)
    try:
        take_archive(archive, staged)
        record = read_record(staged)
        if record is None or record.get("digest") != plan.digest:
            raise FleetError(f"{archive} holds another build", expected=plan.digest)
        record.update(server_bin=os.path.join(plan.tree, "bin", request.server), unpacked=_now())
        _prove_and_publish(request, plan, staged, record)
    except FleetError as exc:
        warnings.append(f"kept build ignored, building instead: {exc.message}")
        return False
    return True


def _build(
    request: Request,
    plan: Plan,
    work: str,
    staged: str,
    progress: Progress,
    warnings: list[str],
    lock_fd: int,
) -> None:
    """Source, configure, compile, bundle, prove, publish; ``work`` keeps source and objects for the next try."""
    for program in ("cmake", "ninja", "readelf", "ldd", request.cmake.get("CMAKE_CXX_COMPILER") or "c++"):
        if shutil.which(program) is None:
            raise FleetError(
                f"{program} is not installed",
                expected="what a build needs: cmake, ninja-build, g++, binutils",
                remedy="Install it (role host does) and run again",
            )
    began, clock = _now(), time.monotonic()
    project = obtain(request.source, work, progress, warnings)
    log = os.path.join(work, "build.log")
    build = os.path.join(work, "build")
    jobs = job_count(request.jobs, len(os.sched_getaffinity(0)), _available_bytes())
    env = _build_env(request, work)
    with open(log, "a", encoding="utf-8") as sink:
        sink.write(f"--- {began}: {request.name} {plan.digest}\n")
    progress.update("configure", force=True)
    _logged(configure_argv(request, project, build), env, log, "configure", progress, lock_fd)
    argv = ["ninja", "-C", build, "-j", str(jobs), *request.targets]
    _logged(argv, env, log, "compile", progress, lock_fd)
    if request.source.kind == "path" and source_digest(request.source) != plan.inputs["source"]:
        raise FleetError(
            f"{request.source.path} changed while it was built",
            remedy="Run again once the tree is at rest; the runtime in use is untouched",
        )
    progress.update("prove", force=True)
    bundle(build, request.targets, staged)
    record = {
        "schema": 1,
        "name": request.name,
        "digest": plan.digest,
        "inputs": plan.inputs,
        "server_bin": os.path.join(plan.tree, "bin", request.server),
        "began": began,
        "seconds": round(time.monotonic() - clock, 1),
        "jobs": jobs,
        "ccache": "CCACHE_DIR" in env,
    }
    shutil.copy2(log, os.path.join(staged, "build.log"))
    _prove_and_publish(request, plan, staged, record)


def _prove_and_publish(request: Request, plan: Plan, staged: str, record: dict[str, Any]) -> None:
    """Run the staged tree's program, check its libraries, record it and give it its name by one rename."""
    prove_closure(staged, os.path.join(request.prefix, ".work"))
    states = stated_version(os.path.join(staged, "bin", request.server), request.version)
    record.update(states=states, version=request.version or states, ended=_now())
    write_record(staged, record)
    if os.path.lexists(plan.tree):  # damaged, else nothing had to be made; whoever runs it keeps its open files
        os.rename(plan.tree, os.path.join(request.work(plan.digest), f"damaged-{int(time.time())}"))
    os.rename(staged, plan.tree)


def _adopt(request: Request, plan: Plan) -> None:
    """A small tree that names an installed runtime: build.json and a link to the folder it was installed in."""
    server = _installed_server(request)
    staged = os.path.join(request.work(plan.digest), "tree")
    shutil.rmtree(staged, ignore_errors=True)
    make_dirs(staged)
    os.symlink(request.source.path, os.path.join(staged, "origin"))
    listing = run(["ldd", server], check=False).stdout
    missing = [line.split("=>")[0].strip() for line in listing.splitlines() if "not found" in line]
    if missing:
        raise FleetError(f"{server} lacks libraries", expected="all found", found=", ".join(missing))
    states = stated_version(server, request.version)
    record = {
        "schema": 1,
        "name": request.name,
        "digest": plan.digest,
        "inputs": plan.inputs,
        "server_bin": server,
        "states": states,
        "version": request.version or states,
        "ended": _now(),
    }
    write_record(staged, record)
    shutil.rmtree(plan.tree, ignore_errors=True)
    os.rename(staged, plan.tree)


def configure_argv(request: Request, project: str, build: str) -> list[str]:
    """The cmake call that configures ``project`` in ``build``."""
    options = {"CMAKE_BUILD_TYPE": "Release", **request.cmake}
    options |= {"CMAKE_INSTALL_RPATH": RPATH, "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON"}
    # The engine's own search for ccache would use a cache that nobody named.
    options.setdefault("GGML_CCACHE", "OFF")
    if _ccache(request):
        for language in ("C", "CXX", "CUDA", "HIP"):
            options.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
    return [
        "cmake",
        "-G",
        "Ninja",
        "-S",
        project,
        "-B",
        build,
        "-Wno-dev",
        "--no-warn-unused-cli",
        *(f"-D{option}={value}" for option, value in sorted(options.items())),
    ]


def _ccache(request: Request) -> bool:
    return bool(request.ccache_dir) and shutil.which("ccache") is not None


def _build_env(request: Request, work: str) -> dict[str, str]:
    """A bare environment: CFLAGS and the like of whoever runs the play must not reach the binary unseen."""
    env = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    env |= {"LC_ALL": "C.UTF-8", "NINJA_STATUS": "[%f/%t] "}
    if work and _ccache(request):
        make_dirs(request.ccache_dir)
        # Relative paths and the compiler's content, so that hits do not depend on this host or digest.
        env |= {
            "CCACHE_DIR": request.ccache_dir,
            "CCACHE_BASEDIR": work,
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_COMPILERCHECK": "content",
        }
    return env


def _logged(argv: Sequence[str], env: Mapping[str, str], log: str, step: str, progress: Progress, lock_fd: int) -> None:
    """Run ``argv`` with its output appended to ``log``; ninja's ``[n/m]`` lines become progress.

    The child is killed when this process dies, and it inherits the lock for what it leaves running itself.
    """
    with open(log, "a", encoding="utf-8") as sink:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(lock_fd,),
            preexec_fn=_dependent,
        )
        assert child.stdout is not None
        try:
            for line in child.stdout:
                sink.write(line)
                sink.flush()
                if counted := parse_ninja(line):
                    progress.update(step, done=counted[0], total=counted[1], unit="steps")
            rc = child.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()
            raise
    if rc != 0:
        raise FleetError(
            f"{step} failed",
            expected="exit status 0",
            found=f"{rc}; the end of {log}:\n{_tail(log)}\n",
            remedy="The runtime in use is untouched; mend the cause and run again, finished steps are kept",
            log=log,
        )


def _dependent() -> None:
    """In the child: die with the parent (Linux prctl), and leave the processors to whatever serves on this host."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.nice(10)


def _tail(log: str) -> str:
    with open(log, "rb") as handle:
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
