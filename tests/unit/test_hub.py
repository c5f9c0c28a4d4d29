# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""_hub: commits, pages, digests, and every way a hub can refuse or answer nonsense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _hub
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._hub import Hub, HubFile, commit_of, files_at
from hubserver import NEW, OLD, HubServer, chat_hub, digest_of, lfs, serve, small

WHO = "payload chat"
REPO = "me/chat"


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serve(chat_hub()) as hub:
        yield hub


def commit(server: HubServer, revision: str = "main") -> str:
    return commit_of(Hub(server.base), WHO, REPO, revision)


def files(server: HubServer, *names: str, at: str = NEW) -> dict[str, HubFile]:
    return files_at(Hub(server.base), WHO, REPO, at, names)


@pytest.mark.parametrize(("revision", "means"), [("main", NEW), ("v1", OLD), ("refs/pr/1", OLD), ("a" * 40, "a" * 40)])
def test_the_commit_that_a_revision_means(server: HubServer, revision: str, means: str) -> None:
    assert commit(server, revision) == means
    assert len(server.requests) == (revision != means)  # a commit is asked for by its tree alone


@pytest.mark.parametrize("sha", [None, 5, "", "main", "A" * 40, "1" * 39, ["1" * 40]])
def test_what_is_no_commit(server: HubServer, sha: Any) -> None:
    server.branches[REPO]["main"] = sha
    with pytest.raises(FleetError, match=r"payload chat: .*names no commit; expected `sha`"):
        commit(server)


@pytest.mark.parametrize("per_page", [1, 2, 5, 1000])
def test_files_are_found_on_whatever_page(server: HubServer, per_page: int) -> None:
    server.per_page = per_page
    assert files(server, "chat.gguf", "vision/mmproj.gguf", "README.md") == {
        "chat.gguf": HubFile(13, digest_of("the new model")),
        "vision/mmproj.gguf": HubFile(9, digest_of("projector")),
        "README.md": HubFile(20, None),
    }
    assert len(server.requests) == -(-5 // per_page)


def test_pages_after_the_last_wanted_file_are_left_alone(server: HubServer) -> None:
    server.per_page = 1
    files(server, "README.md")
    assert len(server.requests) == 1


def test_a_relative_next_page_is_followed(server: HubServer) -> None:
    server.per_page, server.link = 4, f"</api/models/{REPO}/tree/{NEW}?recursive=true&cursor=4>;rel=next"
    assert files(server, "chat.gguf")["chat.gguf"].bytes == 13


@pytest.mark.parametrize("name", ["chatt.gguf", "vision", "mmproj.gguf"])
def test_a_file_that_is_not_there(server: HubServer, name: str) -> None:
    with pytest.raises(FleetError, match=f"{REPO} has no file '{name}' at commit {NEW}; .*found 4 other files") as told:
        files(server, "README.md", name)
    assert ("among them 'chat.gguf'" in str(told.value)) == (name == "chatt.gguf")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("<?recursive=true>; rel=next", "does not end; expected at most 100 pages; found a page that leads back"),
        ("<http://hub.example/api?cursor=x>; rel=next", r"goes on elsewhere; .*found http://hub.example/api\?\.\.\."),
        ("<file:///etc/passwd>; rel=next", "goes on elsewhere"),
        ("<https://127.0.0.1/x>; rel=next", "goes on elsewhere"),
    ],
)
def test_pages_that_lead_astray(server: HubServer, link: str, says: str) -> None:
    server.link = link
    with pytest.raises(FleetError, match=says):
        files(server, "absent.gguf")
    assert len(server.requests) == 1


def test_pages_without_end_are_bounded(server: HubServer) -> None:
    server.trees[REPO][NEW] = [small(f"{number}.json") for number in range(500)]
    server.per_page = 1
    with pytest.raises(FleetError, match=r"does not end; expected at most 100 pages; found more"):
        files(server, "absent.gguf")
    assert len(server.requests) == 100


@pytest.mark.parametrize(
    ("link", "following"),
    [
        ("", None),
        ('<a>; rel="next"', "a"),
        ("<a>; rel=NEXT", "a"),
        ('<a>; rel="prev", <b>; title="x"; rel="next"', "b"),
        ("<a>; rel=next, <b>; rel=prev", "a"),
        ("<a>; rel=nextish", None),
        ("<a>; xrel=next", None),
        ("a; rel=next", None),
        ("<a", None),
    ],
)
def test_link_headers(link: str, following: str | None) -> None:
    assert _hub._next(link) == following


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "status 401 .*repository's name.*token_file"),
        (403, "status 403 .*Accept the repository's terms"),
        (404, "status 404 .*Check `repo` and `revision`"),
        (429, "status 429 .*try again after 300 s.*Nothing was written"),
        (500, "status 500"),
    ],
)
def test_a_refusal_names_payload_url_and_the_way_out(server: HubServer, status: int, says: str) -> None:
    server.status = status
    with pytest.raises(FleetError, match=f"payload chat: {re.escape(server.base)}/api/.* refused; .*{says}") as told:
        files(server, "chat.gguf")
    assert told.value.facts["status"] == status
    with pytest.raises(FleetError, match=says):
        commit(server)
    assert len(server.requests) == 2  # asked once each


