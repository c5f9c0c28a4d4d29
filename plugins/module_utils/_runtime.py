# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finished runtime trees: recorded in build.json, known again by it, kept as archives for other hosts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, fsync_dir
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = [
    "BARE_ENV",
    "RPATH",
    "SCHEMA",
    "file_record",
    "intact",
    "keep_archive",
    "kept_archive",
    "read_record",
    "settle_times",
    "stated_version",
    "states_version",
    "take_archive",
    "write_record",
    "write_run",
]

RPATH = "$ORIGIN/../lib"
# Of build.json: 2 has the proofs.
SCHEMA = 2
# What differs from one build of the same inputs to the next.
_OF_THE_RUN = ("build.json", "build.log", "build-run.json")
# 2020-01-01: one time for all files, so that build.json is the same whenever the tree was built.
_TIME_NS = 1577836800 * 10**9
BARE_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def stated_version(binary: str, version: str) -> str:
    """The line by which ``binary`` states its version; it must hold the declared ``version`` if one is given."""
    done = run([binary, "--version"], env=BARE_ENV, check=False)
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
    """``{relative path: [size, mtime_ns]}`` of the tree's files, without those that tell of the run."""
    record = {}
    for directory, _folders, files in os.walk(tree):
        for file in files:
            full = os.path.join(directory, file)
            relative = os.path.relpath(full, tree)
            if relative not in _OF_THE_RUN:
                status = os.stat(full)
                record[relative] = [status.st_size, status.st_mtime_ns]
    return dict(sorted(record.items()))


def settle_times(tree: str) -> None:
    """Give all files of a fresh tree one time: a later change shows all the more, and build.json does not vary."""
    for directory, _folders, files in os.walk(tree):
        for file in files:
            if os.path.relpath(os.path.join(directory, file), tree) not in _OF_THE_RUN:
                os.utime(os.path.join(directory, file), ns=(_TIME_NS, _TIME_NS), follow_symlinks=False)


def write_run(tree: str, facts: Mapping[str, Any]) -> None:
    """Write ``tree``/build-run.json: when, how long, with how many jobs."""
    atomic_write(os.path.join(tree, "build-run.json"), (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode())


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
    if record is None or record.get("schema") != SCHEMA or record.get("digest") != digest:
        return False
    return bool(record.get("files") == file_record(tree))


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
