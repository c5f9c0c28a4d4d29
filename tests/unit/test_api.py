# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a real HTTP server, and to servers that break off."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
