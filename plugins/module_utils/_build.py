# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Building an engine: from a pinned source to a linked, proven tree, safe against a kill at any line."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from dataclasses import replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import (
    Plan,
    Request,
    installed_server,
    make_plan,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._cmake import (
    available_bytes,
    build_env,
    configure_argv,
    has_ccache,
    job_count,
    logged,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_link, make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import (
    bundle,
    intact,
    keep_archive,
    kept_archive,
    prove_closure,
    read_record,
    stated_version,
    take_archive,
    write_record,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import obtain, source_digest

__all__ = ["carry_out"]

_LOCK_WAIT_S = 2.0
_ORPHANS_WAIT_S = 600.0


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
    with file_lock(os.path.join(work, "lock"), wait_s=_ORPHANS_WAIT_S, purpose="compiling") as lock:
        staged = os.path.join(work, "tree")
        shutil.rmtree(staged, ignore_errors=True)
        if plan.action == "unpacked":
            if _unpack_kept(request, plan, staged, progress, warnings):
                return plan
            shutil.rmtree(staged, ignore_errors=True)
            plan = replace(plan, action="built")
        _build(request, plan, work, staged, progress, warnings, lock.fd)
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
    jobs = job_count(request.jobs, len(os.sched_getaffinity(0)), available_bytes())
    env = build_env(work, request.ccache_dir)
    with open(log, "a", encoding="utf-8") as sink:
        sink.write(f"--- {began}: {request.name} {plan.digest}\n")
    progress.update("configure", force=True)
    logged(
        configure_argv(project, build, request.cmake, ccache=has_ccache(request.ccache_dir)),
        env,
        log,
        "configure",
        progress,
        lock_fd,
    )
    argv = ["ninja", "-C", build, "-j", str(jobs), *request.targets]
    logged(argv, env, log, "compile", progress, lock_fd)
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
    server = installed_server(request)
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


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
