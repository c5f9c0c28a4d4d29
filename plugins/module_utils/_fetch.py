# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Getting bytes: one source (file://, http://, https://) opened as a stream and written to a file."""

from __future__ import annotations

import contextlib
import email.message
import errno
import http.client
import os
import re
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK, HEAD, head_fault

__all__ = [
    "RangeRefused",
    "SourceError",
    "Stream",
    "answer_to",
    "check_url",
    "fault_reason",
    "open_source",
    "receive",
    "shown_url",
    "strong_validator",
]

_AGENT = "llm_fleet-payload/0.1"
_COPY = 16 << 20  # bytes that one copy inside the kernel may move: progress stays smooth
# A number of a header: 64 bits at most, since int() raises on thousands of digits, and ASCII alone.
_NUMBER = r"[0-9]{1,19}"
_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER})-({_NUMBER})/({_NUMBER}|\*)")
# The kernel or the file systems cannot copy between these two: read and write instead.
_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


class SourceError(FleetError):
    """This source failed; another may do."""


class RangeRefused(SourceError):
    """The source does not continue where the partial file ends; it may still give the whole file."""


class Stream(Protocol):
    """An open source. ``offset`` is the position of its first byte: as asked, or 0 when it starts over."""

    offset: int
    validator: str | None

    def transfer(self, fd: int, position: int, limit: int) -> int:
        """Move at most ``limit`` bytes to ``position`` of ``fd``; the count, 0 at the end of the source."""
        ...

    def has_more(self) -> bool:
        """Whether the source holds bytes beyond those transferred."""
        ...


def shown_url(url: str) -> str:
    """The URL as messages may show it: without its query, where signatures live."""
    return url.partition("?")[0] + ("?..." if "?" in url else "")


