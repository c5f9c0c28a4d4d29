#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: pin payloads to what the model hub has."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hf_lock
short_description: Pin the files of payloads to what the model hub has
description:
  - Asks the hub for commit, size and sha256 of every file that names a C(repo), and writes them, sorted, to a lock file
    of the inventory, C(llm_payload_locks). Downloads no model.
  - A file's C(revision) may be a branch, a tag or a commit, V(main) if it is not declared; the lock holds the commit.
    Run it again to take up what a branch means by then.
  - What the inventory declares must agree - size, sha256, a prefix of it. Otherwise nothing is written, and every
    disagreement is told.
  - The lock file is always written whole; a lock whose file is no longer declared goes.
  - A file that the hub keeps in git itself, not by LFS, is refused, for the hub knows no sha256 of it. Declare size and
    sha256 of such a file, and C(urls) instead of C(repo).
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details:
      - Asks the hub, and writes nothing.
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - Meant for the controller, with C(delegate_to) and C(run_once), as playbook C(lock.yml) does.
  - The hub is asked once for everything. If it refuses, because it is busy or for another reason, the run fails.
options:
  path:
    description:
      - The lock file, an absolute path in a C(group_vars) folder. A file that this module has not written is refused.
    type: path
    required: true
  payloads:
    description: The C(llm_payloads) of each host.
    type: list
    elements: dict
    required: true
  hub_url:
    description: The hub, or a mirror of it.
    type: str
    default: https://huggingface.co
  token_file:
    description:
      - A file where the module runs that holds a token for O(hub_url). It must not be readable by every user.
      - The token is sent to the scheme, host and port of O(hub_url) alone, never over plain http to another machine.
    type: path
  token_env:
    description:
      - The name of an environment variable where the module runs that holds the token, instead of O(token_file).
    type: str
"""

EXAMPLES = r"""
- name: Lock the payloads of all hosts
  dank.llm_fleet.hf_lock:
    path: "{{ inventory_dir }}/group_vars/all/payloads.lock.yml"
    payloads: "{{ groups.llm | map('extract', hostvars, 'llm_payloads') | list }}"
    token_env: HF_TOKEN
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
locks:
  description:
    - C(llm_payload_locks), that is for each payload and file C(bytes), C(sha256), C(revision) and, as C(of), what was
      asked.
  returned: success
  type: dict
path:
  description: The lock file.
  returned: success
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._hub import Hub
from ansible_collections.dank.llm_fleet.plugins.module_utils._lockfile import carry_out, plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._pin import pin

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "payloads": {"type": "list", "elements": "dict", "required": True},
    "hub_url": {"type": "str", "default": "https://huggingface.co"},
    "token_file": {"type": "path", "no_log": False},
    "token_env": {"type": "str", "no_log": False},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Ask the hub, write where something changes, tell."""
    given = module.params
    plan(given["path"], {})  # before the hub is asked: may the file be written at all?
    locks = pin(Hub.from_params(given["hub_url"], given["token_file"], given["token_env"]), given["payloads"])
    planned = plan(given["path"], locks)
    if planned.changed and not module.check_mode:
        carry_out(planned)
    return {"changed": planned.changed, "diff": planned.diff, "locks": locks, "path": planned.path}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
