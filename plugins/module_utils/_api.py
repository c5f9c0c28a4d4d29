# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to an endpoint on its own host: one request, one answer, never a retry of its own."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._libs import load
from ansible_collections.dank.llm_fleet.plugins.module_utils._sse import SseParser

if TYPE_CHECKING:
    import requests

__all__ = ["Api", "Response", "Streamed", "api_of"]

_MAX_BODY = 16 * 1024 * 1024
_PIECE = 64 * 1024


@dataclass(frozen=True)
class Response:
    """Status (0: no connection), body bytes, seconds to the last byte, and the reason when there is no answer."""

    status: int
    body: bytes
    seconds: float
    error: str = ""

    def json(self, where: str) -> Any:
        """The body as JSON; a FleetError that shows its start where it is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise FleetError(f"{where} answered no JSON", expected="JSON", found=repr(self.body[:200])) from exc

    @property
    def words(self) -> str:
        """The answer in short, for a message."""
        if self.status == 0:
            return self.error
        try:  # both engines answer {"error": {"message": ...}}
            return f"HTTP {self.status} {json.loads(self.body)['error']['message']}"
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # not of that form: the body itself, below
        return f"HTTP {self.status} {self.body[:200].decode('utf-8', 'replace').strip()}"


@dataclass(frozen=True)
class Streamed:
    """A streamed answer: each event's (seconds since the request, data); ``answer`` holds status, body and fault."""

    answer: Response
    events: tuple[tuple[float, str], ...]


class _TooLong(Exception):
    """The body passed the bound."""


class _UntilSocket(socket.socket):
    """A socket whose reads end at one moment, however slowly the bytes come (a read timeout starts anew with each)."""

    until: float

    def recv_into(self, *args: Any, **options: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out: the deadline of the whole answer passed")
        self.settimeout(left)
        return super().recv_into(*args, **options)


def _session(until: float) -> requests.Session:
    """A session whose connections end at the monotonic time ``until``; no retry, no proxy, no netrc."""
    library, pool = load("requests"), load("urllib3.connectionpool")

    class Connection(pool.HTTPConnection):  # type: ignore[misc, name-defined]
        def _new_conn(self) -> socket.socket:
            plain = super()._new_conn()
            left = max(until - time.monotonic(), 0.001)
            sock = _UntilSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
            sock.settimeout(left)
            sock.until = until
            return sock

    class Pool(pool.HTTPConnectionPool):  # type: ignore[misc, name-defined]
        ConnectionCls = Connection

    session: requests.Session = library.Session()
    session.trust_env = False
    adapter = library.adapters.HTTPAdapter(max_retries=0)
    adapter.poolmanager.pool_classes_by_scheme = {"http": Pool}
    session.mount("http://", adapter)
    return session


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    """The body as it arrives; too long, or cut short of its length, is an exception."""
    total = 0
    for piece in answer.iter_content(_PIECE):
        total += len(piece)
        if total > _MAX_BODY:
            raise _TooLong(f"the body passes {_MAX_BODY >> 20} MiB")
        yield piece
    missing = getattr(answer.raw, "length_remaining", None)  # urllib3 1 does not complain of a body cut short
    if missing:
        raise EOFError(f"the body ends {missing} bytes short")


class Api:
    """One endpoint at ``host``:``port``; ``key`` is its API key and never shows in messages."""

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        self.host = host
        self.port = port
        self._key = key

    def with_key(self, key: str | None) -> Api:
        """The same endpoint, asked with another key, or with none."""
        return Api(self.host, self.port, key)

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key."""
        return self._key is not None

    def _url(self, path: str) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{path}"

    def _hidden(self, text: bytes) -> bytes:
        """Without the key, which some engines repeat in a refusal."""
        return text.replace(self._key.encode(), b"********") if self._key else text

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[requests.Response]:
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        with (
            _session(time.monotonic() + timeout_s) as session,
            session.request(
                method,
                self._url(path),
                data=data,
                headers=headers,
                timeout=timeout_s,
                allow_redirects=False,
                stream=True,
            ) as answer,
        ):
            yield answer

    def _read(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        take: Callable[[bytes, float], None] | None = None,
    ) -> Response:
        """One request; ``take`` is handed each piece of a 200's body with the seconds so far."""
        started = time.monotonic()
        faults = (load("requests").RequestException, load("urllib3").exceptions.HTTPError)
        payload = bytearray()
        try:
            with self._open(method, path, body, timeout_s) as answer:
                for piece in _pieces(answer):
                    payload += piece
                    if take is not None and answer.status_code == 200:
                        take(piece, time.monotonic() - started)
                whole = bytes(payload) if answer.status_code < 400 else self._hidden(bytes(payload))
                return Response(answer.status_code, whole, time.monotonic() - started)
        except (OSError, EOFError, _TooLong, *faults) as exc:
            cause = _root(exc)
            why = f"no answer ({type(cause).__name__}: {cause})"
            return Response(0, b"", time.monotonic() - started, why)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 10
    ) -> Response:
        """Send one request; the whole answer must be there in ``timeout_s``.

        A refused, broken, overlong or late answer is a Response with status 0, not an exception; a redirect is an
        answer like any other.
        """
        return self._read(method, path, body, timeout_s)

    def get(self, path: str, *, timeout_s: float = 10) -> Response:
        """GET ``path``."""
        return self.request("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60) -> Response:
        """POST ``body`` as JSON to ``path``."""
        return self.request("POST", path, body, timeout_s=timeout_s)

    def stream(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60) -> Streamed:
        """POST ``body`` and take the answer as server-sent events; what came before a break is kept."""
        parser = SseParser()
        events: list[tuple[float, str]] = []

        def take(piece: bytes, seconds: float) -> None:
            events.extend((seconds, data) for data in parser.feed(piece))

        answer = self._read("POST", path, {**body, "stream": True}, timeout_s, take)
        return Streamed(answer, tuple(events))


def _root(exc: BaseException) -> BaseException:
    """The exception of the socket or of http.client under those that requests and urllib3 wrap around it."""
    while type(exc).__module__.partition(".")[0] in ("requests", "urllib3"):
        inner = exc.__cause__ or exc.__context__
        if inner is None:
            break
        exc = inner
    return exc


def api_of(env: dict[str, str], *, key_needed: bool = True) -> Api:
    """The endpoint as reached from its own host; the API key, if one is set, is read from its file.

    Without ``key_needed`` a key that is not there is none: what systemd hands over is gone with the unit's end.
    """
    address = _envspec.address_of(_envspec.engine_of(env), env)[0] or "127.0.0.1"
    key = None
    if env.get("API_KEY_FILE"):
        data = read_optional(env["API_KEY_FILE"])
        if data and data.strip():
            key = data.split()[0].decode("latin-1")
            if not re.fullmatch(r"[\x21-\x7e]+", key):
                raise FleetError(
                    f"API_KEY_FILE {env['API_KEY_FILE']}",
                    expected="one word of printable ASCII",
                    found="other characters",
                )
        elif key_needed:
            raise FleetError(f"API_KEY_FILE {env['API_KEY_FILE']}", expected="a file with a key", found="none")
    return Api("127.0.0.1" if address in ("0.0.0.0", "::", "") else address, _envspec.port_of(env), key)
