# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The series that a host tells of its endpoints and cards, and Prometheus' text format for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["FAMILIES", "Sample", "text"]

# Name: (type, help), in the order in which they are written.
FAMILIES = {
    "llm_fleet_facts_timestamp_seconds": ("gauge", "When these facts were read, in seconds since 1970."),
    "llm_fleet_facts_errors": ("gauge", "Endpoints and card drivers that could not be read."),
    "llm_fleet_card_total_bytes": ("gauge", "Memory of the card by its driver."),
    "llm_fleet_card_free_bytes": ("gauge", "Free memory of the card by its driver."),
    "llm_fleet_card_floor_bytes": ("gauge", "Memory that the inventory wants free on the card."),
    "llm_fleet_era_info": ("gauge", "1; the labels tell what is deployed."),
    "llm_fleet_endpoint_start_time_seconds": ("gauge", "When the unit became active, in seconds since 1970, or 0."),
    "llm_fleet_unit_restarts_total": ("counter", "How often systemd brought the unit back since it was started."),
    "llm_fleet_endpoint_slots": ("gauge", "Requests that the endpoint works on at once, as deployed."),
    "llm_fleet_endpoint_acceptance_floor": ("gauge", "Least share of drafted tokens accepted, where declared."),
    "llm_fleet_endpoint_true": ("gauge", "1 where what runs is what was deployed."),
    "llm_fleet_endpoint_metrics_status": ("gauge", "HTTP status of /metrics; 501: it is off; 0: no answer."),
    "llm_fleet_certificate_timestamp_seconds": ("gauge", "When the deployed era was proven, in seconds since 1970."),
    "llm_fleet_certificate_expired_probes": ("gauge", "Declared capabilities without a proof that holds."),
    "llm_fleet_last_run_timestamp_seconds": ("gauge", "When a deploy last went through the gates."),
    "llm_fleet_last_run_red": ("gauge", "1 where the last deploy met a red gate, which the label names."),
}


@dataclass(frozen=True)
class Sample:
    """One value of a family of :data:`FAMILIES`."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """As the text format writes it."""
        escaped = {
            key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            for key, value in self.labels.items()
        }
        labels = ",".join(f'{key}="{value}"' for key, value in escaped.items())
        # repr of a float is the shortest text that reads back as the same number
        number = str(int(self.value)) if float(self.value).is_integer() else repr(float(self.value))
        return f"{self.name}{{{labels}}} {number}" if labels else f"{self.name} {number}"


def text(samples: Iterable[Sample]) -> str:
    """All samples, each family once with its help and type; a name that is no family's is a KeyError."""
    by_name: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    for sample in samples:
        by_name[sample.name].append(sample)
    lines = []
    for name, found in by_name.items():
        if found:
            kind, says = FAMILIES[name]
            lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}", *(sample.line() for sample in found)]
    return "\n".join(lines) + "\n"
