# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults as data, and how many seconds each took to be seen."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "data"
MEASURED = FOLDER / "measured.yml"
FAULTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "faults.yml").read_text(encoding="utf-8"))


def caught_by(fault: dict[str, Any]) -> str:
    """The gate or link in words, as the docs have it."""
    if "link" in fault:
        return f"truth: {fault['link']}"
    return f"gate {fault['gate']}"


@dataclass
class Record:
    """Seconds from the beginning of the run that meets a fault until it is known, by the fault's id."""

    seconds: dict[str, float] = field(default_factory=dict)

    def table(self) -> str:
        """For the terminal."""
        rows = [(each["fault"], caught_by(each), f"{self.seconds[each['id']]:.1f}")
                for each in FAULTS if each["id"] in self.seconds]  # fmt: skip
        rows = [("FAULT", "CAUGHT BY", "SECONDS TO RED"), *rows]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}" for row in rows)

    def write(self) -> None:
        """Keep the seconds for the docs, where that is asked for; those of faults that did not run stay."""
        if not os.environ.get("LLM_FLEET_RECORD"):
            return
        before = yaml.safe_load(MEASURED.read_text(encoding="utf-8"))["seconds"] if MEASURED.exists() else {}
        seconds = {**before, **self.seconds}
        known = {each["id"]: seconds[each["id"]] for each in FAULTS if each["id"] in seconds}
        kept = {"at": datetime.now(UTC).strftime("%Y-%m-%d"), "seconds": known}
        head = "---\n# Written by: LLM_FLEET_RECORD=1 molecule test -s faults; then tools/docs.\n"
        MEASURED.write_text(head + yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
