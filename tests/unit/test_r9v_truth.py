# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chain from the unit through the container to the answer: each link turns red by itself."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _r9v_gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import (
    Container,
    Image,
    container_of,
    image_of,
    processes,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_truth import Inside, chain, option
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import UnitState
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Observed
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import ERA_VARIABLE
from r9vhost import TABLE_BYTES, make_host

MANIFEST, CONFIG = "2d" * 32, "c0" * 32
UNIT_FILE = "/etc/systemd/system/two.service"
ARGV = (
    "python3", "serve", "/models/target/a.gguf", "--served-model-name", "two", "--enable-prefix-caching",
    "--max-model-len", "4096", "--speculative-config", '{"method":"mtp","num_speculative_tokens":4}',
    "--chat-template", "/opt/r9v/share/chat-template.jinja", "--default-chat-template-kwargs", '{"a":1}',
)  # fmt: skip
ENV = {"R9V_STATE_FILE": "/s", "R9V_SERVED_MODEL_NAME": "two", "R9V_CONTAINER_NAME": "two-r9v", "R9V_HOST_PORT": "7"}
EFFECTIVE = {
    **ENV, "R9V_ENABLE_PREFIX_CACHING": "1", "R9V_MAX_MODEL_LEN": "4096", "R9V_MTP_SPEC_TOKENS": "4",
    "R9V_CHAT_TEMPLATE_FILE": "/t.jinja", "R9V_CHAT_TEMPLATE_KWARGS": '{"a":1}', "R9V_MODEL_DIR": "/m/",
    "R9V_PLE_PATH": "/m/table.bin", "R9V_PLE_RESIDENCY_MODE": "pinned", "R9V_FULL_MUTABLE_CACHE": "0",
}  # fmt: skip
FACTS: dict[str, Any] = {
    "engine": "r9v", "user": "dank", "env": ENV, "effective": EFFECTIVE,
    "runtime": {"name": "r", "version": "2d2d2d2d"},
    "setup": {"name": "q8", "ple_bytes": 1 << 20}, "declared_files": [], "cards": [], "drop_ins": [],
}  # fmt: skip
MOUNTS = {"/models": "/m", "/ple/table.bin": "/m/table.bin", "/opt/r9v/share/chat-template.jinja": "/t.jinja"}
BOX = Container("id", "running", 77, 76, 0, CONFIG, MANIFEST, MOUNTS, "")
INSIDE = Inside(
    BOX, frozenset({CONFIG, MANIFEST}), ARGV, {"R9V_FULL_MUTABLE_CACHE": "0"}, 1 << 20, frozenset({76, 77}), 1.0,
    {"id": "two", "max_model_len": 4096}, (),
)  # fmt: skip


def unit_state() -> UnitState:
    values = dict.fromkeys(UnitState.__dataclass_fields__, "")
    values.update(
        main_pid=70, n_restarts=0, active_since_us=0, need_daemon_reload=False, drop_in_paths=(), exit_status=0
    )
    values.update(active_state="active", sub_state="running", unit_file_state="enabled", fragment_path=UNIT_FILE)
    return UnitState(**values)


def seen() -> Observed:
    environ = {**ENV, ERA_VARIABLE: "d"}
    return Observed(
        unit_state(), "unit", "env", "/usr/bin/bash", ("bash",), environ, ((77, "", "python3"),), "HTTP 200", {}
    )


def broken(within: Inside = INSIDE, observed: Observed | None = None, **effective: str | None) -> dict[str, Any]:
    facts = {
        **FACTS,
        "effective": {key: value for key, value in {**EFFECTIVE, **effective}.items() if value is not None},
    }
    era = Era("e", "/e", Blueprint("d", "env", "unit", "launcher", facts), {"state": "certified"})
    links = chain(era, "two.service", UNIT_FILE, observed or seen(), within)
    return {link.name: (link.expected, link.found) for link in links if not link.ok}


def test_a_sound_start_has_no_broken_link() -> None:
    assert broken() == {}


