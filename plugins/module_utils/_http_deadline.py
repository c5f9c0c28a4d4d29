# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deadline for a whole HTTP request. A socket's own timeout is for one read: a server that sends its headers byte by
byte keeps each of them in time, and never ends."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request
from typing import Any

__all__ = ["Deadline"]


class Deadline:
    """A context in which the sockets it holds are shut down after ``seconds``: whoever reads from one then finds it at
    its end. What that looks like is anything, from an empty line to a short body, so callers look at the clock."""

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def hold(self, sock: socket.socket) -> None:
        """Take a connected socket under the deadline."""
        with self._lock:
            self._sockets.append(sock)
            if self._over:
                _shut(sock)

    def handlers(self) -> tuple[urllib.request.HTTPHandler, urllib.request.HTTPSHandler]:
        """Handlers of an opener whose connections are all held, those after a redirect too."""
        return _Plain(self), _Tls(self)

    def _end(self) -> None:
        with self._lock:
            self._over = True
            for sock in self._sockets:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        # Not the method of a TLS socket, which forgets its state while another thread reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _PlainConnection(http.client.HTTPConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.hold(self.sock)


class _TlsConnection(http.client.HTTPSConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.hold(self.sock)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def make(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = _PlainConnection(host, **options)
            connection.deadline = self._deadline
            return connection

        return self.do_open(make, req)


class _Tls(urllib.request.HTTPSHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def make(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = _TlsConnection(host, **options)
            connection.deadline = self._deadline
            return connection

        return self.do_open(make, req)
