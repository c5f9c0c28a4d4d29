# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload as declared, as found, and the steps between the two: no file is touched here."""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import check_url
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_set import check_names
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import payload_gaps, refuse_gaps
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Digest, Identity, Split

__all__ = ["HUB", "LOCK", "Action", "FileFacts", "FileSpec", "Owner", "PayloadSpec", "Step", "hub_link", "plan"]

Action = Literal["none", "adopted", "hashed", "linked", "fetched"]

HUB = "https://huggingface.co"
LOCK = ".payload.lock"  # in the directory of a payload: held by whoever writes there
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


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
    state_dir: str = "/var/lib/llm-fleet"  # where the eras lie
    max_age_s: float = math.inf  # of a stamp that is trusted; below 0: none is
    connections: int = 4
    hub_url: str = HUB
    token_file: str | None = None
    token_env: str | None = None
    timeout_s: float = 60.0
    lock_wait_s: float = 10.0

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> PayloadSpec:
        """From module options, or an entry of the inventory as it is.

        Every malformed entry is a FleetError that names the payload and the file; all that is ``unknown`` is one.
        """
        what = f"payload {params['name']}"
        refuse_gaps(payload_gaps(params))
        for key in ("dir", "stamp_dir"):
            if not os.path.isabs(str(params[key])):
                raise FleetError(f"{what}: {key} is relative", expected="an absolute path", found=params[key])
        mode = str(params["mode"])
        if not re.fullmatch(r"0[0-7]{3}", mode):
            raise FleetError(
                f"{what}: mode is malformed",
                expected="four octal digits in quotes, as '0644'",
                found=repr(params["mode"]),
                remedy="Quote it: YAML reads a bare 0644 as the number 420",
            )
        hub_url = str(params.get("hub_url") or HUB).rstrip("/")
        check_url(f"{what}: hub_url", hub_url)
        files = tuple(_file_spec(what, entry, hub_url) for entry in params["files"])
        if not files:
            raise FleetError(f"{what} has no files", expected="at least one entry in `files`")
        names = [file.name for file in files]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise FleetError(f"{what} declares a file twice", expected="unique names", found=", ".join(twice))
        check_names(what, names)
        return cls(
            name=params["name"],
            dir=os.path.normpath(params["dir"]),
            files=files,
            owner=params.get("owner"),
            group=params.get("group"),
            mode=int(mode, 8),
            stamp_dir=params["stamp_dir"],
            state_dir=params.get("state_dir") or cls.state_dir,
            max_age_s=_max_age_s(what, str(params["verify"])),
            connections=_connections(what, params.get("connections")),
            hub_url=hub_url,
            token_file=params.get("token_file"),
            token_env=params.get("token_env"),
        )

    def path(self, file: FileSpec) -> str:
        """The file's final path."""
        return os.path.join(self.dir, file.name)


def _max_age_s(what: str, verify: str) -> float:
    """How old a stamp may be: any age for ``stamp``, none for ``full``, else that of ``age=7d``."""
    if verify in ("stamp", "full"):
        return math.inf if verify == "stamp" else -1.0
    match = re.fullmatch(r"age=([1-9][0-9]{0,5})([mhdw])", verify)
    if not match:
        raise FleetError(
            f"{what}: verify is malformed",
            expected="stamp, full, or age= with a number of m, h, d or w, as age=7d",
            found=repr(verify),
        )
    return float(match[1]) * _SECONDS[match[2]]


def _connections(what: str, given: Any) -> int:
    count = _whole(4 if given is None else given)
    if count is None or not 1 <= count <= 64:
        raise FleetError(f"{what}: connections is out of range", expected="1 to 64", found=given)
    return count


def _whole(given: Any) -> int | None:
    """A whole number, also as the decimal digits that the command line makes of it; None for anything else."""
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,18}", given):
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def hub_link(what: str, entry: Mapping[str, Any], hub_url: str) -> str | None:
    """The hub's URL of a file given as ``repo``, ``revision`` and ``file`` (by default its name); None without them."""
    repo, revision = entry.get("repo"), entry.get("revision")
    path = entry.get("file") or entry["name"]
    if not repo and not revision and not entry.get("file"):
        return None
    if not repo or not revision:
        raise FleetError(
            f"{what} names a hub file in part",
            expected="`repo` and `revision`, and `file` where it is not the name",
            found=", ".join(key for key in ("repo", "revision", "file") if entry.get(key)),
        )
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(repo), re.ASCII) or ".." in f"{repo}/{path}/{revision}".split("/"):
        raise FleetError(f"{what}: repo, revision or file is malformed", expected="repo as owner/name", found=repo)
    quoted = (repo, urllib.parse.quote(str(revision), safe=""), urllib.parse.quote(path))
    return f"{hub_url}/{quoted[0]}/resolve/{quoted[1]}/{quoted[2]}"


