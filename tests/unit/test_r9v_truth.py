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
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_container import option
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_podman import (
    Container,
    Image,
    container_of,
    image_of,
    processes,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_truth import Inside, chain
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
ENV = {
    "R9V_STATE_FILE": "/s", "R9V_SERVED_MODEL_NAME": "two", "R9V_CONTAINER_NAME": "two-r9v", "R9V_HOST_PORT": "7",
    "R9V_CHECKOUT": "/fork",
}  # fmt: skip
EFFECTIVE = {
    **ENV, "R9V_ENABLE_PREFIX_CACHING": "1", "R9V_MAX_MODEL_LEN": "4096", "R9V_MTP_SPEC_TOKENS": "4",
    "R9V_CHAT_TEMPLATE_FILE": "/t.jinja", "R9V_CHAT_TEMPLATE_KWARGS": '{"a":1}', "R9V_MODEL_DIR": "/m/",
    "R9V_PLE_PATH": "/m/table.bin", "R9V_PLE_RESIDENCY_MODE": "pinned", "R9V_FULL_MUTABLE_CACHE": "0",
    "R9V_CACHE_DIR": "/c", "R9V_TARGET_REL": "target/a.gguf", "R9V_EXPERT_MANIFEST_PATH": "/s/hot.json",
    "R9V_DEV_QWEN4_EXP_ADAPTER_PY": "/fork/dev/adapter.py", "R9V_PROFILER_DIR": "/prof",
}  # fmt: skip
FACTS: dict[str, Any] = {
    "engine": "r9v", "user": "dank", "env": ENV, "effective": EFFECTIVE,
    "runtime": {"name": "r", "version": "2d2d2d2d"},
    "setup": {"name": "q8", "ple_bytes": 1 << 20}, "declared_files": [], "cards": [], "drop_ins": [],
}  # fmt: skip
ADAPTER, TEMPLATE = "/opt/r9v/lib/vllm/adapter.py", "/opt/r9v/share/chat-template.jinja"
MOUNTS = {
    "/models": "/m", "/ple/table.bin": "/m/table.bin", TEMPLATE: "/t.jinja", "/cache": "/c",
    "/placement/experts.json": "/s/hot.json", ADAPTER: "/fork/dev/adapter.py", "/profiles": "/prof",
    "/r9v-full-mutable": "/fork/runtimes/v3/overlays", "/opt/r9v/lib/vllm/loader.py": "/fork/runtimes/v3/overlays/l.py",
}  # fmt: skip
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
        (replace(INSIDE, argv=tuple(word.replace("a.gguf", "b.gguf") for word in ARGV)), "container arguments"),
        (replace(INSIDE, argv=tuple(word.replace("/opt/r9v/share", "/tmp") for word in ARGV)), "container arguments"),
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


def mounted(**changes: str | None) -> list[str]:
    """What the link of the mounts finds otherwise, with changed mounts: destination (_ for /) to source, None: gone."""
    changed = {key.replace("_", "/"): source for key, source in changes.items()}
    mounts = {to: source for to, source in {**MOUNTS, **changed}.items() if source is not None}
    found = broken(replace(INSIDE, container=replace(BOX, mounts=mounts)))
    wanted, seen_ = found.pop("mounts", ([], []))
    assert found == {}
    return sorted(set(seen_) - set(wanted))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"_models": None}, ["/m: not mounted"]),
        ({"_models": "/other"}, ["/m: not mounted", "/other at /models, and no key of the env says so"]),
        ({"_models": None, "_model": "/m"}, ["/m at /model"]),
        ({"_ple_table.bin": None, "_table.bin": "/m/table.bin"}, ["/m/table.bin at /table.bin"]),
        ({"_placement_experts.json": "/s/old.json"}, ["/s/hot.json: not mounted", "/s/old.json at /placement/"]),
        ({ADAPTER.replace("/", "_"): None}, ["/fork/dev/adapter.py: not mounted"]),
        ({TEMPLATE.replace("/", "_"): None, "_opt_r9v_chat.jinja": "/t.jinja"}, ["/t.jinja at /opt/r9v/chat.jinja"]),
        ({"_cache": None, "_var_cache": "/c"}, ["/c at /var/cache"]),
        (
            {"_opt_r9v_lib_vllm_loader.py": "/root/mine.py"},
            ["/root/mine.py at /opt/r9v/lib/vllm/loader.py, and no key"],
        ),
        ({"_again": "/m"}, ["/m at /again, and no key"]),
        ({"_forked": "/fork-of-mine/x"}, ["/fork-of-mine/x at /forked, and no key"]),
        ({"_models_target_a.gguf": "/fork/tiny.gguf"}, ["/fork/tiny.gguf at /models/target/a.gguf, and no key"]),
        ({"_ple": "/prof"}, ["/prof at /ple, and no key"]),
    ],
)
def test_a_mount_is_there_where_it_belongs_and_no_other(changes: dict[str, str | None], told: list[str]) -> None:
    found = mounted(**changes)
    assert len(found) == len(told) and all(line.startswith(start) for line, start in zip(found, told, strict=True))


