# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario's host with the models on it, and every boot's log, for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "collections"))

from boots import Boot, boot_all, put_models
from cases import CASES
from fleet import Fleet


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """The fit scenario's host with the models; it has a runtime and no endpoint."""
    here = Fleet("fit", "none")
    put_models(here)
    return here


@pytest.fixture(scope="session")
def boots(fleet: Fleet) -> dict[str, Boot]:
    """What a real llama-server did in each case."""
    return boot_all(fleet, CASES)
