# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus' rules for the fleet: series that are the same for both engines, and the alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._dialect import LLAMA_SERVER, VLLM
from ansible_collections.dank.llm_fleet.plugins.module_utils._scrape import ENDPOINTS, NODES

__all__ = ["ALERTS", "Alert", "Pace", "queries", "rules"]

_LABELS = "host, endpoint, engine, alias"
_UP = f'up{{job="{ENDPOINTS}"}}'
_NODE_UP = f'up{{job="{NODES}"}}'
# Recorded name: llama-server's series, vLLM's. vLLM adds labels of its own, which are summed away.
_GAUGES = {
    "llm_fleet:requests_running": ("llamacpp:requests_processing", "vllm:num_requests_running"),
    "llm_fleet:requests_waiting": ("llamacpp:requests_deferred", "vllm:num_requests_waiting"),
}
_COUNTERS = {
    "llm_fleet:prompt_tokens:rate": ("llamacpp:prompt_tokens_total", "vllm:prompt_tokens_total"),
    "llm_fleet:predicted_tokens:rate": ("llamacpp:tokens_predicted_total", "vllm:generation_tokens_total"),
    "llm_fleet:draft_tokens:rate": (LLAMA_SERVER.draft_counters[0], VLLM.draft_counters[0]),
    "llm_fleet:accepted_tokens:rate": (LLAMA_SERVER.draft_counters[1], VLLM.draft_counters[1]),
}


@dataclass(frozen=True)
class Pace:
    """Durations as Prometheus writes them: over which rates are taken, and for which a fault and full slots last before
    they are told; the age in seconds at which facts are stale, and in days that of a payload's last reading."""

    window: str = "5m"
    hold: str = "2m"
    busy: str = "10m"
    facts_s: str = "300"
    payload_days: str = "45"


@dataclass(frozen=True)
class Alert:
    """``expr`` and ``hold`` may name fields of :class:`Pace` in braces; ``says`` is a template of Prometheus'."""

    name: str
    expr: str
    says: str
    remedy: str
    hold: str = "{pace.hold}"
    severity: str = "warning"


