# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""References of the inventory, and the filters over them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.dank.llm_fleet.plugins.filter.fleet import FilterModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import hosts_of, resolve

RUNTIMES = {"cpu": {"engine": "llamacpp"}, "rocm": {"engine": "llamacpp"}}
PAYLOADS = {"smol": {"dir": "/m"}, "big": {"dir": "/b"}}
ENDPOINTS: dict[str, Any] = {
    "chat": {"runtime": "cpu", "payload": "smol"},
    "code": {"runtime": "cpu", "payload": "big", "active": True},
    "old": {"runtime": "rocm", "payload": "big", "active": False},
}


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


@pytest.mark.parametrize("only", [None, ""])
def test_active_endpoints_and_what_they_need_once(only: str | None) -> None:
    told = resolve(ENDPOINTS, RUNTIMES, PAYLOADS, only)
    assert {key: names(rows) for key, rows in told.items()} == {
        "endpoints": ["chat", "code"],
        "runtimes": ["cpu"],
        "payloads": ["smol", "big"],
    }
    assert told["endpoints"][0] == {"name": "chat", "runtime": "cpu", "payload": {"dir": "/m", "name": "smol"}}
    assert ENDPOINTS["chat"] == {"runtime": "cpu", "payload": "smol"}


def test_one_endpoint() -> None:
    told = resolve(ENDPOINTS, RUNTIMES, PAYLOADS, "code")
    assert (names(told["endpoints"]), names(told["payloads"])) == (["code"], ["big"])


def test_an_endpoint_of_another_host_is_nothing_here() -> None:
    assert resolve(ENDPOINTS, RUNTIMES, PAYLOADS, "elsewhere") == {"endpoints": [], "runtimes": [], "payloads": []}
    assert resolve({}, {}, {}) == {"endpoints": [], "runtimes": [], "payloads": []}


@pytest.mark.parametrize(
    ("endpoints", "only", "message"),
    [
        (ENDPOINTS, "old", "endpoint 'old' is not active"),
        ({"a": {"runtime": "gpu", "payload": "smol"}}, None, "endpoint a names runtime 'gpu'; .*: cpu, rocm"),
        ({"a": {"runtime": "cpu", "payload": "x"}}, None, "endpoint a names payload 'x'; .*: big, smol"),
        ({"a": {"payload": "smol"}}, None, "endpoint a names no runtime; .*found no key runtime"),
        ({"a": {"runtime": "cpu"}}, None, "endpoint a names no payload"),
        ({"a": {"runtime": ["cpu"], "payload": "smol"}}, None, "endpoint a names runtime"),
        ({"a": None}, None, r"llm_endpoints\.a; expected a dictionary; found None"),
    ],
)
def test_refusals(endpoints: dict[str, Any], only: str | None, message: str) -> None:
    with pytest.raises(FleetError, match=message):
        resolve(endpoints, RUNTIMES, PAYLOADS, only)
    with pytest.raises(AnsibleFilterError, match=message):
        FilterModule().filters()["resolve"](endpoints, RUNTIMES, PAYLOADS, only)


def test_hosts_of() -> None:
    by_host: dict[str, Any] = {"a": {"chat": {}}, "b": {"chat": {}, "code": {}}, "c": {}}
    assert hosts_of("chat", by_host) == ["a", "b"]
    assert hosts_of("code", by_host) == ["b"]
    with pytest.raises(FleetError, match="expected one of: chat, code; found nope"):
        hosts_of("nope", by_host)
    with pytest.raises(FleetError, match="none declared; found an empty name"):
        hosts_of("", {})


def test_the_filter_reads_the_hosts_of_the_run_only() -> None:
    hostvars = {"a": {"llm_endpoints": {"chat": {}}}, "b": {}, "c": {"llm_endpoints": {"chat": {}}}}
    hosts = FilterModule().filters()["hosts_of"]
    assert hosts("chat", hostvars, ["a", "b"]) == ["a"]
    with pytest.raises(AnsibleFilterError, match="no host of this run declares endpoint 'chat'"):
        hosts("chat", hostvars, ["b"])