@pytest.mark.parametrize(
    ("within", "link"),
    [
        (replace(INSIDE, container=None), "container"),
        (replace(INSIDE, container=replace(BOX, status="exited")), "container"),
        (replace(INSIDE, age_s=1e9), "container is of this start"),
        (replace(INSIDE, image_digests=frozenset({"ff" * 32})), "image"),
        (
            replace(INSIDE, argv=tuple(word for word in ARGV if word != "--enable-prefix-caching")),
            "container arguments",
        ),
        (replace(INSIDE, argv=tuple(word.replace("4096", "8192") for word in ARGV)), "container arguments"),
        (replace(INSIDE, argv=tuple(word.replace(":4", ":6") for word in ARGV)), "container arguments"),
        (replace(INSIDE, argv=tuple(word.replace('{"a":1}', "{}") for word in ARGV)), "container arguments"),
        (replace(INSIDE, container=replace(BOX, mounts={"/models": "/m", "/ple": "/m/table.bin"})), "mounts"),
        (replace(INSIDE, environ={"R9V_FULL_MUTABLE_CACHE": "1"}), "container's R9V_FULL_MUTABLE_CACHE"),
        (replace(INSIDE, pids=frozenset()), "strangers on the port"),
        (replace(INSIDE, pids=frozenset()), "container listens"),
        (replace(INSIDE, faults=("/m/a is missing",)), "payload files"),
        (replace(INSIDE, models={"id": "other", "max_model_len": 4096}), "served model"),
        (replace(INSIDE, models={"id": "two", "max_model_len": 8192}), "context"),
        (replace(INSIDE, locked_bytes=(1 << 20) - 8192), "embedding table"),
    ],
)
def test_each_link_turns_red(within: Inside, link: str) -> None:
    assert link in broken(within)


def test_a_link_tells_what_differs_alone() -> None:
    found = broken(replace(INSIDE, argv=tuple(word.replace("4096", "8192") for word in ARGV)))
    assert found == {"container arguments": ({"--max-model-len": "4096"}, {"--max-model-len": "8192"})}
    assert broken(replace(INSIDE, locked_bytes=0))["embedding table"][1] == "0 of 1,048,576 bytes locked (VmLck)"


def test_what_is_not_asked_for_must_not_be_there() -> None:
    """The uncensored rung: no template, no prefix cache; an argument left over is a broken link."""
    found = broken(R9V_CHAT_TEMPLATE_FILE=None, R9V_CHAT_TEMPLATE_KWARGS=None, R9V_ENABLE_PREFIX_CACHING="0")
    assert found["container arguments"][0] == {"--enable-prefix-caching": False, "--chat-template": False}
    assert "embedding table" not in broken(replace(INSIDE, locked_bytes=0), R9V_PLE_RESIDENCY_MODE="ssd")


def test_a_stranger_on_the_port_is_named() -> None:
    observed = replace(seen(), owners=((77, "", "python3"), (9, "probe.service", "python3 -m http.server")))
    assert broken(observed=observed)["strangers on the port"][1] == ["pid 9 of probe.service: python3 -m http.server"]


@pytest.mark.parametrize(
    ("argv", "value"),
    [(["--a", "1"], "1"), (["--a=1=2"], "1=2"), (["--a"], ""), (["--a", "--b"], ""), (["--aa", "1"], None), ([], None)],
)
def test_option(argv: list[str], value: str | None) -> None:
    assert option(argv, "--a") == value


def test_an_image_is_known_by_each_of_its_digests() -> None:
    row = {"Id": CONFIG, "Digest": f"sha256:{'ee' * 32}", "RepoDigests": [f"x@sha256:{MANIFEST}"], "Names": ["x:1"]}
    image = image_of(row)
    assert image == Image(CONFIG, frozenset({"ee" * 32, MANIFEST}), ("x:1",))
    assert image.is_of("2d2d2d2d") and image.is_of(CONFIG) and not image.is_of("ab")


def test_a_container_as_podman_tells_it() -> None:
    row = {"Id": "i", "State": {"Status": "exited", "Pid": 0, "ExitCode": 3}, "Image": CONFIG, "Mounts": None}
    told = container_of(row)
    assert (told.status, told.pid, told.exit_code, told.mounts, told.netns) == ("exited", 0, 3, {}, "")


