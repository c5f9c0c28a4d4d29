# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory does not know stops a deploy at once, as one error that names all of it, and changes nothing."""

from __future__ import annotations

import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.dank.llm_fleet.plugins.module_utils import _host_plan
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths, draw
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_blueprint import env_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import resolve
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import (
    endpoint_gaps,
    payload_gaps,
    refuse_gaps,
    runtime_gaps,
)

ROOT = Path(__file__).resolve().parents[2]
HOST = {"user": "dank", "groups": [], "packages": [], "folders": []}
ROLE = {"mode": "0644", "verify": "stamp", "stamp_dir": "/s", "connections": 4}
FILE = {"name": "m.gguf", "role": "model", "bytes": 10, "sha256": "a" * 64, "urls": ["file:///m.gguf"]}
FULL = {"name": "p", "dir": "/m", "files": [FILE], **ROLE}
LOCK = "Run playbooks/lock.yml, which asks the hub"
HAND = "sha256sum` tell them of a file that you trust"


def shipped(host: str) -> dict[str, list[dict[str, Any]]]:
    """What site.yml hands to its look at a host of the production inventory, as Ansible reads it."""
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(ROOT / "inventories/production")])
    known = VariableManager(loader=loader, inventory=manager).get_vars(host=manager.get_host(host))
    plain = json.loads(json.dumps({key: value for key, value in known.items() if key.startswith("llm_")}))
    tables = (plain[f"llm_{kind}"] for kind in ("endpoints", "runtimes", "payloads"))
    return resolve(*tables, cards=plain["llm_cards"])


