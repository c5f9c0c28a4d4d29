# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One source at a time, against a real server that misbehaves."""

from __future__ import annotations

import email.message
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _fetch
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import Want, open_source
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import (
    RangeRefused,
    RemoteChanged,
    SourceError,
    Token,
    Transient,
    check_url,
    origin_of,
    retry_after,
    shown_url,
    strong_validator,
)
from fileserver import FileServer, file_server

BODY = b"GGUF" + os.urandom(3_000_001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(BODY) as state:
        yield state


def get(
    url: str,
    *,
    start: int = 0,
    end: int | None = None,
    validator: str | None = None,
    name: str = "m.gguf",
    size: int = len(BODY),
    token: Token | None = None,
) -> tuple[int, bytes]:
    """``(where the source really started from, its bytes)``."""
    want = Want(name, size, start, size if end is None else end, validator)
    with open_source(url, want, timeout_s=0.5, token=token) as stream:
        buffer, got = memoryview(bytearray(700_001)), b""
        while count := stream.read(buffer):
            got += buffer[:count]
        return stream.start, got


@pytest.mark.parametrize("kind", ["good", "nolength", "norange", "unsatisfied"])
def test_whole_file_over_http(server: FileServer, kind: str) -> None:
    assert get(server.url(kind)) == (0, BODY)


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("wronglength", SourceError, "another length than declared"),
        ("badlength", SourceError, "malformed Content-Length"),
        ("html", SourceError, "HTML page"),
        ("longhtml", SourceError, "HTML page"),
        ("lfs", SourceError, "LFS pointer"),
        ("magic", SourceError, "no GGUF"),
        ("gzip", SourceError, "Content-Encoding"),
        ("missing", SourceError, "status 404"),
        ("forbidden", SourceError, "status 403"),
        ("broken", Transient, "status 503"),
        ("partial", SourceError, "status 206"),
        ("hang", Transient, "time allowed"),
        ("loop", SourceError, "status 302"),
    ],
)
def test_a_source_that_misbehaves_is_refused(server: FileServer, kind: str, error: type[Exception], says: str) -> None:
    with pytest.raises(SourceError, match=says) as refusal:
        get(server.url(kind))
    assert type(refusal.value) is error
    assert server.url(kind) in refusal.value.message


def test_a_range_is_asked_for_under_the_condition_that_the_file_is_the_same(server: FileServer) -> None:
    assert get(server.url("good"), start=1_234_567, end=2_000_000, validator='"v1"') == (
        1_234_567,
        BODY[1_234_567:2_000_000],
    )
    assert server.sent == 2_000_000 - 1_234_567
    headers = server.requests[0][1]
    assert (headers["Range"], headers["If-Range"]) == ("bytes=1234567-1999999", '"v1"')


def test_a_source_that_is_new_is_asked_for_a_range_without_a_condition(server: FileServer) -> None:
    assert get(server.url("good"), start=5, end=10) == (5, BODY[5:10])
    assert "If-Range" not in server.requests[0][1]


@pytest.mark.parametrize(("kind", "validator"), [("good", '"v0"'), ("norange", '"v1"'), ("norange", None)])
def test_the_whole_file_comes_when_the_remote_changed_or_knows_no_ranges(
    server: FileServer, kind: str, validator: str | None
) -> None:
    assert get(server.url(kind), start=14, validator=validator) == (0, BODY)


