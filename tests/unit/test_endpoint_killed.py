# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deploy killed with SIGKILL at every step, then run again: what the host owes to whom is not forgotten.

The host's edges are stand-ins (see test_endpoint); molecule's scenario ``killed`` walks a real host.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from test_endpoint import Host, host, retirements, rival

__all__ = ["host", "retirements", "rival"]  # fixtures


class Diary(list[str]):
    """What was done, on the disk at once; the process is killed at its step ``last``."""

    def __init__(self, path: Path, last: int) -> None:
        super().__init__()
        self.path, self.last = path, last

    def append(self, step: str) -> None:
        super().append(step)
        with self.path.open("a") as handle:
            handle.write(step + "\n")
        if len(self) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(host: Host, last: int, tmp_path: Path, **options: Any) -> bool:
    """Run in another process that is killed at its step ``last``; whether it came that far."""
    diary = tmp_path / "diary"
    diary.unlink(missing_ok=True)
    diary.touch()
    child = os.fork()
    if not child:
        host.done = Diary(diary, last)
        try:
            host.run(**options)
        except FleetError:
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, 1)
    for step in diary.read_text().splitlines():
        verb, _, what = step.partition(" ")
        if verb == "stop":
            host.standing.discard(what)
        elif step == "put theirs":
            host.standing.add("other")
        elif verb == "retire":
            host.ever.append("retire")
        elif verb == "undo":
            host.ever.clear()
    return os.WIFSIGNALED(status)


def made_way(host: Host) -> Any:
    path = Path(host.paths.store, "made-way.json")
    return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def both(host: Host, rival: EraStore, retirements: list[Any]) -> Host:
    """A host whose endpoint takes over from a rival and retires a quadlet."""
    Path(host.paths.units, "other.service").touch()
    return host


STEPS = ["gate port", "verify", "retire", "put one", "stop other", "restart", "prove one", "ledger"]
BACK = ["gate port", "verify", "retire", "put one", "stop other", "restart", "prove one"]
BACK += ["remove", "put theirs", "restart", "prove theirs", "undo"]


def test_the_steps_that_are_walked(both: Host) -> None:
    both.run()
    assert both.done == STEPS


