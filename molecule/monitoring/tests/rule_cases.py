# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For each alert, series under which it fires and series under which it does not, in promtool's notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "Case", "document"]

_AT = 'host="h", endpoint="e"'
_FULL = f'job="llm-fleet", {_AT}, engine="llamacpp", alias="a"'
_VLLM = f'job="llm-fleet", {_AT}, engine="r9v", alias="a", exported_engine="0", model_name="m"'
_NODE = 'job="llm-fleet-node", host="h"'


def _of(**values: str) -> dict[str, str]:
    """Series of the host's facts about its endpoint."""
    return {f'{name}{{{_NODE}, endpoint="e"}}': value for name, value in values.items()}


def _up(values: str) -> dict[str, str]:
    return {f"up{{{_FULL}}}": values}


def _server(**values: str) -> dict[str, str]:
    return {f"llamacpp:{name}{{{_FULL}}}": value for name, value in values.items()}


def _vllm(**values: str) -> dict[str, str]:
    return {f"vllm:{name}{{{_VLLM}}}": value for name, value in values.items()}


def _host(**values: str) -> dict[str, str]:
    return {f"{name}{{{_NODE}}}": value for name, value in values.items()}


def _card(free: str) -> dict[str, str]:
    return {
        f'llm_fleet_card_free_bytes{{{_NODE}, card="c"}}': free,
        f'llm_fleet_card_floor_bytes{{{_NODE}, card="c"}}': "1000x60",
        f'llm_fleet_card_floor_bytes{{{_NODE}, card="other"}}': "9000x60",
    }


def _payload(age: str, last: str) -> dict[str, str]:
    return {
        f'llm_fleet_payload_verified_age_seconds{{{_NODE}, payload="p", path="/m"}}': age,
        f"llm_fleet_payload_check_last_run_timestamp_seconds{{{_NODE}}}": last,
    }


@dataclass(frozen=True)
class Case:
    """``series`` (one value a minute) under which the alert ``fires``, or not, after ``minutes``."""

    alert: str
    why: str
    fires: bool
    series: Mapping[str, str] = field(default_factory=dict)
    minutes: int = 30


_DRAFTS = {"spec_decode_num_draft_tokens_total": "0+60x60", "spec_decode_num_accepted_tokens_total": "0+30x60"}
_POOR = {"spec_decode_num_draft_tokens_total": "0+60x60", "spec_decode_num_accepted_tokens_total": "0+3x60"}
_STILL = {"spec_decode_num_draft_tokens_total": "7x60", "spec_decode_num_accepted_tokens_total": "7x60"}
_FLOOR = _of(llm_fleet_endpoint_acceptance_floor="0.1x60")

