# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload on a host: what is there, what is to be done, and doing it so that no unproven byte has a final name."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import (
    RangeRefused,
    SourceError,
    open_source,
    receive,
    shown_url,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import file_lock, make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import (
    FileFacts,
    FileSpec,
    Owner,
    PayloadSpec,
    Step,
    plan,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    Identity,
    following,
    hash_file,
    read_stamp,
    write_stamp,
)

__all__ = ["FileFacts", "FileSpec", "Owner", "PayloadSpec", "Step", "ensure", "plan"]

_LOCK = ".payload.lock"
_NO_ID = -2  # an owner that does not exist yet: equal to no file's owner


def _owner(spec: PayloadSpec, dry: bool) -> tuple[Owner, list[str]]:
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


def _observe(spec: PayloadSpec) -> dict[str, FileFacts]:
    """Facts from the file system and the stamps; opens no payload file."""
    if os.path.lexists(spec.dir) and not os.path.isdir(spec.dir):
        raise FleetError(
            f"payload {spec.name}: {spec.dir} is in the way", expected="a directory", found="a file or a dead link"
        )
    return {file.name: _observe_file(spec, file) for file in spec.files}


def _observe_file(spec: PayloadSpec, file: FileSpec) -> FileFacts:
    path = spec.path(file)
    partial = Partial(spec.dir, file.name)
    resumable = max((partial.resume_point(url, file.bytes, file.digest.hex)[0] for url in file.urls), default=0)
    part = partial.stat()
    facts = FileFacts(part_bytes=resumable, part_disk=part.st_blocks * 512 if part else 0)
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
        stamped=stamp is not None,
    )


def _room(spec: PayloadSpec, facts: Mapping[str, FileFacts], steps: Sequence[Step]) -> None:
    """Refuse before the first byte when the file system cannot take all missing files together."""
    missing = [step.file for step in steps if step.action == "fetched"]
    if not missing:
        return
    need = sum(max(0, file.bytes - facts[file.name].part_disk) for file in missing)
    there = next(parent for parent in (Path(spec.dir), *Path(spec.dir).parents) if parent.is_dir())
    system = os.statvfs(there)
    free = system.f_bavail * system.f_frsize
    if need > free:
        raise FleetError(
            f"payload {spec.name}: the file system of {spec.dir} is too small",
            expected=f"{need} bytes free for {len(missing)} missing files",
            found=f"{free} bytes, {need - free} too few",
            remedy="Free space there (*.rejected-* and *.replaced-* files may go), or set another dir",
            files=[file.name for file in missing],
        )
    if system.f_files and system.f_favail < 4 * len(missing):
        raise FleetError(
            f"payload {spec.name}: the file system of {spec.dir} is out of inodes",
            expected=f"{4 * len(missing)} free",
            found=system.f_favail,
        )


