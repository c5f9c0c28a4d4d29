#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: prove that what an endpoint runs is what was declared; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_truth
short_description: Prove that a running LLM endpoint is the one that was deployed
description:
  - Follows the chain from the unit's files through its main process, program, arguments, environment and listening
    socket to the answers of C(/health) and C(/props), and compares each link with the current era.
  - Fails at the first broken link with what was expected, what was found and what to do.
  - Where all is well and the start is young, looks a second time when it has settled, for a server that dies and comes
    back is whole whenever one looks once.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  name:
    description: The endpoint.
    type: str
    required: true
  settle_s:
    description:
      - How old a start must be, in seconds, to be looked at but once; a younger one is looked at again when it is.
      - By default a second more than the unit's RestartSec; C(0) for one look.
    type: float
"""

EXAMPLES = r"""
- name: Is it really the declared payload that answers?
  dank.llm_fleet.endpoint_truth:
    name: sandbox-chat
"""

RETURN = r"""
links:
  description: Every link with C(name), C(ok), C(expected) and C(found); on failure the broken ones alone.
  returned: always
  type: list
  elements: dict
endpoint:
  description: The endpoint's line in the tables.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import look, require_truth
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "settle_s": {"type": "float"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look, and raise the first broken link."""
    row, links = look(Paths(module.params["name"]), module.params["settle_s"])
    require_truth(module.params["name"], row, links)
    return {"changed": False, "endpoint": row, "links": [link.as_dict() for link in links]}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
