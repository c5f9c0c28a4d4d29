#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: measure how fast an endpoint is, and keep the figures by era."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_bench
short_description: Measure an LLM endpoint and compare it with its last era
description:
  - Measures an endpoint that serves nobody else, cell by cell, with the engine's own timings, after a first request
    that no figure counts. It is refused while a slot is busy.
  - Results are kept as JSON, tab-separated lines and SVG in C(/var/lib/llm-fleet/<name>/bench), written after each
    cell. A cell that fails is a row with its reason, and the others go on. The module fails where no cell was measured.
  - Each figure is the median of its repetitions with their spread (largest less smallest), held against the same cell
    of the newest result of another era. Within the larger of both spreads it is C(same), else C(better) or C(worse).
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details:
      - Lists the cells and asks the endpoint nothing.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each run measures anew and leaves a result of its own.
requirements:
  - requests and jmespath on the host (Debian python3-requests, python3-jmespath)
options:
  name:
    description: The endpoint.
    type: str
    required: true
  kind:
    description:
      - V(shapes) asks with prompts of several lengths for answers of several lengths, and tells how fast they are read
        and written and how many drafted tokens are accepted.
      - V(spec_ab) asks the same with drafters and without them, for prose, echo, structured text and a short fact, and
        checks that the greedy text stays the same. The drafters are off on the rung of O(rungs) that sets C(SPEC_TYPE)
        to C(none); llama-server has no option of a request for it. Needs O(stop).
      - V(turn_latency) has several agents send a long document with every turn, all at once, and tells the time to the
        first token and what came from the cache.
      - V(batch_ubatch) runs llama-bench, a process a cell, in a transient unit with the endpoint's own limits, and
        tells each card's peak memory. The endpoint must stand still; see O(stop).
    type: str
    choices: [shapes, spec_ab, turn_latency, batch_ubatch]
    default: shapes
  prompts:
    description:
      - Lengths of prompts in tokens; V(spec_ab) and V(batch_ubatch) take the first. Without it those of 512, 4096,
        16384 and 65536 that a slot's window holds.
    type: list
    elements: int
    default: []
  outputs:
    description: Lengths of answers in tokens; all kinds but V(shapes) take the first.
    type: list
    elements: int
    default: [128]
  families:
    description: How many agents V(turn_latency) has.
    type: int
    default: 2
  turns:
    description: How many turns each of them takes.
    type: int
    default: 2
  document:
    description: The length of their documents in tokens. V(0) is half of a slot's window, at most 30000.
    type: int
    default: 0
  batches:
    description: Logical batches for V(batch_ubatch), in tokens.
    type: list
    elements: int
    default: [2048]
  ubatches:
    description: Physical batches for V(batch_ubatch); those above a batch are left out with it.
    type: list
    elements: int
    default: [512]
  depth:
    description: Tokens in the cache before V(batch_ubatch) measures.
    type: int
    default: 0
  repetitions:
    description: How often each cell is measured. One alone has no spread, and is compared with nothing.
    type: int
    default: 3
  timeout_s:
    description: How long one answer, or one llama-bench, may take.
    type: int
    default: 600
  stop:
    description: Whether the endpoint may be stopped for this, while nobody uses it. It is started again afterwards.
    type: bool
    default: false
  rungs:
    description: The endpoint's rungs, for V(spec_ab).
    type: dict
    default: {}
  plan_only:
    description: List the cells, as check mode does. Used by the action plugin that shows progress.
    type: bool
    default: false
  progress_file:
    description: A file on the host to keep up to date with the cell that is measured. Removed at the end.
    type: path
"""

EXAMPLES = r"""
- name: How fast is it?
  dank.llm_fleet.endpoint_bench:
    name: sandbox-chat
    prompts: [512, 1024]
    outputs: [64]

- name: What are its drafters worth?
  dank.llm_fleet.endpoint_bench:
    name: frank-zealot
    kind: spec_ab
    stop: true
    rungs:
      spec_off: {SPEC_TYPE: none}
"""

RETURN = r"""
bench:
  description: The result as it is kept.
  returned: when a cell was measured
  type: dict
  contains:
    at:
      description: When it began, in UTC.
      type: str
      returned: always
    era:
      description: The era that was measured.
      type: str
      returned: always
    against:
      description: Era and time of the result that it is held against, null without one.
      type: dict
      returned: always
    cells:
      description:
        - Each with what was set (C(cell)), whether it was measured (C(ok)), why not (C(error)), its C(figures) as
          C(median), C(spread) and C(n), and how they are to the other era's (C(compared)).
      type: list
      elements: dict
      returned: always
files:
  description: The paths of the result.
  returned: when a cell was measured
  type: list
  elements: str
cells:
  description: The cells that would be measured.
  returned: in check mode
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_run import Asked, bench, cells_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import require_era
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "kind": {
        "type": "str",
        "choices": ["shapes", "spec_ab", "turn_latency", "batch_ubatch"],
        "default": "shapes",
    },
    "prompts": {"type": "list", "elements": "int", "default": []},
    "outputs": {"type": "list", "elements": "int", "default": [128]},
    "families": {"type": "int", "default": 2},
    "turns": {"type": "int", "default": 2},
    "document": {"type": "int", "default": 0},
    "batches": {"type": "list", "elements": "int", "default": [2048]},
    "ubatches": {"type": "list", "elements": "int", "default": [512]},
    "depth": {"type": "int", "default": 0},
    "repetitions": {"type": "int", "default": 3},
    "timeout_s": {"type": "int", "default": 600},
    "stop": {"type": "bool", "default": False},
    "rungs": {"type": "dict", "default": {}},
    "plan_only": {"type": "bool", "default": False},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Measure under the endpoint's lock, so that no deploy comes in between."""
    given = module.params
    paths = Paths(given["name"])
    era = require_era(paths)
    asked = Asked(**{key: given[key] for key in Asked.__dataclass_fields__})
    if module.check_mode or given["plan_only"]:
        cells = cells_of(asked, era.blueprint.facts["shape"]["ctx_per_slot"])
        return {"changed": True, "work": True, "cells": cells}
    progress = Progress(given["progress_file"])
    try:
        purpose = f"bench of endpoint {given['name']}"
        with file_lock(EraStore(paths.store).lock_path, wait_s=5, purpose=purpose) as held:
            for warning in held.warning:
                module.warn(warning)
            told = bench(
                asked, era, paths, lambda step, seconds=0: progress.update(step, done=seconds, force=not seconds)
            )
    finally:
        progress.close()
    return {"changed": True, **told}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
