# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus scrapes and alerts of, drawn from the inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._alerts import ALERTS, Pace, queries, rules
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._promql import series_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._scrape import config, jobs, plan

ROOT = Path(__file__).resolve().parents[2]
ENV = {"BIND_ADDR": "0.0.0.0", "LISTEN_PORT": 8080, "ALIAS": "a", "METRICS": 1}


def endpoint(engine: str = "llamacpp", active: bool = True, key: str = "", **env: Any) -> dict[str, Any]:
    lines = {name: value for name, value in env.items() if value is not None}
    return {"engine": engine, "active": active, "env": lines, **({"api_key_file": key} if key else {})}


def planned(entry: dict[str, Any], *, prometheus: str = "other", address: str = "10.0.0.7") -> Any:
    return plan({"box": {"address": address, "endpoints": {"chat": entry}, "cards": {}}}, prometheus, 9100)


@pytest.mark.parametrize(
    "bind, prometheus, address, target",
    [
        ("0.0.0.0", "other", "10.0.0.7", "10.0.0.7:8080"),
        ("0.0.0.0", "other", "fd00::7", "[fd00::7]:8080"),
        ("::", "other", "box.lan", "box.lan:8080"),
        ("0.0.0.0", "box", "10.0.0.7", "127.0.0.1:8080"),
        ("127.0.0.1", "box", "10.0.0.7", "127.0.0.1:8080"),
        ("192.168.0.9", "other", "10.0.0.7", "192.168.0.9:8080"),
        ("192.168.0.9", "box", "10.0.0.7", "192.168.0.9:8080"),
    ],
)
def test_an_endpoint_is_reached_where_it_listens(bind: str, prometheus: str, address: str, target: str) -> None:
    told = planned(endpoint(**{**ENV, "BIND_ADDR": bind}), prometheus=prometheus, address=address)
    assert told.warnings == []
    assert told.targets == [
        {
            "targets": [target],
            "labels": {"job": "llm-fleet", "host": "box", "endpoint": "chat", "engine": "llamacpp", "alias": "a"},
        }
    ]


R9V = {"R9V_HOST_BIND": "0.0.0.0", "R9V_HOST_PORT": 7770, "R9V_SERVED_MODEL_NAME": "big"}


@pytest.mark.parametrize(
    "entry, words",
    [
        (endpoint(**{**ENV, "METRICS": None}), "llm_endpoints.chat.env.METRICS is not 1"),
        (endpoint(**{**ENV, "METRICS": 0}), "llm_endpoints.chat.env.METRICS is not 1"),
        (endpoint(**{**ENV, "BIND_ADDR": "127.0.0.1"}), "llm_endpoints.chat.env.BIND_ADDR 127.0.0.1 cannot be reached"),
        (endpoint("r9v", **{**R9V, "R9V_HOST_PORT": None}), "llm_endpoints.chat.env has no R9V_HOST_PORT"),
        (endpoint("r9v", **{**R9V, "R9V_HOST_BIND": "127.0.0.2"}), "env.R9V_HOST_BIND 127.0.0.2 cannot be reached"),
    ],
)
def test_what_cannot_be_scraped_is_no_target_and_a_warning_with_its_key(entry: dict[str, Any], words: str) -> None:
    told = planned(entry)
    assert told.targets == [] and len(told.warnings) == 1
    assert told.warnings[0].startswith("box: ") and words in told.warnings[0]
    assert [node["targets"] for node in told.nodes] == [["10.0.0.7:9100"]]


def test_vllm_always_serves_metrics() -> None:
    told = planned(endpoint("r9v", **R9V))
    assert told.targets[0]["targets"] == ["10.0.0.7:7770"]
    assert told.targets[0]["labels"]["alias"] == "big" and told.targets[0]["labels"]["engine"] == "r9v"


def test_an_endpoint_that_is_not_active_is_left_out_without_a_word() -> None:
    told = planned(endpoint(active=False, **{**ENV, "METRICS": None}))
    assert told.targets == [] and told.warnings == []


