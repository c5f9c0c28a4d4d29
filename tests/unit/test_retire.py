# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole retirement on real files; systemd and podman are stand-ins (the scenario has the real ones)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _retire, _retire_proof
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire import RetireSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import Places
from fakemanager import FakeManager

OLD = 1_500_000_000
Tree = dict[str, tuple[str, int, str, int]]


class Box:
    """A machine in a folder: a plain unit with links and a drop-in, three quadlets, a launcher's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.units = root / "etc/systemd/system"
        self.quadlets = root / "etc/containers/systemd"
        self.places = Places(
            units=(str(self.units),),
            units_of_others=(str(root / "usr/lib/systemd/system"),),
            quadlets=(str(self.quadlets),),
            quadlets_of_others=(),
        )
        self.home.mkdir()
        self.put("etc/systemd/system/old.service", "[Service]\nExecStart=/opt/old/serve\n", 0o640)
        self.put("etc/systemd/system/old.service.d/gpu.conf", "[Service]\nEnvironment=A=1\n")
        self.link("etc/systemd/system/multi-user.target.wants/old.service", str(self.units / "old.service"))
        self.link("etc/systemd/system/alias.service", "old.service")
        self.put("etc/systemd/system/other.service", "[Service]\nExecStart=/bin/true\n")
        self.put("etc/containers/systemd/a.container", "[Container]\nImage=x\nVolume=dat.volume\n")
        self.put("etc/containers/systemd/a.container.d/10.conf", "[Container]\nEnvironment=B=1\n")
        self.put("etc/containers/systemd/sub/b.container", "[Container]\nServiceName=bee\n")
        self.put("etc/containers/systemd/dat.volume", "[Volume]\n")
        self.put("opt/old/serve", "#!/bin/sh\n", 0o755)
        self.put("opt/old/lib/big", "x" * 5000, 0o600)
        self.host = FakeManager(self.home, self.places, root / "manager.json")
        self.host.set(active=["old.service", "a.service", "bee.service", "dat-volume.service", "other.service"])

    def put(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        os.utime(path, ns=(OLD * 10**9, OLD * 10**9 + 123))
        return path

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def spec(self, slug: str = "swap", **given: Any) -> RetireSpec:
        return RetireSpec(slug=slug, user="owner", **{"timeout_s": 0.2, **given})

    def whole(self, **given: Any) -> RetireSpec:
        names = {
            "units": ["old"],
            "quadlets": ["a.container", "b.container", "dat.volume"],
            "files": [str(self.root / "opt/old")],
        }
        return self.spec(**{**names, **given})

    def few(self) -> RetireSpec:
        """One of each kind: every step of a move, in as few steps as may be."""
        return self.spec(units=["old"], quadlets=["b.container"], files=[str(self.root / "opt/old/lib")])

    def retire(self, spec: RetireSpec, **given: Any) -> dict[str, Any]:
        return _retire.retire(spec, manager=self.host, where=self.places, **given)

    def undo(self, spec: RetireSpec, **given: Any) -> dict[str, Any]:
        return _retire.undo(spec, manager=self.host, where=self.places, **given)

    def folder(self, slug: str = "swap") -> Path:
        return self.home / ".AGENTTRASH" / f"{datetime.now():%Y%m%d}-{slug}"

    def manifest(self, slug: str = "swap") -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder(slug) / "manifest.json").read_text())
        return value

    def tree(self, folder: Path | None = None) -> Tree:
        """Everything below ``folder``, the trash left out: kind, mode, content or target, time of a file."""
        top = folder or self.root
        found: Tree = {}
        for path in sorted(top.rglob("*")):
            name = str(path.relative_to(top))
            if name.startswith(("home", "manager.", "manifest.json")):
                continue
            here = path.lstat()
            if path.is_symlink():
                found[name] = ("link", 0, os.readlink(path), 0)
            elif path.is_dir():
                found[name] = ("dir", stat.S_IMODE(here.st_mode), "", 0)
            else:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[name] = ("file", stat.S_IMODE(here.st_mode), digest, here.st_mtime_ns)
        return found

    def lost(self, before: Tree) -> list[str]:
        """Files of ``before`` whose name and content are neither at their place nor in the trash."""
        here = [self.tree(), *(self.tree(each) for each in (self.home / ".AGENTTRASH").glob("*"))]
        prefix = str(self.root)[1:] + "/"
        gone = []
        for name, value in before.items():
            if value[0] == "dir":
                continue
            copies = [tree.get(name) for tree in here[:1]] + [tree.get(prefix + name) for tree in here[1:]]
            if not any(copy and copy[0] == value[0] and copy[2] == value[2] for copy in copies):
                gone.append(name)
        return gone


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(_retire_proof, "_SETTLE_S", 0.2)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # no power is cut here
    return Box(tmp_path)


def files(tree: Tree) -> Tree:
    return {name: value for name, value in tree.items() if value[0] != "dir"}


def test_everything_named_is_stopped_moved_and_recorded(box: Box) -> None:
    before = box.tree()
    told = box.retire(box.whole())
    assert told["changed"] is True and told["folders"] == [str(box.folder())]
    left = files(box.tree())
    assert set(left) == {"etc/systemd/system/other.service"}
    assert box.host.read()["active"] == ["other.service"]
    assert set(box.host.read()["loaded"]) == {"other.service"}
    prefix = str(box.root)[1:] + "/"
    moved = {name.removeprefix(prefix): value for name, value in files(box.tree(box.folder())).items()}
    assert {**moved, **left} == files(before)
    manifest = box.manifest()
    assert manifest["state"] == "retired" and manifest["scope"] == "system"
    records = {entry["from"]: entry for item in manifest["items"] for entry in item["entries"]}
    unit = records[str(box.units / "old.service")]
    assert unit["to"] == str(box.folder()) + unit["from"]
    assert unit["sha256"] == before["etc/systemd/system/old.service"][2] and unit["mode"] == "0640"
    assert unit["mtime_ns"] == OLD * 10**9 + 123
    state = {item["name"]: item["before"] for item in manifest["items"]}["old.service"]
    assert (state["active"], state["sub"], state["unit_file"]) == ("active", "running", "enabled")
    assert {item["name"]: item["service"] for item in manifest["items"]}["b.container"] == "bee.service"


def test_directories_keep_mode_and_time(box: Box) -> None:
    (box.root / "opt/old/lib").chmod(0o2750)
    os.utime(box.root / "opt/old/lib", ns=(7, 9))
    box.retire(box.whole())
    inside = box.folder() / str(box.root / "opt/old/lib")[1:]
    assert stat.S_IMODE(inside.stat().st_mode) == 0o2750 and inside.stat().st_mtime_ns == 9
    box.undo(box.spec())
    back = (box.root / "opt/old/lib").stat()
    assert stat.S_IMODE(back.st_mode) == 0o2750 and back.st_mtime_ns == 9


def test_a_second_run_changes_nothing(box: Box) -> None:
    box.retire(box.whole())
    before, log = box.tree(box.folder()), box.host.read()["log"]
    told = box.retire(box.whole())
    assert told["changed"] is False and told["actions"] == [] and told["diff"]["before"] == ""
    assert box.host.read()["log"] == log and box.tree(box.folder()) == before
    assert told["retired"]["old.service"] == str(box.folder())


def test_a_finished_retirement_of_an_earlier_day_counts(box: Box) -> None:
    box.retire(box.whole())
    box.folder().rename(box.folder().with_name("20200101-swap"))
    assert box.retire(box.whole())["changed"] is False


def test_restore_puts_all_back_enabled_and_running(box: Box) -> None:
    box.host.set(active=["old.service", "a.service", "dat-volume.service"])
    before = box.tree()
    box.retire(box.whole())
    told = box.undo(box.spec())
    assert told["changed"] is True and box.tree() == before
    value = box.host.read()
    assert value["active"] == ["a.service", "dat-volume.service", "old.service"], "bee.service was stopped before"
    assert box.host.show("old.service").unit_file == "enabled"
    assert box.manifest()["state"] == "restored"
    assert box.undo(box.spec())["changed"] is False
    assert box.undo(box.whole())["changed"] is False


def test_retired_restored_retired_again(box: Box) -> None:
    before = box.tree()
    for number in ("", "-2", "-3"):
        told = box.retire(box.whole())
        assert told["folders"] == [str(box.folder()) + number]
        assert box.undo(box.spec())["changed"] is True
        assert box.tree() == before


def test_the_same_slug_for_other_things_is_kept_apart(box: Box) -> None:
    box.retire(box.spec(units=["old"]))
    told = box.retire(box.spec(quadlets=["b.container"]))
    assert told["folders"] == [f"{box.folder()}-2"]
    with pytest.raises(FleetError, match=r"the slug swap has 2 retirements.*old\.service"):
        box.undo(box.spec())
    assert box.undo(box.spec(quadlets=["b.container"]))["restored"] == {"b.container": f"{box.folder()}-2"}
    assert box.undo(box.spec())["restored"] == {"old.service": str(box.folder())}


def test_only_what_was_retired_since_comes_back(box: Box) -> None:
    """A deploy that fails puts back what it retired itself, not what one before had."""
    box.retire(box.spec(units=["old"]))
    manifest = box.folder() / "manifest.json"
    value = json.loads(manifest.read_text())
    value["times"]["begun"] = "2026-01-01T00:00:00+00:00"
    manifest.write_text(json.dumps(value))
    since = "2026-01-01T00:00:01+00:00"
    named = {"units": ["old"], "quadlets": ["b.container"]}
    assert box.undo(box.spec(**named), since=since)["restored"] == {}  # refused before anything moved: nothing is owed
    box.put("etc/systemd/system/old.service", "[Service]\nExecStart=/opt/newer\n")
    box.retire(box.spec(units=["old"]))
    told = box.undo(box.spec(**named), since=since)
    assert told["restored"] == {"old.service": f"{box.folder()}-2"}
    assert "newer" in (box.units / "old.service").read_text()
    assert box.manifest()["state"] == "retired"


def test_a_folder_made_by_hand_is_left_alone(box: Box) -> None:
    box.folder().mkdir(parents=True)
    (box.folder() / "note").write_text("mine")
    assert box.retire(box.spec(units=["old"]))["folders"] == [f"{box.folder()}-2"]
    assert [path.name for path in box.folder().iterdir()] == ["note"]


def test_what_came_back_is_retired_into_a_folder_of_its_own(box: Box) -> None:
    box.retire(box.spec(units=["old", "other"]))
    box.put("etc/systemd/system/old.service", "[Service]\nExecStart=/new\n")
    told = box.retire(box.spec(units=["old", "other"]))
    assert told["folders"] == [f"{box.folder()}-2"]
    assert (box.folder() / str(box.units / "old.service")[1:]).read_text().endswith("/opt/old/serve\n")


def test_the_callers_own_unit_of_that_name_is_not_the_old_one(box: Box) -> None:
    own = str(box.units / "old.service")
    box.retire(box.spec(units=["old"], own=[own]))
    assert box.units.joinpath("old.service").exists(), "never retired, and its name is the caller's now"
    box.retire(box.spec(units=["old"]))
    box.put("etc/systemd/system/old.service", "[Service]\nExecStart=/new\n")
    assert box.retire(box.spec(units=["old"], own=[own]))["changed"] is False


def test_check_mode_tells_what_the_run_does_and_touches_nothing(box: Box) -> None:
    before, log = box.tree(), box.host.read()["log"]
    predicted = box.retire(box.whole(), check_mode=True)
    assert box.tree() == before and box.host.read()["log"] == log and not (box.home / ".AGENTTRASH").exists()
    assert box.retire(box.whole()) == predicted
    assert "old.service active (running), enabled\n" in predicted["diff"]["before"]
    assert f"{box.folder()}{box.units}/old.service\n" in predicted["diff"]["after"]
    predicted = box.undo(box.spec(), check_mode=True)
    assert box.tree() != before
    assert box.undo(box.spec()) == predicted and box.tree() == before


def test_a_link_is_retired_and_its_target_is_not(box: Box) -> None:
    target = box.put("srv/repo/linked.service", "[Service]\n")
    box.link("etc/systemd/system/linked.service", str(target))
    box.host.reload()
    box.retire(box.spec(units=["linked"]))
    assert target.read_text() == "[Service]\n" and not (box.units / "linked.service").is_symlink()
    record = box.manifest()["items"][0]["entries"][0]
    assert (record["kind"], record["target"], record["sha256"]) == ("link", str(target), None)
    box.undo(box.spec())
    assert os.readlink(box.units / "linked.service") == str(target)


def test_a_drop_in_alone_leaves_its_unit_running_and_says_so(box: Box) -> None:
    told = box.retire(box.spec(drop_ins=[str(box.units / "old.service.d/gpu.conf")]))
    assert box.host.show("old.service").drop_ins == () and "old.service" in box.host.read()["active"]
    assert "until it is restarted" in told["warnings"][0]
    assert "stop old.service" not in box.host.read()["log"]


# ---------------------------------------------------------------- refusals: nothing is touched


def untouched(box: Box, call: Callable[[], Any], message: str) -> FleetError:
    before, state = box.tree(), box.host.read()
    with pytest.raises(FleetError, match=message) as caught:
        call()
    assert box.tree() == before and box.host.read() == state
    assert not (box.home / ".AGENTTRASH").is_dir() or not list((box.home / ".AGENTTRASH").glob("*/manifest.json"))
    return caught.value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"units": ["olt.service"]}, r"unit olt\.service is not there.*Near: old\.service"),
        ({"quadlets": ["aa.container"]}, r"quadlet aa\.container is not there.*Near: a\.container"),
        ({"quadlets": ["a.service"]}, r"a\.service is no quadlet"),
        ({"units": ["old@1"]}, "belongs to a template"),
        ({"units": ["../old"]}, "is no unit's name"),
        ({"files": ["opt/old"]}, "expected an absolute path"),
        ({"files": ["/"]}, "cannot be retired"),
        ({"slug": "../x"}, "slug"),
        ({"scope": "both"}, "scope"),
        ({"quadlets": ["dat.volume"]}, r"podman would not make a\.service any more.*dat\.volume"),
    ],
)
def test_refusals(box: Box, given: dict[str, Any], message: str) -> None:
    untouched(box, lambda: box.retire(box.spec(**given)), message)


def test_a_drop_ins_path_must_be_one(box: Box) -> None:
    untouched(box, lambda: box.retire(box.spec(drop_ins=[str(box.units / "old.service")])), "is no drop-in")


def test_a_missing_file_gets_near_names(box: Box) -> None:
    error = untouched(box, lambda: box.retire(box.spec(files=[str(box.root / "opt/odl")])), "is not there")
    assert str(box.root / "opt/old") in error.message


def test_the_trash_and_the_home_cannot_be_retired(box: Box) -> None:
    untouched(box, lambda: box.retire(box.spec(files=[str(box.home)])), "beside the trash")


def test_a_packages_unit_is_refused(box: Box) -> None:
    box.put("usr/lib/systemd/system/old.service", "[Service]\n")
    untouched(box, lambda: box.retire(box.spec(units=["old"])), "not yours to move")


def test_units_that_hang_on_it_are_named(box: Box) -> None:
    box.host.set(hangers={"old.service": ["other.service", "idle.service"]})
    error = untouched(box, lambda: box.retire(box.spec(units=["old"])), "other units hang on")
    assert error.found == "other.service"
    box.retire(box.spec(units=["old", "other"]))


def test_a_unit_that_shadows_the_quadlet_is_named(box: Box) -> None:
    box.put("etc/systemd/system/bee.service", "[Service]\n")
    box.host.reload()
    error = untouched(box, lambda: box.retire(box.spec(quadlets=["b.container"])), "does not come from")
    assert error.found == str(box.units / "bee.service")
    untouched(box, lambda: box.retire(box.spec(units=["bee"])), "would come back")
    box.retire(box.spec(units=["bee"], quadlets=["b.container"]))


def test_a_quadlet_that_podman_refuses_can_be_retired_and_its_words_are_told(box: Box) -> None:
    path = str(box.quadlets / "sub/b.container")
    box.host.set(broken=[path], active=[])
    box.host.reload()
    told = box.retire(box.spec(quadlets=["b.container"]))
    assert told["changed"] and "podman makes no unit of" in told["warnings"][0] and "bad key" in told["warnings"][0]
    box.undo(box.spec())


def test_a_restored_quadlet_that_podman_refuses_is_an_error(box: Box) -> None:
    box.retire(box.spec(quadlets=["b.container"]))
    box.host.set(broken=[str(box.quadlets / "sub/b.container")])
    with pytest.raises(FleetError, match=r"podman makes no bee\.service.*bad key"):
        box.undo(box.spec())
    box.host.set(broken=[])
    box.undo(box.spec())
    assert "bee.service" in box.host.read()["active"] and box.manifest()["state"] == "restored"


def test_two_quadlets_of_one_name_need_a_path(box: Box) -> None:
    box.put("etc/containers/systemd/other/b.container", "[Container]\nServiceName=cee\n")
    untouched(box, lambda: box.retire(box.spec(quadlets=["b.container"])), "more than once")
    box.retire(box.spec(quadlets=[str(box.quadlets / "other/b.container")]))
    assert (box.quadlets / "sub/b.container").exists()


def test_a_pipe_is_refused(box: Box) -> None:
    os.mkfifo(box.root / "opt/old/pipe")
    with pytest.raises(FleetError, match="a socket, pipe or device"):
        box.retire(box.whole())


def test_a_trash_that_is_a_link_is_refused(box: Box) -> None:
    (box.root / "elsewhere").mkdir()
    (box.home / ".AGENTTRASH").symlink_to(box.root / "elsewhere")
    untouched(box, lambda: box.retire(box.whole()), "is in the way")


def test_restore_refuses_a_taken_origin_before_anything_moves(box: Box) -> None:
    box.retire(box.whole())
    new = box.put("etc/systemd/system/old.service", "new")
    before = box.tree()
    with pytest.raises(FleetError, match=r"old\.service is there again"):
        box.undo(box.spec())
    assert box.tree() == before and new.read_text() == "new" and box.manifest()["state"] == "retired"


def test_restore_of_what_was_never_retired(box: Box) -> None:
    with pytest.raises(FleetError, match="nothing of the sort was retired"):
        box.undo(box.spec())
    box.retire(box.spec(units=["old"]))
    with pytest.raises(FleetError, match=r"other\.service.*found old\.service"):
        box.undo(box.spec(units=["other"]))


@pytest.mark.parametrize("damage", ["{", "{}", '{"version": 2, "state": "retired"}'])
def test_a_damaged_manifest_is_named(box: Box, damage: str) -> None:
    box.retire(box.whole())
    (box.folder() / "manifest.json").write_text(damage)
    with pytest.raises(FleetError, match=r"manifest\.json is damaged"):
        box.undo(box.spec())


def test_a_manifest_that_leads_elsewhere_is_damaged(box: Box) -> None:
    box.retire(box.spec(units=["old"]))
    value = box.manifest()
    value["items"][0]["entries"][0]["from"] = "/etc/../x"
    (box.folder() / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(FleetError, match="not absolute and plain"):
        box.undo(box.spec())


def test_another_users_manifest_is_not_trusted(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.retire(box.spec(units=["old"]))
    real = os.lstat

    def foreign(path: Any, **given: Any) -> os.stat_result:
        found = real(path, **given)
        if str(path).endswith("manifest.json"):
            return os.stat_result((*found[:4], 4242, *found[5:]))
        return found

    monkeypatch.setattr(os, "lstat", foreign)
    with pytest.raises(FleetError, match="cannot be trusted"):
        box.undo(box.spec())


# ---------------------------------------------------------------- what is left, and long stops


def test_a_process_that_is_left_is_an_error_and_the_next_run_finishes(box: Box) -> None:
    box.host.set(left={"old.service": [os.getpid()]})
    with pytest.raises(FleetError, match=rf"is left.*pid {os.getpid()}"):
        box.retire(box.spec(units=["old"]))
    assert box.manifest()["state"] == "begun"
    box.host.set(left={})
    assert box.retire(box.spec(units=["old"]))["changed"] is True
    assert box.manifest()["state"] == "retired" and box.manifest()["items"][0]["before"]["active"] == "active"


def test_a_running_container_is_an_error_a_stopped_one_a_warning(box: Box) -> None:
    box.host.set(containers=[["c1" * 9, "bee", "running", "bee.service", 0]])
    with pytest.raises(FleetError, match=r"container bee .* is running"):
        box.retire(box.spec(quadlets=["b.container"]))
    box.host.set(containers=[["c1" * 9, "bee", "exited", "bee.service", 0]])
    told = box.retire(box.spec(quadlets=["b.container"]))
    assert "container bee" in told["warnings"][0] and "left alone" in told["warnings"][0]


def test_a_stop_past_its_time_keeps_that_unit_and_those_after_it(box: Box) -> None:
    box.host.set(stuck=["bee.service"])
    before = box.tree()
    with pytest.raises(FleetError, match=r"bee\.service did not stop.*within 0\.2 s.*pid") as caught:
        box.retire(box.spec(units=["old"], quadlets=["b.container", "a.container"]))
    assert caught.value.facts["retired"] == ["old.service"]
    assert caught.value.facts["untouched"] == ["b.container", "a.container"]
    assert (box.quadlets / "sub/b.container").exists() and (box.quadlets / "a.container").exists()
    assert set(box.host.read()["active"]) == {"a.service", "bee.service", "dat-volume.service", "other.service"}
    assert box.host.read()["log"][-1] == "start bee.service"
    assert "old.service" in caught.value.message and "with state: restored" in caught.value.message
    box.undo(box.spec())
    assert box.tree() == before and "old.service" in box.host.read()["active"]


def test_after_a_stop_past_its_time_the_next_run_finishes(box: Box) -> None:
    box.host.set(stuck=["bee.service"])
    spec = box.spec(units=["old"], quadlets=["b.container"])
    with pytest.raises(FleetError):
        box.retire(spec)
    box.host.set(stuck=[])
    assert box.retire(spec)["changed"] is True
    assert box.manifest()["state"] == "retired" and len(list(box.folder().parent.iterdir())) == 1


def test_a_file_that_changed_between_a_kill_and_the_rerun_is_taken_as_it_is(box: Box) -> None:
    box.host.set(stuck=["old.service"])
    with pytest.raises(FleetError):
        box.retire(box.whole())
    box.put("opt/old/lib/more", "late")
    box.put("opt/old/serve", "changed")
    box.host.set(stuck=[])
    box.retire(box.whole())
    assert not (box.root / "opt/old").exists()
    assert (box.folder() / str(box.root / "opt/old/lib/more")[1:]).read_text() == "late"
    assert (box.folder() / str(box.root / "opt/old/serve")[1:]).read_text() == "changed"


# ---------------------------------------------------------------- killed after every single step

_STEPS = ("link", "unlink", "rename", "replace", "mkdir", "rmdir", "symlink", "chown", "chmod", "utime", "setxattr")


def killed_at(step: int, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, across: bool) -> bool:
    """Run ``work`` in a child that dies, without any clean-up, before its change number ``step``; True if it died."""
    child = os.fork()
    if child == 0:
        left = [step]

        def wrap(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def wrapped(*args: Any, **given: Any) -> Any:
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                if across and name == "link" and "partial" not in str(args[0]):
                    raise OSError(errno.EXDEV, "another file system")
                return real(*args, **given)

            setattr(owner, name, wrapped)

        try:
            for name in _STEPS:
                wrap(os, name)
            for name in ("begin_stop", "start", "reload"):
                wrap(FakeManager, name)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    return status == 9


@pytest.mark.parametrize("across", [False, True], ids=["one file system", "across file systems"])
def test_a_kill_before_any_step_loses_nothing_and_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, across: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # a kill leaves what the kernel holds
    for step in range(2000):
        root = tmp_path / str(step)
        root.mkdir()
        box = Box(root)
        before, active = box.tree(), sorted(box.host.read()["active"])
        died = killed_at(step, lambda box=box: box.retire(box.few()), monkeypatch, across)
        assert box.lost(before) == [], step
        if step % 2:
            box.retire(box.few())
            assert not (box.units / "old.service").exists() and not (box.root / "opt/old/lib").exists(), step
            assert [json.loads(p.read_text())["state"] for p in box.home.glob(".AGENTTRASH/*/manifest.json")] == [
                "retired"
            ], step
            assert not list(root.rglob("*.partial")), step
            assert box.retire(box.few())["changed"] is False
        if list(box.home.glob(".AGENTTRASH/*/manifest.json")):
            box.undo(box.few())
        assert files(box.tree()) == files(before), step
        assert sorted(box.host.read()["active"]) == active, step
        if not died:
            break
    assert step > 30


def test_a_kill_of_a_restore_before_any_step_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # a kill leaves what the kernel holds
    for step in range(2000):
        root = tmp_path / str(step)
        root.mkdir()
        box = Box(root)
        before, active = box.tree(), sorted(box.host.read()["active"])
        box.retire(box.few())
        died = killed_at(step, lambda box=box: box.undo(box.few()), monkeypatch, True)
        assert box.lost(before) == [], step
        if step % 2:
            box.retire(box.few())
            assert not (box.units / "old.service").exists() and not (box.root / "opt/old/lib").exists(), step
        box.undo(box.few())
        assert files(box.tree()) == files(before), step
        assert sorted(box.host.read()["active"]) == active, step
        assert not list(root.rglob("*.partial")), step
        if not died:
            break
    assert step > 30
