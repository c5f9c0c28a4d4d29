# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a start failed: starts recorded on a systemd host, and states of them that only last a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._diagnosis import diagnose
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import UnitState, parse_show
from goldens import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from test_systemd import shown

STARTS = GOLDEN / "starts"


def recorded(name: str) -> tuple[UnitState, str]:
    """The state and the journal of one recorded start."""
    state, _, journal = (STARTS / f"{name}.txt").read_text().partition("\n\n")
    return parse_show(state), journal


# (record, the diagnosis' name, a line that told)
RECORDED = [
    ("auto-restart", "crash loop", "code=exited, status=1/FAILURE"),
    ("auto-restart-segv", "crash loop", "code=killed, status=11/SEGV"),
    ("badsetting", "unit not loaded", "Neither a valid executable name"),
    ("chdir", "200/CHDIR", "Changing to the requested working directory failed"),
    ("crash-loop", "start-limit-hit", "Start request repeated too quickly"),
    ("crash-loop-segv", "start-limit-hit", "Start request repeated too quickly"),
    ("credentials", "243/CREDENTIALS", "Failed at step CREDENTIALS"),
    ("e64", "launcher refused its arguments (exit status 64)", "serve-llamacpp: arguments were given"),
    ("e66", "launcher misses a file (exit status 66)", "serve-llamacpp: MODEL_FILE"),
    ("e78", "launcher refused the env (exit status 78)", "serve-llamacpp: CTX_SZE"),
    ("early-exit", "early exit", "Deactivated successfully"),
    ("exec-crlf", "203/EXEC", "Failed at step EXEC"),
    ("exec-missing", "203/EXEC", "Unable to locate executable"),
    ("exec-missing-loop", "start-limit-hit", "Unable to locate executable"),
    ("exec-mode", "203/EXEC", "Permission denied"),
    ("exec-noshebang", "203/EXEC", "Exec format error"),
    ("exec-shebang", "203/EXEC", "Failed to execute"),
    ("exec-simple", "203/EXEC", "Failed at step EXEC"),
    ("exit-status", "exit status 1", "code=exited, status=1/FAILURE"),
    ("group", "216/GROUP", "Failed to determine group credentials"),
    ("namespace", "226/NAMESPACE", "/nope/there"),
    ("protocol", "protocol", ""),
    ("resources", "start-limit-hit", "Failed to load environment files"),
    ("running", "not ready", ""),
    ("signal-abrt", "killed by ABRT", "status=6/ABRT"),
    ("signal-kill", "killed by KILL", "status=9/KILL"),
    ("signal-segv", "killed by SEGV", "status=11/SEGV"),
    ("start-limit", "start-limit-hit", "Start request repeated too quickly"),
    ("start-timeout", "start timeout", "start operation timed out"),
    ("user", "217/USER", "Failed to determine user credentials"),
    ("watchdog", "watchdog", "Watchdog timeout"),
]


@pytest.mark.parametrize(("record", "name", "line"), RECORDED, ids=[row[0] for row in RECORDED])
def test_a_recorded_start_is_named(record: str, name: str, line: str) -> None:
    found = diagnose(*recorded(record), "llamacpp")
    assert found.name == name
    assert not line or any(line in each for each in found.evidence)
    assert found.meaning and found.remedy
    assert found.words.startswith(name)


def test_every_record_is_tried() -> None:
    assert {row[0] for row in RECORDED} == {path.stem for path in STARTS.iterdir()}


