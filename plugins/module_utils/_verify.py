# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proof that a file is the declared one: digests, what the first bytes betray, and stamps of past proofs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional

__all__ = [
    "BLOCK",
    "HEAD",
    "Digest",
    "Identity",
    "Split",
    "Stamp",
    "all_stamps",
    "hash_file",
    "head_fault",
    "read_stamp",
    "stamp_path",
    "write_stamp",
]

BLOCK = 1 << 20  # bytes read at once
HEAD = 512  # bytes that head_fault looks at
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Digest:
    """A declared sha256: all 64 hexadecimal digits, or the first 8 to 63 where no more is known."""

    hex: str

    @classmethod
    def declared(cls, what: str, sha256: str | None, prefix: str | None) -> Digest:
        """From an inventory entry named ``what``; raises FleetError unless one of the two is well-formed."""
        for key, given in (("sha256", sha256), ("sha256_prefix", prefix)):
            if not isinstance(given, str | None):
                raise FleetError(
                    f"{what}: {key} is no text",
                    expected="hexadecimal digits",
                    found=repr(given),
                    remedy="Put it in quotes: YAML reads bare decimal digits as a number",
                )
        full, start = (sha256 or "").strip().lower(), (prefix or "").strip().lower()
        if not full and not start:
            raise FleetError(
                f"{what} declares no digest",
                expected="sha256 (64 hexadecimal digits) or sha256_prefix (at least 8)",
                found="neither",
                remedy="Add the digest that the publisher states; a file is never taken on its name and length alone",
            )
        if full and (len(full) != 64 or not _HEX.fullmatch(full)):
            raise FleetError(f"{what}: sha256 is malformed", expected="64 hexadecimal digits", found=repr(sha256))
        if start and (not 8 <= len(start) <= 64 or not _HEX.fullmatch(start)):
            raise FleetError(
                f"{what}: sha256_prefix is malformed", expected="8 to 64 hexadecimal digits", found=repr(prefix)
            )
        if full and not full.startswith(start):
            raise FleetError(
                f"{what}: sha256 and sha256_prefix contradict each other",
                expected=f"a sha256 that begins with {start}",
                found=full,
                remedy="Remove the one that is wrong",
            )
        return cls(full or start)

    @property
    def is_prefix(self) -> bool:
        """Whether only the beginning is declared."""
        return len(self.hex) < 64

    def matches(self, found: str) -> bool:
        """Whether the full digest ``found`` is the declared one."""
        return found.startswith(self.hex)

    def __str__(self) -> str:
        return self.hex + ("..." if self.is_prefix else "")


