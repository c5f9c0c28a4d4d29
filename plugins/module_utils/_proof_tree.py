# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a build that can be seen without running it: libraries, search paths, device code, cmake's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import is_elf, read_elf
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf_device import device_archs, object_archs
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import BARE_ENV

__all__ = [
    "Closure",
    "arch_faults",
    "cache_faults",
    "closure_faults",
    "closure_of",
    "device_code_faults",
    "loader_of",
    "parse_cache",
    "parse_ldd",
    "read_cache",
    "rpath_faults",
    "starts",
]

_ENTRY = re.compile(r"([A-Za-z_][\w.+/-]*):([A-Z]+)=(.*)")
_LOADER = re.compile(r"^\s*(/\S*/ld-\S+) \(0x", re.MULTILINE)
_OTHER_ARCH = re.compile(r"gfx[0-9a-f]{3,5}(?![0-9a-f])")
_TRACED = {**BARE_ENV, "LD_TRACE_LOADED_OBJECTS": "1"}
_TRUE, _FALSE = ("ON", "TRUE", "YES", "Y", "1"), ("OFF", "FALSE", "NO", "N", "0", "")
# ggml declares its options to cmake; the rest it reads as it finds them. So an option of ggml's that has no type in the
# cache is one that the command line gave and this source does not know.
_DECLARED = re.compile(r"GGML_(?!BUILD_|VERSION)")
# Flags of cmake that are still taken and do nothing, with what took their place.
RETIRED = {"GGML_CUDA_FA_ALL_QUANTS": "GGML_CUDA_FA_QUANTS"}


@dataclass(frozen=True)
class Closure:
    """What the loader finds from some starting points: library to its real path, "" for one that is missing."""

    libraries: Mapping[str, str]
    faults: tuple[str, ...]
    inside: tuple[str, ...]


def _below(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(os.path.normpath(folder) + os.sep)


def starts(root: str, server: str) -> list[str]:
    """Where the loader begins: every program and module of ``bin``; elsewhere the server and ggml's modules by it."""
    folder = os.path.dirname(server)
    own = os.path.join(root, "bin")
    found = [server]
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        module = fnmatch(name, "libggml-*.so")
        wanted = module or (folder == own and os.access(path, os.X_OK))
        if path != server and wanted and os.path.isfile(path) and is_elf(path):
            found.append(path)
    return found


def parse_ldd(listing: str) -> tuple[dict[str, str], list[str]]:
    """(library to path, "" where it is missing; lines that tell of a version that is missing) of what ldd prints."""
    libraries: dict[str, str] = {}
    wrong = []
    for line in listing.splitlines():
        text = line.strip()
        if "not found (required by" in text:
            wrong.append(text.partition(": ")[2] or text)
            continue
        name, arrow, rest = text.partition(" => ")
        if not arrow:
            path = text.partition(" (0x")[0]
            if path.startswith("/") and not loader_of(line):  # linked by its whole path
                libraries[os.path.basename(path)] = path
            continue
        path = rest.split(" (")[0].strip()
        libraries[os.path.basename(name)] = "" if path == "not found" else path
    return libraries, wrong


def loader_of(listing: str) -> str:
    """The path of the loader itself in what ldd prints, or ""."""
    match = _LOADER.search(listing)
    return match[1] if match else ""


def closure_of(root: str, server: str) -> Closure:
    """Ask the loader; libraries of ``root``/lib that nothing links to are asked for too: they may be opened.

    What opens them is the program or one of its libraries, so they are loaded beside the program: then they inherit its
    search path, as they will (ld.so(8), DT_RPATH), and share what it has loaded already.
    """
    libraries: dict[str, str] = {}
    faults: list[str] = []
    seen: set[str] = set()

    def follow(path: str, loader: str = "") -> str:
        seen.add(os.path.realpath(path))
        if not read_elf(path).needed:
            return ""
        # what ldd does, with one library more; --list would end at the first that is missing
        argv, env = ([loader, "--preload", path, server], _TRACED) if loader else (["ldd", path], BARE_ENV)
        done = run(argv, env=env, check=False)
        listing = f"{done.stdout}\n{done.stderr}"
        found, wrong = parse_ldd(listing)
        faults.extend(wrong)
        for name, target in found.items():
            if target or name not in libraries:  # one that is missing here may have been found from a program
                libraries[name] = os.path.realpath(target) if target else ""
        seen.update(os.path.realpath(target) for target in found.values() if target)
        return loader_of(listing)

    loaders = [follow(path) for path in starts(root, server)]
    for path in _libraries(os.path.join(root, "lib")):
        if os.path.realpath(path) not in seen:
            follow(path, loaders[0])
    top = os.path.realpath(root)
    return Closure(libraries, tuple(dict.fromkeys(faults)), tuple(sorted(path for path in seen if _below(path, top))))


def _libraries(folder: str) -> Iterator[str]:
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path) and is_elf(path):
            yield path


