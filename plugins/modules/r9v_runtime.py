#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: have the R9V fork's checkout, image and shim on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_runtime
short_description: Have the R9V fork, its image and its docker shim on a host
description:
  - Checks the fork out at its commit and sees that the commits it must include are in its history.
  - Loads the image from its archive, once the archive's digest is the declared one, and asserts the digest of the
    image's manifest, which podman keeps among the image's RepoDigests.
  - Installs the docker shim below the checkout, where the endpoint's launcher alone has it in its PATH.
  - An image that is there is not loaded again, and a checkout that was changed by hand is never moved.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  name:
    description: The name under which endpoints know it.
    type: str
    required: true
  user:
    description: The user whose podman has the image, and to whom the checkout belongs.
    type: str
    required: true
  source:
    description: Where its parts come from.
    type: dict
    required: true
    suboptions:
      kind:
        description: A bundle, which is an image archive with the fork's checkout.
        type: str
        choices: [bundle]
        required: true
      image:
        description: The image's repository, for people.
        type: str
        required: true
      sha256:
        description: The digest of the image's manifest, 64 hexadecimal digits.
        type: str
      sha256_prefix:
        description: The beginning of that digest, where no more is on record.
        type: str
      checkout:
        description: The folder of the fork's checkout.
        type: path
        required: true
      url:
        description: The repository to clone it from. Without it, a checkout must be there.
        type: str
      commit:
        description: The commit to check out. Without it, the checkout is taken as it is.
        type: str
      includes:
        description: Commits that must be in the history of what is checked out.
        type: list
        elements: str
        default: []
      archive:
        description: The image's archive on this host. Without it, the image must have been loaded before.
        type: path
      archive_sha256:
        description: The archive's sha256.
        type: str
  shim:
    description: The text of the docker shim.
    type: str
    required: true
  prefix:
    description: Where runtimes are recorded.
    type: path
    default: /opt/llm-fleet/runtimes
  progress_file:
    description: Where to write how far the work has come.
    type: path
"""

EXAMPLES = r"""
- name: The fork at a commit, with the image from an archive
  dank.llm_fleet.r9v_runtime:
    name: r9v-2dac17a2
    user: dank
    source:
      kind: bundle
      image: drwolfen/radiance-vllm-qwen4exp
      sha256_prefix: 2dac17a2
      checkout: /home/dank/GitPackages/radiance-vllm-qwen4exp
      includes: [363d606, 30d4a32, 2de0357]
    shim: "{{ lookup('ansible.builtin.file', 'docker') }}"
"""

RETURN = r"""
work:
  description: What was, or would be, done.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_runtime import carry_out, parse_request, plan

SOURCE_SPEC: dict[str, Any] = {
    "kind": {"type": "str", "required": True, "choices": ["bundle"]},
    "image": {"type": "str", "required": True},
    "sha256": {"type": "str"},
    "sha256_prefix": {"type": "str"},
    "checkout": {"type": "path", "required": True},
    "url": {"type": "str"},
    "commit": {"type": "str"},
    "includes": {"type": "list", "elements": "str", "default": []},
    "archive": {"type": "path"},
    "archive_sha256": {"type": "str"},
}

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "user": {"type": "str", "required": True},
    "source": {"type": "dict", "required": True, "options": SOURCE_SPEC},
    "shim": {"type": "str", "required": True},
    "prefix": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Plan, or plan and carry out."""
    request = parse_request(module.params)
    if module.check_mode:
        done = plan(request)
    else:
        progress = Progress(module.params["progress_file"])
        try:
            done = carry_out(request, progress)
        finally:
            progress.close()
    return {"changed": bool(done), "work": done}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
