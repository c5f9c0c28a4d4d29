#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: the package.json of an R9V profile, from the files as they lie on the disk."""

from __future__ import annotations

DOCUMENTATION = r"""
module: r9v_package
short_description: Author and verify the model package of an R9V profile
description:
  - Writes C(package.json) (schema C(r9v.model-package.v1) of the R9V fork) with size and sha256 of every file of the
    model folder that is named, and with the embedding table (PLE) that is cut out of the shards.
  - No size and no digest is taken on trust. O(artifacts[].bytes) and O(artifacts[].sha256) say what the publisher
    states, and a file that is another one is an error. A file that was read before, by this module or by
    M(dank.llm_fleet.payload), and was not touched since, is not read again.
  - The target must be one whole set of shards, whose headers are read. Nothing is fetched.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details:
      - Files are read in check mode as well, since the digests are what would be written. No stamp is written then.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  path:
    description: The package file. A new one belongs to the owner of its folder.
    type: path
    required: true
  model_dir:
    description: The model folder, to which the paths of the package are relative.
    type: path
    required: true
  state:
    description:
      - V(present) writes the package where it differs.
      - V(verified) compares every size and digest of the package that is there with the disk, and names every lie in
        one error. It writes nothing.
    type: str
    choices: [present, verified]
    default: present
  id:
    description: The package's id, by which profile and placement name it. Needed to write.
    type: str
  model:
    description: The model's name, for people. Needed to write.
    type: str
  quant:
    description: How it is quantized, for people. Needed to write.
    type: str
  license:
    description: The model's licence. Needed to write.
    type: str
  artifacts:
    description: The files, in the order in which they are written. Needed to write.
    type: list
    elements: dict
    default: []
    suboptions:
      role:
        description: What the file is. At least one V(target) is needed; V(adapter) is a module that lies in the folder.
        type: str
        required: true
        choices:
          - target
          - vision-projector
          - adapter
          - mtp-config
          - mtp-checkpoint
          - mtp-manifest
          - tokenizer
          - tokenizer-config
          - tokenizer-merges
          - tokenizer-vocabulary
          - model-config
          - chat-template
          - processor-config
          - video-processor-config
          - generation-config
          - expert-placement
          - license
          - third-party-notices
      path:
        description: The file, relative to O(model_dir).
        type: str
        required: true
      bytes:
        description: Its size as the publisher states it.
        type: int
      sha256:
        description: Its digest as the publisher states it.
        type: str
  ple:
    description: The embedding table of a target that has one.
    type: dict
    suboptions:
      path:
        description: Where the table lies or will lie, relative to O(model_dir).
        type: str
        required: true
      tensor:
        description: The tensor that it is cut out of.
        type: str
        default: per_layer_token_embd.weight
      bytes:
        description: The size that is declared elsewhere. It must be the tensor's, to the byte.
        type: int
  checkout:
    description: The fork's checkout, for RV(ple.command).
    type: path
  verify:
    description: V(stamp) trusts a stamp that still fits, V(full) reads every file again.
    type: str
    choices: [stamp, full]
    default: stamp
  stamp_dir:
    description: Where the stamps of verified files lie.
    type: path
    default: /var/lib/llm-fleet/payloads
  progress_file:
    description: Where to write how far the work has come.
    type: path
"""

EXAMPLES = r"""
- name: The package of a new profile
  dank.llm_fleet.r9v_package:
    path: /home/dank/GitPackages/radiance-vllm-qwen4exp/packages/models/qwen38-flash-next/q8-0/package.json
    model_dir: /home/dank/models/Qwen3.8-Flash-Next-Q8_0-R9V
    id: qwen38-flash-next-q8-0-mtp-blockfp8-mmproj-f16
    model: Qwen3.8-Flash-Next
    quant: Unsloth Q8_0 target + block-FP8 MTP + F16 mmproj
    license: Qwen Community License 1.0
    artifacts:
      - {role: target, path: Q8_0/Qwen3.8-Flash-Next-Q8_0-00001-of-00002.gguf}
      - {role: target, path: Q8_0/Qwen3.8-Flash-Next-Q8_0-00002-of-00002.gguf}
      - {role: vision-projector, path: vision/mmproj-Qwen3.8-Flash-Next-F16.gguf}
      - {role: chat-template, path: metadata/chat_template.jinja}
    ple:
      path: r9v-data/per_layer_token_embd.q8_0.bin
      bytes: 54400261120

- name: Is every file what the package says?
  dank.llm_fleet.r9v_package:
    path: /home/dank/GitPackages/radiance-vllm-qwen4exp/packages/models/qwen38-flash-next/q8-0/package.json
    model_dir: /home/dank/models/Qwen3.8-Flash-Next-Q8_0-R9V
    state: verified
    verify: full
"""

