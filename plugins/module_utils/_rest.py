# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Payload files at rest: one of them is read again, the longest unread first, and what has rotted is marked.

Role payload installs this file on hosts, with the few that it imports, for llm-fleet-payload-check.service.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_json
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    BLOCK,
    Identity,
    Stamp,
    all_stamps,
    hash_file,
    read_stamp,
    stamp_path,
    write_stamp,
)

__all__ = ["Checked", "Damage", "Folders", "check_next", "damage_of", "longest_unread", "main", "metrics_text"]

_FORGET = 64 << 20  # bytes after which the pages that were read are dropped
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Folders:
    """Where stamps are, marks of damaged files go, and the metrics are written."""

    stamps: str = "/var/lib/llm-fleet/payloads"
    damaged: str = "/var/lib/llm-fleet/damaged"
    metrics: str = "/var/lib/llm-fleet/metrics/payload.prom"


@dataclass(frozen=True)
class Damage:
    """The mark of a file that was proven once and is another now; ``found`` is a sha256, or why it cannot be read."""

    path: str
    stamp_dir: str
    expected: str
    found: str
    identity: Identity
    found_at: float


@dataclass(frozen=True)
class Checked:
    """One file, read in full; ``found`` as in :class:`Damage`."""

    path: str
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        """Whether it still is what was proven."""
        return self.found == self.expected


def _state(path: str) -> os.stat_result | None:
    """What lies at ``path``; None where there is nothing or no regular file."""
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def _damage_at(mark: str) -> Damage | None:
    """The mark in the file ``mark``, whether it still holds or not; one that is no mark is a FleetError."""
    value = read_json(mark)
    if value is None:
        return None
    try:
        return Damage(**{**value, "identity": Identity(**value["identity"])})
    except (KeyError, TypeError) as exc:
        raise FleetError(
            f"{mark} is no mark of a damaged file",
            expected="the keys that llm-fleet-payload-check writes",
            found=str(exc),
            remedy="Remove it; the check marks the file again when it is read next",
        ) from exc


def damage_of(folder: str, path: str) -> Damage | None:
    """The damage that ``path`` has: a mark of this very file, and no proof since."""
    damage = _damage_at(stamp_path(folder, path))
    state = None if damage is None else _state(path)
    if damage is None or state is None:
        return None
    identity, stamp = Identity.of(state), read_stamp(damage.stamp_dir, path)
    proven = stamp is not None and stamp.identity == identity and stamp.verified_at > damage.found_at
    return damage if identity.same_content(damage.identity) and not proven else None


def longest_unread(stamps: Iterable[Stamp], unreadable: Iterable[Damage]) -> Stamp | None:
    """The stamp whose file was read longest ago; a try that ended in an error of the disk counts as a read."""
    tried = {damage.path: damage.found_at for damage in unreadable}
    return min(stamps, key=lambda stamp: (max(stamp.verified_at, tried.get(stamp.path, 0.0)), stamp.path), default=None)


