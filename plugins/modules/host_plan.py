#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: which steps of a deploy still have something to do on a host; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_plan
short_description: Tell which steps of a deploy still have work on a host
description:
  - Looks once at the host, its runtimes, payloads and endpoints, so that a converged host costs one task.
  - The steps C(host), C(runtime), C(payload) and C(endpoint) stand on each other. From the first one with work on,
    all later ones count as having work.
  - What the inventory says is V(unknown) of a runtime, a payload or an endpoint's env, and a declaration that is
    unsound, fails the task before anything is looked at.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  host:
    description: The options of M(dank.llm_fleet.host_info).
    type: dict
    required: true
  runtimes:
    description: Entries as M(dank.llm_fleet.runtime_build) takes them.
    type: list
    elements: dict
    required: true
  payloads:
    description: Entries as M(dank.llm_fleet.payload) takes them.
    type: list
    elements: dict
    required: true
  rest:
    description: The options of M(dank.llm_fleet.payload_rest), all of them. Not looked at if not set.
    type: dict
  endpoints:
    description: Entries as M(dank.llm_fleet.endpoint) takes them.
    type: list
    elements: dict
    required: true
  launchers:
    description: The text of the launcher script of each engine.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: What is left to do?
  dank.llm_fleet.host_plan:
    host: {user: llm, groups: [], packages: [], folders: [/etc/llm-fleet]}
    runtimes: []
    payloads: []
    endpoints: []
    launchers: {llamacpp: ""}
  register: plan
"""

RETURN = r"""
steps:
  description: For each step whether it has work.
  returned: success
  type: dict
why:
  description: For each step with work the first reason.
  returned: success
  type: dict
endpoints:
  description: A line per endpoint when nothing is left to do, as M(dank.llm_fleet.endpoint_info) returns them.
  returned: success
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._host_plan import survey
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {
    "host": {"type": "dict", "required": True},
    "runtimes": {"type": "list", "elements": "dict", "required": True},
    "payloads": {"type": "list", "elements": "dict", "required": True},
    "rest": {"type": "dict"},
    "endpoints": {"type": "list", "elements": "dict", "required": True},
    "launchers": {"type": "dict", "required": True},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look once."""
    given = module.params
    told = survey(
        given["host"], given["runtimes"], given["payloads"], given["endpoints"], given["launchers"], given["rest"]
    )
    for warning in told.pop("warnings"):
        module.warn(warning)
    return {"changed": False, **told}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