def test_mounts_of_the_forks_own_and_of_its_folders_are_its_own_affair() -> None:
    assert mounted(_routes="/prof", _r9v_more="/fork/runtimes/x.py") == []


def test_an_images_own_volume_is_no_mount_of_ours() -> None:
    rows = [
        {"Type": "volume", "Name": "ab" * 32, "Source": "/v/_data", "Destination": "/data"},
        {"Type": "volume", "Name": "mine", "Source": "/v/mine", "Destination": "/models"},
        {"Type": "bind", "Source": "/m", "Destination": "/m"},
    ]
    told = container_of({"Id": "i", "State": {"Status": "running"}, "Image": CONFIG, "Mounts": rows})
    assert told.mounts == {"/models": "/v/mine", "/m": "/m"}


@pytest.mark.parametrize(
    ("key", "value", "more", "red"),
    [
        ("R9V_MAX_NUM_SEQS", "4", ("--max-num-seqs", "8"), True),
        ("R9V_MAX_NUM_SEQS", "4", ("--max-num-seqs", "4"), False),
        ("R9V_MAX_NUM_SEQS", "4", (), False),  # a launcher that does not pass it on: nothing to compare
        ("R9V_KV_CACHE_MEMORY_BYTES", "4", ("--kv-cache-memory-bytes=5",), True),
        ("R9V_TOOL_CALL_PARSER", "qwen3_coder", ("--tool-call-parser", "hermes"), True),
        ("R9V_TENSOR_PARALLEL_SIZE", "2", ("--tensor-parallel-size", "1"), True),
        ("R9V_ENABLE_PREFIX_CACHING", "1", ("--no-enable-prefix-caching",), True),  # the last one counts
        ("R9V_ENABLE_PREFIX_CACHING", "0", ("--no-enable-prefix-caching",), False),
        ("R9V_MTP_SPEC_TOKENS", "4", ("--speculative-config", '{"num_speculative_tokens":6}'), True),
        ("R9V_MTP_SPEC_TOKENS", "4", ("--speculative-config", "[]"), True),
    ],
)
def test_the_last_of_an_argument_counts(key: str, value: str, more: tuple[str, ...], red: bool) -> None:
    found = broken(replace(INSIDE, argv=(*ARGV, *more)), **{key: value})
    assert set(found) == ({"container arguments"} if red else set())


def test_without_a_drafter_there_is_no_speculative_config() -> None:
    at = ARGV.index("--speculative-config")
    bare = replace(INSIDE, argv=(*ARGV[:at], *ARGV[at + 2 :]))
    assert broken(bare, R9V_MTP_SPEC_TOKENS="0") == {}
    assert "container arguments" in broken(bare) and "container arguments" in broken(R9V_MTP_SPEC_TOKENS="0")


def test_a_cache_of_which_the_env_says_nothing_is_the_forks_choice() -> None:
    assert broken(R9V_ENABLE_PREFIX_CACHING=None) == {}


def test_what_is_not_asked_for_must_not_be_there() -> None:
    """The uncensored rung: no template, no prefix cache; an argument left over is a broken link."""
    found = broken(R9V_CHAT_TEMPLATE_FILE=None, R9V_CHAT_TEMPLATE_KWARGS=None, R9V_ENABLE_PREFIX_CACHING="0")
    assert found["container arguments"][0] == {
        "--enable-prefix-caching": False, "--chat-template": None, "--default-chat-template-kwargs": None,
    }  # fmt: skip
    assert found["mounts"][1][-1] == f"/t.jinja at {TEMPLATE}, and no key of the env says so"
    assert "embedding table" not in broken(replace(INSIDE, locked_bytes=0), R9V_PLE_RESIDENCY_MODE="ssd")


def test_a_stranger_on_the_port_is_named() -> None:
    observed = replace(seen(), owners=((77, "", "python3"), (9, "probe.service", "python3 -m http.server")))
    assert broken(observed=observed)["strangers on the port"][1] == ["pid 9 of probe.service: python3 -m http.server"]


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--a", "1"], "1"),
        (["--a", "1", "--a=2"], "2"),
        (["--a=1=2"], "1=2"),
        (["--a"], ""),
        (["--a", "--b"], ""),
        (["--aa", "1"], None),
        ([], None),
    ],
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


def test_a_placement_that_is_not_there_is_red_before_anything_is_stopped(ready: dict[str, Any]) -> None:
    """launch.sh would refuse it, after the incumbent's stop."""
    path = ready["host"].folder / "hot.json"
    facts = {**ready, "effective": {**ready["effective"], "R9V_EXPERT_MANIFEST_PATH": str(path)}}
    gate, words = red(facts)
    assert gate == "setup" and f"the placement {path} is missing" in words
    path.write_text("{}")
    _r9v_gates.gate_setup(facts, Gates(), idle=False)


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
