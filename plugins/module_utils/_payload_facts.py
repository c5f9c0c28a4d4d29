# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there of a payload on a host, and whether there is room for the rest. Reads no byte of a payload file."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import (
    FileFacts,
    FileSpec,
    Owner,
    PayloadSpec,
    Step,
    plan,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._twins import find_twins
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, all_stamps, read_stamp

__all__ = ["check_room", "observe", "owner_of"]

_NO_ID = -2  # an owner that does not exist yet: equal to no file's owner


def owner_of(spec: PayloadSpec, dry: bool) -> tuple[Owner, list[str]]:
    """Numeric owner and group. A dry run may come before the account is made: then it counts as a difference."""
    found: list[int | None] = []
    warnings = []
    for kind, name in (("user", spec.owner), ("group", spec.group)):
        if name is None or name.isdigit():
            found.append(None if name is None else int(name))
            continue
        try:
            found.append(pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid)
        except KeyError as exc:
            if not dry:
                raise FleetError(
                    f"payload {spec.name}: {kind} {name} does not exist on this host",
                    expected=f"an existing {kind}",
                    remedy=f"Create it (role dank.llm_fleet.host), or set the payload's {kind}",
                ) from exc
            warnings.append(f"payload {spec.name}: {kind} {name} does not exist yet")
            found.append(_NO_ID)
    return Owner(*found), warnings


def observe(spec: PayloadSpec, owner: Owner, faults: dict[str, FleetError] | None = None) -> dict[str, FileFacts]:
    """Facts from the file system and the stamps; opens no payload file. Other stamps count where a file is missing.

    The first thing that is in a file's way is raised; with ``faults`` all are put there, by path, as missing files.
    """
    if os.path.lexists(spec.dir) and not os.path.isdir(spec.dir):
        raise FleetError(
            f"payload {spec.name}: {spec.dir} is in the way", expected="a directory", found="a file or a dead link"
        )
    facts = {}
    for file in spec.files:
        try:
            facts[file.name] = _observe_file(spec, file)
        except (FleetError, OSError) as exc:
            if faults is None:
                raise
            faults[spec.path(file)] = exc if isinstance(exc, FleetError) else _unseen(spec.path(file), exc)
            facts[file.name] = FileFacts()
    missing = [step.file for step in plan(spec, facts, owner) if step.action == "fetched"]
    stamps = all_stamps(spec.stamp_dir) if missing else []
    device = os.stat(_existing(spec.dir)).st_dev
    for file in missing:
        twin, copies = find_twins(spec, file, owner, device, stamps)
        facts[file.name] = replace(facts[file.name], twin=twin, copies=copies)
    return facts


def _unseen(path: str, exc: OSError) -> FleetError:
    return FleetError(f"{exc.filename or path} cannot be looked at", found=exc.strerror)


def _existing(path: str) -> Path:
    """The directory ``path``, or the nearest above it that exists."""
    return next(parent for parent in (Path(path), *Path(path).parents) if parent.is_dir())


def _observe_file(spec: PayloadSpec, file: FileSpec) -> FileFacts:
    path = spec.path(file)
    partial = Partial(spec.dir, file.name)
    found, part = partial.progressed(file.bytes, file.digest.hex), partial.stat()
    facts = FileFacts(part_bytes=found.bytes if found else 0, part_disk=part.st_blocks * 512 if part else 0)
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return facts
    if not stat.S_ISREG(state.st_mode):
        raise FleetError(
            f"{path} is in the way",
            expected="a regular file or nothing",
            found="a symbolic link" if stat.S_ISLNK(state.st_mode) else "something else",
            remedy="Move it aside; a link's target could change unseen",
        )
    identity, stamp = Identity.of(state), read_stamp(spec.stamp_dir, path)
    return replace(
        facts,
        identity=identity,
        mode=stat.S_IMODE(state.st_mode),
        uid=state.st_uid,
        gid=state.st_gid,
        digest=stamp.sha256 if stamp and stamp.identity == identity else None,
        split=stamp.split if stamp and stamp.identity == identity else None,
        stamped=stamp is not None,
        age_s=time.time() - stamp.verified_at if stamp else 0.0,
    )


def check_room(spec: PayloadSpec, facts: Mapping[str, FileFacts], steps: Sequence[Step]) -> None:
    """Refuse before the first byte when the file system cannot take all missing files together."""
    missing = [step.file for step in steps if step.action == "fetched"]
    if not missing:
        return
    need = sum(max(0, file.bytes - facts[file.name].part_disk) for file in missing)
    system = os.statvfs(_existing(spec.dir))
    free = system.f_bavail * system.f_frsize
    if need > free:
        raise FleetError(
            f"payload {spec.name}: the file system of {spec.dir} is too small",
            expected=f"{need} bytes free for {len(missing)} missing files",
            found=f"{free} bytes, {need - free} too few",
            remedy="Free space there (*.rejected-* files may go), or set another dir",
            files=[file.name for file in missing],
        )
    if system.f_files and system.f_favail < 4 * len(missing):
        raise FleetError(
            f"payload {spec.name}: the file system of {spec.dir} is out of inodes",
            expected=f"{4 * len(missing)} free",
            found=system.f_favail,
        )
