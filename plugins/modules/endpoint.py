#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: bring one LLM endpoint to its declared state and prove that it serves it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint
short_description: Deploy an LLM endpoint as an era, and prove it
description:
  - Renders the env file, the launcher and the systemd unit of an endpoint into a staged era, cuts over to it, and
    proves that what runs is what was declared, from the unit's main process to the answers of its probes.
  - When the proof breaks, the last certified era serves again and the module fails with the first broken link.
  - On a converged host it reads files and processes, asks C(/health) and C(/props), and changes nothing.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  name:
    description: The endpoint's name, which is also its unit's.
    type: str
    required: true
  engine:
    description: What serves it.
    type: str
    choices: [llamacpp, r9v]
    default: llamacpp
  env:
    description: The lines of its env file. Values are written as text; an empty value is an explicit opt-out.
    type: dict
    required: true
  rungs:
    description: Named sets of env lines to fall back to.
    type: dict
    default: {}
  runtime:
    description: The name of the runtime that serves it, built before by M(dank.llm_fleet.runtime_build).
    type: str
    required: true
  payload:
    description: The files it loads, as C(name), C(dir) and C(files), verified before by M(dank.llm_fleet.payload).
    type: dict
    required: true
  user:
    description: The user it runs as.
    type: str
    default: llm
  launcher:
    description: The text of the launcher script.
    type: str
    required: true
  rung:
    description: Roll back to this rung and pin the endpoint to it.
    type: str
  era:
    description: Restore this era, by the beginning of its id or V(previous), and pin the endpoint to it.
    type: str
  unpin:
    description: Lift the pin and go to the state that the inventory asks for.
    type: bool
    default: false
  replaces:
    description:
      - What its deploy retires, as C(units), C(quadlets), C(drop_ins), C(files), C(scope) and C(user) of
        M(dank.llm_fleet.unit_retire). It comes back when the deploy fails.
    type: dict
    default: {}
  rivals:
    description:
      - Endpoints of this host that want the same port or card. Those that run are stopped when this one starts, and
        serve again when it cannot be proven.
    type: list
    elements: str
    default: []
  keep_eras:
    description:
      - How many eras to keep after a deploy, besides the current, the previous, what a pin names and the certified ones
        of declared O(rungs).
    type: int
    default: 10
  activate:
    description:
      - Take over from O(rivals) by an operator's word. They then stay down, whatever the inventory says, until one of
        them is activated again.
    type: bool
    default: false
  deadline_s:
    description: Seconds from the start until C(/health) must answer 200.
    type: int
    default: 300
  settle_s:
    description: Seconds that the proven start must go on running.
    type: float
    default: 2.0
  restart_sec:
    description: Seconds that systemd waits before it brings a dead server back.
    type: int
    default: 10
  timeout_stop_s:
    description: Seconds that the server may take to stop.
    type: int
    default: 180
  client:
    description: What its clients were promised, as in the inventory; it declares capabilities too.
    type: dict
    default: {}
  probes:
    description: What it must be seen to do beside what follows from C(env) and C(client), as in the inventory.
    type: dict
    default: {}
  drop_ins:
    description: Paths of drop-ins that the unit may have; any other is refused.
    type: list
    elements: str
    default: []
  cards:
    description:
      - The cards that it runs on, each with C(name), C(vendor), C(index) or C(uuid), C(free_mib) and C(floor_mib), the
        last two in MiB. A boot that would not leave the floor free is refused before anything is touched.
      - None for an endpoint on the processor alone, which is then held against the host's memory.
    type: list
    elements: dict
    default: []
  measured:
    description: Figures of boots, as for M(dank.llm_fleet.fit_info).
    type: list
    elements: dict
    default: []
  api_key_file:
    description:
      - A file on the host with the API key that clients must send, for root's eyes alone.
      - systemd hands it to the server as a credential, so that the key is in no argument, env file or unit.
    type: path
    default: ""
  setups:
    description:
      - For O(engine=r9v), the setups that it may serve from by name, each with C(file) (its C(setup.json)),
        C(ple_bytes) (the embedding table's size), C(headroom_gib) (free on each card once it serves) and C(keys) (of
        O(env), those that go with this setup alone).
    type: dict
    default: {}
  ggml_types:
    description: Ids of tensor types that the runtime, a fork, knows beside those of the engine.
    type: list
    elements: int
    default: []
  runtimes_dir:
    description: Where the built runtimes lie.
    type: path
    default: /opt/llm-fleet/runtimes
  plan_only:
    description: Say what would be done and do nothing, also out of check mode.
    type: bool
    default: false
  progress_file:
    description: Where to write how far the work has come.
    type: path
