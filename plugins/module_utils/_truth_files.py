# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that an era loads, held against what was verified and against what its process has mapped or open."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, read_stamp

__all__ = ["held_otherwise", "payload_paths", "stamped_digests", "strange_files", "unproven_files"]


def payload_paths(facts: Mapping[str, Any]) -> list[str]:
    """The paths of the GGUF and other payload files that an era loads: those that its env names, in all their parts."""
    named = set(facts["env"].values())
    files = [file["path"] for file in facts["payload"]["files"]]
    shards = [file["path"] for file in facts["payload"]["files"] if file["role"] == "shard"]
    elsewhere = sorted(path for path in named - set(files) if path.startswith("/") and path.endswith(".gguf"))
    return [
        *(path for path in files if path in named or path in shards),
        *(part for path in elsewhere for part in _parts(path) if part not in files),
    ]


def _parts(path: str) -> list[str]:
    """All files of a split model whose first one is ``path``, as llama.cpp names them; else that file alone."""
    match = re.fullmatch(r"(.+)-00001-of-([0-9]{5})\.gguf", path)
    if match is None:
        return [path]
    return [f"{match[1]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, int(match[2]) + 1)]


def held_otherwise(held: Sequence[_proc.HeldFile], files: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """What a process holds (has mapped or open) in place of ``files``, by device and inode: a second name of one of
    them is none, and a name that another file had when it was opened does not help that one.

    Those of ``files`` that were replaced under their names, and in words the GGUF files, and others in the same
    folders, that are none of them. An engine may close a file, and unmap what a card holds.
    """
    mapped, opened = set(), set()
    for path in files:
        try:
            state = os.stat(path)
            opened.add((state.st_dev, state.st_ino))
            mapped.add(_proc.mapped_as(path))
        except FileNotFoundError:
            continue  # strange_files tells of it
        except PermissionError:
            mapped.add((state.st_dev, state.st_ino))  # not ours to read; that of stat is the same but on btrfs, overlay
    names = {os.path.realpath(path): path for path in files}
    folders = {os.path.dirname(path) for path in names}
    replaced: set[str] = set()
    others: dict[str, None] = {}
    for file in held:
        if (file.device, file.inode) in (mapped if file.mapped else opened):
            continue
        if file.path in names:
            replaced.add(names[file.path])
        elif file.path.endswith(".gguf") or os.path.dirname(file.path) in folders:
            others[f"{file.path} is in use, and is none of the era's files"] = None
    return frozenset(replaced), tuple(others)


def strange_files(files: Sequence[str], replaced: Collection[str], started: float) -> tuple[str, ...]:
    """Those of ``files`` that are no longer what a process started at ``started`` (seconds since 1970) has read.

    ``replaced`` are the paths under which it has another file mapped or open. What a card holds whole is mapped no
    longer: of such a file its time of change tells.
    """
    found = []
    for path in files:
        if path in replaced:
            found.append(f"{path} was replaced since")
            continue
        try:
            changed = os.stat(path).st_mtime
        except FileNotFoundError:
            found.append(f"{path} is gone")
            continue
        if changed > started:
            found.append(f"{path} was changed since")
    return tuple(found)


def unproven_files(files: Sequence[str], stamp_dir: str) -> tuple[str, ...]:
    """Those of ``files`` that are not the file that was verified last under their names; one never verified passes.

    A new ctime alone (a rename, a link, a change of owner) or a new device number alone (a boot, a mount) is the
    payload's own check's business, which reads such a file again.
    """
    found = []
    for path in files:
        stamp = read_stamp(stamp_dir, path)
        if stamp is None or not os.path.exists(path):
            continue
        if not stamp.identity.same_content(Identity.of(os.stat(path))):
            found.append(f"{path} is not the file that was verified")
    return tuple(found)


def stamped_digests(files: Sequence[str], stamp_dir: str) -> dict[str, str]:
    """``{path: sha256}`` of those of ``files`` that were ever verified."""
    stamps = {path: read_stamp(stamp_dir, path) for path in files}
    return {path: stamp.sha256 for path, stamp in stamps.items() if stamp is not None}
