#!/usr/bin/python
# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of this name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_plan
short_description: Tell what Prometheus is to scrape and to alert of
description:
  - Draws targets, scrape jobs, a whole configuration and rules from C(llm_endpoints) of every host of the group C(llm),
    whatever C(-l) says, for the Prometheus of the host that the task is for.
  - Warns of every active endpoint that cannot be scraped, and names the key that stands in the way; and of every card
    whose driver cannot be asked for its memory.
  - Runs on the controller, contacts no host, and never reads a key.
version_added: 0.1.0
author: The llm_fleet engineers
extends_documentation_fragment:
  - dank.llm_fleet.attributes.info_module
options:
  folder:
    description: The folder of C(endpoints.json), C(nodes.json) and C(rules.yml) as Prometheus sees it.
    type: str
    required: true
  key_folder:
    description: The folder of the endpoints' API keys as Prometheus sees it; a key's file is C(HOST.ENDPOINT).
    type: str
    required: true
  interval:
    description: How often to scrape and to evaluate, as Prometheus writes durations.
    type: str
    required: true
  node_port:
    description: The port of the node exporters.
    type: int
    required: true
  alertmanagers:
    description: Alertmanagers, each V(host:port).
    type: list
    elements: str
    default: []
  pace:
    description: The durations in the rules.
    type: dict
    required: true
    suboptions:
      window:
        description: Over which rates are taken.
        type: str
        required: true
      hold:
        description: For which a fault lasts before it is told.
        type: str
        required: true
      busy:
        description: For which all slots are at work before it is told.
        type: str
        required: true
      facts_s:
        description: Seconds after which a host's facts are stale.
        type: str
        required: true
      payload_days:
        description: Days after which a payload file should have been read in full again.
        type: str
        required: true
"""

EXAMPLES = r"""
- name: Draw everything from the inventory
  dank.llm_fleet.monitoring_plan:
    folder: /etc/prometheus/llm-fleet
    key_folder: /etc/prometheus/llm-fleet-keys
    interval: 15s
    node_port: 9100
    pace: {window: 5m, hold: 2m, busy: 10m, facts_s: 300, payload_days: 45}
"""

RETURN = r"""
endpoints:
  description: Targets in file_sd's form, one an endpoint.
  returned: success
  type: list
  elements: dict
nodes:
  description: Targets in file_sd's form, one a host.
  returned: success
  type: list
  elements: dict
key_files:
  description: The files with API keys that Prometheus needs.
  returned: success
  type: list
  elements: str
jobs:
  description: Entries of C(scrape_configs).
  returned: success
  type: list
  elements: dict
config:
  description: A whole configuration.
  returned: success
  type: dict
rules:
  description: The content of a rule file.
  returned: success
  type: dict
"""
