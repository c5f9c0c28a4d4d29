# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build one runtime for a card that is not there, prove it, and break it once for each proof.

Reads a job (JSON) from its input and writes rows (JSON) to the file that the job names. Called by check_builds.py, also
inside another system's tree: it needs nothing but Python and the collection on its path.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._build import build_options, carry_out
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import Request, parse_request
from ansible_collections.dank.llm_fleet.plugins.module_utils._bundle import bundle
from ansible_collections.dank.llm_fleet.plugins.module_utils._cmake import (
    build_env,
    configure_argv,
    has_ccache,
    logged,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf_device import device_archs
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof import prove_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Check
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import read_record
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import obtain

PASS, RED, UNTRIED = "pass", "RED", "not tried"
_LISTED = re.compile(r"^(ELF|PTX) file.*\.sm_(\d+)[a-z]?\.(?:cubin|ptx)", re.MULTILINE)
_OFFLOADED = re.compile(r"amdgcn-amd-amdhsa-+(gfx[0-9a-f]+)")


@dataclass(frozen=True)
class Row:
    """One line of the table; ``result`` is PASS, RED or UNTRIED."""

    check: str
    result: str
    found: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Built:
    """A built tree, and the build folder that it came from; ``library`` is the card's, as cmake names it."""

    build: str
    tree: str
    server: str
    foreign: tuple[str, ...]
    library: str
    kernels: tuple[str, ...]


class Checks:
    """The rows so far; what is asked is timed, and an error of ours or of a tool is a red row, never a pass."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def ask(self, check: str, question: Callable[[], str]) -> bool:
        """``question`` says what it found, or raises."""
        started = time.monotonic()
        try:
            row = Row(check, PASS, question())
        except (FleetError, OSError, LookupError, subprocess.SubprocessError) as exc:
            told = exc.message if isinstance(exc, FleetError) else f"{type(exc).__name__}: {exc}"
            row = Row(check, RED, f"{told} {getattr(exc, 'stderr', None) or ''}".strip())
        self.rows.append(replace(row, seconds=round(time.monotonic() - started, 1)))
        print(f"    {row.check}: {row.result}: {row.found.splitlines()[-1][:150] if row.found else ''}", flush=True)
        return row.result == PASS

    def take(self, checks: Sequence[Check], seconds: float, tree: str) -> None:
        """Proofs that were asked together; paths are told as seen from ``tree``."""
        for one in checks:
            found = f"{one.expected}: {one.found}" if one.ok else f"expected {one.expected}; found {one.found}"
            found = found.replace(tree + os.sep, "")
            self.rows.append(Row(f"proof: {one.check}", PASS if one.ok else RED, found, seconds))
            print(f"    {self.rows[-1].check}: {self.rows[-1].result}: {found[:150]}", flush=True)
            seconds = 0.0


def sh(command: str, cwd: str) -> str:
    """Run what ninja would; its output."""
    done = subprocess.run(["sh", "-c", command], cwd=cwd, env=build_env(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise FleetError(f"{command[:60]}... failed", found=(done.stdout + done.stderr)[-2000:])
    return done.stdout


def commands_of(build: str, target: str) -> list[str]:
    """The commands by which ninja makes ``target``, the last one being its own."""
    return sh(f"ninja -t commands {shlex.quote(target)}", build).splitlines()


def objects_of(build: str, library: str) -> list[str]:
    """The object files with device code that ``library`` is linked from."""
    return re.findall(r"\S+\.cu\.o(?= )", link_command(build, library))


def link_command(build: str, library: str) -> str:
    """The command that links ``library``."""
    own = [line for line in commands_of(build, f"bin/{library}") if " -shared " in line and library in line]
    return own[-1]


def output_of(link: str) -> str:
    """The file that a link command writes."""
    words = shlex.split(link)
    return words[words.index("-o") + 1]


def linked(build: str, library: str, objects: Sequence[str], target: str, change: Callable[[str], str] = str) -> str:
    """Link ``library`` from these of its objects to ``target``; the very command, but for ``change``."""
    link = link_command(build, library)
    link = re.sub(r"\S+\.cu\.o(?= )", "", link).replace(" -o ", f" {shlex.join(objects)} -o ", 1)
    link = link.replace(f"-o {output_of(link)}", f"-o {shlex.quote(target)}")
    sh(change(link), build)
    return target


def compiled(build: str, kernel: str, target: str, change: Callable[[str], str]) -> str:
    """Compile ``kernel`` to ``target``; the very command, but for ``change``."""
    command = change(commands_of(build, kernel)[-1])
    command = command.replace(f"-o {kernel}", f"-o {shlex.quote(target)}").replace(f"-MF {kernel}.d", f"-MF {target}.d")
    sh(command, build)
    return target


def few(request: Request, job: dict[str, Any]) -> Built:
    """Configure all, compile a few kernels, link them to the real library and bundle it."""
    work = os.path.join(request.prefix, f"{request.name}.few")
    make_dirs(work)
    build, library, log = os.path.join(work, "build"), job["library"], os.path.join(work, "build.log")
    warnings: list[str] = []
    with file_lock(os.path.join(work, "lock"), wait_s=10.0, purpose="check-builds") as lock:
        progress, env = Progress(None), build_env(work, request.ccache_dir)
        project = obtain(request.source, work, progress, warnings)
        argv = configure_argv(project, build, build_options(request), ccache=has_ccache(request.ccache_dir))
        logged(argv, env, log, "configure", progress, lock.fd)
        every = objects_of(build, library)
        kernels = [one for name in job["kernels"] for one in every if one.endswith(f"/{name}.cu.o")]
        if len(kernels) != len(job["kernels"]):
            raise FleetError("kernels of the source tree", expected=", ".join(job["kernels"]), found=kernels)
        logged(
            ["ninja", "-C", build, "-j", str(job["jobs"]), "ggml-base", *kernels],
            env,
            log,
            "compile",
            progress,
            lock.fd,
        )
    linked(build, library, kernels, os.path.join(build, output_of(link_command(build, library))))
    sh(commands_of(build, f"bin/{library}")[-1], build)  # its links
    tree = os.path.join(work, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    foreign = bundle(build, [library], tree, request.expect, request.toolkit)
    return Built(build, tree, os.path.join(tree, "bin", library), tuple(foreign), library, tuple(kernels))


def whole(request: Request, job: dict[str, Any]) -> tuple[str, list[Check]]:
    """(tree, proofs) of the product's own build, to the link; proofs which it would not have got a name without."""
    plan, _seconds = carry_out(replace(request, jobs=job["jobs"]), Progress(None), [])
    rows = (read_record(plan.tree) or {})["proofs"]
    return plan.tree, [Check(row["check"], row["ok"], row["expected"], row["found"]) for row in rows]


class Breaks:
    """Copies of a proven tree (hard links), each with one thing wrong."""

    def __init__(self, built: Built, request: Request) -> None:
        self.built, self.request = built, request
        self.work = os.path.join(os.path.dirname(built.tree), "broken")

    def tree(self) -> str:
        """A fresh copy."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.built.tree, self.work, symlinks=True, copy_function=os.link)
        return self.work

    def relinked(self, objects: Sequence[str], change: Callable[[str], str] = str) -> str:
        """A copy whose card library is linked from other objects, or in another way."""
        tree = self.tree()
        path = os.path.join(tree, "bin", self.built.library)
        os.unlink(path)  # the file itself is shared with the sound tree
        linked(self.built.build, self.built.library, objects, path, change)
        return tree

    def compiled(self, text: str, other: str) -> str:
        """The first kernel, compiled with ``other`` in place of ``text`` in its command; must stand in it."""

        def change(command: str) -> str:
            if not re.search(text, command):
                raise FleetError("the command of a kernel", expected=text, found=command)
            return re.sub(text, other, command)

        target = os.path.join(os.path.dirname(self.built.tree), "other.cu.o")
        return compiled(self.built.build, self.built.kernels[0], target, change)

    def refused(self, tree: str, check: str, fact: str) -> str:
        """What the proof ``check`` says of the broken ``tree``: it must be red and name ``fact``."""
        server = os.path.join(tree, os.path.relpath(self.built.server, self.built.tree))
        checks = prove_files(tree, server, self.request.expect, foreign=self.built.foreign)
        (asked,) = [one for one in checks if one.check == check]
        found = str(asked.found).replace(self.work + os.sep, "")
        if asked.ok or fact not in found:
            raise FleetError(f"the proof {check} of a broken tree", expected=f"red, with {fact}", found=found)
        others = [one.check for one in checks if not one.ok and one.check != check]
        return f"refused: {found}" + (f" (red too: {', '.join(others)})" if others else "")

    # Each break by its name.

    def sister(self) -> str:
        """One kernel for the sister card among those for the right one."""
        own, other = self.request.expect.arch, SISTERS[self.request.expect.arch]
        if own.startswith("sm_"):
            text, put = rf"\b(compute|sm)_{own[3:]}\b", rf"\g<1>_{other[3:]}"
        else:
            text, put = f"--offload-arch={own}", f"--offload-arch={other}"
        made = self.compiled(text, put)
        return self.refused(self.relinked([made, *self.built.kernels[1:]]), "code objects", other)

    def search_path(self) -> str:
        """A library that searches elsewhere."""
        tree = self.relinked(self.built.kernels, lambda link: link.replace("ORIGIN/../lib", "ORIGIN/../elsewhere"))
        return self.refused(tree, "rpath", "$ORIGIN/../elsewhere")

    def lost_library(self) -> str:
        """One of the toolkit's libraries away."""
        tree, names = self.tree(), [one for one in self.built.foreign if "blas" in one]
        if not names:
            raise LookupError(f"a BLAS library in the bundle, found {', '.join(self.built.foreign) or 'none'}")
        name = names[0]
        os.unlink(os.path.join(tree, name))
        return self.refused(tree, "closure", os.path.basename(name))

    def other_value(self) -> str:
        """A cache of cmake with another value of what decides the kernels."""
        tree, cmake = self.tree(), self.request.expect.cmake
        option = next(one for one in ("GGML_CUDA_FA_QUANTS", "AMDGPU_TARGETS") if one in cmake)
        path = os.path.join(tree, "CMakeCache.txt")
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
        os.unlink(path)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(re.sub(rf"^({option}:\w+)=.*$", r"\1=stale", text, flags=re.MULTILINE))
        return self.refused(tree, "cmake", f"{option} is stale")

    def lost_folder(self, folder: str) -> str:
        """A folder of device code away."""
        tree = self.tree()
        shutil.rmtree(os.path.join(tree, "lib", folder))
        return self.refused(tree, "device code", f"{folder} is missing")

    def flattened(self, folder: str) -> str:
        """A folder of device code one level up."""
        tree = self.tree()
        path = os.path.join(tree, "lib", folder)
        for name in os.listdir(path):
            os.rename(os.path.join(path, name), os.path.join(os.path.dirname(path), name))
        os.rmdir(path)
        return self.refused(tree, "device code", "one level up")

    def sister_files(self, folder: str) -> str:
        """Device code whose files are another card's."""
        tree, own = self.tree(), self.request.expect.arch
        path = os.path.join(tree, "lib", folder)
        for name in os.listdir(path):
            os.rename(os.path.join(path, name), os.path.join(path, name.replace(own, SISTERS[own])))
        return self.refused(tree, "device code", SISTERS[own])

    def packed(self) -> str:
        """No break: the same kernels, packed the other way, must be read as the same."""
        own = self.request.expect.arch
        nvidia = own.startswith("sm_")
        made = self.compiled(
            *(("-compress-mode=size", "-no-compress") if nvidia else (" -c ", " --offload-compress -c "))
        )
        archs = device_archs(os.path.join(self.relinked([made]), "bin", self.built.library))
        sound = {own, own.replace("sm_", "compute_")} if nvidia else {own}
        if archs != sound:
            raise FleetError("code objects", expected=sorted(sound), found=sorted(archs))
        with open(made, "rb") as handle:
            mark = "a CCOB header" if b"CCOB" in handle.read() else "no CCOB header"
        return f"{', '.join(sorted(archs))}" + ("" if nvidia else f", {mark}")


SISTERS = {"sm_86": "sm_80", "gfx1201": "gfx1200", "gfx1100": "gfx1101"}


def parse_listing(told: str) -> set[str]:
    """The cards in what cuobjdump (-lelf -lptx) or llvm-objdump (--offloading) prints, as we name them."""
    kinds = {"ELF": "sm", "PTX": "compute"}
    return {f"{kinds[kind]}_{arch}" for kind, arch in _LISTED.findall(told)} | set(_OFFLOADED.findall(told))


def listed(built: Built, job: dict[str, Any]) -> str:
    """The code objects as the vendor's own program lists them, which must be those that we read."""
    path = os.path.join(built.tree, "bin", built.library)
    program = job["lister"]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(built.tree)) as folder:
        done = subprocess.run([*program, path], cwd=folder, check=True, capture_output=True, text=True)
    theirs, ours = parse_listing(done.stdout + done.stderr), device_archs(path)
    if ours != theirs:
        raise FleetError(
            f"code objects by {program[0]}", expected=sorted(ours), found=sorted(theirs) or done.stdout[-300:]
        )
    return f"{os.path.basename(program[0])} lists {', '.join(sorted(theirs))}, as we read"