class _Meter:
    """Adds up the bytes of all long steps for the progress file."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._before, self._label = progress, total, 0, ""

    def expect(self, more: int) -> None:
        """The total is what is done already and ``more`` bytes."""
        self._total = self._before + more

    def start(self, label: str) -> None:
        self._label = label
        self._progress.update(label, done=self._before, total=self._total, unit="B", force=True)

    def at(self, position: int) -> None:
        self._progress.update(self._label, done=self._before + position, total=self._total, unit="B")

    def end(self, size: int) -> None:
        self._before += size


@dataclass
class _Done:
    """What was done for one file, for the result."""

    source: str | None = None
    seconds: float = 0.0
    moved: int = 0  # bytes read or fetched
    fetched: int = 0
    sha256: str | None = None


def _examine(
    spec: PayloadSpec, facts: dict[str, FileFacts], steps: Sequence[Step], meter: _Meter, done: dict[str, _Done]
) -> dict[str, FileFacts]:
    """The facts, with each file that only a read can judge read in full. Writes nothing."""
    known = dict(facts)
    for step in steps:
        if step.known:
            continue
        meter.start(f"hashing {step.file.name}")
        begin = time.monotonic()
        digest, identity = hash_file(spec.path(step.file), meter.at)
        meter.end(identity.bytes)
        done[step.file.name] = _Done(seconds=time.monotonic() - begin, moved=identity.bytes)
        known[step.file.name] = replace(facts[step.file.name], identity=identity, digest=digest, read=True)
    return known


def _settle(spec: PayloadSpec, step: Step, facts: FileFacts, owner: Owner) -> None:
    """Mend mode and owner of a verified file and stamp it; the digest holds because only we touched it."""
    path = spec.path(step.file)
    assert facts.identity is not None and facts.digest is not None
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if Identity.of(os.fstat(fd)) != facts.identity:
            raise FleetError(f"{path} changed while it was verified", remedy="Stop what writes to it, then run again")
        if step.mend:
            _own(fd, spec, owner)
        identity = Identity.of(os.fstat(fd))
    finally:
        os.close(fd)
    write_stamp(spec.stamp_dir, path, facts.digest, identity)


def _own(fd: int, spec: PayloadSpec, owner: Owner) -> None:
    os.fchown(fd, -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid)
    os.fchmod(fd, spec.mode)


class _WrongDigest(SourceError):
    """The bytes came, all of them, and are others than declared."""


def _sources(spec: PayloadSpec, file: FileSpec) -> list[str]:
    """The URLs in order; before them a file that an earlier change of the inventory has put aside (the way back)."""
    start = f"{file.name}.replaced-{file.digest.hex[:12]}"
    kept = [Path(spec.dir, entry).as_uri() for entry in os.listdir(spec.dir) if entry.startswith(start)]
    return [*kept, *file.urls]


def _fetch(
    spec: PayloadSpec, file: FileSpec, facts: FileFacts, owner: Owner, meter: _Meter, failures: list[dict[str, str]]
) -> _Done:
    """Get one file from the first source that gives the declared bytes, and stamp it."""
    partial, failed_here = Partial(spec.dir, file.name), []
    sources = _sources(spec, file)
    for url in sources:
        # A continuation that is refused, or ends in other bytes, says nothing against the source: once from the start.
        while True:
            resumable, _ = partial.resume_point(url, file.bytes, file.digest.hex)
            try:
                return _fetch_from(spec, file, facts, owner, meter, partial, url)
            except SourceError as exc:
                note = {"file": file.name, "url": shown_url(url), "error": exc.message}
                failures.append(note)
                failed_here.append(exc.message.rstrip("."))
                if resumable and isinstance(exc, RangeRefused | _WrongDigest):
                    partial.discard()
                    continue
            break
        if not partial.resume_point(url, file.bytes, file.digest.hex)[0]:
            partial.discard()
    raise FleetError(
        f"payload {spec.name}: {file.name} could not be fetched from {len(sources)} source(s)",
        expected=f"{file.bytes} bytes with sha256 {file.digest}",
        found=" | ".join(failed_here) or "no source in `urls`",
        remedy="Correct the URL or the digest in the inventory, or put the file at "
        f"{spec.path(file)}; nothing was replaced",
        failures=failures,
    )


def _fetch_from(
    spec: PayloadSpec, file: FileSpec, facts: FileFacts, owner: Owner, meter: _Meter, partial: Partial, url: str
) -> _Done:
    begin, shown = time.monotonic(), shown_url(url)
    offset, validator = partial.resume_point(url, file.bytes, file.digest.hex)
    meter.start(f"fetching {file.name}")
    if offset == file.bytes:  # killed between the last byte and the rename
        with partial.opened(None, url, file.bytes, file.digest.hex) as fd, following(fd, offset) as hasher:
            digest, identity = _seal(fd, hasher.finish(), spec, owner)
        started_at = offset
    else:
        with open_source(
            url, name=file.name, size=file.bytes, offset=offset, validator=validator, timeout_s=spec.timeout_s
        ) as stream:
            started_at = stream.offset
            with (
                partial.opened(stream, url, file.bytes, file.digest.hex) as fd,
                following(fd, started_at) as hasher,
            ):

                def on_bytes(length: int) -> None:
                    hasher.advance(length)
                    meter.at(length)

                receive(stream, fd, shown=shown, size=file.bytes, on_bytes=on_bytes)
                digest, identity = _seal(fd, hasher.finish(), spec, owner)
    final = spec.path(file)
    if not file.digest.matches(digest):
        where = None if started_at else partial.reject(final, digest)
        partial.discard()
        raise _WrongDigest(
            f"{shown} gives other bytes than declared",
            expected=f"sha256 {file.digest}",
            found=f"sha256 {digest}" + (f", kept as {where}" if where else f" after continuing at byte {started_at}"),
        )
    replaces = None
    if facts.identity is not None:
        replaces = facts.digest or hash_file(final)[0]  # the old file is kept under its digest, known or not
    partial.accept(final, replaces)
    placed = Identity.of(os.lstat(final))
    if not placed.same_content(identity):
        raise FleetError(f"{final} changed while it was verified", remedy="Stop what writes to it, then run again")
    write_stamp(spec.stamp_dir, final, digest, placed)
    meter.end(file.bytes)
    moved = file.bytes - started_at
    return _Done(shown, time.monotonic() - begin, moved, moved, digest)


def _seal(fd: int, digest: str, spec: PayloadSpec, owner: Owner) -> tuple[str, Identity]:
    """Mode, owner and bytes on the disk before the file can get its name."""
    _own(fd, spec, owner)
    os.fsync(fd)
    return digest, Identity.of(os.fstat(fd))


def _apply(
    spec: PayloadSpec, owner: Owner, progress: Progress, done: dict[str, _Done], failures: list[dict[str, str]]
) -> tuple[dict[str, FileFacts], list[Step]]:
    """Do the steps under the directory's lock; the facts as they were before, and the steps that were done."""
    make_dirs(spec.dir, 0o755, -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid)
    with file_lock(os.path.join(spec.dir, _LOCK), wait_s=spec.lock_wait_s, purpose=f"payload {spec.name}"):
        facts = _observe(spec)  # another run may have worked here until now
        steps = plan(spec, facts, owner)
        meter = _Meter(progress, _long(steps))
        facts = _examine(spec, facts, steps, meter, done)
        steps = plan(spec, facts, owner)
        for step in steps:  # what is proven is stamped first, so that a failing source does not cost it again
            if step.action != "fetched" and (step.works or step.mend):
                Partial(spec.dir, step.file.name).discard()
                _settle(spec, step, facts[step.file.name], owner)
        missing = [step.file for step in steps if step.action == "fetched"]
        _room(spec, facts, steps)
        meter.expect(sum(file.bytes for file in missing))
        for file in missing:
            done[file.name] = _fetch(spec, file, facts[file.name], owner, meter, failures)
    return facts, steps


