# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Killed with SIGKILL at random moments and run again: always ends right, and nothing unproven has a final name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial
from fileserver import FileServer, file_server

KILLS = 200
BLOCK, SEGMENT, CONNECTIONS = 64 << 10, 256 << 10, 4
BODIES = {f"s{number}.gguf": b"GGUF" + random.Random(number).randbytes(900_000 + number) for number in range(3)}
TOTAL = sum(map(len, BODIES.values()))

# Imports once, then forks a process for each line on its input: its number comes back, and its status when it is over.
NURSERY = """
import json, os, sys
from ansible_collections.dank.llm_fleet.plugins.module_utils import _download, _hasher, _incoming, _payload
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import PayloadSpec, ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
block, segment = int(sys.argv[1]), int(sys.argv[2])
_download.BLOCK = _hasher.BLOCK = _incoming.BLOCK = block
_hasher.Hasher.keeps_up = lambda self: True  # help at once: all ranges are to be open
os.fsync = lambda fd: None  # what a kill leaves is in the page cache; power cuts are not tried here
tuning = _incoming.Tuning(segment=segment, run=2, window=64 * segment, pause_s=0.01)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            spec = PayloadSpec.from_params(json.loads(line))
            result = ensure(spec, check_mode=False, progress=Progress(None), tuning=tuning)
            with open(sys.argv[3], "w") as handle:
                json.dump([result["fetch_bytes"], result["failures"]], handle)
        except BaseException as exc:
            print(repr(exc), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(b"") as state:
        state.bodies.update(BODIES)
        yield state


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", NURSERY, str(BLOCK), str(SEGMENT), str(tmp_path / "result")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(nursery: subprocess.Popen[str], params: dict[str, Any], wait: Callable[[], None] | None = None) -> int:
    """One run, killed when ``wait`` returns; its wait status."""
    assert nursery.stdin is not None and nursery.stdout is not None
    nursery.stdin.write(json.dumps(params) + "\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline())
    if wait is not None:
        wait()
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(pid, signal.SIGKILL)
    return int(nursery.stdout.readline())


def prefix(one: bytes, other: bytes) -> int:
    """How many bytes are the same from the start."""
    if one == other:
        return len(one)
    low, high = 0, len(one)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def inspect(folder: Path) -> int:
    """Check what a kill left; the bytes that a later run may go on with."""
    kept = 0
    for name, body in BODIES.items():
        final = folder / name
        if final.exists():
            assert final.read_bytes() == body, f"{name} has its name and is wrong"
            kept += len(body)
            continue
        partial = Partial(str(folder), name)
        found = partial.progressed(len(body), hashlib.sha256(body).hexdigest())
        if found is None:
            continue
        data, ahead = Path(partial.path).read_bytes(), 0
        for index, count in enumerate(found.counts):
            start = index * SEGMENT
            there = prefix(data[start : start + SEGMENT], body[start : start + SEGMENT])
            assert count <= there, f"{name}: {count} bytes of segment {index} claimed, {there} there"
            assert there - count <= BLOCK, f"{name}: {there - count} bytes of segment {index} lost"
            ahead += there > count
        assert ahead <= CONNECTIONS
        kept += found.bytes
    return kept


def test_killed_at_any_moment_and_run_again(tmp_path: Path, server: FileServer, nursery: subprocess.Popen[str]) -> None:
    folder, dice = tmp_path / "p", random.Random(4)
    files = [
        {
            "name": name,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "urls": [server.url("good", name)],
        }
        for name, body in BODIES.items()
    ]
    params = {
        "name": "p", "dir": str(folder), "files": files, "mode": "0644",
        "stamp_dir": str(tmp_path / "stamps"), "verify": "stamp", "connections": CONNECTIONS,
    }  # fmt: skip
    server.delay_s = 0.001

    def moment(left: int) -> Callable[[], None]:
        """At random: before the first byte, at any byte of those that are ``left``, after the last."""
        until, more_s = server.sent + dice.uniform(-0.1, 1.1) * left, dice.uniform(0, 0.02)
        last = server.sent + left

        def wait() -> None:
            end = time.monotonic() + 2  # it came to its end, and the rest was of a run before
            while server.sent < min(until, last) and time.monotonic() < end:
                time.sleep(0.0005)
            time.sleep(more_s)

        return wait

    kills = ends = went_on = 0
    while kills < KILLS:
        for path in folder.iterdir() if folder.exists() else ():
            path.unlink()
        kept = 0
        while True:
            status = run(
                nursery,
                params,
                moment(TOTAL - kept) if kills < KILLS and (kept < TOTAL or dice.random() < 0.5) else None,
            )
            if status == 0:
                assert json.loads((tmp_path / "result").read_text()) == [TOTAL - kept, []]
            now = inspect(folder) if folder.exists() else 0
            assert now >= kept
            went_on += kept > 0
            kept = now
            if status == 0:
                break
            assert os.WIFSIGNALED(status)
            kills += 1
        ends += 1
        assert {path.name for path in folder.iterdir()} == {".payload.lock", *BODIES}
        assert kept == TOTAL
    assert went_on > KILLS // 4 and ends > KILLS // 20
