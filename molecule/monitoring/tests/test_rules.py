# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each alert fires when it should and only then, by promtool on the host; and these tests turn red with their rules."""

from __future__ import annotations

import copy
import json
import re
import shlex

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._alerts import ALERTS, Pace, rules
from rule_cases import CASES, document

FOLDER = "/tmp/llm-fleet-rules"


def promtool(fleet, content):
    """What ``promtool test rules`` says of ``content``."""
    files = {"rules.yml": json.dumps(content), "test.yml": document("rules.yml")}
    for name, text in files.items():
        fleet.run(f"mkdir -p {FOLDER}; printf %s {shlex.quote(text)} >{FOLDER}/{name}")
    return fleet.run(f"cd {FOLDER} && promtool test rules test.yml 2>&1; echo rc=$?")


def test_every_alert_has_both_kinds_of_case():
    for fires in (True, False):
        assert {case.alert for case in CASES if case.fires == fires} == {alert.name for alert in ALERTS}


def test_alerts_fire_when_they_should_and_only_then(keyed):
    told = promtool(keyed, rules(Pace()))
    assert told.endswith("rc=0\n"), told


@pytest.mark.parametrize("expr, fires", [("vector(1) > 2", True), ("vector(1)", False)])
def test_a_rule_that_says_always_the_same_is_seen(keyed, expr, fires):
    spoilt = copy.deepcopy(rules(Pace()))
    for rule in spoilt["groups"][1]["rules"]:
        rule["expr"] = expr
    told = promtool(keyed, spoilt)
    assert "FAILED" in told and "rc=0" not in told
    seen = set(re.findall(r'alertname=\\?"(\w+)', told))
    assert seen == {alert.name for alert in ALERTS}


def test_what_is_deployed_are_these_rules(keyed):
    deployed = keyed.run("cat /etc/prometheus/llm-fleet/rules.yml")
    assert [alert.name for alert in ALERTS] == re.findall(r"- alert: (\w+)", deployed)
    assert keyed.run("promtool check rules /etc/prometheus/llm-fleet/rules.yml").count("SUCCESS") == 1
