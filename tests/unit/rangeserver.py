# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of byte ranges on 127.0.0.1 that misbehaves on request: the first path segment names the fault."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class RangeServer:
    """Serves ``files`` at ``/<fault>/<name>``; ``requests`` holds (path, headers) of each GET, ``sent`` body bytes."""

    files: dict[str, bytes]
    etag: str | None = '"v1"'
    elsewhere: str = ""  # of fault "redirect"
    base: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0

    def url(self, fault: str = "good", name: str = "m.gguf") -> str:
        return f"{self.base}/{fault}/{name}"


def _handler(server: RangeServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            if server.etag and "ETag" not in headers:
                self.send_header("ETag", server.etag)
            self.send_header("Connection", "close")
            self.end_headers()
            server.sent += len(body)  # before the write: the client may have its answer and look before we go on
            self.wfile.write(body)
            self.close_connection = True

        def do_GET(self) -> None:
            _, fault, name = self.path.partition("?")[0].split("/", 2)
            server.requests.append((self.path, dict(self.headers)))
            self.first = len(server.requests) == 1
            self.body = server.files.get(name)
            if self.body is None:
                self.answer(404, b"no")
                return
            start, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            self.start, self.size = int(start), len(self.body)
            self.last = min(int(last), self.size - 1)
            with contextlib.suppress(ConnectionError):
                getattr(self, f"do_{fault}")()

        def part(self, *, shift: int = 0, size: int | None = None, **headers: str) -> None:
            start, last = self.start + shift, self.last + shift
            shown = f"bytes {start}-{last}/{self.size if size is None else size}"
            self.answer(206, self.body[self.start : self.last + 1], **{"Content_Range": shown, **headers})

        def do_good(self) -> None:
            if self.start >= self.size:
                self.answer(416, Content_Range=f"bytes */{self.size}")
            elif self.headers.get("If-Range", server.etag) != server.etag:
                self.answer(200, self.body)
            else:
                self.part()

        def do_whole(self) -> None:
            self.answer(200, self.body)

        def do_html(self) -> None:
            self.answer(200, b"<!DOCTYPE html><html>", Content_Type="text/html")

        def do_norange(self) -> None:  # 206 without Content-Range
            self.answer(206, self.body[self.start : self.last + 1])

        def do_badrange(self) -> None:
            self.part(Content_Range="bytes all of it")

        def do_hugerange(self) -> None:
            self.part(Content_Range="bytes 0-1/" + "9" * 5000)

        def do_zero(self) -> None:
            self.part(Content_Range="bytes 0-0/0")

        def do_star(self) -> None:
            self.part(Content_Range=f"bytes {self.start}-{self.last}/*")

        def do_shifted(self) -> None:
            self.part(shift=1)

        def do_shorter(self) -> None:  # a range that is right but not the whole of what was asked
            self.last -= 1
            self.part()

        def do_cut(self) -> None:
            body = self.body[self.start : self.last]
            shown = f"bytes {self.start}-{self.last}/{self.size}"
            self.answer(206, body, length=len(body) + 1, Content_Range=shown)

        def do_short(self) -> None:  # honest length, too few bytes for the range
            self.answer(
                206,
                self.body[self.start : self.last],
                Content_Range=f"bytes {self.start}-{self.last}/{self.size}",
            )

        def do_long(self) -> None:
            body = self.body[self.start : self.last + 1] + b"!"
            self.answer(206, body, Content_Range=f"bytes {self.start}-{self.last}/{self.size}")

        def do_grown(self) -> None:
            self.part(size=self.size if self.first else self.size + 1)

        def do_swapped(self) -> None:  # another file from the second answer on, and If-Range is not heeded
            self.part(ETag='"v1"' if self.first else '"v2"')

        def do_renewed(self) -> None:  # as a server that heeds If-Range tells it
            self.part() if self.first else self.answer(200, self.body, ETag='"v2"')

        def do_shrunk(self) -> None:
            self.part() if self.first else self.answer(416, Content_Range="bytes */10")

        def do_logout(self) -> None:  # the session ends after the first answer
            self.part() if self.first else self.answer(403, b"no")

        def do_gzip(self) -> None:
            self.part(Content_Encoding="gzip")

        def do_broken(self) -> None:
            self.answer(503, b"no")

        def do_hang(self) -> None:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {self.start}-{self.last}/{self.size}")
            self.send_header("Content-Length", str(self.last + 1 - self.start))
            self.end_headers()
            self.wfile.write(self.body[:100])
            self.wfile.flush()
            time.sleep(2)

        def do_trickle(self) -> None:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {self.start}-{self.last}/{self.size}")
            self.send_header("Content-Length", str(self.last + 1 - self.start))
            self.end_headers()
            for at in range(self.start, self.last + 1):
                self.wfile.write(self.body[at : at + 1])
                self.wfile.flush()
                time.sleep(0.05)

        def do_trickle_head(self) -> None:  # a header that never ends, each byte in time
            self.wfile.write(b"HTTP/1.1 206 Partial Content\r\nX-Padding: ")
            for _ in range(100):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)

        def do_redirect(self) -> None:
            self.answer(302, Location=server.elsewhere)

        def do_toftp(self) -> None:
            self.answer(302, Location="ftp://127.0.0.1/m.gguf")

        def do_loop(self) -> None:
            self.answer(302, Location=self.path)

    return Handler


@contextlib.contextmanager
def range_server(**files: bytes) -> Iterator[RangeServer]:
    """A running RangeServer; a file's keyword is its name with ``_`` for the last point."""
    state = RangeServer({name.replace("_gguf", ".gguf"): data for name, data in files.items()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    state.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
