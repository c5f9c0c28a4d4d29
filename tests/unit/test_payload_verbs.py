# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload verified and left alone, a payload removed, and the shards of a split model as a set."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _payload_absent,
    _payload_facts,
    _payload_read,
    _payload_set,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_absent import absent
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_set import check_names
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_verified import verified
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, write_stamp
from ggufwriter import ARCH, I32, U16, T, gguf

BODIES = {"a.gguf": b"GGUF" + b"a" * 1000, "b.gguf": b"GGUF" + b"b" * 2000, "c.gguf": b"GGUF" + b"c" * 3000}


def spec(root: Path, bodies: dict[str, bytes], **other: Any) -> PayloadSpec:
    """A payload whose sources lie in ``root/source``."""
    source = root / "source"
    source.mkdir(exist_ok=True)
    files = []
    for name, body in bodies.items():
        (source / name).write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        files.append({"name": name, "bytes": len(body), "sha256": digest, "urls": [(source / name).as_uri()]})
    params = {
        "name": "p", "dir": str(root / "p"), "files": files, "mode": "0644",
        "stamp_dir": str(root / "state" / "payloads"), "verify": "full",
    }  # fmt: skip
    return PayloadSpec.from_params(params | other)


def fetch(wanted: PayloadSpec) -> None:
    ensure(wanted, check_mode=False, progress=Progress(None))


def everything(root: Path) -> dict[str, Any]:
    seen = {}
    for path in sorted(root.rglob("*")):
        state = path.lstat()
        seen[str(path)] = (state.st_ino, state.st_mtime_ns, path.read_bytes() if path.is_file() else None)
    return seen


