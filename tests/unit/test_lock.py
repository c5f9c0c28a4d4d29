# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks: what they fill and refuse, how they are made, and the file that keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._hub import Hub
from ansible_collections.dank.llm_fleet.plugins.module_utils._lock import asked_of, fill, wanted
from ansible_collections.dank.llm_fleet.plugins.module_utils._lockfile import carry_out, plan, render
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._pin import pin
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import resolve
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Digest
from hubserver import NEW, OLD, HubServer, chat_hub, digest_of, lfs, serve, small
from hypothesis import given
from hypothesis import strategies as st

SHA = digest_of("the new model")
FILE: dict[str, Any] = {"name": "chat.gguf", "role": "model", "repo": "me/chat"}
LOCK: dict[str, Any] = {"bytes": 13, "sha256": SHA, "revision": NEW, "of": "me/chat@main:chat.gguf"}
FILLED = {**FILE, "bytes": 13, "sha256": SHA, "revision": NEW}


def locked(**changes: Any) -> dict[str, Any]:
    """The lock of the one file, with changes; None takes a key out."""
    return {"chat": {"chat.gguf": {key: value for key, value in (LOCK | changes).items() if value is not None}}}


def filled(locks: Any = None, **changes: Any) -> dict[str, Any]:
    return fill("chat", FILE | changes, locked() if locks is None else locks)


# What a lock fills and refuses.


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"bytes": "unknown", "sha256": "unknown", "revision": "unknown"},
        {"bytes": 13},
        {"sha256": SHA.upper()},
        {"sha256_prefix": SHA[:8]},
        {"revision": "main"},
        {"file": "chat.gguf"},
    ],
)
def test_a_lock_fills_what_is_open(declared: dict[str, Any]) -> None:
    assert filled(**declared) == FILLED | ({"file": "chat.gguf"} if "file" in declared else {})


@pytest.mark.parametrize("locks", [{}, {"chat": {}}, {"chat": {"other.gguf": LOCK}}, {"other": {"chat.gguf": LOCK}}])
def test_without_a_lock_nothing_changes(locks: Any) -> None:
    entry = {**FILE, "bytes": "unknown", "sha256_prefix": "0" * 8}
    assert fill("chat", entry, locks) == entry


def test_a_pinned_commit_stays() -> None:
    locks = locked(of=f"me/chat@{NEW}:chat.gguf")
    assert filled(locks, revision=NEW) == FILLED
    with pytest.raises(FleetError, match=f"revision; expected {NEW}; found {OLD} .locked."):
        filled(locked(of=f"me/chat@{NEW}:chat.gguf", revision=OLD), revision=NEW)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"bytes": 14}, f"bytes; expected 14, as declared; found 13, which the hub has at commit {NEW}"),
        ({"sha256": "a" * 64}, f"sha256; expected {'a' * 64}, as declared; found {SHA}, which the hub has"),
        ({"sha256_prefix": "a" * 8}, f"sha256; expected aaaaaaaa..., as declared; found {SHA}, which the hub has"),
        ({"sha256_prefix": "xyz"}, "sha256_prefix is malformed"),
        ({"revision": "v1"}, "expected a lock of me/chat@v1:chat.gguf; found one of me/chat@main:chat.gguf"),
        ({"repo": "you/chat"}, "is locked as another file; expected a lock of you/chat@main:chat.gguf"),
        ({"file": "x/chat.gguf"}, "expected a lock of me/chat@main:x/chat.gguf"),
        ({"repo": None}, "expected no lock, since the inventory names no `repo`; found one of me/chat@main"),
        ({"repo": None, "revision": "v1"}, "names a hub file in part"),
        ({"repo": "me/../chat"}, "malformed"),
        ({"file": "../chat.gguf"}, "malformed"),
        ({"revision": 1234567}, "revision; expected text .in quotes where it is all digits.; found 1234567"),
        ({"sha256_prefix": 12345678}, "sha256_prefix; expected text"),
        ({"name": ""}, "name; expected text"),
        ({"name": 5}, "name; expected text"),
    ],
)
def test_what_contradicts_a_lock_is_refused(declared: dict[str, Any], says: str) -> None:
    entry = {key: value for key, value in (FILE | declared).items() if value is not None}
    with pytest.raises(FleetError, match=says) as told:
        fill("chat", entry, locked())
    assert str(told.value).startswith(f"payload chat: file {entry['name']!r}")


