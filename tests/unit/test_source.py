# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Source trees: loose pins are refused, what arrives is what was pinned."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._source import (
    obtain,
    parse_source,
    source_digest,
    tree_digest,
)

SHA = "a" * 64
QUIET = Progress(None)


def archive(path: Path, members: dict[str, str], **kind: Any) -> str:
    """Write a tar.gz of text members; returns its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            for key, value in kind.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, "source.kind"),
        ({"kind": "zip"}, "source.kind"),
        ({"kind": "archive", "sha256": SHA}, "source.urls"),
        ({"kind": "archive", "urls": ["ftp://x/y"], "sha256": SHA}, "source.urls"),
        ({"kind": "archive", "urls": ["file:///x"]}, "source.sha256"),
        ({"kind": "archive", "urls": ["file:///x"], "sha256": "abc"}, "source.sha256"),
        ({"kind": "git", "commit": "0" * 40}, "source.url"),
        ({"kind": "git", "url": "/x", "commit": "master"}, "source.commit"),
        ({"kind": "git", "url": "/x", "commit": "0" * 7}, "source.commit"),
        ({"kind": "path"}, "source.path"),
        ({"kind": "installed", "path": "here"}, "source.path"),
        ({"kind": "path", "path": "/x", "subdir": "a/../../b"}, "source.subdir"),
    ],
)
def test_a_loose_pin_is_refused_by_key(given: dict[str, Any], key: str) -> None:
    with pytest.raises(FleetError) as fault:
        parse_source("cpu", given)
    assert f"llm_runtimes.cpu.{key}" in fault.value.message


def test_archive_and_commit_are_digests_without_a_byte_read() -> None:
    pinned = parse_source("x", {"kind": "archive", "urls": ["file:///not/there"], "sha256": SHA.upper()})
    assert source_digest(pinned) == f"sha256:{SHA}"
    pinned = parse_source("x", {"kind": "git", "url": "/not/there", "commit": "0" * 40})
    assert source_digest(pinned) == "commit:" + "0" * 40


def test_the_second_mirror_serves_and_the_first_is_named(tmp_path: Path, served: Any) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {"top/CMakeLists.txt": "x", "top/sub/CMakeLists.txt": "y"})
    served.answers["/a.tar.gz"] = (200, (tmp_path / "a.tar.gz").read_bytes())
    served.answers["/page"] = (200, b"<html>sign in</html>")
    base = f"http://127.0.0.1:{served.port}"
    urls = ["file:///not/there", f"{base}/gone", f"{base}/page", f"{base}/a.tar.gz"]
    work, warnings = tmp_path / "work", list[str]()
    work.mkdir()
    source = parse_source("x", {"kind": "archive", "urls": urls, "sha256": sha256, "subdir": "sub"})
    folder = obtain(source, str(work), QUIET, warnings)
    assert folder == str(work / "src" / "top" / "sub")
    assert [warning.split(": ")[1] for warning in warnings] == urls[:3]
    # a second call uses what is there
    before = len(served.seen)
    assert obtain(source, str(work), QUIET, []) == folder
    assert len(served.seen) == before
    assert not (work / "archive").exists()


def test_a_wrong_sha256_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {"CMakeLists.txt": "x"})
    work = tmp_path / "work"
    work.mkdir()
    url = (tmp_path / "a.tar.gz").as_uri()
    source = parse_source("x", {"kind": "archive", "urls": [url], "sha256": SHA})
    with pytest.raises(FleetError) as fault:
        obtain(source, str(work), QUIET, [])
    assert SHA in fault.value.message and sha256 in fault.value.message and url in fault.value.message
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", {}),
        ("top/../../evil", {}),
        ("/abs", {}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "../../etc/passwd"}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "../x"}),
        ("device", {"type": tarfile.CHRTYPE}),
        ("pipe", {"type": tarfile.FIFOTYPE}),
    ],
)
def test_a_member_that_leaves_the_tree_is_refused(tmp_path: Path, name: str, kind: dict[str, Any]) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {name: ""}, **kind)
    work = tmp_path / "a" / "b" / "work"
    work.mkdir(parents=True)
    source = parse_source("x", {"kind": "archive", "urls": [(tmp_path / "a.tar.gz").as_uri()], "sha256": sha256})
    with pytest.raises(FleetError, match="not safe to unpack") as fault:
        obtain(source, str(work), QUIET, [])
    assert name in fault.value.message
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a.tar.gz", "archive", "b", "src.part", "work"]


def test_links_within_the_tree_are_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, text in (("CMakeLists.txt", "x"), ("sub/y", "y")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        info = tarfile.TarInfo("sub/link")
        info.type, info.linkname = tarfile.SYMTYPE, "../CMakeLists.txt"
        tar.addfile(info)
    (tmp_path / "work").mkdir()
    sha256 = hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    source = parse_source("x", {"kind": "archive", "urls": [(tmp_path / "a.tar").as_uri()], "sha256": sha256})
    folder = Path(obtain(source, str(tmp_path / "work"), QUIET, []))
    assert (folder / "sub" / "link").read_text() == "x"


@pytest.mark.parametrize("body", [b"no archive at all", b""])
def test_what_is_no_archive_says_so(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "a").write_bytes(body)
    (tmp_path / "work").mkdir()
    sha256 = hashlib.sha256(body).hexdigest()
    source = parse_source("x", {"kind": "archive", "urls": [(tmp_path / "a").as_uri()], "sha256": sha256})
    with pytest.raises(FleetError, match="does not unpack"):
        obtain(source, str(tmp_path / "work"), QUIET, [])


def test_a_cut_archive_is_refused_though_its_sha256_is_declared(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar.gz", {"CMakeLists.txt": os.urandom(20000).hex()})
    cut = (tmp_path / "a.tar.gz").read_bytes()[:9000]
    (tmp_path / "a.tar.gz").write_bytes(cut)
    (tmp_path / "work").mkdir()
    given = {"kind": "archive", "urls": [(tmp_path / "a.tar.gz").as_uri()], "sha256": hashlib.sha256(cut).hexdigest()}
    with pytest.raises(FleetError, match="does not unpack"):
        obtain(parse_source("x", given), str(tmp_path / "work"), QUIET, [])
    assert not (tmp_path / "work" / "src").exists()


def test_a_missing_subdir_lists_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "tree" / "top" / "engine").mkdir(parents=True)
    source = parse_source("x", {"kind": "path", "path": str(tmp_path / "tree")})
    with pytest.raises(FleetError, match="engine"):
        obtain(source, str(tmp_path), QUIET, [])


def git(repo: Path, *argv: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, "-C", str(repo), *argv], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> tuple[Path, str]:
    """A repository of two commits, and the older one's id."""
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet")
    (path / "CMakeLists.txt").write_text("old")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "old")
    older = git(path, "rev-parse", "HEAD")
    (path / "CMakeLists.txt").write_text("new")
    git(path, "commit", "--quiet", "-am", "new")
    return path, older


