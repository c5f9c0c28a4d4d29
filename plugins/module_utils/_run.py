# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes: the one place that starts a command."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
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
    a missing program or folder and a time-out always are. A time-out ends what the command started too.
    """
    full_env = {**os.environ, "LC_ALL": "C.UTF-8"} if env is None else dict(env)
    command = shlex.join(argv)
    if cwd is not None and not os.path.isdir(cwd):
        raise FleetError(f"{cwd}, to run {command} in", expected="a directory", found="none")
    try:
        process = subprocess.Popen(
            list(argv),
            env=full_env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as exc:
        raise FleetError(
            f"{argv[0]} is not installed", expected=f"to run: {command}", remedy=f"Install it ({exc})"
        ) from exc
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as exc:
            # Its children hold the pipes too: without them gone, the wait for the streams' end would last as they do.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(exc, subprocess.TimeoutExpired):
                raise FleetError(
                    f"{command} did not end", expected=f"an end within {timeout_s:g} s", found="still running"
                ) from exc
            raise
    result = Completed(tuple(argv), process.returncode, stdout, stderr)
    if check and result.rc != 0:
        raise FleetError(f"{command} failed", expected="exit status 0", found=f"{result.rc}: {result.tail}")
    return result
