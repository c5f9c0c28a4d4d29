#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the GPUs of a host; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: card_info
short_description: List the GPUs of a host, their memory, and who holds it
description:
  - Lists every AMD and NVIDIA GPU on the PCI bus, also one that no driver has.
  - AMD cards are read from amdgpu's and KFD's folders in sysfs, NVIDIA cards by C(nvidia-smi).
  - Whether PCIe atomics reach the root port is read from the configuration space of the devices on the way, which takes
    root.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options: {}
"""

EXAMPLES = r"""
- name: What is in this box?
  dank.llm_fleet.card_info:
  register: box

- name: Show what llm_cards has to say
  ansible.builtin.debug:
    msg: "{{ box.cards | map(attribute='pci') | list }}"
"""

RETURN = r"""
cards:
  description: The GPUs, by PCI address.
  returned: success
  type: list
  elements: dict
  contains:
    pci: {description: "PCI address, as C(0000:03:00.0).", type: str}
    vendor: {description: V(amd) or V(nvidia)., type: str}
    name: {description: The product's name as the driver gives it., type: str}
    arch: {description: "What code is built for, as C(gfx1201) or C(sm_86).", type: str}
    index: {description: The number in HIP's or nvidia-smi's order., type: int}
    uuid: {description: The driver's unique name., type: str}
    integrated: {description: Whether it is part of the CPU., type: bool}
    driver: {description: The kernel driver that has it., type: str}
    total_mib: {description: All of its memory in MiB., type: float}
    addressable_mib: {description: What the driver leaves of it when nothing runs., type: float}
    free_mib: {description: What is free now., type: float}
    atomics: {description: Whether PCIe atomics reach the root port; null where that cannot be told., type: bool}
    atomics_why: {description: The device that decides., type: str}
    holders:
      description: Processes with memory on it.
      type: list
      elements: dict
      contains:
        pid: {description: Process id., type: int}
        mib: {description: How much in MiB; null where the driver does not tell., type: float}
        unit: {description: Its systemd unit., type: str}
        command: {description: Its command line., type: str}
    problem: {description: Why the driver does not serve it; empty where it does., type: str}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import as_dict, list_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look once."""
    return {"changed": False, "cards": [as_dict(card) for card in list_cards()]}


def main() -> None:
    """Entry point."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
