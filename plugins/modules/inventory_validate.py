#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of this name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_validate
short_description: Hold what the inventory says of a host against itself
description:
  - Checks C(llm_runtimes), C(llm_payloads) with their C(llm_payload_locks), C(llm_endpoints) and C(llm_cards) of the
    host - keys, types, references, every env line and the rules between them, for the endpoint and for each of its
    rungs, one active endpoint for each port and each card, visible cards, and the clients' context window.
  - Runs on the controller and contacts no host.
  - Fails once, with all problems, one a line.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
notes:
  - Digests that are declared as a prefix pass with a warning. So do sizes, digests, revisions, names of files and paths
    of env lines that are V(unknown), and deploying with one of these fails.
"""

EXAMPLES = r"""
- name: Check what the inventory says of this host
  dank.llm_fleet.inventory_validate:
"""

RETURN = r"""
problems:
  description: What is wrong, each naming host, entry and key.
  returned: failure
  type: list
  elements: str
"""
