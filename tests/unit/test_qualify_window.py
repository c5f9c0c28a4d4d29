# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The window's units as text, its opening and closing with systemd replaced, and the steps that need no GPU."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _qualify_steps, _qualify_window, _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Reply
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import asked_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_checks import MARK, Plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_fork import Fork
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_steps import (
    Steps,
    judge_long_context,
    setup_command,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_window import (
    Window,
    after_lines,
    close,
    open_window,
    require_open,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Container
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import read_state
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import Incumbent
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths
from r9vhost import R9vHost, make_host
from test_truth import STATE

ID = "20261130T120000Z"
GUARD = f"llm-fleet-trial-two-{ID}.service"
IMAGE = "2d" * 32
UP = replace(STATE, drop_in_paths=())


@pytest.fixture
def window(tmp_path: Path) -> Window:
    paths = Paths("two", state=str(tmp_path / "var"))
    rival = replace(paths, endpoint="three")
    return Window(
        TrialPaths.of(paths, ID, 0), ["two.service", "three.service"], [Incumbent(rival, 7, None)], getpass.getuser(),
        "two-qualify", 3600, 60, masks=str(tmp_path / "control"),
    )  # fmt: skip


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run, in its order."""
    found: list[list[str]] = []

    def take(argv: Sequence[str], **_options: Any) -> Completed:
        found.append(list(argv))
        return Completed(tuple(argv), 0, "", "")

    monkeypatch.setattr(_qualify_window, "run", take)
    monkeypatch.setattr(_systemd, "run", take)
    return found


def test_whoever_ends_the_guard_the_masks_go_and_then_the_container(window: Window) -> None:
    first, second, third, _limit = after_lines(window)
    uid = pwd.getpwnam(window.user).pw_uid
    assert first == f"ExecStopPost=-/usr/bin/rm -f {window.masks}/two.service {window.masks}/three.service"
    assert second == "ExecStopPost=-/usr/bin/systemctl daemon-reload"
    assert f"setpriv --reuid={uid} " in third
    assert third.endswith("/usr/bin/podman rm --force --ignore --time 60 two-qualify")


def test_what_makes_way_is_stopped_by_the_guard_and_then_masked(window: Window, commands: list[list[str]]) -> None:
    open_window(window, "/var/lib/llm-fleet/two/lock")
    guard, reload = commands
    assert f"--unit={GUARD}" in guard and guard[-3:] == ["flock", "/var/lib/llm-fleet/two/lock", "false"]
    for line in (
        "Conflicts=two.service three.service",
        "OnSuccess=three.service",
        "OnFailure=three.service",
        "RuntimeMaxSec=3600",
        *after_lines(window),
    ):
        assert f"--property={line}" in guard
    assert [os.readlink(path) for path in window.mask_files] == ["/dev/null", "/dev/null"]
    assert reload == ["systemctl", "daemon-reload"]


def test_a_host_on_which_nothing_serves_has_nothing_to_start(window: Window, commands: list[list[str]]) -> None:
    open_window(replace(window, incumbents=[]), "/lock")
    assert not any("OnFailure" in word or "OnSuccess" in word for word in commands[0])


def test_closing_ends_the_guard_unmasks_and_starts_what_served(
    window: Window, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_window(window, "/lock")
    monkeypatch.setattr(_systemd, "show", lambda unit: UP)
    commands.clear()
    names, _healthy_at = close(window, lambda _step, _seconds=0: None)
    assert names == ["three"] and not any(os.path.lexists(path) for path in window.mask_files)
    words = [" ".join(command) for command in commands]
    assert words[0] == f"systemctl stop {GUARD}" and "systemctl start three.service" in words
    assert words.index("systemctl daemon-reload") < words.index("systemctl start three.service")


def test_a_guard_that_never_ran_is_no_fault(
    window: Window, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_systemd, "show", lambda unit: replace(UP, load_state="not-found"))
    assert close(window, lambda _step, _seconds=0: None)[0] == ["three"]
    assert ["systemctl", "stop", GUARD] not in commands


def test_a_window_that_was_closed_from_outside(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_systemd, "show", lambda unit: UP)
    require_open(window)
    gone = replace(UP, active_state="failed", sub_state="failed", main_pid=0, result="timeout")
    monkeypatch.setattr(_systemd, "show", lambda unit: gone)
    with pytest.raises(FleetError, match=r"was ended from outside; expected .* 3600 s at most; found failed"):
        require_open(window)


def test_setup_does_not_outlive_the_window(window: Window) -> None:
    command = setup_command(window, ["/fork/r9v", "setup", "q8"], "/fork", "/run/x/setup.out")
    assert command[:4] == ["systemd-run", "--quiet", "--wait", "--collect"]
    for line in (
        f"BindsTo={GUARD}",
        "Conflicts=two.service three.service",
        f"After={GUARD} two.service three.service",
        f"User={window.user}",
        "WorkingDirectory=/fork",
    ):
        assert f"--property={line}" in command
    assert any(word.startswith("--property=Environment=PATH=/fork/.podman-shim:") for word in command)
    assert command[-4:] == ["--", "/fork/r9v", "setup", "q8"]


@pytest.mark.parametrize(
    ("reply", "verdict", "words"),
    [
        (Reply("", 2.0, "ok", usage={"prompt_tokens": 3072}), "pass", "3072 tokens of prompt"),
        (Reply("", 2.0, "ok", usage={"prompt_tokens": 2047}), "fail", "expected most of 4096 tokens"),
        (Reply("", 2.0, "ok"), "fail", "found None"),
        (Reply("expected HTTP 200, found HTTP 500", 1.0, status=500), "fail", "HTTP 500"),
    ],
)
def test_a_long_prompt_is_read_whole(reply: Reply, verdict: str, words: str) -> None:
    told = judge_long_context(reply, 4096)
    assert told.verdict == verdict and words in told.evidence


@pytest.fixture
def host(tmp_path: Path) -> R9vHost:
    return make_host(tmp_path)


@pytest.fixture
def steps(host: R9vHost, window: Window, tmp_path: Path) -> Steps:
    """Steps whose setup is the stand-in's own, run by this process in place of systemd."""
    fresh = str(tmp_path / "fresh" / "setup.json")
    qualify = {
        "profile": "q8", "model_dir": str(host.model_dir), "ple_path": str(host.table), "port": 7773,
        "container": "two-qualify", "arguments": ["--accept-model-license"],
    }  # fmt: skip
    declared = Declared(
        "two", "r9v", {"R9V_STATE_FILE": fresh}, "rt", {"dir": str(host.model_dir), "files": []}, getpass.getuser(), "",
        setups={"q8": {"file": fresh, "qualify": qualify}},
    )  # fmt: skip
    fork = Fork(str(host.checkout), "ab" * 20, IMAGE, "standin/q8", "", (), {})
    plan = Plan(fork, [], ["two.service"], frozenset())
    return Steps(
        declared, asked_of(declared, "q8"), plan, window, str(tmp_path / "run"), lambda _step, _seconds=0: None
    )


def standing_in(host: R9vHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's own setup without systemd; the profile's table is this host's."""
    profile = host.checkout / "profiles" / "standin" / "q8" / "profile.env"
    profile.write_text(profile.read_text().replace("1048576", "4096"))

    def run(argv: Sequence[str], **_options: Any) -> Completed:
        words = list(argv)[list(argv).index("--") + 1 :]
        env = {**os.environ, "PATH": f"{host.checkout}/.podman-shim:/usr/bin:/bin", "DOCKER_SAYS": str(host.folder)}
        done = subprocess.run(words, env=env, cwd=host.checkout, capture_output=True, text=True, check=False)
        return Completed(tuple(words), done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(_qualify_steps, "run", run)


def test_the_forks_setup_is_run_and_what_it_wrote_is_kept(
    steps: Steps, host: R9vHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in(host, monkeypatch)
    steps.note_asked()
    steps.setup(60)
    told = json.loads(Path(steps.run, "setup.json").read_text())
    assert read_state(steps.asked.scratch_file).profile_id == "standin/q8" == told["state"]["profile_id"]
    assert told["seconds"] >= 0 and len(told["files"]) == len(told["state"]["artifacts"]) > 6
    assert Path(steps.asked.scratch_dir, MARK).exists() and not os.path.exists(steps.asked.file)
    assert json.loads(Path(steps.run, "asked.json").read_text())["image"] == IMAGE


def test_a_setup_that_fails_or_is_of_another_profile(
    steps: Steps, host: R9vHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in(host, monkeypatch)
    monkeypatch.setenv("R9V_STANDIN_DOCTOR_FAILS", "1.2 GiB free")
    with pytest.raises(FleetError, match=r"(?s)setup of profile q8 fails; .*1\.2 GiB free"):
        steps.setup(60)
    monkeypatch.delenv("R9V_STANDIN_DOCTOR_FAILS")
    steps.plan = replace(steps.plan, fork=replace(steps.plan.fork, profile_id="standin/other"))
    with pytest.raises(FleetError, match="its profile is standin/q8, and standin/other was asked for"):
        steps.setup(60)
    assert not os.path.exists(os.path.join(steps.run, "setup.json"))


def test_what_is_locked_and_what_is_free_is_noted(steps: Steps, host: R9vHost, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Container("id", "running", os.getpid(), 0, 0, "i", "d", {}, "")

    class One:
        def __init__(self, _user: str) -> None:
            pass

        def container(self, _name: str) -> Container:
            return box

    monkeypatch.setattr(_qualify_steps, "Podman", One)
    steps.pinning({"R9V_PLE_PATH": str(host.table), "R9V_PLE_RESIDENCY_MODE": "pinned"})
    told = json.loads(Path(steps.run, "pinning.json").read_text())
    assert told["mode"] == "pinned" and told["table_bytes"] == 4096
    assert os.getpid() in [row["pid"] for row in told["processes"]]
    monkeypatch.setattr(_qualify_steps, "read_cards", lambda _cards: {"c": CardState("c", 32624.0, 3400.5)})
    steps.headroom()
    told = json.loads(Path(steps.run, "headroom.json").read_text())
    assert told == {"floor_gib": 3.3, "cards": [{"name": "c", "free_mib": 3400.5, "total_mib": 32624.0}]}
