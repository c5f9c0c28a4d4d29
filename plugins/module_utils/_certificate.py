# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record that an era was proven: what was seen, bound to what it was seen of, and which proof is lost by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._era import blueprint_digest

__all__ = ["PROBING", "certify", "declaration", "expired", "outdated", "probing_of"]

# The probes' own version: raised where one asks for more or judges otherwise. What was proven by less is proven anew.
PROBING = 2


def declaration(facts: Mapping[str, Any]) -> str:
    """The digest of what the endpoint has to be seen to do: what its clients were promised and its probes."""
    return blueprint_digest({key: facts.get(key) or {} for key in ("client", "probes")})


def probing_of(certificate: Mapping[str, Any] | None) -> int:
    """The version of the probes that a certificate rests on."""
    return int((certificate or {}).get("probing", 1))


def outdated(certificate: Mapping[str, Any] | None) -> bool:
    """Whether it rests on older probes than these; newer ones are no fault, so that an older program judges none."""
    return probing_of(certificate) < PROBING


def certify(
    era_digest: str,
    facts: Mapping[str, Any],
    *,
    truth: Sequence[Mapping[str, Any]],
    probes: Sequence[Mapping[str, Any]],
    ledger: Mapping[str, Any],
    gap_s: float,
    fit: Mapping[str, Any] | None,
    probing: int | None = None,
) -> dict[str, Any]:
    """The certificate of an era: times, verdicts with their evidence, memory; ``digest`` is over all of it and the era,
    and so over env, unit, runtime and payload. ``probing`` is less than :data:`PROBING` where verdicts are older."""
    told: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "declaration": declaration(facts),
        "probing": PROBING if probing is None else probing,
        "truth": list(truth),
        "probes": list(probes),
        "ledger": dict(ledger),
        "gap_s": gap_s,
    }
    if fit is not None:
        told["fit"] = dict(fit)
    return {**told, "digest": blueprint_digest({"era": era_digest, **told})}


def expired(
    certificate: Mapping[str, Any] | None, era_digest: str, facts: Mapping[str, Any], names: Sequence[str]
) -> set[str]:
    """The probes among ``names`` that have no proof: all where the certificate is none, is of another era or of older
    probes, was changed, or where something else is declared by now (``facts`` with today's client and probes); else
    those that it does not have as passed."""
    if not certificate:
        return set(names)
    told = {key: value for key, value in certificate.items() if key != "digest"}
    whole = certificate.get("digest") == blueprint_digest({"era": era_digest, **told})
    if not whole or outdated(certificate) or certificate.get("declaration") != declaration(facts):
        return set(names)
    passed = {probe["probe"] for probe in certificate["probes"] if probe["verdict"] != "fail"}
    return set(names) - passed