def closure_faults(closure: Closure, root: str, expect: Expect) -> list[str]:
    """Libraries that are missing, that lie under a forbidden prefix, or that the host lends without being asked."""
    faults = list(closure.faults)
    for name, path in sorted(closure.libraries.items()):
        if not path:
            if not _matches(name, expect.driver):
                faults.append(f"{name} is not found")
        elif any(fnmatch(path, f"{prefix.rstrip('/')}/*") for prefix in expect.forbidden):
            faults.append(f"{name} comes from {path}, which is forbidden")
        elif not _below(path, os.path.realpath(root)) and not _matches(name, (*expect.system, *expect.driver)):
            faults.append(f"{name} comes from {path}, outside of the runtime")
    return faults


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def rpath_faults(closure: Closure, root: str, expect: Expect, foreign: Collection[str]) -> list[str]:
    """Search paths other than declared; ``foreign`` are files (below ``root``) of a toolkit, which may have their own
    as long as they lead nowhere else."""
    faults = []
    top = os.path.realpath(root)
    for path in closure.inside:
        relative = os.path.relpath(path, top)
        for entry in read_elf(path).search:
            if relative in foreign:
                plain = entry.replace("${ORIGIN}", "$ORIGIN")
                place = os.path.normpath(plain.replace("$ORIGIN", os.path.dirname(path)))
                if not plain.startswith("$ORIGIN") or not (place == top or _below(place, top)):
                    faults.append(f"{relative}: {entry or 'an empty entry'}")
            elif entry != expect.rpath:
                faults.append(f"{relative}: {entry or 'an empty entry'}")
    return faults


def device_code_faults(lib: str, expect: Expect) -> list[str]:
    """Folders of device code below ``lib`` that are missing, empty, one level off, or for another card."""
    return [fault for folder in expect.device_code for fault in _folder_faults(lib, folder, expect.arch)]


def _folder_faults(lib: str, folder: str, arch: str) -> Iterator[str]:
    path = os.path.join(lib, folder)
    if not os.path.isdir(path):
        above, below = os.path.dirname(path), os.path.basename(path)
        files = [name for name in _listing(above) if arch in name and os.path.isfile(os.path.join(above, name))]
        others = sorted(name for name in _listing(above) if _OTHER_ARCH.fullmatch(name) and name != arch)
        if files:
            yield f"{path} is missing: its files lie one level up, as {os.path.join(above, files[0])}"
        elif below == arch and others:
            yield f"{path} is missing: {above} has {', '.join(others)}"
        else:
            yield f"{path} is missing"
        return
    names = [name for name in _listing(path) if os.path.isfile(os.path.join(path, name))]
    if not names:
        inner = [name for name in _listing(path) if os.path.isdir(os.path.join(path, name))]
        yield f"{path} holds no files" + (f", {os.path.join(path, inner[0])} may, one level down" if inner else "")
        return
    if not any(arch in name and os.path.getsize(os.path.join(path, name)) for name in names):
        told = sorted({match for name in names for match in _OTHER_ARCH.findall(name)})
        yield f"{path} has no file for {arch}" + (f", but for {', '.join(told)}" if told else "")
    for name in names:
        archs = object_archs(os.path.join(path, name)) if arch in name else set()
        if archs and arch not in archs:
            yield f"{os.path.join(path, name)} holds code for {', '.join(sorted(archs))}"


def _listing(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def arch_faults(closure: Closure, root: str, expect: Expect, foreign: Collection[str]) -> tuple[list[str], str]:
    """(faults, what was found) of the code objects: our own files hold the declared card's and no other's, and one of
    them does; a toolkit's library may hold more, and for AMD must hold the card's."""
    top, faults, own = os.path.realpath(root), [], set()
    family = expect.arch.partition("_")[2]
    allowed = {expect.arch, f"compute_{family}"} if family else {expect.arch}
    for path in closure.inside:
        relative, archs = os.path.relpath(path, top), device_archs(path)
        if relative in foreign:
            if archs and not family and expect.arch not in archs:
                faults.append(f"{relative} holds {', '.join(sorted(archs))}")
            continue
        own |= archs
        if archs - allowed:
            faults.append(f"{relative} holds {', '.join(sorted(archs))}")
    if expect.arch not in own and not faults:
        faults.append("no code for the card at all" if not own else f"only {', '.join(sorted(own))}")
    return faults, ", ".join(sorted(own)) or "none"


def parse_cache(text: str) -> dict[str, str]:
    """Option to value of a CMakeCache.txt; without options of ggml's that the source does not declare."""
    found = {}
    for line in text.splitlines():
        match = _ENTRY.match(line)
        if match and not (match[2] == "UNINITIALIZED" and _DECLARED.match(match[1])):
            found[match[1]] = match[3]
    return found


def _same(expected: str, found: str) -> bool:
    for words in (_TRUE, _FALSE):
        if expected.upper() in words:
            return found.upper() in words
    # cmake makes a whole path of a program's name.
    return expected == found or ("/" not in expected and os.path.basename(found) == expected)


def cache_faults(cache: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Options whose value in the cache is another than declared, and retired ones that are believed in."""
    faults = []
    for option, value in sorted(wanted.items()):
        if option in RETIRED and value.upper() in _TRUE:
            faults.append(f"{option} is retired and does nothing, its successor is {RETIRED[option]}")
        elif option not in cache and _DECLARED.match(option):
            faults.append(
                f"{option} is no option of this source: cmake keeps what it was given, and nothing reads it; "
                f"declared {value}"
            )
        elif option not in cache:
            faults.append(f"{option} is not in it, declared {value}")
        elif not _same(value, cache[option]):
            faults.append(f"{option} is {cache[option]}, declared {value}")
    return faults


def read_cache(root: str, server: str) -> tuple[str, dict[str, str]]:
    """(path, options) of the CMakeCache.txt of a runtime: in its folder, or in one that holds the server's."""
    folder = os.path.dirname(server)
    places = [os.path.join(place, "CMakeCache.txt") for place in (root, folder, os.path.dirname(folder))]
    for path in places:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as handle:
                return path, parse_cache(handle.read(16 << 20))
    raise FleetError(f"no CMakeCache.txt of {server}", expected=f"one in {root}", found="none")
