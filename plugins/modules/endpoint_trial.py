#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: boot candidate shapes of an endpoint for measuring, and have serve again what served before."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_trial
short_description: Boot candidate shapes of an LLM endpoint, measure them, and come back
description:
  - Stops what serves, boots each candidate as a transient systemd unit with the limits of the endpoint's own, reads
    what its boot took, runs the endpoint's probes, and has serve again, proven, what served before.
  - The host itself guarantees the last. When this process dies, or the time is over, systemd ends the trial and starts
    what served before. After a restart of the host it starts as always.
  - No file of the endpoint is changed. Each trial leaves a record, C(/var/lib/llm-fleet/NAME/trials/ID.json).
  - What cannot boot is a result. The module fails where no candidate was measured, after the way back.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details: Says what would be booted, and the forecast of each.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run measures anew.
options:
  name:
    description: The endpoint's name.
    type: str
    required: true
  engine:
    description: What serves it.
    type: str
    choices: [llamacpp]
    default: llamacpp
  trial_env:
    description:
      - The lines to try over those of O(env), as a dictionary or as V(KEY=value KEY2=value2), quoted as in a shell.
    type: raw
    default: ""
  split:
    description:
      - Values of C(TENSOR_SPLIT) to walk, each over O(env) and O(trial_env), as V(35,30;36,29).
      - Refused where less than two cards hold layers.
    type: str
    default: ""
  beyond_fit:
    description:
      - Boot also what the forecast refuses or cannot tell. Without it such a candidate is not booted.
    type: bool
    default: false
  limit_s:
    description:
      - Seconds after which the host ends the trial in any case.
      - By default what its starts, stops and probes may take by their own limits.
    type: int
  env:
    description: The endpoint's env lines, as for M(dank.llm_fleet.endpoint).
    type: dict
    required: true
  runtime:
    description: The name of the runtime.
    type: str
    required: true
  payload:
    description: The files it loads, as for M(dank.llm_fleet.endpoint).
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
    description: Seconds from a candidate's start until C(/health) must answer 200.
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
  drop_ins:
    description: Drop-ins of the endpoint's unit. A trial has none, and says so.
    type: list
    elements: str
    default: []
  cards:
    description: The cards that it runs on, as for M(dank.llm_fleet.endpoint).
    type: list
    elements: dict
    default: []
  measured:
    description: Figures of boots, as for M(dank.llm_fleet.fit_info).
    type: list
    elements: dict
    default: []
  api_key_file:
    description: A file on the host with the API key, as for M(dank.llm_fleet.endpoint).
    type: path
    default: ""
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
- name: Measure a longer context
  dank.llm_fleet.endpoint_trial:
    name: sandbox-chat
    runtime: cpu
    payload: "{{ llm_payloads.smollm2 | combine({'name': 'smollm2'}) }}"
    launcher: "{{ lookup('ansible.builtin.file', 'serve-llamacpp') }}"
    env: "{{ llm_endpoints['sandbox-chat'].env }}"
    trial_env:
      CTX_SIZE: 8192
"""

RETURN = r"""
trial:
  description:
    - The record.
    - C(rows), one for each candidate, with C(label), C(outcome) (measured, probes failed, failed, refused, not run),
      C(boot_s), C(free_mib) by card, C(resident_mib) of the process, C(buffers_mib) by card as its log tells them,
      C(forecast), C(differences) between the two, C(probes), and the C(fault) of one that failed.
    - C(back), what serves again, with C(endpoint), C(era), the number of C(links) of truth that hold and its C(probes).
      C(gap_s), the seconds in which it did not serve.
  returned: always, but where a candidate is refused before anything is stopped
  type: dict
record:
  description: The record's path on the host.
  returned: when something was booted
  type: str
endpoints:
  description: The lines in the tables of what serves.
  returned: always
  type: list
  elements: dict
went_back_to:
  description: What serves after a trial that failed.
  returned: failure
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import candidates
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import try_out

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "engine": {"type": "str", "choices": ["llamacpp"], "default": "llamacpp"},
    "trial_env": {"type": "raw", "default": ""},
    "split": {"type": "str", "default": ""},
    "beyond_fit": {"type": "bool", "default": False},
    "limit_s": {"type": "int"},
    "env": {"type": "dict", "required": True},
    "runtime": {"type": "str", "required": True},
    "payload": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "llm"},
    "launcher": {"type": "str", "required": True},
    "rivals": {"type": "list", "elements": "str", "default": []},
    "deadline_s": {"type": "int", "default": 300},
    "timeout_stop_s": {"type": "int", "default": 180},
    "client": {"type": "dict", "default": {}},
    "probes": {"type": "dict", "default": {}},
    "drop_ins": {"type": "list", "elements": "str", "default": []},
    "cards": {"type": "list", "elements": "dict", "default": []},
    "measured": {"type": "list", "elements": "dict", "default": []},
    "api_key_file": {"type": "path", "default": "", "no_log": False},
    "ggml_types": {"type": "list", "elements": "int", "default": []},
    "runtimes_dir": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "plan_only": {"type": "bool", "default": False},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Hand the parameters to :func:`try_out`."""
    given = module.params
    declared = Declared.from_entry(given, given["launcher"])
    wanted = candidates(
        given["name"], given["env"], given["trial_env"], given["split"], given["cards"], given["engine"]
    )
    progress = Progress(given["progress_file"])
    try:
        told = try_out(
            declared,
            Paths(given["name"], runtimes=given["runtimes_dir"]),
            wanted,
            beyond_fit=given["beyond_fit"],
            limit_s=given["limit_s"],
            dry=module.check_mode or given["plan_only"],
            say=lambda step, seconds=0: progress.update(step, done=seconds, force=not seconds),
        )
    finally:
        progress.close()
    return {"changed": True, "work": True, **told}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
