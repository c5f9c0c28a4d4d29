# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures that several files of tests share."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, sha256_text

# A shared machine is now fast, now slow: what takes long here says nothing of the code.
hypothesis.settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("house")

StandIn = Callable[[str, str], Path]
Answer = tuple[int, bytes] | Callable[[dict[str, str], bytes], tuple[int, bytes]]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Put a stand-in for a program of the host first on PATH: a shell script of the given body."""
    folder = tmp_path / "stand-ins"

    def make(name: str, body: str) -> Path:
        folder.mkdir(exist_ok=True)
        script = folder / name
        script.write_text(f"#!/bin/sh\n# stand-in for {name}\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH'].removeprefix(f'{folder}{os.pathsep}')}")
        return script

    return make


class Served:
    """A real HTTP server on 127.0.0.1; ``answers`` maps a path to (status, body), ``seen`` keeps the requests.

    In place of the pair a function of (headers, body) may answer.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.seen.append((self.command, self.path, dict(self.headers), body))
                given = outer.answers.get(self.path, (404, b"nothing here"))
                status, answer = given(dict(self.headers), body) if callable(given) else given
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, value: Any, status: int = 200) -> None:
        """Answer ``path`` with ``value`` as JSON."""
        self.answers[path] = (status, json.dumps(value).encode())


@pytest.fixture
def served() -> Iterator[Served]:
    """A server for one test."""
    here = Served()
    yield here
    here.server.shutdown()
    here.server.server_close()


@pytest.fixture
def blueprint() -> Callable[..., Blueprint]:
    """Make a blueprint that differs in ``tag`` alone; keyword arguments replace facts."""

    def make(tag: str = "a", **facts: Any) -> Blueprint:
        env = {
            "SERVER_BIN": "/opt/rt/bin/llama-server",
            "ALIAS": "chat",
            "MODEL_FILE": "/models/m.gguf",
            "LISTEN_PORT": "18080",
            "CTX_SIZE": "4096",
            "PARALLEL": "2",
            "TAG": tag,
        }
        whole = {
            "engine": "llamacpp",
            "env": env,
            "argv": ["/opt/rt/bin/llama-server", "--port", "18080"],
            "shape": {"ctx_size": 4096, "parallel": 2, "ctx_per_slot": 2048},
            "runtime": {"name": "cpu", "digest": "d" * 64, "version": "b1", "path": "/opt/rt"},
            "payload": {"name": "smol", "files": []},
            "deadline_s": 5,
            "settle_s": 0.0,
            "timeout_stop_s": 7,
            "client": {},
            "probes": {"max_tokens": 8, "timeout_s": 5},
            "drop_ins": [],
            "rung": None,
            **facts,
        }
        env_text = "".join(f"{key}={value}\n" for key, value in whole["env"].items())
        return Blueprint(sha256_text(tag), env_text, f"[Unit]\nDescription={tag}\n", "#!/bin/bash\n", whole)

    return make


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything that the tests need was installed (make test), a skipped test is a hole and no green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("LLM_FLEET_NO_SKIPS") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("skipped tests count as failed under LLM_FLEET_NO_SKIPS", red=True)
        session.exitstatus = 1
