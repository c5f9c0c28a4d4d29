# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload taken off a host: its declared files and what belongs to them, unless an era still needs one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import (
    referenced_digests,
    referenced_files,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_kept import needed_copies
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import LOCK, PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import stamp_path

__all__ = ["absent"]


def _belongings(spec: PayloadSpec) -> list[str]:
    """What is there of the declared files: under their names, half fetched, or kept aside."""
    names = [re.escape(file.name) for file in spec.files]
    mine = re.compile(
        rf"({'|'.join(names)})(\.(rejected|replaced)-[0-9a-f]{{12}})?|\.({'|'.join(names)})\.part(\.journal)?"
    )
    found = [name for name in os.listdir(spec.dir) if mine.fullmatch(name)] if os.path.isdir(spec.dir) else []
    return [os.path.join(spec.dir, name) for name in sorted(found)]


def absent(spec: PayloadSpec, state_dir: str, *, dry: bool) -> dict[str, Any]:
    """Remove the files, and the folder where nothing else is left in it. ``state_dir`` holds the endpoints' eras.

    A FleetError where an era may have to serve from one of them; then nothing is removed.
    """
    there = _belongings(spec)
    finals = {spec.path(file) for file in spec.files}
    copies = needed_copies(finals, there, referenced_digests(state_dir))
    needed = sorted((referenced_files(state_dir) & finals & set(there)) | copies)
    if needed:
        raise FleetError(
            f"payload {spec.name}: an era on this host still needs {len(needed)} of its files",
            expected="files that no era names",
            found=", ".join(needed),
            remedy="Deploy the endpoint with another payload, and have its old eras pruned (keep_eras), first",
        )
    if there and not dry:
        with file_lock(os.path.join(spec.dir, LOCK), wait_s=spec.lock_wait_s, purpose=f"payload {spec.name}"):
            for path in _belongings(spec):
                os.unlink(path)
            if os.listdir(spec.dir) == [LOCK]:
                os.unlink(os.path.join(spec.dir, LOCK))
                try:
                    os.rmdir(spec.dir)
                except OSError as exc:
                    if exc.errno != errno.ENOTEMPTY:  # a run that waited is at work there by now
                        raise
    stamps = [path for file in spec.files if os.path.lexists(path := stamp_path(spec.stamp_dir, spec.path(file)))]
    for path in () if dry else stamps:
        with contextlib.suppress(FileNotFoundError):  # the check at rest may have seen that the file is gone
            os.unlink(path)
    before = {spec.dir: dict.fromkeys((os.path.basename(path) for path in there), "present")} if there else {}
    return {
        "changed": bool(there or stamps),
        "work": False,
        "files": [],
        "fetch_bytes": 0,
        "failures": [],
        "warnings": [],
        "diff": {"before": before, "after": {}},
        "removed": there,
    }
