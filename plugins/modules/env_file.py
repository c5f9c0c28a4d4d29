#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: set and remove lines of an env file, and leave every other byte alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: env_file
short_description: Set and remove lines of an env file exactly
description:
  - Sets a key where it stands, appends it where it does not, removes it on request. Comments, order and all other lines
    stay as they are, byte for byte.
  - Writes only what systemd's C(EnvironmentFile=) and bash read alike, and refuses a file that holds a line which they
    read differently (a duplicate key, C(export), CRLF, a continued line, bare blanks), naming file and line.
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
  path:
    description: The env file, an absolute path. A symbolic link is refused, since it would be replaced by a file.
    type: path
    required: true
  set:
    description: Keys and their values. An empty value is written as C(KEY=), which differs from an absent key.
    type: dict
    default: {}
  unset:
    description: Keys to remove.
    type: list
    elements: str
    default: []
  create:
    description: Make the file where there is none; its directory must be there.
    type: bool
    default: false
  mode:
    description: The file's mode, four octal digits in quotes. Kept if not set; a new file gets V(0644).
    type: str
  owner:
    description: The file's owner, a name or number. Kept if not set.
    type: str
  group:
    description: The file's group, a name or number. Kept if not set.
    type: str
"""

EXAMPLES = r"""
- name: Turn the drafter off
  dank.llm_fleet.env_file:
    path: /etc/llm-fleet/frank-zealot.env
    set:
      SPEC_TYPE: none

- name: Serve text only, and leave the log level to the engine
  dank.llm_fleet.env_file:
    path: /etc/llm-fleet/frank-zealot.env
    set:
      MMPROJ_FILE: ""
    unset: [VERBOSITY]
"""

RETURN = r"""
env:
  description: The file's keys and values, as they are after the change.
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import parse
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile_edit import Edit, carry_out, plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module


def work(module: AnsibleModule) -> dict[str, Any]:
    """Plan, write where something changes, tell."""
    given = module.params
    edit = Edit(
        given["path"], given["set"], given["unset"], given["create"], given["mode"], given["owner"], given["group"]
    )
    planned = plan(edit)
    if planned.changed and not module.check_mode:
        carry_out(planned)
    return {
        "changed": planned.changed,
        "env": parse(planned.after, planned.path),
        "diff": planned.diff,
    }


def main() -> None:
    """Run the module."""
    run_module(
        {
            "path": {"type": "path", "required": True},
            "set": {"type": "dict", "default": {}},
            "unset": {"type": "list", "elements": "str", "default": []},
            "create": {"type": "bool", "default": False},
            "mode": {"type": "str"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
        work,
    )


if __name__ == "__main__":
    main()
