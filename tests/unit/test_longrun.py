# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress on the user's screen: the lines, when they come, and a real background job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import CONTROLLER
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_flags import flags_of_schema
from ansible_collections.dank.llm_fleet.plugins.plugin_utils._longrun import (
    Lines,
    LongRunAction,
    amount,
    controller,
    duration,
    file_line,
    left_nothing,
    parse_poll,
    progress_line,
)

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "tests" / "fixtures" / "tiny_engine"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (190, "3m10s"), (7500, "2h05m"), (-1, "0s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (131, 218, "steps", "131/218 steps"),
        (0, 0, "", ""),
        (0, 0, "B", ""),
        (1_234_000_000, 5_000_000_000, "B", "1.2/5.0 GB"),
        (37_386_587, 37_386_587, "B", "37/37 MB"),
        (12_300_000, 0, "B", "12 MB"),
        (500, 2000, "B", "0.5/2.0 kB"),
    ],
)
def test_amounts(done: int, total: int, unit: str, text: str) -> None:
    assert amount(done, total, unit) == text


STEPS = {"step": "compile", "done": 131, "total": 218, "unit": "steps", "text": "", "elapsed_s": 190.2, "eta_s": 125.0}


@pytest.mark.parametrize(
    ("state", "rate", "line"),
    [
        (STEPS, None, "compile 131/218 steps, 3m10s, about 2m05s left"),
        ({"step": "configure", "elapsed_s": 2}, None, "configure, 2s"),
        ({}, None, "at work, 0s"),
        (
            {"step": "fetch", "text": "m.gguf", "done": 10**9, "total": 5 * 10**9, "unit": "B", "elapsed_s": 100},
            4e7,
            "fetch 1.0/5.0 GB, m.gguf, 40 MB/s, 1m40s, about 1m40s left",
        ),
        ({"step": "fetch", "done": 5, "total": 5, "unit": "B", "elapsed_s": 1, "eta_s": 9}, 1.0, None),
    ],
)
def test_lines(state: dict[str, Any], rate: float | None, line: str | None) -> None:
    made = progress_line("dankserver", "runtime cpu", state, rate)
    if line is None:
        assert "left" not in made
    else:
        assert made == f"[dankserver] runtime cpu: {line}"


def test_a_step_shows_at_once_and_its_progress_every_five_seconds() -> None:
    lines = Lines("h", "payload p")

    def at(now: float, step: str, done: int) -> str | None:
        state = {"step": step, "done": done, "total": 10**9, "unit": "B", "elapsed_s": now}
        return lines.feed(state, now)

    assert at(0, "fetch", 0) is not None
    assert at(2, "fetch", 10**8) is None
    line = at(6, "fetch", 3 * 10**8)
    assert line is not None and "50 MB/s" in line and "about 14s left" in line
    assert at(12, "fetch", 3 * 10**8) is None  # stalled: nothing new to say
    line = at(13, "verify", 1)
    assert line is not None and "MB/s" not in line


def test_quiet_says_nothing() -> None:
    assert Lines("h", "payload p", quiet=True).feed({"step": "fetch", "done": 1, "total": 2}, 0) is None


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            {"name": "a", "done": 10**9, "total": 3 * 10**9, "phase": "downloading", "rate": 10**8},
            "a: downloading 1.0/3.0 GB, 100 MB/s, about 20s left",
        ),
        ({"name": "a", "done": 0, "total": 3 * 10**9, "phase": "connecting"}, "a: connecting 0.0/3.0 GB"),
        (
            {"name": "a", "done": 10**6, "total": 10**7, "phase": "waiting", "note": "status 429, again in 5 s"},
            "a: status 429, again in 5 s 1.0/10 MB",
        ),
        ({}, ": "),
    ],
)
def test_the_line_of_a_file(file: dict[str, Any], line: str) -> None:
    assert file_line("h", file) == f"[h]   {line}"


def test_files_in_work_stand_below_the_whole() -> None:
    files = [{"name": name, "done": 1, "total": 10**9, "phase": "downloading"} for name in ("a", "b")]
    state = {"step": "fetching", "done": 2, "total": 2 * 10**9, "unit": "B", "rate": 10**8, "files": files}
    told = Lines("h", "payload p").feed(state, 0)
    assert told is not None and [line[:30] for line in told.splitlines()][1:] == [
        "[h]   a: downloading 0.0/1.0 G",
        "[h]   b: downloading 0.0/1.0 G",
    ]
    assert "100 MB/s" in told.splitlines()[0] and "about 20s left" in told.splitlines()[0]
    last = Lines("h", "payload p").feed({**state, "text": "1 of 2 files", "files": files[:1]}, 0)
    assert last is not None and last.splitlines()[1].startswith("[h]   a: downloading")
    waiting = Lines("h", "payload p").feed({**state, "files": [{**files[0], "note": "again in 5 s"}]}, 0)
    assert waiting is not None and "again in 5 s" in waiting


