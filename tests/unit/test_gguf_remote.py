# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Headers behind a URL: a real server, honest and not, and how little is fetched from it."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _gguf_errors as errors
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import is_url, open_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError, Transient
from ggufwriter import ARCH, T, gguf
from rangeserver import RangeServer, range_server

SMALL = gguf(tensors=[T("a")])
LARGE = gguf(w.vocabulary(100_000, 50_000), [T("a"), T("b", (256, 256, 40))])
HEADER = len(LARGE) - 256 - 256 * 256 * 40 * 4


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server(m_gguf=LARGE) as state:
        yield state


@pytest.fixture
def small() -> Iterator[RangeServer]:
    with range_server(m_gguf=SMALL) as state:
        yield state


@pytest.mark.parametrize("keys", [None, (), ["tokenizer.ggml.tokens", "tokenizer.ggml.scores"]])
def test_the_same_as_from_disk(server: RangeServer, tmp_path: Path, keys: list[str] | None) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(LARGE)
    here, there = read_gguf(str(path), keys=keys), read_gguf(server.url(), keys=keys)
    assert there.shards[0].name == server.url()
    assert {**vars(here), "shards": ()} == {**vars(there), "shards": ()}


def test_little_more_than_the_header_is_fetched(server: RangeServer) -> None:
    read_gguf(server.url())
    assert len(server.requests) <= 5
    assert server.sent < 2 * HEADER < len(LARGE)
    spans = [tuple(map(int, headers["Range"][6:].split("-"))) for _, headers in server.requests]
    assert spans[0][0] == 0 and all(before[1] < after[0] for before, after in itertools.pairwise(spans))
    asked = [last - first + 1 for first, last in spans]
    assert all(before <= after for before, after in itertools.pairwise(asked)), "the ranges grow"


def test_a_small_file_takes_one_request(small: RangeServer) -> None:
    assert read_gguf(small.url()).tensor_count == 1
    assert len(small.requests) == 1 and small.sent == len(SMALL)


def test_every_request_is_plain_and_conditional(server: RangeServer) -> None:
    read_gguf(server.url())
    for number, (_, headers) in enumerate(server.requests):
        assert headers["Accept-Encoding"] == "identity"
        assert headers.get("If-Range") == ('"v1"' if number else None)
        assert not {"Authorization", "Cookie"} & set(headers)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_ranges_are_unconditional(server: RangeServer, etag: str | None) -> None:
    server.etag = etag
    assert read_gguf(server.url()).tensor_count == 2
    assert all("If-Range" not in headers for _, headers in server.requests)


def test_a_redirect_is_followed_once_and_carries_no_secret(server: RangeServer) -> None:
    with range_server(m_gguf=b"") as front:
        front.elsewhere = server.url() + "?signature=secret"
        found = read_gguf(front.url("redirect") + "?token=hidden")
        assert len(front.requests) == 1 and len(server.requests) > 1
        assert found.shards[0].name == front.url("redirect") + "?..."
        for _, headers in server.requests:
            assert "hidden" not in str(headers) and not {"Authorization", "Cookie", "Referer"} & set(headers)


def test_messages_hide_queries(server: RangeServer) -> None:
    with range_server(m_gguf=b"") as front:
        front.elsewhere = server.url("whole") + "?signature=secret"
        with pytest.raises(errors.RangesUnsupported, match="redirected to") as caught:
            read_gguf(front.url("redirect") + "?token=hidden")
    assert "secret" not in caught.value.message and "hidden" not in caught.value.message


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("whole", errors.RangesUnsupported, "expected status 206; found status 200"),
        ("html", errors.RangesUnsupported, "found status 200"),
        ("norange", errors.RangesUnsupported, "expected bytes 0-262143 and the file's length; found no Content-Range"),
        ("zero", errors.RangesUnsupported, "found bytes 0-0/0"),
        ("badrange", errors.RangesUnsupported, "found bytes all of it"),
        ("hugerange", errors.RangesUnsupported, "another range"),
        ("star", errors.RangesUnsupported, r"/\*"),
        ("shifted", errors.RangesUnsupported, "expected bytes 0-"),
        ("shorter", errors.RangesUnsupported, "another range than asked"),
        ("cut", SourceError, "sends another number of bytes|broke off"),
        ("short", SourceError, "sends another number of bytes"),
        ("long", SourceError, "found more than"),
        ("grown", errors.ChangedWhileRead, "another length"),
        ("swapped", errors.ChangedWhileRead, 'expected ETag "v1"; found ETag "v2"'),
        ("renewed", errors.ChangedWhileRead, "is another file"),
        ("shrunk", errors.ChangedWhileRead, "became shorter"),
        ("logout", SourceError, "status 403"),
        ("gzip", SourceError, "Content-Encoding"),
        ("broken", Transient, "status 503"),
        ("hang", SourceError, "no bytes within the time allowed"),
        ("toftp", SourceError, "expected http or https"),
        ("loop", SourceError, "status 302"),
    ],
)
def test_a_server_that_misbehaves(server: RangeServer, fault: str, kind: type[FleetError], says: str) -> None:
    with pytest.raises(FleetError, match=says) as caught:
        read_gguf(server.url(fault), timeout_s=0.5 if fault == "hang" else 10)
    assert type(caught.value) is kind
    assert caught.value.what.startswith(server.url(fault))


