# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model hub's API: the commit that a revision means, and size and digest of the files at that commit."""

from __future__ import annotations

import difflib
import http.client
import json
import re
import time
import urllib.parse
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._auth import read_token
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import (
    SourceError,
    Token,
    answer_to,
    check_url,
    fault_reason,
    origin_of,
    shown_url,
)

__all__ = ["Hub", "HubFile", "commit_of", "files_at"]

_MOST_BYTES = 8 << 20  # of one answer; a full page of 1000 files is below 1 MiB
_MOST_PAGES = 100
_BLOCK = 1 << 16
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LINK = re.compile(r"<([^<>]*)>([^<>]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*"?next"?\s*(?:[;,]|$)', re.IGNORECASE)
_REMEDIES = {
    401: "Check the repository's name: a hub answers so for one that is not there, too. "
    "A private one needs `token_file` or `token_env`",
    403: "Accept the repository's terms on the hub with the token's account, and check that the token may read it",
    404: "Check `repo` and `revision`",
    429: "Nothing was written. Run it again later; with a token the hub allows more requests",
}


@dataclass(frozen=True)
class Hub:
    """Where to ask, and as whom. ``timeout_s`` is for each read, ``deadline_s`` for one whole answer."""

    url: str
    token: Token | None = None
    timeout_s: float = 30.0
    deadline_s: float = 120.0

    @classmethod
    def from_params(cls, hub_url: str, token_file: str | None, token_env: str | None) -> Hub:
        """From module options; a FleetError for a URL that is none, and for a token that cannot be had or sent."""
        url = hub_url.rstrip("/")
        check_url("hub_url", url)
        if not url.startswith(("http://", "https://")):
            raise FleetError("hub_url", expected="http:// or https://", found=url)
        return cls(url, read_token(token_file, token_env, url))


@dataclass(frozen=True)
class HubFile:
    """One file of a repository; ``sha256`` is None for one that git itself keeps: it has the id of a blob alone."""

    bytes: int
    sha256: str | None


def commit_of(hub: Hub, who: str, repo: str, revision: str) -> str:
    """The commit (40 digits) that ``revision`` means now. A commit is taken as it is: nothing is asked."""
    if _COMMIT.fullmatch(revision):
        return revision
    url = f"{hub.url}/api/models/{repo}/revision/{urllib.parse.quote(revision, safe='')}"
    told, _following = _ask(hub, who, url)
    commit = told.get("sha") if isinstance(told, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise FleetError(
            f"{who}: {shown_url(url)} names no commit", expected="`sha` with 40 hexadecimal digits", found=_cut(commit)
        )
    return commit


def files_at(hub: Hub, who: str, repo: str, commit: str, names: Collection[str]) -> dict[str, HubFile]:
    """The files ``names`` (paths) of ``repo`` at ``commit``; a FleetError that names the first that is not there."""
    found: dict[str, HubFile] = {}
    paths: list[str] = []
    for shown, page in _pages(hub, who, f"{hub.url}/api/models/{repo}/tree/{commit}?recursive=true"):
        for entry in page:
            path = entry.get("path") if isinstance(entry, dict) else None
            if not isinstance(path, str):
                raise _malformed(who, shown, entry)
            if entry.get("type") == "file":
                paths.append(path)
                if path in names:
                    found[path] = _file(who, shown, entry)
        if len(found) == len(set(names)):
            return found
    missing = sorted(set(names) - set(found))[0]
    near = difflib.get_close_matches(missing, paths, 1)
    raise FleetError(
        f"{who}: {repo} has no file {missing!r} at commit {commit}",
        expected="a file's whole path in the repository",
        found=f"{len(paths)} other files" + (f", among them {near[0]!r}" if near else ""),
        remedy="Correct `file` (or `name`, where `file` is not set) or `revision`",
    )


def _file(who: str, shown: str, entry: dict[str, Any]) -> HubFile:
    size, lfs = entry.get("size"), entry.get("lfs")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _malformed(who, shown, entry)
    if lfs is None:
        return HubFile(size, None)
    digest = lfs.get("oid") if isinstance(lfs, dict) else None
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest) or lfs.get("size") != size:
        raise _malformed(who, shown, entry)
    return HubFile(size, digest)


def _pages(hub: Hub, who: str, url: str) -> Iterator[tuple[str, list[Any]]]:
    """(URL as messages may show it, entries) of each page. A list that does not end is a FleetError."""
    seen: set[str] = set()
    shown = shown_url(url)
    while url:
        if url in seen or len(seen) == _MOST_PAGES:
            found = "a page that leads back" if url in seen else "more"
            raise FleetError(f"{who}: {shown} does not end", expected=f"at most {_MOST_PAGES} pages", found=found)
        seen.add(url)
        page, following = _ask(hub, who, url)
        if not isinstance(page, list):
            raise _malformed(who, shown, page)
        yield shown, page
        url = urllib.parse.urljoin(url, following) if following else ""
        if url and origin_of(url) != origin_of(hub.url):
            raise FleetError(
                f"{who}: {shown} goes on elsewhere",
                expected=f"its next page at {hub.url}",
                found=shown_url(url),
                remedy="Set the hub's URL to where its pages lead",
            )


def _next(header: str) -> str | None:
    """The target of ``rel="next"`` in a Link header (RFC 8288)."""
    return next((target for target, params in _LINK.findall(header) if _NEXT.search(params)), None)


def _ask(hub: Hub, who: str, url: str) -> tuple[Any, str | None]:
    """(the JSON that ``url`` answers with, its next page); every refusal is a FleetError that begins with ``who``."""
    try:
        with answer_to(url, {"Accept": "application/json"}, hub.timeout_s, hub.token) as (answer, shown):
            body = _body(answer, f"{who}: {shown}", hub.deadline_s)
            link = ", ".join(answer.headers.get_all("Link") or ())
    except SourceError as exc:
        remedy = _REMEDIES.get(exc.facts.get("status", 0), exc.remedy)
        raise FleetError(
            f"{who}: {exc.what}", expected=exc.expected, found=exc.found, remedy=remedy, **exc.facts
        ) from exc
    try:
        return json.loads(body), _next(link)
    except (ValueError, RecursionError) as exc:
        raise FleetError(f"{who}: {shown} gives no JSON", found=_cut(body[:60])) from exc


def _body(answer: http.client.HTTPResponse, what: str, deadline_s: float) -> bytes:
    """The whole answer, if it is not too long and does not take too long."""
    end = time.monotonic() + deadline_s
    body = bytearray()
    try:
        while block := answer.read1(_BLOCK):
            body += block
            if len(body) > _MOST_BYTES:
                raise FleetError(f"{what} is too long", expected=f"at most {_MOST_BYTES} bytes", found="more")
            if time.monotonic() > end:
                raise FleetError(f"{what} is too slow", expected=f"an answer within {deadline_s:g} s")
    except (OSError, http.client.HTTPException) as exc:
        raise FleetError(f"{what} breaks off after {len(body)} bytes", found=fault_reason(exc)) from exc
    return bytes(body)


def _malformed(who: str, shown: str, found: Any) -> FleetError:
    expected = "a list of files with path, type, size and, kept by LFS, a sha256 of 64 digits and the same size"
    return FleetError(f"{who}: {shown} is malformed", expected=expected, found=_cut(found))


def _cut(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 120 else f"{text[:117]}..."
