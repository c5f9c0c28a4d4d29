# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An era's payload files get their names again from what was kept aside; real files and stamps."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _own_files, _payload_back, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths, redraw
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._own_files import own_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_back import other_files, put_back
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import LOCK
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, read_stamp, write_stamp
from test_truth import STATE


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


OLD, NEW = sha(b"old"), sha(b"new")


@dataclass
class Folder:
    """A payload of one file that the role has replaced, the old one kept aside."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "m.gguf"

    @property
    def stamps(self) -> str:
        return str(self.root / "stamps")

    def kept(self, digest: str) -> Path:
        return self.root / f"m.gguf.replaced-{digest[:12]}"

    def stamp(self, path: Path, digest: str) -> None:
        write_stamp(self.stamps, str(path), digest, Identity.of(path.stat()), payload="smol")

    def facts(self, digest: str | None = OLD) -> dict[str, Any]:
        return {"payload": {"files": [{"path": str(self.model), "role": "model", "sha256": digest}]}}

    def proven(self, path: Path) -> str | None:
        """The digest of a stamp that fits."""
        stamp = read_stamp(self.stamps, str(path))
        return stamp.sha256 if stamp is not None and stamp.identity == Identity.of(path.stat()) else None


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    here = Folder(tmp_path)
    here.kept(OLD).write_bytes(b"old")
    here.model.write_bytes(b"new")
    here.stamp(here.model, NEW)
    return here


def test_the_files_change_their_names(folder: Folder) -> None:
    inodes = folder.kept(OLD).stat().st_ino, folder.model.stat().st_ino
    assert put_back(folder.facts(), folder.stamps) == [str(folder.model)]
    assert (folder.model.read_bytes(), folder.kept(NEW).read_bytes()) == (b"old", b"new")
    assert (folder.model.stat().st_ino, folder.kept(NEW).stat().st_ino) == inodes
    assert not folder.kept(OLD).exists()
    assert (folder.proven(folder.model), folder.proven(folder.kept(NEW))) == (OLD, NEW)
    stamp = read_stamp(folder.stamps, str(folder.model))
    assert stamp is not None and stamp.payload == "smol"
    assert put_back(folder.facts(), folder.stamps) == []  # it is the era's now
    assert put_back(folder.facts(NEW), folder.stamps) == [str(folder.model)]  # and there again
    assert (folder.model.read_bytes(), folder.kept(OLD).read_bytes()) == (b"new", b"old")
    assert sorted(os.listdir(folder.root)) == [LOCK, "m.gguf", folder.kept(OLD).name, "stamps"]


def test_who_has_the_other_file_mapped_keeps_it(folder: Folder) -> None:
    with folder.model.open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        put_back(folder.facts(), folder.stamps)
        assert mapped[:] == b"new"


@pytest.mark.parametrize("digest", [OLD[:8], OLD[:12], OLD[:40], OLD])
def test_the_beginning_of_a_digest_is_enough(folder: Folder, digest: str) -> None:
    assert put_back(folder.facts(digest), folder.stamps) == [str(folder.model)]
    assert folder.proven(folder.model) == OLD


def test_two_copies_that_may_be_meant_are_none(folder: Folder) -> None:
    (folder.root / f"m.gguf.replaced-{OLD[:8]}0000").write_bytes(b"?")
    assert other_files(folder.facts(OLD[:8]), folder.stamps)[0].copy is None
    assert other_files(folder.facts(OLD), folder.stamps)[0].copy == str(folder.kept(OLD))


def test_what_is_kept_is_told(folder: Folder) -> None:
    folder.kept(OLD).unlink()
    with pytest.raises(FleetError, match="is not kept beside it") as caught:
        put_back(folder.facts(), folder.stamps)
    assert (str(caught.value.found), caught.value.facts) == (f"sha256 {NEW}", {})
    assert f"m.gguf.replaced-{OLD[:12]}" in str(caught.value.expected)


def test_a_copy_that_is_not_what_its_name_says_is_never_given_the_name(folder: Folder) -> None:
    folder.kept(OLD).write_bytes(b"odd")
    with pytest.raises(FleetError, match="is not what its name says"):
        put_back(folder.facts(), folder.stamps)
    assert (folder.model.read_bytes(), folder.kept(NEW).exists()) == (b"new", False)


def test_nothing_is_renamed_unless_all_can_be(folder: Folder) -> None:
    other = folder.root / "z.gguf"
    other.write_bytes(b"new")
    folder.stamp(other, NEW)
    facts = folder.facts()
    facts["payload"]["files"].append({"path": str(other), "role": "mmproj", "sha256": OLD})
    with pytest.raises(FleetError, match=r"z\.gguf is another file"):
        put_back(facts, folder.stamps)
    assert folder.model.read_bytes() == b"new"


@pytest.mark.parametrize("digest", [None, NEW, NEW[:8]])
def test_files_that_are_the_eras_are_left_alone(folder: Folder, digest: str | None) -> None:
    assert put_back(folder.facts(digest), folder.stamps) == []
    folder.model.unlink()
    assert put_back(folder.facts(), folder.stamps) == []  # not there: the launcher says so


def test_a_file_without_a_stamp_is_read_only_where_it_must_be(folder: Folder) -> None:
    os.unlink(_payload_back.stamp_path(folder.stamps, str(folder.model)))
    assert other_files(folder.facts(), folder.stamps) == []
    found = other_files(folder.facts(), folder.stamps, thorough=True)
    assert [(other.found, other.copy) for other in found] == [(NEW, str(folder.kept(OLD)))]


def test_a_run_that_was_killed_before_its_stamps(folder: Folder) -> None:
    os.link(folder.model, folder.kept(NEW))
    assert put_back(folder.facts(), folder.stamps) == [str(folder.model)]  # killed between link and rename
    folder.stamp(folder.kept(NEW), NEW)
    stamp = read_stamp(folder.stamps, str(folder.kept(NEW)))
    assert stamp is not None
    write_stamp(folder.stamps, str(folder.model), NEW, stamp.identity)  # killed between rename and stamp
    assert other_files(folder.facts(), folder.stamps) == []
    assert folder.model.read_bytes() == b"old"


def test_other_names_of_the_files_keep_their_proof(folder: Folder) -> None:
    twin = folder.root / "twin.gguf"
    os.link(folder.model, twin)
    folder.stamp(folder.model, NEW)
    folder.stamp(twin, NEW)
    put_back(folder.facts(), folder.stamps)
    assert folder.proven(twin) == NEW


def test_a_run_of_the_payload_is_waited_for(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payload_back, "_LOCK_WAIT_S", 0.0)
    with (
        file_lock(str(folder.root / LOCK), wait_s=0, purpose="payload smol"),
        pytest.raises(FleetError, match="another run is at work"),
    ):
        put_back(folder.facts(), folder.stamps)
    assert folder.model.read_bytes() == b"new"


def test_what_changes_meanwhile_is_not_renamed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _payload_back.file_lock

    def late(*args: Any, **options: Any) -> Any:
        folder.model.write_bytes(b"newer")
        return real(*args, **options)

    monkeypatch.setattr(_payload_back, "file_lock", late)
    with pytest.raises(FleetError, match=r"m\.gguf changed while"):
        put_back(folder.facts(), folder.stamps)
    assert folder.model.read_bytes() == b"newer"


def test_an_era_is_drawn_again_where_its_file_is_kept(folder: Folder, blueprint: Callable[..., Blueprint]) -> None:
    plan = replace(blueprint(argv=["x"], **folder.facts()), launcher_text="echo x\n")
    era = Era("e1", "", plan, {"state": "certified", "digest": plan.digest})
    assert redraw(era, folder.stamps) == plan
    assert folder.model.read_bytes() == b"new"  # a look changes nothing
    folder.kept(OLD).unlink()
    with pytest.raises(FleetError, match=r"era e1 cannot be restored: .*m\.gguf is another file now"):
        redraw(era, folder.stamps)


@pytest.mark.parametrize(
    ("proven", "pid", "name", "refused"),
    [
        (NEW, 7, "other", True),
        (NEW[:8], 7, "other", True),
        (NEW, 0, "other", False),  # it does not serve
        (OLD, 7, "other", False),
        (NEW, 7, "rival", False),  # it makes way
    ],
)
def test_what_another_endpoint_serves_is_not_taken_from_it(
    folder: Folder,
    blueprint: Callable[..., Blueprint],
    monkeypatch: pytest.MonkeyPatch,
    proven: str,
    pid: int,
    name: str,
    refused: bool,
) -> None:
    paths = Paths("chat", state=str(folder.root / "state"))
    store = EraStore(replace(paths, endpoint=name).store)
    store.commit(store.stage(blueprint(**folder.facts(proven))), {})
    folder = replace(folder)
    write_stamp(paths.stamps, str(folder.model), NEW, Identity.of(folder.model.stat()))
    monkeypatch.setattr(_systemd, "show", lambda _unit: replace(STATE, main_pid=pid))
    rivals = [replace(paths, endpoint="rival")]
    if refused:
        with pytest.raises(FleetError, match="endpoint other serves it"):
            own_files(folder.facts(), paths, rivals)
    else:
        assert own_files(folder.facts(), paths, rivals) == [str(folder.model)]
    assert folder.model.read_bytes() == (b"new" if refused else b"old")
    assert _own_files.own_files(folder.facts(None), paths) == []