def test_processes_are_a_process_and_what_descends_from_it() -> None:
    assert os.getpid() in processes(os.getppid()) and processes(os.getpid())[0] == os.getpid()
    assert processes(0) == []


@pytest.mark.parametrize(
    ("declared", "wanted", "fault"),
    [
        ("2d2d", f"sha256:{MANIFEST}", ""),
        (MANIFEST, f"sha256:{MANIFEST}", ""),
        ("ab", f"sha256:{MANIFEST}", "sha256:2d2d"),
        ("2d", "r9v:latest", "a name that may move"),
    ],
)
def test_the_states_image_is_the_runtimes(declared: str, wanted: str, fault: str) -> None:
    assert (fault in _r9v_gates.image_fault(declared, wanted)) and bool(fault) == bool(
        _r9v_gates.image_fault(declared, wanted)
    )


class FakePodman:
    """A user whose podman has these images."""

    def __init__(self, *digests: str) -> None:
        self.user = "dank"
        self.digests = digests

    def __call__(self, _user: str) -> FakePodman:
        return self

    def image(self, digest: str) -> str | None:
        return next((each for each in self.digests if each.startswith(digest)), None)

    def running_with(self, source: str) -> list[str]:
        return ["two-r9v", *(["scratch"] if source == "/shared" else [])]


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    host = make_host(tmp_path)
    monkeypatch.setattr(_r9v_gates, "Podman", FakePodman(MANIFEST))
    monkeypatch.setattr(
        _r9v_gates, "read_cards", lambda cards: {card["name"]: CardState(card["name"], 9e4, 2000) for card in cards}
    )
    return {
        **FACTS, "env": host.env, "setup": {"ple_bytes": TABLE_BYTES}, "host": host,
        "effective": {"R9V_IMAGE": f"sha256:{MANIFEST}"},
        "cards": [{"name": "c", "pci": "0000:03:00.0", "floor_mib": 1}],
    }  # fmt: skip


def red(facts: dict[str, Any], *, idle: bool = False) -> tuple[str, str]:
    gates = Gates()
    with pytest.raises(FleetError) as caught:
        _r9v_gates.gate_setup(facts, gates, idle=idle)
    return caught.value.facts["gate"], caught.value.message


def test_the_gates_before_anything_is_stopped(ready: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gates = Gates()
    _r9v_gates.gate_setup(ready, gates, idle=False)  # the incumbent may hold the cards
    assert [row["gate"] for row in gates.passed] == ["setup", "image", "free cards"]
    gate, words = red(ready, idle=True)
    assert gate == "free cards" and "card c has 2,000 MiB free" in words and "3,072 MiB" in words
    assert red({**ready, "effective": {"R9V_IMAGE": "r9v:latest"}})[0] == "image"
    monkeypatch.setattr(_r9v_gates, "Podman", FakePodman())
    assert "no image of that digest" in red(ready)[1]
    ready["host"].table.write_bytes(b"")
    assert red(ready)[0] == "setup"


def test_a_state_that_a_scratch_run_has_is_red(ready: dict[str, Any]) -> None:
    host = ready["host"]
    lock = host.state_file.parent / "setup.lock"
    lock.touch()
    with lock.open() as handle:
        _r9v_gates.gate_setup(ready, Gates(), idle=False)  # the file of a run that has ended
        fcntl.flock(handle, fcntl.LOCK_EX)
        gate, words = red(ready)
    assert gate == "setup" and "its setup.lock is held" in words
    host.state["config"]["R9V_CACHE_DIR"] = "/shared"
    host.save()
    gate, words = red(ready)
    assert gate == "setup" and "found container scratch" in words


def test_headroom(ready: dict[str, Any]) -> None:
    assert _r9v_gates.headroom("two.service", ready["cards"])["free_mib"] == {"c": 2000}
    with pytest.raises(FleetError, match=r"card c is too full.*3,379 MiB free; found 2,000"):
        _r9v_gates.headroom("two.service", [{**ready["cards"][0], "floor_mib": 3.3 * 1024}])
