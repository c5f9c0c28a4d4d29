# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a retirement: names, podman's words, systemd's words, cgroups, single moves."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _manager, _trash
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Account, Manager
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import copy_without, parse_dry_run, service_name
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import RetireSpec, places, unit_of_drop_in
from ansible_collections.dank.llm_fleet.plugins.module_utils._trash import describe, move
from hypothesis import given
from hypothesis import strategies as st

ME = Account("me", os.geteuid(), os.getegid(), "/home/me")


# As podman 5.4.2 names them (quadlet -dryrun).
@pytest.mark.parametrize(
    ("name", "texts", "service"),
    [
        ("a.container", [""], "a.service"),
        ("k.kube", [""], "k.service"),
        ("p.pod", [""], "p-pod.service"),
        ("n.network", [""], "n-network.service"),
        ("dat.volume", [""], "dat-volume.service"),
        ("i.image", [""], "i-image.service"),
        ("b.build", [""], "b-build.service"),
        ("t@.container", [""], "t@.service"),
        ("a.b.container", [""], "a.b.service"),
        ("a.container", ["[Container]\nServiceName=bee\n"], "bee.service"),
        ("a.pod", ["[Pod]\n ServiceName = bee \n"], "bee.service"),
        ("a.container", ["[Service]\nServiceName=bee\n"], "a.service"),
        ("a.container", ["[Container]\nServiceName=bee\n[Unit]\nServiceName=x\n"], "bee.service"),
        ("a.container", ["[Container]\n#ServiceName=bee\n"], "a.service"),
        ("a.container", ["[Container]\nServiceName=bee\n", "[Container]\nServiceName=cee\n"], "cee.service"),
        ("a.container", ["[Container]\nServiceName=bee\n", "[Container]\nServiceName=\n"], "a.service"),
    ],
)
def test_service_name(name: str, texts: list[str], service: str) -> None:
    assert service_name(name, texts) == service


@pytest.mark.parametrize("name", ["a.service", "container", ".container", "a.container.d"])
def test_no_quadlet(name: str) -> None:
    with pytest.raises(FleetError, match="is no quadlet"):
        service_name(name)


@given(st.text(max_size=200))
def test_service_name_reads_any_text(text: str) -> None:
    assert service_name("a.container", [text]).endswith(".service")


DRY = """---a.service---
[X-Container]
Image=x
SourcePath=/not/this
[Unit]
SourcePath=/q/a.container

---dat-volume.service---
[Unit]
SourcePath=/q/sub/dat.volume
"""
WORDS = """quadlet-generator[12]: Loading source unit file /q/bad.container
quadlet-generator[12]: Warning: a.container specifies the image "x" which not a fully qualified image name.
quadlet-generator[12]: converting "bad.container": unsupported key 'Bogus' in group 'Container' in /q/bad.container
converting "good.container": requested Quadlet source dat.volume was not found
"""


def test_dry_run() -> None:
    run = parse_dry_run(DRY.replace("SourcePath=/not/this\n", ""), WORDS)
    assert run.services == {"a.service": "/q/a.container", "dat-volume.service": "/q/sub/dat.volume"}
    assert len(run.complaints) == 2
    assert "Bogus" in str(run.of("/q/bad.container")) and "dat.volume" in str(run.of("/q/good.container"))
    assert run.of("/q/a.container") is None


def test_dry_run_of_nothing() -> None:
    assert parse_dry_run("", "quadlet-generator[1]: No files parsed from map[/q:{}]\n").complaints == ()


def test_copies_leave_out_files_and_folders(tmp_path: Path) -> None:
    for name in ("one/a.container", "one/sub/b.container", "one/users/c.container", "two/d.volume"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "out").mkdir()
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    left_out = {str(tmp_path / "one/a.container"), str(tmp_path / "one/users")}
    copies = copy_without(folders, left_out, str(tmp_path / "out"))
    assert copies == [str(tmp_path / "out/0"), str(tmp_path / "out/1")]
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert found == ["0/sub/b.container", "1/d.volume"]


SHOWN = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "FragmentPath": "/etc/systemd/system/x.service",
    "DropInPaths": "/a.conf /b.conf",
    "RequiredBy": "y.service multi-user.target",
    "BoundBy": "",
    "TriggeredBy": "x.timer y.service",
    "ConsistsOf": "",
}


def test_parse_seen() -> None:
    seen = _manager.parse_seen("".join(f"{key}={value}\n" for key, value in SHOWN.items()))
    assert (seen.load, seen.active, seen.unit_file, seen.drop_ins) == (
        "loaded",
        "active",
        "enabled",
        ("/a.conf", "/b.conf"),
    )
    assert seen.hangers == ("x.timer", "y.service"), "a target does not count"


