# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What failed, in a few short lines for the end of a long output, of which some places keep only the end.

    failures.py NAME LOG [JUNIT_XML]

``NAME`` is the step that failed, ``LOG`` what it printed. Where pytest left its XML with failures, these are told;
else the lines of the log in which Ansible or molecule tell of an error.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

MOST = 6  # lines of one step
HEAD, TAIL = 90, 230  # characters of a long message: a playbook's output begins with its plays and ends with the cause
ERRORS = re.compile(r"(fatal:|FAILED|\[ERROR\]|ERROR +|error:|CRITICAL|Traceback|Error:)")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def short(text: str) -> str:
    """One line of at most ``HEAD + TAIL`` characters, its middle left out."""
    words = " ".join(text.split())
    return words if len(words) <= HEAD + TAIL else f"{words[:HEAD]} [...] {words[-TAIL:]}"


def of_pytest(xml: Path) -> list[str]:
    """``test (file:line): message`` for each test that failed or could not be set up; none of a file cut short."""
    told: list[str] = []
    try:
        cases = list(ET.parse(xml).iter("testcase"))
    except ET.ParseError:  # pytest was killed: the log tells
        return told
    for case in cases:
        for kind in ("failure", "error"):
            for fault in case.iter(kind):
                text = fault.text or ""  # whole, where the attribute "message" is cut short
                where = re.findall(r"^(\S+\.py:\d+): ", text, re.MULTILINE)
                said = " ".join(re.findall(r"^E +(.*)", text, re.MULTILINE)) or fault.get("message") or text or kind
                place = f" ({Path(where[-1]).name})" if where else ""
                told.append(f"{case.get('name')}{place}: {short(said)}")
    return told


def of_log(log: Path) -> list[str]:
    """The lines that tell of an error and the last line; all lines where none does."""
    lines = [COLOURS.sub("", line).strip(" │") for line in log.read_text(errors="replace").splitlines()]
    lines = [short(line) for line in lines if line and not line.startswith("==> ")]  # those are of tools/test itself
    hits = [line for line in lines if ERRORS.search(line)]
    return list(dict.fromkeys([*hits, lines[-1]] if hits else lines))


def main() -> None:
    """Print them, the step's name before each; the first ones matter most of tests, the last ones of a log."""
    name, log, *xml = sys.argv[1:]
    told = of_pytest(Path(xml[0])) if xml and Path(xml[0]).exists() else []
    told, left_off = (told[:MOST], len(told) - MOST) if told else (of_log(Path(log))[-MOST:], 0)
    for line in told or ["it said nothing"]:
        print(f"FAILED: {name}: {line}")
    if left_off > 0:
        print(f"FAILED: {name}: and {left_off} more")


if __name__ == "__main__":
    main()