_AT = "{{ $labels.endpoint }} on {{ $labels.host }}"
ALERTS = (
    Alert(
        "LlmEndpointDown",
        # A server whose /metrics is off answers 501, which is "down" to Prometheus alone: LlmMetricsOff tells that.
        f"{_UP} == 0 unless on (host, endpoint) llm_fleet_endpoint_metrics_status == 501",
        f"{_AT} does not answer /metrics",
        "playbooks/status.yml tells why; journalctl -u {{ $labels.endpoint }} on the host",
        severity="critical",
    ),
    Alert(
        "LlmMetricsOff",
        f"llm_fleet_endpoint_metrics_status == 501 and on (host, endpoint) {_UP}",
        f"{_AT} serves with /metrics off: 501",
        "It was started without METRICS. Run site.yml, or see whether a rung is pinned",
    ),
    Alert(
        "LlmNoSlotsFree",
        "llm_fleet:requests_running >= on (host, endpoint) group_left () llm_fleet_endpoint_slots"
        " or llm_fleet:requests_waiting > 0",
        f"{_AT} has had all slots at work for {{pace.busy}}",
        "More slots (PARALLEL), or fewer clients",
        hold="{pace.busy}",
    ),
    Alert(
        "LlmDraftingDead",
        "llm_fleet:predicted_tokens:rate > 0 unless on (host, endpoint) llm_fleet:draft_tokens:rate > 0"
        " and on (host, endpoint) llm_fleet_endpoint_acceptance_floor",
        f"{_AT} generates and drafts nothing, though drafting is declared",
        "Run verify.yml with full=true: the probe drafting tells more",
    ),
    Alert(
        "LlmAcceptanceLow",
        "llm_fleet:acceptance < on (host, endpoint) group_left () llm_fleet_endpoint_acceptance_floor",
        f"{_AT}: {{{{ $value | humanizePercentage }}}} of the drafted tokens are accepted, under the declared floor",
        "Another drafter, fewer tokens a draft, or probes.acceptance.drafting",
    ),
    Alert(
        "LlmRestarted",
        "increase(llm_fleet_unit_restarts_total[15m]) > 0",
        f"systemd brought {_AT} back",
        "journalctl -u {{ $labels.endpoint }} on the host tells why it ended",
        hold="0s",
    ),
    Alert(
        "LlmGateRed",
        "llm_fleet_last_run_red == 1",
        f"The last deploy of {_AT} met a red gate: {{{{ $labels.gate }}}}",
        "docs/how-to/read-a-failed-gate.md",
    ),
    Alert(
        "LlmCertificateExpired",
        "llm_fleet_certificate_expired_probes > 0",
        f"{_AT} has {{{{ $value }}}} declared capabilities without a proof that holds",
        "Run site.yml for this host: it proves what has no proof",
    ),
    Alert(
        "LlmNotTrue",
        f"llm_fleet_endpoint_true == 0 and on (host, endpoint) {_UP} == 1",
        f"{_AT} runs something other than what was deployed",
        "playbooks/verify.yml names the broken link",
    ),
    Alert(
        "LlmCardMemoryLow",
        "llm_fleet_card_free_bytes < on (host, card) group_left () llm_fleet_card_floor_bytes",
        "Card {{ $labels.card }} on {{ $labels.host }} has {{ $value | humanize1024 }}B free, under its floor",
        "playbooks/fit.yml; see who holds the memory",
    ),
    Alert(
        "LlmPayloadOld",
        # The age is that of the check's last run; a check that ended runs up time all the same.
        "llm_fleet_payload_verified_age_seconds + on (host) group_left ()"
        " (time() - llm_fleet_payload_check_last_run_timestamp_seconds) > {pace.payload_days} * 86400",
        "{{ $labels.path }} on {{ $labels.host }} was last read in full {{ $value | humanizeDuration }} ago",
        "systemctl status llm-fleet-payload-check.timer",
    ),
    Alert(
        "LlmPayloadDamaged",
        "llm_fleet_payload_mismatch == 1",
        "{{ $labels.path }} on {{ $labels.host }} is not the file that was proven",
        "docs/how-to/keep-models-verified.md",
        severity="critical",
    ),
    Alert(
        "LlmFactsStale",
        f"{_NODE_UP} unless on (host) (time() - llm_fleet_facts_timestamp_seconds < {{pace.facts_s}})",
        "{{ $labels.host }} has told nothing of its cards and endpoints for {pace.facts_s} s",
        "systemctl status prometheus-node-exporter llm-fleet-facts.timer",
    ),
    Alert(
        "LlmFactsIncomplete",
        "llm_fleet_facts_errors > 0",
        "{{ $labels.host }} could not read {{ $value }} of its cards and endpoints",
        "journalctl -u llm-fleet-facts",
    ),
)


def _paced(text: str, pace: Pace) -> str:
    """``text`` with the fields of ``pace`` filled in; not str.format, since Prometheus' templates have braces too."""
    for name, value in vars(pace).items():
        text = text.replace(f"{{pace.{name}}}", str(value))
    return text


def _recorded(pace: Pace) -> dict[str, str]:
    def either(pattern: str, pair: tuple[str, str]) -> str:
        return " or ".join(f"sum by ({_LABELS}) ({pattern.format(name)})" for name in pair)

    return {
        **{name: either("{}", pair) for name, pair in _GAUGES.items()},
        **{name: either(f"rate({{}}[{pace.window}])", pair) for name, pair in _COUNTERS.items()},
        "llm_fleet:acceptance": "llm_fleet:accepted_tokens:rate / (llm_fleet:draft_tokens:rate > 0)",
    }


def rules(pace: Pace) -> dict[str, Any]:
    """The content of a rule file."""
    recording = [{"record": name, "expr": expr} for name, expr in _recorded(pace).items()]
    alerting = [
        {
            "alert": alert.name,
            "expr": _paced(alert.expr, pace),
            "for": _paced(alert.hold, pace),
            "labels": {"severity": alert.severity},
            "annotations": {"summary": _paced(alert.says, pace), "remedy": alert.remedy},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "llm-fleet", "rules": recording}, {"name": "llm-fleet-alerts", "rules": alerting}]}


def queries(content: Mapping[str, Any]) -> dict[str, str]:
    """Every query of a rule file, by the name of its rule."""
    every = [rule for group in content["groups"] for rule in group["rules"]]
    return {rule.get("alert") or rule["record"]: rule["expr"] for rule in every}
