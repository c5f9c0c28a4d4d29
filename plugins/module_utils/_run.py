# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes: the one place that starts a command."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["Completed", "run"]


@dataclass(frozen=True)
class Completed:
    """What a finished command left: argv, exit status, and both streams as text."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """The last 20 lines of stderr, or of stdout where stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-20:])


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float = 60.0,
    check: bool = True,
) -> Completed:
    """Run ``argv`` (no shell, locale C) and return its result.

    With ``check`` a non-zero status is a FleetError that holds the command and the end of its output;
    a missing program and a time-out always are.
    """
    full_env = {**os.environ, "LC_ALL": "C.UTF-8"} if env is None else dict(env)
    command = shlex.join(argv)
    try:
        done = subprocess.run(
            list(argv),
            env=full_env,
            cwd=cwd,
            timeout=timeout_s,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as exc:
        raise FleetError(
            f"{argv[0]} is not installed", expected=f"to run: {command}", remedy=f"Install it ({exc})"
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise FleetError(
            f"{command} did not end", expected=f"an end within {timeout_s:g} s", found="still running"
        ) from exc
    result = Completed(tuple(argv), done.returncode, done.stdout, done.stderr)
    if check and result.rc != 0:
        raise FleetError(f"{command} failed", expected="exit status 0", found=f"{result.rc}: {result.tail}")
    return result
