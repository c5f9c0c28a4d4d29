#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: what an R9V endpoint would be started with, and where each value comes from."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_state
short_description: Tell what an R9V endpoint would be started with, key by key
description:
  - Reads the setup state that the endpoint's env names and lays it under the env, as the launcher does.
  - The resulting environment is the real launcher's, which is run dry. A key that it lays otherwise than the law of
    the layers is an error.
  - Fails where the state is not ready, or where a key belongs to another setup. Changes nothing.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  name:
    description: The endpoint's name.
    type: str
    required: true
  env:
    description: As for M(dank.llm_fleet.endpoint).
    type: dict
    required: true
  rungs:
    description: As for M(dank.llm_fleet.endpoint).
    type: dict
    default: {}
  rung:
    description: The rung whose lines lie over O(env).
    type: str
  setups:
    description: As for M(dank.llm_fleet.endpoint).
    type: dict
    default: {}
  runtime:
    description: The name of the runtime that serves it.
    type: str
    required: true
  user:
    description: The user it runs as.
    type: str
    default: llm
  launcher:
    description: The text of the launcher script.
    type: str
    required: true
  runtimes_dir:
    description: Where runtimes are recorded.
    type: path
    default: /opt/llm-fleet/runtimes
"""

EXAMPLES = r"""
- name: Where does each value come from?
  dank.llm_fleet.r9v_state:
    name: frank-primary
    env: "{{ llm_endpoints['frank-primary'].env }}"
    runtime: r9v-2dac17a2
    user: dank
    launcher: "{{ lookup('ansible.builtin.file', 'serve-r9v') }}"
"""

RETURN = r"""
state:
  description: The setup state.
  returned: success
  type: dict
  contains:
    path: {description: Its file., type: str}
    profile_id: {description: The profile that it was set up for., type: str}
    whole: {description: Whether every file that it names is as setup verified it., type: bool}
    faults: {description: 'What is not, in words.', type: list, elements: str}
layers:
  description:
    - Each key with C(key), C(value), C(source) (C(env), C(state) or C(profile)) and C(hides), the values of lower
      layers that it hides.
  returned: success
  type: list
  elements: dict
table:
  description: The same as lines of text.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_blueprint import explain

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "env": {"type": "dict", "required": True},
    "rungs": {"type": "dict", "default": {}},
    "rung": {"type": "str"},
    "setups": {"type": "dict", "default": {}},
    "runtime": {"type": "str", "required": True},
    "user": {"type": "str", "default": "llm"},
    "launcher": {"type": "str", "required": True},
    "runtimes_dir": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look, and explain."""
    given = module.params
    declared = Declared.from_entry({**given, "engine": "r9v", "payload": {}}, given["launcher"])
    told = explain(declared, Paths(given["name"], runtimes=given["runtimes_dir"]), given["rung"])
    return {"changed": False, **told}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
