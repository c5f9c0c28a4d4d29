# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's headless Chromium, spoken to through a pair of pipes: messages of JSON that end with a zero byte."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = "chromium-headless-shell"
_LIMIT_S = 60


class Browser:
    """One browser with one page; ``requests`` are the addresses that it asked for."""

    def __init__(self, home: Path) -> None:
        # It reads from 3 and writes to 4, which Popen does not hand out.
        command = f'exec {PROGRAM} "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null'
        flags = ["--remote-debugging-pipe", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={home}"]
        self._process = subprocess.Popen(
            ["sh", "-c", command, PROGRAM, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._number, self._rest, self._session = 0, b"", ""
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.communicate(timeout=30)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self._out, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"{PROGRAM} gave no answer (exit status {self._process.poll()})")
            self._rest += data
        head, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(head)
        if told.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["params"]["request"]["url"])
        return told

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._in, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _LIMIT_S
        while (told := self._message(deadline)).get("id") != self._number:
            pass
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def show(self, page: Path, width: int, scheme: str) -> None:
        """Open ``page`` at ``width`` CSS pixels, ``scheme`` light or dark."""
        sizes = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **sizes)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + _LIMIT_S
        while self.value("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{page} does not load")
            time.sleep(0.02)

    def shoot(self, path: Path) -> None:
        """The whole page as a PNG."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(told["data"]))
