# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the test host: {name: argv} on stdin, {name: {listening, rc, log}} on stdout. Two servers at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

READY = b"listening on http://"
PATIENCE_S = 60.0


def boot(argv: list[str], port: int) -> dict[str, Any]:
    """Start a server, wait until it listens or ends, stop it."""
    # Read through a handle of its own: one shared with the server would move the place where it writes.
    with tempfile.NamedTemporaryFile("ab") as log, open(log.name, "rb") as reader:
        server = subprocess.Popen(
            [*argv, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        until, text = time.monotonic() + PATIENCE_S, b""
        while READY not in text and server.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
            text += reader.read()
        server.terminate()
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        listening = READY in text
        text += reader.read()
    return {"listening": listening, "rc": server.returncode, "log": text.decode(errors="replace")}


def main() -> None:
    """Boot all of them."""
    cases = json.load(sys.stdin)
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(boot, cases.values(), range(20000, 20000 + len(cases))))
    json.dump(dict(zip(cases, ends, strict=True)), sys.stdout)


main()
