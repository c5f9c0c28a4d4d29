# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One source at a time, against a real server that misbehaves."""

from __future__ import annotations

import email.message
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _fetch
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import (
    RangeRefused,
    SourceError,
    check_url,
    open_source,
    receive,
    shown_url,
    strong_validator,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from fileserver import FileServer, file_server

BODY = b"GGUF" + os.urandom(3_000_001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(BODY) as state:
        yield state


def get(
    url: str, path: Path, *, offset: int = 0, validator: str | None = None, name: str = "m.gguf", size: int = len(BODY)
) -> int:
    """Fetch to ``path``; the offset that the source really started from."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with open_source(url, name=name, size=size, offset=offset, validator=validator, timeout_s=0.5) as stream:
            if not stream.offset:
                os.ftruncate(fd, 0)
            receive(stream, fd, shown=url, size=size, on_bytes=lambda _: None)
            return stream.offset
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", ["good", "nolength", "norange", "unsatisfied"])
def test_whole_file_over_http(server: FileServer, tmp_path: Path, kind: str) -> None:
    assert get(server.url(kind), tmp_path / "f") == 0
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("cut", "ended early"),
        ("cutnolength", "ended early"),
        ("toolong", "sends more than declared"),
        ("wronglength", "another length than declared"),
        ("badlength", "malformed Content-Length"),
        ("html", "HTML page"),
        ("longhtml", "HTML page"),
        ("lfs", "LFS pointer"),
        ("magic", "no GGUF"),
        ("gzip", "Content-Encoding"),
        ("missing", "status 404"),
        ("broken", "status 503"),
        ("partial", "status 206"),
        ("hang", "time allowed"),
        ("loop", "status 302"),
    ],
)
def test_a_source_that_misbehaves_is_refused(server: FileServer, tmp_path: Path, kind: str, says: str) -> None:
    server.cut_at = 2_000_000
    with pytest.raises(SourceError, match=says) as refusal:
        get(server.url(kind), tmp_path / "f")
    assert server.url(kind) in refusal.value.message


@pytest.mark.parametrize("kind", ["wronglength", "html", "longhtml", "lfs", "magic", "gzip", "missing", "partial"])
def test_refused_before_a_byte_is_written(server: FileServer, tmp_path: Path, kind: str) -> None:
    with pytest.raises(SourceError):
        get(server.url(kind), tmp_path / "f")
    assert (tmp_path / "f").stat().st_size == 0


def test_continues_where_the_partial_ends(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(BODY[:1_234_567])
    assert get(server.url("good"), tmp_path / "f", offset=1_234_567, validator='"v1"') == 1_234_567
    assert (tmp_path / "f").read_bytes() == BODY
    assert server.sent == len(BODY) - 1_234_567
    assert server.requests[0][1]["If-Range"] == '"v1"'


@pytest.mark.parametrize(("kind", "validator"), [("good", '"v0"'), ("norange", '"v1"'), ("good", None)])
def test_starts_over_when_the_remote_changed_or_knows_no_ranges(
    server: FileServer, tmp_path: Path, kind: str, validator: str | None
) -> None:
    (tmp_path / "f").write_bytes(b"GGUF old bytes")
    assert get(server.url(kind), tmp_path / "f", offset=14, validator=validator) == 0
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize(
    ("kind", "validator", "error", "says"),
    [
        ("shifted", '"v1"', RangeRefused, "another range than asked"),
        ("ignoresif", '"v0"', RangeRefused, "continues another file"),
        ("unsatisfied", '"v1"', RangeRefused, "status 416"),
        ("grown", '"v1"', SourceError, "another length than declared"),
        ("rangehtml", '"v1"', SourceError, "HTML page"),
    ],
)
def test_a_wrong_continuation_is_refused(
    server: FileServer, tmp_path: Path, kind: str, validator: str, error: type[Exception], says: str
) -> None:
    (tmp_path / "f").write_bytes(BODY[:1000])
    with pytest.raises(error, match=says):
        get(server.url(kind), tmp_path / "f", offset=1000, validator=validator)
    assert (tmp_path / "f").read_bytes() == BODY[:1000]


def test_redirect_is_followed_and_carries_no_credentials(server: FileServer, tmp_path: Path) -> None:
    with file_server(BODY) as other:
        server.elsewhere = other.url("good") + "?signature=secret"
        get(server.url("redirect"), tmp_path / "f")
        assert other.requests
        for _, headers in server.requests + other.requests:
            assert not {"authorization", "cookie"} & {key.lower() for key in headers}
    assert (tmp_path / "f").read_bytes() == BODY


def test_redirect_is_named_without_its_signature(server: FileServer, tmp_path: Path) -> None:
    server.elsewhere = server.url("magic") + "?signature=secret"
    with pytest.raises(SourceError, match="redirected to") as refusal:
        get(server.url("redirect"), tmp_path / "f")
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirect_out_of_http_is_refused(server: FileServer, tmp_path: Path, target: str) -> None:
    server.elsewhere = target
    with pytest.raises(SourceError, match="redirect"):
        get(server.url("redirect"), tmp_path / "f")


def test_unreachable_host(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be reached"):
        get("http://127.0.0.1:1/m.gguf", tmp_path / "f")


@pytest.mark.parametrize("kernel", [True, False])
def test_local_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    source = tmp_path / "a b%.gguf"
    source.write_bytes(BODY)
    if not kernel:

        def refuse(*_: object) -> int:
            raise OSError(errno.EXDEV, "another device")

        monkeypatch.setattr(os, "copy_file_range", refuse)
    get(source.as_uri(), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert (tmp_path / "f").stat().st_ino != source.stat().st_ino


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
        get((tmp_path / "s").as_uri(), tmp_path / "f")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_local_source_must_be_a_regular_file(tmp_path: Path, make: object) -> None:
    make(tmp_path / "s")  # type: ignore[operator]
    with pytest.raises(SourceError, match="regular file"):
        get((tmp_path / "s").as_uri(), tmp_path / "f")


def test_a_full_disk_is_the_targets_fault(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(BODY)
    with open_source((tmp_path / "s").as_uri(), name="m.gguf", size=len(BODY)) as stream:
        fd = os.open("/dev/full", os.O_RDWR)
        try:
            with pytest.raises(FleetError, match="could not be written") as refusal:
                receive(stream, fd, shown="s", size=len(BODY), on_bytes=lambda _: None)
        finally:
            os.close(fd)
    assert not isinstance(refusal.value, SourceError)


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


@pytest.mark.parametrize(
    ("change", "point"),
    [
        ({}, (5, '"v"')),
        ({"url": "http://other"}, (0, None)),
        ({"bytes": 11}, (0, None)),
        ({"digest": "cd"}, (0, None)),
        ({"validator": None}, (0, None)),
        ({"validator": 'W/"v"'}, (0, None)),
    ],
)
def test_resume_point(tmp_path: Path, change: dict[str, object], point: tuple[int, str | None]) -> None:
    partial = Partial(str(tmp_path), "f")
    Path(partial.path).write_bytes(b"12345")
    note = {"url": "http://u", "validator": '"v"', "bytes": 10, "digest": "ab"} | change
    Path(partial.note).write_text(json.dumps(note))
    assert partial.resume_point("http://u", 10, "ab") == point


@pytest.mark.parametrize("note", [None, "", "[]", "{"])
def test_no_resume_on_a_lost_or_damaged_note(tmp_path: Path, note: str | None) -> None:
    partial = Partial(str(tmp_path), "f")
    Path(partial.path).write_bytes(b"12345")
    if note is not None:
        Path(partial.note).write_text(note)
    assert partial.resume_point("http://u", 10, "ab") == (0, None)


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "1e3", "-1", ""])
def test_numbers_that_are_none_in_headers_are_refused_in_words(text: str) -> None:
    headers = email.message.Message()
    headers["Content-Length"] = text
    with pytest.raises(SourceError, match="malformed Content-Length") as caught:
        _fetch._whole_length(headers, "it")
    assert len(caught.value.message) < 300
    answer = SimpleNamespace(headers={"Content-Range": f"bytes 0-{text}/{text}"})
    with pytest.raises(RangeRefused, match="another range than asked") as refused:
        _fetch._check_range(answer, "it", 10, 0, None)
    assert len(refused.value.message) < 300
