# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For the scenarios' tests: run playbooks as a user would, and read the host the way a user cannot."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLM_FLEET_CACHE") or Path.home() / ".cache" / "llm-fleet")  # as tools/cache.sh has it
SSH_CONFIG = CACHE / "testhosts" / "ssh_config"


@dataclass(frozen=True)
class Played:
    """A playbook's end: exit status, everything it printed, and the recap's counts of the first host."""

    rc: int
    text: str

    @property
    def recap(self) -> dict[str, int]:
        """``{"ok": n, "changed": n, ...}`` summed over all hosts."""
        total: dict[str, int] = {}
        for line in self.text.partition("PLAY RECAP")[2].splitlines():
            for key, value in re.findall(r"(\w+)=(\d+)", line):
                total[key] = total.get(key, 0) + int(value)
        assert total, self.text
        return total

    @property
    def error(self) -> str:
        """What the failed task said, on one line."""
        return " ".join(self.text.split())


def environment() -> dict[str, str]:
    """What a user's ansible-playbook has: not what molecule sets for its own runs."""
    own = {key: value for key, value in os.environ.items() if key not in ("ANSIBLE_INVENTORY", "ANSIBLE_FORCE_COLOR")}
    return own | {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }


class Fleet:
    """One scenario's inventory and host."""

    def __init__(self, scenario: str, endpoint: str) -> None:
        self.inventory = ROOT / "molecule" / scenario / "inventory"
        self.host = f"molecule-{scenario}"
        self.endpoint = endpoint
        self.unit = f"{endpoint}.service"

    def play(self, playbook: str, *args: str, **extra: Any) -> Played:
        """``ansible-playbook PLAYBOOK -i inventory ARGS``; keyword arguments are passed as extra variables."""
        command = ["ansible-playbook", playbook, "-i", str(self.inventory), *args]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as handle:
            if extra:
                json.dump(extra, handle)
                handle.flush()
                command += ["-e", f"@{handle.name}"]
            done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        return Played(done.returncode, done.stdout + done.stderr)

    def begin(self, playbook: str, *args: str, **more: str) -> subprocess.Popen[str]:
        """The same in the background, in a session of its own, with ``more`` in its environment."""
        return subprocess.Popen(
            ["ansible-playbook", playbook, "-i", str(self.inventory), *args],
            cwd=ROOT, env=environment() | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def module(self, name: str, /, *, check: bool = True, **options: Any) -> str:
        """Run one module on the host and return what ansible printed; a failure fails the test if ``check``."""
        command = ["ansible", self.host, "-i", str(self.inventory), "-m", name, "-a", json.dumps(options)]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def probe(self, **options: Any) -> dict[str, dict[str, Any]]:
        """The verdicts of endpoint_probe by probe, be they of a run that failed."""
        told = self.module("dank.llm_fleet.endpoint_probe", check=False, name=self.endpoint, **options)
        result = json.JSONDecoder().raw_decode(told[told.index(" => {") + 4 :])[0]
        assert "probes" in result, told
        return {verdict["probe"]: verdict for verdict in result["probes"]}

    def variables(self) -> dict[str, Any]:
        """The host's variables as the inventory gives them."""
        done = subprocess.run(
            ["ansible-inventory", "-i", str(self.inventory), "--host", self.host],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        values: dict[str, Any] = json.loads(done.stdout)
        return values

    def ssh(self) -> list[str]:
        """The words that a command line on the host begins with."""
        return ["ssh", "-F", str(SSH_CONFIG), self.host]

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a shell command on the host by ssh and return what it printed."""
        done = subprocess.run([*self.ssh(), command], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout

    def cut_power(self) -> None:
        """End every process of the host at once, with nothing said to any, and have it boot again."""
        for command in ("cut-power", "up"):
            done = subprocess.run(
                [ROOT / "molecule" / "testhost" / "testhost", command, self.host],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

    def when(self, holds: str, then: str) -> None:
        """Have the host itself run ``then`` as soon as ``holds``: we would be too late, or too early."""
        watch = f"until {holds}; do sleep 0.02; done; {then}"
        keep = ("--quiet", "--collect", "--unit=when", "-p", "RuntimeMaxSec=300")
        self.run(shlex.join(["systemd-run", *keep, "/bin/bash", "-c", watch]))

    def locked(self) -> str:
        """For ``when``: a process works on the endpoint; it is then ``$pid``."""
        lock = f"/var/lib/llm-fleet/{self.endpoint}/lock"
        return f"""pid=$(sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p' {lock}) && [[ $pid ]]"""

    def start(self) -> dict[str, str]:
        """What identifies one start of the unit: main process and invocation, and the state."""
        wanted = "MainPID,InvocationID,ActiveState,SubState,NRestarts"
        lines = self.run(f"systemctl show -p {wanted} {self.unit}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def chat(self, port: int, question: str = "Say the word hello.") -> str:
        """One real answer from the endpoint on the host's loopback."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
        told = self.run(
            "curl -sS --fail-with-body -H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(body))} http://127.0.0.1:{port}/v1/chat/completions"
        )
        content: str = json.loads(told)["choices"][0]["message"]["content"]
        return content

    def snapshot(self) -> str:
        """Every file of ours on the host with its digest, mode and owner, and every link with its target."""
        places = (
            "/etc/llm-fleet /var/lib/llm-fleet /opt/llm-fleet/launchers /etc/systemd/system /opt/llm-fleet/runtimes"
        )
        return self.run(
            f"find {places} -not -path '*/.work/*' -type f -size -9M -exec sha256sum {{}} + | sort -k2;"
            f"find {places} -printf '%p %m %u %s %l\\n' | grep -v '/lock ' | sort"
        )
