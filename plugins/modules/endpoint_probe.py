#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: see what an endpoint can do, by asking it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_probe
short_description: Prove by requests what an LLM endpoint can do
description:
  - Sends the probes of everything that the endpoint declares to its own port on its host, and fails where one of them
    does not pass; all verdicts are in the result.
  - What the endpoint does not declare is looked for, and reported as C(found) or C(absent).
  - One request that no verdict counts comes first. After a boot it is the warm-up.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
requirements:
  - requests and jmespath on the host (Debian python3-requests, python3-jmespath)
options:
  name:
    description: The endpoint.
    type: str
    required: true
  only:
    description: The probes to run, such as C(tools); the inventory's own are C(custom:NAME).
    type: list
    elements: str
  full:
    description:
      - Whether every probe runs. Otherwise C(health) and C(chat) do, and those of which the era's certificate has no
        proof.
    type: bool
    default: false
  client:
    description: What its clients were promised, in place of what its era was deployed with.
    type: dict
  probes:
    description: What it must be seen to do, in place of what its era was deployed with.
    type: dict
"""

EXAMPLES = r"""
- name: Everything that it declares
  dank.llm_fleet.endpoint_probe:
    name: sandbox-chat
    full: true

- name: Does it still call tools?
  dank.llm_fleet.endpoint_probe:
    name: sandbox-chat
    only: [tools]
"""

RETURN = r"""
probes:
  description: The verdicts, in the order of the probes.
  returned: always
  type: list
  elements: dict
  contains:
    probe:
      description: The probe.
      type: str
      returned: always
    verdict:
      description: C(pass), C(fail) or C(not-declared).
      type: str
      returned: always
    evidence:
      description: What was seen, in a sentence.
      type: str
      returned: always
    seconds:
      description: How long its requests took.
      type: float
      returned: always
    facts:
      description: Token counts, rates and the like, as the engine tells them.
      type: dict
      returned: always
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import expired
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import api_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import require_era
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe import (
    declare,
    only,
    probes_of,
    require_probes,
    run,
    select,
)

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "only": {"type": "list", "elements": "str"},
    "full": {"type": "bool", "default": False},
    "client": {"type": "dict"},
    "probes": {"type": "dict"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Run the probes, and raise those that failed."""
    given = module.params
    era = require_era(Paths(given["name"]))
    facts = {
        **era.blueprint.facts,
        **{key: given[key] for key in ("client", "probes") if given[key] is not None},
    }
    declared = declare(facts)
    every = probes_of(declared)
    if given["only"]:
        chosen = only(every, given["only"])
    else:
        names = [probe.name for probe in every]
        lost = expired(era.meta.get("certificate"), era.blueprint.digest, facts, names)
        chosen = select(every, None if given["full"] else lost)
    verdicts = run(api_of(facts["env"]), declared, chosen)
    require_probes(verdicts, f"endpoint {given['name']}")
    return {"changed": False, "probes": [verdict.as_dict() for verdict in verdicts]}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work, mutually_exclusive=[("only", "full")])


if __name__ == "__main__":
    main()
