# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finished runtime trees: bundled from a build, proven, recorded in build.json, kept as archives for other hosts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, fsync_dir
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = [
    "RPATH",
    "bundle",
    "closure_faults",
    "dynamic_entries",
    "file_record",
    "intact",
    "keep_archive",
    "kept_archive",
    "prove_closure",
    "read_record",
    "stated_version",
    "states_version",
    "take_archive",
    "write_record",
]

RPATH = "$ORIGIN/../lib"
_DYNAMIC = re.compile(r"\((NEEDED|RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]")
_BARE_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def bundle(build: str, targets: Sequence[str], tree: str) -> None:
    """Copy the built programs to ``tree``/bin and the libraries that they need to ``tree``/lib.

    cmake's own install step wants every target of the project, also those nobody asked for, so the closure is
    followed here. Loadable modules (``*.so`` that nothing links to, as ggml's dynamic backends) go beside the
    programs, where the engine looks for them.
    """
    built: dict[str, str] = {}
    for directory, folders, files in os.walk(build):
        folders[:] = [folder for folder in folders if folder != "CMakeFiles"]
        for file in files:
            built.setdefault(file, os.path.join(directory, file))
    for folder in ("bin", "lib"):
        os.makedirs(os.path.join(tree, folder))
    linked: set[str] = set()
    waiting: list[str] = []

    def take(name: str, folder: str) -> None:
        target = os.path.join(tree, folder, name)
        shutil.copy2(built[name], target)
        waiting.append(target)

    for target in targets:
        if target not in built:
            raise FleetError(
                f"target {target} made no program of its name", expected=f"a file {target} below {build}", found="none"
            )
        take(target, "bin")
    modules = [name for name, path in built.items() if name.endswith(".so") and not os.path.islink(path)]
    while waiting or modules:
        while waiting:
            for needed in dynamic_entries(waiting.pop())["NEEDED"]:
                if needed in built and needed not in linked:
                    linked.add(needed)
                    take(needed, "lib")
        # what is linked under another name (libx.so for libx.so.1) is the same file, hence no module
        taken = {os.path.realpath(built[name]) for name in linked}
        modules = [name for name in modules if os.path.realpath(built[name]) not in taken]
        while modules:
            take(modules.pop(), "bin")


def dynamic_entries(path: str) -> dict[str, list[str]]:
    """``{"NEEDED": [...], "RUNPATH": [...], "RPATH": [...]}`` of a program or library, as readelf reads it."""
    entries: dict[str, list[str]] = {"NEEDED": [], "RUNPATH": [], "RPATH": []}
    for tag, value in _DYNAMIC.findall(run(["readelf", "-d", "-W", path], env=_BARE_ENV).stdout):
        entries[tag] += [value] if tag == "NEEDED" else value.split(":")
    return entries


def closure_faults(ldd_output: str, tree: str, forbidden: str) -> list[str]:
    """Faults of one ``ldd`` listing: libraries not found, or found below ``forbidden`` but outside ``tree``."""
    faults = []
    for line in ldd_output.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        path = rest.split(" (")[0].strip()
        if path == "not found":
            faults.append(f"{name} is not found")
        elif forbidden and _below(path, forbidden) and not _below(path, tree):
            faults.append(f"{name} comes from {path}")
    return faults


