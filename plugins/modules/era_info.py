#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the deployed states of endpoints of this host, read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: era_info
short_description: Tell which eras of LLM endpoints a host keeps
description:
  - Lists every era of each endpoint, oldest first, with what it served, the proof it was certified with, and what it
    changed against the one before.
  - An era that cannot be read is listed as C(damaged) with the reason, and nothing fails for it.
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
- name: What was deployed before
  dank.llm_fleet.era_info:
    names: [sandbox-chat]
  register: told

- name: Show the eras that can be gone back to
  ansible.builtin.debug:
    msg: "{{ told.histories[0].eras | selectattr('state', 'eq', 'certified') | map(attribute='id') }}"
"""

RETURN = r"""
histories:
  description: An entry per endpoint.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: The endpoint., type: str}
    pin: {description: "The pin, where the endpoint is pinned: rung, lines, since and era.", type: dict}
    last_run:
      description: "How the last run that did something ended, none where there was none: C(at), C(kind), C(served), the
        C(gates) it went through, and of a red one C(gate), C(error), C(went_back_to) and what C(serves)."
      type: dict
    eras:
      description: Its eras, oldest first.
      type: list
      elements: dict
      contains:
        id: {description: The era., type: str}
        created: {description: "When it was staged, in UTC.", type: str}
        certified: {description: "When it was proven last, if ever.", type: str}
        state: {description: "C(staged), C(certified), C(failed) or C(damaged).", type: str}
        reason: {description: Why it failed or cannot be read., type: str}
        rung: {description: The rung that it was deployed with., type: str}
        payload: {description: The payload's name., type: str}
        model_file: {description: The model's file name., type: str}
        runtime: {description: The runtime's name., type: str}
        runtime_version: {description: The runtime's version., type: str}
        shape: {description: "Context, slots, cache types and drafter.", type: dict}
        probes: {description: The verdicts of its certificate by probe., type: dict}
        ledger: {description: "Of the fit it was certified with, C(name), C(total_mib) and C(free_after_mib) of each
          device.", type: list, elements: dict}
        current: {description: Whether it is the one that serves., type: bool}
        previous: {description: Whether it is the one that served before., type: bool}
        pinned: {description: Whether the endpoint is pinned to it., type: bool}
        changes:
          description:
            - What it has otherwise than the era before, none for the first.
            - The lines of C(env), C(files) and C(unit) begin with - or +, C(runtime) names both, C(launcher) tells
              whether it is another, C(ledger) gives MiB before and after by device.
          type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._era_history import history
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {"names": {"type": "list", "elements": "str", "required": True}}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Read each endpoint's eras."""
    stores = {name: EraStore(Paths(name).store) for name in module.params["names"]}
    told = [
        {"name": name, "pin": store.pin(), "last_run": store.last_run(), "eras": history(store)}
        for name, store in stores.items()
    ]
    return {"changed": False, "histories": told}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