def attention(built: Built, request: Request) -> str:
    """The attention kernels in the build's own graph: those of the declared pairs."""
    told = {
        match[1]
        for name in objects_of(built.build, built.library)
        if (match := re.search(r"vec-instance-(.+)\.cu", name))
    }
    declared = request.expect.cmake.get("GGML_CUDA_FA_QUANTS")
    if declared and told != set(declared.split(";")):
        raise FleetError("attention kernels that are compiled", expected=declared, found=sorted(told))
    return f"kernels for {', '.join(sorted(told))}" + ("" if declared else ", none declared")


def all_checks(job: dict[str, Any]) -> list[Row]:
    """Every row of one runtime."""
    request, checks = parse_request(job["request"]), Checks()
    made: list[Built] = []

    def build() -> str:
        made.append(few(request, job))
        size = os.path.getsize(os.path.join(made[0].tree, "bin", made[0].library))
        every = objects_of(made[0].build, made[0].library)
        return f"{len(made[0].kernels)} of {len(every)} kernels linked to {job['library']}, {size >> 10} KiB"

    if not checks.ask("configure, compile a few kernels, link, bundle", build):
        return checks.rows
    built, started = made[0], time.monotonic()
    proofs = prove_files(built.tree, built.server, request.expect, foreign=built.foreign)
    checks.take(proofs, round(time.monotonic() - started, 1), built.tree)
    checks.ask("attention kernels in the build graph", lambda: attention(built, request))
    checks.ask("code objects, beside the vendor's lister", lambda: listed(built, job))
    breaks = Breaks(built, request)
    other = SISTERS[request.expect.arch]
    other_way = "not packed" if request.expect.arch.startswith("sm_") else "packed"
    checks.ask(f"a kernel that is {other_way}, read the same", breaks.packed)
    checks.ask(f"break: one kernel for {other}", breaks.sister)
    checks.ask("break: a library that searches elsewhere", breaks.search_path)
    checks.ask("break: a library of the toolkit away", breaks.lost_library)
    checks.ask("break: another value in CMakeCache.txt", breaks.other_value)
    for folder in request.expect.device_code:
        checks.ask(f"break: lib/{folder} away", lambda folder=folder: breaks.lost_folder(folder))  # type: ignore[misc]
        checks.ask(f"break: lib/{folder} one level up", lambda folder=folder: breaks.flattened(folder))  # type: ignore[misc]
        checks.ask(f"break: lib/{folder} for {other}", lambda folder=folder: breaks.sister_files(folder))  # type: ignore[misc]
    shutil.rmtree(breaks.work, ignore_errors=True)
    if job["all"]:
        found: list[tuple[str, list[Check]]] = []

        def entire() -> str:
            found.append(whole(request, job))
            return "runtime_build, to the link"

        if checks.ask("everything compiled", entire):
            checks.take(found[0][1], 0.0, found[0][0])
    else:
        for check in ("version", "flags", "smoke"):
            checks.rows.append(
                Row(f"proof: {check}", UNTRIED, "a few kernels make no server; LLM_FLEET_CHECK_ALL=1 compiles all")
            )
    return checks.rows


def main() -> None:
    """One job."""
    job = json.load(sys.stdin)
    rows = all_checks(job)
    with open(job["result"], "w", encoding="utf-8") as handle:
        json.dump([asdict(row) for row in rows], handle)


if __name__ == "__main__":
    main()
