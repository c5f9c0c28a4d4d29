# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin: hold what the inventory says of a host against itself, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory import validate

_TABLES = ("llm_runtimes", "llm_payloads", "llm_endpoints", "llm_cards", "llm_payload_locks")


class ActionModule(ActionBase):
    """Documented in plugins/modules/inventory_validate.py."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result: ok with warnings, or failed with every problem, one a line."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        known = task_vars or {}
        tables = [self._templar.template(known.get(name, {})) for name in _TABLES]
        verdict = validate(known.get("inventory_hostname", "this host"), *tables)
        result["changed"] = False
        result["warnings"] = verdict.warnings
        if verdict.problems:
            count = len(verdict.problems)
            result["failed"] = True
            result["problems"] = verdict.problems
            result["msg"] = "\n".join(
                [f"{count} problem{'s' if count > 1 else ''} in the inventory:", *verdict.problems]
            )
        else:
            result["msg"] = f"{len(tables[2])} endpoints, {len(tables[3])} cards: sound"
        return result
