# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent harness is told of the fleet's endpoints: the ``providers`` of its models.yml, from the inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import CLIENT, check_keys

__all__ = ["EFFORTS", "effort_map", "most_tokens", "providers"]

# What a harness asks for, from little to much; an endpoint's template may know fewer.
EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def effort_map(known: Sequence[str]) -> dict[str, str]:
    """Each effort that a harness may ask for: the nearest that the endpoint's template knows, the larger at a tie."""
    strange = sorted(set(known) - set(EFFORTS))
    if strange or not known:
        raise FleetError(
            "reasoning_efforts", expected="some of " + ", ".join(EFFORTS), found=", ".join(strange) or "none"
        )
    levels = {EFFORTS.index(effort) for effort in known}

    def nearest(asked: int) -> str:
        return EFFORTS[min(levels, key=lambda level: (abs(level - asked), -level))]

    return {effort: nearest(number) for number, effort in enumerate(EFFORTS)}


def most_tokens(where: str, client: Mapping[str, Any], window: int, percent: int) -> int:
    """The longest answer that still fits when the harness compacts a conversation at ``percent`` of the window.

    A declared ``max_tokens`` beyond it is a FleetError: the answer would be cut by the window, not by its own limit.
    """
    room = window - window * percent // 100
    given = client.get("max_tokens")
    if given is not None and int(given) > room:
        raise FleetError(
            f"{where}.client.max_tokens leaves no room",
            expected=f"at most {room}: a conversation is compacted at {percent} % of {window} tokens",
            found=given,
            remedy="Lower it, or have the harness compact earlier (clients_compaction_percent)",
        )
    return int(given) if given is not None else room


def _model(where: str, entry: Mapping[str, Any], rung: str | None, percent: int) -> dict[str, Any]:
    client, env = entry["client"], {key: str(value) for key, value in entry["env"].items()}
    if problems := check_keys(f"{where}.client", client, CLIENT):
        raise FleetError(problems[0])
    window = int((client.get("rungs") or {}).get(rung, client["context_window"]) if rung else client["context_window"])
    alias = _envspec.alias_of(env)
    thinks = "reasoning_field" in client
    compat: dict[str, Any] = {
        "supportsStore": False,
        "supportsDeveloperRole": False,
        "supportsReasoningEffort": "reasoning_efforts" in client,
        "maxTokensField": "max_tokens",
    }
    if thinks:
        compat["reasoningContentField"] = client["reasoning_field"]
    if "reasoning_efforts" in client:
        compat["reasoningEffortMap"] = effort_map(client["reasoning_efforts"])
    if client.get("sampling"):
        compat["extraBody"] = dict(client["sampling"])
    return {
        "id": alias,
        "name": alias,
        "reasoning": thinks,
        "input": list(client.get("input") or ["text"]),
        "contextWindow": window,
        "maxTokens": most_tokens(where, client, window, percent),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "compat": compat,
    }


def providers(
    hosts: Mapping[str, Mapping[str, Any]], *, percent: int = 70, rungs: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """One provider per active endpoint that has a ``client``, named as the endpoint.

    ``hosts``: ``{address, endpoints}`` by host, of which the address is what clients reach it at. ``percent`` of its
    window is where a harness compacts a conversation. ``rungs`` are those that endpoints are pinned to, whose windows
    may be others. With API_KEY_FILE or api_key_file the harness takes the key from a variable, ``FRANK_MEDIUM_API_KEY``
    for frank-medium. Two endpoints of one name, and an endpoint that listens on the loopback alone, are FleetErrors.
    """
    told: dict[str, dict[str, Any]] = {}
    for host, given in hosts.items():
        for name, entry in (given.get("endpoints") or {}).items():
            if not entry.get("active", True) or "client" not in entry:
                continue
            where = f"llm_endpoints.{name}"
            if name in told:
                raise FleetError(
                    f"endpoint {name} is active on two hosts",
                    expected="one",
                    found=f"{host} and another",
                    remedy="Rename one",
                )
            bind, port = _envspec.address_of(entry["engine"], {key: str(value) for key, value in entry["env"].items()})
            if bind in ("127.0.0.1", "localhost", "::1") and given["address"] not in ("127.0.0.1", "localhost", "::1"):
                raise FleetError(
                    f"{where} cannot be reached from another machine",
                    expected=f"an address to listen on that {given['address']} stands for",
                    found=f"BIND_ADDR {bind}",
                    remedy="Let it listen on 0.0.0.0 or the host's address, or leave its client out",
                )
            address = f"[{given['address']}]" if ":" in given["address"] else given["address"]
            key = (
                {"apiKey": name.upper().replace("-", "_") + "_API_KEY", "authHeader": True}
                if entry["env"].get("API_KEY_FILE") or entry.get("api_key_file")
                else {"auth": "none"}
            )
            told[name] = {
                "baseUrl": f"http://{address}:{port}/v1",
                "api": "openai-completions",
                **key,
                "models": [_model(where, entry, (rungs or {}).get(name), percent)],
            }
    return told
