# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub on 127.0.0.1: branches, commits, trees in pages, a token, and faults on request."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

OLD, NEW = "0" * 39 + "1", "1" * 39 + "2"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lfs(path: str, content: str) -> dict[str, Any]:
    """A tree's entry of a file that LFS keeps."""
    size = len(content)
    kept = {"oid": digest_of(content), "size": size, "pointerSize": 134}
    return {"type": "file", "oid": "b" * 40, "size": size, "path": path, "lfs": kept, "xetHash": "e" * 64}


def small(path: str, size: int = 20) -> dict[str, Any]:
    """A tree's entry of a file that git keeps."""
    return {"type": "file", "oid": "c" * 40, "size": size, "path": path}


def folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": "d" * 40, "size": 0, "path": path}


@dataclass
class HubServer:
    """``trees``: repo to commit to entries; ``branches``: repo to name to commit; ``requests``: (path, headers).

    ``status`` answers everything with itself; ``body`` replaces every body; ``link`` replaces each Link header;
    ``cut`` ends each answer half-way; ``per_page`` entries make a page.
    """

    trees: dict[str, dict[str, list[Any]]]
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    per_page: int = 1000
    token: str = ""
    status: int = 200
    body: bytes | None = None
    link: str | None = None
    cut: bool = False
    base: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def answer(self, target: str, headers: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        """(status, JSON value, headers)."""
        parts = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if self.status != 200:
            return self.status, {"error": "so it is"}, {"Retry-After": "300"} if self.status == 429 else {}
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {"error": "Invalid username or password."}, {}
        head, verb, revision = parts.path.rsplit("/", 2)
        repo, revision = head.removeprefix("/api/models/"), urllib.parse.unquote(revision)
        if verb == "revision" and revision in self.branches.get(repo, {}):
            return 200, {"id": repo, "sha": self.branches[repo][revision], "siblings": []}, {}
        if verb != "tree" or query.get("recursive") != "true" or revision not in self.trees.get(repo, {}):
            return 404, {"error": "Invalid rev id"}, {}
        entries, start = self.trees[repo][revision], int(query.get("cursor", 0))
        more = {}
        if start + self.per_page < len(entries):
            query["cursor"] = str(start + self.per_page)
            url = f"{self.base}{parts.path}?{urllib.parse.urlencode(query)}"
            more["Link"] = f'<{self.base}/first>; rel="first", <{url}>; rel="next"'
        return 200, entries[start : start + self.per_page], more


@contextlib.contextmanager
def serve(hub: HubServer) -> Iterator[HubServer]:
    """Run the hub until the block ends; ``hub.base`` is its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            hub.requests.append((self.path, dict(self.headers)))
            status, value, headers = hub.answer(self.path, dict(self.headers))
            body = json.dumps(value).encode() if hub.body is None else hub.body
            if hub.link is not None:
                headers["Link"] = hub.link
            self.send_response(status)
            for key, text in headers.items():
                self.send_header(key, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if hub.cut else body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.base = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def chat_hub() -> HubServer:
    """A repository with a model, a projector in a folder and a file of git's, at two commits."""
    rest = [small("README.md"), folder("vision"), lfs("vision/mmproj.gguf", "projector"), small("config.json")]
    trees = {OLD: [*rest, lfs("chat.gguf", "old model")], NEW: [*rest, lfs("chat.gguf", "the new model")]}
    return HubServer({"me/chat": trees}, {"me/chat": {"main": NEW, "v1": OLD, "refs/pr/1": OLD}})
