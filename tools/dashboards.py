# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write Grafana's dashboards of role monitoring from the table below, or tell (--check) which are out of date."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "roles" / "monitoring" / "files" / "dashboards"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 24, 7
_ONE = '{host=~"$host", endpoint=~"$endpoint"}'
_WHO = "{{endpoint}} on {{host}}"


@dataclass(frozen=True)
class Panel:
    """One panel; ``series`` are (query, legend). ``kind`` is timeseries, stat or table; ``width`` of 24."""

    title: str
    series: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    says: str = ""


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard: the values that ``label`` has in the series of ``query``."""

    name: str
    query: str
    label: str


def _rate(series: str) -> str:
    return f"rate({series}{_ONE}[$__rate_interval])"


def _quantile(share: float, histogram: str) -> str:
    return f"histogram_quantile({share}, sum by (le) ({_rate(histogram)}))"


_CACHED = _rate("llamacpp:prompt_tokens_cached_total")
_FIRING = 'count(ALERTS{alertname=~"Llm.*", alertstate="firing"}) or vector(0)'
_OF_A_FILE = [("llm_fleet_payload_verified_age_seconds", "{{path}} on {{host}}")]
FLEET = (
    Panel("Endpoints that answer", [('sum(up{job="llm-fleet"})', "up")], kind="stat", width=6),
    Panel("Endpoints watched", [('count(up{job="llm-fleet"})', "watched")], kind="stat", width=6),
    Panel("Alerts", [(_FIRING, "firing")], kind="stat", width=6),
    Panel("Tokens a second", [("sum(llm_fleet:predicted_tokens:rate)", "generated")], kind="stat", width=6),
    Panel("What is deployed", [("llm_fleet_era_info", "")], kind="table", width=24),
    Panel("Answers /metrics", [('up{job="llm-fleet"}', _WHO)], says="0: down, or /metrics is off."),
    Panel("Requests worked on", [("llm_fleet:requests_running", _WHO)]),
    Panel("Requests that wait", [("llm_fleet:requests_waiting", _WHO)]),
    Panel("Generated tokens a second", [("llm_fleet:predicted_tokens:rate", _WHO)]),
    Panel(
        "Prompt tokens a second", [("llm_fleet:prompt_tokens:rate", _WHO)], says="Those from the cache are not counted."
    ),
    Panel("Drafted tokens that were accepted", [("llm_fleet:acceptance", _WHO)], "percentunit"),
    Panel(
        "Free memory of the cards",
        [
            ("llm_fleet_card_free_bytes", "{{card}} on {{host}}"),
            ("llm_fleet_card_floor_bytes", "{{card}} on {{host}}: floor"),
        ],
        "bytes",
    ),
    Panel("Restarts by systemd in an hour", [("increase(llm_fleet_unit_restarts_total[1h])", _WHO)]),
    Panel("Truth", [("llm_fleet_endpoint_true", _WHO)], says="1: what runs is what was deployed."),
    Panel("Capabilities without a proof", [("llm_fleet_certificate_expired_probes", _WHO)]),
    Panel("Red gates of last deploys", [("llm_fleet_last_run_red", _WHO + " {{gate}}")]),
    Panel("Payload files: time since the last full read", _OF_A_FILE, "s"),
)

ENDPOINT = (
    Panel("Answers", [(f"up{_ONE}", "up")], kind="stat", width=4),
    Panel("Runs since", [(f"llm_fleet_endpoint_start_time_seconds{_ONE} * 1000", "")], "dateTimeFromNow", "stat", 5),
    Panel("True", [(f"llm_fleet_endpoint_true{_ONE}", "")], kind="stat", width=3),
    Panel("Without a proof", [(f"llm_fleet_certificate_expired_probes{_ONE}", "")], kind="stat", width=4),
    Panel("Restarts", [(f"llm_fleet_unit_restarts_total{_ONE}", "")], kind="stat", width=3),
    Panel("Proven", [(f"llm_fleet_certificate_timestamp_seconds{_ONE} * 1000", "")], "dateTimeFromNow", "stat", 5),
    Panel("What is deployed", [(f"llm_fleet_era_info{_ONE}", "")], kind="table", width=24),
    Panel(
        "Requests",
        [
            (f"llm_fleet:requests_running{_ONE}", "worked on"),
            (f"llm_fleet:requests_waiting{_ONE}", "waiting"),
            (f"llm_fleet_endpoint_slots{_ONE}", "slots"),
        ],
    ),
    Panel(
        "Tokens a second",
        [
            (f"llm_fleet:predicted_tokens:rate{_ONE}", "generated"),
            (f"llm_fleet:prompt_tokens:rate{_ONE}", "prompt"),
        ],
    ),
    Panel(
        "Drafted tokens that were accepted",
        [
            (f"llm_fleet:acceptance{_ONE}", "accepted"),
            (f"llm_fleet_endpoint_acceptance_floor{_ONE}", "floor"),
        ],
        "percentunit",
    ),
    Panel(
        "Drafting",
        [
            (f"llm_fleet:draft_tokens:rate{_ONE}", "drafted a second"),
            (f"llm_fleet:accepted_tokens:rate{_ONE}", "accepted a second"),
        ],
    ),
    Panel(
        "llama-server: speed of a request",
        [
            (
                f"{_rate('llamacpp:tokens_predicted_total')} / {_rate('llamacpp:tokens_predicted_seconds_total')}",
                "generating",
            ),
            (f"{_rate('llamacpp:prompt_tokens_total')} / {_rate('llamacpp:prompt_seconds_total')}", "prompt"),
        ],
        says="Tokens a second while it worked; idle time does not count.",
    ),
    Panel(
        "llama-server: prompt tokens from the cache",
        [(f"{_CACHED} / ({_CACHED} + {_rate('llamacpp:prompt_tokens_total')})", "share")],
        "percentunit",
    ),
    Panel(
        "llama-server: accepted tokens by place in the draft",
        [(_rate("llamacpp:spec_decode_num_accepted_tokens_per_pos_total"), "place {{position}}")],
    ),
    Panel(
        "llama-server: busy slots of a decode", [(f"llamacpp:n_busy_slots_per_decode{_ONE}", "mean since the start")]
    ),
    Panel("llama-server: longest sequence", [(f"llamacpp:n_tokens_max{_ONE}", "tokens")]),
    Panel(
        "vLLM: time to the first token",
        [
            (_quantile(0.5, "vllm:time_to_first_token_seconds_bucket"), "half of them"),
            (_quantile(0.95, "vllm:time_to_first_token_seconds_bucket"), "95 of 100"),
        ],
        "s",
    ),
    Panel(
        "vLLM: whole requests",
        [(_quantile(0.95, "vllm:e2e_request_latency_seconds_bucket"), "95 of 100")],
        "s",
    ),
    Panel("vLLM: cache in use", [(f"vllm:kv_cache_usage_perc{_ONE}", "share")], "percentunit"),
    Panel(
        "vLLM: prompt tokens from the cache",
        [(f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}", "share")],
        "percentunit",
    ),
    Panel("vLLM: preempted requests", [(_rate("vllm:num_preemptions_total"), "a second")]),
)

_WATCHED = 'up{job="llm-fleet"}'
DASHBOARDS: Mapping[str, tuple[str, Sequence[Panel], Sequence[Variable]]] = {
    "fleet": ("LLM fleet", FLEET, ()),
    "endpoint": (
        "LLM endpoint",
        ENDPOINT,
        (
            Variable("host", _WATCHED, "host"),
            Variable("endpoint", 'up{job="llm-fleet", host=~"$host"}', "endpoint"),
        ),
    ),
}


def _variable(variable: Variable) -> dict[str, Any]:
    asked = f"label_values({variable.query}, {variable.label})"
    return {
        "datasource": _SOURCE,
        "definition": asked,
        "name": variable.name,
        "query": {"query": asked, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "none"}
    if panel.kind == "table":
        return {"showHeader": True}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def _panels(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """The panels from left to right, and in the next row where one has no room."""
    found, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _WIDTH:
            x, y = 0, y + _HEIGHT
        found.append(
            {
                "datasource": _SOURCE,
                "description": panel.says,
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "gridPos": {"h": _HEIGHT, "w": panel.width, "x": x, "y": y},
                "id": number,
                "options": _options(panel),
                "targets": [
                    {
                        "datasource": _SOURCE,
                        "expr": query,
                        "format": "table" if panel.kind == "table" else "time_series",
                        "instant": panel.kind != "timeseries",
                        "legendFormat": legend,
                        "range": panel.kind == "timeseries",
                        "refId": chr(ord("A") + place),
                    }
                    for place, (query, legend) in enumerate(panel.series)
                ],
                "title": panel.title,
                "type": panel.kind,
            }
        )
        x += panel.width
    return found


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it."""
    title, panels, variables = DASHBOARDS[name]
    source = {"label": "Prometheus", "name": "datasource", "query": "prometheus", "type": "datasource"}
    return {
        "editable": False,
        "graphTooltip": 1,
        "panels": _panels(panels),
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["llm-fleet"],
        "templating": {"list": [source, *map(_variable, variables)]},
        "time": {"from": "now-6h", "to": "now"},
        "title": title,
        "uid": f"llm-fleet-{name}",
    }


def queries(board: Mapping[str, Any]) -> dict[str, str]:
    """Every query of a dashboard, by where it stands."""
    found = {
        f"{board['title']}: {panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel["targets"]
    }
    for variable in board["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((.*), \w+\)", variable.get("definition", ""))
        if asked:
            found[f"{board['title']}: variable {variable['name']}"] = asked.group(1)
    return found


def main() -> int:
    """Write, or compare and exit 1 where a file is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name what is out of date and exit 1")
    check = parser.parse_args().check
    stale = []
    for name in DASHBOARDS:
        path, text = FOLDER / f"{name}.json", json.dumps(dashboard(name), indent=2, sort_keys=True) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is out of date: run python tools/dashboards.py" if check else f"{name} written")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
