# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus scrapes, from the inventory of all hosts: targets for file_sd, and the jobs that read them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import identified

__all__ = ["ENDPOINTS", "NODES", "Plan", "config", "jobs", "plan"]

ENDPOINTS = "llm-fleet"  # label job of all endpoints, whichever job scrapes them
NODES = "llm-fleet-node"
_KEY = "__llm_fleet_key"  # Prometheus drops labels with two underscores after relabelling
_EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Plan:
    """``targets`` and ``nodes`` in file_sd's form; ``keys`` are the names of the key files that Prometheus needs."""

    targets: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    keys: list[str]
    warnings: list[str]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def _joined(address: str, port: str | int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _metrics_key(engine: str, env: Mapping[str, str]) -> str | None:
    """The key that would have to be set for the engine to serve ``/metrics``; None where it does."""
    return "METRICS" if engine == "llamacpp" and env.get("METRICS") != "1" else None


def _endpoint(
    host: str, address: str, here: bool, name: str, entry: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str]:
    """(target, "") or (None, why there is none)."""
    engine = str(entry["engine"])
    env = _envspec.normalise(engine, entry["env"])
    where = f"{host}: llm_endpoints.{name}.env"
    lacking = _metrics_key(engine, env)
    if lacking:
        return None, f"{where}.{lacking} is not 1: /metrics is off, and Prometheus does not watch this endpoint"
    bind, port = _envspec.address_of(engine, env)
    bind_key, port_key = ("R9V_HOST_BIND", "R9V_HOST_PORT") if engine == "r9v" else ("BIND_ADDR", "LISTEN_PORT")
    if not port:
        return None, f"{where} has no {port_key}: Prometheus does not watch this endpoint"
    bind = bind or ""
    if _is_loopback(bind) and not here:
        return None, f"{where}.{bind_key} {bind} cannot be reached from Prometheus' host: it is not watched"
    reach = ("127.0.0.1" if here else address) if bind in _EVERYWHERE else bind
    labels = {
        "job": ENDPOINTS,
        "host": host,
        "endpoint": name,
        "engine": engine,
        "alias": _envspec.alias_of(env) or name,
    }
    if env.get("API_KEY_FILE") or entry.get("api_key_file"):
        labels[_KEY] = f"{host}.{name}"
    return {"targets": [_joined(reach, port)], "labels": labels}, ""


def plan(hosts: Mapping[str, Mapping[str, Any]], prometheus: str, node_port: int) -> Plan:
    """``hosts`` is ``{host: {address, endpoints, cards}}`` with ``llm_endpoints`` and ``llm_cards``; ``prometheus`` is
    the host that scrapes.

    Active endpoints alone; one that cannot be scraped is a warning that names the key, and so is a card whose driver
    cannot be asked.
    """
    targets, nodes, warnings = [], [], []
    for host, told in sorted(hosts.items()):
        here = host == prometheus
        active = {name: entry for name, entry in sorted(told["endpoints"].items()) if entry.get("active", True)}
        for name, entry in active.items():
            target, why = _endpoint(host, told["address"], here, name, entry)
            if target is None:
                warnings.append(why)
            else:
                targets.append(target)
        cards = [{**card, "name": name} for name, card in sorted(told["cards"].items())]
        asked = identified(cards)
        warnings += [
            f"{host}: llm_cards.{card['name']} has neither pci nor uuid: its memory is not watched"
            for card in cards
            if card not in asked
        ]
        if told["endpoints"]:
            address = "127.0.0.1" if here else told["address"]
            nodes.append({"targets": [_joined(address, node_port)], "labels": {"job": NODES, "host": host}})
    keys = [target["labels"][_KEY] for target in targets if _KEY in target["labels"]]
    return Plan(targets, nodes, keys, warnings)


def jobs(keys: Sequence[str], *, folder: str, key_folder: str, interval: str) -> list[dict[str, Any]]:
    """The entries of ``scrape_configs``: endpoints without a key, each endpoint with one, and the hosts.

    ``folder`` holds the targets as Prometheus sees it; no key stands in what is returned, only its file's path.
    """

    def job(name: str, file: str, **more: Any) -> dict[str, Any]:
        files = [{"files": [os.path.join(folder, file)]}]
        return {"job_name": name, "scrape_interval": interval, "file_sd_configs": files, **more}

    def kept(pattern: str) -> list[dict[str, Any]]:
        return [{"source_labels": [_KEY], "regex": pattern, "action": "keep"}]

    return [
        job(ENDPOINTS, "endpoints.json", relabel_configs=kept("")),
        *(
            job(
                f"{ENDPOINTS}-{key}",
                "endpoints.json",
                authorization={"credentials_file": os.path.join(key_folder, key)},
                relabel_configs=kept(re.escape(key).replace("\\-", "-")),
            )
            for key in keys
        ),
        job(NODES, "nodes.json"),
    ]


def config(
    scrape_jobs: Sequence[Mapping[str, Any]], *, rules: str, interval: str, alertmanagers: Sequence[str]
) -> dict[str, Any]:
    """A whole ``prometheus.yml``; ``rules`` is the path of the rules, ``alertmanagers`` are ``host:port``."""
    told: dict[str, Any] = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [rules],
        "scrape_configs": [dict(job) for job in scrape_jobs],
    }
    if alertmanagers:
        told["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    return told
