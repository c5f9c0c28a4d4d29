# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proofs of a build: each asks the files or the program itself, none trusts what the build was told to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proof_tree as tree
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import read_elf
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Check, Expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_flags import contract_faults, parse_help
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_smoke import one_answer
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import BARE_ENV, stated_version

__all__ = ["SERVER", "build_id_of", "prove", "prove_files", "red", "require_proofs"]

SERVER = "llama-server"


def build_id_of(program: str) -> str:
    """The linker's digest of ``program``, or "" where it has none."""
    return read_elf(program).build_id


def prove(
    root: str, server: str, expect: Expect, *, foreign: Collection[str] = (), device: str = "none"
) -> list[Check]:
    """Every proof of the runtime in ``root`` whose program is ``server``, the green ones and the red ones.

    ``foreign`` are files of a toolkit that were bundled, as paths below ``root``. ``device`` is where the smoke
    request runs: none is the processor. The program is run only where the loader finds all that it needs.
    """
    checks = prove_files(root, server, expect, foreign=foreign)
    if checks[0].ok:
        checks += _running(server, expect, device)
    return checks


def prove_files(root: str, server: str, expect: Expect, *, foreign: Collection[str] = ()) -> list[Check]:
    """The proofs that run nothing, closure first; ``server`` may be a library."""
    shown: dict[str, tree.Closure] = {}

    def closure() -> list[str]:
        shown["closure"] = tree.closure_of(root, server)
        return tree.closure_faults(shown["closure"], root, expect)

    checks = [
        _faults(
            "closure",
            "every library in the runtime or of the system's own, none missing, none forbidden",
            closure,
            "Set the toolkit, so that it is bundled, or name under proof.system_libs what the system is to lend",
            green=lambda: f"{len(shown['closure'].libraries)} libraries, {len(shown['closure'].inside)} files inside",
        )
    ]
    if "closure" in shown:
        checks += _static(root, server, expect, shown["closure"], foreign)
    return checks


def _static(root: str, server: str, expect: Expect, closure: tree.Closure, foreign: Collection[str]) -> list[Check]:
    """The proofs of what lies there, as far as they are declared."""
    checks = []
    if expect.rpath:
        checks.append(
            _faults(
                "rpath",
                f"RPATH {expect.rpath}",
                lambda: tree.rpath_faults(closure, root, expect, foreign),
                "Take the search path out of the build's options: runtime_build sets it; relink the named files",
            )
        )
    lib = os.path.join(root, "lib")
    if expect.device_code:
        checks.append(
            _faults(
                "device code",
                f"files for {expect.arch} in {', '.join(os.path.join(lib, folder) for folder in expect.device_code)}",
                lambda: tree.device_code_faults(lib, expect),
                "Copy the contents of the toolkit's folder of that name to exactly this depth (cp -r SRC/. DST/), for "
                f"{expect.arch}; without it the server loads, says that it is well, and dies on its first request",
            )
        )
    if expect.arch:
        shown: list[str] = []

        def archs() -> list[str]:
            faults, found = tree.arch_faults(closure, root, expect, foreign)
            shown.append(found)
            return faults

        checks.append(
            _faults(
                "code objects",
                f"code for {expect.arch} alone",
                archs,
                "Set AMDGPU_TARGETS or CMAKE_CUDA_ARCHITECTURES to the card's own and build anew; a sister card's code "
                "links and loads, and then crashes",
                green=lambda: shown[0],
            )
        )
    if expect.cmake:
        checks.append(_cmake(root, server, expect))
    return checks


def _cmake(root: str, server: str, expect: Expect) -> Check:
    place = {}

    def faults() -> list[str]:
        path, cache = tree.read_cache(root, server)
        place["path"] = path
        return [f"{path}: {fault}" for fault in tree.cache_faults(cache, expect.cmake)]

    return _faults(
        "cmake",
        ", ".join(f"{option}={value}" for option, value in sorted(expect.cmake.items())),
        faults,
        "Build anew from an empty build folder, or correct the declaration: what counts is what the cache says",
        green=lambda: place["path"],
    )


def _running(server: str, expect: Expect, device: str) -> list[Check]:
    """The proofs that run the program; what serves nothing has but a version."""
    checks = [
        _told(
            "version",
            expect.version or "any, stated",
            lambda: stated_version(server, expect.version),
            "Correct version, the source's pin, or the cmake options that set the build number",
        )
    ]
    if not checks[0].ok or os.path.basename(server) != SERVER:
        return checks
    return [
        *checks,
        _faults(
            "flags",
            "every flag that an env file can become in --help",
            lambda: contract_faults(parse_help(_help(server)), expect.without),
            "Pin a build that has them, or name the keys under proof.without_keys and use them in no endpoint",
        ),
        _told(
            "smoke",
            f"an answer from a tiny model on device {device}",
            lambda: one_answer(server, device=device),
            "Read the server's last lines; the runtime in use is untouched",
        ),
    ]


def _help(server: str) -> str:
    done = run([server, "--help"], env=BARE_ENV, check=False)
    return f"{done.stdout}\n{done.stderr}"


def _faults(
    name: str,
    expected: str,
    ask: Callable[[], Sequence[str]],
    remedy: str,
    green: Callable[[], str] = lambda: "as expected",
) -> Check:
    """A proof that counts faults."""
    try:
        faults = ask()
    except FleetError as exc:
        return _refused(name, expected, exc, remedy)
    if faults:
        return Check(name, False, expected, "; ".join(faults), remedy)
    return Check(name, True, expected, green())


def _told(name: str, expected: str, ask: Callable[[], str], remedy: str) -> Check:
    """A proof that returns what it found, or raises."""
    try:
        found = ask()
    except FleetError as exc:
        return _refused(name, expected, exc, remedy)
    return Check(name, True, expected, found)


def _refused(name: str, expected: str, exc: FleetError, remedy: str) -> Check:
    found = exc.what if exc.found is None else f"{exc.what}: {exc.found}"
    return Check(name, False, expected, found, exc.remedy or remedy)


def red(checks: Sequence[Check]) -> list[Check]:
    """Those that are broken."""
    return [check for check in checks if not check.ok]


def require_proofs(what: str, checks: Sequence[Check], **facts: Any) -> None:
    """A FleetError for the first red one, with all of them as ``proofs``; nothing where all are green."""
    broken = red(checks)
    if broken:
        first = broken[0]
        also = f" ({len(broken) - 1} more proofs are red: {', '.join(one.check for one in broken[1:])})"
        raise FleetError(
            f"{what} is not proven: {first.check}" + (also if len(broken) > 1 else ""),
            expected=first.expected,
            found=first.found,
            remedy=first.remedy,
            proofs=[check.as_dict() for check in checks],
            **facts,
        )
