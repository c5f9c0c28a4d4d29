# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Getting bytes: a range of one source (file://, http://, https://), opened as a stream and proven to be that range."""

from __future__ import annotations

import contextlib
import email.message
import errno
import http.client
import os
import re
import socket
import stat
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import (
    NUMBER,
    RangeRefused,
    RemoteChanged,
    SourceError,
    Token,
    Transient,
    answer_to,
    fault_reason,
    strong_validator,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._member import open_member
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import HEAD, head_fault

__all__ = ["Stream", "Want", "no_write", "open_source"]

_PIECE = 256 << 10  # bytes asked of a connection at once: what is lost at most when it breaks
_COPY = 16 << 20  # bytes that one copy inside the kernel may move: progress stays smooth
_CONTENT_RANGE = re.compile(rf"bytes ({NUMBER})-({NUMBER})/({NUMBER}|\*)")
# The kernel or the file systems cannot copy between these two: read and write instead.
_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


@dataclass(frozen=True)
class Want:
    """Bytes ``start`` to ``end`` (exclusive) of the file ``name`` of ``size`` bytes.

    ``validator``: the strong validator of the file that the bytes must be of; None where it is not known yet.
    """

    name: str
    size: int
    start: int
    end: int
    validator: str | None = None

    @property
    def whole(self) -> bool:
        """Whether this is the file from its first byte to its last."""
        return self.start == 0 and self.end == self.size


class Stream(Protocol):
    """An open source that gives the bytes ``start`` to ``end`` of the file ``validator``.

    They are what was asked, or the whole file where the source knows no ranges or the file is another one by now.
    ``shown`` is its name for messages.
    """

    shown: str
    start: int
    end: int
    validator: str | None

    def read(self, buffer: memoryview) -> int:
        """Fill the start of ``buffer`` with the next bytes; their number, 0 at the end of the source.

        Raises SourceError, Transient where the connection broke; bytes read before stay taken.
        """
        ...

    def copy(self, fd: int, position: int, limit: int) -> int:
        """Move at most ``limit`` of the next bytes to ``fd`` inside the kernel; 0 where that cannot be done."""
        ...

    def abort(self) -> None:
        """End a ``read`` that another thread waits in."""
        ...


def no_write(exc: OSError) -> FleetError:
    """The target failed, not the source: no other source will help."""
    return FleetError(
        "the partial file could not be written",
        expected="room and a healthy file system",
        found=exc.strerror,
        remedy="Free space or mend the file system, then run again",
    )


class _FileStream:
    """A local file; copied inside the kernel where it can (which shares blocks on some file systems)."""

    def __init__(self, path: str, fd: int, want: Want, validator: str) -> None:
        self.shown, self._fd = path, fd
        self.start, self.end = want.start, want.end
        self.validator: str | None = validator
        self._position = want.start
        self._kernel = hasattr(os, "copy_file_range")

    def read(self, buffer: memoryview) -> int:
        try:
            count = os.preadv(self._fd, [buffer], self._position)
        except OSError as exc:
            raise SourceError(f"{self.shown} cannot be read", found=exc.strerror) from exc
        self._position += count
        return count

    def copy(self, fd: int, position: int, limit: int) -> int:
        if not self._kernel:
            return 0
        try:
            count = os.copy_file_range(self._fd, fd, min(limit, _COPY), self._position, position)
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                raise no_write(exc) from exc
            if exc.errno not in _NO_KERNEL_COPY:
                raise SourceError(f"{self.shown} cannot be read", found=exc.strerror) from exc
            count = 0
        self._kernel = count > 0  # some virtual file systems say 0 where a read finds bytes
        self._position += count
        return count

    def abort(self) -> None:
        """A local read ends by itself."""


class _HttpStream:
    """The body of one answer; ``head`` are its first bytes, read already."""

    def __init__(
        self,
        shown: str,
        answer: http.client.HTTPResponse,
        connection: socket.socket,
        start: int,
        end: int,
        validator: str | None,
        head: bytes,
    ) -> None:
        self.shown, self._answer, self._connection, self._head = shown, answer, connection, memoryview(head)
        self.start, self.end, self.validator = start, end, validator

    def read(self, buffer: memoryview) -> int:
        if self._head:
            count = min(len(self._head), len(buffer))
            buffer[:count], self._head = self._head[:count], self._head[count:]
            return count
        try:
            return self._answer.readinto(buffer[:_PIECE])
        except (OSError, http.client.HTTPException) as exc:
            raise Transient(f"{self.shown} broke off", found=fault_reason(exc)) from exc

    def copy(self, fd: int, position: int, limit: int) -> int:
        return 0

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._connection.shutdown(socket.SHUT_RDWR)


def _whole_length(headers: email.message.Message, shown: str) -> int | None:
    """The length that a 200 announces, None where it announces none (chunked, or until the connection closes)."""
    text = headers.get("Content-Length")
    if text is None or headers.get("Transfer-Encoding"):
        return None
    if not re.fullmatch(NUMBER, text.strip()):
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


def _check_head(shown: str, name: str, head: bytes) -> None:
    if kind := head_fault(name, head):
        raise SourceError(f"{shown} does not give {name}", expected="the file itself", found=kind)


def _check_range(answer: http.client.HTTPResponse, shown: str, want: Want) -> None:
    """Accept a 206 only if it is exactly the asked range of exactly the asked file."""
    text = answer.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match and match[3] != "*" and int(match[3]) != want.size:
        raise SourceError(
            f"{shown} has another length than declared", expected=f"{want.size} bytes", found=f"{match[3]} bytes"
        )
    if not match or match[3] == "*" or (int(match[1]), int(match[2])) != (want.start, want.end - 1):
        raise RangeRefused(
            f"{shown} answers another range than asked",
            expected=f"bytes {want.start}-{want.end - 1}/{want.size}",
            found=text[:80] or "no Content-Range",
        )
    etag = answer.headers.get("ETag")
    if want.validator and etag is not None and etag.strip() != want.validator:
        raise RemoteChanged(f"{shown} continues another file", expected=f"ETag {want.validator}", found=f"ETag {etag}")


@contextlib.contextmanager
def _open_http(url: str, want: Want, timeout_s: float, token: Token | None) -> Iterator[Stream]:
    headers = {}
    if not want.whole:
        headers["Range"] = f"bytes={want.start}-{want.end - 1}"
        if want.validator:
            headers["If-Range"] = want.validator
    with (
        answer_to(url, headers, timeout_s, token) as (answer, shown),
        socket.socket(fileno=os.dup(answer.fileno())) as connection,
    ):
        if answer.status == 206 and not want.whole:
            _check_range(answer, shown, want)
            start, end = want.start, want.end
            length: int | None = want.size
        elif answer.status == 200:
            start, end = 0, want.size
            length = _whole_length(answer.headers, shown)
        else:
            raise SourceError(f"{shown} refused", expected="status 200", found=f"status {answer.status}")
        head = b""
        if start == 0:
            try:
                head = answer.read(min(HEAD, end))
            except (OSError, http.client.HTTPException) as exc:
                raise Transient(f"{shown} broke off", found=fault_reason(exc)) from exc
            if length is not None and length != want.size:
                raise _wrong_length(shown, want.size, length, head, want.name)
            _check_head(shown, want.name, head)
        validator = strong_validator(answer.headers.get("ETag"))
        if answer.status == 206:
            validator = validator or want.validator
        yield _HttpStream(shown, answer, connection, start, end, validator, head)


@contextlib.contextmanager
def _open_file(url: str, want: Want) -> Iterator[Stream]:
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
        if state.st_size != want.size:
            raise _wrong_length(path, want.size, state.st_size, head, want.name)
        _check_head(path, want.name, head)
        validator = f'"{state.st_dev}-{state.st_ino}-{state.st_mtime_ns}-{state.st_ctime_ns}"'
        if want.validator not in (None, validator):
            raise RemoteChanged(f"{path} changed", expected=f"file {want.validator}", found=f"file {validator}")
        yield _FileStream(path, fd, want, validator)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open_member(url: str, want: Want, timeout_s: float) -> Iterator[Stream]:
    with open_member(url, timeout_s, HEAD) as stream:
        if stream.end != want.size:
            raise _wrong_length(stream.shown, want.size, stream.end, stream.head, want.name)
        _check_head(stream.shown, want.name, stream.head)
        yield stream


def open_source(
    url: str, want: Want, *, timeout_s: float = 60.0, token: Token | None = None
) -> contextlib.AbstractContextManager[Stream]:
    """Open ``url`` at the wanted range, if it still is a range of the wanted file.

    Raises SourceError before a byte is given: another length than declared, an HTML page, an LFS pointer, the wrong
    magic, an encoded body, any status but 200 and a right 206. Transient, RangeRefused and RemoteChanged say what may
    be tried at the same source. ``timeout_s`` is the longest silence that is borne.
    """
    if "#" in url:
        return _open_member(url, want, timeout_s)
    if urllib.parse.urlsplit(url).scheme == "file":
        return _open_file(url, want)
    return _open_http(url, want, timeout_s, token)
