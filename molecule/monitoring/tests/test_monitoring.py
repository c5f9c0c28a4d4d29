# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's Prometheus watches real endpoints: targets, series, alerts that fire and end, and files put in place."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import dashboards
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _alerts
from ansible_collections.dank.llm_fleet.plugins.module_utils._promql import exposed, unknown_series

ROOT = Path(__file__).resolve().parents[3]
KEY = "molecule-key"
API = "http://127.0.0.1:9090/api/v1"
CONFIG = "/etc/prometheus/prometheus.yml"


def asked(fleet, path):
    """What Prometheus' API answers."""
    return json.loads(fleet.run(f"curl -sS --fail-with-body {shlex.quote(f'{API}/{path}')}"))["data"]


def play(fleet, **extra):
    """The part for Prometheus' host alone: the other takes as long again and is not what is looked at."""
    return fleet.play(
        "playbooks/monitoring.yml", "--start-at-task", "Draw targets and rules from the inventory", **extra
    )


def firing(fleet):
    """(alert, endpoint) of everything that fires."""
    alerts = asked(fleet, "alerts")["alerts"]
    return {(one["labels"]["alertname"], one["labels"].get("endpoint")) for one in alerts if one["state"] == "firing"}


def until(seen, wanted, seconds=60.0):
    """Ask ``seen`` until ``wanted`` holds of it."""
    deadline = time.monotonic() + seconds
    while not wanted(found := seen()):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found


def scraped(fleet, port, *args):
    return fleet.run(f"curl -sS -w '\\n# %{{http_code}}' {' '.join(args)} http://127.0.0.1:{port}/metrics")


@pytest.fixture(scope="module")
def calm(keyed):
    """Everything is up, facts are fresh, and nothing fires."""
    keyed.run("systemctl start llm-fleet-payload-check.service")
    until(lambda: firing(keyed), lambda found: not found)
    return keyed


def test_targets_are_up_and_labelled(calm):
    targets = until(
        lambda: asked(calm, "targets?state=active")["activeTargets"],
        lambda found: len(found) == 3 and all(one["health"] == "up" for one in found),
    )
    labels = {one["scrapeUrl"]: one["labels"] for one in targets}
    both = {"job": "llm-fleet", "host": "molecule-monitoring", "engine": "llamacpp"}
    assert labels == {
        f"http://127.0.0.1:{port}/metrics": {
            **both, "endpoint": name, "alias": name, "instance": f"127.0.0.1:{port}"
        } for port, name in ((8101, "toy-keyed"), (8102, "toy-plain"))
    } | {
        "http://127.0.0.1:9100/metrics": {
            "job": "llm-fleet-node", "host": "molecule-monitoring", "instance": "127.0.0.1:9100"
        }
    }  # fmt: skip


def test_the_key_is_needed_and_is_in_no_file_of_prometheus(calm):
    assert scraped(calm, 8101).endswith("# 401")
    assert scraped(calm, 8101, "-H", f"'Authorization: Bearer {KEY}'").endswith("# 200")
    assert calm.run(f"grep -rl {KEY} /etc/prometheus /etc/grafana || true") == ""
    config = asked(calm, "status/config")["yaml"]
    assert "credentials_file: /etc/llm-fleet-keys/molecule-monitoring.toy-keyed" in config and KEY not in config


def known(fleet):
    """Every series that somebody exposes: live ones, those that our rules record, and vLLM's recorded list."""
    live = exposed(scraped(fleet, 8101, "-H", f"'Authorization: Bearer {KEY}'")) | exposed(scraped(fleet, 9100))
    recorded = {rule["record"] for rule in _alerts.rules(_alerts.Pace())["groups"][0]["rules"]}
    listed = (ROOT / "tests" / "fixtures" / "vllm_metrics.txt").read_text().splitlines()
    prometheus_own = {"up", "ALERTS"}
    return live | recorded | prometheus_own | {line for line in listed if not line.startswith("#")}


def test_every_query_names_a_series_that_is_exposed(calm):
    queries = dict(_alerts.queries(_alerts.rules(_alerts.Pace())))
    for name in dashboards.DASHBOARDS:
        queries |= dashboards.queries(
            json.loads(calm.run(f"cat /etc/grafana/provisioning/dashboards/llm-fleet/{name}.json"))
        )
    assert len(queries) > 60
    names = known(calm)
    assert unknown_series(queries, names) == []
    spoilt = {**queries, "LlmMadeUp": "rate(llamacpp:kv_cache_usage_ratio[5m]) > 0"}
    assert unknown_series(spoilt, names) == ["LlmMadeUp: nobody exposes llamacpp:kv_cache_usage_ratio"]


