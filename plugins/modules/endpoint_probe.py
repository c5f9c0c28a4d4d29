#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: ask an endpoint something and judge the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_probe
short_description: Prove by a request what an LLM endpoint can do
description:
  - Sends the chat probe to the endpoint's own port on its host and fails when the answer is not one.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  name:
    description: The endpoint.
    type: str
    required: true
  prompt:
    description: What to ask; a short question of the collection's own by default.
    type: str
  max_tokens:
    description: The most tokens that the answer may take; thinking counts.
    type: int
    default: 64
  timeout_s:
    description: Seconds until the answer must be there.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Ask it something
  dank.llm_fleet.endpoint_probe:
    name: sandbox-chat
    prompt: What is the capital of France?
"""

RETURN = r"""
probes:
  description: The verdicts, each with C(probe), C(verdict), C(evidence), C(seconds) and C(facts).
  returned: always
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import require_era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import CHAT_PROMPT, probe_chat

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "prompt": {"type": "str"},
    "max_tokens": {"type": "int", "default": 64},
    "timeout_s": {"type": "int", "default": 120},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Ask, and raise a failed verdict."""
    given = module.params
    env = require_era(Paths(given["name"])).blueprint.facts["env"]
    verdict = probe_chat(
        api_of(env),
        env["ALIAS"],
        prompt=given["prompt"] or CHAT_PROMPT,
        max_tokens=given["max_tokens"],
        timeout_s=given["timeout_s"],
    )
    if not verdict.ok:
        raise FleetError(
            f"probe chat of endpoint {given['name']}",
            expected="a non-empty answer",
            found=verdict.evidence,
            probes=[verdict.as_dict()],
        )
    return {"changed": False, "probes": [verdict.as_dict()]}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
