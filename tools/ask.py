# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask an endpoint on a test host one question, over ssh to the host's loopback, and print question and answer."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys


def main() -> int:
    """Print the answer; exit 1 where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ssh-config", required=True, help="the test hosts' ssh_config")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("question")
    given = parser.parse_args()
    body = {
        "messages": [{"role": "user", "content": given.question}],
        "max_tokens": 48,
        "temperature": 0,
    }
    remote = [
        "curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "120", "--header",
        "Content-Type: application/json", "--data-binary", "@-",
        f"http://127.0.0.1:{given.port}/v1/chat/completions",
    ]  # fmt: skip
    command = ["ssh", "-F", given.ssh_config, given.host, subprocess.list2cmdline(remote)]
    done = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"no answer from {given.host}:{given.port}: {done.stderr or done.stdout}", file=sys.stderr)
        return 1
    answer = json.loads(done.stdout)
    content = answer["choices"][0]["message"]["content"].strip()
    print(f"    you:   {given.question}\n    model: {content}")
    print(
        f"    ({answer['usage']['completion_tokens']} tokens, {answer['timings']['predicted_per_second']:.0f} tokens/s)"
    )
    return 0 if content else 1


if __name__ == "__main__":
    sys.exit(main())
