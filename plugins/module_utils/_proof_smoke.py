# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does this build serve? One real start with a tiny model, one question, and an answer with tokens in it.

A health check would not do: an engine whose device code is missing loads, says that it is well, and dies on its first
request. The chat path is asked, since the raw one of some forks refuses what a tool parser does not know.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_model import tiny_model
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import BARE_ENV

__all__ = ["one_answer"]

TIMEOUT_S = 120.0
_TOKENS = 8
_TAIL_LINES = 12


def one_answer(server: str, *, device: str = "none", timeout_s: float = TIMEOUT_S) -> str:
    """Start ``server`` with a tiny model on ``device`` (none: the processor) and ask it once; says what came back.

    A FleetError where it does not start, does not become healthy, ends, or does not answer in time.
    """
    until = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="llm-fleet-proof-") as folder:
        model, log = os.path.join(folder, "tiny.gguf"), os.path.join(folder, "log")
        with open(model, "wb") as handle:
            handle.write(tiny_model())
        port = _free_port()
        layers = "0" if device == "none" else "99"
        argv = [server, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--device", device]
        argv += ["--n-gpu-layers", layers, "--ctx-size", "256", "--parallel", "1", "--threads", "1", "--jinja"]
        with open(log, "wb") as sink:
            process = subprocess.Popen(
                argv,
                env=BARE_ENV,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_healthy(process, port, until, log)
            return _ask(process, port, until, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: str) -> str:
    with open(log, "rb") as handle:
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _ended(process: subprocess.Popen[bytes], doing: str, log: str) -> FleetError:
    rc = process.wait()
    how = f"by signal {-rc}" if rc < 0 else f"with status {rc}"
    return FleetError(f"the server ended {how} {doing}", expected="an answer", found=_tail(log) or "no output")


def _request(port: int, method: str, path: str, body: object, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(0.1, timeout_s))
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        connection.close()


def _wait_healthy(process: subprocess.Popen[bytes], port: int, until: float, log: str) -> None:
    while True:
        if process.poll() is not None:
            raise _ended(process, "while it started", log)
        left = until - time.monotonic()
        if left <= 0:
            raise FleetError("the server did not become healthy", expected="/health 200 in time", found=_tail(log))
        with contextlib.suppress(OSError, http.client.HTTPException):  # not listening yet
            if _request(port, "GET", "/health", None, min(left, 5))[0] == 200:
                return
        time.sleep(0.05)


def _ask(process: subprocess.Popen[bytes], port: int, until: float, log: str) -> str:
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    left = until - time.monotonic()
    try:
        status, said = _request(port, "POST", "/v1/chat/completions", body, left)
    except TimeoutError as exc:
        raise FleetError("the server did not answer", expected="an answer in time", found=_tail(log)) from exc
    except (OSError, http.client.HTTPException) as exc:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        if process.poll() is not None:
            raise _ended(process, "on its first request", log) from exc
        raise FleetError("the server broke off", expected="an answer", found=f"{exc}; {_tail(log)}") from exc
    text = said.decode("utf-8", "replace")
    if status != 200:
        raise FleetError("the server refused the request", expected="status 200", found=f"{status}: {text[:400]}")
    try:
        count = int(json.loads(text)["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError) as exc:
        raise FleetError("the answer is none", expected="usage.completion_tokens", found=text[:400]) from exc
    if count < 1:
        raise FleetError("the answer is empty", expected="tokens", found=count)
    return f"{count} tokens"
