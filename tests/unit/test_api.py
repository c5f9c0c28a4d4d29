# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a real HTTP server, and to servers that break off."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api, Response
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from conftest import Served


@contextmanager
def raw(reply: bytes, *, hold_s: float = 0) -> Iterator[int]:
    """A server that sends these very bytes to its one visitor and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def serve() -> None:
            visitor, _address = sock.accept()
            with visitor:
                visitor.recv(65536)
                time.sleep(hold_s)
                visitor.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1]
        thread.join(5)


def test_get_and_post(served: Served) -> None:
    served.answer("/health", {"status": "ok"})
    served.answer("/ask", {"error": "busy"}, status=503)
    api = Api("127.0.0.1", served.port)
    got = api.get("/health")
    assert (got.status, got.json("/health"), got.error) == (200, {"status": "ok"}, "")
    assert 0 < got.seconds < 5
    told = api.post("/ask", {"q": "ü"})
    assert (told.status, told.words) == (503, 'HTTP 503 {"error": "busy"}')
    (method, path, headers, body) = served.seen[-1]
    assert (method, path, headers["Content-Type"], json.loads(body)) == ("POST", "/ask", "application/json", {"q": "ü"})
    assert "Authorization" not in headers


def test_the_key_travels_and_never_shows(served: Served) -> None:
    api = Api("127.0.0.1", served.port, "s3cret")
    answer = api.get("/nowhere")
    assert served.seen[-1][2]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in answer.words + repr(answer) + repr(api)


def test_no_connection_is_a_response() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    answer = Api("127.0.0.1", port).get("/health")
    assert answer.status == 0
    assert answer.words.startswith("no answer (ConnectionRefusedError")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["hangs up", "no HTTP", "short body", "short chunk"],
)
def test_a_broken_answer_is_no_answer(reply: bytes) -> None:
    with raw(reply) as port:
        answer = Api("127.0.0.1", port).get("/health")
    assert (answer.status, answer.body) == (0, b"")
    assert answer.words.startswith("no answer (")


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
    ids=["no length", "chunked"],
)
def test_a_whole_answer_of_either_form(reply: bytes) -> None:
    with raw(reply) as port:
        assert Api("127.0.0.1", port).get("/x").body == b"{}"


def test_a_time_out_is_a_response() -> None:
    with raw(b"", hold_s=0.6) as port:
        started = time.monotonic()
        answer = Api("127.0.0.1", port).get("/health", timeout_s=0.2)
        assert time.monotonic() - started < 0.5
    assert answer.status == 0
    assert "timed out" in answer.words


def test_an_answer_that_is_no_json_is_shown() -> None:
    with pytest.raises(FleetError, match="/props answered no JSON") as caught:
        Response(200, b"<html>", 0.1).json("/props")
    assert caught.value.found == "b'<html>'"


@contextmanager
def trickling(head: bytes, drop: bytes, *, every_s: float = 0.02) -> Iterator[tuple[int, threading.Event]]:
    """A server that sends ``head`` and then ``drop`` for ever; the event is set once the visitor has hung up."""
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def serve() -> None:
            visitor, _address = sock.accept()
            with visitor:
                visitor.recv(65536)
                try:
                    visitor.sendall(head)
                    while True:
                        visitor.sendall(drop)
                        time.sleep(every_s)
                except OSError:
                    gone.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1], gone
        thread.join(5)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: y\r\n"),
        (b"", b"H"),
    ],
    ids=["body", "endless body", "chunks", "headers", "status line"],
)
def test_an_answer_that_trickles_for_ever_ends_at_the_deadline(head: bytes, drop: bytes) -> None:
    with trickling(head, drop, every_s=0.001 if b"X-More" in drop else 0.02) as (port, gone):
        started = time.monotonic()
        answer = Api("127.0.0.1", port).get("/health", timeout_s=0.4)
        assert time.monotonic() - started < 1.5
        assert (answer.status, answer.body) == (0, b"")
        assert gone.wait(5), "the connection was left open"


def test_events_before_the_deadline_are_kept() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with trickling(head, b"9\r\ndata: x\n\n\r\n", every_s=0.05) as (port, _gone):
        told = Api("127.0.0.1", port).stream("/v1/chat/completions", {}, timeout_s=0.5)
    assert told.answer.status == 0 and "timed out" in told.answer.error
    times, data = zip(*told.events, strict=True)
    assert len(data) >= 2 and set(data) == {"x"}
    assert list(times) == sorted(times) and times[-1] < 0.6


def test_a_body_without_end_is_refused() -> None:
    with trickling(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 2**20, every_s=0) as (port, _gone):
        answer = Api("127.0.0.1", port).get("/x", timeout_s=20)
    assert (answer.status, answer.body) == (0, b"")
    assert "passes 16 MiB" in answer.words


def test_a_redirect_is_an_answer_and_is_not_followed(served: Served) -> None:
    served.answer("/there", {})
    reply = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{served.port}/there\r\nContent-Length: 0\r\n\r\n"
    with raw(reply.encode()) as port:
        assert Api("127.0.0.1", port, "s3cret").get("/health").status == 302
    assert served.seen == []


def test_proxies_and_netrc_of_the_environment_are_not_asked(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served.answer("/health", {})
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("no_proxy", raising=False)
    assert Api("127.0.0.1", served.port).get("/health").status == 200
    assert "Authorization" not in served.seen[-1][2]


def test_a_server_in_trouble_is_asked_once(served: Served) -> None:
    served.answer("/health", {}, status=503)
    assert Api("127.0.0.1", served.port).get("/health").status == 503
    assert len(served.seen) == 1


def test_a_key_that_a_refusal_repeats_is_hidden(served: Served) -> None:
    served.answers["/v1/models"] = (401, b'{"error": {"message": "Incorrect API key provided: s3cret"}}')
    api = Api("127.0.0.1", served.port, "s3cret")
    told = api.get("/v1/models")
    assert told.words == "HTTP 401 Incorrect API key provided: ********"
    assert "s3cret" not in repr(told) + repr(api)
    assert not api.with_key(None).has_key


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(FleetError, match=r"library requests is missing on .*Debian package python3-requests") as caught:
        Api("127.0.0.1", 1).get("/health")
    assert caught.value.facts["package"] == "python3-requests"
