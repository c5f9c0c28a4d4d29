#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: have the nightly check of payload files on the host, or have it gone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: payload_rest
short_description: Have payload files proven again while they lie there
description:
  - Installs C(llm-fleet-payload-check.timer), which has one payload file a night read in full and held against its
    stamp, the one that was read longest ago first. It runs with the lowest priorities of processor and disk, and reads
    from the disk, not from memory.
  - A file that is another now is marked. M(dank.llm_fleet.endpoint_info) and M(dank.llm_fleet.endpoint_truth) then
    say of every endpoint that uses it that its payload is damaged, until it is fetched anew or proven again.
  - Metrics go to C(/var/lib/llm-fleet/metrics/payload.prom).
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
  stamp_dir:
    description: Where the stamps of verified files lie.
    type: path
    default: /var/lib/llm-fleet/payloads
  state:
    description: V(absent) removes timer, service, program and metrics. Marks of damaged files stay.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Have one file a night proven again
  dank.llm_fleet.payload_rest:
    program: "{{ lookup('ansible.builtin.file', role_path ~ '/files/llm-fleet-payload-check', rstrip=false) }}"
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
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._rest_install import RestSpec, converge

ARGUMENT_SPEC: dict[str, Any] = {
    "program": {"type": "str", "required": True},
    "stamp_dir": {"type": "path", "default": "/var/lib/llm-fleet/payloads"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Install or remove."""
    return converge(RestSpec.from_params(module.params), dry=module.check_mode)


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