@pytest.mark.parametrize("fault", ["trickle", "trickle_head"])
@pytest.mark.parametrize("redirected", [False, True])
def test_a_server_that_trickles_has_a_deadline(server: RangeServer, fault: str, redirected: bool) -> None:
    url = server.url(fault)
    if redirected:
        server.elsewhere, url = url, server.url("redirect")
    started = time.monotonic()
    with pytest.raises(
        SourceError, match=r"is too slow; expected the header within 0\.5 s; found less of it"
    ) as caught:
        read_gguf(url, timeout_s=1, deadline_s=0.5)
    assert time.monotonic() - started < 3
    assert caught.value.what.startswith(url)


def test_a_server_that_falls_silent_has_the_deadline_too(server: RangeServer) -> None:
    started = time.monotonic()
    with pytest.raises(SourceError, match="too slow"):
        read_gguf(server.url("hang"), timeout_s=30, deadline_s=0.3)
    assert time.monotonic() - started < 1.5


def test_no_thread_outlives_a_read(server: RangeServer) -> None:
    def watching() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

    before = watching()
    read_gguf(server.url(), deadline_s=300)
    with pytest.raises(errors.RangesUnsupported):
        read_gguf(server.url("whole"), deadline_s=300)
    assert watching() == before


def test_the_deadline_is_for_all_requests_of_a_file(server: RangeServer) -> None:
    with open_bytes(server.url(), timeout_s=5, deadline_s=0.3) as source:
        time.sleep(0.35)
        with pytest.raises(SourceError, match="too slow"):
            source.read(len(LARGE) - 3, 3)
    assert len(server.requests) == 1


def test_an_empty_file(small: RangeServer) -> None:
    small.files["m.gguf"] = b""
    with pytest.raises(errors.EmptyFile, match="is empty"):
        read_gguf(small.url())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"<!DOCTYPE html><html>" + bytes(100), errors.NotGguf),
        (b"version https://git-lfs.github.com/spec/v1\n", errors.NotGguf),
        (SMALL[:-1], errors.DataBeyondFile),
        (SMALL[:40], errors.CountBeyondFile),
        (LARGE[: HEADER - 40], errors.TruncatedHeader),
    ],
)
def test_refusals_of_the_format_hold_here_too(small: RangeServer, data: bytes, kind: type[FleetError]) -> None:
    small.files["m.gguf"] = data
    with pytest.raises(FleetError) as caught:
        read_gguf(small.url())
    assert type(caught.value) is kind and small.url() in caught.value.message


def test_a_header_alone(small: RangeServer) -> None:
    small.files["m.gguf"] = SMALL[:-256]
    assert read_gguf(small.url(), declared_bytes=len(SMALL)).file_bytes == len(SMALL)


def test_a_set_of_shards() -> None:
    files = w.shards([[], [T("a")], [T("b")]])
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    with range_server() as server:
        server.files.update(zip(names, files, strict=True))
        found = read_gguf(server.url(name=names[0]))
        assert [(tensor.name, tensor.shard) for tensor in found.tensors] == [("a", 1), ("b", 2)]
        del server.files[names[2]]
        with pytest.raises(errors.ShardMissing, match="shard 3 of 3 is missing"):
            read_gguf(server.url(name=names[0]))
        server.files[names[1]] = b""
        with pytest.raises(errors.EmptyFile):
            read_gguf(server.url(name=names[0]))


def test_a_missing_file(server: RangeServer) -> None:
    with pytest.raises(SourceError, match="status 404"):
        read_gguf(server.url(name="gone.gguf"))


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match="cannot be reached"):
        read_gguf(f"http://127.0.0.1:{port}/m.gguf")


@pytest.mark.parametrize("url", ["http://user:secret@127.0.0.1/m.gguf", "https:///m.gguf", "http://h:port/m.gguf"])
def test_urls_that_are_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_gguf(url)
    assert "secret" not in caught.value.message


def test_what_is_a_url() -> None:
    assert is_url("https://h/m.gguf") and is_url("file:///m.gguf")
    assert not is_url("/m.gguf") and not is_url("m.gguf") and not is_url("ftp://h/m.gguf")


def test_what_was_spent(server: RangeServer) -> None:
    with open_bytes(server.url(), timeout_s=5, deadline_s=5) as source:
        assert source.size == len(LARGE)
        assert source.read(len(ARCH[0]), 5) == LARGE[20:25]
        assert source.read(len(LARGE) - 3, 3) == LARGE[-3:]
        assert (source.requests, source.bytes) == (2, (256 << 10) + 3)  # type: ignore[attr-defined]
