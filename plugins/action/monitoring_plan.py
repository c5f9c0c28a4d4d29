# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin: what Prometheus is to scrape and to alert of, from the inventory of all hosts, on the controller."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.dank.llm_fleet.plugins.module_utils import _alerts, _scrape
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

_PACE = tuple(one.name for one in fields(_alerts.Pace))


class ActionModule(ActionBase):
    """Documented in plugins/modules/monitoring_plan.py."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The contents of every file, and a warning for each endpoint that is not watched."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        known = task_vars or {}
        _validation, given = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "str", "required": True},
                "key_folder": {"type": "str", "required": True},
                "interval": {"type": "str", "required": True},
                "node_port": {"type": "int", "required": True},
                "alertmanagers": {"type": "list", "elements": "str", "default": []},
                "pace": {
                    "type": "dict",
                    "required": True,
                    "options": {name: {"type": "str", "required": True} for name in _PACE},
                },
            }
        )
        hostvars = known["hostvars"]
        hosts = {
            host: {
                "endpoints": hostvars[host].get("llm_endpoints") or {},
                "cards": hostvars[host].get("llm_cards") or {},
                "address": hostvars[host].get("monitoring_address") or hostvars[host].get("ansible_host") or host,
            }
            for host in known["groups"].get("llm", ())
        }
        try:
            planned = _scrape.plan(hosts, known["inventory_hostname"], given["node_port"])
        except FleetError as exc:
            result.update(failed=True, **exc.as_result())
            return result
        folder, interval = given["folder"], given["interval"]
        found = _scrape.jobs(planned.keys, folder=folder, key_folder=given["key_folder"], interval=interval)
        result.update(
            changed=False,
            warnings=planned.warnings,
            endpoints=planned.targets,
            nodes=planned.nodes,
            key_files=[os.path.join(given["key_folder"], key) for key in planned.keys],
            jobs=found,
            config=_scrape.config(
                found,
                rules=os.path.join(folder, "rules.yml"),
                interval=interval,
                alertmanagers=given["alertmanagers"],
            ),
            rules=_alerts.rules(_alerts.Pace(**given["pace"])),
        )
        return result
