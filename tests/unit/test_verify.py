# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Digests, first bytes, stamps and the hasher that follows a writer."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _verify
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    Digest,
    Identity,
    Split,
    Stamp,
    all_stamps,
    hash_file,
    head_fault,
    read_stamp,
    stamp_path,
    write_stamp,
)

FULL = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    ("sha256", "prefix", "hex_", "is_prefix"),
    [
        (FULL, None, FULL, False),
        (FULL.upper(), "", FULL, False),
        (f" {FULL} ", None, FULL, False),
        (None, FULL[:8], FULL[:8], True),
        (None, FULL, FULL, False),
        (FULL, FULL[:12], FULL, False),
    ],
)
def test_declared_digest(sha256: str | None, prefix: str | None, hex_: str, is_prefix: bool) -> None:
    digest = Digest.declared("f", sha256, prefix)
    assert (digest.hex, digest.is_prefix, digest.matches(FULL)) == (hex_, is_prefix, True)
    assert not digest.matches("0" * 64)
    assert str(digest).endswith("...") is is_prefix


@pytest.mark.parametrize(
    ("sha256", "prefix", "says"),
    [
        (None, None, "declares no digest"),
        ("", "", "declares no digest"),
        (FULL[:63], None, "64 hexadecimal digits"),
        ("g" * 64, None, "64 hexadecimal digits"),
        (None, FULL[:7], "8 to 64"),
        (None, "nothexad", "8 to 64"),
        (FULL, "00000000", "contradict"),
    ],
)
def test_malformed_digest_is_refused(sha256: str | None, prefix: str | None, says: str) -> None:
    with pytest.raises(FleetError, match=says) as refusal:
        Digest.declared("payload p: file 'f'", sha256, prefix)
    assert "payload p: file 'f'" in refusal.value.message


@pytest.mark.parametrize(
    ("name", "head", "fault"),
    [
        ("m.gguf", b"GGUF\x03\0\0\0", None),
        ("m.gguf", b"<!DOCTYPE html><html>", "HTML"),
        ("m.bin", b"\n  <HTML lang=en>", "HTML"),
        ("m.bin", b"\xef\xbb\xbf<html>", "HTML"),
        ("m.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:", "LFS"),
        ("m.gguf", b'{"error":"gone"}', "no GGUF"),
        ("M.GGUF", b"FUGG", "no GGUF"),
        ("m.gguf", b"", "no GGUF"),
        ("m.bin", b"anything", None),
        ("m.bin", b"", None),
    ],
)
def test_head_fault(name: str, head: bytes, fault: str | None) -> None:
    found = head_fault(name, head)
    assert found is None if fault is None else fault in (found or "")


def test_hash_file_counts_and_identifies(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(3 * _verify.BLOCK + 7))
    counts: list[int] = []
    digest, identity = hash_file(str(path), counts.append)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert counts[-1] == path.stat().st_size
    assert identity == Identity.of(path.stat())


def test_hash_file_refuses_a_moving_target(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(2 * _verify.BLOCK))
    with pytest.raises(FleetError, match="changed while it was read"):
        hash_file(str(path), lambda _: os.utime(path))


def test_hash_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="symbolic link"):
        hash_file(str(tmp_path / "link"))


def test_stamp_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    stamps = tmp_path / "stamps"
    assert read_stamp(str(stamps), str(path)) is None
    write_stamp(str(stamps), str(path), FULL, Identity.of(path.stat()))
    stamp = read_stamp(str(stamps), str(path))
    assert stamp is not None
    assert (stamp.sha256, stamp.identity) == (FULL, Identity.of(path.stat()))


def test_ctime_betrays_a_change_of_same_size_and_mtime(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"good")
    before = path.stat()
    path.write_bytes(b"evil")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert Identity.of(path.stat()) != Identity.of(before)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"path": "/p"}',
        b"\xff\xfe",
        b'{"path":"/p","sha256":"x","identity":{},"verified_at":1}',
    ],
)
def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, text: bytes) -> None:
    Path(stamp_path(str(tmp_path), "/p")).write_bytes(text)
    assert read_stamp(str(tmp_path), "/p") is None


@pytest.mark.parametrize("split", [None, Split(0, 1, None, 0), Split(5, 6, 900, 150)])
def test_a_stamp_remembers_the_header(tmp_path: Path, split: Split | None) -> None:
    write_stamp(str(tmp_path), "/p", FULL, Identity(1, 2, 3, 4, 5), 6.0, "chat", split)
    assert read_stamp(str(tmp_path), "/p") == Stamp("/p", FULL, Identity(1, 2, 3, 4, 5), 6.0, "chat", split)


def test_a_stamp_speaks_for_its_own_path_only(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    write_stamp(str(tmp_path), str(path), FULL, Identity.of(path.stat()))
    os.rename(stamp_path(str(tmp_path), str(path)), stamp_path(str(tmp_path), "/other/f"))
    assert read_stamp(str(tmp_path), "/other/f") is None


def test_two_files_of_one_name_have_two_stamps(tmp_path: Path) -> None:
    assert stamp_path(str(tmp_path), "/a/f") != stamp_path(str(tmp_path), "/b/f")


def test_all_stamps_are_those_that_lie_in_their_place(tmp_path: Path) -> None:
    assert all_stamps(str(tmp_path / "absent")) == []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
        write_stamp(str(tmp_path / "stamps"), str(tmp_path / name), FULL, Identity.of((tmp_path / name).stat()))
    (tmp_path / "stamps" / "broken.json").write_text("{")
    (tmp_path / "stamps" / "notes.txt").write_text("")
    stamp = Path(stamp_path(str(tmp_path / "stamps"), str(tmp_path / "b")))
    stamp.rename(stamp.with_name("moved.json"))
    assert [stamp.path for stamp in all_stamps(str(tmp_path / "stamps"))] == [str(tmp_path / "a")]
