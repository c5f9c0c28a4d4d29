#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: whether a start of an R9V profile finds its memory and time; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_memory_info
short_description: Tell before a window whether an R9V profile will fit the host
description:
  - Checks host memory for the pinned embedding table (with the engine's reserve, and twice while it is pinned anew),
    the time of its registration against the ready timeout, the KV cache against the window, and the gap that a harness
    leaves when it compacts.
  - Each check says what it expects, what it found and what to do. What could not be checked is told as well.
  - Reads C(/proc/meminfo) and nothing else. Changes nothing and fails for no check; a caller decides by RV(fits).
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  settings:
    description:
      - The C(R9V_*) keys as a start would have them, as C(settings) of M(dank.llm_fleet.r9v_profile_env) has them.
      - C(R9V_PLE_RESIDENCY_MODE), C(R9V_PLE_EXPECTED_BYTES), C(R9V_PLE_PINNED_RESERVE_BYTES),
        C(R9V_PLE_READY_TIMEOUT), C(R9V_MAX_MODEL_LEN), C(R9V_KV_CACHE_MEMORY_BYTES) and
        C(R9V_MIN_HOST_AVAILABLE_BYTES) are looked at.
    type: dict
    required: true
  released_bytes:
    description: What stopping the incumbent gives back, such as the C(VmLck) of its container's processes.
    type: int
    default: 0
  cold_bytes:
    description:
      - The experts that are pinned in the host's memory beside the table. The sum of C(cold_bytes) over C(memory) of
        M(dank.llm_fleet.r9v_placement).
    type: int
    default: 0
  registrations:
    description:
      - Registrations that were measured on this host, each with C(bytes) and C(seconds). The slowest one decides.
      - Without any, those of the reference host count, 446 s and 740 s for 54,400,261,120 bytes.
    type: list
    elements: dict
    default: []
    suboptions:
      bytes:
        description: The table's bytes.
        type: int
        required: true
      seconds:
        description: How long it took.
        type: float
        required: true
  kv_bytes_per_token:
    description: KV bytes of one token on one rank, as measured. 18676 on the reference host.
    type: int
  client:
    description: What clients are told.
    type: dict
    suboptions:
      context_window:
        description: The window.
        type: int
        required: true
      max_tokens:
        description: The longest answer.
        type: int
        required: true
      percent:
        description: Where the harness compacts, in percent of the window.
        type: int
        default: 70
  available_bytes:
    description: Host memory to reckon with in place of C(MemAvailable), for a host that is not at hand.
    type: int
"""

EXAMPLES = r"""
- name: Will the new profile fit, once the incumbent is stopped?
  dank.llm_fleet.r9v_memory_info:
    settings: "{{ profile.settings }}"
    cold_bytes: "{{ placement.memory | sum(attribute='cold_bytes') }}"
    kv_bytes_per_token: 18676
    client: {context_window: 131072, max_tokens: 36864}
  register: memory

- name: No window without it
  ansible.builtin.assert:
    that: memory.fits
    fail_msg: "{{ memory.table | join('\n') }}"
"""

RETURN = r"""
fits:
  description: Whether every check holds.
  returned: success
  type: bool
checks:
  description: Each check with C(name), C(holds), C(expected), C(found) and C(remedy).
  returned: success
  type: list
  elements: dict
unchecked:
  description: What was not checked, and the number that lacks.
  returned: success
  type: list
  elements: str
table:
  description: The checks that do not hold, as lines of text. Each is a warning of the run, too.
  returned: success
  type: list
  elements: str
available_bytes:
  description: The host memory that was reckoned with.
  returned: success
  type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._proc import available_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_memory import (
    REGISTRATIONS,
    Host,
    Registration,
    plan,
    unchecked,
)

ARGUMENT_SPEC: dict[str, Any] = {
    "settings": {"type": "dict", "required": True},
    "released_bytes": {"type": "int", "default": 0},
    "cold_bytes": {"type": "int", "default": 0},
    "registrations": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "bytes": {"type": "int", "required": True},
            "seconds": {"type": "float", "required": True},
        },
    },
    "kv_bytes_per_token": {"type": "int"},
    "client": {
        "type": "dict",
        "options": {
            "context_window": {"type": "int", "required": True},
            "max_tokens": {"type": "int", "required": True},
            "percent": {"type": "int", "default": 70},
        },
    },
    "available_bytes": {"type": "int"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look, and compare."""
    given = module.params
    available = available_bytes() if given["available_bytes"] is None else given["available_bytes"]
    host = Host(available, given["released_bytes"], given["cold_bytes"])
    measured = [Registration(row["bytes"], row["seconds"]) for row in given["registrations"]] or REGISTRATIONS
    per_token, client = given["kv_bytes_per_token"], given["client"]
    checks = plan(given["settings"], host, measured, kv_per_token=per_token, client=client)
    table = [check.words for check in checks if not check.holds]
    for line in table:
        module.warn(line)
    return {
        "changed": False,
        "fits": not table,
        "checks": [check.as_dict() for check in checks],
        "unchecked": unchecked(given["settings"], per_token, client),
        "table": table,
        "available_bytes": available,
    }


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
