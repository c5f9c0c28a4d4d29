# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run


def test_streams_status_and_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    done = run(["sh", "-c", 'echo "$LC_ALL"; echo oops >&2; exit 3'], check=False)
    assert (done.rc, done.stdout, done.stderr) == (3, "C.UTF-8\n", "oops\n")


def test_an_env_that_is_given_is_the_whole_env() -> None:
    assert run(["/usr/bin/env"], env={"A": "1"}).stdout == "A=1\n"


def test_no_shell_reads_the_arguments() -> None:
    assert run(["printf", "%s", "$HOME; `id`"]).stdout == "$HOME; `id`"


def test_standard_input_is_empty() -> None:
    assert run(["cat"], timeout_s=5).stdout == ""


def test_bytes_that_are_no_text_do_not_break_it() -> None:
    assert run(["printf", r"\377ok"]).stdout == "\ufffdok"


def test_a_failure_shows_command_status_and_the_end_of_its_words() -> None:
    script = "i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i+1)); done; exit 4"
    with pytest.raises(FleetError) as caught:
        run(["sh", "-c", script])
    assert "sh -c 'i=0" in caught.value.what
    found = str(caught.value.found)
    assert found.startswith("4: line 10\n")
    assert found.endswith("line 29")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(FleetError, match="no-such-program is not installed"):
        run(["no-such-program", "--flag"], check=False)


def test_a_missing_folder_is_not_taken_for_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="expected a directory") as caught:
        run(["true"], cwd=str(tmp_path / "gone"))
    assert "not installed" not in caught.value.message


def test_cwd(tmp_path: Path) -> None:
    assert run(["pwd", "-P"], cwd=str(tmp_path)).stdout.strip() == str(tmp_path.resolve())


@pytest.mark.parametrize("script", ["sleep 30", "sleep 30 & echo $!; wait"])
def test_a_time_out_ends_the_command_and_its_children(script: str) -> None:
    started = time.monotonic()
    with pytest.raises(FleetError, match=r"did not end; expected an end within 0\.3 s"):
        run(["sh", "-c", script], timeout_s=0.3)
    assert time.monotonic() - started < 5


def test_nothing_that_was_started_outlives_a_time_out(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import time; time.sleep(1.0); open({str(mark)!r}, 'w')"
    with pytest.raises(FleetError):
        run(["sh", "-c", f'{sys.executable} -c "{code}" & wait'], timeout_s=0.2)
    time.sleep(1.3)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("stdout", "stderr", "tail"), [("out", "", "out"), ("out", " \n", "out"), ("out", "err\n", "err"), ("", "", "")]
)
def test_tail(stdout: str, stderr: str, tail: str) -> None:
    assert Completed(("x",), 1, stdout, stderr).tail == tail
