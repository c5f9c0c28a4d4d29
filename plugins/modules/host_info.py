#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: what a host still lacks before it can serve; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Tell what a host lacks before it can build and serve LLM endpoints
description:
  - Looks for packages, groups, a user with memberships, and folders in one call, so that a host which has them
    all costs one task.
  - Fails on a system that is not supported, or without systemd.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  user:
    description: The user that endpoints run as.
    type: str
    required: true
  groups:
    description: Groups that must exist and hold the user, such as C(render) and C(video).
    type: list
    elements: str
    default: []
  packages:
    description: Packages that must be installed.
    type: list
    elements: str
    default: []
  folders:
    description: Folders that must exist.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: What is missing?
  dank.llm_fleet.host_info:
    user: llm
    packages: [cmake, ninja-build, g++]
  register: host_lacks
"""

RETURN = r"""
lacks:
  description: What is missing, with C(complete) when nothing is.
  returned: success
  type: dict
  contains:
    complete: {description: Whether nothing is missing., type: bool}
    packages: {description: Packages that are not installed., type: list, elements: str}
    groups: {description: Groups that do not exist., type: list, elements: str}
    user: {description: Whether the user is missing., type: bool}
    memberships: {description: Groups that the user is not in., type: list, elements: str}
    folders: {description: Folders that are not there., type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._host import look
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {
    "user": {"type": "str", "required": True},
    "groups": {"type": "list", "elements": "str", "default": []},
    "packages": {"type": "list", "elements": "str", "default": []},
    "folders": {"type": "list", "elements": "str", "default": []},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look once."""
    given = module.params
    return {
        "changed": False,
        "lacks": look(given["user"], given["groups"], given["packages"], given["folders"]),
    }


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