"""

EXAMPLES = r"""
- name: A chat endpoint on port 8080
  dank.llm_fleet.endpoint:
    name: sandbox-chat
    runtime: cpu
    payload: "{{ llm_payloads.smollm2 | combine({'name': 'smollm2'}) }}"
    launcher: "{{ lookup('ansible.builtin.file', 'serve-llamacpp') }}"
    env:
      ALIAS: sandbox-chat
      BIND_ADDR: 127.0.0.1
      LISTEN_PORT: 8080
      CTX_SIZE: 4096
      PARALLEL: 2
"""

RETURN = r"""
endpoint:
  description: The endpoint's line in the tables, such as unit state, age, shape, memory, health and era.
  returned: success
  type: dict
kind:
  description: What was to be done, C(none), C(prove) (the same era, as it runs, by another O(client) or O(probes)),
    C(repair) (the same era put right) or C(deploy) (a new era).
  returned: success
  type: str
reasons:
  description: Why.
  returned: success
  type: list
  elements: str
flipped:
  description: The env lines that differ, as C(-KEY=old) and C(+KEY=new).
  returned: success
  type: list
  elements: str
links:
  description: The chain of truth, each link with C(name), C(ok), C(expected), C(found).
  returned: success
  type: list
  elements: dict
probes:
  description: The verdicts of the probes that ran.
  returned: when the endpoint was started, or proven anew
  type: list
  elements: dict
fit:
  description: The memory that a new era will take, as M(dank.llm_fleet.fit_info) returns it.
  returned: when a new era is to be deployed
  type: dict
ledger:
  description:
    - What the boot took.
    - C(free_mib) by card, from its driver. C(measured) by card, the terms that only a boot can tell, as O(measured)
      takes them. C(differences) between the boot's log and RV(fit), in words.
  returned: when the endpoint was started
  type: dict
pruned:
  description: The ids of eras that were removed.
  returned: when something was done
  type: list
  elements: str
gap_s:
  description: Seconds in which nothing served, from the stop to the first healthy answer.
  returned: when the endpoint was started
  type: float
went_back_to:
  description: What serves after a deploy that failed.
  returned: failure
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint import Asked, converge
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "engine": {"type": "str", "choices": ["llamacpp", "r9v"], "default": "llamacpp"},
    "env": {"type": "dict", "required": True},
    "rungs": {"type": "dict", "default": {}},
    "runtime": {"type": "str", "required": True},
    "payload": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "llm"},
    "launcher": {"type": "str", "required": True},
    "rung": {"type": "str"},
    "era": {"type": "str"},
    "unpin": {"type": "bool", "default": False},
    "replaces": {"type": "dict", "default": {}},
    "rivals": {"type": "list", "elements": "str", "default": []},
    "keep_eras": {"type": "int", "default": 10},
    "activate": {"type": "bool", "default": False},
    "deadline_s": {"type": "int", "default": 300},
    "settle_s": {"type": "float", "default": 2.0},
    "restart_sec": {"type": "int", "default": 10},
    "timeout_stop_s": {"type": "int", "default": 180},
    "client": {"type": "dict", "default": {}},
    "probes": {"type": "dict", "default": {}},
    "drop_ins": {"type": "list", "elements": "str", "default": []},
    "cards": {"type": "list", "elements": "dict", "default": []},
    "measured": {"type": "list", "elements": "dict", "default": []},
    "ggml_types": {"type": "list", "elements": "int", "default": []},
    "api_key_file": {"type": "path", "default": "", "no_log": False},
    "setups": {"type": "dict", "default": {}},
    "runtimes_dir": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "plan_only": {"type": "bool", "default": False},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Hand the parameters to :func:`converge`."""
    given = module.params
    declared = Declared.from_entry(given, given["launcher"])
    progress = Progress(given["progress_file"])
    try:
        told = converge(
            declared,
            Paths(given["name"], runtimes=given["runtimes_dir"]),
            asked=Asked(given["rung"], given["era"], given["unpin"], given["activate"]),
            check_mode=module.check_mode,
            plan_only=given["plan_only"],
            say=lambda step, seconds=0: progress.update(step, done=seconds, force=not seconds),
        )
    finally:
        progress.close()
    for warning in told.pop("warnings"):
        module.warn(warning)
    return told


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work, mutually_exclusive=[("rung", "era", "unpin")])


if __name__ == "__main__":
    main()
