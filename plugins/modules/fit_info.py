#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the memory of a llama-server's boot before it happens; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fit_info
short_description: Tell whether a model fits its cards, before it is loaded or even downloaded
description:
  - Adds up what a llama-server takes on each card for a model in a shape, from the headers of its files alone. Weights,
    caches, recurrent states and adapters are exact; compute buffers are a bound. Each line says which, and by what
    formula.
  - Either O(env) with the lines of an endpoint and its O(payload), or O(model) and the settings one by one.
  - Headers are read from the files, and where these are not there yet, from the addresses that they come from.
  - An architecture or a kind of memory that is not known is refused, not guessed.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  name:
    description: The endpoint's name, for messages and tables.
    type: str
    default: boot
  env:
    description: The endpoint's env lines. Needs O(payload).
    type: dict
  rungs:
    description: Named sets of env lines, each to be judged over O(env).
    type: dict
    default: {}
  payload:
    description: The files that the env lines load, as an entry of C(llm_payloads).
    type: dict
    suboptions:
      name:
        description: Its name, which picks what of O(measured) applies.
        type: str
        required: true
      dir:
        description: The directory of the files.
        type: str
        required: true
      files:
        description: The files, each with C(name), C(role) and the C(urls) where a header is read if it is not there.
        type: list
        elements: dict
        required: true
  runtime:
    description: The runtime's name, which picks what of O(measured) applies.
    type: str
    default: ""
  ggml_types:
    description: Ids of tensor types that the runtime, a fork, knows beside those of the engine.
    type: list
    elements: int
    default: []
  model:
    description: The model's path or address.
    type: str
  drafter:
    description: The drafter's path or address.
    type: str
  mmproj:
    description: The projector's path or address.
    type: str
  lora:
    description: The adapter's path or address.
    type: str
  ctx_size:
    description:
      - Tokens of context, all slots together; V(0) for the window in the model's header.
      - V(auto) for the most that leaves every card its floor.
    type: str
    default: "0"
  parallel:
    description: Slots. Without it the server takes 4 and one cache for all.
    type: int
  cache_type_k:
    description: Type of the cached keys.
    type: str
    default: f16
  cache_type_v:
    description: Type of the cached values.
    type: str
    default: f16
  ubatch_size:
    description: Physical batch in tokens.
    type: int
    default: 512
  batch_size:
    description: Logical batch in tokens.
    type: int
    default: 2048
  tensor_split:
    description:
      - One share a card, as C(-ts), separated by commas. Without it the engine's own, by free memory.
      - V(auto) for the split that leaves most room on the fullest card. With O(env), it stands in the place of its
        C(TENSOR_SPLIT).
    type: str
  kv_unified:
    description: Whether all slots share one cache. Without it as the server decides.
    type: bool
  flash_attn:
    description: Flash attention.
    type: str
    choices: ["on", "off", "auto"]
    default: "on"
  swa_full:
    description: Whether layers with a sliding window keep the whole context.
    type: bool
    default: false
  spec_type:
    description: Speculative decoding, names separated by commas.
    type: str
  spec_draft_n_max:
    description: Most tokens drafted at once.
    type: int
    default: 3
  spec_draft_type_k:
    description: Type of the drafter's cached keys.
    type: str
    default: f16
  spec_draft_type_v:
    description: Type of the drafter's cached values.
    type: str
    default: f16
  spec_draft_cards:
    description: Names of the cards that hold the drafter. Without it all.
    type: list
    elements: str
  gpu_layers:
    description: Layers on the cards. Without it all.
    type: int
  backend:
    description: The engine's backend. With O(env) it follows from the cards.
    type: str
    choices: [cuda, hip, cpu]
    default: cuda
  cards:
    description: The cards, in the engine's order. None for a boot on the host alone.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The card's name.
        type: str
        required: true
      free_mib:
        description: What the engine can allocate on it, in MiB.
        type: float
        required: true
      floor_mib:
        description: What must stay free, in MiB.
        type: float
        default: 0
      vendor:
        description: Whose card it is. Needed with O(env).
        type: str
        choices: [amd, nvidia]
      index:
        description: Its number among the vendor's cards.
        type: int
      pci:
        description: Its PCI address.
        type: str
      uuid:
        description: Its UUID.
        type: str
  measured:
    description:
      - Figures of boots. Those of this very runtime, payload, shape, set of files and cards stand in the place of the
        prediction's; no others do.
      - Beside O(model) they are of the settings asked, so that an entry names no C(env), C(runtime) or C(payload).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: A name for the answer.
        type: str
      env:
        description: The lines that differ from O(env).
        type: dict
      runtime:
        description: The runtime's name, where it is not O(runtime).
        type: str
      payload:
        description: The payload's name, where it is not that of O(payload).
        type: str
      cards:
        description: By card, or C(host), a dictionary of C(compute_mib), C(draft_compute_mib),
          C(projector_compute_mib), C(driver_mib) or, alone, C(total_mib).
        type: dict
        required: true
  host_floor_mib:
    description: What must stay available of the host's memory, in MiB.
    type: float
    default: 0
  kinship:
    description: Whether to check that projector, drafter and adapter belong to the model.
    type: bool
    default: true
  required:
    description: Fail where it does not fit.
    type: bool
    default: false
  unread:
    description: Whether a header that cannot be read, now, is a failure or only a warning.
    type: str
    choices: [fail, warn]
    default: fail
"""

EXAMPLES = r"""
- name: How long a context do two cards hold, and cut where?
  dank.llm_fleet.fit_info:
    model: https://models.example.org/Qwen3.5-27B-MTP-Q8_0.gguf
    ctx_size: auto
    parallel: 2
    tensor_split: auto
    backend: hip
    cards:
      - {name: r9700-0, free_mib: 32624, floor_mib: 1536}
      - {name: r9700-1, free_mib: 32624, floor_mib: 1536}
  register: answer

