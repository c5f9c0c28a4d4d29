# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jinja filters over the fleet's inventory; the thinking is in module_utils/_resolve.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.dank.llm_fleet.plugins.module_utils._clients import providers
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._report import page
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


def _client_models(
    hostvars: Mapping[str, Any],
    hosts: list[str],
    existing: str = "",
    path: str = "models.yml",
    percent: int = 70,
    rungs: Mapping[str, str] | None = None,
) -> str:
    # ruamel.yaml is needed for this alone
    from ansible_collections.dank.llm_fleet.plugins.plugin_utils._models_file import merged

    told = {
        host: {
            "address": str(
                hostvars[host].get("llm_address") or hostvars[host].get("ansible_host") or host,
            ),
            "endpoints": hostvars[host].get("llm_endpoints", {}),
        }
        for host in hosts
    }
    # ruamel.yaml knows plain types alone, and Ansible's values carry their origin
    plain = json.loads(json.dumps(providers(told, percent=int(percent), rungs=rungs)))
    return merged(str(existing), plain, path)


_LOOKS = ("endpoints", "histories", "evidence", "cards")


def _looked(host: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """What ``playbooks/report.yml`` has registered of a host."""
    looks = {key: told.get(f"report_{key}") or {} for key in _LOOKS}
    gone = next((look for look in looks.values() if look.get("unreachable")), None)
    return {
        "host": host,
        "unreachable": None if gone is None else str(gone.get("msg") or "no answer"),
        "fault": told.get("report_fault"),
        "declared": {
            name: bool(entry.get("active")) for name, entry in sorted((told.get("llm_endpoints") or {}).items())
        },
        "llm_cards": told.get("llm_cards") or {},
        **{key: look.get(key) or [] for key, look in looks.items()},
    }


def _fleet_page(hostvars: Mapping[str, Any], hosts: list[str]) -> str:
    # plain types alone: Ansible's values carry their origin
    return page(json.loads(json.dumps([_looked(host, hostvars[host]) for host in hosts])))


class FilterModule:
    """The filters of this collection."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Filter names and their functions."""
        return {
            "client_models": _clear(_client_models),
            "fleet_page": _clear(_fleet_page),
            "hosts_of": _clear(_hosts_of),
            "resolve": _clear(resolve),
        }