def test_git_gives_exactly_the_commit(tmp_path: Path, repo: tuple[Path, str]) -> None:
    (tmp_path / "work").mkdir()
    source = parse_source("x", {"kind": "git", "url": str(repo[0]), "commit": repo[1]})
    folder = Path(obtain(source, str(tmp_path / "work"), QUIET, []))
    assert (folder / "CMakeLists.txt").read_text() == "old"
    assert git(folder, "rev-parse", "HEAD") == repo[1]


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path, repo: tuple[Path, str]) -> None:
    (tmp_path / "work").mkdir()
    source = parse_source("x", {"kind": "git", "url": str(repo[0]), "commit": "1" * 40})
    with pytest.raises(FleetError, match="1" * 40):
        obtain(source, str(tmp_path / "work"), QUIET, [])
    assert not (tmp_path / "work" / "src").exists()


def test_a_repository_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    source = parse_source("x", {"kind": "git", "url": str(tmp_path / "none"), "commit": "1" * 40})
    with pytest.raises(FleetError, match="none"):
        obtain(source, str(tmp_path / "work"), QUIET, [])


def test_the_tree_digest_sees_names_sizes_times_and_links(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "a").write_text("one")
    seen = [tree_digest(str(tree))]
    (tree / ".git" / "index").write_text("not looked at")
    assert tree_digest(str(tree)) == seen[0]
    for change in (
        lambda: os.utime(tree / "a", ns=(1, 1)),
        lambda: (tree / "b").write_text(""),
        lambda: (tree / "b").rename(tree / "c"),
        lambda: os.symlink("a", tree / "l"),
        lambda: os.symlink(".git", tree / "m"),
    ):
        change()
        seen.append(tree_digest(str(tree)))
    assert len(set(seen)) == len(seen)
    with pytest.raises(FleetError, match="does not exist"):
        tree_digest(str(tmp_path / "none"))


# --- tags, mirrors, patches


