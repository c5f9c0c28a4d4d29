# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A copy of the commands in a folder of its own, with a home and a PATH that hold only what a test puts there."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of Debian's essential packages; nothing that tools/os-packages.txt names.
ESSENTIAL = (
    "basename bash cat chmod dirname env find flock grep mkdir mktemp mv readlink rm rmdir sed sort stat xargs".split()
)
# podman as far as testhost asks it: what it has stands in files, a line each; every command line is kept.
PODMAN = """
cd {state} && echo "$*" >>asked
case "$1 $2" in
    "ps "*) cat hosts ;;
    "images "*) cat images ;;
    "network ls") cat networks ;;
    "rm "*) : >hosts ;;
    "rmi "*) : >images ;;
    "network rm") : >networks ;;
    *) exit 1 ;;
esac
"""


@dataclass
class Checkout:
    """``folder`` has ``tools`` and ``molecule/testhost``; ``home`` and ``bin`` are all that its commands are given."""

    base: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder, self.home, self.bin = (self.base / name for name in ("checkout", "home", "bin"))
        for name in ("tools", "molecule/testhost"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.home.mkdir()
        self.bin.mkdir()
        for name in ESSENTIAL:
            found = shutil.which(name)
            assert found, name
            (self.bin / name).symlink_to(found)
        self.stand_in("id", "echo 0")

    def stand_in(self, name: str, body: str) -> None:
        """Put a program of the given body on PATH; a link to the machine's own is replaced, never written through."""
        script = self.bin / name
        script.unlink(missing_ok=True)
        with script.open("x") as file:
            file.write(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)

    def podman(self, **has: list[str]) -> Path:
        """Put a podman on PATH that has these hosts, images and networks; return the folder of its state."""
        state = self.base / "podman"
        state.mkdir(exist_ok=True)
        for name in ("hosts", "images", "networks"):
            (state / name).write_text("".join(f"{line}\n" for line in has.get(name, [])))
        (state / "asked").write_text("")
        self.stand_in("podman", PODMAN.format(state=state))
        return state

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout."""
        whole = {"HOME": str(self.home), "PATH": str(self.bin), "LC_ALL": "C.UTF-8"} | self.environ | environ
        return subprocess.run(command, cwd=self.folder, env=whole, capture_output=True, text=True, check=False)
