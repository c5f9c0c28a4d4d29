# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile's ``package.json``: which files make the model, each with its size and digest as they lie on the disk.

The schema is the fork's ``r9v.model-package.v1`` (``schemas/model-package-v1.schema.json`` of its checkout): id, model,
quant, license, artifacts of role, path, bytes, sha256 and required, and in ``derived_artifacts`` the embedding table.
Words (model, quant, license) are the author's; every number is read from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import read_object, within
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_ple import (
    Ple,
    derive_command,
    locate,
    require_bytes,
    table_fault,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    HEAD,
    Digest,
    Identity,
    hash_file,
    head_fault,
    read_stamp,
    write_stamp,
)

__all__ = [
    "ROLES",
    "SCHEMA",
    "Artifact",
    "Reader",
    "compose",
    "identity_of",
    "lies_of",
    "read_package",
    "require_true",
    "table_of",
    "target_of",
]

SCHEMA = "r9v.model-package.v1"
# The roles of the fork's published packages. ``adapter`` is ours: a module mounted over the image's, where it lies in
# the model folder.
ROLES = (
    "target",
    "vision-projector",
    "adapter",
    "mtp-config",
    "mtp-checkpoint",
    "mtp-manifest",
    "tokenizer",
    "tokenizer-config",
    "tokenizer-merges",
    "tokenizer-vocabulary",
    "model-config",
    "chat-template",
    "processor-config",
    "video-processor-config",
    "generation-config",
    "expert-placement",
    "license",
    "third-party-notices",
)
_HEX = re.compile(r"[0-9a-f]{64}")
_WORDS = ("id", "model", "quant", "license")


@dataclass(frozen=True)
class Artifact:
    """A file of the package; ``path`` is relative to the model folder."""

    role: str
    path: str
    bytes: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """As the package has it."""
        return {"role": self.role, "path": self.path, "bytes": self.bytes, "sha256": self.sha256, "required": True}


class Reader:
    """Digests of files: from a stamp that still fits, or read in full.

    ``full`` reads always. ``label`` marks the stamps that are written; None writes none.
    """

    def __init__(
        self,
        stamp_dir: str,
        *,
        full: bool = False,
        label: str | None = None,
        on_bytes: Callable[[str, int], None] | None = None,
    ) -> None:
        self.stamp_dir, self.full, self.label, self.on_bytes = stamp_dir, full, label, on_bytes
        self.read = 0  # files read in full

    def digest(self, path: str) -> tuple[int, str]:
        """(bytes, sha256) of a regular file."""
        identity = Identity.of(os.stat(path, follow_symlinks=False))
        stamp = None if self.full else read_stamp(self.stamp_dir, path)
        if stamp is not None and stamp.identity == identity:
            return identity.bytes, stamp.sha256
        report = self.on_bytes
        found, identity = hash_file(path, None if report is None else lambda count: report(path, count))
        self.read += 1
        if self.label is not None:
            write_stamp(self.stamp_dir, path, found, identity, payload=self.label)
        return identity.bytes, found


def _look(path: str) -> str:
    """Why there is no such file of a package at ``path``, or ""."""
    if os.path.islink(path):
        return "a symbolic link, whose target could change unseen"
    if not os.path.isfile(path):
        return "no such file"
    with open(path, "rb") as handle:
        return head_fault(path, handle.read(HEAD)) or ""


def _declared(given: Mapping[str, Any], model_dir: str, reader: Reader) -> Artifact:
    """The artifact as it lies on the disk; a FleetError where that is not what its publisher states."""
    name, what = os.path.normpath(given["path"]), f"artifact {given['path']}"
    path = within(model_dir, given["path"], what)
    fault = _look(path)
    if fault:
        raise FleetError(f"{what} in {model_dir}", expected="a file", found=fault, remedy="Fetch it, then run again")
    size, digest = reader.digest(path)
    if given.get("bytes") is not None and given["bytes"] != size:
        raise FleetError(what, expected=f"{given['bytes']:,} bytes", found=f"{size:,} bytes", remedy="Fetch it anew")
    if given.get("sha256") and not Digest.declared(what, given["sha256"], None).matches(digest):
        raise FleetError(what, expected=f"sha256 {given['sha256']}", found=digest, remedy="Fetch it anew")
    return Artifact(given["role"], name, size, digest)


