# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload as declared, as found, and the steps between the two: no file is touched here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import check_url
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Digest, Identity

__all__ = ["Action", "FileFacts", "FileSpec", "Owner", "PayloadSpec", "Step", "plan"]

Action = Literal["none", "adopted", "hashed", "fetched"]


@dataclass(frozen=True)
class FileSpec:
    """One declared file; ``urls`` in order of preference."""

    name: str
    role: str
    bytes: int
    digest: Digest
    urls: tuple[str, ...]


@dataclass(frozen=True)
class PayloadSpec:
    """What the inventory declares; ``mode`` is a number, owner and group are names, numbers or None (as they are)."""

    name: str
    dir: str
    files: tuple[FileSpec, ...]
    owner: str | None = None
    group: str | None = None
    mode: int = 0o644
    stamp_dir: str = "/var/lib/llm-fleet/payloads"
    verify: str = "stamp"
    timeout_s: float = 60.0
    lock_wait_s: float = 10.0

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> PayloadSpec:
        """From module options; every malformed entry is a FleetError that names the payload and the file."""
        what = f"payload {params['name']}"
        for key in ("dir", "stamp_dir"):
            if not os.path.isabs(params[key]):
                raise FleetError(f"{what}: {key} is relative", expected="an absolute path", found=params[key])
        mode = str(params["mode"])
        if not re.fullmatch(r"0[0-7]{3}", mode):
            raise FleetError(
                f"{what}: mode is malformed",
                expected="four octal digits in quotes, as '0644'",
                found=repr(params["mode"]),
                remedy="Quote it: YAML reads a bare 0644 as the number 420",
            )
        files = tuple(_file_spec(what, entry) for entry in params["files"])
        if not files:
            raise FleetError(f"{what} has no files", expected="at least one entry in `files`")
        names = [file.name for file in files]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise FleetError(f"{what} declares a file twice", expected="unique names", found=", ".join(twice))
        return cls(
            name=params["name"],
            dir=os.path.normpath(params["dir"]),
            files=files,
            owner=params.get("owner"),
            group=params.get("group"),
            mode=int(mode, 8),
            stamp_dir=params["stamp_dir"],
            verify=params["verify"],
        )

    def path(self, file: FileSpec) -> str:
        """The file's final path."""
        return os.path.join(self.dir, file.name)


def _file_spec(what: str, entry: Mapping[str, Any]) -> FileSpec:
    name = str(entry["name"])
    what = f"{what}: file {name!r}"
    if not name or name.startswith(".") or re.search(r"[/\x00-\x1f\x7f]", name):
        raise FleetError(f"{what} has no usable name", expected="a plain file name: no slash, no leading dot")
    if int(entry["bytes"]) <= 0:
        raise FleetError(f"{what}: bytes is malformed", expected="a number above 0", found=entry["bytes"])
    urls = tuple(entry.get("urls") or ())
    for url in urls:
        check_url(what, url)
    digest = Digest.declared(what, entry.get("sha256"), entry.get("sha256_prefix"))
    return FileSpec(name, str(entry.get("role") or "model"), int(entry["bytes"]), digest, urls)


@dataclass(frozen=True)
class Owner:
    """Numeric owner and group; None leaves what is there."""

    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class FileFacts:
    """What is known of one file on the host.

    ``identity`` is None where it is absent. ``digest`` is its full digest where a stamp that still fits, or a read in
    this run (``read``), tells it. ``stamped``: there is a stamp for this path, fitting or not. ``part_bytes``: what a
    partial file holds that may be continued; ``part_disk``: the room it takes.
    """

    identity: Identity | None = None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    digest: str | None = None
    read: bool = False
    stamped: bool = False
    part_bytes: int = 0
    part_disk: int = 0


@dataclass(frozen=True)
class Step:
    """What one file needs. ``known`` is False where only a read of the file can tell whether it is the declared one."""

    file: FileSpec
    action: Action
    known: bool
    mend: bool
    why: str

    @property
    def works(self) -> bool:
        """Whether a later run would have to read or fetch the file: long work."""
        return self.action != "none"


def plan(spec: PayloadSpec, facts: Mapping[str, FileFacts], owner: Owner) -> list[Step]:
    """The steps that bring the observed files (by name) to the declared ones, in the order of the inventory."""
    return [_step(spec, file, facts[file.name], owner) for file in spec.files]


def _step(spec: PayloadSpec, file: FileSpec, facts: FileFacts, owner: Owner) -> Step:
    if facts.identity is None:
        return Step(file, "fetched", True, False, "absent")
    if facts.identity.bytes != file.bytes:
        return Step(file, "fetched", True, False, f"{facts.identity.bytes} bytes instead of {file.bytes}")
    mend = facts.mode != spec.mode or owner.uid not in (None, facts.uid) or owner.gid not in (None, facts.gid)
    verified: Action = "hashed" if facts.stamped else "adopted"
    if facts.digest is not None and not file.digest.matches(facts.digest):
        return Step(file, "fetched", True, False, f"sha256 {facts.digest} instead of {file.digest}")
    if facts.read:
        return Step(file, verified, True, mend, "verified by reading it")
    if facts.digest is None:
        why = "changed since it was verified" if facts.stamped else "never verified"
        return Step(file, verified, False, mend, why)
    if spec.verify == "full":
        return Step(file, verified, False, mend, "a full verification is asked for")
    return Step(file, "none", True, mend, "its stamp fits")
