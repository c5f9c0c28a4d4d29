# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Building an engine: from a pinned source to a linked, proven tree, safe against a kill at any line."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import (
    Plan,
    Request,
    expected,
    installed_server,
    make_plan,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bundle import bundle
from ansible_collections.dank.llm_fleet.plugins.module_utils._can import capabilities, merged
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
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof import build_id_of, prove, require_proofs
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_ask import home_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_tree import read_cache
from ansible_collections.dank.llm_fleet.plugins.module_utils._prune import doomed, take_away
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import (
    SCHEMA,
    intact,
    keep_archive,
    kept_archive,
    read_record,
    settle_times,
    take_archive,
    write_record,
    write_run,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import obtain, source_digest

__all__ = ["build_options", "carry_out", "prune"]

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


def prune(request: Request, plan: Plan, keep: int | None, state_dir: str, *, dry: bool) -> list[str]:
    """Take away older builds, all but ``keep`` and those in use (None: none at all); what went, or would go."""
    if keep is None:
        return []
    if keep < 0:
        raise FleetError("keep", expected="0 or more", found=keep)
    if dry or not os.path.isdir(os.path.join(request.prefix, ".work")):
        return doomed(request.prefix, request.name, keep, state_dir, plan.tree)
    lock = os.path.join(request.prefix, ".work", f"{request.name}.lock")
    with file_lock(lock, wait_s=_LOCK_WAIT_S, purpose=f"pruning of runtime {request.name}"):
        gone = doomed(request.prefix, request.name, keep, state_dir, plan.tree)
        take_away(request.prefix, gone)
    return gone


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
    """The short work before a link: adopt an installed runtime, or prove and record what was declared later."""
    if not intact(plan.tree, plan.digest):
        _adopt(request, plan)
        return
    record = read_record(plan.tree) or {}
    told = merged(record.get("told_can", {}), request.can)
    record |= {"can": told, "declared_can": dict(request.can), "version": request.version or record.get("states", "")}
    if record.get("expect") != expected(request):
        adopted = request.source.kind == "installed"
        root = home_of(installed_server(request), request.source.path) if adopted else plan.tree
        record |= _proven(request, root, record["server_bin"], record.get("from_toolkit", []), root)
    write_record(plan.tree, record)


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
        if record.get("schema") != SCHEMA:
            raise FleetError(f"{archive} was kept by another version", expected=SCHEMA, found=record.get("schema"))
        record.update(server_bin=os.path.join(plan.tree, "bin", request.server))
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
    for program in ("cmake", "ninja", "ldd", request.cmake.get("CMAKE_CXX_COMPILER") or "c++"):
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
        configure_argv(project, build, build_options(request), ccache=has_ccache(request.ccache_dir)),
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
    progress.update("bundle", force=True)
    foreign = bundle(build, request.targets, staged, request.expect, request.toolkit)
    shutil.copy2(log, os.path.join(staged, "build.log"))
    server = os.path.join(staged, "bin", request.server)
    told = capabilities(project, _cache_of(staged, server))
    record = {
        "schema": SCHEMA,
        "name": request.name,
        "digest": plan.digest,
        "inputs": plan.inputs,
        "server_bin": os.path.join(plan.tree, "bin", request.server),
        "from_toolkit": foreign,
        "told_can": told,
    }
    settle_times(staged)
    seconds = round(time.monotonic() - clock, 1)
    run_facts = {"began": began, "ended": _now(), "seconds": seconds, "jobs": jobs, "ccache": "CCACHE_DIR" in env}
    write_run(staged, run_facts)
    progress.update("prove", force=True)
    _prove_and_publish(request, plan, staged, record)


def build_options(request: Request) -> dict[str, str]:
    """The declared options; a toolkit is where cmake looks first, and where the linker follows what libraries need.

    Our files get DT_RPATH, not DT_RUNPATH: the loader then looks in the bundle also for what the toolkit's libraries
    need, which may have no search path of their own (Debian's ROCm) and else take the host's.
    """
    own = {}
    if request.toolkit is not None:
        flags = f"-Wl,-rpath-link,{os.path.join(request.toolkit.path, 'lib')} -Wl,--disable-new-dtags"
        own = {"CMAKE_PREFIX_PATH": request.toolkit.path}
        own |= {f"CMAKE_{kind}_LINKER_FLAGS": flags for kind in ("EXE", "SHARED", "MODULE")}
    return own | dict(request.cmake)


def _cache_of(tree: str, server: str) -> dict[str, str]:
    """cmake's cache, or nothing where the build left none: the proof of it tells."""
    try:
        return read_cache(tree, server)[1]
    except FleetError:
        return {}


def _proven(request: Request, root: str, server: str, foreign: Sequence[str], final: str) -> dict[str, Any]:
    """What the proofs add to a record; a red one is a FleetError. Paths are told as they will be in ``final``."""
    checks = prove(root, server, request.expect, foreign=foreign)
    require_proofs(f"runtime {request.name} in {root}", checks)
    rows = [check.as_dict() for check in checks]
    for row in rows:
        row.update({key: row[key].replace(root, final) for key in ("expected", "found") if isinstance(row[key], str)})
    states = next(row["found"] for row in rows if row["check"] == "version")
    return {
        "proofs": rows,
        "expect": expected(request),
        "states": states,
        "version": request.version or states,
        "build_id": build_id_of(server),
    }


def _prove_and_publish(request: Request, plan: Plan, staged: str, record: dict[str, Any]) -> None:
    """Prove the staged tree, record what was found and give it its name by one rename."""
    server = os.path.join(staged, "bin", request.server)
    record |= _proven(request, staged, server, record.get("from_toolkit", []), plan.tree)
    record |= {"can": merged(record.get("told_can", {}), request.can), "declared_can": dict(request.can)}
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
    root = home_of(installed_server(request), request.source.path)
    record = {
        "schema": SCHEMA,
        "name": request.name,
        "digest": plan.digest,
        "inputs": plan.inputs,
        "server_bin": server,
        "can": dict(request.can),
        "declared_can": dict(request.can),
        **_proven(request, root, server, [], root),
    }
    write_record(staged, record)
    shutil.rmtree(plan.tree, ignore_errors=True)
    os.rename(staged, plan.tree)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
