#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: have the timer on the host that tells Prometheus what the host knows, or have it gone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: facts_export
short_description: Have a host tell Prometheus of its cards and endpoints
description:
  - Installs C(llm-fleet-facts.timer), which reads the memory of the cards from their drivers, and of every deployed
    endpoint its era, certificate, truth, last gates and restarts.
  - Metrics go to C(/var/lib/llm-fleet/metrics/facts.prom) in one step, for a collector of text files.
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
  program:
    description: The text of the program that the service runs.
    type: str
    required: true
  cards:
    description: The host's C(llm_cards). A card whose address is not known is left out.
    type: dict
    default: {}
  interval_s:
    description: Seconds between two readings.
    type: int
    default: 60
  state:
    description: V(absent) removes timer, service, program and metrics.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Have the facts told once a minute
  dank.llm_fleet.facts_export:
    program: "{{ lookup('ansible.builtin.file', role_path ~ '/files/llm-fleet-facts', rstrip=false) }}"
    cards: "{{ llm_cards }}"
"""

RETURN = r"""
files:
  description: The files that were written or removed, or would be.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._facts_install import FactsSpec, converge
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {
    "program": {"type": "str", "required": True},
    "cards": {"type": "dict", "default": {}},
    "interval_s": {"type": "int", "default": 60},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Install or remove."""
    return converge(FactsSpec.from_params(module.params), dry=module.check_mode)


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