def test_a_host_without_endpoints_has_no_target_at_all() -> None:
    told = plan({"idle": {"address": "10.0.0.8", "endpoints": {}, "cards": {}}}, "other", 9100)
    assert (told.targets, told.nodes, told.keys, told.warnings) == ([], [], [], [])


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(FleetError, match="METRIX"):
        planned(endpoint(**ENV, METRIX=1))


@pytest.mark.parametrize("entry", [endpoint(**ENV, API_KEY_FILE="/etc/keys/chat"), endpoint(key="/root/key", **ENV)])
def test_a_key_is_a_path_of_prometheus_host_and_a_job_of_its_own(entry: dict[str, Any]) -> None:
    told = planned(entry)
    assert told.keys == ["box.chat"]
    found = {
        job["job_name"]: job for job in jobs(told.keys, folder="/etc/prometheus/f", key_folder="/keys", interval="15s")
    }
    assert list(found) == ["llm-fleet", "llm-fleet-box.chat", "llm-fleet-node"]
    keyed = found["llm-fleet-box.chat"]
    assert keyed["authorization"] == {"credentials_file": "/keys/box.chat"}
    assert keyed["file_sd_configs"] == [{"files": ["/etc/prometheus/f/endpoints.json"]}]
    # Of the two jobs that read the same file, exactly one keeps a target.
    assert keyed["relabel_configs"][0]["regex"] == r"box\.chat"
    assert found["llm-fleet"]["relabel_configs"][0]["regex"] == ""
    assert "authorization" not in found["llm-fleet"] and "/etc/keys/chat" not in str(found) + str(told)


def test_the_whole_configuration() -> None:
    found = config(jobs([], folder="/f", key_folder="/k", interval="5s"), rules="/f/rules.yml", interval="5s",
                   alertmanagers=["am:9093"])  # fmt: skip
    assert found["rule_files"] == ["/f/rules.yml"]
    assert found["global"] == {"scrape_interval": "5s", "evaluation_interval": "5s"}
    assert found["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["am:9093"]}]
    assert "alerting" not in config([], rules="/r", interval="5s", alertmanagers=[])


def test_the_fleet_of_the_owner() -> None:
    hosts = {}
    for file in (ROOT / "inventories" / "production" / "host_vars").glob("*.yml"):
        told = yaml.safe_load(file.read_text())
        hosts[file.stem] = {"address": file.stem, "endpoints": told["llm_endpoints"], "cards": told["llm_cards"]}
    told = plan(hosts, "dankclaw", 9100)
    assert told.warnings == ["dankclaw: llm_cards.rtx3090 has neither pci nor uuid: its memory is not watched"]
    assert {target["labels"]["endpoint"]: target["targets"] for target in told.targets} == {
        "frank-zealot": ["127.0.0.1:7771"],
        "frank-primary": ["dankserver:7770"],
    }


# Rules; what they do is tested by promtool in the scenario "monitoring".


def test_the_pace_stands_in_every_rule_that_names_it() -> None:
    pace = Pace(window="1h", hold="7m", busy="9m", facts_s="11", payload_days="3")
    text = str(rules(pace))
    assert "{pace" not in text
    for words in ("[1h]", "'for': '7m'", "'for': '9m'", "< 11)", "> 3 * 86400", "for 9m", "for 11 s"):
        assert words in text, words


def test_an_alert_is_named_once_and_says_what_and_what_next() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(set(names)) == len(names) and all(name.startswith("Llm") for name in names)
    content = rules(Pace())
    for rule in content["groups"][1]["rules"]:
        assert rule["annotations"]["summary"].count("{{") == rule["annotations"]["summary"].count("}}")
        assert "{{ $labels.host }}" in rule["annotations"]["summary"] and rule["annotations"]["remedy"]
    assert {"llm_fleet:acceptance", *names} <= set(queries(content))


def test_the_rules_name_series_of_the_servers_of_the_host_and_of_their_own_alone() -> None:
    for name, query in queries(rules(Pace())).items():
        for series in series_of(query):
            assert series == "up" or series.startswith(("llamacpp:", "vllm:", "llm_fleet")), name
