# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a build of the real engine costs: cold, with one option changed and ccache, and when nothing is left to do.

runtime_build itself, in an empty folder with an empty compiler cache. The changed option (GGML_LLAMAFILE) changes the
commands of one of the engine's libraries, as a changed option of the inventory would. Without ccache a changed option
is a cold build, for it gets a folder of its own. Prints a table; asserts nothing about time, but a build that did
another thing than it was to be measured for is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def module(args: dict[str, Any]) -> tuple[float, str]:
    """(wall seconds, action) of runtime_build, as a process of its own without Ansible's start."""
    call = {"ANSIBLE_MODULE_ARGS": args}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.dank.llm_fleet.plugins.modules.runtime_build"],
        input=json.dumps(call),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    try:
        told = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"runtime_build said no JSON:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    if told.get("failed"):
        sys.exit(f"runtime_build failed: {told['msg']}")
    return seconds, told["runtime"]["action"]


def hits(folder: Path) -> str:
    """What ccache counted since it was asked to begin anew."""
    env = {**os.environ, "CCACHE_DIR": str(folder)}
    told = subprocess.run(["ccache", "--print-stats"], env=env, check=True, capture_output=True, text=True).stdout
    counts = {name: int(number) for name, number in (line.split("\t")[:2] for line in told.splitlines())}
    subprocess.run(["ccache", "--zero-stats"], env=env, check=True, capture_output=True)
    found = counts.get("direct_cache_hit", 0) + counts.get("preprocessed_cache_hit", 0)
    return f"{found} of {found + counts.get('cache_miss', 0)} from the cache"


def main() -> None:
    """Build twice, ask several times, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs with nothing to do")
    parser.add_argument("--target", default="llama-server")
    given = parser.parse_args()
    runtime = yaml.safe_load((ROOT / "inventories/sandbox/group_vars/all.yml").read_text())["llm_runtimes"]["cpu"]
    archive = Path(os.environ["LLM_FLEET_CACHE"]) / "sources" / Path(runtime["source"]["urls"][0]).name
    with tempfile.TemporaryDirectory() as scratch:
        ccache = Path(scratch) / "ccache"
        args = {
            "name": "bench",
            "version": runtime["version"],
            "source": {**runtime["source"], "urls": [archive.as_uri()]},
            "cmake": runtime["cmake"],
            "targets": [given.target],
            "prefix": str(Path(scratch) / "runtimes"),
            "ccache_dir": str(ccache),
        }
        rows = []
        for text, option in (("cold", "ON"), ("GGML_LLAMAFILE changed", "OFF")):
            changed = {**args, "cmake": {**runtime["cmake"], "GGML_LLAMAFILE": option}}
            seconds, action = module(changed)
            if action != "built":
                sys.exit(f"{text}: expected a build, runtime_build says {action}")
            rows.append((text, [seconds], hits(ccache)))
        idle = []
        for _run in range(given.runs):
            seconds, action = module(changed)
            if action != "none":
                sys.exit(f"expected nothing to do, runtime_build says {action}")
            idle.append(seconds)
        rows.append(("nothing changed", idle, ""))
    cold = rows[0][1][0]
    print(f"\nA build of {given.target}; seconds; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(f"{'run':<24} {'min':>8} {'median':>8} {'max':>8} {'cold / this':>12}  ccache")
    for text, took, counted in rows:
        middle = statistics.median(took)
        ratio = f"{cold / middle:.1f}x" if text != "cold" else ""
        print(f"{text:<24} {min(took):8.2f} {middle:8.2f} {max(took):8.2f} {ratio:>12}  {counted}")


if __name__ == "__main__":
    main()
