# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks with a holder: named while it lives, told from the living when it was killed; real processes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import CONTROLLER, Holder, file_lock

HOLD = """
import sys, time
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
with file_lock(sys.argv[1], wait_s=0, purpose="deploy of chat") as lock:
    if sys.argv[2] == "child":
        import subprocess
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd], stdout=subprocess.DEVNULL)
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(path: str, child: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the pid of the child that it gave it to; it is killed in the end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), CONTROLLER: "owner@desk"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path, child], stdout=subprocess.PIPE, env=env, text=True
    ) as process:
        assert process.stdout is not None
        heir = int(process.stdout.readline()) if child else 0
        assert process.stdout.readline() == "held\n"
        try:
            yield process, heir
        finally:
            process.kill()


def refused(path: str) -> FleetError:
    with pytest.raises(FleetError) as caught, file_lock(path, wait_s=0.1, purpose="another"):
        pass
    return caught.value


def test_a_held_lock_is_refused_with_the_holder_named(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with holding(path) as (process, _heir):
        told = refused(path)
        since = json.loads(Path(path).read_text())["since"]
    assert told.what == f"another run is at work: {path} is locked"
    assert told.expected == "a free lock within 0.1 s for another"
    assert told.found == f"held for deploy of chat, begun {since} by owner@desk (process {process.pid})"
    assert f"stop it (process {process.pid} on this host)" in str(told.remedy)
    assert told.facts["holder"]["by"] == "owner@desk"


def test_a_killed_holder_frees_the_lock_and_is_told_once(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with holding(path) as (process, _heir):
        pass
    with file_lock(path, wait_s=1, purpose="x") as lock:
        assert lock.killed is not None
        assert (lock.killed.pid, lock.killed.purpose, lock.killed.alive) == (process.pid, "deploy of chat", False)
        (line,) = lock.warning
        assert line.startswith("the last run was killed midway (deploy of chat, begun ")
        assert line.endswith(f" by owner@desk (process {process.pid})); going on")
    with file_lock(path, wait_s=0, purpose="y") as lock:
        assert (lock.killed, lock.warning) == (None, [])


def test_a_holder_of_another_boot_ended_with_the_host(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = Holder.me("deploy of chat")  # its process lives; of another boot, the same number means nothing
    path.write_text(json.dumps(asdict(replace(mine, boot_id="another"))))
    with file_lock(str(path), wait_s=0, purpose="x") as lock:
        assert "the last run ended with the host (deploy of chat" in lock.warning[0]


def test_what_a_killed_holder_left_running_holds_on(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with holding(path, "child") as (process, heir):
        process.kill()
        process.wait()
        told = refused(path)
        os.kill(heir, 9)
    assert str(told.found).startswith("still held by what a killed run has left running: deploy of chat")
    assert "fuser" in str(told.remedy)
    with file_lock(path, wait_s=5, purpose="x") as lock:
        assert lock.killed is not None


def test_who_lives_is_told_by_boot_process_and_its_start() -> None:
    mine = Holder.me("x")
    assert mine.alive
    assert not replace(mine, started=mine.started + 1).alive  # another process has the number by now
    assert not replace(mine, boot_id="another").alive
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.DEVNULL) as gone:
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        stat = Path(f"/proc/{gone.pid}/stat").read_text()
        started = int(stat[stat.rindex(")") + 2 :].split()[19])
        assert not replace(mine, pid=gone.pid, started=started).alive  # a zombie holds nothing
    assert not replace(mine, pid=gone.pid, started=started).alive


@pytest.mark.parametrize(
    "text", [b"", b"process 12: deploy of chat\n", b'{"pid": 1}', b"[]", b"7", b"\xff\xfe", b'{"pid": 1, "sta']
)
def test_a_lock_file_without_a_holder_names_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(text)
    assert Holder.read(text) is None
    with file_lock(str(path), wait_s=0, purpose="x") as lock:
        assert (lock.killed, lock.waited) == (None, False)
        path.write_bytes(text)
        told = refused(str(path))
    assert str(told.found) == (text.decode("utf-8", "replace").strip() or "a process that did not leave its name")


def test_the_file_names_the_holder_while_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROLLER, raising=False)
    path = tmp_path / "lock"
    with file_lock(str(path), wait_s=0, purpose="a rather long purpose"):
        pass
    with file_lock(str(path), wait_s=0, purpose="short"):
        holder = Holder.read(path.read_bytes())
        assert holder is not None
        assert holder.words == f"short, begun {holder.since} (process {os.getpid()})"
    assert path.read_bytes() == b""


def test_a_lock_is_freed_when_its_holder_raises(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with pytest.raises(ZeroDivisionError), file_lock(path, wait_s=0, purpose="x"):
        raise ZeroDivisionError
    with file_lock(path, wait_s=0, purpose="y") as lock:
        assert lock.killed is None


def test_one_that_had_to_wait_is_told_so(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with holding(path) as (process, _heir):
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.4; kill -9 {process.pid}"])
        with file_lock(path, wait_s=10, purpose="x") as lock:
            assert lock.waited
        killer.wait()


@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "pipe", "folder"])
def test_what_is_no_plain_file_of_one_name_is_neither_locked_nor_written(tmp_path: Path, kind: str) -> None:
    target, path = tmp_path / "target", tmp_path / "lock"
    target.write_bytes(b"another user's, or root's")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "made")
    elif kind == "second name":
        path.hardlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(FleetError, match=f"{path} is in the way"), file_lock(str(path), wait_s=0, purpose="x"):
        pass
    assert target.read_bytes() == b"another user's, or root's"
    assert not (tmp_path / "made").exists()


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    """The holder removes the file at its end: who waited must not hold a file that the next one cannot find."""
    path = tmp_path / "lock"
    inside: list[int] = []
    most: list[int] = []

    def work(purpose: str) -> None:
        with file_lock(str(path), wait_s=20, purpose=purpose):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.5)
            inside.pop()

    with file_lock(str(path), wait_s=0, purpose="the one that removes it"):
        waiter = threading.Thread(target=work, args=("waits",))
        waiter.start()
        time.sleep(0.5)
        path.unlink()
    third = threading.Thread(target=work, args=("comes later",))
    third.start()
    waiter.join()
    third.join()
    assert most == [1, 1]


def test_a_folder_that_was_removed_meanwhile_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()

    def remove() -> None:
        time.sleep(0.4)
        (folder / "lock").unlink()
        folder.rmdir()
        os.close(held)

    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    remover = threading.Thread(target=remove)
    remover.start()
    with (
        pytest.raises(FleetError, match="is gone, with its folder"),
        file_lock(f"{folder}/lock", wait_s=9, purpose="x"),
    ):
        pass
    remover.join()
