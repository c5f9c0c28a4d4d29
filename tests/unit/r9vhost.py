# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the R9V engine in a folder: the stand-in's checkout, a model folder, a setup state, a scripted docker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "fixtures" / "r9v_standin"
LAUNCHER = ROOT / "roles" / "endpoint" / "files" / "serve-r9v"
TABLE_BYTES = 4096
# Stands in for docker, as the shim would be: it tells what it was asked, and of one container that lives for a moment.
DOCKER = """#!/bin/sh
echo "$*" >>"$DOCKER_SAYS/calls"
case "$*" in
    "container inspect"*)
        [ ! -e "$DOCKER_SAYS/trouble" ] || exit 125
        [ -e "$DOCKER_SAYS/box" ] && cat "$DOCKER_SAYS/box" || exit 1 ;;
    wait*) [ ! -e "$DOCKER_SAYS/stop-meanwhile" ] || : >"$RUNTIME_DIRECTORY/stopping"; cat "$DOCKER_SAYS/code" ;;
    logs*) echo "the container's last words" ;;
    rm*) rm "$DOCKER_SAYS/box" ;;
esac
"""


@dataclass
class R9vHost:
    """Paths of one host; ``state`` is the setup state as it lies in its file."""

    folder: Path
    state: dict[str, Any]

    @property
    def checkout(self) -> Path:
        """The fork's checkout."""
        return self.folder / "fork"

    @property
    def model_dir(self) -> Path:
        """The payload."""
        return self.folder / "model"

    @property
    def table(self) -> Path:
        """The embedding table."""
        return self.model_dir / "r9v-data" / "table.bin"

    @property
    def state_file(self) -> Path:
        """The setup state."""
        return self.folder / "state" / "setup.json"

    @property
    def env(self) -> dict[str, str]:
        """A sound env."""
        return {
            "R9V_CHECKOUT": str(self.checkout),
            "R9V_STATE_FILE": str(self.state_file),
            "R9V_HOST_BIND": "127.0.0.1",
            "R9V_HOST_PORT": "7770",
            "R9V_SERVED_MODEL_NAME": "two",
            "R9V_CONTAINER_NAME": "two-r9v",
            "R9V_EXPECTED_GPU_BDFS": "0000:03:00.0",
        }

    def save(self) -> None:
        """Write the state as setup does."""
        self.state_file.write_text(json.dumps(self.state))
        self.state_file.chmod(0o600)

    def launch(self, env: dict[str, str], *args: str, dry: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the launcher in exactly this environment."""
        bare = {"PATH": "/usr/bin:/bin", "DOCKER_SAYS": str(self.folder), "RUNTIME_DIRECTORY": str(self.folder)}
        switch = {"LLM_FLEET_DRY_RUN": "1"} if dry else {}
        return subprocess.run(
            [LAUNCHER, *args], env={**bare, **switch, **env}, capture_output=True, text=True, check=False, timeout=30
        )

    def calls(self) -> list[str]:
        """What docker was asked."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def make_host(folder: Path) -> R9vHost:
    """A host whose state is ready and whole."""
    host = R9vHost(folder, {})
    shutil.copytree(STANDIN, host.checkout)
    shim = host.checkout / ".podman-shim" / "docker"
    shim.parent.mkdir()
    shim.write_text(DOCKER)
    shim.chmod(0o755)
    launch = host.checkout / "scripts" / "launch.sh"
    launch.write_text(
        '#!/bin/bash\necho "launch.sh $R9V_SERVED_MODEL_NAME $R9V_MAX_MODEL_LEN" >>"$DOCKER_SAYS/calls"\n'
    )
    subprocess.run(
        [sys.executable, STANDIN / "make_payload.py", host.model_dir, "seed", str(TABLE_BYTES)],
        check=True, capture_output=True,
    )  # fmt: skip
    artifacts = {}
    for path in sorted(host.model_dir.rglob("*")):
        if path.is_file() and path != host.table:
            info = path.stat()
            identity = [str(path), info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
            artifacts[os.path.relpath(path, host.model_dir)] = {"identity": identity, "sha256": "a1" * 32}
    host.state.update(
        ready=True,
        profile_id="standin/q8",
        artifacts=artifacts,
        config={
            "R9V_IMAGE": f"sha256:{'2d' * 32}",
            "R9V_MODEL_DIR": str(host.model_dir),
            "R9V_PLE_PATH": str(host.table),
            "R9V_MAX_MODEL_LEN": "131072",
            "R9V_ENABLE_PREFIX_CACHING": "0",
            "R9V_TARGET_REL": "target/Standin-Q8_0-00001-of-00006.gguf",
        },
    )
    host.state_file.parent.mkdir()
    host.save()
    return host
