#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: what endpoints of this host are doing, read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_info
short_description: Tell what LLM endpoints of a host are doing
description:
  - Reads the current era, the unit, the main process and C(/health) of each endpoint, and the whole chain of truth.
  - A broken link is reported, not raised; M(dank.llm_fleet.endpoint_truth) raises it.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  names:
    description: The endpoints to look at.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Look at one endpoint
  dank.llm_fleet.endpoint_info:
    names: [sandbox-chat]
"""

RETURN = r"""
endpoints:
  description: A line per endpoint.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: The endpoint., type: str}
    unit: {description: The unit's state., type: str}
    age_s: {description: Seconds since the unit became active., type: float}
    restarts: {description: How often systemd brought it back since it was started., type: int}
    pid: {description: The main process., type: int}
    payload: {description: The payload's name., type: str}
    model_file: {description: The model's file name., type: str}
    runtime: {description: The runtime's name., type: str}
    shape: {description: "Context, slots, cache types and drafter.", type: dict}
    memory_mib: {description: "Resident host memory in MiB, of a container's processes too.", type: float}
    cards_mib: {description: "Memory of the cards in MiB that its processes hold, null without cards.", type: float}
    memory_fault: {description: "Why the cards could not be asked, or null.", type: str}
    health: {description: What C(/health) answered., type: str}
    era: {description: The current era., type: str}
    pinned: {description: The rung or era that the endpoint is pinned to., type: str}
    truth: {description: C(ok) or the first broken link., type: str}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {"names": {"type": "list", "elements": "str", "required": True}}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look at each endpoint."""
    return {"changed": False, "endpoints": [look(Paths(name))[0] for name in module.params["names"]]}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
