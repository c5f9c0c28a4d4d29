# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario's host, for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "collections"))

from fleet import Fleet


@pytest.fixture(scope="session")
def whole() -> Fleet:
    """The endpoint with a projector, an adapter, a drafter, two slots and a key."""
    return Fleet("probes", "toy-whole")


@pytest.fixture(scope="session")
def echo() -> Fleet:
    """The text-only endpoint that drafts by n-grams."""
    return Fleet("probes", "toy-echo")