def test_the_only_file_gives_the_whole_its_phase() -> None:
    lines = Lines("h", "payload p")

    def at(now: float, phase: str, done: int) -> str | None:
        file = {"name": "a", "done": done, "total": 9, "phase": phase, "note": ""}
        whole = {"step": "fetching", "text": "a", "done": done, "total": 9, "unit": "B", "elapsed_s": now}
        return lines.feed({**whole, "files": [file]}, now)

    told = [at(0, "connecting", 0), at(6, "downloading", 4), at(12, "downloading", 9), at(18, "hashing", 9)]
    assert [line and line.split()[3] for line in told] == ["connecting", "downloading", "downloading", "hashing"]
    assert all(line and "\n" not in line for line in told)
    assert at(24, "hashing", 9) is None


RUNNING = '{"started": true, "finished": false, "ansible_job_id": "j1.2"}'
CUT = "--llm-fleet--"


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        (f'{{"step": "x"}}{CUT}\n{RUNNING}{CUT}\nalive\n', ({"step": "x"}, False, True)),
        (f"{CUT}\n{RUNNING}{CUT}\n", (None, False, False)),
        (f'{CUT}\n{{"changed": true}}{CUT}\nalive\n', (None, True, True)),
        (f"{CUT}\n{CUT}\nalive\n", (None, False, True)),
        (f'{{"step": "x{CUT}\n{{"chan{CUT}\n', (None, False, False)),
        ("", (None, False, False)),
    ],
)
def test_one_look_at_the_host(output: str, seen: tuple[Any, bool, bool]) -> None:
    assert parse_poll(output) == seen


@pytest.mark.parametrize(
    ("done", "nothing"),
    [
        ({"failed": True, "cmd": "AnsiballZ_endpoint.py", "data": "", "msg": "Traceback"}, True),
        ({"failed": True, "cmd": "AnsiballZ_endpoint.py", "data": " \n", "stderr": "Killed"}, True),
        ({"failed": True, "cmd": "x", "data": "some words"}, False),
        ({"failed": True, "msg": "a module's own"}, False),
        ({"changed": True, "cmd": "x", "data": ""}, False),
    ],
)
def test_a_module_that_left_no_result(done: dict[str, Any], nothing: bool) -> None:
    assert left_nothing(done) is nothing


# --- the real thing: ansible, its async wrapper, a tiny build


def play(tmp_path: Path, *extra: str, **args: Any) -> subprocess.Popen[str]:
    """Start ``ansible localhost -m runtime_build`` with async results and remote folders in the test's own place."""
    if "cmake" in args:  # what the proof of the build asks --help for
        args["cmake"] = {"TINY_FLAGS": " ".join(flags_of_schema()), **args["cmake"]}
    whole = {
        "name": "tiny",
        "source": {"kind": "path", "path": str(tmp_path / "engine")},
        "prefix": str(tmp_path / "runtimes"),
        "jobs": 1,
        **args,
    }
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ASYNC_DIR": str(tmp_path / "async"),
        "ANSIBLE_REMOTE_TMP": str(tmp_path / "remote"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [sys.executable, "-m", "ansible", "adhoc", "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", "dank.llm_fleet.runtime_build"]
    return subprocess.Popen(
        [*command, "-a", json.dumps(whole), *extra],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process: subprocess.Popen[str]) -> tuple[str, str, dict[str, Any]]:
    """``(stdout, stderr, the module's result)`` of a play that ended."""
    out, err = process.communicate(timeout=180)
    assert "=> {" in out, f"{out}\n{err}"
    return out, err, json.JSONDecoder().raw_decode(out[out.index("=> {") + 3 :])[0]


needs_tools = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("cmake", "ninja", "c++", "readelf")), reason="cmake, ninja, g++, binutils"
)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The tiny engine in the test's own place."""
    shutil.copytree(TINY, tmp_path / "engine")
    return tmp_path


@needs_tools
def test_a_build_in_the_background_shows_progress_and_leaves_nothing(engine: Path) -> None:
    cmake = {"GGML_NATIVE": "OFF", "TINY_UNITS": "2"}
    out, err, result = result_of(play(engine, cmake=cmake))
    assert result["changed"] and result["runtime"]["action"] == "built", err
    assert "[localhost] runtime tiny: " in out + err and "compile" in out + err
    assert "ansible_job_id" not in result and list((engine / "async").iterdir()) == []
    end = time.monotonic() + 15
    while list((engine / "remote").iterdir()):  # Ansible's wrapper removes its folder within five seconds
        assert time.monotonic() < end
        time.sleep(0.2)
    # converged: one module call, nothing in the background
    out, err, result = result_of(play(engine, "-vvv", cmake=cmake))
    assert not result["changed"] and result["runtime"]["action"] == "none"
    assert out.count("Using module file") == 1 and list((engine / "async").iterdir()) == []