def test_the_steps_back_that_are_walked(both: Host) -> None:
    both.faults["one"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer"):
        both.run()
    assert both.done == BACK


@pytest.mark.parametrize("last", range(1, len(STEPS) + 1))
def test_run_again_it_is_proven(both: Host, tmp_path: Path, last: int) -> None:
    assert killed_at(both, last, tmp_path)
    assert (made_way(both) is not None) is (last > 2)
    result = both.run()
    assert result["changed"] and both.serves == "one"
    assert last == 1 or "the last run was killed midway (deploy of endpoint chat" in result["warnings"][0]
    assert (both.standing, both.ever[:1], made_way(both)) == ({"chat"}, ["retire"], None)
    assert len(both.store.ids()) == 1
    assert both.run()["changed"] is False


@pytest.mark.parametrize("last", range(1, len(STEPS) + 1))
def test_run_again_and_red_what_served_before_serves(both: Host, tmp_path: Path, last: int) -> None:
    assert killed_at(both, last, tmp_path)
    both.faults["one"] = FleetError("no answer")
    with pytest.raises(FleetError, match="no answer") as caught:
        both.run()
    assert "other" in both.standing and both.ever == []
    assert str(caught.value.facts["went_back_to"]).startswith("other in era ")
    assert made_way(both) is None
    assert both.done[-4:] == ["put theirs", "restart", "prove theirs", "undo"]


@pytest.mark.parametrize("last", range(3, len(STEPS) + 1))
def test_run_again_and_red_before_the_cut_over_what_served_before_serves(both: Host, tmp_path: Path, last: int) -> None:
    assert killed_at(both, last, tmp_path)
    both.faults["gate port"] = FleetError("port is taken")
    with pytest.raises(FleetError, match="port is taken"):
        both.run(check_mode=True)
    assert made_way(both) is not None
    with pytest.raises(FleetError, match="port is taken") as caught:
        both.run()
    assert "other" in both.standing and both.ever == []
    record = json.loads(Path(both.paths.store, "last-run.json").read_text())
    assert record["gate"] == "port" and record["went_back_to"] == caught.value.facts["went_back_to"]
    assert made_way(both) is None


def test_a_way_back_that_fails_too_is_told_and_tried_again(both: Host, tmp_path: Path) -> None:
    assert killed_at(both, 6, tmp_path)
    both.faults.update({"gate port": FleetError("port is taken"), "theirs": FleetError("no answer")})
    with pytest.raises(FleetError, match=r"port is taken.* And other, which had made way, does not serve either"):
        both.run()
    assert json.loads(Path(both.paths.store, "last-run.json").read_text())["gate"] == "port"
    assert made_way(both) is not None
    del both.faults["theirs"]
    with pytest.raises(FleetError, match="port is taken"):
        both.run()
    assert "other" in both.standing and made_way(both) is None


@pytest.mark.parametrize("last", range(1, len(BACK) + 1))
def test_killed_on_the_way_back_and_run_again(both: Host, tmp_path: Path, last: int) -> None:
    both.faults["one"] = FleetError("no answer")
    assert killed_at(both, last, tmp_path)
    with pytest.raises(FleetError, match="no answer"):
        both.run()
    assert "other" in both.standing and both.ever == []
    assert (made_way(both), both.serves) == (None, "")
    both.faults.clear()
    both.run()
    assert (both.serves, both.standing, both.ever) == ("one", {"chat"}, ["retire"])


def test_a_repair_that_takes_over_is_proven_again(both: Host, tmp_path: Path) -> None:
    both.run()
    both.standing = {"other"}  # by hand; the endpoint's own era is certified and looks whole
    assert killed_at(both, 5, tmp_path)
    told = both.run()
    assert told["kind"] == "repair" and "was killed before its proof" in told["reasons"][0]
    assert "prove one" in both.done and made_way(both) is None
    assert both.run()["changed"] is False


def test_the_rivals_own_deploy_ends_what_was_owed_to_it(both: Host, tmp_path: Path) -> None:
    assert killed_at(both, 6, tmp_path)
    mine = both.paths
    both.declared = replace(both.declared, name="other", rivals=["chat"], replaces={})
    both.paths, both.store = replace(mine, endpoint="other"), EraStore(replace(mine, endpoint="other").store)
    both.standing = {"chat"}
    both.run()
    assert EraStore(mine.store).made_way() is None


def test_a_takeover_whose_end_was_lost_is_told_to_the_rival(both: Host, rival: EraStore) -> None:
    both.run(activate=True)
    rival.set_stood_down(None)  # as a kill between the proof and this record
    assert both.run(activate=True, check_mode=True)["changed"]
    assert both.run(activate=True)["kind"] == "none"
    assert (rival.stood_down() or {})["for"] == "chat"
    assert both.run(activate=True)["changed"] is False


def test_what_a_killed_run_left_unfinished_is_swept(both: Host, tmp_path: Path) -> None:
    store = Path(both.paths.store)
    both.run()
    litter = [
        store / ".pin.json.x1.tmp",
        store / "current.17.tmp",
        store / "eras" / ".20260101T000000Z-aaaa.tmp",
        Path(both.paths.etc, ".chat.env.x1.tmp"),
        Path(both.paths.units, ".chat.service.x1.tmp"),
    ]
    for path in litter:
        path.mkdir() if path.parent.name == "eras" else path.touch()
    keep = Path(both.paths.etc, ".chatter.env.x1.tmp")
    keep.touch()
    assert both.run()["changed"] is False  # nobody was killed: whose they are is not known
    both.tag = "two"
    both.run()
    assert [path for path in litter if path.exists()] == []
    assert keep.exists()


def test_only_the_rivals_that_a_deploy_may_stop_are_locked(both: Host) -> None:
    both.run()
    assert sorted(os.listdir(both.paths.state)) == ["chat", "other"]
    assert {(Path(both.paths.state) / name / "lock").read_bytes() for name in ("chat", "other")} == {b""}