CASES = (
    Case("LlmEndpointDown", "no answer", True, _up("1 1 0x60")),
    Case(
        "LlmEndpointDown",
        "no answer, and its host tells that /metrics is not reached",
        True,
        {**_up("0x60"), **_of(llm_fleet_endpoint_metrics_status="0x60")},
    ),
    Case("LlmEndpointDown", "it answers", False, _up("1x60")),
    Case("LlmEndpointDown", "not for long", False, _up("1x29 0 0"), 30),
    Case(
        "LlmEndpointDown",
        "it serves, and /metrics alone is off",
        False,
        {**_up("0x60"), **_of(llm_fleet_endpoint_metrics_status="501x60")},
    ),
    Case("LlmMetricsOff", "501", True, {**_up("0x60"), **_of(llm_fleet_endpoint_metrics_status="501x60")}),
    Case("LlmMetricsOff", "200", False, {**_up("1x60"), **_of(llm_fleet_endpoint_metrics_status="200x60")}),
    Case(
        "LlmMetricsOff",
        "501 of an endpoint that nobody watches",
        False,
        _of(llm_fleet_endpoint_metrics_status="501x60"),
    ),
    Case(
        "LlmNoSlotsFree",
        "as many requests as slots",
        True,
        {**_server(requests_processing="2x60", requests_deferred="0x60"), **_of(llm_fleet_endpoint_slots="2x60")},
    ),
    Case("LlmNoSlotsFree", "requests wait", True, _server(requests_processing="2x60", requests_deferred="1x60")),
    Case(
        "LlmNoSlotsFree", "requests wait at vLLM", True, _vllm(num_requests_running="3x60", num_requests_waiting="1x60")
    ),
    Case(
        "LlmNoSlotsFree",
        "a slot is free",
        False,
        {**_server(requests_processing="1x60", requests_deferred="0x60"), **_of(llm_fleet_endpoint_slots="2x60")},
    ),
    Case("LlmNoSlotsFree", "not for long", False, _server(requests_processing="2x60", requests_deferred="0x24 1x9")),
    Case(
        "LlmDraftingDead",
        "tokens and no drafts",
        True,
        {**_server(tokens_predicted_total="0+60x60", **_STILL), **_FLOOR},
    ),
    Case(
        "LlmDraftingDead", "tokens and no draft counters", True, {**_server(tokens_predicted_total="0+60x60"), **_FLOOR}
    ),
    Case(
        "LlmDraftingDead",
        "tokens and no drafts at vLLM",
        True,
        {**_vllm(generation_tokens_total="0+60x60", **_STILL), **_FLOOR},
    ),
    Case(
        "LlmDraftingDead",
        "tokens and drafts",
        False,
        {**_server(tokens_predicted_total="0+60x60", **_DRAFTS), **_FLOOR},
    ),
    Case("LlmDraftingDead", "idle", False, {**_server(tokens_predicted_total="9x60", **_STILL), **_FLOOR}),
    Case("LlmDraftingDead", "drafting is not declared", False, _server(tokens_predicted_total="0+60x60", **_STILL)),
    Case("LlmAcceptanceLow", "5 of 100", True, {**_server(**_POOR), **_FLOOR}),
    Case("LlmAcceptanceLow", "5 of 100 at vLLM", True, {**_vllm(**_POOR), **_FLOOR}),
    Case("LlmAcceptanceLow", "50 of 100", False, {**_server(**_DRAFTS), **_FLOOR}),
    Case("LlmAcceptanceLow", "idle", False, {**_server(**_STILL), **_FLOOR}),
    Case("LlmAcceptanceLow", "no floor is declared", False, _server(**_POOR)),
    Case("LlmRestarted", "one restart", True, _of(llm_fleet_unit_restarts_total="0x25 1x30")),
    Case("LlmRestarted", "long ago", False, _of(llm_fleet_unit_restarts_total="0x5 1x50")),
    Case("LlmRestarted", "a person started it anew", False, _of(llm_fleet_unit_restarts_total="3x25 0x30")),
    Case("LlmGateRed", "red", True, {f'llm_fleet_last_run_red{{{_NODE}, endpoint="e", gate="probes"}}': "1x60"}),
    Case("LlmGateRed", "green", False, {f'llm_fleet_last_run_red{{{_NODE}, endpoint="e", gate=""}}': "0x60"}),
    Case("LlmCertificateExpired", "one probe", True, _of(llm_fleet_certificate_expired_probes="1x60")),
    Case("LlmCertificateExpired", "none", False, _of(llm_fleet_certificate_expired_probes="0x60")),
    Case("LlmNotTrue", "another process serves", True, {**_up("1x60"), **_of(llm_fleet_endpoint_true="0x60")}),
    Case("LlmNotTrue", "true", False, {**_up("1x60"), **_of(llm_fleet_endpoint_true="1x60")}),
    Case("LlmNotTrue", "down is another alert", False, {**_up("0x60"), **_of(llm_fleet_endpoint_true="0x60")}),
    Case("LlmCardMemoryLow", "under the floor", True, _card("999x60")),
    Case("LlmCardMemoryLow", "at the floor", False, _card("1000x60")),
    Case("LlmPayloadOld", "read long ago", True, _payload("3888001x60", "0+60x60")),
    Case("LlmPayloadOld", "the check ended long ago", True, _payload("3887000x60", "0x60")),
    Case("LlmPayloadOld", "read lately", False, _payload("86400x60", "0+60x60")),
    Case("LlmPayloadDamaged", "another file", True, {f'llm_fleet_payload_mismatch{{{_NODE}, path="/m"}}': "1x60"}),
    Case("LlmPayloadDamaged", "the same", False, {f'llm_fleet_payload_mismatch{{{_NODE}, path="/m"}}': "0x60"}),
    Case("LlmFactsStale", "nothing new", True, _host(up="1x60", llm_fleet_facts_timestamp_seconds="0+60x9 540x50")),
    Case("LlmFactsStale", "never anything", True, _host(up="1x60")),
    Case("LlmFactsStale", "no node exporter", True, _host(up="0x60")),
    Case("LlmFactsStale", "told each minute", False, _host(up="1x60", llm_fleet_facts_timestamp_seconds="0+60x60")),
    Case("LlmFactsIncomplete", "one part", True, _host(llm_fleet_facts_errors="1x60")),
    Case("LlmFactsIncomplete", "none", False, _host(llm_fleet_facts_errors="0x60")),
)


def document(rules: str, cases: tuple[Case, ...] = CASES) -> str:
    """A promtool test of the rule file ``rules``, as JSON, which is YAML. Firing is one series of ALERTS."""

    def test(case: Case) -> dict[str, Any]:
        asked = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
        return {
            "name": f"{case.alert}: {case.why}",
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": asked,
                    "eval_time": f"{case.minutes}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if case.fires else [],
                }
            ],
        }

    told = {"rule_files": [rules], "evaluation_interval": "1m", "tests": [test(case) for case in cases]}
    return json.dumps(told, indent=1)
