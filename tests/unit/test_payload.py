# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A payload from the plan to the last byte: real files, a real HTTP server, a real kill -9."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import (
    _payload,
    _payload_facts,
    _payload_kept,
    _payload_read,
    _verify,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import strong_validator
from ansible_collections.dank.llm_fleet.plugins.module_utils._incoming import Tuning, source_key
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import FileFacts, Owner, PayloadSpec, plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity
from fileserver import FileServer, file_server

BODY = b"GGUF" + os.urandom(3_000_001)
OTHER = b"GGUF" + os.urandom(2_000_000)
NAME = "m.gguf"
FAST = Tuning(pause_s=0.01)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(urls: list[str], data: bytes = BODY, name: str = NAME, **other: Any) -> dict[str, Any]:
    return {"name": name, "role": "model", "bytes": len(data), "sha256": sha(data), "urls": urls, **other}


class Host:
    """A directory with a source, a payload and stamps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dir = root / "models" / "p"
        self.final = self.dir / NAME
        self.source = root / "source.gguf"
        self.source.write_bytes(BODY)

    def spec(self, *files: dict[str, Any], **other: Any) -> PayloadSpec:
        params = {
            "name": "p",
            "dir": str(self.dir),
            "files": list(files) or [entry([self.source.as_uri()])],
            "mode": "0644",
            "stamp_dir": str(self.root / "stamps"),
            "state_dir": str(self.root / "eras"),
            "verify": "stamp",
        }
        return PayloadSpec.from_params(params | other)

    def ensure(self, *files: dict[str, Any], check: bool = False, plan_only: bool = False, **other: Any) -> Any:
        spec = self.spec(*files, **other)
        return ensure(spec, check_mode=check, plan_only=plan_only, progress=Progress(None), tuning=FAST)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.dir.iterdir())

    def snapshot(self) -> dict[str, Any]:
        seen = {}
        for path in sorted([self.root, *self.root.rglob("*")]):
            state = path.lstat()
            content = sha(path.read_bytes()) if path.is_file() else None
            seen[str(path)] = (state.st_ino, state.st_mode, state.st_mtime_ns, state.st_ctime_ns, content)
        return seen


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(BODY) as state:
        yield state


_OPENED: list[str] | None = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED is not None:
        _OPENED.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else str(args[0]))


sys.addaudithook(_audit)


def opened_by(work: Callable[[], Any]) -> list[str]:
    """Every path that Python opens during ``work``."""
    global _OPENED
    _OPENED = []
    try:
        work()
        return _OPENED
    finally:
        _OPENED = None


# --- the plan ---------------------------------------------------------------------------------------------------------

SIZE = len(BODY)
ID = Identity(1, 2, SIZE, 3, 4)
GOOD = sha(BODY)


@pytest.mark.parametrize(
    ("facts", "verify", "action", "known", "mend"),
    [
        (FileFacts(), "stamp", "fetched", True, False),
        (FileFacts(part_bytes=9), "full", "fetched", True, False),
        (FileFacts(Identity(1, 2, SIZE - 1, 3, 4), 0o644), "stamp", "fetched", True, False),
        (FileFacts(Identity(1, 2, 0, 3, 4), 0o600), "stamp", "fetched", True, False),
        (FileFacts(ID, 0o644), "stamp", "adopted", False, False),
        (FileFacts(ID, 0o600), "stamp", "adopted", False, True),
        (FileFacts(ID, 0o644, stamped=True), "stamp", "hashed", False, False),
        (FileFacts(ID, 0o644, digest=GOOD, stamped=True), "stamp", "none", True, False),
        (FileFacts(ID, 0o600, digest=GOOD, stamped=True), "stamp", "none", True, True),
        (FileFacts(ID, 0o644, uid=7, digest=GOOD, stamped=True), "stamp", "none", True, True),
        (FileFacts(ID, 0o644, gid=7, digest=GOOD, stamped=True), "stamp", "none", True, True),
        (FileFacts(ID, 0o644, digest=GOOD, stamped=True), "full", "hashed", False, False),
        (FileFacts(ID, 0o644, digest=GOOD, read=True, stamped=True), "full", "hashed", True, False),
        (FileFacts(ID, 0o644, digest=GOOD, read=True), "stamp", "adopted", True, False),
        (FileFacts(ID, 0o644, digest="0" * 64, stamped=True), "stamp", "fetched", True, False),
        (FileFacts(ID, 0o644, digest="0" * 64, read=True), "full", "fetched", True, False),
    ],
)
def test_plan(host: Host, facts: FileFacts, verify: str, action: str, known: bool, mend: bool) -> None:
    (step,) = plan(host.spec(verify=verify), {NAME: facts}, Owner(0, 0))
    assert (step.action, step.known, step.mend) == (action, known, mend)
    assert step.why


def test_plan_leaves_an_undeclared_owner_alone(host: Host) -> None:
    (step,) = plan(host.spec(), {NAME: FileFacts(ID, 0o644, 7, 7, GOOD, stamped=True)}, Owner())
    assert not step.mend


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dir": "models"}, "dir is relative"),
        ({"stamp_dir": "stamps"}, "stamp_dir is relative"),
        ({"mode": "420"}, "mode is malformed"),
        ({"mode": "u=rw"}, "mode is malformed"),
        ({"files": []}, "has no files"),
        ({"files": [entry([]), entry([])]}, "declares a file twice"),
        ({"files": [entry([], name="a/b")]}, "no usable name"),
        ({"files": [entry([], name=".hidden")]}, "no usable name"),
        ({"files": [entry([], name="a\nb")]}, "no usable name"),
        ({"files": [entry([], bytes=0)]}, "bytes is malformed"),
        ({"files": [entry([], sha256=None)]}, "declares no digest"),
        ({"files": [entry(["scp://h/f"])]}, "cannot be fetched"),
        ({"files": [entry([], repo="a/b")]}, "names a hub file in part"),
        ({"files": [entry([], revision="main")]}, "names a hub file in part"),
        ({"files": [entry([], file="x.gguf")]}, "names a hub file in part"),
        ({"files": [entry([], repo="a/b/c", revision="main")]}, "repo, revision or file is malformed"),
        ({"files": [entry([], repo="a/..", revision="main")]}, "repo, revision or file is malformed"),
        ({"files": [entry([], repo="a/b", revision="main", file="../../x")]}, "repo, revision or file is malformed"),
        ({"hub_url": "ftp://hub"}, "hub_url: .*cannot be fetched"),
        ({"connections": 0}, "connections is out of range"),
        ({"connections": 65}, "connections is out of range"),
    ],
)
def test_bad_declarations_are_refused(host: Host, change: dict[str, Any], says: str) -> None:
    with pytest.raises(FleetError, match=says) as refusal:
        host.spec(**change)
    assert "payload p" in refusal.value.message


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"repo": "a/b", "revision": "abc"}, "https://huggingface.co/a/b/resolve/abc/m.gguf"),
        ({"repo": "gpt2", "revision": "refs/pr/1"}, "https://huggingface.co/gpt2/resolve/refs%2Fpr%2F1/m.gguf"),
        (
            {"repo": "a/b", "revision": "v1", "file": "sub dir/x#1.gguf"},
            "https://huggingface.co/a/b/resolve/v1/sub%20dir/x%231.gguf",
        ),
    ],
)
def test_a_hub_file_is_asked_for_first_and_the_urls_are_its_mirrors(
    host: Host, given: dict[str, str], url: str
) -> None:
    mirror = "https://mirror.example/m.gguf"
    assert host.spec(entry([mirror], **given)).files[0].urls == (url, mirror)


# --- the usual life of a payload --------------------------------------------------------------------------------------


def test_fetch_then_converged(host: Host) -> None:
    result = host.ensure()
    (file,) = result["files"]
    assert (result["changed"], result["work"], result["fetch_bytes"]) == (True, True, SIZE)
    assert (file["action"], file["sha256"], file["bytes"], file["path"]) == ("fetched", GOOD, SIZE, str(host.final))
    assert file["source"] == host.source.as_uri()
    assert file["bytes_per_s"] > 0
    assert host.final.read_bytes() == BODY
    assert host.final.stat().st_mode & 0o7777 == 0o644
    assert host.names() == [".payload.lock", NAME]

    before = host.snapshot()
    opened = opened_by(lambda: result.update(host.ensure()))
    assert (result["changed"], result["work"], result["fetch_bytes"]) == (False, False, 0)
    assert result["files"][0]["action"] == "none"
    assert result["diff"]["before"] == result["diff"]["after"]
    assert not [path for path in opened if path.startswith(str(host.dir))]
    assert host.snapshot() == before


def test_converged_run_hashes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.ensure()

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a payload byte was read")

    monkeypatch.setattr(_payload, "hash_file", never)
    monkeypatch.setattr(_payload_read, "hash_file", never)
    monkeypatch.setattr(_payload, "Download", never)
    assert host.ensure()["changed"] is False


def test_a_file_put_there_by_hand_is_adopted(host: Host) -> None:
    host.dir.mkdir(parents=True)
    host.final.write_bytes(BODY)
    result = host.ensure(entry([]))
    assert (result["files"][0]["action"], result["fetch_bytes"], result["changed"]) == ("adopted", 0, True)
    assert host.ensure(entry([]))["files"][0]["action"] == "none"


@pytest.mark.parametrize(
    ("verify", "age_s", "action"),
    [
        ("age=7d", 6 * 86400, "none"),
        ("age=7d", 8 * 86400, "hashed"),
        ("age=90m", 5000, "none"),
        ("age=1h", 5000, "hashed"),
        ("age=2w", -3600, "hashed"),  # from the future: a clock was wrong
        ("stamp", 10**9, "none"),
        ("full", 0, "hashed"),
    ],
)
def test_a_verification_that_is_too_long_ago_is_done_again(host: Host, verify: str, age_s: float, action: str) -> None:
    host.ensure()
    stamp = _verify.read_stamp(str(host.root / "stamps"), str(host.final))
    assert stamp is not None
    _verify.write_stamp(str(host.root / "stamps"), str(host.final), GOOD, stamp.identity, time.time() - age_s)
    result = host.ensure(verify=verify)
    assert (result["files"][0]["action"], result["changed"]) == (action, False)
    assert host.ensure(verify="age=1h")["files"][0]["action"] == (
        "none" if action == "hashed" or age_s < 3600 else "hashed"
    )


@pytest.mark.parametrize("verify", ["age=", "age=0d", "age=7", "age=7y", "never", ""])
def test_a_malformed_verify_is_refused(host: Host, verify: str) -> None:
    with pytest.raises(FleetError, match="verify is malformed"):
        host.spec(verify=verify)


def test_several_files_are_read_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payload_read.os, "sched_getaffinity", lambda _: {0, 1, 2})
    host.dir.mkdir(parents=True)
    names = [f"{number}.gguf" for number in range(3)]
    for name in names:
        (host.dir / name).write_bytes(BODY)
    together = threading.Barrier(3, timeout=10)
    real = _payload_read.hash_file

    def hash_file(path: str, on_bytes: Callable[[int], None]) -> Any:
        together.wait()
        return real(path, on_bytes)

    monkeypatch.setattr(_payload_read, "hash_file", hash_file)
    result = host.ensure(*(entry([], name=name) for name in names))
    assert [file["action"] for file in result["files"]] == ["adopted"] * 3


def test_a_file_that_moves_while_it_is_read_ends_all_reading(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.dir.mkdir(parents=True)
    (host.dir / "a.gguf").write_bytes(BODY)
    (host.dir / "b.gguf").write_bytes(BODY)
    real = _payload_read.hash_file

    def hash_file(path: str, on_bytes: Callable[[int], None]) -> Any:
        if path.endswith("a.gguf"):
            raise FleetError(f"{path} changed while it was read")

        def slowly(count: int) -> None:
            time.sleep(0.5)
            on_bytes(count)

        return real(path, slowly)

    monkeypatch.setattr(_payload_read, "hash_file", hash_file)
    begin = time.monotonic()
    with pytest.raises(FleetError, match=r"a\.gguf changed"):
        host.ensure(entry([], name="a.gguf"), entry([], name="b.gguf"))
    assert time.monotonic() - begin < 1.4  # of the 1.5 s that b takes
    assert not (host.root / "stamps").exists()


# --- the same bytes under another name --------------------------------------------------------------------------------


def second(host: Host, **other: Any) -> dict[str, Any]:
    """Another payload of the same host, in another directory."""
    return {"name": "q", "dir": str(host.root / "models" / "q"), **other}


def test_the_same_bytes_are_linked_and_both_names_stay_converged(host: Host) -> None:
    host.ensure()
    files = (entry([], name="other.gguf"),)
    for dry in ({"check": True}, {"plan_only": True}):
        told = host.ensure(*files, **second(host), **dry)
        assert (told["files"][0]["action"], told["changed"], told["work"], told["fetch_bytes"]) == (
            "linked",
            True,
            False,
            0,
        )
    result = host.ensure(*files, **second(host))
    (file,) = result["files"]
    assert (file["action"], file["sha256"], result["fetch_bytes"]) == ("linked", GOOD, 0)
    assert file["source"] == host.final.as_uri()
    assert os.stat(file["path"]).st_ino == host.final.stat().st_ino
    assert host.ensure(*files, **second(host))["files"][0]["action"] == "none"
    assert host.ensure()["files"][0]["action"] == "none"
    assert sorted(os.listdir(host.root / "models" / "q")) == [".payload.lock", "other.gguf"]
    # a third name finds two, and all three stay converged
    third = second(host) | {"dir": str(host.root / "models" / "r")}
    assert host.ensure(*files, **third)["files"][0]["action"] == "linked"
    for where in (second(host), third):
        assert host.ensure(*files, **where)["files"][0]["action"] == "none"
    assert host.ensure()["files"][0]["action"] == "none"


def test_a_link_is_as_old_as_the_verification_of_its_bytes(host: Host) -> None:
    host.ensure()
    stamps = str(host.root / "stamps")
    stamp = _verify.read_stamp(stamps, str(host.final))
    assert stamp is not None
    _verify.write_stamp(stamps, str(host.final), GOOD, stamp.identity, 1000.0)
    host.ensure(**second(host))
    linked = _verify.read_stamp(stamps, str(host.root / "models" / "q" / NAME))
    assert linked is not None and linked.verified_at == 1000.0


def test_a_link_keeps_the_old_file_aside(host: Host) -> None:
    host.ensure()
    place = host.root / "models" / "q"
    place.mkdir()
    (place / NAME).write_bytes(OTHER)
    assert host.ensure(**second(host))["files"][0]["action"] == "linked"
    assert (place / NAME).read_bytes() == BODY
    assert (place / f"{NAME}.replaced-{sha(OTHER)[:12]}").read_bytes() == OTHER


def test_other_mode_means_a_copy_from_this_host(host: Host, server: FileServer) -> None:
    host.ensure()
    result = host.ensure(entry([server.url("good")]), **second(host), mode="0600")
    assert (result["files"][0]["action"], result["files"][0]["source"]) == ("fetched", host.final.as_uri())
    assert server.requests == []
    assert host.final.stat().st_mode & 0o777 == 0o644
    assert host.ensure()["changed"] is False


def test_a_twin_that_another_run_works_on_is_copied(host: Host) -> None:
    host.ensure()
    with file_lock(str(host.dir / ".payload.lock"), wait_s=0, purpose="payload p"):
        result = host.ensure(**second(host))
    assert (result["files"][0]["action"], result["files"][0]["source"]) == ("fetched", host.final.as_uri())
    assert host.ensure()["files"][0]["action"] == "none"


def test_a_twin_in_the_same_directory_is_linked(host: Host) -> None:
    host.ensure()
    files = [entry([]), entry([], name="b.gguf")]
    assert [file["action"] for file in host.ensure(*files)["files"]] == ["none", "linked"]
    assert [file["action"] for file in host.ensure(*files)["files"]] == ["none", "none"]


@pytest.mark.parametrize("how", ["touched", "gone", "link refused", "unstamped"])
def test_what_is_not_verified_or_cannot_be_linked_is_no_twin(
    host: Host, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    host.ensure()
    if how == "touched":
        os.utime(host.final)
    elif how == "gone":
        host.final.unlink()
    elif how == "unstamped":
        (host.root / "stamps" / os.listdir(host.root / "stamps")[0]).unlink()
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(31, "Too many links")

        monkeypatch.setattr(os, "link", refuse)
    result = host.ensure(**second(host))
    assert result["files"][0]["action"] == "fetched"
    near = host.final if how == "link refused" else host.source
    assert result["files"][0]["source"] == near.as_uri()


@pytest.mark.parametrize("how", ["touch", "lost stamp", "damaged stamp", "link", "full"])
def test_anything_changed_is_hashed_again(host: Host, how: str) -> None:
    host.ensure()
    (stamp,) = (host.root / "stamps").iterdir()
    if how == "touch":
        os.utime(host.final)
    elif how == "lost stamp":
        stamp.unlink()
    elif how == "damaged stamp":
        stamp.write_text("{")
    elif how == "link":
        os.link(host.final, host.root / "second name")
    result = host.ensure(verify="full" if how == "full" else "stamp")
    assert result["files"][0]["action"] == ("adopted" if "stamp" in how else "hashed")
    assert result["changed"] is ("stamp" in how)
    assert result["fetch_bytes"] == 0
    assert host.ensure()["files"][0]["action"] == "none"


def test_other_bytes_of_same_size_and_mtime_are_caught_and_replaced(host: Host) -> None:
    host.ensure()
    times = host.final.stat()
    with host.final.open("r+b") as handle:
        handle.write(b"EVIL")
    os.utime(host.final, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert host.ensure()["files"][0]["action"] == "fetched"
    assert host.final.read_bytes() == BODY


@pytest.mark.skipif(os.geteuid() != 0, reason="sets owners")
def test_mode_and_owner_are_mended_without_reading(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.ensure()
    monkeypatch.setattr(_payload_read, "hash_file", None)
    inode = host.final.stat().st_ino
    result = host.ensure(mode="0640", owner="12345", group="root")
    state = host.final.stat()
    assert (state.st_ino, state.st_mode & 0o7777, state.st_uid, state.st_gid) == (inode, 0o640, 12345, 0)
    assert (result["changed"], result["work"], result["files"][0]["action"]) == (True, False, "none")
    assert result["diff"]["before"] != result["diff"]["after"]
    assert host.ensure(mode="0640", owner="12345", group="root")["changed"] is False


def test_an_unknown_owner_is_refused_and_only_told_in_check_mode(host: Host) -> None:
    assert any("does not exist yet" in text for text in host.ensure(check=True, owner="nobody-here")["warnings"])
    with pytest.raises(FleetError, match="user nobody-here does not exist"):
        host.ensure(owner="nobody-here")
    assert not host.dir.exists()


def test_prefix_is_verified_completed_and_warned_of(host: Host) -> None:
    files = entry([host.source.as_uri()], sha256=None, sha256_prefix=GOOD[:16])
    result = host.ensure(files)
    assert result["files"][0]["sha256"] == GOOD
    assert "only the beginning" in result["warnings"][0]
    again = host.ensure(files)
    assert (again["files"][0]["sha256"], again["changed"]) == (GOOD, False)
    wrong = entry([host.source.as_uri()], sha256=None, sha256_prefix="0" * 16)
    with pytest.raises(FleetError, match="other bytes than declared"):
        host.ensure(wrong)


def test_several_files_and_one_good_already(host: Host) -> None:
    second = host.root / "second.gguf"
    second.write_bytes(OTHER)
    host.ensure()
    result = host.ensure(entry([host.source.as_uri()]), entry([second.as_uri()], OTHER, "o.gguf"))
    assert [file["action"] for file in result["files"]] == ["none", "fetched"]
    assert result["fetch_bytes"] == len(OTHER)


# --- a changed inventory ----------------------------------------------------------------------------------------------


def test_new_digest_replaces_by_rename_and_the_way_back_needs_no_source(host: Host) -> None:
    host.ensure()
    running = host.final.open("rb")  # as the server has it
    new = host.root / "new.gguf"
    new.write_bytes(OTHER)
    result = host.ensure(entry([new.as_uri()], OTHER))
    assert result["files"][0]["action"] == "fetched"
    assert GOOD in str(result["diff"]["before"])
    assert sha(OTHER) in str(result["diff"]["after"])
    assert host.final.read_bytes() == OTHER
    assert running.read() == BODY
    running.close()
    kept = f"{NAME}.replaced-{GOOD[:12]}"
    assert host.names() == [".payload.lock", NAME, kept]

    back = host.ensure(entry([]))
    assert back["files"][0]["source"].endswith(kept)
    assert host.final.read_bytes() == BODY
    assert host.names() == [".payload.lock", NAME, f"{NAME}.replaced-{sha(OTHER)[:12]}"]


@pytest.mark.parametrize("name", [f".{NAME}.part", f".{NAME}.part.journal", ".payload.lock", NAME])
@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_nothing_is_written_through_what_a_folders_owner_put_there(host: Host, name: str, kind: str) -> None:
    """Root works in a folder that another user owns."""
    host.dir.mkdir(parents=True)
    precious = host.root / "precious"
    precious.write_bytes(b"root's own")
    state = precious.stat()
    if kind == "link":
        (host.dir / name).symlink_to(precious)
    elif kind == "second name":
        (host.dir / name).hardlink_to(precious)
    else:
        os.mkfifo(host.dir / name)
    if name == ".payload.lock" or (name == NAME and kind != "second name"):
        with pytest.raises(FleetError, match="is in the way"):
            host.ensure()
    else:
        host.ensure()
        assert host.final.read_bytes() == BODY
    assert precious.read_bytes() == b"root's own"
    assert (precious.stat().st_mode, precious.stat().st_ino) == (state.st_mode, state.st_ino)


def test_a_copy_kept_aside_is_no_link_to_elsewhere(host: Host) -> None:
    host.dir.mkdir(parents=True)
    (host.dir / f"{NAME}.replaced-{GOOD[:12]}").symlink_to(host.source)
    with pytest.raises(FleetError, match="could not be fetched from 0 source"):
        host.ensure(entry([]))


def replace_in_turn(host: Host, bodies: list[bytes]) -> list[str]:
    """Have each of these bodies in turn; the warnings of the last run."""
    warnings: list[str] = []
    for body in bodies:
        host.source.write_bytes(body)
        warnings = host.ensure(entry([host.source.as_uri()], body), state_dir=str(host.root))["warnings"]
        assert host.final.read_bytes() == body
    return warnings


@pytest.mark.parametrize(
    ("named", "stay"),
    [
        ([], [1]),
        ([GOOD], [0, 1]),
        ([GOOD[:8]], [0, 1]),
        ([""], [0, 1]),
        ([sha(OTHER)], [1]),
        (["0" * 64], [1]),
    ],
    ids=["no era", "the oldest", "by the beginning of its digest", "without a digest", "the latest", "another"],
)
def test_what_an_era_names_is_not_swept_by_a_later_replacement(
    host: Host, monkeypatch: pytest.MonkeyPatch, named: list[str], stay: list[int]
) -> None:
    bodies = [BODY, OTHER, b"GGUF" + os.urandom(500)]
    eras = {str(host.final): set(named), f"{host.dir}/other.gguf": {GOOD}}
    monkeypatch.setattr(_payload_kept, "referenced_digests", lambda folder: eras if folder == str(host.root) else {})
    assert replace_in_turn(host, bodies) == []
    kept = sorted(f"{NAME}.replaced-{sha(bodies[index])[:12]}" for index in stay)
    assert host.names() == [".payload.lock", NAME, *kept]


def test_the_repair_of_a_rotten_file_keeps_what_an_era_names(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payload_kept, "referenced_digests", lambda folder: {str(host.final): {GOOD}})
    replace_in_turn(host, [BODY, OTHER])
    rotten = OTHER[:-1] + bytes([OTHER[-1] ^ 1])
    host.final.write_bytes(rotten)
    replace_in_turn(host, [OTHER])
    kept = sorted(f"{NAME}.replaced-{sha(body)[:12]}" for body in (BODY, rotten))
    assert host.names() == [".payload.lock", NAME, *kept]


def test_a_link_keeps_what_an_era_names(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payload_kept, "referenced_digests", lambda folder: {str(host.final): {sha(OTHER)}})
    last = b"GGUF" + os.urandom(500)
    replace_in_turn(host, [OTHER, last])
    host.source.write_bytes(BODY)
    host.ensure(entry([host.source.as_uri()]), name="q", dir=str(host.root / "models" / "q"))
    assert host.ensure(entry([]))["files"][0]["action"] == "linked"
    kept = sorted(f"{NAME}.replaced-{sha(body)[:12]}" for body in (OTHER, last))
    assert host.names() == [".payload.lock", NAME, *kept]


def test_an_era_that_cannot_be_read_keeps_all_copies_and_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(folder: str) -> dict[str, set[str]]:
        raise FleetError("era 1 is not as it was staged")

    monkeypatch.setattr(_payload_kept, "referenced_digests", damaged)
    (warning,) = replace_in_turn(host, [BODY, OTHER, b"GGUF" + os.urandom(500)])
    assert f"1 older copies of {host.final} are kept: era 1 is not as it was staged" in warning
    assert len(host.names()) == 4


def test_wrong_sha256_leaves_the_old_file_and_keeps_one_rejected(host: Host) -> None:
    host.ensure()
    old = host.final.stat()
    for wanted, data in (("1" * 64, OTHER), ("2" * 64, BODY)):
        host.source.write_bytes(data)
        with pytest.raises(FleetError) as refusal:
            host.ensure(entry([host.source.as_uri()], data, sha256=wanted))
        kept = host.dir / f"{NAME}.rejected-{sha(data)[:12]}"
        for text in (wanted, sha(data), str(kept), "payload p", NAME):
            assert text in refusal.value.message
        assert kept.read_bytes() == data
        assert host.names() == [".payload.lock", NAME, kept.name]
        assert (host.final.stat().st_ino, host.final.stat().st_ctime_ns) == (old.st_ino, old.st_ctime_ns)
        assert host.final.read_bytes() == BODY
    host.source.write_bytes(BODY)
    assert host.ensure()["changed"] is False


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("../../source.gguf", path)])
def test_what_is_no_file_is_in_the_way(host: Host, make: Callable[[Path], None]) -> None:
    host.dir.mkdir(parents=True)
    make(host.final)
    with pytest.raises(FleetError, match="is in the way"):
        host.ensure()


def test_a_file_where_the_directory_belongs(host: Host) -> None:
    host.dir.parent.mkdir()
    host.dir.write_text("")
    with pytest.raises(FleetError, match="expected a directory"):
        host.ensure()


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "cut",
        "toolong",
        "wronglength",
        "html",
        "longhtml",
        "lfs",
        "magic",
        "flip",
        "gzip",
        "missing",
        "broken",
        "partial",
    ],
)
def test_next_source_is_tried_and_the_failure_told(host: Host, server: FileServer, kind: str) -> None:
    server.cut_at = 100_000
    result = host.ensure(entry([server.url(kind), server.url("good")]))
    assert {note["url"] for note in result["failures"]} == {server.url(kind)}
    assert result["failures"][0]["error"]
    assert result["files"][0]["source"] == server.url("good")
    assert host.final.read_bytes() == BODY
    left = [name for name in host.names() if "rejected" not in name]
    assert left == [".payload.lock", NAME]


@pytest.mark.parametrize("kind", ["cut", "html", "flip", "missing"])
def test_when_every_source_fails_all_are_told_and_nothing_has_the_name(
    host: Host, server: FileServer, kind: str
) -> None:
    server.cut_at = 100_000
    gone = (host.root / "gone").as_uri()
    with pytest.raises(FleetError, match="2 source") as refusal:
        host.ensure(entry([gone, server.url(kind)]))
    assert "/gone" in refusal.value.message
    assert server.url(kind) in refusal.value.message
    assert {note["url"] for note in refusal.value.facts["failures"]} == {gone, server.url(kind)}
    assert not host.final.exists()


def test_a_failing_source_does_not_cost_the_proof_of_another_file(host: Host) -> None:
    _unstamped(host)
    files = (entry([], OTHER, "a.gguf"), entry([]))
    with pytest.raises(FleetError, match=r"a\.gguf could not be fetched"):
        host.ensure(*files)
    assert host.ensure()["files"][0]["action"] == "none"


def test_no_source(host: Host) -> None:
    with pytest.raises(FleetError, match="no source in `urls`"):
        host.ensure(entry([]))


def test_room_for_all_missing_files_is_checked_first(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(host.root)

    class Small:
        f_bavail, f_frsize, f_files, f_favail = (SIZE + len(OTHER)) // 1000, 1000, real.f_files, real.f_favail

    monkeypatch.setattr(_payload_facts.os, "statvfs", lambda _: Small)
    files = (entry([server.url("good")]), entry([server.url("good", "o.gguf")], OTHER, "o.gguf"))
    for check in (True, False):
        with pytest.raises(FleetError, match="too small") as refusal:
            host.ensure(*files, check=check)
        assert f"{SIZE + len(OTHER)} bytes free for 2 missing files" in refusal.value.message
    assert not host.dir.exists()
    assert not server.requests
    Small.f_bavail += 1
    monkeypatch.setattr(Small, "f_favail", 1)
    if real.f_files:
        with pytest.raises(FleetError, match="inodes"):
            host.ensure(*files)


def test_two_runs_never_write_one_partial_file(host: Host) -> None:
    host.dir.mkdir(parents=True)
    spec = host.spec()
    object.__setattr__(spec, "lock_wait_s", 0.1)
    with (
        file_lock(str(host.dir / ".payload.lock"), wait_s=0, purpose="payload p"),
        pytest.raises(FleetError, match="is locked"),
    ):
        ensure(spec, check_mode=False, progress=Progress(None))
    assert host.names() == [".payload.lock"]


# --- resume -----------------------------------------------------------------------------------------------------------


def leave_partial(host: Host, server: FileServer, kind: str, at: int = 2_000_000) -> None:
    """What a killed run leaves: a partial file whose journal has ``at`` bytes from the URL of ``kind``."""
    host.dir.mkdir(parents=True)
    fd, journal = Partial(str(host.dir), NAME).open(SIZE, GOOD, FAST.segment)
    journal.name_source(source_key(server.url(kind)), strong_validator(server.etag))
    os.pwrite(fd, BODY[:at], 0)
    journal.wrote(0, at)
    journal.close()
    os.close(fd)
    server.requests.clear()
    server.sent = 0


def test_continues_after_a_cut(host: Host, server: FileServer) -> None:
    leave_partial(host, server, "good")
    assert host.ensure(entry([server.url("good")]), check=True)["fetch_bytes"] == SIZE - 2_000_000
    result = host.ensure(entry([server.url("good")]))
    assert result["fetch_bytes"] == server.sent == SIZE - 2_000_000
    assert host.final.read_bytes() == BODY
    assert host.names() == [".payload.lock", NAME]


def test_without_a_strong_validator_nothing_is_kept(host: Host, server: FileServer) -> None:
    server.etag = 'W/"v1"'
    leave_partial(host, server, "good")
    assert host.ensure(entry([server.url("good")]), check=True)["fetch_bytes"] == SIZE
    with pytest.raises(FleetError, match="could not be fetched"):
        host.ensure(entry([server.url("missing")]))
    assert host.names() == [".payload.lock"]
    host.ensure(entry([server.url("good")]))
    assert host.final.read_bytes() == BODY


def test_changed_etag_starts_over(host: Host, server: FileServer) -> None:
    leave_partial(host, server, "good")
    server.etag = '"v2"'
    result = host.ensure(entry([server.url("good")]))
    assert result["fetch_bytes"] == server.sent == SIZE
    assert ["another file by now" in note["error"] for note in result["failures"]] == [True]
    assert host.final.read_bytes() == BODY


@pytest.mark.parametrize("kind", ["shifted", "unsatisfied", "norange"])
def test_refused_continuation_starts_over_at_the_same_source(host: Host, server: FileServer, kind: str) -> None:
    leave_partial(host, server, kind)
    result = host.ensure(entry([server.url(kind)]))
    assert len(result["failures"]) == 1
    assert host.final.read_bytes() == BODY
    assert host.names() == [".payload.lock", NAME]


def test_html_instead_of_a_range_keeps_the_partial(host: Host, server: FileServer) -> None:
    leave_partial(host, server, "rangehtml")
    with pytest.raises(FleetError, match="HTML page"):
        host.ensure(entry([server.url("rangehtml")]))
    assert host.ensure(entry([server.url("good")]), check=True)["fetch_bytes"] == SIZE - 2_000_000


def test_damaged_partial_is_found_out_and_fetched_anew(host: Host, server: FileServer) -> None:
    leave_partial(host, server, "good")
    with (host.dir / f".{NAME}.part").open("r+b") as handle:
        handle.seek(1000)
        handle.write(bytes(1000))
    result = host.ensure(entry([server.url("good")]))
    assert "after continuing at byte 2000000" in result["failures"][0]["error"]
    assert host.final.read_bytes() == BODY
    assert host.names() == [".payload.lock", NAME]


@pytest.mark.parametrize("good", [True, False])
def test_killed_between_last_byte_and_rename(host: Host, server: FileServer, good: bool) -> None:
    leave_partial(host, server, "good", SIZE)
    (host.dir / f".{NAME}.part").write_bytes(BODY if good else BODY[:-1] + b"?")
    result = host.ensure(entry([server.url("good")]))
    assert len(server.requests) == (0 if good else 1)
    assert len(result["failures"]) == (0 if good else 1)
    assert host.final.read_bytes() == BODY


def test_another_digest_does_not_continue_the_partial(host: Host, server: FileServer) -> None:
    leave_partial(host, server, "good")
    with pytest.raises(FleetError, match="other bytes"):
        host.ensure(entry([server.url("good")], sha256="1" * 64))
    assert "Range" not in server.requests[0][1]


# --- check mode, plan_only, progress ----------------------------------------------------------------------------------


def _absent(host: Host) -> None:
    pass


def _unstamped(host: Host) -> None:
    host.dir.mkdir(parents=True)
    host.final.write_bytes(BODY)


def _wrong(host: Host) -> None:
    host.dir.mkdir(parents=True)
    host.final.write_bytes(BODY[:-1] + b"?")


def _converged(host: Host) -> None:
    host.ensure()


def _mode(host: Host) -> None:
    host.ensure()
    host.final.chmod(0o600)


def _swapped(host: Host) -> None:
    host.ensure()
    host.final.write_bytes(OTHER)


@pytest.mark.parametrize("state", [_absent, _unstamped, _wrong, _converged, _mode, _swapped])
def test_check_mode_writes_nothing_and_tells_the_truth(host: Host, state: Callable[[Host], None]) -> None:
    state(host)
    before = host.snapshot()
    told = host.ensure(check=True)
    planned = host.ensure(plan_only=True)
    assert host.snapshot() == before
    done = host.ensure()
    for key in ("changed", "work", "fetch_bytes", "diff"):
        assert told[key] == done[key], key
    assert [file["action"] for file in told["files"]] == [file["action"] for file in done["files"]]
    assert planned.keys() == done.keys()
    assert (planned["work"], planned["changed"]) == (done["work"], done["changed"])
    assert host.ensure()["changed"] is False


def test_plan_only_reads_no_payload_file(host: Host) -> None:
    _unstamped(host)
    assert not [path for path in opened_by(lambda: host.ensure(plan_only=True)) if path.startswith(str(host.dir))]


def test_progress_counts_bytes_of_the_whole_payload(host: Host) -> None:
    seen: list[tuple[str, int, int]] = []

    class Recorder(Progress):
        def update(self, step: str, *, done: int = 0, total: int = 0, **_: Any) -> None:
            seen.append((step, done, total))

    _unstamped(host)
    second = host.root / "second.gguf"
    second.write_bytes(OTHER)
    files = (entry([]), entry([second.as_uri()], OTHER, "o.gguf"))
    ensure(host.spec(*files), check_mode=False, progress=Recorder(None))
    assert {step for step, _, _ in seen} == {"hashing", "fetching"}
    assert seen[-1][1:] == (SIZE + len(OTHER), SIZE + len(OTHER))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_block_size_is_as_measured() -> None:
    assert _verify.BLOCK == 1 << 20