class TestVerified:
    def test_whole(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        before = everything(tmp_path)
        result = verified(wanted, progress=Progress(None))
        assert (result["changed"], result["work"], result["warnings"]) == (False, True, [])
        assert [(file["name"], file["action"]) for file in result["files"]] == [(name, "hashed") for name in BODIES]
        assert everything(tmp_path) == before

    def test_a_lie_under_a_fitting_stamp_costs_a_read_to_find(self, tmp_path: Path) -> None:
        """A stamp is trusted where that is asked for; then nothing is read and nothing is work."""
        wanted = spec(tmp_path, BODIES, verify="stamp")
        fetch(wanted)
        assert verified(wanted, progress=Progress(None))["work"] is False

    @pytest.mark.parametrize("verify", ["full", "stamp"])
    def test_every_lie_is_told_and_nothing_is_written(self, tmp_path: Path, verify: str) -> None:
        wanted = spec(tmp_path, BODIES, verify=verify)
        fetch(wanted)
        (tmp_path / "p" / "a.gguf").unlink()
        (tmp_path / "p" / "b.gguf").write_bytes(BODIES["b.gguf"][:-1])
        (tmp_path / "p" / "c.gguf").write_bytes(BODIES["c.gguf"][:-1] + b"X")
        before = everything(tmp_path)
        assert verified(wanted, progress=Progress(None), plan_only=True)["work"]
        with pytest.raises(FleetError) as caught:
            verified(wanted, progress=Progress(None))
        assert everything(tmp_path) == before
        error = caught.value
        assert "3 of 3 files" in error.what
        found = {Path(lie["path"]).name: lie["found"] for lie in error.facts["lies"]}
        wrong = hashlib.sha256(BODIES["c.gguf"][:-1] + b"X").hexdigest()
        assert found == {
            "a.gguf": "no such file",
            "b.gguf": "2003 bytes instead of 2004",
            "c.gguf": f"sha256 {wrong} instead of {hashlib.sha256(BODIES['c.gguf']).hexdigest()}",
        }
        for name in BODIES:
            assert name in str(error.expected) and name in str(error.found)

    @pytest.mark.parametrize("unreadable", ["read", "stamp"])
    def test_what_cannot_be_read_hides_no_other_lie(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
    ) -> None:
        bodies = {**BODIES, "d.gguf": b"GGUF" + b"d" * 4000, "e.gguf": b"GGUF" + b"e" * 500, **shards(total=3)}
        wanted = spec(tmp_path, bodies)
        for name, body in bodies.items():
            (tmp_path / "p").mkdir(exist_ok=True)
            (tmp_path / "p" / name).write_bytes(body)
        place = tmp_path / "p"
        (place / "a.gguf").unlink()
        (place / "b.gguf").unlink()
        (place / "b.gguf").symlink_to(tmp_path / "source" / "b.gguf")
        flipped = BODIES["c.gguf"][:-1] + b"X"
        (place / "c.gguf").write_bytes(flipped)

        def bad_sector(path: str, *given: Any) -> Any:
            if path.endswith("d.gguf"):
                raise OSError(errno.EIO, "Input/output error")
            return real(path, *given)

        def bad_stamp(folder: str, path: str) -> Any:
            if path.endswith("d.gguf"):
                raise OSError(errno.EIO, "Input/output error", f"{folder}/stamp")
            return real(folder, path)

        if unreadable == "read":
            real = _payload_read.hash_file
            monkeypatch.setattr(_payload_read, "hash_file", bad_sector)
        else:
            real = _payload_facts.read_stamp
            monkeypatch.setattr(_payload_facts, "read_stamp", bad_stamp)
        before = everything(tmp_path)
        with pytest.raises(FleetError) as caught:
            verified(wanted, progress=Progress(None))
        assert everything(tmp_path) == before
        assert "5 of 7 files are not the declared ones" in caught.value.what
        found = {Path(lie["path"]).name: lie["found"] for lie in caught.value.facts["lies"]}
        assert list(found) == ["a.gguf", "b.gguf", "c.gguf", "d.gguf", SECOND]
        assert found["a.gguf"] == "no such file"
        assert "a symbolic link" in found["b.gguf"]
        assert found["c.gguf"].startswith(f"sha256 {hashlib.sha256(flipped).hexdigest()} instead of")
        assert "Input/output error" in found["d.gguf"]
        assert "do not add up" in found[SECOND]

    def test_a_read_that_fails_in_a_run_names_its_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def bad_sector(path: str, *given: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error")

        wanted = spec(tmp_path, {"a.gguf": BODIES["a.gguf"]})
        fetch(wanted)
        monkeypatch.setattr(_payload_read, "hash_file", bad_sector)
        with pytest.raises(FleetError, match=r"p/a\.gguf cannot be read; .*Input/output error"):
            fetch(wanted)

    def test_what_is_seen_without_a_read_is_told_by_the_plan(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, BODIES, verify="stamp")
        fetch(wanted)
        (tmp_path / "p" / "a.gguf").unlink()
        with pytest.raises(FleetError, match="1 of 3 files"):
            verified(wanted, progress=Progress(None), plan_only=True)

    def test_a_wrong_mode_is_a_warning(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        (tmp_path / "p" / "b.gguf").chmod(0o600)
        result = verified(wanted, progress=Progress(None))
        assert result["warnings"] == [f"{tmp_path}/p/b.gguf: mode or owner is not as declared"]
        assert (tmp_path / "p" / "b.gguf").stat().st_mode & 0o777 == 0o600


class TestAbsent:
    def test_the_declared_files_go_and_what_belongs_to_them(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        folder = tmp_path / "p"
        digest = "0" * 12
        mine = ["a.gguf.rejected-" + digest, "b.gguf.replaced-" + digest, ".c.gguf.part", ".c.gguf.part.journal"]
        for name in mine:
            (folder / name).write_bytes(b"x")
        assert absent(wanted, str(tmp_path / "state"), dry=True)["removed"] == sorted(
            str(folder / name) for name in [*BODIES, *mine]
        )
        assert len(list(folder.iterdir())) == len(BODIES) + len(mine) + 1
        result = absent(wanted, str(tmp_path / "state"), dry=False)
        assert result["changed"] and len(result["removed"]) == len(BODIES) + len(mine)
        assert not folder.exists()
        assert list((tmp_path / "state" / "payloads").iterdir()) == []
        again = absent(wanted, str(tmp_path / "state"), dry=False)
        assert (again["changed"], again["removed"]) == (False, [])
        assert (tmp_path / "source" / "a.gguf").exists()

    def test_what_is_not_declared_stays(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        for name in ("notes.txt", "a.gguf.bak", "xa.gguf"):
            (tmp_path / "p" / name).write_bytes(b"mine")
        absent(wanted, str(tmp_path / "state"), dry=False)
        assert {path.name for path in (tmp_path / "p").iterdir()} == {
            ".payload.lock",
            "notes.txt",
            "a.gguf.bak",
            "xa.gguf",
        }

    def test_a_file_that_an_era_names_keeps_them_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        before = everything(tmp_path)
        monkeypatch.setattr(_payload_absent, "referenced_files", lambda folder: {f"{tmp_path}/p/b.gguf", folder})
        for dry in (True, False):
            with pytest.raises(FleetError, match="an era on this host still needs 1") as caught:
                absent(wanted, str(tmp_path / "state"), dry=dry)
            assert str(caught.value.found) == f"{tmp_path}/p/b.gguf"
        assert everything(tmp_path) == before

    def test_a_folder_where_another_run_is_at_work_by_now_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        real = os.unlink

        def unlink(path: str) -> None:
            real(path)
            if path.endswith(".payload.lock"):
                Path(path).touch()  # one that waited has made it anew

        monkeypatch.setattr(_payload_absent.os, "unlink", unlink)
        assert absent(wanted, str(tmp_path / "state"), dry=False)["changed"]
        assert [path.name for path in (tmp_path / "p").iterdir()] == [".payload.lock"]

    def test_a_copy_kept_aside_that_an_era_names_keeps_them_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = spec(tmp_path, BODIES)
        fetch(wanted)
        (tmp_path / "p" / "b.gguf").unlink()
        kept = tmp_path / "p" / ("b.gguf.replaced-" + "1" * 12)
        for copy in (kept, tmp_path / "p" / ("b.gguf.replaced-" + "2" * 12)):
            copy.write_bytes(b"x")
        eras = {f"{tmp_path}/p/b.gguf": {"1" * 64}}
        monkeypatch.setattr(_payload_absent, "referenced_digests", lambda folder: eras)
        with pytest.raises(FleetError, match="an era on this host still needs 1") as caught:
            absent(wanted, str(tmp_path / "state"), dry=False)
        assert str(caught.value.found) == str(kept)


FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"


def shards(total: int = 2, tensor: str = "t1") -> dict[str, bytes]:
    """A split model of two files; ``tensor`` is that of the second."""
    return {
        f"m-{index + 1:05d}-of-00002.gguf": gguf(
            [ARCH, ("split.no", U16, index), ("split.count", U16, 2), ("split.tensors.count", I32, total)],
            [T(tensor if index else "t0")],
        )
        for index in range(2)
    }


class TestSet:
    @pytest.mark.parametrize(
        ("names", "found"),
        [
            (["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], "without m-00002-of-00003.gguf"),
            (["m-00002-of-00002.gguf"], "without m-00001-of-00002.gguf"),
            (["m-00001-of-00001.gguf", "m-00002-of-00001.gguf"], "with a stray m-00002-of-00001.gguf"),
            (["m-00000-of-00006.gguf"], "m-00001-of-00006.gguf, m-00002-of-00006.gguf, m-00003-of-00006.gguf, m-00004"),
        ],
    )
    def test_names_that_are_no_whole_set(self, names: list[str], found: str) -> None:
        with pytest.raises(FleetError) as caught:
            check_names("payload p", names)
        assert found in str(caught.value.found)

    @pytest.mark.parametrize(
        "names",
        [
            ["m.gguf"],
            ["m-00001-of-00001.gguf"],
            ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "n-00001-of-00001.gguf", "m-1-of-2.gguf"],
        ],
    )
    def test_whole_sets(self, names: list[str]) -> None:
        check_names("payload p", names)

    def test_the_declaration_is_held_against_it_before_anything_is_done(self, tmp_path: Path) -> None:
        with pytest.raises(FleetError, match="payload p does not declare the whole"):
            spec(tmp_path, {"m-00001-of-00002.gguf": b"GGUF"})

    def test_shards_that_belong_together(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, shards())
        fetch(wanted)
        verified(wanted, progress=Progress(None))

    @pytest.mark.parametrize(
        ("bodies", "words"),
        [
            (shards(total=3), "do not add up"),
            (dict(zip(shards(), [shards()[FIRST], shards(total=3)[SECOND]], strict=True)), "of another set"),
            (dict(zip(shards(), reversed(shards().values()), strict=True)), "another shard than its name says"),
            (dict.fromkeys(shards(), shards()[FIRST]), "another shard than its name says"),
            ({FIRST: gguf([ARCH]), SECOND: shards()[SECOND]}, "of another set"),
            ({FIRST: shards()[FIRST], SECOND: gguf([ARCH])}, "of another set"),
            ({FIRST: shards()[FIRST], SECOND: b"GGUF, or so it says, and no more"}, "is GGUF version"),
            ({FIRST: shards()[FIRST], SECOND: shards(tensor="t0")[SECOND]}, "stands in two shards"),
            ({"m.gguf": shards()[FIRST]}, "is one shard of a split model"),
            ({"m.gguf": shards()[SECOND]}, "is one shard of a split model"),
            ({"m-00001-of-00001.gguf": shards()[FIRST]}, "is one shard of a split model"),
            ({"m.gguf": gguf([("split.count", U16, 6)])}, "is one shard of a split model"),
        ],
    )
    @pytest.mark.parametrize("there", [False, True], ids=["fetched", "in place"])
    def test_shards_that_do_not(self, tmp_path: Path, bodies: dict[str, bytes], words: str, there: bool) -> None:
        """Red each time, and what does not belong gets no final name and no stamp."""
        wanted = spec(tmp_path, bodies, verify="stamp")
        if there:
            (tmp_path / "p").mkdir()
            for name, body in bodies.items():
                (tmp_path / "p" / name).write_bytes(body)
        for _run in range(3):
            with pytest.raises(FleetError, match=words):
                fetch(wanted)
            names = {path.name for path in (tmp_path / "p").iterdir()} & set(bodies)
            assert names == set(bodies) if there else len(names) < len(bodies)
            stamps = tmp_path / "state" / "payloads"
            assert not stamps.is_dir() or len(list(stamps.iterdir())) < len(bodies)
        for name, body in bodies.items():
            (tmp_path / "p" / name).write_bytes(body)
        with pytest.raises(FleetError, match=words):
            verified(wanted, progress=Progress(None))
        with pytest.raises(FleetError, match=words):
            ensure(wanted, check_mode=True, progress=Progress(None))

    def test_stamps_do_not_make_shards_belong_together(self, tmp_path: Path) -> None:
        """As a version stamped them that held them against each other too late."""
        bodies = shards(total=3)
        wanted = spec(tmp_path, bodies, verify="stamp")
        (tmp_path / "p").mkdir()
        for name, body in bodies.items():
            path = tmp_path / "p" / name
            path.write_bytes(body)
            path.chmod(0o644)
            write_stamp(wanted.stamp_dir, str(path), hashlib.sha256(body).hexdigest(), Identity.of(path.stat()))
        for plan_only in (True, False):
            with pytest.raises(FleetError, match="do not add up"):
                ensure(wanted, check_mode=False, plan_only=plan_only, progress=Progress(None))
            with pytest.raises(FleetError, match="do not add up"):
                verified(wanted, progress=Progress(None), plan_only=plan_only)

    def test_a_converged_set_is_not_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = spec(tmp_path, {**shards(), "d.gguf": gguf([ARCH])}, verify="stamp")
        fetch(wanted)
        monkeypatch.setattr(_payload_set, "open_bytes", None)
        assert ensure(wanted, check_mode=False, progress=Progress(None))["changed"] is False

    def test_one_piece_whose_header_nobody_can_read_is_what_its_digest_says(self, tmp_path: Path) -> None:
        wanted = spec(tmp_path, {"m.gguf": b"GGUF, of version 99", "m.bin": shards()[FIRST]})
        fetch(wanted)
        verified(wanted, progress=Progress(None))
