# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario's host with the driver on it, and the table that is printed at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "collections"))

from driver import Driver
from fleet import Fleet
from record import Record


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """The faults scenario's host and endpoint."""
    return Fleet("faults", "drill")


@pytest.fixture(scope="session")
def driver(fleet: Fleet) -> Iterator[Driver]:
    """The driver on the host, with the declared era deployed anew so that going back to it holds but shortly."""
    with Driver(fleet) as here:
        settled = here.order("settle")
        assert settled["truth"] == "whole" and "Paris" in settled["answer"], settled
        yield here


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest) -> Iterator[Record]:
    """What each fault took; printed when all have run, and written to measured.yml where LLM_FLEET_RECORD is set."""
    here = Record()
    yield here
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{here.table()}")
    here.write()
