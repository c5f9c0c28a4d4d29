# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The compiler's side of a build: the cmake call, its environment, and ninja with a log, progress and a short leash."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import RPATH

__all__ = ["available_bytes", "build_env", "configure_argv", "has_ccache", "job_count", "logged", "parse_ninja"]

BYTES_PER_JOB = 1536 << 20
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_TAIL_LINES = 25


def job_count(asked: int, cpus: int, available_bytes: int) -> int:
    """``asked`` jobs, or with 0 as many as processors and memory (1.5 GiB a job) allow, at least one."""
    return asked or max(1, min(cpus, available_bytes // BYTES_PER_JOB))


def parse_ninja(line: str) -> tuple[int, int] | None:
    """``(finished, total)`` of a line that starts with ``[n/m]``, else None."""
    match = _NINJA.match(line)
    return (int(match[1]), int(match[2])) if match else None


def available_bytes() -> int:
    """Memory that is free or can be had at once, in bytes."""
    with open("/proc/meminfo", encoding="utf-8") as handle:
        for line in handle:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def configure_argv(project: str, build: str, options: Mapping[str, str], *, ccache: bool) -> list[str]:
    """The cmake call that configures ``project`` in ``build`` so that what it makes may be moved."""
    full = {"CMAKE_BUILD_TYPE": "Release", **options}
    full |= {"CMAKE_INSTALL_RPATH": RPATH, "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON"}
    # The engine's own search for ccache would use a cache that nobody named.
    full.setdefault("GGML_CCACHE", "OFF")
    if ccache:
        for language in ("C", "CXX", "CUDA", "HIP"):
            full.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
    return [
        "cmake",
        "-G",
        "Ninja",
        "-S",
        project,
        "-B",
        build,
        "-Wno-dev",
        "--no-warn-unused-cli",
        *(f"-D{option}={value}" for option, value in sorted(full.items())),
    ]


def has_ccache(ccache_dir: str) -> bool:
    """Whether a folder for ccache is given and ccache is installed."""
    return bool(ccache_dir) and shutil.which("ccache") is not None


def build_env(work: str = "", ccache_dir: str = "") -> dict[str, str]:
    """A bare environment: CFLAGS and the like of whoever runs the play must not reach the binary unseen."""
    env = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    env |= {"LC_ALL": "C.UTF-8", "NINJA_STATUS": "[%f/%t] "}
    if work and has_ccache(ccache_dir):
        make_dirs(ccache_dir)
        # Relative paths and the compiler's content, so that hits do not depend on this host or digest.
        env |= {
            "CCACHE_DIR": ccache_dir,
            "CCACHE_BASEDIR": work,
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_COMPILERCHECK": "content",
        }
    return env


def logged(argv: Sequence[str], env: Mapping[str, str], log: str, step: str, progress: Progress, lock_fd: int) -> None:
    """Run ``argv`` with its output appended to ``log``; ninja's ``[n/m]`` lines become progress.

    The child is killed when this process dies, and it inherits the lock for what it leaves running itself.
    """
    with open(log, "a", encoding="utf-8") as sink:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(lock_fd,),
            preexec_fn=_dependent,
        )
        assert child.stdout is not None
        try:
            for line in child.stdout:
                sink.write(line)
                sink.flush()
                if counted := parse_ninja(line):
                    progress.update(step, done=counted[0], total=counted[1], unit="steps")
            rc = child.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()
            raise
    if rc != 0:
        raise FleetError(
            f"{step} failed",
            expected="exit status 0",
            found=f"{rc}; the end of {log}:\n{_tail(log)}",
            remedy="The runtime in use is untouched; mend the cause and run again, finished steps are kept",
            log=log,
        )


def _dependent() -> None:
    """In the child: die with the parent (Linux prctl), and leave the processors to whatever serves on this host."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.nice(10)


def _tail(log: str) -> str:
    with open(log, "rb") as handle:
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