@pytest.mark.parametrize("key", list(SHOWN))
def test_a_property_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(FleetError, match=f"no {key}"):
        _manager.parse_seen("".join(f"{name}={value}\n" for name, value in SHOWN.items() if name != key))


@pytest.mark.parametrize(
    ("active", "stopped"),
    [("active", False), ("activating", False), ("deactivating", False), ("inactive", True), ("failed", True)],
)
def test_stopped(active: str, stopped: bool) -> None:
    text = "".join(f"{key}={value}\n" for key, value in {**SHOWN, "ActiveState": active}.items())
    assert _manager.parse_seen(text).stopped is stopped


@pytest.mark.parametrize("text", ["", "null", "[]"])
def test_no_containers(text: str) -> None:
    assert _manager.parse_containers(text) == []


@pytest.mark.parametrize(
    ("state", "running"),
    [("running", True), ("Up", True), ("paused", True), ("stopping", True), ("exited", False), ("created", False)],
)
def test_containers(state: str, running: bool) -> None:
    listed: list[dict[str, Any]] = [
        {"Id": "ab", "Names": ["x"], "State": state, "Labels": {"PODMAN_SYSTEMD_UNIT": "x.service"}, "Pid": 7},
        {"Id": "cd", "Names": None, "State": state, "Labels": None},
    ]
    first, second = _manager.parse_containers(json.dumps(listed))
    assert (first.id, first.name, first.unit, first.pid, first.running) == ("ab", "x", "x.service", 7, running)
    assert (second.name, second.unit, second.pid) == ("", "", 0)


@pytest.mark.parametrize(
    ("unit", "manager", "found"),
    [
        ("x.service", None, [1, 2, 3, 8]),
        ("x.service", "user@1000.service", [4]),
        ("x.service", "user@1001.service", [5]),
        ("user@1000.service", None, [4]),
        ("y.service", None, []),
    ],
)
def test_pids_in(tmp_path: Path, unit: str, manager: str | None, found: list[int]) -> None:
    user = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"
    groups = {
        1: "0::/system.slice/x.service\n",
        2: "1:name=systemd:/system.slice/x.service/libpod-payload-ab\n0::/\n",
        3: "0::/system.slice/x.service/container/init.scope/system.slice/ssh.service\n",
        4: f"0::{user}\n",
        5: f"0::{user.replace('1000', '1001')}/libpod-payload-cd\n",
        6: "0::/system.slice/xx.service\n",
        7: "4:memory:/system.slice/x.service\n0::/\n",
        8: "0::/libpod_parent/libpod-ab/system.slice/x.service/runtime\n",
    }
    for pid, text in groups.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
    (tmp_path / "9").mkdir()  # ended while we looked
    (tmp_path / "self").mkdir()
    assert _manager.pids_in(unit, manager, str(tmp_path)) == found


def test_a_socket_that_a_dead_manager_left_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "private")
    assert _manager.listens(path) is False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        assert _manager.listens(path) is True
    assert os.path.exists(path) and _manager.listens(path) is False


