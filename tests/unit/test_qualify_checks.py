# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a qualification refuses while production serves, each by name; the fork is the stand-in's checkout."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _qualify_checks, _qualify_fork, _qualify_memory
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory import validate
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify import Asked, asked_of, scratch_of, setup_argv
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_checks import (
    MARK,
    Plan,
    look_before,
    require_apart,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import Container, Image
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import Incumbent
from r9vhost import LAUNCHER, TABLE_BYTES, R9vHost, make_host

IMAGE = "2d" * 32
SHARD = "Standin-Q8_0-00001-of-00006.gguf"


class FakePodman:
    """podman of a user who has one image and, where a test says so, one container."""

    box: Container | None = None
    images = [Image("aa", frozenset({IMAGE}), ())]

    def __init__(self, user: str) -> None:
        self.user = user

    def image(self, digest: str) -> Image | None:
        return next((image for image in self.images if image.is_of(digest)), None)

    def container(self, _name: str) -> Container | None:
        return self.box


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def commit(host: R9vHost) -> None:
    git = ["git", "-C", str(host.checkout), "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    for words in (["add", "-A"], ["commit", "--quiet", "-m", "the stand-in"]):
        subprocess.run([*git, *words], check=True, capture_output=True)


@pytest.fixture
def host(tmp_path: Path) -> R9vHost:
    made = make_host(tmp_path)
    subprocess.run(["git", "init", "--quiet", made.checkout], check=True)
    commit(made)
    return made


@pytest.fixture
def paths(host: R9vHost, tmp_path: Path) -> Paths:
    tree = host.folder / "rt" / "r9v@1"
    tree.mkdir(parents=True)
    launch = host.checkout / "scripts" / "launch.sh"
    (tree / "build.json").write_text(json.dumps({"server_bin": str(launch), "digest": "d1", "version": IMAGE}))
    (host.folder / "rt" / "r9v").symlink_to("r9v@1")
    return Paths("two", state=str(tmp_path / "var"), runtimes=str(host.folder / "rt"))


@pytest.fixture
def declared(host: R9vHost) -> Declared:
    fresh = str(host.folder / "fresh" / "setup.json")
    env = {key: value for key, value in host.env.items() if key != "R9V_CHECKOUT"}
    qualify = {
        "profile": "q8", "model_dir": str(host.model_dir), "ple_path": str(host.table), "port": free_port(),
        "container": "two-qualify", "battery": ["chat", "tools"], "arguments": ["--accept-model-license"],
    }  # fmt: skip
    return Declared(
        "two", "r9v", env, "r9v",
        {"name": "q8", "dir": f"{host.model_dir}/target", "files": [{"name": SHARD, "bytes": 251}]},
        getpass.getuser(), LAUNCHER.read_text(),
        rungs={"fresh": {"R9V_STATE_FILE": fresh}},
        setups={
            "old": {"file": str(host.state_file)},
            "fresh": {"file": fresh, "ple_bytes": TABLE_BYTES, "headroom_gib": 3.3, "qualify": qualify},
        },
        cards=[{"name": "c", "vendor": "amd", "pci": "0000:03:00.0", "floor_mib": 1536}],
    )  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, paths: Paths) -> list[Incumbent]:
    """What serves; the host's other edges say that all is well."""
    found = [Incumbent(paths, 7, None)]
    monkeypatch.setattr(_qualify_checks, "incumbents_of", lambda _paths, _declared: found)
    monkeypatch.setattr(_qualify_checks, "gate_cards", lambda *_args: None)
    monkeypatch.setattr(_qualify_checks, "list_cards", list)
    monkeypatch.setattr(_qualify_checks, "serving_pids", lambda _paths: frozenset({8}))
    monkeypatch.setattr(_qualify_checks, "Podman", FakePodman)
    monkeypatch.setattr(_qualify_fork, "Podman", FakePodman)
    return found


def with_qualify(declared: Declared, **changes: Any) -> Declared:
    setup = declared.setups["fresh"]
    qualify = {**setup["qualify"], **changes}
    return replace(declared, setups={**declared.setups, "fresh": {**setup, "qualify": qualify}})


def look(declared: Declared, paths: Paths, **options: Any) -> Plan:
    given: dict[str, Any] = {"incumbent": "", "warnings": (), "despite_memory": False, **options}
    return look_before(declared, paths, asked_of(declared, "fresh"), **given)


def test_a_sound_one_passes_and_leaves_no_trace(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost
) -> None:
    before = sorted(str(path) for path in host.folder.rglob("*") if "__pycache__" not in path.parts)
    plan = look(declared, paths)
    assert sorted(str(path) for path in host.folder.rglob("*") if "__pycache__" not in path.parts) == before
    assert plan.incumbents is runs and plan.makes_way == ["two.service"] and plan.served_by == {8}
    assert plan.fork.image == IMAGE and plan.fork.profile_id == "standin/q8" and len(plan.fork.commit) == 40
    names = [file["name"] for file in plan.fork.profile_files]
    assert names == ["profiles/standin/q8/profile.env", "profiles/standin/q8/profile.json"]


def test_package_and_placement_that_the_profile_names_are_taken(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost
) -> None:
    """Whoever wrote them: package.json is asked for each artifact, both are noted with their digests."""
    package = host.checkout / "packages" / "models" / "standin" / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text(json.dumps({"artifacts": [{"path": f"target/{SHARD}", "bytes": 251, "sha256": "0" * 64}]}))
    profile = host.checkout / "profiles" / "standin" / "q8" / "profile.json"
    told = json.loads(profile.read_text())
    profile.write_text(json.dumps({**told, "descriptors": {"model_package": str(package.relative_to(host.checkout))}}))
    commit(host)
    names = [file["name"] for file in look(declared, paths).fork.profile_files]
    assert "packages/models/standin/package.json" in names
    package.write_text(json.dumps({"artifacts": [{"path": "mtp/absent.safetensors", "bytes": 1}]}))
    commit(host)
    with pytest.raises(FleetError, match=r"mtp/absent\.safetensors is missing"):
        look(declared, paths)
    package.unlink()
    commit(host)
    with pytest.raises(FleetError, match=r"package\.json, which the profile names"):
        look(declared, paths)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state_dir": "{state}"}, "qualify.state_dir {state} is shared with production"),
        ({"state_dir": "{state}/scratch"}, "is shared with production"),
        ({"state_dir": "{folder}"}, "is shared with production"),
        ({"port": 7770}, "qualify.port 7770 is production's"),
        ({"container": "two-r9v"}, "qualify.container two-r9v is production's"),
        ({"profile": "q9"}, "profile q9 is not in the checkout"),
        ({"model_dir": "{folder}/nowhere"}, "nowhere is no folder"),
    ],
)
def test_what_the_inventory_says_wrong(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost, changes: dict[str, Any], words: str
) -> None:
    names = {"state": host.state_file.parent, "folder": host.folder}
    filled = {key: value.format(**names) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(FleetError) as caught:
        look(with_qualify(declared, **filled), paths)
    assert words.format(**names) in caught.value.message


def test_a_link_to_the_production_folder_is_that_folder(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost
) -> None:
    (host.folder / "elsewhere").symlink_to(host.state_file.parent)
    with pytest.raises(FleetError, match="is shared with production"):
        look(with_qualify(declared, state_dir=str(host.folder / "elsewhere")), paths)


def test_a_rival_of_another_engine_is_production_too(declared: Declared) -> None:
    asked = asked_of(with_qualify(declared, port=8091), "fresh")
    with pytest.raises(FleetError, match=r"qualify\.port 8091 is production's"):
        require_apart(asked, [{"LISTEN_PORT": "8091"}])


Break = Callable[[R9vHost], Any]
PAYLOAD: list[tuple[Break, str]] = [
    (lambda host: (host.model_dir / "target" / SHARD).unlink(), f"{SHARD} is missing"),
    (lambda host: (host.model_dir / "target" / SHARD).write_bytes(b"x"), "has 1 bytes, and 251 are declared"),
    (lambda host: (host.model_dir / "target" / SHARD.replace("00001-", "00004-")).unlink(), "00004-of-00006.gguf is"),
    (lambda host: (host.model_dir / "vision" / "mmproj-Standin-F16.gguf").unlink(), "has no projector"),
    (lambda host: host.table.write_bytes(b"x" * (TABLE_BYTES - 1)), "4,095 bytes, and 4,096 are declared"),
    (lambda host: host.table.unlink(), "table.bin is missing"),
]


@pytest.mark.parametrize(("spoil", "words"), PAYLOAD)
def test_a_payload_that_is_not_whole(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost, spoil: Break, words: str
) -> None:
    spoil(host)
    with pytest.raises(FleetError) as caught:
        look(declared, paths)
    assert words in caught.value.message and "nothing was stopped" in caught.value.message


def test_a_checkout_that_is_not_its_commit(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost
) -> None:
    (host.checkout / "untracked").write_text("no harm")
    assert look(declared, paths)
    (host.checkout / "README.md").write_text("changed")
    with pytest.raises(FleetError, match=r"differs from its commit; .* found M README\.md"):
        look(declared, paths)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda host: (host.checkout / "r9v").chmod(0o644), "no executable r9v"),
        (
            lambda host: (host.checkout / "r9v").write_text("#!/bin/sh\necho broken >&2; exit 3\n"),
            "exit status 3: broken",
        ),
        (lambda host: (host.checkout / ".podman-shim" / "docker").unlink(), "no shim"),
    ],
)
def test_a_setup_that_cannot_be_run(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost, spoil: Break, words: str
) -> None:
    spoil(host)
    with pytest.raises(FleetError) as caught:
        look(declared, paths)
    assert "the fork's setup cannot be run" in caught.value.message and words in caught.value.message