def check_url(what: str, url: str) -> None:
    """Refuse a URL that cannot be fetched, or that carries a password which would end up in logs."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise FleetError(f"{what}: {url} is malformed", expected="a URL", found=str(exc)) from exc
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise FleetError(f"{what}: {url} names no local file", expected="file:///absolute/path")
    elif parts.scheme in ("http", "https"):
        if "@" in parts.netloc:
            raise FleetError(
                f"{what}: {parts.scheme}://***@{parts.netloc.rpartition('@')[2]} carries a user or password",
                expected="a URL without one",
                remedy="Serve the file without a password; the digest is what guards it",
            )
        if not parts.hostname:
            raise FleetError(f"{what}: {url} names no host", expected=f"{parts.scheme}://host/path")
    else:
        raise FleetError(f"{what}: {url} cannot be fetched", expected="file://, http:// or https://", found=url)


def strong_validator(etag: str | None) -> str | None:
    """The entity tag if two equal ones promise equal bytes, else None (absent, weak or malformed)."""
    text = (etag or "").strip()
    return text if len(text) >= 3 and text.startswith('"') and text.endswith('"') else None


def _write(fd: int, data: memoryview, position: int) -> None:
    while data:
        try:
            count = os.pwrite(fd, data, position)
        except OSError as exc:
            raise _no_write(exc) from exc
        data, position = data[count:], position + count


def _no_write(exc: OSError) -> FleetError:
    """The target failed, not the source: no other source will help."""
    return FleetError(
        "the partial file could not be written",
        expected="room and a healthy file system",
        found=exc.strerror,
        remedy="Free space or mend the file system, then run again",
    )


class _FileStream:
    """A local file; copied inside the kernel where it can (which shares blocks on some file systems)."""

    offset: int = 0
    validator: str | None = None

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd = path, fd
        self._position = 0
        self._kernel = hasattr(os, "copy_file_range")
        self._buffer = memoryview(b"")

    def transfer(self, fd: int, position: int, limit: int) -> int:
        if self._kernel:
            try:
                count = os.copy_file_range(self._fd, fd, min(limit, _COPY), self._position, position)
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                    raise _no_write(exc) from exc
                if exc.errno not in _NO_KERNEL_COPY:
                    raise SourceError(f"{self._path} cannot be read", found=exc.strerror) from exc
                self._kernel = False
            else:
                if count:
                    self._position += count
                    return count
                self._kernel = False  # some virtual file systems say 0 where a read finds bytes
        if not self._buffer:
            self._buffer = memoryview(bytearray(BLOCK))
        count = self._read(self._buffer[: min(limit, BLOCK)])
        _write(fd, self._buffer[:count], position)
        self._position += count
        return count

    def _read(self, buffer: memoryview) -> int:
        try:
            return os.preadv(self._fd, [buffer], self._position)
        except OSError as exc:
            raise SourceError(f"{self._path} cannot be read", found=exc.strerror) from exc

    def has_more(self) -> bool:
        return self._read(memoryview(bytearray(1))) > 0


class _HttpStream:
    """The body of one answer; ``head`` are its first bytes, read already."""

    def __init__(self, url: str, answer: http.client.HTTPResponse, offset: int, validator: str | None, head: bytes):
        self._url, self._answer, self._head = url, answer, head
        self.offset, self.validator = offset, validator
        self._buffer = memoryview(bytearray(BLOCK))

    def transfer(self, fd: int, position: int, limit: int) -> int:
        if self._head:
            taken, self._head = self._head[:limit], self._head[limit:]
            _write(fd, memoryview(taken), position)
            return len(taken)
        count = self._read(self._buffer[: min(limit, BLOCK)])
        _write(fd, self._buffer[:count], position)
        return count

    def _read(self, buffer: memoryview) -> int:
        try:
            return self._answer.readinto(buffer)
        except (OSError, http.client.HTTPException) as exc:
            raise SourceError(f"{shown_url(self._url)} broke off", found=fault_reason(exc)) from exc

    def has_more(self) -> bool:
        return bool(self._head) or self._read(memoryview(bytearray(1))) > 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within http and https only. No request carries credentials, so none can leak."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise SourceError(f"{shown_url(req.full_url)} redirects to {shown_url(newurl)}", expected="http or https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fault_reason(exc: BaseException) -> str:
    """What went wrong on the way, in the fewest words."""
    inner = exc.reason if isinstance(exc, urllib.error.URLError) else exc
    if isinstance(inner, TimeoutError):
        return "no bytes within the time allowed"
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _whole_length(headers: email.message.Message, shown: str) -> int | None:
    """The length that a 200 announces, None where it announces none (chunked, or until the connection closes)."""
    text = headers.get("Content-Length")
    if text is None or headers.get("Transfer-Encoding"):
        return None
    if not re.fullmatch(_NUMBER, text.strip()):
        raise SourceError(f"{shown} announces a malformed Content-Length", expected="a number", found=repr(text[:80]))
    return int(text)


def _wrong_length(shown: str, size: int, found: int, head: bytes, name: str) -> SourceError:
    kind = head_fault(name, head)
    return SourceError(
        f"{shown} has another length than declared",
        expected=f"{size} bytes",
        found=f"{found} bytes" + (f", {kind}" if kind else ""),
        remedy="Correct `bytes` or the URL in the inventory",
    )


def _not_the_file(shown: str, name: str, kind: str) -> SourceError:
    return SourceError(f"{shown} does not give {name}", expected="the file itself", found=kind)


def _check_range(answer: http.client.HTTPResponse, shown: str, size: int, offset: int, validator: str | None) -> None:
    """Accept a 206 only if it continues exactly the asked file at the asked byte, to its end."""
    text = answer.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match and match[3] != "*" and int(match[3]) != size:
        raise SourceError(
            f"{shown} has another length than declared", expected=f"{size} bytes", found=f"{match[3]} bytes"
        )
    if not match or match[3] == "*" or (int(match[1]), int(match[2])) != (offset, size - 1):
        raise RangeRefused(
            f"{shown} answers another range than asked",
            expected=f"bytes {offset}-{size - 1}/{size}",
            found=text[:80] or "no Content-Range",
        )
    etag = answer.headers.get("ETag")
    if etag is not None and etag.strip() != validator:
        raise RangeRefused(f"{shown} continues another file", expected=f"ETag {validator}", found=f"ETag {etag}")


@contextlib.contextmanager
def answer_to(url: str, headers: dict[str, str], timeout_s: float) -> Iterator[tuple[http.client.HTTPResponse, str]]:
    """Send one GET without credentials, follow redirects; the answer, and the URL as messages may show it.

    Raises SourceError where there is no answer, or one of a status from 400, or an encoded one; RangeRefused where
    a range was asked and cannot be satisfied.
    """
    shown = shown_url(url)
    fixed = {"User-Agent": _AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}
    opener = urllib.request.build_opener(_Redirects())
    try:
        answer = opener.open(urllib.request.Request(url, headers=fixed | headers), timeout=timeout_s)
    except urllib.error.HTTPError as exc:
        with exc:
            kind = RangeRefused if "Range" in headers and exc.code == 416 else SourceError
            found = f"status {exc.code} {exc.reason}"
            raise kind(f"{shown} refused", expected="status 200", found=found, status=exc.code) from exc
    except (OSError, http.client.HTTPException) as exc:
        raise SourceError(f"{shown} cannot be reached", found=fault_reason(exc)) from exc
    with answer:
        if answer.geturl() != url:
            shown = f"{shown} (redirected to {shown_url(answer.geturl())})"
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise SourceError(f"{shown} sends encoded bytes", expected="no Content-Encoding", found=encoding)
        yield answer, shown


@contextlib.contextmanager
def _open_http(
    url: str, name: str, size: int, offset: int, validator: str | None, timeout_s: float
) -> Iterator[Stream]:
    headers = {}
    if offset and validator:
        headers = {"Range": f"bytes={offset}-", "If-Range": validator}
    else:
        offset = 0
    with answer_to(url, headers, timeout_s) as (answer, shown):
        head = b""
        if answer.status == 206 and offset:
            _check_range(answer, shown, size, offset, validator)
        elif answer.status == 200:
            offset = 0
            try:
                head = answer.read(HEAD)
            except (OSError, http.client.HTTPException) as exc:
                raise SourceError(f"{shown} broke off", found=fault_reason(exc)) from exc
            length = _whole_length(answer.headers, shown)
            if length is not None and length != size:
                raise _wrong_length(shown, size, length, head, name)
            if fault := head_fault(name, head):
                raise _not_the_file(shown, name, fault)
        else:
            raise SourceError(f"{shown} refused", expected="status 200", found=f"status {answer.status}")
        yield _HttpStream(url, answer, offset, strong_validator(answer.headers.get("ETag")) or validator, head)


@contextlib.contextmanager
def _open_file(url: str, name: str, size: int) -> Iterator[Stream]:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise SourceError(f"{path} cannot be read", found=exc.strerror) from exc
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise SourceError(f"{path} cannot be copied", expected="a regular file", found="something else")
        head = os.pread(fd, HEAD, 0)
        if state.st_size != size:
            raise _wrong_length(path, size, state.st_size, head, name)
        if fault := head_fault(name, head):
            raise _not_the_file(path, name, fault)
        yield _FileStream(path, fd)
    finally:
        os.close(fd)


def open_source(
    url: str, *, name: str, size: int, offset: int = 0, validator: str | None = None, timeout_s: float = 60.0
) -> contextlib.AbstractContextManager[Stream]:
    """Open ``url`` as the file ``name`` of ``size`` bytes, from ``offset`` if it still is the file ``validator``.

    Raises SourceError (RangeRefused where only the continuation failed) before a byte is written: another length than
    declared, an HTML page, an LFS pointer, the wrong magic, an encoded body, any status but 200 and a right 206.
    ``timeout_s`` is the longest silence that is borne.
    """
    if urllib.parse.urlsplit(url).scheme == "file":
        return _open_file(url, name, size)
    return _open_http(url, name, size, offset, validator, timeout_s)


def receive(stream: Stream, fd: int, *, shown: str, size: int, on_bytes: Callable[[int], None]) -> None:
    """Write the stream to ``fd`` until it holds exactly ``size`` bytes; fewer or more are a SourceError.

    ``on_bytes`` gets the file's length after each block.
    """
    position = stream.offset
    while position < size:
        count = stream.transfer(fd, position, size - position)
        if not count:
            raise SourceError(f"{shown} ended early", expected=f"{size} bytes", found=f"{position} bytes")
        position += count
        on_bytes(position)
    if stream.has_more():
        raise SourceError(f"{shown} sends more than declared", expected=f"{size} bytes", found=f"more than {size}")