def ensure(spec: PayloadSpec, *, check_mode: bool, progress: Progress, plan_only: bool = False) -> dict[str, Any]:
    """Bring the payload to its declared state; the result dictionary of the module.

    ``check_mode`` reads (it hashes what has no stamp, so as to tell the truth) and writes nothing at all.
    ``plan_only`` does not even read: files that only a read can judge are reported as if they were the declared ones.
    """
    dry = check_mode or plan_only
    owner, warnings = _owner(spec, dry)
    warnings += [
        f"payload {spec.name}: only the beginning of the sha256 of {file.name} is declared ({file.digest})"
        for file in spec.files
        if file.digest.is_prefix
    ]
    facts = _observe(spec)
    steps = plan(spec, facts, owner)
    _room(spec, facts, steps)
    work = any(step.works for step in steps)
    done: dict[str, _Done] = {}
    failures: list[dict[str, str]] = []
    if not dry and (work or any(step.mend for step in steps)):
        facts, steps = _apply(spec, owner, progress, done, failures)
    elif check_mode and not plan_only:
        facts = _examine(spec, facts, steps, _Meter(progress, _long(steps)), done)
        steps = plan(spec, facts, owner)
        _room(spec, facts, steps)
    return _result(spec, facts, steps, done, owner) | {
        "work": work,
        "failures": failures,
        "warnings": warnings,
    }


def _long(steps: Sequence[Step]) -> int:
    return sum(step.file.bytes for step in steps if step.works)


def _result(
    spec: PayloadSpec, before: Mapping[str, FileFacts], steps: Sequence[Step], done: Mapping[str, _Done], owner: Owner
) -> dict[str, Any]:
    """``changed``, ``files``, ``fetch_bytes`` and ``diff`` of steps that were done or would be."""
    files, old, new = [], {}, {}
    fetch_bytes = 0
    for step in steps:
        facts, did = before[step.file.name], done.get(step.file.name, _Done())
        fetches = step.action == "fetched"
        if fetches:
            fetch_bytes += did.fetched if did.source else step.file.bytes - facts.part_bytes
        digest = did.sha256 if fetches else facts.digest
        files.append(
            {
                "name": step.file.name,
                "role": step.file.role,
                "path": spec.path(step.file),
                "bytes": step.file.bytes,
                "sha256": digest or str(step.file.digest),
                "action": step.action,
                "why": step.why,
                "mended": step.mend,
                "source": did.source,
                "seconds": round(did.seconds, 3),
                "bytes_per_s": round(did.moved / did.seconds) if did.seconds else 0,
            }
        )
        if facts.identity is not None:
            seen = facts.digest if step.action != "adopted" else None
            old[step.file.name] = _shown(seen or f"unverified, {facts.identity.bytes} bytes", facts)
        wanted = FileFacts(
            mode=spec.mode,
            uid=facts.uid if owner.uid is None else owner.uid,
            gid=facts.gid if owner.gid is None else owner.gid,
        )
        new[step.file.name] = _shown(digest or str(step.file.digest), wanted)
    changed = any(step.action in ("adopted", "fetched") or step.mend for step in steps)
    # A file that was only read again has the same digest before and after: no change, and no line in the diff.
    for step in steps:
        if step.action in ("none", "hashed") and not step.mend:
            old[step.file.name] = new[step.file.name]
    return {
        "changed": changed,
        "files": files,
        "fetch_bytes": fetch_bytes,
        "diff": {"before": {spec.dir: old} if old else {}, "after": {spec.dir: new}},
    }


def _shown(digest: str, facts: FileFacts) -> str:
    return f"{digest} mode {facts.mode:04o} owner {facts.uid}:{facts.gid}"
