#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: qualify a setup of an R9V endpoint, and have serve again what served before."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_qualify
short_description: Qualify a setup of an R9V endpoint, and come back
description:
  - Stops and masks what serves, runs the fork's own setup and start for a profile in a scratch place, runs the
    workload battery, proves the pinned table, measures what the cards have free, and has serve again, proven, what
    served before. Only then the setup state becomes ready, and the runbook is written from what was measured.
  - The host itself guarantees the way back. When this process dies, or the time is over, systemd ends the run, takes
    the masks away, removes the scratch container and starts what served before. After a restart of the host no mask is
    left, and it starts as always.
  - Each run leaves its evidence in C(/var/lib/llm-fleet/qualifications/NAME/SETUP/RUN/), a JSON file for each step with
    its digest. Runbook and state follow from these files alone, and are held against them at each run.
  - A setup that is qualified as it is declared stays as it is.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details: Says what would be stopped and run, after the same checks.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  name:
    description: The endpoint's name.
    type: str
    required: true
  setup:
    description: The setup to qualify, one of O(setups) that declares C(qualify).
    type: str
    required: true
  setups:
    description: As for M(dank.llm_fleet.endpoint).
    type: dict
    required: true
  again:
    description: Qualify it anew.
    type: bool
    default: false
  incumbent:
    description:
      - What must serve before the run and come back after it, by its endpoint's name, or V(none) for a host on which
        nothing serves.
      - By default whatever serves of the endpoint and O(rivals), and something must.
    type: str
    default: ""
  memory_warnings:
    description:
      - What a memory plan warns of beyond the one that this module makes of the profile's settings, as one with more
        figures (M(dank.llm_fleet.r9v_memory_info)). With any warning nothing is stopped.
    type: list
    elements: str
    default: []
  despite_memory:
    description: Go on in spite of the memory plan's warnings, which then stand in the runbook.
    type: bool
    default: false
  limit_s:
    description:
      - Seconds after which the host ends the run in any case.
      - By default four hours for the fork's setup, and what start, stop and probes may take by their own limits.
    type: int
  env:
    description: The endpoint's env lines, as for M(dank.llm_fleet.endpoint).
    type: dict
    required: true
  rungs:
    description: As for M(dank.llm_fleet.endpoint). The setup's file must be in O(env) or in one of them.
    type: dict
    default: {}
  runtime:
    description: The name of the runtime.
    type: str
    required: true
  payload:
    description: The files it loads, as for M(dank.llm_fleet.endpoint); those below the setup's model folder count.
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
  rivals:
    description: Endpoints of this host that want the same port or card. Those that run make way, and come back.
    type: list
    elements: str
    default: []
  deadline_s:
    description: Seconds from the start until C(/health) must answer 200.
    type: int
    default: 300
  timeout_stop_s:
    description: Seconds that a server may take to stop.
    type: int
    default: 180
  client:
    description: What its clients were promised, as in the inventory; it declares capabilities too.
    type: dict
    default: {}
  probes:
    description: What it must be seen to do, as in the inventory.
    type: dict
    default: {}
  cards:
    description: The cards that it runs on, as for M(dank.llm_fleet.endpoint).
    type: list
    elements: dict
    default: []
  runtimes_dir:
    description: Where runtimes are recorded.
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
- name: Qualify the q8 setup
  dank.llm_fleet.r9v_qualify:
    name: frank-primary
    setup: q8xl
    setups: "{{ llm_endpoints['frank-primary'].setups }}"
    env: "{{ llm_endpoints['frank-primary'].env }}"
    rungs: "{{ llm_endpoints['frank-primary'].rungs }}"
    runtime: r9v-2dac17a2
    payload: "{{ llm_payloads['qwen38-flash-next-q8'] | combine({'name': 'qwen38-flash-next-q8'}) }}"
    user: dank
    launcher: "{{ lookup('ansible.builtin.file', 'serve-r9v') }}"
"""

RETURN = r"""
setup:
  description: The setup's name.
  returned: success
  type: str
state:
  description: Its state file, which is ready from now on.
  returned: success
  type: str
run:
  description: The folder of the run that qualified it; null before one has.
  returned: success
  type: str
runbook:
  description: The runbook's text, in Markdown.
  returned: success
  type: str
would:
  description:
    - What a run would do, with C(stops) and C(masks) (units), C(setup) (the fork's command), C(serves_at) (port),
      C(container), C(scratch) (folder) and C(ready) (the state file).
  returned: in check mode, where there is something to do
  type: dict
evidence:
  description: The folder of the run's evidence.
  returned: failure after the stop
  type: str
went_back_to:
  description: What serves after a run that failed.
  returned: failure after the stop
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_run import qualify

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "setup": {"type": "str", "required": True},
    "setups": {"type": "dict", "required": True},
    "again": {"type": "bool", "default": False},
    "incumbent": {"type": "str", "default": ""},
    "memory_warnings": {"type": "list", "elements": "str", "default": []},
    "despite_memory": {"type": "bool", "default": False},
    "limit_s": {"type": "int"},
    "env": {"type": "dict", "required": True},
    "rungs": {"type": "dict", "default": {}},
    "runtime": {"type": "str", "required": True},
    "payload": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "llm"},
    "launcher": {"type": "str", "required": True},
    "rivals": {"type": "list", "elements": "str", "default": []},
    "deadline_s": {"type": "int", "default": 300},
    "timeout_stop_s": {"type": "int", "default": 180},
    "client": {"type": "dict", "default": {}},
    "probes": {"type": "dict", "default": {}},
    "cards": {"type": "list", "elements": "dict", "default": []},
    "runtimes_dir": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "plan_only": {"type": "bool", "default": False},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Hand the parameters to :func:`qualify`."""
    given = module.params
    declared = Declared.from_entry({**given, "engine": "r9v"}, given["launcher"])
    progress = Progress(given["progress_file"])
    try:
        return qualify(
            declared,
            Paths(given["name"], runtimes=given["runtimes_dir"]),
            given["setup"],
            again=given["again"],
            incumbent=given["incumbent"],
            warnings=given["memory_warnings"],
            despite_memory=given["despite_memory"],
            limit_s=given["limit_s"],
            dry=module.check_mode or given["plan_only"],
            say=lambda step, seconds=0: progress.update(step, done=seconds, force=not seconds),
        )
    finally:
        progress.close()


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
