# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file server on 127.0.0.1 that misbehaves on request: the first path segment names the fault."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HTML = b"<!DOCTYPE html><html><title>Sign in</title></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@dataclass
class FileServer:
    """Serves ``body`` at ``/<fault>/<anything>``; ``requests`` holds (path, headers) of each GET.

    ``/.../<name>`` is served from ``bodies`` where that has the name.
    """

    body: bytes
    bodies: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"v1"'
    delay_s: float = 0.0  # after each 64 KiB
    cut_at: int = 0  # of fault "cut", and how much each answer of "trickle" gives
    times: int = 0  # how often a fault that passes has still to happen
    wait_s: str = "0"  # of faults with Retry-After
    elsewhere: str = ""  # of fault "redirect"
    base: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, fault: str, name: str = "m.gguf") -> str:
        return f"{self.base}/{fault}/{name}"


def _handler(server: FileServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes, length: int | None = -1, **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            if length is not None:
                self.send_header("Content-Length", str(len(body) if length == -1 else length))
            if server.etag and "ETag" not in headers:
                self.send_header("ETag", server.etag)
            self.send_header("Connection", "close")
            self.end_headers()
            for start in range(0, len(body), 65536):
                with server.lock:
                    server.sent += len(body[start : start + 65536])
                self.wfile.write(body[start : start + 65536])
                time.sleep(server.delay_s)
            self.close_connection = True

        def do_GET(self) -> None:
            fault = self.path.split("/")[1]
            server.requests.append((self.path, dict(self.headers)))
            with contextlib.suppress(ConnectionError):
                getattr(self, f"do_{fault}")()

        @property
        def body(self) -> bytes:
            return server.bodies.get(self.path.rsplit("/", 1)[1], server.body)

        def part(self) -> tuple[int, int] | None:
            """The asked range, its end exclusive, if the condition holds."""
            asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
            if asked and condition in (None, server.etag):
                start, _, last = asked.removeprefix("bytes=").partition("-")
                return int(start), min(int(last or len(self.body)), len(self.body) - 1) + 1
            return None

        def passing(self) -> bool:
            """Whether a fault that passes has still to happen."""
            with server.lock:
                server.times -= 1
                return server.times >= 0

        def do_good(self, most: int | None = None) -> None:
            part, size = self.part(), len(self.body)
            if part is None:
                self.answer(200, self.body[:most], size)
            else:
                start, end = part
                data = self.body[start:end][:most]
                self.answer(206, data, end - start, Content_Range=f"bytes {start}-{end - 1}/{size}")

        def do_trickle(self) -> None:  # each answer breaks off after cut_at bytes
            self.do_good(server.cut_at)

        def do_recovers(self) -> None:  # 500 at first
            self.answer(500, b"oh") if self.passing() else self.do_good()

        def do_busy(self) -> None:
            self.answer(429, b"later", Retry_After=server.wait_s) if self.passing() else self.do_good()

        def do_unavailable(self) -> None:
            self.answer(503, b"later", Retry_After=server.wait_s) if self.passing() else self.do_good()

        def do_forbidden(self) -> None:
            self.answer(403, b"no")

        def do_changes(self) -> None:  # another file from the second request on
            if len(server.requests) > 1:
                server.etag = '"v2"'
            self.do_good()

        def do_noetag(self) -> None:
            server.etag = None
            self.do_good()

        def do_flaky(self) -> None:  # one bit of every answer is wrong while the fault lasts
            if self.passing():
                server.bodies["m.gguf"] = server.body[:-1] + bytes([server.body[-1] ^ 1])
            else:
                server.bodies.clear()
            self.do_good()

        def do_stalls(self) -> None:  # silence in the midst of an answer, at first
            if not self.passing():
                self.do_good()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.body)))
            self.send_header("ETag", str(server.etag))
            self.end_headers()
            self.wfile.write(server.body[: server.cut_at])
            self.wfile.flush()
            time.sleep(2)

        def do_private(self) -> None:  # as a hub: only with the token, the bytes lie elsewhere
            if self.headers.get("Authorization") != "Bearer sesame":
                self.answer(401, b"who are you")
            elif server.elsewhere:
                self.answer(302, b"", Location=server.elsewhere)
            else:
                self.do_good()

        def do_cut(self) -> None:  # a short body under the right length
            self.answer(200, server.body[: server.cut_at], len(server.body))

        def do_cutnolength(self) -> None:
            self.answer(200, server.body[: server.cut_at], None)

        def do_nolength(self) -> None:
            self.answer(200, server.body, None)

        def do_toolong(self) -> None:
            self.answer(200, server.body + b"!", None)

        def do_wronglength(self) -> None:
            self.answer(200, server.body + b"!")

        def do_badlength(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "many")
            self.end_headers()
            self.wfile.write(server.body)
            self.close_connection = True

        def do_html(self) -> None:
            self.answer(200, HTML)

        def do_longhtml(self) -> None:  # an error page of exactly the declared length
            self.answer(200, HTML.ljust(len(server.body)), Content_Type="text/html")

        def do_lfs(self) -> None:
            self.answer(200, LFS)

        def do_magic(self) -> None:
            self.answer(200, b"NOPE" + server.body[4:])

        def do_flip(self) -> None:
            self.answer(200, server.body[:-1] + bytes([server.body[-1] ^ 1]))

        def do_gzip(self) -> None:
            self.answer(200, server.body, Content_Encoding="gzip")

        def do_missing(self) -> None:
            self.answer(404, b"no")

        def do_broken(self) -> None:
            self.answer(503, b"no")

        def do_partial(self) -> None:  # 206 to a request for the whole
            self.answer(206, server.body[5:], Content_Range=f"bytes 5-{len(server.body) - 1}/{len(server.body)}")

        def do_norange(self) -> None:
            self.answer(200, server.body)

        def do_rangehtml(self) -> None:  # the proxy has logged out meanwhile
            self.answer(200, HTML) if self.headers.get("Range") else self.do_good()

        def do_shifted(self) -> None:
            part, size = self.part(), len(server.body)
            if part is None:
                self.answer(200, server.body)
            else:
                start = part[0] - 1
                self.answer(206, server.body[start:], Content_Range=f"bytes {start}-{size - 1}/{size}")

        def do_grown(self) -> None:
            start, size = (self.part() or (0, 0))[0], len(server.body) + 10
            self.answer(206, server.body[start:], Content_Range=f"bytes {start}-{size - 1}/{size}")

        def do_ignoresif(self) -> None:  # takes Range whatever If-Range says; the ETag tells
            asked, size = self.headers.get("Range"), len(server.body)
            if not asked:
                self.answer(200, server.body)
                return
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            self.answer(206, server.body[start:], Content_Range=f"bytes {start}-{size - 1}/{size}")

        def do_unsatisfied(self) -> None:
            self.answer(416, b"") if self.headers.get("Range") else self.answer(200, server.body)

        def do_hang(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.body)))
            self.end_headers()
            self.wfile.write(server.body[:1000])
            self.wfile.flush()
            time.sleep(2)

        def do_redirect(self) -> None:
            self.answer(302, b"", Location=server.elsewhere)

        def do_loop(self) -> None:
            self.answer(302, b"", Location=self.path)

    return Handler


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a full queue costs a client a second


@contextlib.contextmanager
def file_server(body: bytes) -> Iterator[FileServer]:
    """A running FileServer."""
    state = FileServer(body)
    server = _Server(("127.0.0.1", 0), _handler(state))
    state.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