@pytest.mark.parametrize(
    ("kind", "validator", "error", "says"),
    [
        ("shifted", '"v1"', RangeRefused, "another range than asked"),
        ("ignoresif", '"v0"', RemoteChanged, "continues another file"),
        ("unsatisfied", '"v1"', RangeRefused, "status 416"),
        ("grown", '"v1"', SourceError, "another length than declared"),
        ("rangehtml", '"v1"', SourceError, "HTML page"),
    ],
)
def test_a_wrong_range_is_refused(
    server: FileServer, kind: str, validator: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(SourceError, match=says) as refusal:
        get(server.url(kind), start=1000, validator=validator)
    assert type(refusal.value) is error


@pytest.mark.parametrize(("kind", "wait_s"), [("busy", 3.0), ("unavailable", 3.0), ("recovers", None)])
def test_a_source_in_trouble_says_how_long(server: FileServer, kind: str, wait_s: float | None) -> None:
    server.times, server.wait_s = 1, "3"
    with pytest.raises(Transient) as refusal:
        get(server.url(kind))
    assert (refusal.value.wait_s, refusal.value.busy) == (wait_s, wait_s is not None)
    assert get(server.url(kind)) == (0, BODY)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("1e3", None),
        ("9" * 30, None),
        (None, None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    headers = email.message.Message()
    if text is not None:
        headers["Retry-After"] = text
    assert retry_after(headers, now=100.0) == seconds


TOKEN = "sesame"


def test_a_token_goes_to_its_own_host_and_no_further(server: FileServer) -> None:
    token = Token(origin_of(server.base), TOKEN)
    with file_server(BODY) as other:
        server.elsewhere = other.url("good") + "?signature=secret"
        assert get(server.url("private"), token=token) == (0, BODY)
        assert [headers["Authorization"] for _, headers in server.requests] == [f"Bearer {TOKEN}"]
        assert [headers.get("Authorization") for _, headers in other.requests] == [None]


def test_a_token_stays_on_a_redirect_within_its_host(server: FileServer) -> None:
    server.elsewhere = server.url("private", "moved")
    # the second answer redirects to itself until the server knows no other place
    with pytest.raises(SourceError, match="status 302") as refusal:
        get(server.url("private"), token=Token(origin_of(server.base), TOKEN))
    assert {headers.get("Authorization") for _, headers in server.requests} == {f"Bearer {TOKEN}"}
    assert len(server.requests) > 1
    assert TOKEN not in refusal.value.message


def test_another_host_than_the_tokens_own_never_sees_it(server: FileServer) -> None:
    with file_server(BODY) as hub, pytest.raises(SourceError, match="status 401") as refusal:
        get(server.url("private"), token=Token(origin_of(hub.base), TOKEN))
    assert "Authorization" not in server.requests[0][1]
    assert TOKEN not in refusal.value.message and TOKEN not in repr(Token("o", TOKEN))


def test_a_redirect_back_from_elsewhere_brings_no_token(server: FileServer) -> None:
    with file_server(BODY) as other:
        server.elsewhere, other.elsewhere = other.url("redirect"), server.url("good")
        assert get(server.url("private"), token=Token(origin_of(server.base), TOKEN)) == (0, BODY)
    assert [headers.get("Authorization") for _, headers in server.requests] == [f"Bearer {TOKEN}", None]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h/a", "https://H:443/b?c", True),
        ("http://h/a", "https://h/a", False),
        ("http://h/a", "http://h:8080/a", False),
        ("https://h/a", "https://h.example/a", False),
        ("https://h/a", "https://h@evil/a", False),
    ],
)
def test_origins(one: str, other: str, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is same


def test_redirect_is_followed_and_carries_no_credentials(server: FileServer) -> None:
    with file_server(BODY) as other:
        server.elsewhere = other.url("good") + "?signature=secret"
        assert get(server.url("redirect")) == (0, BODY)
        assert other.requests
        for _, headers in server.requests + other.requests:
            assert not {"authorization", "cookie"} & {key.lower() for key in headers}


def test_redirect_is_named_without_its_signature(server: FileServer) -> None:
    server.elsewhere = server.url("magic") + "?signature=secret"
    with pytest.raises(SourceError, match="redirected to") as refusal:
        get(server.url("redirect"))
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirect_out_of_http_is_refused(server: FileServer, target: str) -> None:
    server.elsewhere = target
    with pytest.raises(SourceError, match="redirect"):
        get(server.url("redirect"))


def test_unreachable_host() -> None:
    with pytest.raises(SourceError, match="cannot be reached"):
        get("http://127.0.0.1:1/m.gguf")


@pytest.mark.parametrize("kernel", [True, False])
def test_local_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    source = tmp_path / "a b%.gguf"
    source.write_bytes(BODY)
    if not kernel:

        def refuse(*_: object) -> int:
            raise OSError(errno.EXDEV, "another device")

        monkeypatch.setattr(os, "copy_file_range", refuse)
    with (tmp_path / "f").open("w+b") as target:
        with open_source(source.as_uri(), Want("m.gguf", len(BODY), 1000, len(BODY))) as stream:
            position = 1000
            while count := stream.copy(target.fileno(), position, 1_000_000):
                position += count
            assert position == (len(BODY) if kernel else 1000)
            rest = memoryview(bytearray(len(BODY)))
            assert stream.read(rest) == len(BODY) - position
        assert os.pread(target.fileno(), len(BODY), 1000) + bytes(rest[: len(BODY) - position]) == BODY[1000:]


def test_local_file_that_changed_meanwhile_is_not_continued(tmp_path: Path) -> None:
    source = tmp_path / "s.gguf"
    source.write_bytes(BODY)
    with open_source(source.as_uri(), Want("m.gguf", len(BODY), 0, 10)) as stream:
        validator = stream.validator
    assert get(source.as_uri(), start=5, validator=validator)[0] == 5
    os.utime(source)
    with pytest.raises(RemoteChanged):
        get(source.as_uri(), start=5, validator=validator)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (BODY[:-1], "another length"),
        (b"GGUF" + BODY, "another length"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
        (b"NOPE" + BODY[4:], "no GGUF"),
    ],
)
def test_local_file_that_is_not_the_declared_one(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "s").write_bytes(content)
    with pytest.raises(SourceError, match=says):
        get((tmp_path / "s").as_uri())


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_local_source_must_be_a_regular_file(tmp_path: Path, make: object) -> None:
    make(tmp_path / "s")  # type: ignore[operator]
    with pytest.raises(SourceError, match="regular file"):
        get((tmp_path / "s").as_uri())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("/plain/path", "cannot be fetched"),
        ("ftp://host/f", "cannot be fetched"),
        ("file://host/f", "no local file"),
        ("file:relative", "no local file"),
        ("https:///f", "names no host"),
        ("https://me:secret@host/f", "carries a user"),
        ("http://host:port/f", "malformed"),
        ("http://[::1/f", "malformed"),
    ],
)
def test_urls_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(FleetError, match=says) as refusal:
        check_url("payload p: file 'f'", url)
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("url", ["file:///a/b", "http://h/f", "https://h:8443/f?x=1", "file://localhost/a"])
def test_urls_that_are_taken(url: str) -> None:
    check_url("f", url)


def test_shown_url_has_no_query() -> None:
    assert shown_url("https://h/f?sig=1") == "https://h/f?..."
    assert shown_url("https://h/f") == "https://h/f"


@pytest.mark.parametrize(
    ("etag", "strong"), [('"a"', '"a"'), (' "a" ', '"a"'), ('W/"a"', None), ("a", None), ('""', None), (None, None)]
)
def test_strong_validator(etag: str | None, strong: str | None) -> None:
    assert strong_validator(etag) == strong


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "1e3", "-1", ""])
def test_numbers_that_are_none_in_headers_are_refused_in_words(text: str) -> None:
    headers = email.message.Message()
    headers["Content-Length"] = text
    with pytest.raises(SourceError, match="malformed Content-Length") as caught:
        _fetch._whole_length(headers, "it")
    assert len(caught.value.message) < 300
    answer = SimpleNamespace(headers={"Content-Range": f"bytes 0-{text}/{text}"})
    with pytest.raises(RangeRefused, match="another range than asked") as refused:
        _fetch._check_range(answer, "it", Want("m", 10, 0, 5))
    assert len(refused.value.message) < 300
