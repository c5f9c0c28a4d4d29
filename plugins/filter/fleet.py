# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jinja filters over the fleet's inventory; the thinking is in module_utils/_resolve.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import hosts_of, resolve


def _clear(function: Callable[..., Any]) -> Callable[..., Any]:
    def filtered(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FleetError as exc:
            raise AnsibleFilterError(exc.message) from exc

    return filtered


def _hosts_of(endpoint: str, hostvars: Mapping[str, Any], hosts: list[str]) -> list[str]:
    return hosts_of(endpoint, {host: hostvars[host].get("llm_endpoints", {}) for host in hosts})


class FilterModule:
    """The filters of this collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Filter names and their functions."""
        return {"resolve": _clear(resolve), "hosts_of": _clear(_hosts_of)}
