# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The setup state: what makes it unfit, what is not whole, and which keys belong to one setup alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory import validate
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_setups import (
    faults_of_setups,
    key_faults,
    setup_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_state import faults_of, read_state, role_of
from r9vhost import TABLE_BYTES, R9vHost, make_host

SHARD = "target/Standin-Q8_0-00003-of-00006.gguf"


@pytest.fixture
def host(tmp_path: Path) -> R9vHost:
    return make_host(tmp_path)


def faults(host: R9vHost, table: int | None = TABLE_BYTES, declared: Any = ()) -> str:
    return "; ".join(faults_of(read_state(str(host.state_file)), table, declared))


def test_a_sound_state_is_read_whole(host: R9vHost) -> None:
    state = read_state(str(host.state_file))
    assert (state.profile_id, state.image) == ("standin/q8", f"sha256:{'2d' * 32}")
    roles = sorted({role_of(artifact.path) for artifact in state.artifacts})
    assert roles == ["mmproj", "other", "shard"] and role_of("/m/a.gguf") == "model"
    assert faults(host) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ready": False}, "is not ready; expected ready: true; found ready: False"),
        ({"ready": "true"}, "is not ready"),
        ({"artifacts": {}}, "config and artifacts, both dictionaries"),
        ({"artifacts": {"a": {"sha256": "1"}}}, "artifacts.a; expected identity"),
        ({"artifacts": {"../a": {"sha256": "1", "identity": ["/a", 1, 1, 1, 1, 1]}}}, "expected a path below"),
        ({"artifacts": {"/a": {"sha256": "1", "identity": ["/a", 1, 1, 1, 1, 1]}}}, "expected a path below"),
        ({"config": {"R9V_A": 1}}, "config.R9V_A; expected keys R9V_... with text"),
        ({"config": {"PATH": "/"}}, "config.PATH"),
        ({"config": {"R9V_IMAGE": "x", "R9V_MODEL_DIR": ""}}, "found no R9V_MODEL_DIR, R9V_PLE_PATH"),
    ],
)
def test_an_unfit_state_is_refused_by_name(host: R9vHost, change: dict[str, Any], words: str) -> None:
    host.state.update(change)
    host.save()
    with pytest.raises(FleetError) as caught:
        read_state(str(host.state_file))
    assert words in caught.value.message and caught.value.facts["gate"] == "setup"


def test_a_state_that_others_may_read_or_that_is_none(host: R9vHost) -> None:
    host.state_file.chmod(0o640)
    with pytest.raises(FleetError, match="expected mode 0600; found mode 0640"):
        read_state(str(host.state_file))
    host.state_file.write_text("[]")
    host.state_file.chmod(0o600)
    with pytest.raises(FleetError, match="expected a JSON object; found list"):
        read_state(str(host.state_file))
    host.state_file.write_text("{")
    with pytest.raises(FleetError, match="expected JSON"):
        read_state(str(host.state_file))
    host.state_file.unlink()
    with pytest.raises(FleetError, match="no such file"):
        read_state(str(host.state_file))