def survey(told: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    runtimes = [entry | {"user": "dank", "shim": "", "prefix": "/rt"} for entry in told["runtimes"]]
    payloads = [entry | ROLE for entry in told["payloads"]]
    return _host_plan.survey(HOST, runtimes, payloads, told["endpoints"], {"llamacpp": "", "r9v": ""})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks of a survey that were begun; the host's says that it has work."""
    begun: list[str] = []

    def look(*_args: Any) -> dict[str, Any]:
        begun.append("host")
        return {"complete": False, "user": True}

    monkeypatch.setattr(_host_plan._host, "look", look)
    return begun


def test_the_owners_dankserver_is_told_of_every_unknown_file_before_any_look(asked: list[str]) -> None:
    told = shipped("dankserver")
    (payload,) = told["payloads"]
    weak = [file for file in payload["files"] if "unknown" in file.values()]
    assert sum(file["role"] == "shard" for file in weak) == 6
    with pytest.raises(FleetError) as refusal:
        survey(told)
    message = refusal.value.message
    assert message.count("payload qwen38-flash-next-q8: ") == 1
    for file in weak:
        keys = [key for key in ("name", "bytes", "sha256", "revision") if file.get(key) == "unknown"]
        named = f"the {file['role']}" if "name" in keys else file["name"]
        assert f"{named} ({', '.join(keys)})" in message
    assert asked == []


def test_the_owners_dankclaw_is_looked_at(asked: list[str]) -> None:
    told = survey(shipped("dankclaw"))
    assert told["steps"] == dict.fromkeys(_host_plan.STEPS, True)
    assert asked == ["host"]


GAPS = [
    ({"bytes": "unknown"}, "m.gguf (bytes)", [HAND]),
    ({"sha256": "unknown"}, "m.gguf (sha256)", [HAND]),
    ({"repo": "me/chat", "revision": "unknown"}, "m.gguf (revision)", [LOCK]),
    ({"bytes": "unknown", "sha256": "unknown"}, "m.gguf (bytes, sha256)", [HAND]),
    (
        {"repo": "me/chat", "revision": "unknown", "bytes": "unknown", "sha256": "unknown"},
        "m.gguf (bytes, sha256, revision)",
        [LOCK],
    ),
    ({"name": "unknown", "role": "mmproj", "bytes": "unknown"}, "the mmproj (name, bytes)", [HAND]),
    ({"name": "unknown", "role": "mmproj", "repo": "me/chat"}, "the mmproj (name)", [HAND]),
]


@pytest.mark.parametrize(("given", "words", "remedies"), GAPS)
def test_each_gap_of_a_file_is_named_with_what_fills_it(given: dict[str, Any], words: str, remedies: list[str]) -> None:
    with pytest.raises(FleetError) as refusal:
        PayloadSpec.from_params(FULL | {"files": [FILE | given]})
    assert f"found payload p: {words}." in refusal.value.message
    assert [remedy for remedy in (LOCK, HAND) if remedy in refusal.value.message] == remedies


def test_all_files_are_named_in_one_error_and_those_that_are_known_are_not() -> None:
    files = [FILE | {"name": f"{n}.gguf", "bytes": "unknown" if n else 10} for n in range(3)]
    files[1] |= {"repo": "me/chat", "revision": "main"}
    with pytest.raises(FleetError) as refusal:
        PayloadSpec.from_params(FULL | {"files": files})
    assert "found payload p: 1.gguf (bytes), 2.gguf (bytes)." in refusal.value.message
    assert "0.gguf" not in refusal.value.message
    assert LOCK in refusal.value.message and HAND in refusal.value.message
    assert refusal.value.facts["unknown"] == [
        {"of": "payload p", "part": f"{n}.gguf", "keys": ["bytes"]} for n in (1, 2)
    ]


def test_payload_and_endpoint_and_runtime_are_told_together() -> None:
    gaps = [
        *runtime_gaps({"name": "cpu", "source": {"kind": "archive", "sha256": "unknown"}}),
        *payload_gaps({"name": "p", "files": [FILE | {"sha256": "unknown"}]}),
        *endpoint_gaps("chat", ["CHAT_TEMPLATE_FILE"]),
    ]
    with pytest.raises(FleetError) as refusal:
        refuse_gaps(gaps)
    assert refusal.value.message.startswith("runtime cpu and payload p and endpoint chat cannot be deployed")
    assert "runtime cpu: source (sha256); payload p: m.gguf (sha256); endpoint chat: env (CHAT_TEMPLATE_FILE)" in (
        refusal.value.message
    )


def test_without_gaps_nothing_is_refused() -> None:
    assert PayloadSpec.from_params(FULL).files[0].bytes == 10
    assert payload_gaps(FULL) == runtime_gaps({"name": "cpu", "source": {"sha256": "a" * 64}}) == []
    assert endpoint_gaps("chat", []) == []


BAD_BYTES = ["ten", "", "-1", -1, 0, "0", True, False, 10.0, 1.5, "1e3", "1_000", " 10", "0x10", "٣", None, [10], {}]


@pytest.mark.parametrize("value", BAD_BYTES)
def test_a_size_that_is_none_is_one_clear_error(value: Any, asked: list[str]) -> None:
    told = {
        "endpoints": [],
        "runtimes": [],
        "payloads": [{"name": "p", "dir": "/m", "files": [FILE | {"bytes": value}]}],
    }
    with pytest.raises(FleetError) as refusal:
        survey(told)
    assert refusal.value.message.startswith("payload p: file 'm.gguf': bytes is malformed; expected a whole number")
    assert f"found {value!r}" in refusal.value.message
    assert asked == []


def test_a_size_that_is_not_there_is_told() -> None:
    with pytest.raises(FleetError, match=r"file 'm.gguf': bytes is malformed; .* found nothing"):
        PayloadSpec.from_params(FULL | {"files": [{key: value for key, value in FILE.items() if key != "bytes"}]})


@pytest.mark.parametrize("value", [10, "10"])
def test_digits_of_the_command_line_are_a_size(value: Any) -> None:
    assert PayloadSpec.from_params(FULL | {"files": [FILE | {"bytes": value}]}).files[0].bytes == 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"sha256": 12345678},
            "file 'm.gguf': sha256 is no text; expected hexadecimal digits; found 12345678. Put it in",
        ),
        ({"sha256": None, "sha256_prefix": 12345678}, "file 'm.gguf': sha256_prefix is no text"),
        ({"urls": "file:///m.gguf"}, "file 'm.gguf': urls is malformed"),
        ({"urls": [7]}, "file 'm.gguf': urls is malformed"),
        ({"repo": ["me/chat"], "revision": 8}, "file 'm.gguf': repo, revision or file is malformed"),
        ({"name": None}, "file '' has no usable name"),
    ],
)
def test_no_type_of_a_files_key_breaks_the_reader(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        PayloadSpec.from_params(FULL | {"files": [FILE | given]})


@pytest.mark.parametrize("value", ["many", "4.5", 4.5, True, [4]])
def test_a_count_of_connections_that_is_none_is_told(value: Any) -> None:
    with pytest.raises(FleetError, match="payload p: connections is out of range; expected 1 to 64; found"):
        PayloadSpec.from_params(FULL | {"connections": value})


def module(name: str, given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the real module says at its end."""
    with patch_module_args(given), pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / f"plugins/modules/{name}.py"), run_name="__main__")
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize("state", ["present", "verified", "absent"])
def test_module_payload_says_the_same_and_touches_nothing(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        {"name": f"{n}.gguf", "bytes": "unknown", "sha256": "unknown", "repo": "me/chat", "revision": "unknown"}
        for n in range(2)
    ]
    given = {"name": "p", "dir": str(tmp_path / "p"), "stamp_dir": str(tmp_path / "s"), "files": files, "state": state}
    told = module("payload", given, capsys)
    assert told["failed"] and "exception" not in told
    both = "payload p: 0.gguf (bytes, sha256, revision), 1.gguf (bytes, sha256, revision)"
    assert both in told["msg"] and LOCK in told["msg"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", ["ten", -1, True, 1.5])
def test_module_payload_names_payload_file_and_key_of_a_bad_size(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [{"name": "m.gguf", "bytes": value, "sha256": "a" * 64}]
    told = module("payload", {"name": "p", "dir": str(tmp_path / "p"), "files": files}, capsys)
    assert told["failed"] and told["msg"].startswith("payload p: file 'm.gguf': bytes is malformed")


CHAT = Declared(
    name="chat",
    engine="llamacpp",
    env={"CHAT_TEMPLATE_FILE": "unknown", "ALIAS": "unknown"},
    runtime="cpu",
    payload={"name": "p", "dir": "/m", "files": [FILE]},
    user="llm",
    launcher="",
    rungs={"plain": {"CHAT_TEMPLATE_FILE": ""}},
)


def test_no_era_is_drawn_with_an_unknown_path_or_file(tmp_path: Path) -> None:
    paths = Paths("chat", runtimes=str(tmp_path))
    with pytest.raises(FleetError, match=r"endpoint chat: env \(CHAT_TEMPLATE_FILE\)\. Write the whole paths"):
        draw(CHAT, paths, None)
    with pytest.raises(FleetError, match="runtime cpu of endpoint chat is not on this host"):
        draw(CHAT, paths, "plain")
    weak = replace(CHAT, payload={**CHAT.payload, "files": [FILE | {"sha256": "unknown"}]})
    with pytest.raises(FleetError, match=r"payload p: m.gguf \(sha256\)"):
        draw(weak, paths, "plain")


def test_no_r9v_env_is_written_with_an_unknown_path() -> None:
    forked = replace(CHAT, engine="r9v", env={"R9V_CHAT_TEMPLATE_FILE": "unknown", "R9V_STATE_FILE": "unknown"})
    with pytest.raises(FleetError, match=r"endpoint chat: env \(R9V_CHAT_TEMPLATE_FILE, R9V_STATE_FILE\)"):
        env_of(forked, None, "/fork/scripts/launch.sh")


def test_a_survey_names_the_unknown_paths_of_an_endpoint(asked: list[str]) -> None:
    entry = {"name": "chat", "engine": "llamacpp", "env": dict(CHAT.env)}
    with pytest.raises(FleetError, match=r"endpoint chat: env \(CHAT_TEMPLATE_FILE\)"):
        survey({"endpoints": [entry], "runtimes": [], "payloads": []})
    assert asked == []


def test_an_unsound_runtime_is_told_before_any_look(asked: list[str]) -> None:
    source = {"kind": "git", "url": "/x", "commit": 1234567}
    with pytest.raises(FleetError, match=r"llm_runtimes.cpu.source.commit is no text; .* found 1234567"):
        survey({"endpoints": [], "runtimes": [{"name": "cpu", "engine": "llamacpp", "source": source}], "payloads": []})
    assert asked == []


@pytest.mark.parametrize("key", ["deadline_s", "keep_eras"])
@pytest.mark.parametrize("value", ["unknown", "300", 0, 1.5, True])
def test_a_number_of_an_endpoint_that_is_none_is_told(key: str, value: Any) -> None:
    entry = {"name": "chat", "engine": "llamacpp", "env": {}, "runtime": "cpu", "payload": {}, key: value}
    with pytest.raises(FleetError, match=rf"llm_endpoints.chat.{key}; expected a whole number .* found"):
        Declared.from_entry(entry, "")


@pytest.mark.parametrize(
    ("key", "value"), [("index", "first"), ("total_mib", "unknown"), ("floor_mib", -1), ("addressable_mib", True)]
)
def test_a_number_of_a_card_that_is_none_is_told(key: str, value: Any) -> None:
    card = {"vendor": "amd", "index": 0, "total_mib": 100, "floor_mib": 0, key: value}
    endpoints = {"chat": {"runtime": "cpu", "payload": "p", "cards": ["left"]}}
    with pytest.raises(FleetError, match=rf"llm_cards.left.{key}; expected a whole number"):
        resolve(endpoints, {"cpu": {}}, {"p": {}}, cards={"left": card})
