#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the profile.env of an R9V profile, in the order in which what is set first wins."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_profile_env
short_description: Author and read the profile.env of an R9V profile
description:
  - Writes a profile whose own values come first and the profile that it stands on last, since every line of both is
    C(":= ") and sets only what is unset.
  - Refuses an empty value, which C(:=) takes for unset, so that the base's value would count.
  - Reads a profile that is there, and names every line that does not do what it says - after the base, set before, or
    empty.
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
  checkout:
    description: The fork's checkout.
    type: path
    required: true
  path:
    description: The profile, relative to O(checkout). A new one belongs to the owner of its folder.
    type: str
    required: true
  set:
    description: Keys and their values, in the order in which they are written. Needed to write.
    type: dict
    default: {}
  base:
    description: The profile that it stands on, relative to O(checkout). Without it, it stands alone.
    type: str
    default: ""
  comment:
    description: Lines of comment at its head.
    type: str
    default: ""
  environment:
    description: Lines that a start will have before any profile is read, for RV(settings).
    type: dict
    default: {}
  state:
    description: V(present) writes the profile where it differs, V(verified) reads the one that is there.
    type: str
    choices: [present, verified]
    default: present
"""

EXAMPLES = r"""
- name: A profile on the reference profile
  dank.llm_fleet.r9v_profile_env:
    checkout: /home/dank/GitPackages/radiance-vllm-qwen4exp
    path: profiles/qwen38-flash-next/dual-r9700-q8/profile.env
    base: profiles/qwen38-flash-next/dual-r9700/profile.env
    set:
      R9V_PLE_EXPECTED_BYTES: "54400261120"
      R9V_PLE_RESIDENCY_MODE: pinned
      R9V_TIERED_EXPERT_CACHE_SLOTS: "80"

- name: What does a start come to?
  dank.llm_fleet.r9v_profile_env:
    checkout: /home/dank/GitPackages/radiance-vllm-qwen4exp
    path: profiles/qwen38-flash-next/dual-r9700-q8/profile.env
    state: verified
    environment:
      R9V_PLE_READY_TIMEOUT: "1800"
  register: profile
"""

RETURN = r"""
settings:
  description: What a start comes to - O(environment) over the profile's own lines over its base.
  returned: success
  type: dict
faults:
  description: Lines that do not do what they say.
  returned: when O(state=verified) fails
  type: list
  elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import Draft
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_profile_env import (
    first_set,
    render_profile,
    require_sound,
    settings_of,
    texts,
)

ARGUMENT_SPEC: dict[str, Any] = {
    "checkout": {"type": "path", "required": True},
    "path": {"type": "str", "required": True},
    "set": {"type": "dict", "default": {}},
    "base": {"type": "str", "default": ""},
    "comment": {"type": "str", "default": ""},
    "environment": {"type": "dict", "default": {}},
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Render and write, or read."""
    given = module.params
    root, environment = os.path.normpath(given["checkout"]), texts(given["environment"], "environment")
    path = os.path.join(root, given["path"])
    if given["state"] == "verified":
        require_sound(path, root)
        return {"changed": False, "diff": {}, "settings": first_set(environment, settings_of(path, root))}
    own = texts(given["set"], "set")
    draft = Draft(path, render_profile(own, given["path"], given["base"], given["comment"]))
    below = settings_of(os.path.join(root, given["base"]), root, [path]) if given["base"] else {}
    if draft.changed and not module.check_mode:
        draft.write()
    return {"changed": draft.changed, "diff": draft.diff, "settings": first_set(environment, own, below)}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work, required_if=[("state", "present", ("set",))])


if __name__ == "__main__":
    main()
