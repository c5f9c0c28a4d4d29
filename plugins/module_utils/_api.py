# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to an endpoint on its own host: one request, one answer, never a retry of its own."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["Api", "Response"]

_MAX_BODY = 16 * 1024 * 1024


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
        except ValueError as exc:
            raise FleetError(f"{where} answered no JSON", expected="JSON", found=repr(self.body[:200])) from exc

    @property
    def words(self) -> str:
        """The answer in short, for a message."""
        if self.status == 0:
            return self.error
        try:  # both engines answer {"error": {"message": ...}}
            return f"HTTP {self.status} {json.loads(self.body)['error']['message']}"
        except (ValueError, KeyError, TypeError):
            pass  # not of that form: the body itself, below
        return f"HTTP {self.status} {self.body[:200].decode('utf-8', 'replace').strip()}"


class Api:
    """One endpoint at ``host``:``port``; ``key`` is its API key and never shows in messages."""

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        self.host = host
        self.port = port
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 10
    ) -> Response:
        """Send one request; a refused or broken connection is a Response with status 0, not an exception."""
        started = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            payload = answer.read(_MAX_BODY)
            if answer.length:  # read(n) does not complain of a body that is cut short
                raise http.client.IncompleteRead(payload, answer.length)
            return Response(answer.status, payload, time.monotonic() - started)
        except (OSError, http.client.HTTPException) as exc:
            return Response(0, b"", time.monotonic() - started, f"no answer ({type(exc).__name__}: {exc})")
        finally:
            connection.close()

    def get(self, path: str, *, timeout_s: float = 10) -> Response:
        """GET ``path``."""
        return self.request("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60) -> Response:
        """POST ``body`` as JSON to ``path``."""
        return self.request("POST", path, body, timeout_s=timeout_s)
