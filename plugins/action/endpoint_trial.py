# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of module endpoint_trial: what a trial is doing, while it lasts."""

from __future__ import annotations

from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import require_whole
from ansible_collections.dank.llm_fleet.plugins.plugin_utils._longrun import LongRunAction


class ActionModule(LongRunAction):
    """See the base class; before it, no env line may have been lost on the command line."""

    title = "trial"

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result."""
        try:
            require_whole(task_vars or {}, str(self._task.args.get("engine", "llamacpp")))
        except FleetError as exc:
            return {"failed": True, **exc.as_result()}
        return super().run(tmp, task_vars)