def _set_fault(targets: Sequence[str]) -> str:
    """What is wrong with the target's file names, or "": one set, every part of it once."""
    if not targets:
        return "no artifact of role target"
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", targets[0])
    if match is None:
        return "" if len(targets) == 1 else f"{targets[0]} is not the first part of a set"
    wanted = [f"{match[1]}-{part:05d}-of-{match[2]}.gguf" for part in range(1, int(match[2]) + 1)]
    strange = sorted(set(wanted) ^ set(targets))
    return f"{strange[0]} is of the set or of the package, and not of both" if strange else ""


def target_of(package: Mapping[str, Any], model_dir: str) -> tuple[str, Gguf]:
    """(path of the first target shard, the header of the whole set); a FleetError where the set is not whole."""
    targets = sorted(row["path"] for row in package["artifacts"] if row["role"] == "target")
    fault = _set_fault(targets)
    if fault:
        raise FleetError(f"package {package['id']}: target", expected="one whole set of shards", found=fault)
    first = os.path.join(model_dir, targets[0])
    return first, read_gguf(first, keys=("general.name", "general.file_type"))


def _derived(ple: Ple, path: str, model_dir: str) -> dict[str, Any]:
    return {
        "role": "ple",
        "path": path,
        "source_artifact": os.path.relpath(ple.source, model_dir),
        "tensor_name": ple.tensor,
        "tensor_type": ple.type,
        "bytes": ple.bytes,
    }