@pytest.mark.parametrize(
    ("locks", "says"),
    [
        ([], "llm_payload_locks; expected a dictionary; found list"),
        ({"chat": "x"}, "llm_payload_locks.chat; expected a dictionary; found str"),
        ({"chat": {"chat.gguf": 5}}, "llm_payload_locks.chat.chat.gguf is int"),
        (locked(sha256="a" * 63), "llm_payload_locks.chat.chat.gguf.sha256 is .*expected 64 hexadecimal digits"),
        (locked(sha256=None), "sha256 is missing"),
        (locked(revision="main"), "revision is 'main'; expected a commit, 40"),
        (locked(bytes="13"), "bytes is '13'"),
        (locked(bytes="unknown"), "bytes is 'unknown'"),
        (locked(of=None), "of is missing"),
        (locked(url="x"), "url is no key"),
    ],
)
def test_a_malformed_lock_is_refused(locks: Any, says: str) -> None:
    with pytest.raises(FleetError, match=f"{says}.*Run playbooks/lock.yml again"):
        filled(locks)


def test_resolve_fills_the_payloads_that_are_used() -> None:
    payloads = {"chat": {"dir": "/m", "files": [FILE]}, "unused": {"dir": "/u", "files": [{"name": 5}]}}
    endpoints = {"a": {"runtime": "cpu", "payload": "chat"}}
    told = resolve(endpoints, {"cpu": {}}, payloads, locks=locked())
    assert told["payloads"] == [{"dir": "/m", "files": [FILLED], "name": "chat"}]
    assert told["endpoints"][0]["payload"] == told["payloads"][0]
    assert payloads["chat"]["files"] == [FILE]
    assert resolve(endpoints, {"cpu": {}}, payloads)["payloads"][0]["files"] == [FILE]
    payloads["chat"]["files"] = [FILE | {"bytes": 14}]
    with pytest.raises(FleetError, match=r"payload chat: file 'chat.gguf': bytes"):
        resolve(endpoints, {"cpu": {}}, payloads, locks=locked())


def test_a_filled_file_is_fetched_at_the_locked_commit() -> None:
    given = {"name": "chat", "dir": "/m", "mode": "0644", "verify": "stamp", "stamp_dir": "/s", "files": [filled()]}
    (file,) = PayloadSpec.from_params(given).files
    assert file.urls == (f"https://huggingface.co/me/chat/resolve/{NEW}/chat.gguf",)
    assert (file.bytes, file.digest) == (13, Digest(SHA))


# What is to be locked.


def table(*files: dict[str, Any], **payloads: Any) -> dict[str, Any]:
    return {"chat": {"dir": "/m", "files": list(files)}, **payloads}


def test_files_of_the_hub_are_wanted() -> None:
    other = {"name": "m.gguf", "role": "mmproj", "repo": "me/chat", "revision": "v1", "file": "vision/mmproj.gguf"}
    wants = wanted([table(FILE, {"name": "lora.gguf", "urls": ["file:///l"]}), table(other)])
    assert [(want.payload, want.name, str(want.asked)) for want in wants] == [
        ("chat", "chat.gguf", "me/chat@main:chat.gguf"),
        ("chat", "m.gguf", "me/chat@v1:vision/mmproj.gguf"),
    ]
    assert asked_of("chat", {"name": "a", "revision": "unknown"}) is None


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (
            [table(FILE), table(FILE | {"revision": "v1"})],
            "file 'chat.gguf' is declared twice; expected one file of the hub, as me/chat@main:chat.gguf; found also",
        ),
        ([table(FILE | {"repo": 5})], "repo; expected text"),
        ([table(5)], "payload chat: files; expected dictionaries; found 5"),  # type: ignore[arg-type]
        ([{"chat": None}], "llm_payloads.chat.files; expected a list; found NoneType"),
        ([{"chat": {"files": "x"}}], "llm_payloads.chat.files; expected a list; found str"),
        ([[]], "llm_payloads; expected a dictionary of payloads; found list"),
    ],
)
def test_what_cannot_be_asked_for(tables: list[Any], says: str) -> None:
    with pytest.raises(FleetError, match=says):
        wanted(tables)


# Asking the hub.


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serve(chat_hub()) as hub:
        yield hub


def test_locks_are_what_the_hub_has_and_agree(server: HubServer) -> None:
    projector = {"name": "m.gguf", "repo": "me/chat", "revision": "v1", "file": "vision/mmproj.gguf"}
    locks = pin(Hub(server.base), [table(FILE | {"bytes": 13, "sha256_prefix": SHA[:12]}, projector), table(FILE)])
    assert locks == {
        "chat": {
            "chat.gguf": LOCK,
            "m.gguf": {
                "bytes": 9,
                "sha256": digest_of("projector"),
                "revision": OLD,
                "of": "me/chat@v1:vision/mmproj.gguf",
            },
        }
    }
    assert len(server.requests) == 4  # a commit and a tree for each revision
    assert pin(Hub(server.base), [table({"name": "a.gguf", "urls": ["file:///a"]})]) == {}
    assert len(server.requests) == 4


