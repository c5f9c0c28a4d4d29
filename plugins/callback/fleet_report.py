# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin: end every play with a table of the endpoints it saw."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_report
type: aggregate
short_description: A table of endpoints, and of their memory, at the end of a play
description:
  - Collects what the endpoint modules returned and prints one table, also when a host failed.
  - Of boots that were held against the memory, a bar for each card.
  - Of endpoints whose eras were read, the history of each.
  - Of endpoints that were measured, the figures of each against the last era's.
  - Of trials, what each candidate took.
  - Before them, what failed in this collection's modules, with what was expected, what was found and what to do.
version_added: 0.1.0
author: The llm_fleet engineers
requirements:
  - Enable it with C(callbacks_enabled) in ansible.cfg.
"""

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_table import bench_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_table import LEGEND, fit_lines
from ansible_collections.dank.llm_fleet.plugins.module_utils._history_table import history_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._table import HEADINGS, cells, fault, table
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_table import trial_text


class CallbackModule(CallbackBase):
    """Keeps the newest row of each (host, endpoint) and prints them in the order first seen."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "dank.llm_fleet.fleet_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._fits: dict[tuple[str, str], dict[str, Any]] = {}
        self._histories: dict[tuple[str, str], dict[str, Any]] = {}
        self._benches: list[str] = []
        self._trials: list[str] = []
        self._faults: list[str] = []

    def _take(self, host: str, result: Any) -> None:
        if not isinstance(result, dict):
            return
        for item in result.get("results") or []:
            self._take(host, item)
        if isinstance(result.get("fit"), dict) and not result.get("failed"):
            name = str(result.get("name") or (result.get("endpoint") or {}).get("name"))
            self._fits[host, name] = result
        trial = result.get("trial")
        if isinstance(trial, dict) and {"endpoint", "rows", "back"} <= set(trial):
            self._trials.append(trial_text(host, trial))
        histories = result.get("histories")
        for one in histories if isinstance(histories, list) else []:
            if isinstance(one, dict) and "name" in one and isinstance(one.get("eras"), list):
                self._histories[host, one["name"]] = one
        bench = result.get("bench")
        if isinstance(bench, dict) and isinstance(bench.get("cells"), list):
            self._benches.append(bench_text(f"{bench['endpoint']} on {host}", bench))
        told = result.get("endpoints")
        rows: list[Any] = told if isinstance(told, list) else []
        if isinstance(result.get("endpoint"), dict):
            rows = [*rows, result["endpoint"]]
        for row in rows:
            if isinstance(row, dict) and {"name", "unit", "shape"} <= set(row):
                before = self._rows.get((host, row["name"]), {})
                probes = row.get("probes") or before.get("probes") or []
                self._rows[host, row["name"]] = {**row, "probes": probes}

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task that went well may hold rows."""
        self._take(result._host.get_name(), result._result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """What went wrong, and the row of a broken endpoint, which travels with it."""
        host = result._host.get_name()
        self._take(host, result._result)
        if ignore_errors:
            return
        for told in result._result.get("results") or [result._result]:
            if isinstance(told, dict) and told.get("failed") and "what" in told:
                self._faults.append(fault(host, told))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print what failed, and the tables of what was seen."""
        if self._faults:
            self._display.banner("FAULTS")
            self._display.display("\n\n".join(self._faults))
        if self._fits:
            self._display.banner("FIT")
            for (host, name), told in self._fits.items():
                self._display.display("\n".join(fit_lines(f"{name} on {host}", told)))
            self._display.display(LEGEND)
        if self._histories:
            texts = [
                history_text(f"{name} on {host}", one["eras"], one.get("last_run"))
                for (host, name), one in self._histories.items()
            ]
            self._display.banner("HISTORY")
            self._display.display("\n\n".join(texts))
        if self._benches:
            self._display.banner("BENCH")
            self._display.display("\n\n".join(self._benches))
        if self._trials:
            self._display.banner("TRIAL")
            self._display.display("\n\n".join(self._trials))
        if self._rows:
            lines = [cells(host, row) for (host, _name), row in self._rows.items()]
            self._display.banner("ENDPOINTS")
            self._display.display(table(HEADINGS, lines))
