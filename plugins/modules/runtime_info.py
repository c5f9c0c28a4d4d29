#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the proofs of a built or adopted runtime, asked anew; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_info
short_description: Prove a runtime anew, and tell what it is and can do
description:
  - Asks a runtime's files and its program, not what its build was told to do. Changes nothing on the host; the smoke
    request runs on a free port of the loopback, with a model of some kilobytes in a temporary folder.
  - Fails when a proof is red, with all of them in RV(proofs).
  - The proofs are those that M(dank.llm_fleet.runtime_build) asks before it gives a build its name.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  name:
    description: The runtime's name, for one that runtime_build linked. What was declared of it is in its C(build.json).
    type: str
  path:
    description:
      - A runtime's folder, or its server program, for one that has no name.
      - Exactly one of O(name) and O(path) is needed.
    type: path
  prefix:
    description: Where runtimes lie.
    type: path
    default: /opt/llm-fleet/runtimes
  version:
    description: With O(path), the version that the program must state.
    type: str
  arch:
    description: With O(path), the card's architecture that it must hold code for, such as C(gfx1201) or C(sm_86).
    type: str
  proof:
    description: With O(path), what else it is held against; the keys are those of the inventory's C(proof).
    type: dict
    default: {}
  device:
    description:
      - Where the smoke request runs. V(none) is the processor; C(ROCm0) or C(CUDA0) is a card, which must have some
        hundred MiB free.
    type: str
    default: none
"""

EXAMPLES = r"""
- name: Is the engine still what it was proven to be?
  dank.llm_fleet.runtime_info:
    name: rdna4-rocm714
  register: proven

- name: Does it answer from the card?
  dank.llm_fleet.runtime_info:
    name: rdna4-rocm714
    device: ROCm0

- name: A build by hand, before it is declared
  dank.llm_fleet.runtime_info:
    path: /home/dank/GitPackages/llama-master/build-cuda
    arch: sm_86
    proof:
      system_libs: [libcudart.so.*, libcublas.so.*, libcublasLt.so.*]
      cmake: {GGML_CUDA_FA_QUANTS: "q4_0-q4_0;q8_0-q8_0;f16-f16;bf16-bf16"}
"""

RETURN = r"""
proofs:
  description: Each proof, the green ones and the red ones.
  returned: when the runtime is there
  type: list
  elements: dict
  contains:
    check:
      description: >-
        Its name, one of C(closure), C(rpath), C(device code), C(code objects), C(cmake), C(version), C(flags),
        C(smoke). What is not declared is not asked, and a program whose libraries are missing is not run.
      type: str
    ok: {description: Whether it is green., type: bool}
    expected: {description: What was expected., type: str}
    found: {description: 'What was found, for a red one every fault with its file.', type: str}
    remedy: {description: What to do about a red one., type: str}
runtime:
  description: What the runtime is.
  returned: success
  type: dict
  contains:
    name: {description: 'The name, empty for a path.', type: str}
    path: {description: Its folder., type: str}
    server_bin: {description: The program., type: str}
    digest: {description: 'The digest of all inputs, empty for a path.', type: str}
    states: {description: The line by which the program states its version., type: str}
    build_id: {description: 'The linker''s digest of the program, empty where it has none.', type: str}
    can: {description: 'What the engine can do, as C(build.json) has it.', type: dict}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_ask import ask_anew

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str"},
    "path": {"type": "path"},
    "prefix": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "version": {"type": "str"},
    "arch": {"type": "str"},
    "proof": {"type": "dict", "default": {}},
    "device": {"type": "str", "default": "none"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Ask once."""
    return {"changed": False, **ask_anew(module.params)}


if __name__ == "__main__":
    run_module(ARGUMENT_SPEC, work, mutually_exclusive=[("name", "path")], required_one_of=[("name", "path")])
