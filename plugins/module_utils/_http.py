# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP as a fetch needs it: one GET, its redirects, its credentials, and what a refusal says about trying again."""

from __future__ import annotations

import contextlib
import email.message
import email.utils
import http.client
import ipaddress
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = [
    "NUMBER",
    "RangeRefused",
    "RemoteChanged",
    "SourceError",
    "Token",
    "Transient",
    "answer_to",
    "check_url",
    "fault_reason",
    "is_loopback",
    "origin_of",
    "retry_after",
    "shown_url",
    "strong_validator",
]

_AGENT = "llm_fleet-payload/0.1"
# A number of a header: 64 bits at most, since int() raises on thousands of digits, and ASCII alone.
NUMBER = r"[0-9]{1,19}"
_BUSY = frozenset({429, 503})
_TROUBLED = frozenset({500, 502, 504})


class SourceError(FleetError):
    """This source failed; another may do."""


class RangeRefused(SourceError):
    """The source does not continue where the partial file ends; it may still give the whole file."""


class RemoteChanged(RangeRefused):
    """The source gives another file than the one whose bytes are here already."""


class Transient(SourceError):
    """The source may go on in a moment. ``wait_s`` is how long it asked to be left alone, None where it did not say;
    ``busy`` whether it asked for fewer requests."""

    wait_s: float | None = None
    busy: bool = False


@dataclass(frozen=True)
class Token:
    """A bearer token and the one origin that may see it. Its value is in no repr, message or result."""

    origin: str
    value: str = field(repr=False)

    def header_for(self, url: str) -> dict[str, str]:
        """The Authorization header for a request to ``url``; nothing for any other origin than its own."""
        return {"Authorization": f"Bearer {self.value}"} if origin_of(url) == self.origin else {}


def origin_of(url: str) -> str:
    """``scheme://host:port`` in lower case, with the port: what must be equal for credentials to go along."""
    parts = urllib.parse.urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this very machine by its address, or the name localhost."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within http and https only. The Authorization header goes no further than its own origin."""

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
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        credentials = req.unredirected_hdrs.get("Authorization")
        if request is not None and credentials and origin_of(newurl) == origin_of(req.full_url):
            request.add_unredirected_header("Authorization", credentials)
        return request


def fault_reason(exc: BaseException) -> str:
    """What went wrong on the way, in the fewest words."""
    inner = exc.reason if isinstance(exc, urllib.error.URLError) else exc
    if isinstance(inner, TimeoutError):
        return "no bytes within the time allowed"
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def retry_after(headers: email.message.Message, now: float) -> float | None:
    """Seconds that the header Retry-After asks for (a number or a date), None where it is absent or malformed."""
    text = (headers.get("Retry-After") or "").strip()
    if re.fullmatch(NUMBER, text):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _refusal(shown: str, exc: urllib.error.HTTPError, ranged: bool) -> SourceError:
    """The exception that a status from 400 stands for."""
    found = f"status {exc.code} {exc.reason}"
    kind = Transient if exc.code in _BUSY | _TROUBLED else RangeRefused if ranged and exc.code == 416 else SourceError
    wait_s = retry_after(exc.headers, time.time()) if exc.code in _BUSY else None
    if wait_s is not None:
        found += f", try again after {wait_s:.0f} s"
    remedy = None
    if exc.code in (401, 403):
        remedy = "Check that the file is public, or that `token_file` or `token_env` gives a token that may read it"
    error = kind(f"{shown} refused", expected="status 200", found=found, remedy=remedy, status=exc.code)
    if isinstance(error, Transient):
        error.wait_s, error.busy = wait_s, exc.code in _BUSY
    return error


@contextlib.contextmanager
def answer_to(
    url: str,
    headers: dict[str, str],
    timeout_s: float,
    token: Token | None = None,
    handlers: Sequence[urllib.request.BaseHandler] = (),
) -> Iterator[tuple[http.client.HTTPResponse, str]]:
    """Send one GET, follow redirects; the answer, and the URL as messages may show it.

    ``token`` is sent to its own origin alone, whatever redirects say; ``handlers`` stand in the place of urllib's of
    their kind. Raises SourceError where there is no answer, or
    one of a status from 400, or an encoded one: Transient where it may do in a moment, RangeRefused where a range was
    asked and cannot be satisfied.
    """
    shown = shown_url(url)
    fixed = {"User-Agent": _AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}
    opener = urllib.request.build_opener(_Redirects(), *handlers)
    request = urllib.request.Request(url, headers=fixed | headers)
    for key, value in (token.header_for(url) if token else {}).items():
        request.add_unredirected_header(key, value)
    try:
        answer = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as exc:
        with exc:
            raise _refusal(shown, exc, "Range" in headers) from exc
    except (OSError, http.client.HTTPException) as exc:
        inner = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        broken = isinstance(inner, ConnectionError | TimeoutError | http.client.HTTPException)
        kind = Transient if broken else SourceError
        raise kind(f"{shown} cannot be reached", found=fault_reason(exc)) from exc
    with answer:
        if answer.geturl() != url:
            shown = f"{shown} (redirected to {shown_url(answer.geturl())})"
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise SourceError(f"{shown} sends encoded bytes", expected="no Content-Encoding", found=encoding)
        yield answer, shown