def test_memory_that_is_warned_of(declared: Declared, paths: Paths, runs: list[Incumbent]) -> None:
    with pytest.raises(FleetError, match=r"needs 108 GB, 90 GB are available.*nothing was stopped"):
        look(declared, paths, warnings=["needs 108 GB, 90 GB are available"])
    plan = look(declared, paths, warnings=["needs 108 GB, 90 GB are available"], despite_memory=True)
    assert plan.warnings == ["needs 108 GB, 90 GB are available"]


def test_memory_that_the_profiles_own_settings_do_not_find(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_qualify_memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(FleetError, match=r"the memory plan warns.*pinned table.*nothing was stopped"):
        look(declared, paths)
    assert "pinned table" in look(declared, paths, despite_memory=True).warnings[0]


@pytest.mark.parametrize(
    ("incumbent", "serves", "words"),
    [
        ("", False, "found none serves"),
        ("none", True, "expected none; found two"),
        ("three", True, "expected three; found two"),
    ],
)
def test_the_incumbent_is_the_declared_one(
    declared: Declared, paths: Paths, runs: list[Incumbent], incumbent: str, serves: bool, words: str
) -> None:
    if not serves:
        runs.clear()
    with pytest.raises(FleetError) as caught:
        look(declared, paths, incumbent=incumbent)
    assert words in caught.value.message and "nothing was stopped" in caught.value.message
    runs[:] = [Incumbent(paths, 7, None)] if serves else []
    assert look(declared, paths, incumbent="two" if serves else "none").incumbents == runs


def test_cards_that_cannot_tell_what_they_have_free(declared: Declared, paths: Paths, runs: list[Incumbent]) -> None:
    unknown = replace(declared, cards=[{**declared.cards[0], "pci": "unknown"}])
    for one in (unknown, replace(declared, cards=[])):
        with pytest.raises(FleetError, match="headroom of setup fresh cannot be measured"):
            look(one, paths)
    setups = {**declared.setups, "fresh": {**declared.setups["fresh"], "headroom_gib": 0}}
    assert look(replace(unknown, setups=setups), paths)


def test_a_port_that_somebody_has(declared: Declared, paths: Paths, runs: list[Incumbent]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(FleetError, match=f"port {port}, where the profile would be probed; expected nobody"):
            look(with_qualify(declared, port=port), paths)


def test_a_container_that_runs_and_one_that_is_over(
    declared: Declared, paths: Paths, runs: list[Incumbent], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Container("id", "running", 9, 8, 0, "i", "d", {}, "")
    monkeypatch.setattr(FakePodman, "box", box)
    with pytest.raises(FleetError, match="container two-qualify runs"):
        look(declared, paths)
    monkeypatch.setattr(FakePodman, "box", replace(box, pid=0, status="exited"))
    assert look(declared, paths)


def test_a_scratch_folder_that_is_not_ours(
    declared: Declared, paths: Paths, runs: list[Incumbent], host: R9vHost
) -> None:
    scratch = host.folder / "fresh.qualify"
    scratch.mkdir()
    assert look(declared, paths)
    (scratch / "precious").write_text("x")
    with pytest.raises(FleetError, match="files that this collection did not write"):
        look(declared, paths)
    (scratch / MARK).write_text("an earlier run")
    assert look(declared, paths)


def test_an_image_that_podman_does_not_have(
    declared: Declared, paths: Paths, runs: list[Incumbent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakePodman, "images", [])
    with pytest.raises(FleetError, match=f"image sha256:{IMAGE}"):
        look(declared, paths)


def test_a_setup_that_no_lines_serve_from(declared: Declared) -> None:
    with pytest.raises(FleetError, match="cannot serve from"):
        asked_of(replace(declared, rungs={}), "fresh")
    with pytest.raises(FleetError, match="expected one that declares qualify: fresh; found no qualify"):
        asked_of(declared, "old")
    with pytest.raises(FleetError, match="found no such setup"):
        asked_of(declared, "nope")


def test_the_run_serves_the_lines_of_the_setup_from_its_own_place(declared: Declared) -> None:
    asked: Asked = asked_of(declared, "fresh")
    own = replace(declared, probes={"without": ["tools", "greedy"], "capabilities": ["auth"]})
    scratch = scratch_of(own, asked)
    assert scratch.env["R9V_STATE_FILE"] == f"{asked.scratch_dir}/setup.json" and asked.scratch_dir.endswith(".qualify")
    assert (scratch.env["R9V_HOST_BIND"], scratch.env["R9V_HOST_PORT"]) == ("127.0.0.1", asked.port)
    assert scratch.env["R9V_CONTAINER_NAME"] == "two-qualify" and scratch.env["R9V_SERVED_MODEL_NAME"] == "two"
    assert scratch.probes == {"without": ["greedy"], "capabilities": ["auth", "chat", "tools"]}
    assert setup_argv(asked, "/fork", IMAGE) == [
        "/fork/r9v", "setup", "q8", f"--state-dir={asked.scratch_dir}", f"--model-dir={asked.model_dir}",
        f"--ple-path={asked.ple_path}", f"--image=sha256:{IMAGE}", "--local-image", "--accept-model-license",
    ]  # fmt: skip


def test_the_inventory_holds_qualify_against_its_keys() -> None:
    given = {"file": "/s/setup.json", "qualify": {"profile": "q8", "model_dir": "/m", "port": 0, "battery": ["smell"]}}
    endpoint = {
        "engine": "r9v", "active": True, "runtime": "r", "payload": "p", "setups": {"q8": given},
        "env": {"R9V_STATE_FILE": "/s/setup.json", "R9V_HOST_BIND": "0.0.0.0", "R9V_HOST_PORT": 1,
                "R9V_SERVED_MODEL_NAME": "a", "R9V_CONTAINER_NAME": "b", "R9V_EXPECTED_GPU_BDFS": ["0000:03:00.0"]},
    }  # fmt: skip
    problems = "\n".join(validate("h", {}, {}, {"two": endpoint}, {}).problems)
    where = "llm_endpoints.two.setups.q8.qualify"
    assert f"{where}.port is 0; expected a TCP port." in problems
    assert f"{where}.container is missing" in problems and f"{where}.battery is ['smell']" in problems