def test_nobody_there() -> None:
    with serve(chat_hub()) as gone:
        pass
    with pytest.raises(FleetError, match=r"payload chat: .*cannot be reached; found Connection refused"):
        files(gone, "chat.gguf")


@pytest.mark.parametrize(
    "body", [b"", b"<!DOCTYPE html><html>Sign in", b"[", b"\xff\xfe", b"[" * 100_000, b"[" + b"9" * 9999]
)
def test_what_is_no_json(server: HubServer, body: bytes) -> None:
    server.body = body
    for ask in (commit, lambda hub: files(hub, "chat.gguf")):
        with pytest.raises(FleetError, match=r"payload chat: .*gives no JSON; found") as told:
            ask(server)
        assert len(str(told.value)) < 400


def test_an_answer_that_breaks_off(server: HubServer) -> None:
    server.cut = True
    with pytest.raises(FleetError, match=r"payload chat: .*(gives no JSON|breaks off)"):
        files(server, "chat.gguf")


def test_an_answer_that_is_too_long(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hub, "_MOST_BYTES", 100_000)
    server.body = b" " * 100_001
    with pytest.raises(FleetError, match=r"is too long; expected at most 100000 bytes"):
        files(server, "chat.gguf")
    server.body = b"[]".ljust(100_000)
    with pytest.raises(FleetError, match=r"found 0 other files"):
        files(server, "chat.gguf")


def test_an_answer_that_takes_too_long(server: HubServer) -> None:
    with pytest.raises(FleetError, match=r"is too slow; expected an answer within -1 s"):
        files_at(Hub(server.base, deadline_s=-1), WHO, REPO, NEW, ["chat.gguf"])


GOOD = lfs("chat.gguf", "model")


@pytest.mark.parametrize(
    "entry",
    [
        5,
        None,
        {},
        {**GOOD, "path": 5},
        {**GOOD, "size": "5"},
        {**GOOD, "size": True},
        {**GOOD, "size": -1},
        {**GOOD, "size": 6},
        {**GOOD, "lfs": "x"},
        {**GOOD, "lfs": {}},
        {**GOOD, "lfs": {**GOOD["lfs"], "oid": "c" * 40}},
        {**GOOD, "lfs": {**GOOD["lfs"], "oid": "C" * 64}},
        {**GOOD, "lfs": {**GOOD["lfs"], "oid": None}},
        {**GOOD, "lfs": {**GOOD["lfs"], "size": "5"}},
    ],
)
def test_a_malformed_entry(server: HubServer, entry: Any) -> None:
    server.trees[REPO][NEW] = [entry]
    with pytest.raises(FleetError, match=r"payload chat: .* is malformed; expected a list of files"):
        files(server, "chat.gguf")


@pytest.mark.parametrize("body", [b"{}", b"null", b'"x"', b"5"])
def test_a_tree_that_is_no_list(server: HubServer, body: bytes) -> None:
    server.body = body
    with pytest.raises(FleetError, match=r"is malformed"):
        files(server, "chat.gguf")
    with pytest.raises(FleetError, match=r"names no commit"):
        commit(server)


def test_the_token_goes_to_the_hub(server: HubServer, tmp_path: Path) -> None:
    server.token = "hf_secret"
    with pytest.raises(FleetError, match=r"status 401"):
        files(server, "chat.gguf")
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    token.chmod(0o600)
    hub = Hub.from_params(f"{server.base}/", str(token), None)
    assert "hf_secret" not in repr(hub)
    assert files_at(hub, WHO, REPO, commit_of(hub, WHO, REPO, "main"), ["chat.gguf"])["chat.gguf"].bytes == 13


@pytest.mark.parametrize(
    ("url", "says"),
    [("ftp://hub", "cannot be fetched"), ("file:///hub", "hub_url; expected http"), ("http://", "no host")],
)
def test_a_hub_that_is_none(url: str, says: str) -> None:
    with pytest.raises(FleetError, match=says):
        Hub.from_params(url, None, None)
