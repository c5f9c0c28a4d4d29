# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fork's checkout as a qualification finds it: a profile and its files, the image, whether setup can be run."""

from __future__ import annotations

import glob
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_json
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Podman
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_runtime import SHIM
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import hash_file

__all__ = ["Fork", "as_user", "find_fork", "package_faults", "search_path"]

_PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")


@dataclass(frozen=True)
class Fork:
    """The checkout at ``commit``, the image by its whole digest, and the profile that is to be qualified.

    ``profile_files`` are ``{name, bytes, sha256}`` of every file in the profile's folder and of the descriptors that it
    names: package.json and placement lie there, whoever wrote them.
    """

    checkout: str
    commit: str
    image: str
    profile_id: str
    profile_folder: str
    profile_files: tuple[Mapping[str, Any], ...]
    descriptors: Mapping[str, str]


def search_path(checkout: str) -> str:
    """PATH with the shim first, as the fork's tools need it."""
    return (
        f"{os.path.dirname(os.path.join(checkout, SHIM))}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )


def as_user(user: str, argv: Sequence[str], checkout: str, *, timeout_s: float = 60, check: bool = True) -> Completed:
    """Run ``argv`` in the checkout as its owner: it is code of his, and none of root's."""
    entry = pwd.getpwnam(user)
    env = {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "PATH": search_path(checkout), "LC_ALL": "C.UTF-8"}
    ids = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    switch = [] if entry.pw_uid == os.geteuid() else ["setpriv", *ids]
    return run([*switch, *argv], env=env, cwd=checkout, timeout_s=timeout_s, check=check)


def _profile(checkout: str, alias: str) -> tuple[str, Mapping[str, Any]]:
    """(folder, descriptor) of the profile of that id or alias."""
    known = []
    for path in sorted(
        glob.glob(os.path.join(glob.escape(checkout), "profiles", "**", "profile.json"), recursive=True)
    ):
        told = read_json(path)
        names = [told.get("id"), *(told.get("aliases") or ())] if isinstance(told, dict) else []
        known += [str(name) for name in names]
        if alias in names:
            return os.path.dirname(path), told
    raise FleetError(
        f"profile {alias} is not in the checkout {checkout}",
        expected=f"one of {', '.join(known) or 'none'}",
        found="none of that id or alias",
        remedy="Author it first (package.json, placement, profile.env, profile.json), or name another",
    )


def _setup_fault(checkout: str, user: str) -> str:
    """Why the fork's setup cannot be run, or ""."""
    if not os.path.exists(os.path.join(checkout, SHIM)):
        return "no shim"
    command = os.path.join(checkout, "r9v")
    if not os.access(command, os.X_OK):
        return "no executable r9v"
    done = as_user(user, [command, "setup", "--help"], checkout, check=False)
    return "" if done.rc == 0 else f"exit status {done.rc}: {done.tail}"


def _commit(checkout: str, user: str) -> str:
    """The commit that is checked out; a FleetError where a file differs from it: then it says nothing of what ran."""
    changed = as_user(user, ["git", "status", "--porcelain", "--untracked-files=no"], checkout).stdout.splitlines()
    if changed:
        raise FleetError(
            f"checkout {checkout} differs from its commit",
            expected="no change of a tracked file: the runbook names the commit",
            found=", ".join(line.strip() for line in changed),
            remedy="Commit the changes, or take them back",
        )
    return as_user(user, ["git", "rev-parse", "HEAD"], checkout).stdout.strip()


def _files(checkout: str, folder: str, descriptors: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    paths += [os.path.join(checkout, name) for name in sorted(descriptors.values())]
    rows = {}
    for path in paths:
        if not os.path.isfile(path):
            if os.path.isdir(path):
                continue
            raise FleetError(f"{path}, which the profile names", expected="a file", found="none")
        name = os.path.relpath(path, checkout)
        rows[name] = {"name": name, "bytes": os.path.getsize(path), "sha256": hash_file(path)[0]}
    return tuple(rows.values())


def find_fork(checkout: str, user: str, digest: str, asked: Asked) -> Fork:
    """The fork as it is; a FleetError where the profile is not there, setup cannot be run, or the image is missing."""
    folder, told = _profile(checkout, asked.profile)
    fault = _setup_fault(checkout, user)
    if fault:
        raise FleetError(
            f"the fork's setup cannot be run in {checkout}",
            expected=f"r9v setup --help with exit status 0, and {SHIM}",
            found=fault,
            remedy="Run site.yml with --tags runtime, which checks the fork out and installs the shim",
        )
    image = Podman(user).image(digest)
    whole = sorted(known for known in image.digests if known.startswith(digest)) if image is not None else []
    if not whole:
        raise FleetError(
            f"image sha256:{digest}",
            expected=f"among {user}'s images by its manifest's digest",
            found="no image of that digest",
            remedy="Run site.yml with --tags runtime, which loads the bundle",
        )
    descriptors = {str(key): str(value) for key, value in (told.get("descriptors") or {}).items()}
    commit = _commit(checkout, user)
    files = _files(checkout, folder, descriptors)
    return Fork(checkout, commit, whole[0], str(told["id"]), folder, files, descriptors)


def package_faults(asked: Asked, fork: Fork, declared: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not whole of the payload before setup reads it, by names and sizes; setup itself hashes every file.

    ``declared`` are ``{path, bytes}`` of the inventory's files below the model folder. Where the profile names a model
    package, each of its artifacts is asked for.
    """
    if not os.path.isdir(asked.model_dir):
        return [f"{asked.model_dir} is no folder"]
    wanted = {str(file["path"]): file.get("bytes") for file in declared}
    if "model_package" in fork.descriptors:
        package = read_json(os.path.join(fork.checkout, fork.descriptors["model_package"])) or {}
        for row in package.get("artifacts") or ():
            wanted[os.path.join(asked.model_dir, str(row["path"]))] = row["bytes"]
    if asked.ple_path and (os.path.exists(asked.ple_path) or asked.ple_bytes is not None):
        wanted[asked.ple_path] = asked.ple_bytes
    found = []
    for path, size in sorted(wanted.items()):
        if not os.path.isfile(path):
            found.append(f"{path} is missing")
        elif isinstance(size, int) and os.path.getsize(path) != size:
            found.append(f"{path} has {os.path.getsize(path):,} bytes, and {size:,} are declared")
    names = {name for _folder, _below, files in os.walk(asked.model_dir) for name in files}
    for match in filter(None, map(_PART.fullmatch, sorted(names))):
        parts = [f"{match['stem']}-{n:05d}-of-{match['parts']}.gguf" for n in range(1, int(match["parts"]) + 1)]
        found += [f"{name} is missing, though its other parts are there" for name in parts if name not in names]
    if not any("mmproj" in name and name.endswith(".gguf") for name in names):
        found.append(f"{asked.model_dir} has no projector (a .gguf with mmproj in its name)")
    return list(dict.fromkeys(found))