@dataclass(frozen=True)
class Identity:
    """What the kernel says of a file without reading it; any change to its bytes moves at least ``ctime_ns``."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def same_content(self, other: Identity) -> bool:
        """Equal but for ctime, which a rename, a link or a change of owner moves too, or but for the device's number,
        which the kernel may give anew at each boot or mount (btrfs, overlay, NFS, a disk found in another order)."""
        alike = (self.inode, self.bytes, self.mtime_ns) == (other.inode, other.bytes, other.mtime_ns)
        return alike and (self.device == other.device or self.ctime_ns == other.ctime_ns)


@dataclass(frozen=True)
class Split:
    """What a GGUF header says of the set that its file belongs to: its ``number`` (from 0) of ``count`` files, the
    ``total`` of all their tensors (None where it does not tell), and the ``tensors`` in this file."""

    number: int
    count: int
    total: int | None
    tensors: int


@dataclass(frozen=True)
class Stamp:
    """The record of one full read of a file: its digest, what the file was then, and when (seconds since 1970).

    ``payload`` names whom the file belongs to, for people; stamps of older versions do not tell. ``split``: of a GGUF
    file, so that a converged host need not walk through a vocabulary; None where it was not read.
    """

    path: str
    sha256: str
    identity: Identity
    verified_at: float
    payload: str = ""
    split: Split | None = None


def stamp_path(stamp_dir: str, path: str) -> str:
    """Where the stamp of the file ``path`` lies: its name for people, a hash of the whole path for uniqueness."""
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(stamp_dir, f"{os.path.basename(path)}.{key}.json")


def read_stamp(stamp_dir: str, path: str) -> Stamp | None:
    """The stamp of ``path``, or None where there is none that can be understood (the file is then hashed again)."""
    data = read_optional(stamp_path(stamp_dir, path))
    if data is None:
        return None
    stamp = _parse_stamp(data)
    return stamp if stamp is not None and stamp.path == path else None


def _parse_stamp(data: bytes) -> Stamp | None:
    try:
        value: Any = json.loads(data)
        identity = Identity(**{key: int(value["identity"][key]) for key in Identity.__dataclass_fields__})
        payload = str(value.get("payload", ""))
        split = _parse_split(value.get("split"))
        stamp = Stamp(str(value["path"]), str(value["sha256"]), identity, float(value["verified_at"]), payload, split)
    except (ValueError, KeyError, TypeError):
        return None
    return stamp if len(stamp.sha256) == 64 and _HEX.fullmatch(stamp.sha256) else None


def _parse_split(value: Any) -> Split | None:
    if value is None:
        return None
    total = None if value["total"] is None else int(value["total"])
    return Split(int(value["number"]), int(value["count"]), total, int(value["tensors"]))


def all_stamps(stamp_dir: str) -> list[Stamp]:
    """Every stamp that can be understood and lies where that of its path belongs, whether it still fits or not."""
    stamps = []
    for name in sorted(os.listdir(stamp_dir)) if os.path.isdir(stamp_dir) else []:
        data = read_optional(os.path.join(stamp_dir, name)) if name.endswith(".json") else None
        stamp = None if data is None else _parse_stamp(data)
        if stamp is not None and stamp_path(stamp_dir, stamp.path) == os.path.join(stamp_dir, name):
            stamps.append(stamp)
    return stamps


def write_stamp(
    stamp_dir: str,
    path: str,
    sha256: str,
    identity: Identity,
    verified_at: float | None = None,
    payload: str = "",
    split: Split | None = None,
) -> None:
    """Record that ``path``, while it was ``identity``, was read in full and had the digest ``sha256``."""
    stamp = Stamp(path, sha256, identity, time.time() if verified_at is None else verified_at, payload, split)
    make_dirs(stamp_dir)
    atomic_write(stamp_path(stamp_dir, path), json.dumps(asdict(stamp), indent=2).encode() + b"\n")


def head_fault(name: str, head: bytes) -> str | None:
    """What is wrong with a file called ``name`` that begins with ``head`` (its first bytes), or None.

    Finds the error page saved as a model and the pointer that stands for a large file in a git repository.
    """
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a git LFS pointer (a few lines of text that stand for the file)"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if name.lower().endswith(".gguf") and head[:4] != b"GGUF":
        return f"no GGUF file: it begins with {head[:4]!r} where b'GGUF' belongs"
    return None


def hash_file(path: str, on_bytes: Callable[[int], None] | None = None) -> tuple[str, Identity]:
    """The sha256 of a regular file and what the file was while it was read; ``on_bytes`` gets the count so far.

    A file that changes under the reader is a FleetError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        before = Identity.of(os.fstat(fd))
        digest, buffer, position = hashlib.sha256(), memoryview(bytearray(BLOCK)), 0
        while count := os.readv(fd, [buffer]):
            digest.update(buffer[:count])
            position += count
            if on_bytes is not None:
                on_bytes(position)
        if Identity.of(os.fstat(fd)) != before:
            raise FleetError(
                f"{path} changed while it was read",
                expected="a file that nobody writes",
                remedy="Stop what writes to it, then run again",
            )
        return digest.hexdigest(), before
    finally:
        os.close(fd)
