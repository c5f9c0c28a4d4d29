# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a build folder to a tree that stands alone: programs, libraries, a toolkit's parts, cmake's cache."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import NamedTuple

from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import is_elf, read_elf
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect

__all__ = ["Toolkit", "bundle", "toolkit_version"]

_FOLDERS = ("lib", "lib64")
_ARCH = re.compile(r"gfx[0-9a-f]{3,5}(?![0-9a-f])")


class Toolkit(NamedTuple):
    """A private toolkit (ROCm, CUDA): its folder, and libraries that are opened at run time and linked by nobody."""

    path: str
    libs: tuple[str, ...] = ()


def toolkit_version(path: str) -> str:
    """What a toolkit says of its version, as ROCm (``.info/version``) and CUDA (``version.json``) keep it; or ""."""
    for name in (".info/version", "version.json"):
        file = os.path.join(path, name)
        if os.path.isfile(file):
            with open(file, encoding="utf-8", errors="replace") as handle:
                return " ".join(handle.read(1 << 16).split())
    return ""


def bundle(build: str, targets: Sequence[str], tree: str, expect: Expect, toolkit: Toolkit | None = None) -> list[str]:
    """Copy the built programs to ``tree``/bin and the libraries that they need to ``tree``/lib.

    cmake's own install step wants every target of the project, also those nobody asked for, so the closure is
    followed here. Loadable modules (``*.so`` that nothing links to, as ggml's dynamic backends) go beside the
    programs, where the engine looks for them. What ``toolkit`` has of the closure comes along, and its device code at
    the depth where it is looked for. Returns the toolkit's libraries, as paths below ``tree``.
    """
    built = _files_of(build)
    for folder in ("bin", "lib"):
        os.makedirs(os.path.join(tree, folder))
    linked: set[str] = set()
    foreign: list[str] = []
    waiting: list[str] = []

    def take(source: str, folder: str, name: str) -> None:
        target = os.path.join(tree, folder, name)
        shutil.copy2(source, target)
        waiting.append(target)

    def take_foreign(name: str) -> None:
        source = _of_toolkit(name, toolkit, expect)
        if source and name not in linked:
            linked.add(name)
            foreign.append(os.path.join("lib", name))
            take(source, "lib", name)

    for target in targets:
        if target not in built:
            raise FleetError(
                f"target {target} made no program of its name", expected=f"a file {target} below {build}", found="none"
            )
        take(built[target], "bin", target)
    for name in _opened(toolkit):
        take_foreign(name)
    modules = [name for name, path in built.items() if name.endswith(".so") and not os.path.islink(path)]
    while waiting or modules:
        while waiting:
            path = waiting.pop()
            for needed in read_elf(path).needed if is_elf(path) else ():
                if needed in built and needed not in linked:
                    linked.add(needed)
                    take(built[needed], "lib", needed)
                elif needed not in built:
                    take_foreign(needed)
        # what is linked under another name (libx.so for libx.so.1) is the same file, hence no module
        taken = {os.path.realpath(built[name]) for name in linked if name in built}
        modules = [name for name in modules if os.path.realpath(built[name]) not in taken]
        while modules:
            name = modules.pop()
            take(built[name], "bin", name)
    if toolkit is not None:
        _device_code(toolkit, tree, expect)
    cache = os.path.join(build, "CMakeCache.txt")
    if os.path.isfile(cache):
        shutil.copy2(cache, os.path.join(tree, "CMakeCache.txt"))
    return sorted(foreign)


def _files_of(build: str) -> dict[str, str]:
    built: dict[str, str] = {}
    for directory, folders, files in os.walk(build):
        folders[:] = [folder for folder in folders if folder != "CMakeFiles"]
        for file in files:
            built.setdefault(file, os.path.join(directory, file))
    return built


def _of_toolkit(name: str, toolkit: Toolkit | None, expect: Expect) -> str | None:
    """The toolkit's library ``name``, unless the system lends that one."""
    if toolkit is None or any(fnmatch(name, pattern) for pattern in (*expect.system, *expect.driver)):
        return None
    places = (os.path.join(toolkit.path, folder, name) for folder in _FOLDERS)
    return next((place for place in places if os.path.isfile(place)), None)


def _opened(toolkit: Toolkit | None) -> list[str]:
    """The libraries that ``toolkit.libs`` name; a pattern that fits none is a FleetError."""
    found: list[str] = []
    for pattern in toolkit.libs if toolkit else ():
        fitting: list[str] = []
        for folder in _FOLDERS:
            place = os.path.join(toolkit.path if toolkit else "", folder)
            names = sorted(os.listdir(place)) if os.path.isdir(place) else []
            fitting += [name for name in names if fnmatch(name, pattern)]
        if not fitting:
            raise FleetError(
                f"the toolkit has no library {pattern}",
                expected=f"one in {toolkit.path if toolkit else ''}/lib",
                found="none",
                remedy="Correct toolkit.path or toolkit.libs",
            )
        found += fitting
    return found


def _device_code(toolkit: Toolkit, tree: str, expect: Expect) -> None:
    """Copy the contents of each folder of device code, without the files that are for other cards alone."""
    for folder in expect.device_code:
        source = os.path.join(toolkit.path, "lib", folder)
        if not os.path.isdir(source):
            raise FleetError(
                f"the toolkit has no device code in {source}",
                expected=f"the folder, with files for {expect.arch}",
                found="none",
                remedy="Correct toolkit.path, or proof.device_code to the depth that this version has",
            )
        target = os.path.join(tree, "lib", folder)
        os.makedirs(target)
        for name in sorted(os.listdir(source)):
            path, archs = os.path.join(source, name), set(_ARCH.findall(name))
            if os.path.isfile(path) and (not archs or expect.arch in archs):
                shutil.copy2(path, os.path.join(target, name))
