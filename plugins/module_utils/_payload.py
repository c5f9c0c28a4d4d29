# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload on a host: what is there, what is to be done, and doing it so that no unproven byte has a final name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._auth import read_token
from ansible_collections.dank.llm_fleet.plugins.module_utils._download import Download
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import shown_url
from ansible_collections.dank.llm_fleet.plugins.module_utils._incoming import Incoming, Tuning
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._meter import FileState, Meter
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial, kept_aside
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_facts import check_room, observe, owner_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_kept import sweep_replaced
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import (
    LOCK,
    FileFacts,
    FileSpec,
    Owner,
    PayloadSpec,
    Step,
    plan,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_read import hash_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_set import Shards
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._twins import link_twin
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, Split, hash_file, write_stamp

__all__ = ["Done", "FileFacts", "FileSpec", "Owner", "PayloadSpec", "Step", "ensure", "examine", "plan", "result_of"]


@dataclass
class Done:
    """What was done for one file, for the result."""

    source: str | None = None
    seconds: float = 0.0
    moved: int = 0  # bytes read or fetched
    fetched: int = 0
    sha256: str | None = None
    warning: str | None = None


def examine(
    spec: PayloadSpec,
    facts: Mapping[str, FileFacts],
    steps: Sequence[Step],
    meter: Meter,
    done: dict[str, Done],
    faults: dict[str, FleetError] | None = None,
) -> dict[str, FileFacts]:
    """The facts, with each file that only a read can judge read in full. Writes nothing.

    The first file that cannot be read is raised; with ``faults`` all are put there, by path.
    """
    known = dict(facts)
    read = hash_files([spec.path(step.file) for step in steps if not step.known], meter, faults)
    for step in steps:
        if spec.path(step.file) not in read:
            continue
        file, name = read[spec.path(step.file)], step.file.name
        done[name] = Done(seconds=file.seconds, moved=file.identity.bytes)
        known[name] = replace(facts[name], identity=file.identity, digest=file.digest, read=True, split=None)
    return known


def hold_headers(
    spec: PayloadSpec,
    facts: Mapping[str, FileFacts],
    steps: Sequence[Step],
    *,
    deep: bool,
    faults: dict[str, FleetError] | None = None,
) -> tuple[Shards, dict[str, Split | None]]:
    """The headers of the files that are proven, or become names of proven ones, held against each other.

    The first that does not belong is raised; with ``faults`` all are put there, by path.
    """
    shards = Shards(spec.dir, deep=deep)
    splits: dict[str, Split | None] = {}
    for step in steps:
        name, known = step.file.name, facts[step.file.name]
        if not step.known or step.action == "fetched":
            continue
        try:
            if step.action == "linked" and known.twin is not None:
                splits[name] = shards.add(name, known.twin)
            else:
                splits[name] = shards.add(name, spec.path(step.file), known.split)
        except FleetError as exc:
            if faults is None:
                raise
            faults[spec.path(step.file)] = exc
    return shards, splits


def _settle(spec: PayloadSpec, step: Step, facts: FileFacts, owner: Owner, split: Split | None) -> None:
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
    write_stamp(spec.stamp_dir, path, facts.digest, identity, payload=spec.name, split=split)


def _own(fd: int, spec: PayloadSpec, owner: Owner) -> None:
    os.fchown(fd, -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid)
    os.fchmod(fd, spec.mode)


def _sources(spec: PayloadSpec, file: FileSpec, facts: FileFacts) -> list[str]:
    """The URLs in order; before them what this host has of the same digest: under another name, or put aside by an
    earlier change of the inventory (the way back)."""
    start = f"{spec.path(file)}.replaced-{file.digest.hex[:12]}"
    kept = [path for path in kept_aside(spec.path(file), "replaced") if path.startswith(start)]
    kept = [Path(path).as_uri() for path in kept if not os.path.islink(path)]
    return [*kept, *(Path(path).as_uri() for path in facts.copies), *file.urls]


def _place(
    spec: PayloadSpec, owner: Owner, facts: FileFacts, incoming: Incoming, digest: str, shards: Shards
) -> str | None:
    """Give proven bytes their final name: mode, owner and bytes are on the disk before it, the stamp comes last.

    Returns a warning, or None. A shard that does not belong to those that are there gets no final name.
    """
    split = shards.add(incoming.file.name, incoming.partial.path)
    final = spec.path(incoming.file)
    _own(incoming.fd, spec, owner)
    os.fsync(incoming.fd)
    identity = Identity.of(os.fstat(incoming.fd))
    replaces = _replaces(final, facts)
    incoming.partial.accept(final, replaces)
    shards.placed(incoming.file.name)
    placed = Identity.of(os.lstat(final))
    if not placed.same_content(identity):
        raise FleetError(f"{final} changed while it was verified", remedy="Stop what writes to it, then run again")
    write_stamp(spec.stamp_dir, final, digest, placed, payload=spec.name, split=split)
    return None if replaces is None else sweep_replaced(spec, final, replaces)


def _replaces(final: str, facts: FileFacts) -> str | None:
    """The digest of the file that has the name now: it is kept aside under it, known or not."""
    return None if facts.identity is None else facts.digest or hash_file(final)[0]


def _fetch(
    spec: PayloadSpec,
    files: Sequence[FileSpec],
    facts: Mapping[str, FileFacts],
    owner: Owner,
    meter: Meter,
    done: dict[str, Done],
    failures: list[dict[str, str]],
    tuning: Tuning,
    shards: Shards,
) -> None:
    """Fetch, prove and place these files; a file that no source gives is a FleetError with all failures."""
    token = read_token(spec.token_file, spec.token_env, spec.hub_url)
    download = Download(connections=spec.connections, timeout_s=spec.timeout_s, token=token)
    incoming = [
        Incoming(
            f"payload {spec.name}",
            file,
            Partial(spec.dir, file.name),
            _sources(spec, file, facts[file.name]),
            tuning,
            spec.connections,
            download.on_hashed,
        )
        for file in files
    ]

    def finish(file: Incoming, digest: str) -> None:
        warning = _place(spec, owner, facts[file.file.name], file, digest, shards)
        source = shown_url(file.sources[file.source]) if file.sources else file.partial.path
        seconds = time.monotonic() - (begin if file.begun is None else file.begun)
        done[file.file.name] = Done(source, seconds, file.received, file.received, digest, warning)

    def show(force: bool = False) -> None:
        now = time.monotonic()
        states = [
            FileState(file.file.name, file.journal.bytes, file.file.bytes, file.phase(now), file.note)
            for file in incoming
        ]
        meter.show("fetching", states, force=force)

    begin = time.monotonic()
    try:
        download.run(incoming, finish, show)
    finally:
        failures.extend(note for file in incoming for note in file.failures)


def _apply(
    spec: PayloadSpec,
    owner: Owner,
    meter: Meter,
    done: dict[str, Done],
    failures: list[dict[str, str]],
    tuning: Tuning,
) -> tuple[dict[str, FileFacts], list[Step]]:
    """Do the steps under the directory's lock; the facts as they were before, and the steps that were done."""
    make_dirs(spec.dir, 0o755, -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid)
    with file_lock(os.path.join(spec.dir, LOCK), wait_s=spec.lock_wait_s, purpose=f"payload {spec.name}"):
        facts = observe(spec, owner)  # another run may have worked here until now
        facts = examine(spec, facts, plan(spec, facts, owner), meter, done)
        steps = plan(spec, facts, owner)
        shards, splits = hold_headers(spec, facts, steps, deep=True)
        for step in steps:  # what is proven is stamped first, so that a failing source does not cost it again
            if step.action not in ("linked", "fetched") and (step.works or step.mend):
                Partial(spec.dir, step.file.name).discard()
                _settle(spec, step, facts[step.file.name], owner, splits.get(step.file.name))
        for step in steps:
            if step.action == "linked" and not _link(spec, step.file, facts[step.file.name], done):
                facts[step.file.name] = replace(facts[step.file.name], twin=None)
        steps = plan(spec, facts, owner)
        missing = [step.file for step in steps if step.action == "fetched"]
        check_room(spec, facts, steps)
        if missing:
            _fetch(spec, missing, facts, owner, meter, done, failures, tuning, shards)
    return facts, steps


def _link(spec: PayloadSpec, file: FileSpec, facts: FileFacts, done: dict[str, Done]) -> bool:
    """Whether ``file`` is a second name of its twin now."""
    assert facts.twin is not None
    begin, replaces = time.monotonic(), _replaces(spec.path(file), facts)
    digest = link_twin(spec, file, facts.twin, Partial(spec.dir, file.name), replaces)
    if digest is not None:
        warning = None if replaces is None else sweep_replaced(spec, spec.path(file), replaces)
        seconds = time.monotonic() - begin
        done[file.name] = Done(Path(facts.twin).as_uri(), seconds, sha256=digest, warning=warning)
    return digest is not None


def ensure(
    spec: PayloadSpec,
    *,
    check_mode: bool,
    progress: Progress,
    plan_only: bool = False,
    tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Bring the payload to its declared state; the result dictionary of the module.

    ``check_mode`` reads (it hashes what has no stamp, so as to tell the truth) and writes nothing at all.
    ``plan_only`` does not even read: files that only a read can judge are reported as if they were the declared ones.
    """
    dry = check_mode or plan_only
    owner, warnings = owner_of(spec, dry)
    warnings += [
        f"payload {spec.name}: only the beginning of the sha256 of {file.name} is declared ({file.digest})"
        for file in spec.files
        if file.digest.is_prefix
    ]
    facts = observe(spec, owner)
    steps = plan(spec, facts, owner)
    check_room(spec, facts, steps)
    hold_headers(spec, facts, steps, deep=False)
    work = any(step.works for step in steps)
    done: dict[str, Done] = {}
    failures: list[dict[str, str]] = []
    meter = Meter(progress)
    if not dry and any(step.action != "none" or step.mend for step in steps):
        facts, steps = _apply(spec, owner, meter, done, failures, tuning)
    elif check_mode and not plan_only:
        facts = examine(spec, facts, steps, meter, done)
        steps = plan(spec, facts, owner)
        hold_headers(spec, facts, steps, deep=True)
        check_room(spec, facts, steps)
    return result_of(spec, facts, steps, done, owner) | {
        "work": work,
        "failures": failures,
        "warnings": [*warnings, *(did.warning for did in done.values() if did.warning)],
    }


def result_of(
    spec: PayloadSpec, before: Mapping[str, FileFacts], steps: Sequence[Step], done: Mapping[str, Done], owner: Owner
) -> dict[str, Any]:
    """``changed``, ``files``, ``fetch_bytes`` and ``diff`` of steps that were done or would be."""
    files, old, new = [], {}, {}
    fetch_bytes = 0
    for step in steps:
        facts, did = before[step.file.name], done.get(step.file.name, Done())
        fetches = step.action == "fetched"
        if fetches:
            fetch_bytes += did.fetched if did.source else step.file.bytes - facts.part_bytes
        digest = did.sha256 if fetches or step.action == "linked" else facts.digest
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
    changed = any(step.action in ("adopted", "linked", "fetched") or step.mend for step in steps)
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
