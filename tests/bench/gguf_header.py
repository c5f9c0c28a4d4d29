# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it costs to read a header with a large vocabulary: ours, PyPI's gguf, and a plain reader with struct.

Each reads the same generated file in a process of its own, in one run; CPU seconds are those of the reading alone
(imports excluded), memory is the process's peak above what it held before. Ours also reads it from a server on the
loopback, for the requests and bytes that takes. Prints a table; asserts nothing about time, but readers that do not
agree on the tensors are an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parents[2]
PEER = "gguf==0.19.0"
PLAIN_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def plain(path: str) -> int:
    """What one writes in an afternoon: every value decoded with struct, one after the other; nothing is checked."""

    def number(handle: BinaryIO, letter: str) -> Any:
        return struct.unpack(f"<{letter}", handle.read(struct.calcsize(f"<{letter}")))[0]

    def text(handle: BinaryIO) -> str:
        return handle.read(number(handle, "Q")).decode("utf-8", "replace")

    def value(handle: BinaryIO, kind: int) -> Any:
        if kind == 8:
            return text(handle)
        if kind == 9:
            element, count = number(handle, "I"), number(handle, "Q")
            return [value(handle, element) for _ in range(count)]
        return number(handle, PLAIN_SIZES[kind])

    with open(path, "rb") as handle:
        handle.read(8)
        tensor_count, key_count = number(handle, "Q"), number(handle, "Q")
        metadata = {text(handle): value(handle, number(handle, "I")) for _ in range(key_count)}
        tensors = {}
        for _ in range(tensor_count):
            name = text(handle)
            dims = [number(handle, "Q") for _ in range(number(handle, "I"))]
            tensors[name] = (dims, number(handle, "I"), number(handle, "Q"))
        assert metadata
        return len(tensors)


def reader(name: str) -> Callable[[str], int]:
    """The reader of that name; it takes a path and returns the number of tensors."""
    if name == "plain":
        return plain
    if name == "peer":
        from gguf import GGUFReader

        return lambda path: len(GGUFReader(path).tensors)
    from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf

    keys = ["tokenizer.ggml.tokens"] if name == "ours-tokens" else None
    return lambda path: read_gguf(path, keys=keys).tensor_count


def peak_kib() -> int:
    """This program's own peak of resident memory (getrusage would count what the process was before exec too)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def child(name: str, path: str) -> None:
    """Measure one reading and print it as JSON."""
    read = reader(name)
    before = peak_kib()
    started, clock = time.process_time(), time.monotonic()
    tensors = read(path)
    cpu, wall = time.process_time() - started, time.monotonic() - clock
    peak = peak_kib() - before
    print(json.dumps({"tensors": tensors, "cpu_s": cpu, "wall_s": wall, "peak_mib": peak / 1024}))


def measure(python: str, name: str, path: Path, times: int) -> dict[str, float]:
    """The medians of ``times`` processes."""
    runs = []
    for _ in range(times):
        done = subprocess.run(
            [python, __file__, "--child", name, str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
        runs.append(json.loads(done.stdout))
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def peer_python(folder: Path) -> str:
    """An interpreter with the peer installed, in a virtual environment of its own."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return python


def remote(path: Path) -> tuple[int, int, float]:
    """Requests, bytes and CPU seconds of our reader against a server on the loopback."""
    sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "collections")]
    os.environ["no_proxy"] = "*"
    from rangeserver import range_server

    read = reader("ours")
    with range_server(m_gguf=path.read_bytes()) as server:
        started = time.process_time()
        read(server.url())
        return len(server.requests), server.sent, time.process_time() - started


def main() -> None:
    """Write the file, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--merges", type=int, default=0)
    parser.add_argument("--times", type=int, default=5, help="of our and the plain reader; the peer runs once")
    parser.add_argument("--child", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    import ggufwriter as w

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        tensors = [w.T(f"blk.{number}.attn_q.weight", (64, 64), 1) for number in range(400)]
        path.write_bytes(w.gguf(w.vocabulary(given.tokens, given.merges), tensors))
        peer = peer_python(Path(folder))
        rows = {
            "ours": measure(sys.executable, "ours", path, given.times),
            "ours, all tokens asked": measure(sys.executable, "ours-tokens", path, given.times),
            "plain struct": measure(sys.executable, "plain", path, given.times),
            f"PyPI {PEER}": measure(peer, "peer", path, 1),
        }
        requests, fetched, cpu = remote(path)
        size = path.stat().st_size
    if {row["tensors"] for row in rows.values()} != {len(tensors)}:
        sys.exit(f"the readers disagree: {rows}")
    print(f"header of {given.tokens} tokens and {given.merges} merges, {len(tensors)} tensors")
    print(f"{'reader':<24}{'CPU s':>10}{'wall s':>10}{'peak MiB':>10}{'CPU x':>9}")
    for name, row in rows.items():
        ratio = row["cpu_s"] / rows["ours"]["cpu_s"]
        print(f"{name:<24}{row['cpu_s']:>10.3f}{row['wall_s']:>10.3f}{row['peak_mib']:>10.1f}{ratio:>9.1f}")
    print(f"remote: {requests} requests, {fetched} bytes of a file of {size}, {cpu:.3f} CPU s (the server's included)")


if __name__ == "__main__":
    main()
