# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run costs when there is nothing to do: our site.yml beside the same deploy with stock modules.

Both are brought up first on the same test hosts; then their second runs are timed in turn (A B A B ...), so that
a machine whose speed drifts slows both. Prints a table; asserts nothing about time, but a run that changed anything
or failed is an error, since it would not be the run that is measured.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SSH = (
    "-F {{ lookup('env', 'LLM_FLEET_CACHE') | default(lookup('env', 'HOME') ~ '/.cache/llm-fleet', true) }}"
    "/testhosts/ssh_config"
)


def inventory(folder: Path, hosts: list[str]) -> Path:
    """The sandbox's inventory with these hosts in place of its own."""
    target = folder / f"inventory-{len(hosts)}"
    target.mkdir()
    (target / "group_vars").symlink_to(ROOT / "inventories" / "sandbox" / "group_vars")
    lines = "".join(f"    {host}:\n" for host in hosts)
    text = f'llm:\n  hosts:\n{lines}  vars:\n    ansible_user: root\n    ansible_ssh_common_args: "{SSH}"\n'
    (target / "hosts.yml").write_text(text)
    return target


def play(playbook: str, where: Path, *, quiet_required: bool) -> tuple[float, int]:
    """Run a playbook; (wall seconds, tasks that ran on the busiest host)."""
    started = time.monotonic()
    done = subprocess.run(
        ["ansible-playbook", playbook, "-i", str(where), "--forks", "10"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    recap = re.findall(r"ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", done.stdout)
    if done.returncode or not recap or (quiet_required and any(int(line[1]) for line in recap)):
        sys.exit(f"{playbook} failed, or was no second run:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    return seconds, max(int(line[0]) for line in recap)


def main() -> None:
    """Measure on one host and on five, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 5])
    given = parser.parse_args()
    names = [f"bench-{number}" for number in range(1, max(given.hosts) + 1)]
    testhost = str(ROOT / "molecule" / "testhost" / "testhost")
    subprocess.run([testhost, "up", *names], check=True)
    peers = {"llm_fleet": "site.yml", "stock modules": "tests/bench/stock/site.yml"}
    rows = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for count in given.hosts:
                where = inventory(Path(scratch), names[:count])
                for playbook in peers.values():
                    play(playbook, where, quiet_required=False)
                seconds: dict[str, list[float]] = {peer: [] for peer in peers}
                tasks = {}
                for _run in range(given.runs):
                    for peer, playbook in peers.items():
                        took, tasks[peer] = play(playbook, where, quiet_required=True)
                        seconds[peer].append(took)
                rows += [(count, peer, tasks[peer], seconds[peer]) for peer in peers]
    finally:
        subprocess.run([testhost, "down", *names], check=True)
    print(
        f"\nSecond run, nothing to do; {given.runs} runs each in turn; seconds; {os.cpu_count()} processors,", end=" "
    )
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'hosts':>5}  {'deploy':<14} {'tasks':>5} {'min':>7} {'median':>7} {'max':>7} {'stock / ours':>13}")
    for count, peer, task_count, took in rows:
        ours = statistics.median(next(row[3] for row in rows if row[0] == count))
        ratio = f"{statistics.median(took) / ours:.1f}x" if peer != "llm_fleet" else ""
        print(
            f"{count:>5}  {peer:<14} {task_count:>5} {min(took):7.2f} {statistics.median(took):7.2f} {max(took):7.2f} "
            f"{ratio:>13}"
        )


if __name__ == "__main__":
    main()
