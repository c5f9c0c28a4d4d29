#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible module: retire units, quadlets, drop-ins and files into the trash, and put them back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_retire
short_description: Retire units, quadlets, drop-ins and files, and put them back
description:
  - Stops what is named and moves its files, links and drop-ins into C(~/.AGENTTRASH/<YYYYMMDD>-<slug>/) of O(user),
    below their absolute paths, with owner, mode and times. C(manifest.json) there says what came from where, with
    sha256 and the state of the units before. Nothing is deleted and no file is overwritten.
  - Then has systemd read its files anew and proves that no unit of that name, no process in its cgroup and no running
    container of it is left. A stopped container is left alone and named in a warning.
  - With a unit go its links in C(*.wants) and the like, its aliases and its C(.d) folder; with a quadlet its own C(.d)
    folder and that of its service. Of a link (a linked unit), the link itself is retired and its target not touched.
  - A run that was killed, or that met a unit which did not stop in time, is finished by the next run.
  - Refused before anything is touched are a unit file of a package, a unit that others which still run need, a unit
    that stays because another file makes it, and a quadlet that other quadlets need. For the latter podman's generator
    is asked, since it fails in silence under C(daemon-reload).
  - Templates (C(x@.service)) and their instances are not handled.
version_added: 0.1.0
author: The llm_fleet engineers
requirements:
  - Root, or O(scope=user) as that user.
extends_documentation_fragment:
  - dank.llm_fleet.attributes
attributes:
  check_mode:
    support: full
    details:
      - A user's manager that does not run is not started, and counts as running nothing.
  diff_mode:
    support: full
    details:
      - Shows the units' states and where each file lies, before and after.
  idempotent:
    support: full
options:
  slug:
    description:
      - What the retirement is called. Used again on the same day for something else, the folder gets C(-2), C(-3), ...
    type: str
    required: true
  user:
    description: The login in whose home the trash lies; with O(scope=user), also whose units are meant.
    type: str
    required: true
  scope:
    description: V(system) for the system's units and quadlets, V(user) for those of O(user).
    type: str
    choices: [system, user]
    default: system
  units:
    description: Names of units; one without a suffix is a service.
    type: list
    elements: str
    default: []
  quadlets:
    description: Names of quadlet files such as C(x.container), in the quadlet folder or below, or their paths.
    type: list
    elements: str
    default: []
  drop_ins:
    description: Paths of drop-ins or whole C(.d) folders. Their unit is not stopped.
    type: list
    elements: str
    default: []
  files:
    description: Paths of other files and folders, such as launchers and env files. C(~/) is the home of O(user).
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Seconds that one unit's stop (or start) may take. Past them the run fails and says what still runs; the unit
        keeps its files and is asked to start again, and the units after it are not touched.
    type: float
    default: 120
  state:
    description:
      - V(restored) puts everything back where it was, enabled and running as it was, and keeps the manifest. Without
        names the one retirement of O(slug) is meant, with names each that holds one of them. A file that lies at an
        origin is refused before anything is touched.
    type: str
    choices: [retired, restored]
    default: retired
"""

EXAMPLES = r"""
- name: Retire three quadlets and the proxy that a new endpoint replaces
  dank.llm_fleet.unit_retire:
    slug: vllm-radiance-retire
    user: dank
    quadlets: [radiance-a.container, radiance-b.container, radiance-proxy.container]

- name: Put them back
  dank.llm_fleet.unit_retire:
    slug: vllm-radiance-retire
    user: dank
    state: restored

- name: Retire a forgotten drop-in and leave its unit running
  dank.llm_fleet.unit_retire:
    slug: stale-ptq1
    user: dank
    drop_ins: [/etc/systemd/system/frank-zealot.service.d/ptq1.conf]
"""

RETURN = r"""
folders:
  description: The folders in the trash that this run filled or emptied.
  returned: success
  type: list
  elements: str
retired:
  description: With O(state=retired), every name that is retired under O(slug), with its folder.
  returned: success
  type: dict
restored:
  description: With O(state=restored), every name that this run put back, with the folder it came from.
  returned: success
  type: dict
actions:
  description: What was done, or would be in check mode, in words and in order.
  returned: success
  type: list
  elements: str
untouched:
  description: When a unit did not stop in time, the names that still have all their files.
  returned: failure
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire import RetireSpec, retire, undo

_NAMES = {"type": "list", "elements": "str", "default": []}
ARGUMENT_SPEC: dict[str, Any] = {
    "slug": {"type": "str", "required": True},
    "user": {"type": "str", "required": True},
    "scope": {"type": "str", "choices": ["system", "user"], "default": "system"},
    "units": _NAMES,
    "quadlets": _NAMES,
    "drop_ins": _NAMES,
    "files": _NAMES,
    "timeout": {"type": "float", "default": 120},
    "state": {"type": "str", "choices": ["retired", "restored"], "default": "retired"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Retire or restore."""
    given = module.params
    names = {key: given[key] for key in ("slug", "user", "scope", "units", "quadlets", "drop_ins", "files")}
    spec = RetireSpec(**names, timeout_s=given["timeout"])
    result = (retire if given["state"] == "retired" else undo)(spec, check_mode=module.check_mode)
    for warning in result.pop("warnings"):
        module.warn(warning)
    return result


def main() -> None:
    """Run the module."""
    run_module(ARGUMENT_SPEC, work)


if __name__ == "__main__":
    main()