- name: An endpoint as declared, and each of its rungs
  dank.llm_fleet.fit_info:
    name: chat
    env: "{{ llm_endpoints.chat.env }}"
    rungs: "{{ llm_endpoints.chat.rungs }}"
    payload: "{{ llm_payloads.qwen | combine({'name': 'qwen'}) }}"
    cards: [{name: rtx3090, vendor: nvidia, free_mib: 24123, floor_mib: 1024}]
    required: true
"""

RETURN = r"""
fit:
  description: The ledger of the boot. Sizes are in MiB and not rounded.
  returned: when the headers were read
  type: dict
  contains:
    fits: {description: Whether every card and the host keep their floor., type: bool}
    n_ctx: {description: Tokens of context as the engine will make it., type: int}
    n_ctx_seq: {description: Tokens of one slot., type: int}
    split: {description: Layers on each card; as C(-ts) they give this placement., type: list, elements: int}
    cards:
      description: Each card with C(name), C(weights_mib), C(kv_mib), C(recurrent_mib), C(draft_weights_mib),
        C(draft_kv_mib), C(draft_compute_mib), C(projector_mib), C(adapter_mib), C(compute_mib), C(outputs_mib),
        C(driver_mib), C(total_mib), C(free_mib), C(floor_mib), C(free_after_mib), C(fits).
      type: list
      elements: dict
    host: {description: The same for the host's memory., type: dict}
    lines:
      description: Every line with C(name), C(term), C(card) (none for the host), C(mib), C(label) (C(exact), C(bound),
        C(measured), or C(uncounted) for what no header tells, with no MiB) and C(source).
      type: list
      elements: dict
    neighbours:
      description: For a split that was searched, those one layer away, each with C(split), C(fits), C(room_mib) and
        C(free_after_mib) by card.
      type: list
      elements: dict
    advice:
      description: Where it does not fit, the env lines that help, what costs least first, each with C(line),
        C(costs), C(frees_mib) by card, C(room_mib) and C(fits).
      type: list
      elements: dict
    measured: {description: The name of the measured figures that were used., type: str}
    notes: {description: What is not counted., type: list, elements: str}
rungs:
  description: The same for each of O(rungs). For one that cannot be, C(error) and C(fits), which is null where a
    header was not to be read.
  returned: with O(env)
  type: dict
kinship:
  description: What was held against the model, each with C(name), C(ok), C(expected) and C(found).
  returned: success
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import Unread
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_question import ask
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

_CARD = {
    "name": {"type": "str", "required": True},
    "free_mib": {"type": "float", "required": True},
    "floor_mib": {"type": "float", "default": 0},
    "vendor": {"type": "str", "choices": ["amd", "nvidia"]},
    "index": {"type": "int"},
    "pci": {"type": "str"},
    "uuid": {"type": "str"},
}

_PAYLOAD = {
    "name": {"type": "str", "required": True},
    "dir": {"type": "str", "required": True},
    "files": {"type": "list", "elements": "dict", "required": True},
}

_MEASURED = {
    "name": {"type": "str"},
    "env": {"type": "dict"},
    "runtime": {"type": "str"},
    "payload": {"type": "str"},
    "cards": {"type": "dict", "required": True},
}

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "default": "boot"},
    "env": {"type": "dict"},
    "rungs": {"type": "dict", "default": {}},
    "payload": {"type": "dict", "options": _PAYLOAD},
    "runtime": {"type": "str", "default": ""},
    "ggml_types": {"type": "list", "elements": "int", "default": []},
    "model": {"type": "str"},
    "drafter": {"type": "str"},
    "mmproj": {"type": "str"},
    "lora": {"type": "str"},
    "ctx_size": {"type": "str", "default": "0"},
    "parallel": {"type": "int"},
    "cache_type_k": {"type": "str", "default": "f16"},
    "cache_type_v": {"type": "str", "default": "f16"},
    "ubatch_size": {"type": "int", "default": 512},
    "batch_size": {"type": "int", "default": 2048},
    "tensor_split": {"type": "str"},
    "kv_unified": {"type": "bool"},
    "flash_attn": {"type": "str", "choices": ["on", "off", "auto"], "default": "on"},
    "swa_full": {"type": "bool", "default": False},
    "spec_type": {"type": "str"},
    "spec_draft_n_max": {"type": "int", "default": 3},
    "spec_draft_type_k": {"type": "str", "default": "f16"},
    "spec_draft_type_v": {"type": "str", "default": "f16"},
    "spec_draft_cards": {"type": "list", "elements": "str"},
    "gpu_layers": {"type": "int"},
    "backend": {"type": "str", "choices": ["cuda", "hip", "cpu"], "default": "cuda"},
    "cards": {"type": "list", "elements": "dict", "default": [], "options": _CARD},
    "measured": {"type": "list", "elements": "dict", "default": [], "options": _MEASURED},
    "host_floor_mib": {"type": "float", "default": 0},
    "kinship": {"type": "bool", "default": True},
    "required": {"type": "bool", "default": False},
    "unread": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Answer the question that the parameters are."""
    try:
        return {"changed": False, **ask(module.params)}
    except Unread as exc:
        if module.params["unread"] == "fail":
            raise
        module.warn(f"whether {module.params['name']} fits cannot be told yet: {exc.message}")
        return {"changed": False, "name": module.params["name"]}


def main() -> None:
    """Run the module."""
    run_module(
        ARGUMENT_SPEC,
        work,
        mutually_exclusive=[("env", "model")],
        required_one_of=[("env", "model")],
        required_by={"env": ["payload"]},
    )


if __name__ == "__main__":
    main()
