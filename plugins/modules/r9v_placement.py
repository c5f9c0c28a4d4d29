#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the placement bootstrap of an R9V profile, every number of it from a file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_placement
short_description: Author and verify the placement bootstrap of an R9V profile
description:
  - Counts how many experts of every layer fit into the bytes that a qualified sibling had hot on each card, and writes
    the fork's manifest with them and the wrapper C(r9v.placement.v1) around it.
  - The bytes of an expert are read from the headers of the package's shards, offset by offset. Rank 0 holds 416 of 640
    channels.
  - The budget is read from O(sibling_state), which must be ready and whole, and from the manifest that it names, whose
    C(hot_bytes) must be what the headers of the sibling's own shards come to. There is no option for a number, since a
    budget that was not measured is invented. Paths and digests of both files are kept in the manifest.
  - The order of the experts means nothing yet. The placement certifies neither fit nor headroom, and says so.
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
    description: The fork's checkout. The paths below may be relative to it.
    type: path
    required: true
  profile:
    description: The profile's C(profile.json). Its C(placement) is the id that the wrapper gets.
    type: str
    required: true
  package:
    description: The C(package.json) that M(dank.llm_fleet.r9v_package) wrote.
    type: str
    required: true
  model_dir:
    description: The model folder.
    type: path
    required: true
  path:
    description: The wrapper, as C(bootstrap.json).
    type: str
    required: true
  manifest:
    description: The manifest that it wraps, below O(checkout). C(R9V_EXPERT_MANIFEST_PATH) of the profile names it.
    type: str
    required: true
  sibling_state:
    description:
      - The C(setup.json) of the qualified sibling. Needed to write.
      - O(state=verified) takes the one that the manifest names.
    type: path
  headroom:
    description:
      - The C(headroom.json) of a run of C(qualify.yml) with the placement that is there. Each rank gets fewer hot
        experts by what its card lacked of the floor.
      - Leave the option in the play, or the next run takes the trim back.
    type: path
  cards:
    description: The two cards of O(headroom) by name, in rank order.
    type: list
    elements: str
    default: []
  runtime:
    description:
      - The C(runtime.json) of the runtime that will serve it. Cache slots, partition and types of the experts are held
        against its capabilities. Without it at most 16 cache slots are allowed, as by the fork.
    type: str
  cache_slots:
    description: Slots of the expert cache, for RV(memory) and RV(settings).
    type: int
    default: 0
  cache_ranks:
    description: The ranks that have the cache.
    type: list
    elements: int
    default: [0]
  state:
    description:
      - V(present) writes manifest and wrapper where they differ.
      - V(verified) holds the ones that are there against profile, package, shards and sibling, and names every lie in
        one error. Fewer hot experts than the sibling's bytes hold are allowed, as a trim of the fork's makes them.
    type: str
    choices: [present, verified]
    default: present
"""

EXAMPLES = r"""
- name: The bootstrap, by what the uncensored profile was measured with
  dank.llm_fleet.r9v_placement:
    checkout: /home/dank/GitPackages/radiance-vllm-qwen4exp
    profile: profiles/qwen38-flash-next/dual-r9700-q8/profile.json
    package: packages/models/qwen38-flash-next/q8-0/package.json
    path: packages/placements/qwen38-flash-next/q8-0/dual-r9700/bootstrap.json
    manifest: packages/placements/qwen38-flash-next/q8-0/dual-r9700/bootstrap-manifest.json
    model_dir: /home/dank/models/Qwen3.8-Flash-Next-Q8_0-R9V
    sibling_state: /home/dank/r9v-state/uncensored/setup.json
    runtime: runtimes/qwen38-flash-next-gfx1201-mtp4-v3/runtime.json
    cache_slots: 80
  register: placement

- name: Does the placement still hold?
  dank.llm_fleet.r9v_placement:
    checkout: /home/dank/GitPackages/radiance-vllm-qwen4exp
    profile: profiles/qwen38-flash-next/dual-r9700-q8/profile.json
    package: packages/models/qwen38-flash-next/q8-0/package.json
    path: packages/placements/qwen38-flash-next/q8-0/dual-r9700/bootstrap.json
    manifest: packages/placements/qwen38-flash-next/q8-0/dual-r9700/bootstrap-manifest.json
    model_dir: /home/dank/models/Qwen3.8-Flash-Next-Q8_0-R9V
    state: verified
"""

RETURN = r"""
placement:
  description: The wrapper.
  returned: success
  type: dict
id:
  description: Its id, by which the profile names it.
  returned: success
  type: str
hot_counts:
  description: Hot experts of every layer, by rank.
  returned: success
  type: list
  elements: int
bytes_per_expert:
  description: What one expert in every layer takes of each rank.
  returned: success
  type: list
  elements: int
memory:
  description: For each rank C(hot_bytes) and C(cache_bytes) on the card and C(cold_bytes) pinned in the host's memory.
  returned: success
  type: list
  elements: dict
settings:
  description: The lines of C(profile.env) that must agree with the placement.
  returned: success
  type: dict
sibling:
  description: Where the budget is from, with C(state_path), C(state_sha256), C(profile_id), C(manifest_path),
    C(manifest_sha256) and C(hot_bytes).
  returned: success
  type: dict
lies:
  description: What does not hold, in words.
  returned: when O(state=verified) fails
  type: list
  elements: str
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import read_object
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_placement import Request, draft, read_sources, tell
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_placement_check import require_placement
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_trim import read_headroom

ARGUMENT_SPEC: dict[str, Any] = {
    "checkout": {"type": "path", "required": True},
    "profile": {"type": "str", "required": True},
    "package": {"type": "str", "required": True},
    "model_dir": {"type": "path", "required": True},
    "path": {"type": "str", "required": True},
    "manifest": {"type": "str", "required": True},
    "sibling_state": {"type": "path"},
    "headroom": {"type": "path"},
    "cards": {"type": "list", "elements": "str", "default": []},
    "runtime": {"type": "str"},
    "cache_slots": {"type": "int", "default": 0},
    "cache_ranks": {"type": "list", "elements": "int", "default": [0]},
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Author, or hold what is there against its sources."""
    given = module.params
    request = Request.from_params(given)
    sources = read_sources(request)
    if given["state"] == "verified":
        manifest, wrapper = require_placement(request, sources), read_object(request.path, "placement")
        drafts = []
    else:
        room = read_headroom(given["headroom"], given["cards"]) if given["headroom"] else None
        drafts = draft(request, sources, given["sibling_state"], room)
        manifest, wrapper = (json.loads(each.data) for each in drafts)
    changed = [each for each in drafts if each.changed]
    for each in changed if not module.check_mode else ():
        each.write()
    return {
        "changed": bool(changed),
        "diff": [each.diff for each in changed],
        "placement": wrapper,
        "sibling": manifest["r9v_derivation"]["sibling"],
        **tell(request, sources, manifest),
    }


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work, required_if=[("state", "present", ("sibling_state",))])


if __name__ == "__main__":
    main()
