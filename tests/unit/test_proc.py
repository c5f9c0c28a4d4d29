# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real processes and real sockets."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc

CODE = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", CODE, "", "a b", "ü"]
    env = {"ERA": "abc=def", "EMPTY": "", "PATH": os.environ["PATH"]}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def listen(family: int, address: str, port: int = 0, reuse: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if reuse:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((address, port))
    sock.listen()
    return sock


def test_a_process_as_the_kernel_sees_it(child: subprocess.Popen[bytes]) -> None:
    assert _proc.cmdline(child.pid) == [sys.executable, "-c", CODE, "", "a b", "ü"]
    told = _proc.environ(child.pid)
    assert (told["ERA"], told["EMPTY"]) == ("abc=def", "")
    assert _proc.exe(child.pid) == os.path.realpath(sys.executable)
    assert 2**20 < _proc.resident_bytes(child.pid) < 2**30


def test_resident_bytes_is_in_bytes() -> None:
    with open("/proc/self/statm") as handle:
        expected = int(handle.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert _proc.resident_bytes(os.getpid()) == pytest.approx(expected, rel=0.2)


def test_a_process_that_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _proc.cmdline(process.pid) == []  # a zombie
        assert _proc.resident_bytes(process.pid) == 0
    assert _proc.resident_bytes(process.pid) == 0
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        _proc.cmdline(process.pid)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/chat.service\n", "chat.service"),
        ("0::/system.slice/chat.service/payload\n", "chat.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", ""),
        ("12:cpu:/other.service\n1:name=systemd:/system.slice/chat.service\n", "chat.service"),
        ("12:cpu,cpuacct:/x.service\n", ""),
        ("0::/a.service/b.service\n", "b.service"),
        ("0::/machine.slice/libpod-ab.scope/system.slice/x:y.service\n", "x:y.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/chat.service\n",
            "chat.service of user@1000.service",
        ),
        ("0::/user.slice/user-1000.slice/user@1000.service\n", "user@1000.service"),
    ],
)
def test_unit_of(monkeypatch: pytest.MonkeyPatch, text: str, unit: str) -> None:
    monkeypatch.setattr(_proc, "_read", lambda _pid, name: text.encode() if name == "cgroup" else b"")
    assert _proc.unit_of(1) == unit


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1 0
   2: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0
   3: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 444 1 0
   4: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 555 1 0
"""


@pytest.mark.parametrize(("port", "inodes"), [(0x1F90, {111, 222}), (0x1F91, {555}), (0xD431, set()), (1, set())])
def test_only_listeners_on_the_very_port_count(port: int, inodes: set[int]) -> None:
    assert _proc.listening_inodes(TABLE, port) == inodes


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")]
)
def test_a_listener_is_found_on_any_address(family: int, address: str) -> None:
    with listen(family, address) as sock:
        owner = _proc.SocketOwner(
            os.getpid(),
            os.fstat(sock.fileno()).st_ino,
            _proc.unit_of(os.getpid()),
            " ".join(_proc.cmdline(os.getpid()))[:200],
        )
        assert _proc.listeners(sock.getsockname()[1]) == [owner]
        port = sock.getsockname()[1]
    assert _proc.listeners(port) == []


def test_a_connection_is_no_listener() -> None:
    with listen(socket.AF_INET, "127.0.0.1") as sock, socket.create_connection(sock.getsockname()) as client:
        assert _proc.listeners(client.getsockname()[1]) == []
        assert len(_proc.listeners(sock.getsockname()[1])) == 1


def test_two_servers_that_share_a_port_are_both_listed() -> None:
    code = (
        "import socket, sys\n"
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('up', flush=True); sys.stdin.read()\n"
    )
    with ExitStack() as stack:
        sock = stack.enter_context(listen(socket.AF_INET, "127.0.0.1", reuse=True))
        port = sock.getsockname()[1]
        other = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        owners = _proc.listeners(port)
        other.kill()
    assert {owner.pid for owner in owners} == {os.getpid(), other.pid}
    assert len({owner.inode for owner in owners}) == 2


def test_an_owner_that_cannot_be_seen_is_listed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(socket.AF_INET, "127.0.0.1") as sock:
        monkeypatch.setattr(_proc, "_socket_inodes", lambda _pid: [])
        owners = _proc.listeners(sock.getsockname()[1])
        assert [(owner.pid, owner.inode, owner.unit) for owner in owners] == [(0, os.fstat(sock.fileno()).st_ino, "")]


def test_a_process_that_ends_midway_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_pid: int) -> list[int]:
        raise ProcessLookupError

    with listen(socket.AF_INET, "127.0.0.1") as sock:
        monkeypatch.setattr(_proc, "_socket_inodes", gone)
        assert [owner.pid for owner in _proc.listeners(sock.getsockname()[1])] == [0]


def test_an_owner_that_may_not_be_looked_into_is_listed_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_pid: int) -> list[int]:
        raise PermissionError

    with listen(socket.AF_INET, "127.0.0.1") as sock:
        monkeypatch.setattr(_proc, "_socket_inodes", denied)
        assert [owner.pid for owner in _proc.listeners(sock.getsockname()[1])] == [0]


def held(*paths: Path) -> dict[str, set[tuple[int, int, bool]]]:
    """What this process holds of these names: (device, inode, mapped)."""
    found: dict[str, set[tuple[int, int, bool]]] = {}
    for file in _proc.held_files(os.getpid()):
        if file.path in map(str, paths):
            found.setdefault(file.path, set()).add((file.device, file.inode, file.mapped))
    return found


def test_files_that_are_mapped_or_open(tmp_path: Path) -> None:
    model, other = tmp_path / "a model (1).gguf", tmp_path / "other"
    for path in (model, other):
        path.write_bytes(b"x" * 4096)
    assert held(model) == {}
    known, state = _proc.mapped_as(str(model)), model.stat()
    assert known is not None
    with model.open("rb") as handle:
        assert held(model) == {str(model): {(state.st_dev, state.st_ino, False)}}
        mapped = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
    with ExitStack() as stack:
        stack.callback(mapped.close)
        ours = {entry for entry in held(model)[str(model)] if entry[2]}
        assert ours == {(*known, True)}
        other.rename(model)  # what is mapped keeps its inode, and its last name
        assert {entry for entry in held(model)[str(model)] if entry[2]} == ours
        assert _proc.mapped_as(str(model)) != known
    assert held(model) == {}


def test_an_empty_file_is_mapped_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert _proc.mapped_as(str(tmp_path / "empty")) is None
    with pytest.raises(FileNotFoundError):
        _proc.mapped_as(str(tmp_path / "none"))


def test_the_age_of_a_process_its_parent_and_what_it_has_locked() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert -1 < _proc.age_s(child.pid) < 30
            assert _proc.age_s(1) > _proc.age_s(child.pid)
            assert _proc.parent_of(child.pid) == os.getpid()
            assert _proc.locked_bytes(child.pid) == 0
            assert _proc.cgroup_of(child.pid) == _proc.cgroup_of(os.getpid()) != ""
        finally:
            child.kill()
    assert _proc.parent_of(child.pid) is None and _proc.cgroup_of(child.pid) == ""
    assert _proc.locked_bytes(child.pid) == 0
