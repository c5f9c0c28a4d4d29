# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same bytes under another name on this host: found through the stamps of files that were verified before."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import LOCK, FileSpec, Owner, PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    Identity,
    Stamp,
    all_stamps,
    read_stamp,
    write_stamp,
)

__all__ = ["find_twins", "link_twin"]


def find_twins(
    spec: PayloadSpec, file: FileSpec, owner: Owner, device: int, stamps: Sequence[Stamp]
) -> tuple[str | None, tuple[str, ...]]:
    """``(twin, copies)``: a verified file that ``file`` may become a second name of, and others to copy it from.

    A twin lies on the same file system (``device``) and has the declared mode and owner already: linking must change
    nothing for the payload it belongs to. A file that is too different for that is still nearer than any remote source.
    """
    twin, copies = None, []
    for stamp in stamps:
        if stamp.path == spec.path(file) or not file.digest.matches(stamp.sha256):
            continue
        try:
            state = os.lstat(stamp.path)
        except OSError:
            continue  # it is gone, and its stamp means nothing
        if Identity.of(state) != stamp.identity or state.st_size != file.bytes:
            continue
        as_declared = (
            stat.S_IMODE(state.st_mode) == spec.mode
            and owner.uid in (None, state.st_uid)
            and owner.gid in (None, state.st_gid)
        )
        if twin is None and as_declared and state.st_dev == device:
            twin = stamp.path
        copies.append(stamp.path)
    return twin, tuple(copies)


def link_twin(spec: PayloadSpec, file: FileSpec, twin: str, partial: Partial, replaces: str | None) -> str | None:
    """Give the bytes of ``twin`` their second name and stamp all their names anew, for a link changes ctime.

    Returns the full digest; None where the file system does not link them, or another run works in the twin's
    directory (the caller copies then). The file of digest ``replaces`` that has the name now is kept aside.
    """
    other = os.path.dirname(twin)
    with contextlib.ExitStack() as held:
        if other != spec.dir:  # a run that reads the twin must not see its ctime change
            try:
                purpose = f"payload {spec.name}, a link to {twin}"
                held.enter_context(file_lock(os.path.join(other, LOCK), wait_s=0, purpose=purpose))
            except (FleetError, OSError):
                return None
        return _link(spec, file, twin, partial, replaces)


def _link(spec: PayloadSpec, file: FileSpec, twin: str, partial: Partial, replaces: str | None) -> str | None:
    stamp = read_stamp(spec.stamp_dir, twin)
    if stamp is None or Identity.of(os.lstat(twin)) != stamp.identity:
        return None  # another run has changed it since it was found
    partial.discard()
    try:
        os.link(twin, partial.path, follow_symlinks=False)
    except OSError:
        return None
    names = [other for other in all_stamps(spec.stamp_dir) if other.identity == stamp.identity]
    final = spec.path(file)
    partial.accept(final, replaces)
    state = os.lstat(final)
    if not Identity.of(state).same_content(stamp.identity):
        raise FleetError(f"{twin} changed while it was linked", remedy="Stop what writes to it, then run again")
    identity = Identity.of(state)
    write_stamp(spec.stamp_dir, final, stamp.sha256, identity, stamp.verified_at, spec.name, stamp.split)
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # that name is gone
            if Identity.of(os.lstat(name.path)) == identity:
                own = name.path, name.sha256, identity, name.verified_at, name.payload, name.split
                write_stamp(spec.stamp_dir, *own)
    return stamp.sha256
