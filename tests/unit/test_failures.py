# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/failures.py: of a red step, the end of CI's output names the test, the line and the cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RED = """
import pytest

@pytest.fixture
def host():
    raise OSError("no host")

def test_set_up(host):
    pass

def test_played():
    text = "PLAY [First] " + "ok " * 400 + "MODEL_FILE cannot be read"
    assert not text, text

def test_sound():
    pass
"""


@pytest.fixture
def told(tmp_path):
    def tell(*args: str) -> list[str]:
        command = [sys.executable, str(ROOT / "tools" / "failures.py"), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    return tell


def run_pytest(folder: Path, source: str) -> Path:
    (folder / "test_red.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={folder}/x.xml", "."]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False)
    return folder / "x.xml"


def test_each_test_is_named_with_its_line_and_cause(tmp_path, told):
    xml = run_pytest(tmp_path, RED)
    lines = told("molecule x", str(tmp_path / "log"), str(xml))
    assert [line.partition(": test_")[0] for line in lines] == ["FAILED: molecule x"] * 2
    set_up, played = lines
    assert "test_set_up (test_red.py:6): " in set_up and "no host" in set_up
    assert "test_played (test_red.py:13): AssertionError: PLAY [First] " in played
    assert "MODEL_FILE cannot be read" in played and " [...] " in played and len(played) < 420


def test_what_is_left_off_is_counted(tmp_path, told):
    xml = run_pytest(tmp_path, "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_n(n): assert n > 9\n")
    lines = told("unit", str(tmp_path / "log"), str(xml))
    assert len(lines) == 7 and lines[-1] == "FAILED: unit: and 3 more"


def test_without_a_red_test_the_log_tells(tmp_path, told):
    log = tmp_path / "log"
    log.write_text(
        "TASK [Boot]\n  \x1b[2m│\x1b[0m fatal: [host]: FAILED! => no space\nnothing\n==> FAILED after 3 s: x\n\n"
    )
    green = run_pytest(tmp_path, "def test_sound(): pass\n")
    cut = tmp_path / "cut.xml"
    cut.write_text("<testsuites><testsuite")
    for more in ([], [str(tmp_path / "none.xml")], [str(green)], [str(cut)]):
        lines = told("molecule x", str(log), *more)
        assert lines == [
            "FAILED: molecule x: fatal: [host]: FAILED! => no space", "FAILED: molecule x: nothing"
        ]  # fmt: skip


def test_where_no_line_names_an_error_the_last_ones_tell(tmp_path, told):
    log = tmp_path / "log"
    log.write_text("==> ruff check\nF401 unused: os\n --> x.py:1:8\n==> FAILED after 0 s: ruff check\n")
    assert told("ruff check", str(log)) == ["FAILED: ruff check: F401 unused: os", "FAILED: ruff check: --> x.py:1:8"]


def test_a_step_that_said_nothing_is_named_all_the_same(tmp_path, told):
    (tmp_path / "log").write_text("")
    assert told("ruff check", str(tmp_path / "log")) == ["FAILED: ruff check: it said nothing"]
