# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which proof an era's certificate still is."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _certificate
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import certify, expired, outdated
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import blueprint_digest

FACTS: dict[str, Any] = {"client": {"context_window": 2048}, "probes": {}}
PROBES = [
    {"probe": "chat", "verdict": "pass", "evidence": "answered"},
    {"probe": "tools", "verdict": "not-declared", "evidence": "absent"},
]


def made() -> dict[str, Any]:
    return certify("e1", FACTS, truth=[{"name": "slots"}], probes=PROBES, ledger={}, gap_s=1.5, fit={"host": {}})


def test_what_passed_needs_no_new_proof() -> None:
    certificate = made()
    assert certificate["at"].endswith("+00:00") and certificate["fit"] == {"host": {}}
    assert expired(certificate, "e1", FACTS, ["chat", "tools"]) == set()
    assert expired(certificate, "e1", FACTS, ["chat", "vision"]) == {"vision"}
    assert "fit" not in certify("e", FACTS, truth=[], probes=[], ledger={}, gap_s=0, fit=None)


@pytest.mark.parametrize(
    ("certificate", "era", "facts"),
    [
        (None, "e1", FACTS),
        ({}, "e1", FACTS),
        (made(), "e2", FACTS),
        ({**made(), "gap_s": 0.1}, "e1", FACTS),
        ({**made(), "probes": [*PROBES, {"probe": "vision", "verdict": "pass"}]}, "e1", FACTS),
        (made(), "e1", {**FACTS, "probes": {"max_tokens": 512}}),
        (made(), "e1", {**FACTS, "client": {"context_window": 1024}}),
    ],
)
def test_a_certificate_of_something_else_proves_nothing(certificate: Any, era: str, facts: dict[str, Any]) -> None:
    assert expired(certificate, era, facts, ["chat", "tools"]) == {"chat", "tools"}


def test_a_probe_that_failed_is_not_proven() -> None:
    failed = certify("e1", FACTS, truth=[], probes=[{"probe": "chat", "verdict": "fail"}], ledger={}, gap_s=0, fit=None)
    assert expired(failed, "e1", FACTS, ["chat"]) == {"chat"}


@pytest.mark.parametrize(("by", "lost"), [(0, set()), (1, {"chat"}), (-1, set())])
def test_what_older_probes_saw_is_no_proof(monkeypatch: pytest.MonkeyPatch, by: int, lost: set[str]) -> None:
    """A program with older probes, as the one that tells Prometheus may be, judges no newer certificate."""
    certificate = made()
    monkeypatch.setattr(_certificate, "PROBING", _certificate.PROBING + by)
    assert expired(certificate, "e1", FACTS, ["chat"]) == lost
    assert outdated(certificate) == bool(lost)


def test_a_certificate_that_names_no_probes_is_of_the_first_ones() -> None:
    certificate = {key: value for key, value in made().items() if key not in ("probing", "digest")}
    certificate["digest"] = blueprint_digest({"era": "e1", **certificate})
    assert expired(certificate, "e1", FACTS, ["chat"]) == {"chat"}