def test_the_queries_of_the_dashboards_are_sound(calm):
    queries = {}
    for name in dashboards.DASHBOARDS:
        queries |= dashboards.queries(dashboards.dashboard(name))
    # Grafana would fill the variables in. One line an answer; one connection for all.
    plain = [
        query.replace("$__rate_interval", "1m").replace("$host", ".*").replace("$endpoint", ".*")
        for query in queries.values()
    ]
    commands = [f"curl -sS --data-urlencode {shlex.quote('query=' + query)} {API}/query; echo" for query in plain]
    answers = calm.run("\n".join(commands)).splitlines()
    assert [
        where for where, answer in zip(queries, answers, strict=True) if json.loads(answer)["status"] != "success"
    ] == []


def test_down_fires_and_ends(calm, plain):
    plain.run(f"systemctl stop {plain.unit}")
    try:
        found = until(lambda: firing(calm), lambda found: ("LlmEndpointDown", "toy-plain") in found)
        assert ("LlmEndpointDown", "toy-keyed") not in found and ("LlmMetricsOff", "toy-plain") not in found
    finally:
        plain.run(f"systemctl start {plain.unit}")
    until(lambda: firing(calm), lambda found: not found)


def test_501_is_told_apart_from_down(calm, plain):
    args = plain.run(f"tr '\\0' '\\n' </proc/{plain.start()['MainPID']}/cmdline").splitlines()
    args.remove("--metrics")
    plain.run(f"systemctl stop {plain.unit}; systemd-run --quiet --unit=instead -p User=llm {shlex.join(args)}")
    try:
        found = until(lambda: firing(calm), lambda found: ("LlmMetricsOff", "toy-plain") in found)
        assert scraped(plain, 8102).endswith("# 501")
        found = until(lambda: firing(calm), lambda found: ("LlmEndpointDown", "toy-plain") not in found)
        assert ("LlmMetricsOff", "toy-plain") in found
    finally:
        plain.run(f"systemctl stop instead; systemctl start {plain.unit}")
    until(lambda: firing(calm), lambda found: not found)


def test_a_card_under_its_floor_fires_and_ends(calm):
    calm.run("echo 1000 >/run/card-free-mib")
    try:
        until(lambda: firing(calm), lambda found: ("LlmCardMemoryLow", None) in found)
    finally:
        calm.run("rm /run/card-free-mib")
    until(lambda: firing(calm), lambda found: not found)


def test_check_mode_shows_what_changes_and_a_silent_endpoint_is_warned_of(calm):
    endpoints = calm.variables()["llm_endpoints"]
    del endpoints["toy-plain"]["env"]["METRICS"]
    before = calm.run("sha256sum /etc/prometheus/llm-fleet/*")
    played = calm.play("playbooks/monitoring.yml", "--check", "--diff", llm_endpoints=endpoints)
    assert played.rc == 0, played.text
    assert "llm_endpoints.toy-plain.env.METRICS is not 1" in played.error
    assert '-            "127.0.0.1:8102"' in played.text and played.recap["changed"] == 1
    assert calm.run("sha256sum /etc/prometheus/llm-fleet/*") == before


def test_a_refused_configuration_stays_out_and_what_was_accepted_is_reloaded(calm):
    pid = "systemctl show -p MainPID --value prometheus"
    before, config = calm.run(pid), calm.run(f"cat {CONFIG}")
    played = play(calm, monitoring_payload_days=47, monitoring_interval="1x")
    assert played.rc != 0 and "failed to validate" in played.error and '\\"1x\\"' in played.error
    assert calm.run(f"cat {CONFIG}") == config
    rules = [rule for group in asked(calm, "rules")["groups"] for rule in group["rules"]]
    assert "> 47 * 86400" in next(rule["query"] for rule in rules if rule["name"] == "LlmPayloadOld")
    assert calm.run(pid) == before


def test_a_key_that_is_not_there_is_named(calm):
    played = play(calm, monitoring_key_folder="/nowhere")
    assert played.rc != 0 and "/nowhere/molecule-monitoring.toy-keyed is not there" in played.error


def test_for_a_prometheus_that_is_there_files_alone_are_written(calm):
    played = play(
        calm,
        monitoring_install=False,
        monitoring_folder="/srv/prometheus/llm-fleet",
        monitoring_folder_seen="/etc/prometheus/llm-fleet",
        monitoring_grafana_folder="",
    )
    assert played.rc == 0, played.text
    assert calm.run("ls /srv/prometheus/llm-fleet").split() == [
        "endpoints.json",
        "nodes.json",
        "rules.yml",
        "scrape.yml",
    ]
    whole = "printf 'scrape_config_files: [/srv/prometheus/llm-fleet/scrape.yml]\\n' >/tmp/whole.yml"
    assert "SUCCESS" in calm.run(f"{whole} && promtool check config /tmp/whole.yml")
