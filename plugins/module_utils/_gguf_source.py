# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a header's bytes come from: a local file, or a URL read by byte ranges. Nothing is read that is not asked."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import stat
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Protocol

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    ChangedWhileRead,
    EmptyFile,
    RangesUnsupported,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import (
    RangeRefused,
    SourceError,
    answer_to,
    check_url,
    fault_reason,
    shown_url,
    strong_validator,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._http_deadline import Deadline

__all__ = ["FileSource", "HttpSource", "Source", "is_url", "open_bytes"]

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_PIECE = 64 << 10


class Source(Protocol):
    """Bytes by position. ``windows`` are the least and the largest read-ahead that pays for this kind of source."""

    name: str
    size: int
    windows: tuple[int, int]

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes, which lie within ``size``; anything less is a FleetError."""
        ...


class FileSource:
    """A local file, read by position; ``size`` is what it was when it was opened."""

    windows = (64 << 10, 1 << 20)

    def __init__(self, path: str, fd: int, size: int) -> None:
        self.name, self.size = path, size
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        parts, end = [], offset + length
        while offset < end:
            try:
                part = os.pread(self._fd, end - offset, offset)
            except OSError as exc:
                raise SourceError(f"{self.name} cannot be read", found=exc.strerror) from exc
            if not part:
                raise ChangedWhileRead(
                    f"{self.name} was cut while it was read", expected=f"{self.size} bytes", found=f"{offset} bytes"
                )
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class HttpSource:
    """A URL read by ranges. Each answer must be a 206 for the very range, of the same file as the first one.

    A redirect is followed once and its target asked from then on. ``requests`` and ``bytes`` count what was spent;
    ``deadline`` (of the monotonic clock) bounds a server that trickles its headers or its body.
    """

    windows = (256 << 10, 4 << 20)

    def __init__(self, url: str, timeout_s: float, deadline_s: float) -> None:
        self.name = shown_url(url)
        self.requests = self.bytes = 0
        self._url, self._timeout_s = url, timeout_s
        self._deadline_s, self._deadline = deadline_s, time.monotonic() + deadline_s
        self._etag: str | None = None
        self._start = b""  # the first window, which had to be read to learn the size
        self.size = -1
        self._start = self._get(0, self.windows[0])

    def read(self, offset: int, length: int) -> bytes:
        if offset + length <= len(self._start):
            return self._start[offset : offset + length]
        self._start = b""
        return self._get(offset, length)

    def _get(self, offset: int, length: int) -> bytes:
        last = offset + length - 1
        headers = {"Range": f"bytes={offset}-{last}"}
        if validator := strong_validator(self._etag):
            headers["If-Range"] = validator
        try:
            body = self._ask(headers, offset, last)
        except RangeRefused as exc:  # status 416
            if offset:
                raise ChangedWhileRead(f"{self.name} became shorter while it was read", found=exc.found) from exc
            raise EmptyFile(f"{self.name} is empty", expected="a GGUF file", found="no byte at position 0") from exc
        self.bytes += len(body)
        return body

    def _ask(self, headers: dict[str, str], offset: int, last: int) -> bytes:
        """One request, all of it within what is left of the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_slow()
        self.requests += 1
        try:
            with (
                Deadline(left) as deadline,
                answer_to(self._url, headers, min(self._timeout_s, left), handlers=deadline.handlers()) as (
                    answer,
                    shown,
                ),
            ):
                self._url = answer.geturl()
                count = self._check(answer, shown, offset, last)
                return self._body(answer, shown, count)
        except FleetError as exc:
            # A connection that the deadline shut down looks like any other fault of the server.
            if time.monotonic() >= self._deadline:
                raise self._too_slow() from exc
            raise

    def _too_slow(self) -> SourceError:
        expected = f"the header within {self._deadline_s:g} s"
        return SourceError(f"{self.name} is too slow", expected=expected, found="less of it")

    def _check(self, answer: http.client.HTTPResponse, shown: str, offset: int, last: int) -> int:
        """The number of bytes that this answer holds: all that were asked, or up to the end of the file."""
        if answer.status != 206:
            if self.size >= 0 and answer.status == 200:  # what If-Range asks for when the file is another one
                raise ChangedWhileRead(f"{shown} is another file", expected="status 206", found="status 200")
            raise RangesUnsupported(
                f"{shown} does not answer by ranges", expected="status 206", found=f"status {answer.status}"
            )
        text = answer.headers.get("Content-Range", "").strip()
        match = _CONTENT_RANGE.fullmatch(text)
        total = int(match[3]) if match else 0
        if total:
            if self.size < 0:
                self.size, self._etag = total, answer.headers.get("ETag")
            if total != self.size:
                raise ChangedWhileRead(
                    f"{shown} has another length", expected=f"{self.size} bytes", found=f"{total} bytes"
                )
            last = min(last, total - 1)
        if not match or not total or (int(match[1]), int(match[2])) != (offset, last):
            raise RangesUnsupported(
                f"{shown} answers another range than asked",
                expected=f"bytes {offset}-{last} and the file's length",
                found=text or "no Content-Range",
            )
        etag = answer.headers.get("ETag")
        if etag != self._etag:
            raise ChangedWhileRead(f"{shown} is another file", expected=f"ETag {self._etag}", found=f"ETag {etag}")
        return last - offset + 1

    def _body(self, answer: http.client.HTTPResponse, shown: str, count: int) -> bytes:
        body = bytearray()
        try:
            while len(body) <= count:  # one byte more than promised betrays a wrong answer
                part = answer.read1(min(_PIECE, count + 1 - len(body)))
                if not part:
                    break
                body += part
        except (OSError, http.client.HTTPException) as exc:
            raise SourceError(f"{shown} broke off", found=fault_reason(exc)) from exc
        if len(body) != count:
            found = f"{len(body)} bytes" if len(body) < count else f"more than {count}"
            raise SourceError(f"{shown} sends another number of bytes", expected=f"{count} bytes", found=found)
        return bytes(body)


def is_url(path_or_url: str) -> bool:
    """Whether this names a scheme that can be fetched; everything else is a path."""
    return path_or_url.startswith(("http://", "https://", "file://"))


@contextlib.contextmanager
def open_bytes(path_or_url: str, *, timeout_s: float, deadline_s: float) -> Iterator[Source]:
    """A FileSource or HttpSource. ``timeout_s`` is the longest silence of a server, ``deadline_s`` all it may take."""
    path = path_or_url
    if is_url(path_or_url):
        check_url("model", path_or_url)
        if not path_or_url.startswith("file://"):
            yield HttpSource(path_or_url, timeout_s, deadline_s)
            return
        path = urllib.request.url2pathname(urllib.parse.urlsplit(path_or_url).path)
    try:
        # Non-blocking: opening a named pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise SourceError(f"{path} cannot be read", found=exc.strerror) from exc
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise FleetError(f"{path} is no file", expected="a regular file", found="a directory, device or pipe")
        if not state.st_size:
            raise EmptyFile(f"{path} is empty", expected="a GGUF file", found="0 bytes")
        yield FileSource(path, fd, state.st_size)
    finally:
        os.close(fd)
