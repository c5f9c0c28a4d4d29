#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: what endpoints of this host have been seen to do, read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: evidence_info
short_description: Tell what LLM endpoints of a host have been seen to do
description:
  - Reads the certificate of each endpoint's current era, and the newest result of each kind of bench.
  - Nothing is asked of the endpoints; what cannot be read is told, and nothing fails for it.
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
- name: What was it seen to do?
  dank.llm_fleet.evidence_info:
    names: [sandbox-chat]
  register: told

- name: Show what each probe saw
  ansible.builtin.debug:
    msg: "{{ told.evidence[0].certificate.probes | items2dict(key_name='probe', value_name='evidence') }}"
"""

RETURN = r"""
evidence:
  description: An entry per endpoint.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: The endpoint., type: str}
    era: {description: The current era., type: str}
    cards: {description: The cards that it was deployed on., type: list, elements: dict}
    certificate:
      description:
        - The record that the era was proven. None where it never was.
        - C(at) says when, C(probes) what was seen, C(fit) the memory that was foretold, C(ledger) the memory that the
          boot took, C(gap_s) how long nothing served.
      type: dict
    benches:
      description: The newest result of each kind, with C(at), C(kind), C(era) and C(cells).
      type: list
      elements: dict
    unread: {description: What could not be read and why., type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._evidence import evidence
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {"names": {"type": "list", "elements": "str", "required": True}}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Read each endpoint's records."""
    return {
        "changed": False,
        "evidence": [evidence(name, EraStore(Paths(name).store)) for name in module.params["names"]],
    }


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