def test_all_disagreements_are_told_with_both_sides(server: HubServer) -> None:
    wrong = {"name": "vision/mmproj.gguf", "repo": "me/chat", "bytes": 10}
    with pytest.raises(FleetError, match=r"2 files disagree:") as told:
        pin(Hub(server.base), [table(FILE | {"sha256_prefix": "a" * 16}, wrong)])
    one, two = str(told.value).splitlines()[1:]
    assert "payload chat: file 'chat.gguf': sha256" in one and f"{'a' * 16}..." in one and SHA in one
    assert "payload chat: file 'vision/mmproj.gguf': bytes; expected 10" in two
    with pytest.raises(FleetError, match=r"^payload chat: file 'chat.gguf': sha256"):
        pin(Hub(server.base), [table(FILE | {"sha256_prefix": "a" * 16})])


def test_what_has_no_sha256_or_no_bytes_is_refused(server: HubServer) -> None:
    with pytest.raises(FleetError, match=r"payload chat: file 'config.json' has no sha256 on the hub .*`urls`"):
        pin(Hub(server.base), [table({"name": "config.json", "repo": "me/chat"})])
    server.trees["me/chat"][NEW] = [lfs("chat.gguf", ""), small("x")]
    with pytest.raises(FleetError, match=r"file 'chat.gguf' is empty on the hub"):
        pin(Hub(server.base), [table(FILE)])


# The file.

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
LOCKS = st.fixed_dictionaries(
    {
        "bytes": st.integers(1, 2**63),
        "sha256": st.text("0123456789abcdef", min_size=64, max_size=64) | st.just("1" * 64),
        "revision": st.text("0123456789", min_size=40, max_size=40),
        "of": NAMES,
    }
)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, LOCKS, min_size=1, max_size=3), max_size=3))
def test_the_file_says_what_went_in(locks: dict[str, Any]) -> None:
    text = render(locks)
    assert yaml.safe_load(text) == {"llm_payload_locks": locks}
    backwards = {name: dict(reversed(files.items())) for name, files in reversed(locks.items())}
    assert render(backwards) == text


def test_a_name_that_yaml_cannot_hold_is_refused() -> None:
    with pytest.raises(FleetError, match=r"printable"):
        render({"a\x85b": {}})


def test_written_once_and_then_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "group_vars" / "all" / "payloads.lock.yml"
    first = plan(str(path), locked())
    assert first.changed and not path.parent.exists()
    assert (first.diff["before"], first.diff["after"]) == ("", render(locked()))
    carry_out(first)
    assert path.read_text() == render(locked()) and path.stat().st_mode & 0o777 == 0o644
    assert not plan(str(path), locked()).changed
    path.chmod(0o640)
    second = plan(str(path), locked(bytes=14))
    assert second.changed and second.diff["before"] == render(locked())
    carry_out(second)
    assert "bytes: 14" in path.read_text() and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == [path.name]
    carry_out(plan(str(path), {}))
    assert yaml.safe_load(path.read_text()) == {"llm_payload_locks": {}}
    assert not plan(str(path), {}).changed


def test_nothing_to_lock_makes_no_file(tmp_path: Path) -> None:
    planned = plan(str(tmp_path / "x" / "l.yml"), {})
    assert not planned.changed
    carry_out(planned)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["", "llm_payloads: {}\n", "---\n# Mine.\n"])
def test_another_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "payloads.yml"
    path.write_text(text)
    with pytest.raises(FleetError, match=r"is no lock file; .*would be overwritten"):
        plan(str(path), locked())


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"expected an absolute path; found l.yml"):
        plan("l.yml", locked())
    link = tmp_path / "l.yml"
    link.symlink_to(tmp_path / "elsewhere.yml")
    with pytest.raises(FleetError, match=r"is a symbolic link"):
        plan(str(link), locked())


@pytest.mark.parametrize("ending", [".yml", ".yaml", ".json"])
def test_a_folder_that_would_hide_a_file_of_variables_is_not_made(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"all{ending}").write_text("{}")
    with pytest.raises(FleetError, match=f"all would hide .*all{ending}; .*Move"):
        plan(str(tmp_path / "all" / "l.yml"), locked())
    (tmp_path / "all").mkdir()
    assert plan(str(tmp_path / "all" / "l.yml"), locked()).changed