def compose(given: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """The package from ``id``, ``model``, ``quant``, ``license``, ``model_dir``,
    ``artifacts`` (``{role, path}``, with ``bytes`` and ``sha256`` where the publisher states them) and ``ple``
    (``{path, tensor, bytes}``, or None).

    A FleetError names the first file that is missing or is not what its publisher states.
    """
    model_dir = os.path.normpath(given["model_dir"])
    names = [os.path.normpath(row["path"]) for row in given["artifacts"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FleetError(f"package {given['id']}: artifacts", expected="each path once", found=f"{twice[0]} twice")
    package: dict[str, Any] = {"schema": SCHEMA, **{word: given[word] for word in _WORDS}}
    package["artifacts"] = [{"role": row["role"], "path": row["path"]} for row in given["artifacts"]]
    _first, gguf = target_of(package, model_dir)  # before hours of hashing
    ple = locate(gguf, given["ple"]["tensor"]) if given.get("ple") else None
    if ple is not None:
        require_bytes(ple, given["ple"].get("bytes"))
    package["artifacts"] = [_declared(row, model_dir, reader).as_dict() for row in given["artifacts"]]
    if ple is not None:
        package["derived_artifacts"] = [_derived(ple, given["ple"]["path"], model_dir)]
    return package


def identity_of(package: Mapping[str, Any], model_dir: str) -> dict[str, Any]:
    """What the package is, for people: the target by its own header, and the digests of what is served beside it."""
    first, gguf = target_of(package, model_dir)
    beside = ("vision-projector", "adapter", "chat-template")
    return {
        "architecture": gguf.architecture,
        "name": gguf.name,
        "first": first,
        "shards": len(gguf.shards),
        "bytes": gguf.file_bytes,
        "types": gguf.types,
        **{
            role.replace("-", "_"): {key: row[key] for key in ("path", "bytes", "sha256")}
            for role in beside
            for row in package["artifacts"]
            if row["role"] == role
        },
    }


def _row_fault(number: int, row: Any) -> str:
    where = f"artifacts[{number}]"
    if not isinstance(row, dict):
        return f"{where} is no object"
    path, size = row.get("path"), row.get("bytes")
    if not isinstance(path, str) or not path or os.path.isabs(path) or ".." in path.split("/"):
        return f"{where}.path {path!r} is no relative path"
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        return f"{path}: bytes {size!r}"
    if not isinstance(row.get("sha256"), str) or not _HEX.fullmatch(row["sha256"]):
        return f"{path}: sha256 {row.get('sha256')!r} is no 64 hexadecimal digits"
    return "" if isinstance(row.get("role"), str) and row["role"] else f"{path}: role {row.get('role')!r}"


def _derived_faults(rows: Any) -> list[str]:
    if not isinstance(rows, list):
        return ["derived_artifacts is no list"]
    faults = []
    for number, row in enumerate(rows):
        where = f"derived_artifacts[{number}]"
        if not isinstance(row, dict):
            faults.append(f"{where} is no object")
            continue
        faults += [f"{where}.{key} {row.get(key)!r}" for key in ("tensor_name", "path") if not _is_text(row.get(key))]
    return faults


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def read_package(path: str) -> dict[str, Any]:
    """The package at ``path``, of sound form; a FleetError names everything that is not."""
    package = read_object(path, "package")
    faults = [] if package.get("schema") == SCHEMA else [f"schema {package.get('schema')!r}"]
    faults += [f"{word} {package.get(word)!r}" for word in _WORDS if not isinstance(package.get(word), str)]
    rows = package.get("artifacts")
    if not isinstance(rows, list) or not rows:
        faults.append("no artifacts")
    else:
        broken = list(filter(None, (_row_fault(number, row) for number, row in enumerate(rows))))
        names = [row["path"] for row in rows] if not broken else []
        faults += broken + [f"{name} twice" for name in sorted({name for name in names if names.count(name) > 1})]
    faults += _derived_faults(package.get("derived_artifacts") or [])
    if faults:
        raise FleetError(
            f"package {path}", expected=f"{SCHEMA}: {', '.join(_WORDS)}, artifacts", found="; ".join(faults)
        )
    return package


def lies_of(package: Mapping[str, Any], model_dir: str, reader: Reader) -> list[dict[str, str]]:
    """``{path, expected, found}`` of every file that is not as the package has it, the embedding table among them.

    A file of another size is not read: that it is another one is known. A table that is not cut out yet is no lie.
    """
    lies = []
    for row in package["artifacts"]:
        path = within(model_dir, row["path"], f"artifact {row['path']}")
        expected, found = f"{row['bytes']:,} bytes of sha256 {row['sha256']}", _look(path)
        if not found:
            size = os.stat(path).st_size
            if size != row["bytes"]:
                found = f"{size:,} bytes"
            elif (digest := reader.digest(path)[1]) != row["sha256"]:
                found = f"sha256 {digest}"
        if found:
            lies.append({"path": row["path"], "expected": expected, "found": found})
    shards = {row["path"] for row in package["artifacts"] if row["role"] == "target"}
    if shards & {lie["path"] for lie in lies}:
        return lies  # the headers of a set that is not whole say nothing of the table
    for row in package.get("derived_artifacts") or ():
        ple = locate(target_of(package, model_dir)[1], row["tensor_name"])
        if _derived(ple, row["path"], model_dir) != row:
            told = ", ".join(f"{key} {row.get(key)}" for key in ("source_artifact", "tensor_type", "bytes"))
            wanted = f"{os.path.relpath(ple.source, model_dir)}, {ple.type}, {ple.bytes:,} bytes by the header"
            lies.append({"path": row["path"], "expected": wanted, "found": told})
        path = within(model_dir, row["path"], f"derived artifact {row['path']}")
        fault = table_fault(path, ple.bytes)
        if fault:
            lies.append({"path": path, "expected": f"{ple.bytes:,} bytes by the header", "found": fault})
    return lies


def require_true(package: Mapping[str, Any], path: str, model_dir: str, reader: Reader) -> None:
    """A FleetError that names every lie of the package at ``path`` (``lies`` in its facts), or nothing."""
    lies = lies_of(package, os.path.normpath(model_dir), reader)
    if lies:
        raise FleetError(
            f"package {path} lies about {len(lies)} files",
            expected="; ".join(f"{lie['path']}: {lie['expected']}" for lie in lies),
            found="; ".join(f"{lie['path']}: {lie['found']}" for lie in lies),
            remedy="Fetch what is broken anew; write the package anew only for files that their publisher vouches for",
            lies=lies,
        )


def table_of(package: Mapping[str, Any], model_dir: str, checkout: str | None) -> dict[str, Any]:
    """The embedding table: the tensor by the header, where it lies, whether it is there, how it is cut out; {} for a
    package without one."""
    row = next(iter(package.get("derived_artifacts") or ()), None)
    if row is None:
        return {}
    ple = locate(target_of(package, model_dir)[1], row["tensor_name"])
    path = within(os.path.normpath(model_dir), row["path"], f"derived artifact {row['path']}")
    command = derive_command(ple, checkout, path) if checkout else []
    there = os.path.isfile(path) and not table_fault(path, ple.bytes)
    return {**ple.as_dict(), "path": path, "there": there, "command": command}