def _below(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(os.path.normpath(folder) + os.sep)


def prove_closure(tree: str, forbidden: str) -> None:
    """Each program and library of ``tree`` finds all it needs, and nothing below ``forbidden``; else a FleetError."""
    faults = []
    for relative in file_record(tree):
        path = os.path.join(tree, relative)
        if relative.split(os.sep)[0] not in ("bin", "lib") or not _is_elf(path):
            continue
        entries = dynamic_entries(path)
        paths = [entry for entry in [*entries["RUNPATH"], *entries["RPATH"]] if entry]
        faults += [f"{relative}: RPATH {entry}" for entry in paths if entry != RPATH]
        if entries["NEEDED"]:
            listing = run(["ldd", path], env=_BARE_ENV, check=False)
            faults += [f"{relative}: {fault}" for fault in closure_faults(listing.stdout, tree, forbidden)]
    if faults:
        raise FleetError(
            f"the built tree {tree} does not stand alone",
            expected=f"every library found in the tree or the system, RPATH {RPATH}",
            found="; ".join(faults),
            remedy="Check the cmake options; the runtime in use is untouched",
        )


def _is_elf(path: str) -> bool:
    with open(path, "rb") as handle:
        return handle.read(4) == b"\x7fELF"


def stated_version(binary: str, version: str) -> str:
    """The line by which ``binary`` states its version; it must hold the declared ``version`` if one is given."""
    done = run([binary, "--version"], env=_BARE_ENV, check=False)
    said = f"{done.stdout}\n{done.stderr}".strip()
    if done.rc != 0:
        raise FleetError(f"{binary} --version failed", expected="exit status 0", found=f"{done.rc}: {done.tail}")
    lines = [line.strip() for line in said.splitlines() if "version" in line.lower()] or said.splitlines()[:1]
    if version and not states_version(said, version):
        raise FleetError(
            f"{binary} is another version than declared",
            expected=version,
            found=lines[0] if lines else "no output",
            remedy="Correct version, the source's pin, or the cmake options that set the build number",
        )
    return lines[0] if lines else ""


def states_version(said: str, version: str) -> bool:
    """Whether ``version`` stands in ``said`` as a whole word; a leading ``b`` of a build number may be there or not."""
    bare = version[1:] if re.fullmatch(r"b\d+", version) else version
    return re.search(rf"(?<![0-9A-Za-z.])b?{re.escape(bare)}(?![0-9A-Za-z])(?!\.\d)", said) is not None


def file_record(tree: str) -> dict[str, list[int]]:
    """``{relative path: [size, mtime_ns]}`` of the tree's files, build.json and build.log left out."""
    record = {}
    for directory, _folders, files in os.walk(tree):
        for file in files:
            full = os.path.join(directory, file)
            relative = os.path.relpath(full, tree)
            if relative not in ("build.json", "build.log"):
                status = os.stat(full)
                record[relative] = [status.st_size, status.st_mtime_ns]
    return dict(sorted(record.items()))


def write_record(tree: str, record: Mapping[str, Any]) -> None:
    """Write ``tree``/build.json."""
    data = json.dumps({**record, "files": file_record(tree)}, indent=2, sort_keys=True) + "\n"
    atomic_write(os.path.join(tree, "build.json"), data.encode())


def read_record(tree: str) -> dict[str, Any] | None:
    """``tree``/build.json, or None where it is missing or damaged: then the tree is not one of ours, or not whole."""
    try:
        with open(os.path.join(tree, "build.json"), "rb") as handle:
            record = json.load(handle)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def intact(tree: str, digest: str) -> bool:
    """Whether ``tree`` was made from ``digest`` and its files are those that were proven (size and time stamp)."""
    record = read_record(tree)
    return record is not None and record.get("digest") == digest and record.get("files") == file_record(tree)


def keep_archive(tree: str, cache: str, digest: str) -> str:
    """Keep ``tree`` in ``cache`` as ``<digest>.tar.zst`` (``.tar.gz`` without zstd) with its sha256; returns the path.

    The digest file is written last: an archive without one is not used.
    """
    suffix = ".tar.zst" if shutil.which("zstd") else ".tar.gz"
    final = os.path.join(cache, f"{digest}{suffix}")
    fd, temporary = tempfile.mkstemp(prefix=f".{digest[:12]}.", suffix=suffix, dir=cache)
    os.close(fd)
    packed = temporary
    try:
        if suffix == ".tar.gz":
            with tarfile.open(temporary, "w:gz", compresslevel=3) as tar:
                tar.add(tree, arcname=".")
        else:
            packed = f"{temporary}.packed"
            with tarfile.open(temporary, "w") as tar:
                tar.add(tree, arcname=".")
            run(["zstd", "-q", "-3", "-f", temporary, "-o", packed], timeout_s=3600)
        os.chmod(packed, 0o644)
        sha256 = _sha256(packed)
        os.replace(packed, final)
        fsync_dir(cache)
    finally:
        for path in (temporary, packed):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    atomic_write(f"{final}.sha256", f"{sha256}  {os.path.basename(final)}\n".encode())
    return final


def kept_archive(cache: str, digest: str) -> str | None:
    """The path of a kept archive of ``digest`` that this host can unpack, or None; not yet verified."""
    for suffix in (".tar.zst", ".tar.gz"):
        path = os.path.join(cache, f"{digest}{suffix}")
        readable = suffix == ".tar.gz" or shutil.which("zstd")
        if readable and os.path.isfile(path) and os.path.isfile(f"{path}.sha256"):
            return path
    return None


def take_archive(path: str, tree: str) -> None:
    """Unpack the kept archive ``path`` into the new folder ``tree``; one that fails its sha256 is a FleetError."""
    with open(f"{path}.sha256", encoding="utf-8") as handle:
        expected = handle.read().split()[:1]
    found = _sha256(path)
    if expected != [found]:
        raise FleetError(f"{path} is damaged", expected=f"sha256 {''.join(expected)}", found=found)
    plain = path
    if path.endswith(".zst"):
        plain = f"{tree}.tar"
        run(["zstd", "-q", "-d", "-f", path, "-o", plain], timeout_s=3600)
    try:
        os.makedirs(tree)
        with tarfile.open(plain) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(tree, filter="data")
            else:
                tar.extractall(tree)
    except tarfile.TarError as exc:
        raise FleetError(f"{path} is damaged", expected="a tar archive", found=str(exc)) from exc
    finally:
        if plain != path:
            os.unlink(plain)


def _sha256(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
