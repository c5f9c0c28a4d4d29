#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: what a GGUF file says of itself; read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gguf_info
short_description: Read the header of a GGUF model, on disk or behind a URL
description:
  - Reads the metadata and the table of tensors of a GGUF file of version 2 or 3, or of a set of shards, of which the
    first is named. No tensor data is read.
  - Behind a URL only the header is fetched, by byte ranges. No credentials are sent.
  - Refuses every file that is not sound, and says where and why. Time and memory are bounded by the bytes that are
    there.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  path:
    description:
      - The model on the target host.
      - Exactly one of O(path) and O(url) is needed.
    type: path
  url:
    description: The model's C(http://), C(https://) or C(file://) address. A server must answer byte ranges.
    type: str
  keys:
    description:
      - Metadata keys to return, the vocabulary's arrays among them. A key that the file lacks is named in
        RV(gguf.missing_keys).
      - Without this option all metadata is returned, with a C(type) and a C(count) in place of each array of strings
        and of each array of more than 4096 numbers.
    type: list
    elements: str
  tensors:
    description: Whether to return the table of tensors.
    type: bool
    default: false
  declared_bytes:
    description: The length of the whole file, where O(path) or O(url) leads to its header alone.
    type: int
  timeout_s:
    description: The longest silence of a server that is borne, in seconds.
    type: float
    default: 30
"""

EXAMPLES = r"""
- name: What is this file?
  dank.llm_fleet.gguf_info:
    path: /var/lib/llm-fleet/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  register: model

- name: Does the file hold a head for multi-token prediction, before it is downloaded?
  dank.llm_fleet.gguf_info:
    url: https://models.example.org/Qwen3.5-27B-MTP-Q8_0.gguf
    keys: [general.quantized_by]
  register: model
  failed_when: not model.gguf.nextn_predict_layers
"""

RETURN = r"""
gguf:
  description: The header.
  returned: success
  type: dict
  contains:
    version: {description: The version of the format., type: int}
    architecture: {description: C(general.architecture)., type: str}
    name: {description: C(general.name) or nothing., type: str}
    file_type: {description: C(general.file_type) or nothing., type: int}
    file_bytes: {description: The length of the file or of all shards together., type: int}
    data_offset: {description: Where the tensor data of the first file begins., type: int}
    alignment: {description: The alignment of the tensor data of the first file., type: int}
    block_count: {description: Layers with those for multi-token prediction., type: int}
    nextn_predict_layers: {description: Declared layers for multi-token prediction., type: int}
    metadata: {description: Values by key., type: dict}
    missing_keys: {description: Those of O(keys) that the file does not have., type: list, elements: str}
    tensor_count: {description: How many tensors there are., type: int}
    tensor_bytes: {description: Their bytes without padding., type: int}
    exact:
      description: Whether each size follows from type and shape. Otherwise the tensors of unknown types were measured
        from one offset to the next.
      type: bool
    types: {description: How many tensors there are of each type., type: dict}
    unknown_types: {description: How many tensors there are of each type id that the engine does not know., type: dict}
    shards:
      description: The files, each with C(name), C(file_bytes), C(data_offset), C(alignment) and C(tensor_count).
      type: list
      elements: dict
    tensors:
      description: Each tensor with C(name), C(dims) (the row's length first), C(type_id), C(type_name), C(offset) (in
        its shard's data), C(nbytes), C(exact) and C(shard) (from 0). Returned with O(tensors).
      type: list
      elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_facts import facts
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path"},
    "url": {"type": "str"},
    "keys": {"type": "list", "elements": "str", "no_log": False},
    "tensors": {"type": "bool", "default": False},
    "declared_bytes": {"type": "int"},
    "timeout_s": {"type": "float", "default": 30},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Read the header."""
    given = module.params
    gguf = read_gguf(
        given["url"] if given["path"] is None else given["path"],
        keys=given["keys"],
        declared_bytes=given["declared_bytes"],
        timeout_s=given["timeout_s"],
    )
    return {"changed": False, "gguf": facts(gguf, keys=given["keys"], tensors=given["tensors"])}


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work, mutually_exclusive=[("path", "url")], required_one_of=[("path", "url")])


if __name__ == "__main__":
    main()