def test_what_is_not_whole_is_told_file_by_file(host: R9vHost) -> None:
    shard = host.model_dir / SHARD
    data, kept = shard.read_bytes(), shard.stat()
    shard.unlink()
    assert faults(host) == f"{shard} is missing"
    shard.write_bytes(data[:-1])
    assert "has 250 bytes, and setup verified 251" in faults(host)
    shard.write_bytes(data)
    assert "was changed or replaced" in faults(host)
    os.utime(shard, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    if shard.stat().st_ino == kept.st_ino:
        assert faults(host) == ""
    host.table.write_bytes(b"x" * (TABLE_BYTES - 1))
    assert "has 4,095 bytes, and 4,096 are declared" in faults(host)
    host.table.unlink()
    assert f"the embedding table {host.table} is missing" in faults(host, None)


def test_the_chat_template_of_the_package_is_never_edited(host: R9vHost) -> None:
    (host.model_dir / "metadata" / "chat_template.jinja").write_text("{{ messages}} ")
    assert "chat_template.jinja was changed or replaced since setup verified it" in faults(host)


def test_a_changed_mode_is_no_change(host: R9vHost) -> None:
    (host.model_dir / SHARD).chmod(0o600)
    assert faults(host) == ""


def test_a_set_without_a_part_or_a_projector(host: R9vHost) -> None:
    artifacts = host.state["artifacts"]
    del artifacts[SHARD], artifacts["vision/mmproj-Standin-F16.gguf"]
    host.save()
    assert "Standin-Q8_0-00003-of-00006.gguf is no file of the state" in faults(host)
    assert "names no projector" in faults(host)


def test_what_is_declared_must_be_what_setup_verified(host: R9vHost) -> None:
    path = f"{host.model_dir}/{SHARD}"
    assert faults(host, declared=[{"path": path, "sha256": "a1a1a1a1"}, {"path": path, "sha256": None}]) == ""
    assert "and bb is declared" in faults(host, declared=[{"path": path, "sha256": "bb"}])
    assert "is declared, and setup did not verify it" in faults(host, declared=[{"path": "/a", "sha256": None}])


SETUPS = {
    "q8": {"file": "/s/q8", "keys": ["R9V_FULL_MUTABLE_CACHE", "R9V_CHAT_TEMPLATE_FILE"], "ple_bytes": 5},
    "unc": {"file": "/s/unc", "headroom_gib": 1.5},
}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"R9V_STATE_FILE": "/s/q8", "R9V_FULL_MUTABLE_CACHE": "0", "R9V_CHAT_TEMPLATE_FILE": "/t"}, []),
        ({"R9V_STATE_FILE": "/s/unc"}, []),
        ({"R9V_STATE_FILE": "/s/unc", "R9V_CHAT_TEMPLATE_FILE": ""}, []),
        ({"R9V_STATE_FILE": "/s/q8", "R9V_FULL_MUTABLE_CACHE": "0"}, ["R9V_CHAT_TEMPLATE_FILE is missing"]),
        ({"R9V_STATE_FILE": "/s/unc", "R9V_FULL_MUTABLE_CACHE": "0"}, ["R9V_FULL_MUTABLE_CACHE is set, and belongs"]),
        ({"R9V_STATE_FILE": "/s/x"}, ["which no setup declares"]),
    ],
)
def test_keys_come_and_go_with_their_setup(env: dict[str, str], words: list[str]) -> None:
    found = key_faults(env, SETUPS)
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))
    assert key_faults(env, {}) == []


def test_setups_are_judged_themselves() -> None:
    setup = setup_of({"R9V_STATE_FILE": "/s/unc"}, SETUPS)
    assert setup is not None and (setup.name, setup.headroom_gib, setup.ple_bytes) == ("unc", 1.5, None)
    assert faults_of_setups(SETUPS) == []
    wrong = {"a": {"file": "/s", "keys": ["R9V_FULL_MUTABEL_CACHE"]}, "b": {"file": "/s"}}
    assert [text.partition(" ")[0] for text in faults_of_setups(wrong)] == ["setups.a.keys", "setups:"]


def endpoint(**changes: Any) -> dict[str, Any]:
    env = {
        "R9V_STATE_FILE": "/s/q8", "R9V_HOST_BIND": "127.0.0.1", "R9V_HOST_PORT": 1, "R9V_SERVED_MODEL_NAME": "a",
        "R9V_CONTAINER_NAME": "a", "R9V_EXPECTED_GPU_BDFS": "0000:03:00.0", "R9V_FULL_MUTABLE_CACHE": 0,
        "R9V_CHAT_TEMPLATE_FILE": "/t",
    }  # fmt: skip
    rungs = {"unc": {"R9V_STATE_FILE": "/s/unc", "R9V_FULL_MUTABLE_CACHE": "", "R9V_CHAT_TEMPLATE_FILE": ""}}
    return {
        "engine": "r9v",
        "runtime": "r",
        "payload": "p",
        "cards": ["c"],
        "env": env,
        "setups": SETUPS,
        "rungs": rungs,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"rungs": {"unc": {"R9V_STATE_FILE": "/s/unc"}}}, "rungs.unc: R9V_CHAT_TEMPLATE_FILE is set, and belongs"),
        ({"setups": {"q8": {"file": "q8"}}}, "setups.q8.file is 'q8'; expected an absolute path"),
        ({"setups": {"q8": {"file": "/s/q8", "bytes": 5}}}, "setups.q8.bytes is no key"),
    ],
)
def test_the_inventory_is_held_to_it(changes: dict[str, Any], words: str) -> None:
    card = {"vendor": "amd", "arch": "x", "pci": "0000:03:00.0", "index": 0, "total_mib": 9, "floor_mib": 1}
    source = {"kind": "bundle", "image": "i", "checkout": "/c", "sha256": "a" * 64}
    payload = {"dir": "/m", "files": [{"name": "a.gguf", "role": "model", "bytes": 1, "sha256": "a" * 64}]}
    told = validate(
        "h", {"r": {"engine": "r9v", "source": source}}, {"p": payload}, {"a": endpoint(**changes)}, {"c": card}
    )
    assert words in " ".join(told.problems) and bool(told.problems) == bool(words), told.problems