def test_a_users_manager_that_fails_is_shown_at_once(
    stand_in: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stand_in("systemctl", '[ "$1" = status ] && echo "user@4242.service failed: no XDG_RUNTIME_DIR"; exit 1')
    manager = Manager("user", Account("gone", 4242, 4242, "/home/gone"))
    manager.runtime_dir = "/nonexistent"
    with pytest.raises(FleetError, match=r"manager of user gone does not answer.*no XDG_RUNTIME_DIR"):
        manager.wake(30)
    assert manager.show("x.service").load == "not-found"


def test_a_users_manager_is_waited_for(
    stand_in: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stand_in("systemctl", "exit 0")
    manager = Manager("user", Account("slow", 4242, 4242, "/home/slow"))
    manager.runtime_dir = str(tmp_path)
    (tmp_path / "systemd").mkdir()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def late() -> None:
        server.bind(str(tmp_path / "systemd/private"))
        server.listen()

    timer = threading.Timer(0.3, late)
    timer.start()
    manager.wake(10)
    assert manager.answers
    timer.join()
    server.close()


@pytest.mark.parametrize(("scope", "uid", "right"), [("system", 1, False), ("user", 1, False), ("user", 4242, True)])
def test_who_may(scope: str, uid: int, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    who = Account("who", 4242, 4242, "/home/who")
    if right:
        assert Manager(scope, who).unit == "user@4242.service"
    else:
        with pytest.raises(FleetError, match="cannot be touched"):
            Manager(scope, who)


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(FleetError, match="user nobody-of-that-name is not on this host"):
        _manager.account("nobody-of-that-name")


def test_named() -> None:
    spec = RetireSpec(
        "s", "u", units=["a", "a.service", "b.timer"], quadlets=["x.container", "~/q/y.pod"], files=["/a//b/", "~/c"]
    )
    assert spec.named("/home/u") == [
        ("unit", "a.service"),
        ("unit", "b.timer"),
        ("quadlet", "x.container"),
        ("quadlet", "/home/u/q/y.pod"),
        ("file", "/a/b"),
        ("file", "/home/u/c"),
    ]


@pytest.mark.parametrize("scope", ["system", "user"])
def test_places_of_a_scope(scope: str) -> None:
    there = places(scope, ME)
    own = (*there.units, *there.quadlets)
    assert all(path.startswith("/home/me" if scope == "user" else "/") for path in own[:-1])
    assert not set(own) & {*there.units_of_others, *there.quadlets_of_others}


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/etc/systemd/system/x.service.d/a.conf", "x.service"),
        ("/etc/systemd/system/x.service.d", "x.service"),
        ("/q/x.container.d/a.conf", "x.container"),
        ("/etc/x.conf", None),
    ],
)
def test_unit_of_drop_in(path: str, unit: str | None) -> None:
    assert unit_of_drop_in(path) == unit


# ---------------------------------------------------------------- single moves


def test_a_taken_name_is_never_overwritten(tmp_path: Path) -> None:
    source, destination = tmp_path / "a", tmp_path / "b"
    source.write_text("old")
    destination.write_text("new")
    with pytest.raises(FleetError, match=r"b is taken"):
        move(describe(str(source)), str(source), str(destination))
    assert source.read_text() == "old" and destination.read_text() == "new"


def test_a_name_taken_in_the_last_moment_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = tmp_path / "a", tmp_path / "b"
    source.write_text("old")
    entry = describe(str(source))
    real = os.link

    def late(*args: Any, **given: Any) -> None:
        destination.write_text("new")
        real(*args, **given)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileExistsError):
        move(entry, str(source), str(destination))
    assert source.read_text() == "old" and destination.read_text() == "new"


def test_a_file_that_changed_since_it_was_listed_stays(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_text("old")
    entry = describe(str(source))
    source.write_text("other")
    with pytest.raises(FleetError, match="changed after it was listed"):
        move(entry, str(source), str(tmp_path / "b"))
    assert source.read_text() == "other" and not (tmp_path / "b").exists()


def test_a_file_that_changes_while_it_is_copied_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    source.write_text("old")
    entry = describe(str(source))

    def across(*_args: Any, **_given: Any) -> None:
        source.write_text("OLD")
        raise OSError(18, "another file system")

    monkeypatch.setattr(os, "link", across)
    with pytest.raises(FleetError, match="changed while it was moved"):
        move(entry, str(source), str(tmp_path / "b"))
    assert source.read_text() == "OLD" and [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_in_the_middle_of_a_copy_leaves_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    source.write_text("old")
    entry = describe(str(source))

    def fail(number: int) -> Callable[..., None]:
        def call(*_args: Any, **_given: Any) -> None:
            raise OSError(number, os.strerror(number))

        return call

    monkeypatch.setattr(os, "link", fail(18))
    monkeypatch.setattr(os, "fsync", fail(28))
    with pytest.raises(OSError, match="No space left"):
        move(entry, str(source), str(tmp_path / "b"))
    assert source.read_text() == "old" and not (tmp_path / "b").exists()


def test_what_is_at_neither_place_is_told(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_text("old")
    entry = describe(str(source))
    source.unlink()
    with pytest.raises(FleetError, match="neither where it was nor where it was to go"):
        move(entry, str(source), str(tmp_path / "b"))


def test_a_link_among_the_parents_of_the_destination_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trash").symlink_to(tmp_path / "elsewhere")
    source = tmp_path / "deep/a"
    source.parent.mkdir()
    source.write_text("old")
    with pytest.raises(FleetError, match="trash is in the way"):
        move(describe(str(source)), str(source), str(tmp_path / "trash/deep/a"))
    assert source.read_text() == "old"


def test_a_mount_point_is_refused() -> None:
    with pytest.raises(FleetError, match="is a mount point"):
        describe("/proc")


def test_an_entry_survives_its_record(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.write_text("x")
    path.chmod(0o4750)
    entry = describe(str(path))
    assert _trash.Entry.from_dict(json.loads(json.dumps(entry.as_dict("/t")))) == entry
