# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario's host, for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))

from fleet import Fleet


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """The r9v scenario's host and endpoint."""
    return Fleet("r9v", "standin-primary")