def test_a_tag_must_lead_to_the_commit(tmp_path: Path, repo: tuple[Path, str]) -> None:
    path, older = repo
    git(path, "tag", "light", older)
    git(path, "tag", "-a", "b1", "-m", "annotated", older)
    git(path, "tag", "moved")
    for number, tag in enumerate(("light", "b1")):
        work = tmp_path / str(number)
        work.mkdir()
        source = parse_source("x", {"kind": "git", "url": str(path), "commit": older, "tag": tag})
        assert git(Path(obtain(source, str(work), QUIET, [])), "rev-parse", "HEAD") == older
    for tag, found in (("moved", "is not the declared commit"), ("none", "no such tag")):
        source = parse_source("x", {"kind": "git", "url": str(path), "commit": older, "tag": tag})
        with pytest.raises(FleetError, match=rf"tag {tag}.*{found}"):
            obtain(source, str(tmp_path), QUIET, [])
    assert not (tmp_path / "src").exists()


def test_a_mirror_serves_where_the_repository_does_not(tmp_path: Path, repo: tuple[Path, str]) -> None:
    path, older = repo
    mirror = tmp_path / "mirror.git"
    git(path, "clone", "--quiet", "--bare", str(path), str(mirror))
    given = {
        "kind": "git",
        "url": str(tmp_path / "gone"),
        "commit": older,
        "mirrors": [str(tmp_path / "no"), str(mirror)],
    }
    warnings: list[str] = []
    (tmp_path / "work").mkdir()
    folder = obtain(parse_source("x", given), str(tmp_path / "work"), QUIET, warnings)
    assert git(Path(folder), "rev-parse", "HEAD") == older
    assert len(warnings) == 2 and str(tmp_path / "gone") in warnings[0]
    (tmp_path / "other").mkdir()
    with pytest.raises(FleetError, match="no repository gave commit"):
        obtain(parse_source("x", {**given, "mirrors": [str(tmp_path / "no")]}), str(tmp_path / "other"), QUIET, [])


PATCH = "--- a/CMakeLists.txt\n+++ b/CMakeLists.txt\n@@ -1 +1 @@\n-{before}\n+patched\n"


def patch_for(path: Path, before: str) -> dict[str, str]:
    path.write_text(PATCH.format(before=before))
    return {"url": path.as_uri(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_patches_are_proven_and_applied_to_archive_and_commit(tmp_path: Path, repo: tuple[Path, str]) -> None:
    (repo[0] / "CMakeLists.txt").write_text("plain\n")
    git(repo[0], "commit", "--quiet", "-am", "plain")
    patch = patch_for(tmp_path / "a.patch", "plain")
    sha256 = archive(tmp_path / "a.tar.gz", {"top/sub/CMakeLists.txt": "plain\n"})
    sources = [
        {"kind": "git", "url": str(repo[0]), "commit": git(repo[0], "rev-parse", "HEAD")},
        {"kind": "archive", "urls": [(tmp_path / "a.tar.gz").as_uri()], "sha256": sha256, "subdir": "sub"},
    ]
    for number, given in enumerate(sources):
        work = tmp_path / f"work{number}"
        work.mkdir()
        source = parse_source("x", {**given, "patches": [patch]})
        assert (Path(obtain(source, str(work), QUIET, [])) / "CMakeLists.txt").read_text() == "patched\n"
        assert source_digest(source) == f"{source_digest(parse_source('x', given))}+{patch['sha256']}"


def test_a_patch_that_is_another_or_does_not_apply_leaves_no_source(tmp_path: Path, repo: tuple[Path, str]) -> None:
    given = {"kind": "git", "url": str(repo[0]), "commit": repo[1]}
    wrong = patch_for(tmp_path / "a.patch", "what is not there")
    cases = [
        (wrong, "does not apply"),
        ({**wrong, "sha256": SHA}, "another one than declared"),
        ({"url": (tmp_path / "gone").as_uri(), "sha256": SHA}, "cannot be read"),
    ]
    for patch, found in cases:
        with pytest.raises(FleetError, match=found):
            obtain(parse_source("x", {**given, "patches": [patch]}), str(tmp_path), QUIET, [])
        assert not (tmp_path / "src").exists()
    for kind in ({"kind": "path", "path": "/x"}, {"kind": "installed", "path": "/x"}):
        with pytest.raises(FleetError, match=r"source\.patches"):
            parse_source("x", {**kind, "patches": [wrong]})
    with pytest.raises(FleetError, match=r"patches\.sha256"):
        parse_source("x", {**given, "patches": [{"url": "file:///x", "sha256": "1"}]})
    with pytest.raises(FleetError, match=r"source\.tag"):
        parse_source("x", {**given, "tag": "--upload-pack=x"})
