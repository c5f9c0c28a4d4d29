# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking runtimes away: old trees of one that stays, or all of one that is not wanted; never one that an era names."""

from __future__ import annotations

import os
import re
import shutil

from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import referenced_runtimes
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import fsync_dir

__all__ = ["doomed", "everything_of", "remove", "take_away", "trees_of"]

_DIGEST = r"[0-9a-f]{12}"
_LOCK_WAIT_S = 2.0


def trees_of(prefix: str, name: str) -> list[str]:
    """The built trees of runtime ``name``, the newest first."""
    shape = re.compile(rf"{re.escape(name)}@{_DIGEST}")
    names = os.listdir(prefix) if os.path.isdir(prefix) else []
    paths = [os.path.join(prefix, one) for one in names if shape.fullmatch(one)]
    return sorted(paths, key=lambda path: (-os.stat(path).st_mtime_ns, path))


def _leftovers(prefix: str, name: str) -> list[str]:
    """Work folders of builds of ``name``: sources and objects, finished or not."""
    work = os.path.join(prefix, ".work")
    shape = re.compile(rf"{re.escape(name)}@{_DIGEST}(\.gone)?")
    names = sorted(os.listdir(work)) if os.path.isdir(work) else []
    return [os.path.join(work, one) for one in names if shape.fullmatch(one)]


def doomed(prefix: str, name: str, keep: int, state_dir: str, wanted: str) -> list[str]:
    """Trees and work folders of ``name`` that pruning takes: all but ``wanted`` (a tree), the linked one, those that an
    era names, and the ``keep`` newest of the rest."""
    named = referenced_runtimes(state_dir)
    link = os.path.join(prefix, name)
    kept = {os.path.realpath(path) for path in (wanted, link, *named)}
    spare = [path for path in trees_of(prefix, name) if os.path.realpath(path) not in kept]
    base = os.path.basename(wanted)
    return [*spare[keep:], *(path for path in _leftovers(prefix, name) if os.path.basename(path) != base)]


def everything_of(prefix: str, name: str, state_dir: str) -> list[str]:
    """The link, trees and work folders of ``name``; a FleetError while an era names one of the trees."""
    trees = trees_of(prefix, name)
    named = {os.path.realpath(path) for path in referenced_runtimes(state_dir)}
    used = [path for path in trees if os.path.realpath(path) in named]
    if used:
        raise FleetError(
            f"runtime {name} cannot be removed",
            expected="no era that runs from it",
            found=f"eras of {state_dir} name {', '.join(used)}",
            remedy="Retire the endpoints that use it, or deploy them on another runtime until their old eras are gone "
            "(keep_eras)",
        )
    link = os.path.join(prefix, name)
    if os.path.lexists(link) and not os.path.islink(link):
        raise FleetError(
            f"{link} is in the way",
            expected="a symbolic link to a runtime, or nothing",
            found="a folder" if os.path.isdir(link) else "a file",
            remedy="Move it aside; runtime_build removes nothing that it did not make",
        )
    return [*([link] if os.path.islink(link) else []), *trees, *_leftovers(prefix, name)]


def remove(prefix: str, name: str, state_dir: str) -> list[str]:
    """Take away all of ``name``, under its lock; what went."""
    lock = os.path.join(prefix, ".work", f"{name}.lock")
    if not os.path.isdir(os.path.dirname(lock)):
        return []
    with file_lock(lock, wait_s=_LOCK_WAIT_S, purpose=f"removal of runtime {name}"):
        gone = everything_of(prefix, name, state_dir)
        take_away(prefix, gone)
    return gone


def take_away(prefix: str, paths: list[str]) -> None:
    """Remove links at once; folders lose their name first, so that a kill leaves no half tree under one.

    What a killed run left in that state, the next one that removes anything of that runtime finishes.
    """
    for path in paths:
        if os.path.islink(path):
            os.unlink(path)
            fsync_dir(os.path.dirname(path))
            continue
        gone = os.path.join(prefix, ".work", os.path.basename(path).removesuffix(".gone") + ".gone")
        if path != gone:
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(path, gone)
            fsync_dir(os.path.dirname(path))
        shutil.rmtree(gone)
