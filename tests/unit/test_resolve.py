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


CARDS: dict[str, Any] = {
    "left": {
        "vendor": "amd",
        "arch": "gfx1201",
        "pci": "0000:03:00.0",
        "index": 1,
        "uuid": "GPU-a",
        "total_mib": 32624,
        "addressable_mib": 32000,
        "floor_mib": 1536,
    },
    "right": {"vendor": "amd", "index": 0, "total_mib": 32624, "floor_mib": 0},
}


def test_cards_become_what_the_engine_may_take_of_them() -> None:
    endpoints = {"chat": {**ENDPOINTS["chat"], "cards": ["right", "left"]}, "code": ENDPOINTS["code"]}
    chat, code = resolve(endpoints, RUNTIMES, PAYLOADS, cards=CARDS)["endpoints"]
    assert chat["cards"] == [
        {"name": "right", "vendor": "amd", "index": 0, "floor_mib": 0, "free_mib": 32624},
        {
            "name": "left",
            "vendor": "amd",
            "arch": "gfx1201",
            "index": 1,
            "pci": "0000:03:00.0",
            "uuid": "GPU-a",
            "floor_mib": 1536,
            "free_mib": 32000,
        },
    ]
    assert code["cards"] == []
    assert resolve(endpoints, RUNTIMES, PAYLOADS)["endpoints"][0]["cards"] == ["right", "left"]
    assert endpoints["chat"]["cards"] == ["right", "left"]


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        (
            {"right": {}},
            "endpoint chat names card 'left'; expected one of llm_cards: right; .*llm_endpoints.chat.cards",
        ),
        ({}, "expected one of llm_cards: none declared"),
        ({"left": {"vendor": "amd"}}, "llm_cards.left; expected total_mib, or addressable_mib; found neither"),
    ],
)
def test_cards_that_are_not_declared(cards: dict[str, Any], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        resolve({"chat": {**ENDPOINTS["chat"], "cards": ["left"]}}, RUNTIMES, PAYLOADS, cards=cards)


def test_inactive_endpoints_where_they_are_wanted() -> None:
    assert names(resolve(ENDPOINTS, RUNTIMES, PAYLOADS, inactive=True)["endpoints"]) == ["chat", "code", "old"]
    assert names(resolve(ENDPOINTS, RUNTIMES, PAYLOADS, "old", inactive=True)["endpoints"]) == ["old"]
    assert names(resolve(ENDPOINTS, RUNTIMES, PAYLOADS, "", inactive=True)["runtimes"]) == ["cpu", "rocm"]


def test_the_types_that_a_runtime_knows_go_with_its_endpoints() -> None:
    runtimes = {**RUNTIMES, "cpu": {**RUNTIMES["cpu"], "ggml_types": [141, 142]}}
    chat, _code, old = resolve(ENDPOINTS, runtimes, PAYLOADS, inactive=True)["endpoints"]
    assert chat["ggml_types"] == [141, 142] and "ggml_types" not in old


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


SHARED: dict[str, Any] = {
    "big": {
        "engine": "llamacpp",
        "runtime": "cpu",
        "payload": "big",
        "cards": ["a", "b"],
        "env": {"LISTEN_PORT": 7770},
    },
    "small": {"engine": "llamacpp", "runtime": "cpu", "payload": "smol", "cards": ["b"], "env": {"LISTEN_PORT": 7771}},
    "other": {"engine": "r9v", "runtime": "rocm", "payload": "big", "env": {"R9V_HOST_PORT": "7770"}},
    "apart": {"engine": "llamacpp", "runtime": "cpu", "payload": "smol", "env": {"LISTEN_PORT": 9}},
}


def fleet(**active: bool) -> dict[str, Any]:
    return {name: {**entry, "active": active.get(name, False)} for name, entry in SHARED.items()}


def test_rivals_want_the_same_port_or_card_and_are_not_active() -> None:
    (big,) = resolve(fleet(big=True), RUNTIMES, PAYLOADS)["endpoints"]
    assert big["rivals"] == ["small", "other"]
    apart, small = resolve(fleet(small=True, apart=True), RUNTIMES, PAYLOADS)["endpoints"][::-1]
    assert small["rivals"] == ["big"] and "rivals" not in apart


def test_an_operator_activates_one_in_the_place_of_its_rivals() -> None:
    told = resolve(fleet(big=True, apart=True), RUNTIMES, PAYLOADS, activate="small")["endpoints"]
    assert names(told) == ["small", "apart"]
    assert (told[0]["rivals"], told[0]["activate"], "activate" in told[1]) == (["big"], True, False)
    assert names(resolve(fleet(big=True), RUNTIMES, PAYLOADS, "small", activate="small")["endpoints"]) == ["small"]
    assert names(resolve(fleet(big=True), RUNTIMES, PAYLOADS, activate="of another host")["endpoints"]) == ["big"]