def _file_spec(what: str, entry: Mapping[str, Any], hub_url: str) -> FileSpec:
    if not isinstance(entry, Mapping):
        raise FleetError(f"{what}: files", expected="dictionaries", found=repr(entry))
    name = str(entry.get("name") or "")
    what = f"{what}: file {name!r}"
    if not name or name.startswith(".") or re.search(r"[/\x00-\x1f\x7f]", name):
        raise FleetError(f"{what} has no usable name", expected="a plain file name: no slash, no leading dot")
    size = _whole(entry.get("bytes"))
    if size is None or size <= 0:
        raise FleetError(
            f"{what}: bytes is malformed",
            expected="a whole number above 0",
            found=repr(entry["bytes"]) if "bytes" in entry else "nothing",
            remedy="Write the file's length, as `stat -c %s` tells it",
        )
    hub = hub_link(what, entry, hub_url)
    given = entry.get("urls") or ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(url, str) for url in given):
        raise FleetError(f"{what}: urls is malformed", expected="a list of URLs", found=repr(given))
    urls = (*((hub,) if hub else ()), *given)
    for url in urls:
        check_url(what, url)
    digest = Digest.declared(what, entry.get("sha256"), entry.get("sha256_prefix"))
    return FileSpec(name, str(entry.get("role") or "model"), size, digest, urls)


@dataclass(frozen=True)
class Owner:
    """Numeric owner and group; None leaves what is there."""

    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class FileFacts:
    """What is known of one file on the host.

    ``identity`` is None where it is absent. ``digest`` is its full digest where a stamp that still fits, or a read in
    this run (``read``), tells it. ``stamped``: there is a stamp for this path, fitting or not; ``age_s`` is the age of
    one that fits. ``part_bytes``: what a partial file holds that may be continued; ``part_disk``: the room it takes.
    ``split``: what its stamp says of its header. ``twin``: another file of the declared digest that this one may be a
    second name of; ``copies``: such files that cannot be shared, but read instead of a remote source.
    """

    identity: Identity | None = None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    digest: str | None = None
    read: bool = False
    stamped: bool = False
    age_s: float = 0.0
    part_bytes: int = 0
    part_disk: int = 0
    split: Split | None = None
    twin: str | None = None
    copies: tuple[str, ...] = ()


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
        return self.action not in ("none", "linked")


def plan(spec: PayloadSpec, facts: Mapping[str, FileFacts], owner: Owner) -> list[Step]:
    """The steps that bring the observed files (by name) to the declared ones, in the order of the inventory."""
    return [_step(spec, file, facts[file.name], owner) for file in spec.files]


def _step(spec: PayloadSpec, file: FileSpec, facts: FileFacts, owner: Owner) -> Step:
    get: Action = "linked" if facts.twin else "fetched"
    if facts.identity is None:
        return Step(file, get, True, False, "absent")
    if facts.identity.bytes != file.bytes:
        return Step(file, get, True, False, f"{facts.identity.bytes} bytes instead of {file.bytes}")
    mend = facts.mode != spec.mode or owner.uid not in (None, facts.uid) or owner.gid not in (None, facts.gid)
    verified: Action = "hashed" if facts.stamped else "adopted"
    if facts.digest is not None and not file.digest.matches(facts.digest):
        return Step(file, get, True, False, f"sha256 {facts.digest} instead of {file.digest}")
    if facts.read:
        return Step(file, verified, True, mend, "verified by reading it")
    if facts.digest is None:
        why = "changed since it was verified" if facts.stamped else "never verified"
        return Step(file, verified, False, mend, why)
    if spec.max_age_s < 0:
        return Step(file, verified, False, mend, "a full verification is asked for")
    if not -60 < facts.age_s <= spec.max_age_s:  # a stamp from the future: a clock was wrong
        return Step(file, verified, False, mend, "its verification is too long ago")
    return Step(file, "none", True, mend, "its stamp fits")