RETURN = r"""
package:
  description: The package.
  returned: success
  type: dict
identity:
  description:
    - What it is, by the target's own header. C(architecture), C(name), C(first) (the first shard), C(shards), C(bytes),
      C(types), and C(path), C(bytes) and C(sha256) of C(vision_projector), C(adapter) and C(chat_template).
  returned: success
  type: dict
ple:
  description: The embedding table by the shards' headers, empty where the package has none.
  returned: success
  type: dict
  contains:
    source: {description: The shard that holds the tensor., type: str}
    tensor: {description: The tensor., type: str}
    type: {description: 'Its type, as the fork writes it.', type: str}
    shape: {description: 'Its shape, the row length first.', type: list, elements: int}
    bytes: {description: What the table must have., type: int}
    path: {description: Where the table lies or will lie., type: str}
    there: {description: Whether it is there with that size., type: bool}
    command: {description: 'The command of the fork that cuts it out, with O(checkout).', type: list, elements: str}
read:
  description: How many files were read in full.
  returned: success
  type: int
lies:
  description: Each file that is not as the package has it, with C(path), C(expected) and C(found).
  returned: when O(state=verified) fails
  type: list
  elements: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import Draft, json_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_package import (
    ROLES,
    Reader,
    compose,
    identity_of,
    read_package,
    require_true,
    table_of,
)

ARTIFACT_SPEC: dict[str, Any] = {
    "role": {"type": "str", "required": True, "choices": list(ROLES)},
    "path": {"type": "str", "required": True},
    "bytes": {"type": "int"},
    "sha256": {"type": "str"},
}

PLE_SPEC: dict[str, Any] = {
    "path": {"type": "str", "required": True},
    "tensor": {"type": "str", "default": "per_layer_token_embd.weight"},
    "bytes": {"type": "int"},
}

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "model_dir": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
    "id": {"type": "str"},
    "model": {"type": "str"},
    "quant": {"type": "str"},
    "license": {"type": "str"},
    "artifacts": {"type": "list", "elements": "dict", "default": [], "options": ARTIFACT_SPEC},
    "ple": {"type": "dict", "options": PLE_SPEC},
    "checkout": {"type": "path"},
    "verify": {"type": "str", "choices": ["stamp", "full"], "default": "stamp"},
    "stamp_dir": {"type": "path", "default": "/var/lib/llm-fleet/payloads"},
    "progress_file": {"type": "path"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Compose and write, or compare."""
    given = module.params
    progress = Progress(None if module.check_mode else given["progress_file"])
    writes = given["state"] == "present" and not module.check_mode
    reader = Reader(
        given["stamp_dir"],
        full=given["verify"] == "full",
        label=given["id"] if writes else None,
        on_bytes=lambda path, count: progress.update("hash", done=count, unit="B", text=os.path.basename(path)),
    )
    changed, diff = False, {}
    try:
        if given["state"] == "present":
            package = compose(given, reader)
            draft = Draft(given["path"], json_text(package))
            changed, diff = draft.changed, draft.diff
            if draft.changed and writes:
                draft.write()
        else:
            package = read_package(given["path"])
            require_true(package, given["path"], given["model_dir"], reader)
    finally:
        progress.close()
    return {
        "changed": changed,
        "diff": diff,
        "package": package,
        "identity": identity_of(package, given["model_dir"]),
        "ple": table_of(package, given["model_dir"], given["checkout"]),
        "read": reader.read,
    }


def main() -> None:
    """Run the module."""
    run_module(
        ARGUMENT_SPEC,
        work,
        required_if=[("state", "present", ("id", "model", "quant", "license", "artifacts"))],
    )


if __name__ == "__main__":
    main()