# From the state alone, as while systemd starts a unit again or where its log is gone: (state, journal, name, word).
STATES = [
    ({"Result": "oom-kill", "ActiveState": "failed", "SubState": "failed"}, "", "OOM kill", "host memory"),
    ({"Result": "resources", "ActiveState": "failed", "SubState": "failed"}, "", "resources", "EnvironmentFile"),
    ({"Result": "start-limit-hit", "ActiveState": "failed", "SubState": "failed"}, "", "start-limit-hit", "too often"),
    ({"Result": "timeout", "ActiveState": "failed", "SubState": "failed"}, "", "start timeout", "in the time"),
    (
        {"Result": "timeout", "ActiveState": "failed", "SubState": "failed"},
        "chat.service: State 'stop-sigterm' timed out. Killing.",
        "stop timeout",
        "did not stop",
    ),
    # Started anew: systemd's own state has forgotten how the one before ended, the log has not.
    (
        {"NRestarts": "2"},
        "chat.service: Main process exited, code=exited, status=1/FAILURE",
        "crash loop",
        "exit status 1, and systemd starts it again (2 times so far)",
    ),
    (
        {"NRestarts": "1"},
        "chat.service: Main process exited, code=dumped, status=6/ABRT",
        "crash loop",
        "ABRT ended it and left a core dump",
    ),
    ({"NRestarts": "1"}, "chat.service: Main process exited, code=exited, status=203/EXEC", "203/EXEC", "1 times"),
    (
        {"NRestarts": "1"},
        "chat.service: A process of this unit has been killed by the OOM killer.",
        "OOM kill",
        "1 times",
    ),
    ({"NRestarts": "1"}, "", "crash loop", "did not come to run"),
    ({"ActiveState": "activating", "SubState": "start", "MainPID": "7"}, "", "not ready", "activating (start)"),
    (
        {"ActiveState": "inactive", "SubState": "dead", "ExecMainCode": "1"},
        "Stopping chat.service...\nchat.service: Deactivated successfully.\nStopped chat.service.",
        "stopped",
        "somebody",
    ),
    ({"ActiveState": "inactive", "SubState": "dead", "InvocationID": ""}, "", "early exit", "status 0"),
    (
        {"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "1", "ExecMainStatus": "234"},
        "",
        "234",
        "could not set up",
    ),
    (
        {"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "99"},
        "",
        "killed by signal 99",
        "signal 99",
    ),
    ({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}, "", "unit not loaded", "not-found"),
    ({"LoadState": "masked", "ActiveState": "inactive", "SubState": "dead"}, "", "unit not loaded", "masked"),
]


@pytest.mark.parametrize(("changes", "journal", "name", "word"), STATES)
def test_a_state_is_named(changes: dict[str, str], journal: str, name: str, word: str) -> None:
    found = diagnose(parse_show(shown(**{"NRestarts": "0", **changes})), journal, "llamacpp")
    assert found.name == name
    assert word in found.meaning


def test_the_engines_words_explain_how_it_ended() -> None:
    state, journal = recorded("auto-restart")
    log = journal.replace(
        "main: exiting", "srv start: couldn't bind HTTP server socket, hostname: 0.0.0.0, port: 7770\nmain: exiting"
    )
    found = diagnose(state, log, "llamacpp")
    assert found.words.startswith("crash loop (port-taken): it ended with exit status 1, and systemd starts it again")
    assert "another process holds the address" in found.meaning
    assert "ss -ltnp" in found.remedy
    assert any("couldn't bind" in line for line in found.evidence)
    assert [cause.signature.name for cause in found.causes] == ["port-taken", "model-not-loaded"]
    told = found.as_dict()
    assert told["name"] == "crash loop"
    assert told["causes"][0]["name"] == "port-taken"
    assert set(told) == {"name", "meaning", "remedy", "evidence", "causes"}


def test_signatures_are_the_engines_own() -> None:
    state, journal = recorded("exit-status")
    log = f"Container already exists: x\n{journal}"
    assert not diagnose(state, log.replace("exiting due to model loading error", ""), "llamacpp").causes
    assert diagnose(state, log, "r9v").causes[0].signature.name == "container-name-taken"


def test_evidence_is_short_and_said_once() -> None:
    state, journal = recorded("exit-status")
    line = "x.service: Failed at step EXEC spawning /x: No such file or directory"
    many = "\n".join([line] * 50 + [f"{line} {number}" for number in range(50)])
    evidence = diagnose(state, f"{many}\n{journal}", "llamacpp").evidence
    assert len(evidence) == len(set(evidence)) == 8


@settings(deadline=None)
@given(
    st.sampled_from(sorted(path.stem for path in STARTS.iterdir())),
    st.text(max_size=200),
    st.integers(0, 9),
    st.sampled_from(["0", "1", "2", "3", ""]),
    st.integers(0, 255),
)
def test_any_state_and_log_get_a_diagnosis(record: str, log: str, restarts: int, code: str, status: int) -> None:
    state = replace(recorded(record)[0], n_restarts=restarts, exit_code=code, exit_status=str(status))
    found = diagnose(state, log, "r9v")
    assert found.name and found.meaning and found.remedy
