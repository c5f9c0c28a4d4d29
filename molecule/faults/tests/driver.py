# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's end of files/drill.py: puts it and the collection on the host, and gives it orders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import resolve
from fleet import ROOT, Fleet

HERE = ROOT / "molecule" / "faults"
FOLDER = "/root/drill"
SANDBOX = ROOT / "inventories" / "sandbox" / "group_vars" / "all.yml"
# What the role hands to the module, in roles/endpoint/tasks/main.yml.
HANDED = """name engine env rungs runtime payload user deadline_s drop_ins cards measured ggml_types api_key_file client
probes replaces rivals keep_eras activate""".split()
SETTLE_S = 0.5


def module_args(fleet: Fleet) -> dict[str, Any]:
    """The module's arguments for the endpoint as the inventory declares it, but for the settling time."""
    variables = fleet.variables()
    runtimes = yaml.safe_load(SANDBOX.read_text(encoding="utf-8"))["llm_runtimes"]
    found = resolve(variables["llm_endpoints"], runtimes, variables["llm_payloads"], cards=variables["llm_cards"])
    entry = next(each for each in found["endpoints"] if each["name"] == fleet.endpoint)
    launcher = (ROOT / "roles/endpoint/files/serve-llamacpp").read_text(encoding="utf-8")
    return {key: entry[key] for key in HANDED if key in entry} | {"launcher": launcher, "settle_s": SETTLE_S}


class Driver:
    """One process on the host that answers orders, one after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self.args = module_args(fleet)
        self.ssh = fleet.ssh()

    def __enter__(self) -> Driver:
        utils = Path(ansible.module_utils.__file__).parent
        collection = "ansible_collections/dank/llm_fleet"
        pack = ["tar", "-cz", "--exclude=__pycache__", "-C", HERE / "files", ".", "-C", utils.parents[1]]
        pack += ["ansible/module_utils", "-C", ROOT / "collections", "-h"]
        pack += [f"{collection}/plugins/{part}" for part in ("modules", "module_utils")]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
            unpack = f"rm -rf {FOLDER}; mkdir {FOLDER} && tar -xz -C {FOLDER} && touch {FOLDER}/ansible/__init__.py"
            subprocess.run([*self.ssh, unpack], stdin=packing.stdout, check=True)
        self.process = subprocess.Popen(
            [*self.ssh, f"python3 -u {FOLDER}/drill.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def order(self, do: str, fault: dict[str, Any] | None = None) -> dict[str, Any]:
        """What happened when the host was told to ``settle`` (deploy the declared era anew), ``look`` or ``drill``."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, "args": self.args, "fault": fault}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver on the host has ended"
        told: dict[str, Any] = json.loads(line)
        assert "broke" not in told, told["broke"]
        return told
