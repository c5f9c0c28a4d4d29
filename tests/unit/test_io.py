# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing files so that no kill leaves half of one, and locks between processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _io
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from hypothesis import given
from hypothesis import strategies as st


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("wanted", [0o600, 0o644, 0o755])
def test_atomic_write_sets_bytes_and_mode_whatever_the_umask(tmp_path: Path, wanted: int) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    old_umask = os.umask(0o077)
    try:
        _io.atomic_write(str(path), b"new", mode=wanted)
    finally:
        os.umask(old_umask)
    assert path.read_bytes() == b"new"
    assert mode(path) == wanted
    assert os.listdir(tmp_path) == ["f"]


def test_atomic_write_gives_the_file_its_owner(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may give a file away")
    path = tmp_path / "f"
    _io.atomic_write(str(path), b"x", uid=12, gid=34)
    assert (path.stat().st_uid, path.stat().st_gid) == (12, 34)


@pytest.mark.parametrize("step", ["fsync", "replace", "fchmod"])
def test_a_kill_in_atomic_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def killed(*_args: object, **_kw: object) -> None:
        raise KeyboardInterrupt(step)

    with monkeypatch.context() as patch:
        patch.setattr(os, step, killed)
        with pytest.raises(KeyboardInterrupt):
            _io.atomic_write(str(path), b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_data_is_synced_before_the_name_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        steps.append("fsync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync file")
        fsync(fd)

    def spy_replace(one: str, two: str) -> None:
        steps.append("replace")
        replace(one, two)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    _io.atomic_write(str(tmp_path / "f"), b"x")
    assert steps == ["fsync file", "replace", "fsync folder"]


@given(st.binary(max_size=200))
def test_read_optional_returns_what_was_written(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("io") / "f"
    assert _io.read_optional(str(path)) is None
    _io.atomic_write(str(path), data)
    assert _io.read_optional(str(path)) == data


def test_read_optional_raises_every_other_failure(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        _io.read_optional(str(tmp_path))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"{'a': 1}"])
def test_damaged_json_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(FleetError, match=r"x\.json is damaged") as caught:
        _io.read_json(str(path))
    assert f"{len(text)} bytes" in str(caught.value.found)


def test_json_is_read_and_absence_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert _io.read_json(str(path)) is None
    path.write_text('{"a": [1]}')
    assert _io.read_json(str(path)) == {"a": [1]}


def test_make_dirs_sets_the_mode_of_what_it_made_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    old_umask = os.umask(0o077)
    try:
        _io.make_dirs(str(tmp_path / "a" / "b"), mode=0o750)
    finally:
        os.umask(old_umask)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o750
    assert mode(tmp_path) == 0o711
    _io.make_dirs(str(tmp_path / "a"), mode=0o700)
    assert mode(tmp_path / "a") == 0o750


@pytest.mark.parametrize("kind", ["file", "dead link"])
def test_make_dirs_names_what_is_in_the_way(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "a").write_text("")
    else:
        (tmp_path / "a").symlink_to("nowhere")
    with pytest.raises(FleetError, match=f"{tmp_path}/a is in the way"):
        _io.make_dirs(str(tmp_path / "a" / "b"))


def test_atomic_link_replaces_a_link(tmp_path: Path) -> None:
    link = tmp_path / "current"
    for target in ("one", "two", "two"):
        _io.atomic_link(target, str(link))
        assert os.readlink(link) == target
    assert os.listdir(tmp_path) == ["current"]


def test_atomic_link_takes_the_place_of_its_own_leavings(tmp_path: Path) -> None:
    (tmp_path / f"current.{os.getpid()}.tmp").symlink_to("left by a killed run")
    _io.atomic_link("one", str(tmp_path / "current"))
    assert os.listdir(tmp_path) == ["current"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_atomic_link_never_replaces_a_file_or_folder(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "current"
    if kind == "file":
        there.write_text("precious")
    else:
        there.mkdir()
    with pytest.raises(FleetError, match="is in the way"):
        _io.atomic_link("one", str(there))
    assert there.exists() and not there.is_symlink()


def test_a_kill_in_atomic_link_leaves_the_old_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "current"
    _io.atomic_link("one", str(link))

    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            _io.atomic_link("two", str(link))
    assert os.readlink(link) == "one"
    assert os.listdir(tmp_path) == ["current"]