@needs_tools
def test_a_build_can_be_quiet(engine: Path) -> None:
    out, err, result = result_of(play(engine, "-e", "llm_progress=false", cmake={"TINY_UNITS": "2"}))
    assert result["changed"] and "[localhost] runtime" not in out + err


@needs_tools
def test_check_mode_builds_nothing_and_costs_one_call(engine: Path) -> None:
    out, _err, result = result_of(play(engine, "--check", "-vvv"))
    assert result["changed"] and result["work"] and out.count("Using module file") == 1
    assert not (engine / "runtimes").exists()


@needs_tools
def test_a_failure_comes_back_as_the_modules_own(engine: Path) -> None:
    out, _err, result = result_of(play(engine, cmake={"TINY_BROKEN": "ON"}))
    assert "FAILED!" in out and "broken on purpose" in result["msg"] and result["log"].endswith("build.log")
    assert list((engine / "async").iterdir()) == []


@needs_tools
def test_a_refusal_of_the_plan_starts_nothing(engine: Path) -> None:
    out, _err, result = result_of(play(engine, source={"kind": "path", "path": str(engine / "none")}))
    assert "FAILED!" in out and "none does not exist" in result["msg"]
    assert not (engine / "async").exists()


@needs_tools
def test_the_build_outlives_its_controller_and_the_next_run_meets_the_lock(engine: Path) -> None:
    cmake = {"GGML_NATIVE": "OFF", "TINY_UNITS": "3"}
    first = play(engine, cmake=cmake)
    end = time.monotonic() + 60
    while not list((engine / "runtimes").glob(".work/*/build/build.ninja")):
        assert time.monotonic() < end
        time.sleep(0.05)
    workers = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert workers
    first.kill()
    while any(Path("/proc", worker).exists() for worker in workers):  # nobody is left to hear them
        assert time.monotonic() < end and not (engine / "runtimes" / "tiny").exists()
        time.sleep(0.05)
    out, _err, result = result_of(play(engine, cmake=cmake))
    assert "FAILED!" in out and "is locked" in result["msg"] and "runtime_build of tiny" in result["msg"]
    assert f" by {controller()} (process " in result["msg"]
    end = time.monotonic() + 120
    while not (engine / "runtimes" / "tiny").exists():
        assert time.monotonic() < end
        time.sleep(0.2)
    assert not result_of(play(engine, cmake=cmake))[2]["changed"]


def look_at(tmp_path, job):
    """The action's one look at the host, done by a real shell here."""
    action = LongRunAction.__new__(LongRunAction)

    def shell(command):
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
        return {"stdout": done.stdout}

    action._low_level_execute_command = shell
    return parse_poll(action._look(job, str(tmp_path / "async dir" / job), ""))


def test_the_look_does_not_take_itself_for_the_job(tmp_path):
    job = "j834761209384.4711"
    (tmp_path / "async dir").mkdir()
    (tmp_path / "async dir" / job).write_text('{"started": 1, "finished": 0}')
    assert look_at(tmp_path, job) == (None, False, False)
    with subprocess.Popen(
        ["/bin/sh", "-c", "read line", "job", f"/tmp/ansible/{job}/args"], stdin=subprocess.PIPE
    ) as it:
        assert look_at(tmp_path, job) == (None, False, True)
        it.communicate(b"\n")
    (tmp_path / "async dir" / job).write_text('{"changed": true}')
    assert look_at(tmp_path, job) == (None, True, False)


@pytest.mark.parametrize(
    ("plan", "check_mode", "ran"),
    [
        ({"failed": True, "gate": "port"}, False, True),  # the run itself leaves the record of the red gate
        ({"failed": True, "gate": "port"}, True, False),
        ({"failed": True}, False, False),
        ({"changed": True, "work": True}, False, True),
        ({"changed": False}, False, False),
    ],
)
def test_a_red_gate_is_run_into_for_its_record(monkeypatch, plan, check_mode, ran):
    monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda _self, _tmp, _vars: {})
    action = LongRunAction.__new__(LongRunAction)
    action._task = SimpleNamespace(args={"name": "x"}, environment=[{"A": "1"}], check_mode=check_mode)
    called = []

    def module(module_args, task_vars):
        called.append(module_args.get("plan_only"))
        return dict(plan)

    action._execute_module = module
    action._in_background = lambda args, _vars: called.append("background") or {"msg": "done"}
    result = action.run(None, {})
    assert called == [True, *(["background"] if ran else [])]
    assert result.get("msg") == ("done" if ran else None)
    assert action._task.environment == [{"A": "1"}, {CONTROLLER: controller()}]
    assert "@" in controller()