def _hash_from_disk(path: str) -> tuple[str, Identity]:
    """The digest of what the disk holds, not of pages that memory still has; leaves memory to those who serve."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:

        def forget(count: int) -> None:
            if count % _FORGET < BLOCK:
                os.posix_fadvise(fd, 0, count, os.POSIX_FADV_DONTNEED)  # a length of 0 means all

        forget(0)
        try:
            return hash_file(path, forget)
        finally:
            forget(0)
    finally:
        os.close(fd)


def _read(path: str) -> tuple[str, Identity]:
    try:
        return _hash_from_disk(path)
    except OSError as exc:
        if exc.errno != errno.EIO:
            raise
        return f"{_UNREADABLE}: {exc.strerror}", Identity.of(os.lstat(path))


def check_next(folders: Folders, now: float) -> Checked | None:
    """Read the file that is next, stamp or mark it, and write the metrics; None where no file has a stamp, or where the
    one that was read was replaced meanwhile.

    The stamp then tells the digest that was found, also of a damaged file: role payload sees that it is not the
    declared one, and fetches it anew. All names of the file are stamped and marked alike, so that none passes for a
    copy of it.
    """
    _sweep(folders)
    stamps = [stamp for stamp in all_stamps(folders.stamps) if _state(stamp.path)]
    damages = {stamp.path: damage for stamp in stamps if (damage := damage_of(folders.damaged, stamp.path))}
    stamp = longest_unread(stamps, damages.values())
    checked = None
    if stamp is not None:
        found, identity = _read(stamp.path)
        for name in stamps:
            state = _state(name.path)
            if state is None or Identity.of(state) != identity:
                continue
            expected = damages[name.path].expected if name.path in damages else name.sha256
            if found != expected:
                _mark(folders, Damage(name.path, folders.stamps, expected, found, identity, now))
            if not found.startswith(_UNREADABLE):
                split = name.split if found == name.sha256 else None  # other bytes have another header
                write_stamp(folders.stamps, name.path, found, identity, now, name.payload, split)
            if name == stamp:
                checked = Checked(stamp.path, expected, found)
        _sweep(folders)
    make_dirs(os.path.dirname(folders.metrics))
    atomic_write(folders.metrics, metrics_text(folders, now).encode("utf-8", "backslashreplace"), sync=False)
    return checked


def _mark(folders: Folders, damage: Damage) -> None:
    make_dirs(folders.damaged)
    text = json.dumps(asdict(damage), indent=2)
    atomic_write(stamp_path(folders.damaged, damage.path), text.encode() + b"\n")


def _sweep(folders: Folders) -> None:
    """Remove marks that no longer hold: the file was replaced, removed or proven since."""
    for entry in os.listdir(folders.damaged) if os.path.isdir(folders.damaged) else []:
        mark = os.path.join(folders.damaged, entry)
        damage = _damage_at(mark) if entry.endswith(".json") else None
        if damage is not None and damage_of(folders.damaged, damage.path) is None:
            os.unlink(mark)


def _labels(**labels: str) -> str:
    escaped = {
        key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in labels.items()
    }
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"


def metrics_text(folders: Folders, now: float) -> str:
    """The metrics in Prometheus' text format, for a collector of text files; ages are those at ``now``."""
    stamps = [stamp for stamp in all_stamps(folders.stamps) if _state(stamp.path)]
    age, mismatch, last = (
        f"llm_fleet_payload_{name}" for name in ("verified_age_seconds", "mismatch", "check_last_run_timestamp_seconds")
    )
    lines = [
        f"# HELP {age} Seconds since the file was last read in full, at the last run of the check.",
        f"# TYPE {age} gauge",
        *(
            f"{age}{_labels(payload=stamp.payload, path=stamp.path)} {max(0.0, now - stamp.verified_at):.0f}"
            for stamp in stamps
        ),
        f"# HELP {mismatch} 1 where the file is not what was proven.",
        f"# TYPE {mismatch} gauge",
        *(
            f"{mismatch}{_labels(path=stamp.path)} {int(damage_of(folders.damaged, stamp.path) is not None)}"
            for stamp in stamps
        ),
        f"# HELP {last} When the check ran last, in seconds since 1970.",
        f"# TYPE {last} gauge",
        f"{last} {now:.0f}",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Check one file; the exit status is 0, 1 for a damaged file, 2 where it could not be checked."""
    defaults = Folders()
    parser = argparse.ArgumentParser(description="Read the payload file that was read longest ago, and prove it again.")
    parser.add_argument("--stamp-dir", default=defaults.stamps)
    parser.add_argument("--damaged-dir", default=defaults.damaged)
    parser.add_argument("--metrics", default=defaults.metrics)
    given = parser.parse_args(argv)
    try:
        checked = check_next(Folders(given.stamp_dir, given.damaged_dir, given.metrics), time.time())
    except FleetError as exc:
        print(exc.message, file=sys.stderr)
        return 2
    except OSError as exc:
        print(f"{exc.filename or 'the host'}: {exc.strerror or exc}", file=sys.stderr)
        return 2
    if checked is None:
        print("nothing to check: no payload file has a stamp, or the one that was read was replaced meanwhile")
        return 0
    if checked.ok:
        print(f"{checked.path}: sha256 {checked.found}, as proven before")
        return 0
    print(f"{checked.path} is damaged: expected sha256 {checked.expected}, found {checked.found}", file=sys.stderr)
    return 1
