# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of payload files at rest: whose turn it is, what is marked, what is told, and its place on a host."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _rest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _rest_install as install
from ansible_collections.dank.llm_fleet.plugins.module_utils._endpoint_look import damage_links
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import PayloadSpec, ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._rest import (
    Checked,
    Folders,
    check_next,
    damage_of,
    longest_unread,
    metrics_text,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import first_broken
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import (
    Identity,
    Stamp,
    read_stamp,
    stamp_path,
    write_stamp,
)
from hypothesis import given
from hypothesis import strategies as st

PROGRAM = Path(__file__).resolve().parents[2] / "roles" / "payload" / "files" / "llm-fleet-payload-check"
DAY = 86400.0
GOOD, BAD = b"weights" * 1000, b"weighTs" * 1000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Host:
    """Folders of a host, with payload files that were proven at a given time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = Folders(str(root / "stamps"), str(root / "damaged"), str(root / "metrics" / "payload.prom"))

    def prove(self, name: str, at: float, data: bytes = GOOD) -> str:
        path = self.root / name
        if not path.exists():
            path.write_bytes(data)
        write_stamp(self.folders.stamps, str(path), sha(data), Identity.of(path.stat()), at, "chat")
        return str(path)

    def rot(self, path: str, data: bytes = BAD) -> None:
        """Other bytes of the same length, and the time of the last change put back."""
        state = os.stat(path)
        with open(path, "r+b") as handle:
            handle.write(data)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    def damaged(self, path: str) -> bool:
        return damage_of(self.folders.damaged, path) is not None

    def stamp(self, path: str) -> Stamp:
        stamp = read_stamp(self.folders.stamps, path)
        assert stamp is not None
        return stamp

    @property
    def metrics(self) -> str:
        return Path(self.folders.metrics).read_text()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def stamped(path: str, at: float) -> Stamp:
    return Stamp(path, "0" * 64, Identity(1, 2, 3, 4, 5), at)


@pytest.mark.parametrize(
    ("stamps", "tried", "path"),
    [
        ([], {}, None),
        ([("a", 30), ("b", 10), ("c", 20)], {}, "b"),
        ([("b", 10), ("a", 10)], {}, "a"),
        ([("a", 30), ("b", 10)], {"b": 40}, "a"),
        ([("a", 30), ("b", 10)], {"b": 20}, "b"),
    ],
    ids=["none", "oldest", "same age", "tried since", "tried before"],
)
def test_whose_turn_it_is(stamps: list[tuple[str, float]], tried: dict[str, float], path: str | None) -> None:
    marks = [_rest.Damage(name, "", "", "", Identity(1, 2, 3, 4, 5), at) for name, at in tried.items()]
    found = longest_unread([stamped(*each) for each in stamps], marks)
    assert (found and found.path) == path


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1e9), min_size=1, max_size=12))
def test_every_file_has_its_turn(ages: dict[str, float]) -> None:
    stamps = {path: stamped(path, at) for path, at in ages.items()}
    seen = []
    for night in range(len(stamps)):
        turn = longest_unread(stamps.values(), [])
        assert turn is not None
        seen.append(turn.path)
        stamps[turn.path] = replace(turn, verified_at=2e9 + night)
    assert sorted(seen) == sorted(ages)


def test_a_good_file_is_stamped_anew_and_the_others_are_left_alone(host: Host) -> None:
    old, young = host.prove("old", 1 * DAY), host.prove("young", 5 * DAY)
    assert check_next(host.folders, 10 * DAY) == Checked(old, sha(GOOD), sha(GOOD))
    assert host.stamp(old) == Stamp(old, sha(GOOD), Identity.of(os.stat(old)), 10 * DAY, "chat")
    assert host.stamp(young).verified_at == 5 * DAY
    told = check_next(host.folders, 11 * DAY)
    assert told is not None and told.path == young


def test_a_file_that_is_gone_is_passed_over(host: Host) -> None:
    gone, kept = host.prove("gone", 1), host.prove("kept", 2)
    os.unlink(gone)
    told = check_next(host.folders, DAY)
    assert told is not None and told.path == kept
    assert "/gone" not in host.metrics


def test_nothing_to_check_is_told_in_the_metrics(host: Host) -> None:
    assert check_next(host.folders, 5.0) is None
    assert "llm_fleet_payload_check_last_run_timestamp_seconds 5\n" in host.metrics


def test_a_flipped_bit_is_found_under_an_unchanged_time(host: Host) -> None:
    path = host.prove("m.gguf", DAY)
    before = os.stat(path)
    host.rot(path)
    assert (os.stat(path).st_mtime_ns, os.stat(path).st_size) == (before.st_mtime_ns, before.st_size)
    assert check_next(host.folders, 2 * DAY) == Checked(path, sha(GOOD), sha(BAD))
    assert host.damaged(path)
    assert f'llm_fleet_payload_mismatch{{path="{path}"}} 1\n' in host.metrics
    # Role payload sees another digest than the declared one, without reading the file.
    assert (host.stamp(path).sha256, host.stamp(path).identity) == (sha(BAD), Identity.of(os.stat(path)))


def test_role_payload_names_it_and_fetches_what_is_damaged(host: Host) -> None:
    (host.root / "source").write_bytes(GOOD)
    entry = {"name": "m", "bytes": len(GOOD), "sha256": sha(GOOD), "urls": [(host.root / "source").as_uri()]}
    params = {"name": "chat", "dir": str(host.root / "models"), "files": [entry], "mode": "0644", "verify": "stamp"}
    spec = PayloadSpec.from_params({**params, "stamp_dir": host.folders.stamps})
    path = spec.path(spec.files[0])

    def action(plan_only: bool) -> str:
        told = ensure(spec, check_mode=False, progress=Progress(None), plan_only=plan_only)
        return str(told["files"][0]["action"])

    assert action(False) == "fetched"
    assert host.stamp(path).payload == "chat"
    os.link(path, host.root / "twin")
    host.rot(path)
    state = Identity.of(os.stat(path))
    for name in (path, str(host.root / "twin")):  # true rot moves no time at all: the stamps still fit
        write_stamp(host.folders.stamps, name, sha(GOOD), state, DAY)
    assert action(True) == "none"
    check_next(host.folders, 2 * DAY)
    assert action(True) == "fetched", "not a link to the damaged bytes"
    assert action(False) == "fetched"
    assert Path(path).read_bytes() == GOOD and not host.damaged(path)
    check_next(host.folders, 3 * DAY)
    assert host.damaged(str(host.root / "twin")), "its other name was not replaced"


def test_damage_stays_until_the_file_is_replaced(host: Host) -> None:
    path = host.prove("m.gguf", DAY)
    host.rot(path)
    for night in (2, 3):
        told = check_next(host.folders, night * DAY)
        assert told is not None and not told.ok and told.expected == sha(GOOD)
        assert host.damaged(path)
    mark = next(Path(host.folders.damaged).glob("*.json"))
    device = os.stat(path).st_dev
    marked = mark.read_text()
    assert f'"device": {device}' in marked
    mark.write_text(marked.replace(f'"device": {device}', f'"device": {device + 1}'))
    assert host.damaged(path), "after a boot the file system's device has another number"
    (host.root / "new").write_bytes(GOOD)
    os.replace(host.root / "new", path)
    assert not host.damaged(path)
    host.prove("m.gguf", 4 * DAY)
    told = check_next(host.folders, 5 * DAY)
    assert told is not None and told.ok
    assert os.listdir(host.folders.damaged) == []
    assert "} 1\n" not in host.metrics


@pytest.mark.parametrize("by", ["the check", "role payload"])
def test_damage_ends_with_a_later_proof_of_the_same_file(host: Host, by: str) -> None:
    path = host.prove("m.gguf", DAY)
    host.rot(path)
    check_next(host.folders, 2 * DAY)
    host.rot(path, GOOD)
    assert host.damaged(path), "that it was mended is not known before it is read"
    if by == "the check":
        told = check_next(host.folders, 3 * DAY)
        assert told is not None and told.ok
    else:
        host.prove("m.gguf", 3 * DAY)
    assert not host.damaged(path)


def test_a_mark_of_a_file_that_was_replaced_costs_the_new_one_no_turn(host: Host) -> None:
    path, other = host.prove("m.gguf", 1 * DAY), host.prove("other", 5 * DAY)
    host.rot(path)
    check_next(host.folders, 9 * DAY)
    (host.root / "new").write_bytes(GOOD)
    os.replace(host.root / "new", path)
    host.prove("m.gguf", 2 * DAY)
    told = check_next(host.folders, 10 * DAY)
    assert told is not None and told.path == path != other


def test_a_second_name_is_damaged_too_and_passes_for_no_copy(host: Host) -> None:
    path = host.prove("m.gguf", 1 * DAY)
    os.link(path, host.root / "twin.gguf")
    host.rot(path)
    twin = host.prove("twin.gguf", 2 * DAY, GOOD)
    check_next(host.folders, 3 * DAY)
    assert host.damaged(path) and host.damaged(twin)
    assert host.stamp(twin).sha256 == sha(BAD)


def test_a_second_name_is_read_once(host: Host) -> None:
    path = host.prove("m.gguf", 1 * DAY)
    os.link(path, host.root / "twin.gguf")
    twin = host.prove("twin.gguf", 2 * DAY)
    check_next(host.folders, 3 * DAY)
    assert host.stamp(path).verified_at == host.stamp(twin).verified_at == 3 * DAY


def test_a_file_that_the_disk_does_not_give_is_damaged_and_waits_its_turn(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = host.prove("m.gguf", 1 * DAY), host.prove("other", 2 * DAY)
    real = _rest.hash_file

    def fails(name: str, on_bytes: Any) -> tuple[str, Identity]:
        if name == path:
            raise OSError(errno.EIO, "Input/output error", name)
        return real(name, on_bytes)

    monkeypatch.setattr(_rest, "hash_file", fails)
    told = check_next(host.folders, 3 * DAY)
    assert told == Checked(path, sha(GOOD), "unreadable: Input/output error")
    assert host.damaged(path)
    assert host.stamp(path).verified_at == 1 * DAY, "it was not read"
    told = check_next(host.folders, 4 * DAY)
    assert told is not None and told.path == other
    monkeypatch.setattr(_rest, "hash_file", lambda *_args: (_ for _ in ()).throw(PermissionError(13, "no", path)))
    with pytest.raises(PermissionError):
        check_next(host.folders, 5 * DAY)


def test_a_mark_that_is_none_is_named(host: Host) -> None:
    path = host.prove("m.gguf", 1 * DAY)
    Path(host.folders.damaged).mkdir()
    mark = Path(stamp_path(host.folders.damaged, path))
    for text in ('{"path": "x"}', "{"):
        mark.write_text(text)
        with pytest.raises(FleetError, match=re.escape(str(mark))):
            check_next(host.folders, 2 * DAY)


def test_metrics(host: Host) -> None:
    path = host.prove('a"b\\c', 1 * DAY)
    lines = metrics_text(host.folders, 3 * DAY).splitlines()
    label = path.replace("\\", "\\\\").replace('"', '\\"')
    assert [line for line in lines if not line.startswith("#")] == [
        f'llm_fleet_payload_verified_age_seconds{{payload="chat",path="{label}"}} 172800',
        f'llm_fleet_payload_mismatch{{path="{label}"}} 0',
        "llm_fleet_payload_check_last_run_timestamp_seconds 259200",
    ]
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == [
        line.split("{")[0].split()[0] for line in lines if not line.startswith("#")
    ]
    assert all(line.endswith(" gauge") for line in lines if line.startswith("# TYPE"))


def test_a_stamp_of_an_older_version_tells_no_payload(host: Host) -> None:
    path = host.prove("m", 1.0)
    file = Path(stamp_path(host.folders.stamps, path))
    value = json.loads(file.read_text())
    del value["payload"]
    file.write_text(json.dumps(value))
    assert host.stamp(path).payload == ""


def test_an_endpoint_of_the_file_is_not_true(host: Host, blueprint: Any) -> None:
    path, other = host.prove("m.gguf", 1 * DAY), host.prove("other.gguf", 9 * DAY)
    host.rot(path)
    check_next(host.folders, 2 * DAY)

    def links(*paths: str) -> Any:
        files = [{"path": each} for each in paths]
        era = Era("e", "", blueprint(payload={"name": "chat", "files": files}), {"state": "certified"})
        return damage_links(era, host.folders.damaged)

    broken = first_broken(links(other, path))
    assert broken is not None and broken.name == "payload m.gguf is damaged"
    assert (broken.expected, broken.found) == (sha(GOOD), sha(BAD)) and "site.yml" in broken.remedy
    assert links(other) == []


# The program on a host


@pytest.fixture
def spec(tmp_path: Path) -> install.RestSpec:
    root = tmp_path / "root"
    return install.RestSpec(
        True,
        PROGRAM.read_text(),
        str(root / "stamps"),
        home=str(root / "payload-check"),
        units=str(root / "units"),
        state=str(root / "state"),
    )


@pytest.fixture
def systemctl(stand_in: Any, tmp_path: Path) -> Path:
    """A stand-in whose timer is enabled while it says so; it writes down what it was told."""
    log = tmp_path / "log"
    log.touch()
    stand_in(
        "systemctl",
        f'echo "$*" >>{log}\n'
        f'case $1 in show) if [ -e {log}.on ]; then a=active e=enabled; else a=inactive e=; fi\n'
        'printf "ActiveState=%s\\nUnitFileState=%s\\nNeedDaemonReload=no\\n" "$a" "$e" ;;\n'
        f"enable) touch {log}.on ;; disable) rm {log}.on ;; esac",
    )  # fmt: skip
    return log


def files(spec: install.RestSpec) -> list[str]:
    root = Path(spec.units).parent
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_it_is_installed_once_and_removed_whole(spec: install.RestSpec, systemctl: Path) -> None:
    gone = replace(spec, present=False)
    assert install.converge(gone, dry=False)["changed"] is False
    assert install.converge(spec, dry=True)["changed"] is True
    assert files(spec) == []
    told = install.converge(spec, dry=False)
    assert told["changed"] and "Nice=19" in told["diff"]["after"][spec.service]
    assert {"payload-check/llm-fleet-payload-check", "units/llm-fleet-payload-check.timer"} < set(files(spec))
    assert "enable --quiet llm-fleet-payload-check.timer" in systemctl.read_text()
    assert install.converge(spec, dry=False) == {
        "changed": False,
        "files": [],
        "diff": {"before": {}, "after": {}},
    }

    Path(spec.metrics).parent.mkdir()
    Path(spec.metrics).write_text("x")
    told = install.converge(gone, dry=True)
    assert told["changed"] and told["diff"]["after"] == {} and spec.timer in told["diff"]["before"]
    assert install.converge(spec, dry=True)["changed"] is False, "a dry run removes nothing"
    assert install.converge(gone, dry=False)["changed"]
    assert files(spec) == []
    assert "disable --now --quiet llm-fleet-payload-check.timer" in systemctl.read_text()
    assert install.converge(gone, dry=False)["changed"] is False


@pytest.mark.parametrize("fault", ["timer disabled", "program edited", "mode", "library file missing", "stamp_dir"])
def test_what_differs_is_put_back(spec: install.RestSpec, systemctl: Path, fault: str) -> None:
    install.converge(spec, dry=False)
    program = Path(spec.home, install.NAME)
    if fault == "timer disabled":
        Path(f"{systemctl}.on").unlink()
    elif fault == "program edited":
        program.write_text("#!/bin/sh\n")
    elif fault == "mode":
        program.chmod(0o644)
    elif fault == "library file missing":
        next(Path(spec.home).rglob("_verify.py")).unlink()
    else:
        spec = replace(spec, stamp_dir=f"{spec.stamp_dir}2")
    assert install.converge(spec, dry=False)["changed"], fault
    assert not install.converge(spec, dry=True)["changed"]


def test_a_removal_that_was_cut_short_is_finished(spec: install.RestSpec, systemctl: Path) -> None:
    install.converge(spec, dry=False)
    for path in (spec.timer, spec.service):
        os.unlink(path)
    systemctl.write_text("")
    assert install.converge(replace(spec, present=False), dry=False)["changed"]
    assert files(spec) == [] and systemctl.read_text() == "daemon-reload\n"


def test_a_path_that_no_unit_can_hold_is_refused() -> None:
    with pytest.raises(FleetError, match="cannot stand in a unit"):
        install.RestSpec.from_params({"state": "present", "program": "", "stamp_dir": "/a b"})


def test_the_installed_program_needs_nothing_but_python(spec: install.RestSpec, systemctl: Path, host: Host) -> None:
    install.converge(spec, dry=False)
    folders = host.folders
    argv = [sys.executable, "-I", "-S", f"{spec.home}/{install.NAME}", "--stamp-dir", folders.stamps,
            "--damaged-dir", folders.damaged, "--metrics", folders.metrics]  # fmt: skip

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd="/", env={}, capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, done.stderr) == (0, "") and "nothing to check" in done.stdout
    path = host.prove("m.gguf", 1 * DAY)
    done = run()
    assert (done.returncode, done.stderr) == (0, "") and f"{path}: sha256 {sha(GOOD)}" in done.stdout
    host.rot(path)
    done = run()
    assert done.returncode == 1
    assert done.stderr == f"{path} is damaged: expected sha256 {sha(GOOD)}, found {sha(BAD)}\n"
    assert host.damaged(path)
    Path(stamp_path(folders.damaged, path)).write_text("{")
    done = run()
    assert done.returncode == 2 and "is damaged; expected JSON" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(Path(spec.home).rglob("__pycache__"))


def test_a_disk_without_room_is_one_line(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    (host.root / "file").touch()
    argv = ["--stamp-dir", host.folders.stamps, "--metrics", str(host.root / "file" / "sub" / "payload.prom")]
    argv += ["--damaged-dir", host.folders.damaged]
    assert _rest.main(argv) == 2
    assert str(host.root / "file") in capsys.readouterr().err
