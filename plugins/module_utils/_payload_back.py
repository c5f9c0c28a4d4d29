# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back of payload files: an era's own bytes get their names again, from what was kept aside of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import fsync_dir
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import kept_aside
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import LOCK
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    Identity,
    all_stamps,
    hash_file,
    read_stamp,
    stamp_path,
    write_stamp,
)

__all__ = ["Other", "other_files", "put_back"]

_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Other:
    """A payload file that is not the era's: ``wanted`` is the era's sha256 or its beginning, ``found`` and ``identity``
    are of what is there.

    ``copy`` is where the era's was kept aside, None where it was not; its name alone says so, nobody has read it.
    """

    path: str
    wanted: str
    found: str
    identity: Identity
    copy: str | None

    def fault(self, before: str = "") -> FleetError:
        """That it cannot be put back; ``before`` are the first words."""
        folder, name = os.path.split(self.path)
        return FleetError(
            f"{before}{self.path} is another file now, and the one that was proven is not kept beside it",
            expected=f"sha256 {self.wanted}, or {name}.replaced-{self.wanted[:12]} in {folder}",
            found=f"sha256 {self.found}",
            remedy="Have the old file back (role payload, with its digest in the inventory), then run again",
        )


def other_files(facts: Mapping[str, Any], stamp_dir: str, *, thorough: bool = False) -> list[Other]:
    """The payload files of an era (its ``facts``) that have other bytes now.

    The stamp tells; a file that changed since its stamp is read in full. ``thorough``: so is one that was never
    verified, else passed over, and one with a new ctime alone. What is not there at all is the launcher's to judge.
    """
    others = []
    for file in facts["payload"]["files"]:
        path, wanted = file["path"], file["sha256"]
        stamp = read_stamp(stamp_dir, path)
        if not wanted or not os.path.isfile(path) or (stamp is None and not thorough):
            continue
        identity = Identity.of(os.stat(path))
        if stamp is not None and (stamp.identity == identity if thorough else stamp.identity.same_content(identity)):
            found = stamp.sha256
        else:
            found, identity = hash_file(path)
        if not found.startswith(wanted):
            others.append(Other(path, wanted, found, identity, _copy_of(path, wanted)))
    return others


def _copy_of(path: str, wanted: str) -> str | None:
    """What was kept aside of ``path`` under a digest that begins like ``wanted``."""
    start = f"{path}.replaced-{wanted[:12]}"
    copies = [copy for copy in kept_aside(path, "replaced") if copy.startswith(start)]
    return copies[0] if len(copies) == 1 else None


def put_back(facts: Mapping[str, Any], stamp_dir: str) -> list[str]:
    """Have the payload files of an era (its ``facts``) under their names again; returns the paths of those that were
    others.

    Each is one rename, under the lock of the payload's directory: a process that has the other file mapped keeps it,
    and it lies as ``<name>.replaced-<digest12>`` then. A FleetError where one was not kept aside, or is not what its
    name says; then nothing is renamed.
    """
    others = other_files(facts, stamp_dir)
    for other, digest, identity in [(other, *_proven(other, stamp_dir)) for other in others]:
        folder = os.path.dirname(other.path)
        purpose = f"the way back of {other.path}"
        with file_lock(os.path.join(folder, LOCK), wait_s=_LOCK_WAIT_S, purpose=purpose):
            _exchange(other, digest, identity, stamp_dir)
    return [other.path for other in others]


def _proven(other: Other, stamp_dir: str) -> tuple[str, Identity]:
    """Digest and identity of the file that was kept aside; a FleetError unless it is the one that is wanted."""
    if other.copy is None:
        raise other.fault()
    stamp = read_stamp(stamp_dir, other.copy)
    if stamp is not None and stamp.identity == Identity.of(os.lstat(other.copy)):
        digest, identity = stamp.sha256, stamp.identity
    else:
        digest, identity = hash_file(other.copy)
    if not digest.startswith(other.wanted):
        raise FleetError(
            f"{other.copy} is not what its name says",
            expected=f"sha256 {other.wanted}",
            found=f"sha256 {digest}",
            remedy="Have the old file back (role payload, with its digest in the inventory), then run again",
        )
    return digest, identity


def _exchange(other: Other, digest: str, identity: Identity, stamp_dir: str) -> None:
    """Give the copy the file's name and keep the file aside; all names of both are stamped anew, for a link and a
    rename change ctime."""
    assert other.copy is not None
    aside = f"{other.path}.replaced-{other.found[:12]}"
    stamps = all_stamps(stamp_dir)
    payload = next((stamp.payload for stamp in stamps if stamp.path == other.path), "")
    for path, known in ((other.copy, identity), (other.path, other.identity)):
        if Identity.of(os.lstat(path)) != known:
            raise FleetError(f"{path} changed while it was verified", remedy="Stop what writes to it, then run again")
    if not (os.path.lexists(aside) and os.path.samefile(aside, other.path)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        os.link(other.path, aside, follow_symlinks=False)
    os.rename(other.copy, other.path)
    fsync_dir(os.path.dirname(other.path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(stamp_path(stamp_dir, other.copy))
    write_stamp(stamp_dir, other.path, digest, Identity.of(os.lstat(other.path)), payload=payload)
    write_stamp(stamp_dir, aside, other.found, Identity.of(os.lstat(aside)), payload=payload)
    for name in stamps:
        if name.identity in (other.identity, identity) and name.path not in (other.path, other.copy, aside):
            with contextlib.suppress(FileNotFoundError):  # that name is gone
                now = Identity.of(os.lstat(name.path))
                if now.same_content(name.identity):
                    write_stamp(stamp_dir, name.path, name.sha256, now, name.verified_at, name.payload)
