# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a trial is asked to try, the units it becomes, and its table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.callback.fleet_report import CallbackModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial import (
    Candidate,
    candidates,
    parse_env,
    parse_splits,
    require_whole,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_table import trial_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import (
    TrialPaths,
    candidate_command,
    guard_command,
    service_properties,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, render
from hypothesis import given
from hypothesis import strategies as st

CARDS = [{"name": f"r{index}", "vendor": "amd", "index": index, "free_mib": 9000} for index in (0, 1)]


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        ("CTX_SIZE=8192", {"CTX_SIZE": "8192"}),
        ("  PARALLEL=1   CTX_SIZE=8192 ", {"PARALLEL": "1", "CTX_SIZE": "8192"}),
        ("TENSOR_SPLIT=35,30", {"TENSOR_SPLIT": "35,30"}),
        ("CHAT_TEMPLATE_FILE='/a b'", {"CHAT_TEMPLATE_FILE": "/a b"}),
        ("CHAT_TEMPLATE_FILE=", {"CHAT_TEMPLATE_FILE": ""}),
        ({"CTX_SIZE": 8192, "JINJA": True}, {"CTX_SIZE": "8192", "JINJA": "1"}),
        ({"TENSOR_SPLIT": [35, 30]}, {"TENSOR_SPLIT": "35,30"}),
        ("", {}),
        ({}, {}),
    ],
)
def test_env_lines(asked: Any, lines: dict[str, str]) -> None:
    assert list(parse_env(asked, "llamacpp").items()) == list(lines.items())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("CTX_SIZES=1", "CTX_SIZES is no key of engine llamacpp.*Did you mean CTX_SIZE"),
        ("CTX_SIZE", "expected KEY=value, several parted by blanks; found 'CTX_SIZE'"),
        ("=5", "found '=5'"),
        ("CTX_SIZE=1024 PARALLEL", "found 'PARALLEL'"),
        ("CTX_SIZE=1 CTX_SIZE=2", "expected one CTX_SIZE; found '1' and '2'"),
        ("ALIAS='a", "closed quotes"),
        ("CTX_SIZE=many", "CTX_SIZE"),
        ({"CTX_SIZE": None}, "CTX_SIZE"),
        (["CTX_SIZE=1"], r"or a mapping; found \['CTX_SIZE=1'\]"),
        (5, "found 5"),
    ],
)
def test_env_that_is_none(asked: Any, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        parse_env(asked, "llamacpp")


@given(st.text())
def test_whatever_is_written_is_lines_or_a_clear_refusal(text: str) -> None:
    try:
        lines = parse_env(text, "llamacpp")
    except FleetError as exc:
        assert exc.expected
    else:
        assert all(f"{key}=" in text.replace("'", "").replace('"', "").replace("\\", "") for key in lines)


def test_splits() -> None:
    assert parse_splits("") == parse_splits("  ") == []
    assert parse_splits("35,30") == ["35,30"]
    assert parse_splits(" 35, 30; 36,29 ") == ["35,30", "36,29"]
    for text in (";", "35,30;", ";35,30", "35,30;;36,29"):
        with pytest.raises(FleetError, match='parted by ";"'):
            parse_splits(text)


def test_a_walk_is_a_candidate_for_each_split() -> None:
    walk = candidates("chat", {}, "CTX_SIZE=8192", "35,30;36,29", CARDS, "llamacpp")
    assert walk == [
        Candidate(1, {"CTX_SIZE": "8192", "TENSOR_SPLIT": "35,30"}),
        Candidate(2, {"CTX_SIZE": "8192", "TENSOR_SPLIT": "36,29"}),
    ]
    assert walk[1].label == "CTX_SIZE=8192 TENSOR_SPLIT=36,29"
    assert candidates("chat", {}, "CTX_SIZE=8192", "", [], "llamacpp") == [Candidate(1, {"CTX_SIZE": "8192"})]


@pytest.mark.parametrize(
    ("env", "split", "cards", "words"),
    [
        ("", "", CARDS, "found nothing to try"),
        (
            "",
            "35,30",
            [],
            "endpoint chat has no cards to split between; .*found none under llm_endpoints.chat.cards.*Leave split out",
        ),
        ("CTX_SIZE=1024", "35,30", [], "endpoint chat has no cards"),
        ("", "35,30", CARDS[:1], "endpoint chat has one card to split between; .*found r0"),
        ("TENSOR_SPLIT=1,1", "35,30", CARDS, "TENSOR_SPLIT in env or split; found both"),
        ("", "35,30;36", CARDS, "split 36 of endpoint chat; expected 2 shares, one for each of r0, r1; found 1"),
        ("", "35,30,1", CARDS, "found 3"),
        ("", "35,x", CARDS, "TENSOR_SPLIT"),
        ("", "35;30,36", CARDS, "split 35 of"),
        ("DEVICE=ROCm1", "35,30", CARDS, "has one card .*found r1"),
        ("SPLIT_MODE=none", "35,30", CARDS, "has one card .*found r0"),
        ("HIP_VISIBLE_DEVICES=0", "35,30", CARDS, "has one card .*found r0"),
    ],
)
def test_what_cannot_be_tried(env: str, split: str, cards: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        candidates("chat", {}, env, split, cards, "llamacpp")


def test_a_line_that_became_a_variable_is_missed() -> None:
    require_whole(["env", "endpoint", "HTTP_PROXY", "ctx_size"], "llamacpp")
    with pytest.raises(FleetError, match=r"PARALLEL became a variable .*-e 'env=\"KEY=value"):
        require_whole(["env", "PARALLEL"], "llamacpp")
    with pytest.raises(FleetError, match="CTX_SIZE, PARALLEL became variables"):
        require_whole(["PARALLEL", "CTX_SIZE"], "llamacpp")


PATHS = TrialPaths.of(Paths("chat", state="/s"), "t1", 2)


def properties(command: list[str]) -> list[str]:
    return [word.removeprefix("--property=") for word in command if word.startswith("--property=")]


def test_where_a_candidate_lies() -> None:
    assert (PATHS.endpoint, PATHS.store, PATHS.number) == ("chat", "/s/chat", 2)
    assert PATHS.unit == "llm-fleet-trial-chat-t1-2.service"
    assert PATHS.guard == "llm-fleet-trial-chat-t1.service"
    assert PATHS.env_file == "/run/llm-fleet-trial-chat-t1/2.env"
    assert PATHS.launcher("x") == Paths("chat").launcher("x")


def test_the_guard_starts_what_serves_however_it_ends() -> None:
    command = guard_command(
        PATHS, "/s/chat/lock", count=2, makes_way=["chat.service", "b.service"], comes_back=["b.service"], limit_s=90
    )
    assert command[:4] == ["systemd-run", "--quiet", "--collect", "--unit=llm-fleet-trial-chat-t1.service"]
    assert command[command.index("--") + 1 :] == ["flock", "/s/chat/lock", "false"]
    assert set(properties(command)) >= {
        "Type=exec",
        "Conflicts=chat.service b.service",
        "After=chat.service b.service",
        "OnSuccess=b.service",
        "OnFailure=b.service",
        "RuntimeMaxSec=90",
        "RuntimeDirectory=llm-fleet-trial-chat-t1",
        "Before=llm-fleet-trial-chat-t1-1.service llm-fleet-trial-chat-t1-2.service",
    }


def test_nothing_is_started_that_did_not_run() -> None:
    command = guard_command(PATHS, "/l", count=1, makes_way=["chat.service"], comes_back=[], limit_s=1)
    assert not any(line.startswith(("OnSuccess", "OnFailure")) for line in properties(command))
    assert "Conflicts=chat.service" in properties(command)


@pytest.mark.parametrize("vendor", ["", "amd", "nvidia"])
def test_a_candidate_has_the_limits_of_the_endpoints_unit(vendor: str) -> None:
    spec = UnitSpec("chat", "llm", "/l", PATHS.env_file, vendor=vendor, api_key_file="/k", unit=PATHS.unit)
    unit = render(spec, "d1ge57")
    own = properties(candidate_command(PATHS, unit, "/l", ["chat.service"]))
    service = unit[unit.index("[Service]") : unit.index("[Install]")].split()
    left_out = {"ExecStart=/l", "Restart=on-failure", "RestartPreventExitStatus=64", "66", "78", "RestartSec=10"}
    words = {word for line in own for word in line.split()}
    assert set(service) - {"[Service]"} - words == left_out
    assert {"User=llm", "LimitMEMLOCK=infinity", "NoNewPrivileges=yes", "LoadCredential=api-key:/k"} <= set(own)
    assert f"EnvironmentFile={PATHS.env_file}" in own and "Environment=LLM_FLEET_ERA=d1ge57" in own
    assert not any(line.startswith(("Restart", "OnSuccess", "OnFailure")) for line in own)
    assert ("DeviceAllow=char-kfd rw" in own) == (vendor == "amd")


def test_a_candidate_lives_no_longer_than_the_guard_and_never_beside_what_serves() -> None:
    unit = render(UnitSpec("chat", "llm", "/l", PATHS.env_file), "")
    command = candidate_command(PATHS, unit, "/launcher", ["chat.service", "b.service"])
    assert command[command.index("--") :] == ["--", "/launcher"]
    assert {
        "BindsTo=llm-fleet-trial-chat-t1.service",
        "After=llm-fleet-trial-chat-t1.service chat.service b.service",
        "Conflicts=chat.service b.service",
    } <= set(properties(command))


def test_a_key_is_handed_to_the_unit_that_asks() -> None:
    spec = UnitSpec("chat", "llm", "/l", "/e", api_key_file="/k")
    assert spec.credential == "/run/credentials/chat.service/api-key"
    assert replace(spec, unit=PATHS.unit).credential == "/run/credentials/llm-fleet-trial-chat-t1-2.service/api-key"


def test_of_a_unit_only_its_service_counts() -> None:
    text = "[Unit]\nWants=a\n\n[Service]\nUser=llm\nExecStart=/l\nA=b=c\nEmpty=\n\n[Install]\nWantedBy=x\n"
    assert service_properties(text) == ["User=llm", "A=b=c", "Empty="]


ROW: dict[str, Any] = {
    "label": "TENSOR_SPLIT=35,30",
    "outcome": "measured",
    "boot_s": 41.3,
    "forecast": {
        "fits": True,
        "total_mib": {"r0": 30000.0, "r1": 29000.0, "host": 900.4},
        "free_after_mib": {"r0": 1498.0, "r1": 2511.2, "host": 50000.0},
    },
    "free_mib": {"r0": 1520.4, "r1": 2544.0},
    "below_floor": [],
    "resident_mib": 1200.6,
    "buffers_mib": {"r0": 29990.0, "host": 880.0},
    "differences": [],
    "probes": [{"probe": "chat", "verdict": "pass", "evidence": "answered"}, {"probe": "x", "verdict": "not-declared"}],
    "notes": [],
}
RECORD: dict[str, Any] = {
    "endpoint": "chat",
    "rows": [ROW],
    "cards": ["r0", "r1"],
    "served_before": ["chat"],
    "back": [{"endpoint": "chat", "era": "e1", "links": 17, "probes": [{"probe": "health"}, {"probe": "chat"}]}],
    "gap_s": 61.24,
    "finished": True,
}


def told(**changes: Any) -> list[str]:
    return trial_text("box", {**RECORD, **changes}).splitlines()


def test_the_free_memory_of_each_card_for_each_split() -> None:
    fault = {"what": "x does not stay up", "found": "allocation failed: no room\nits log"}
    failed = {**ROW, "label": "TENSOR_SPLIT=36,29", "outcome": "failed", "fault": fault}
    failed = {key: failed[key] for key in ("label", "outcome", "forecast", "fault", "notes")}
    low = {**ROW, "label": "TENSOR_SPLIT=37,28", "below_floor": ["r1"], "differences": ["kv on r1: 1 MiB more"]}
    refused = {**failed, "label": "TENSOR_SPLIT=9,1", "outcome": "refused", "forecast": None, "fault": None}
    assert told(rows=[ROW, failed, low, refused]) == [
        "chat on box: 2 of 4 measured",
        "lines               outcome   boot  r0: MiB free (foretold)  r1: MiB free (foretold)  notes",
        "TENSOR_SPLIT=35,30  measured  41s   1,520 (1,498)            2,544 (2,511)            1 of 1 probes pass",
        "TENSOR_SPLIT=36,29  failed    -     - (1,498)                - (2,511)                "
        "x does not stay up: allocation failed: no room",
        "TENSOR_SPLIT=37,28  measured  41s   1,520 (1,498)            2,544 (2,511)            "
        "1 of 1 probes pass; r1 is below its floor: a deploy would be refused",
        "TENSOR_SPLIT=9,1    refused   -     - (-)                    - (-)                    "
        "the forecast leaves a floor short; -e beyond_fit=true boots it all the same",
        "note: TENSOR_SPLIT=37,28: kv on r1: 1 MiB more",
        "chat serves again in era e1: 17 links of truth hold, health, chat pass; its files are as before; "
        "it did not serve for 61.2 s",
    ]


def test_without_cards_the_process_is_shown() -> None:
    lines = told(cards=[], rows=[{**ROW, "label": "CTX_SIZE=1024"}])
    assert lines[1] == "lines          outcome   boot  process MiB  buffers MiB (foretold)  notes"
    assert lines[2] == "CTX_SIZE=1024  measured  41s   1,201        880 (900)               1 of 1 probes pass"


def test_a_failed_probe_says_what_it_saw() -> None:
    probes = [*ROW["probes"], {"probe": "tools", "verdict": "fail", "evidence": "no call"}]
    lines = told(rows=[{**ROW, "outcome": "probes failed", "probes": probes}])
    assert lines[0] == "chat on box: 0 of 1 measured"
    assert lines[2].endswith("tools: no call; 1 of 2 probes pass")


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"finished": False}, "chat was NOT proven to serve again"),
        ({"served_before": [], "back": []}, "nothing served before the trial, and nothing does after it"),
        (
            {"back": [{"endpoint": "b", "era": None}], "served_before": ["b"]},
            "b runs again, not proven, as it has no era; its files are as before; it did not serve for 61.2 s",
        ),
    ],
)
def test_the_end_tells_what_serves(changes: dict[str, Any], end: str) -> None:
    assert told(**changes)[-1] == end


def test_what_would_be_done() -> None:
    waiting = {"label": "CTX_SIZE=1", "outcome": "waiting", "forecast": ROW["forecast"], "notes": ["no forecast"]}
    plan = {"rows": [waiting, {**waiting, "outcome": "refused"}], "finished": False, "back": [], "gap_s": None}
    lines = told(**plan)
    assert lines[0] == "chat on box: would boot 1 of 2"
    assert lines[-2:] == ["note: CTX_SIZE=1: no forecast", "chat would stop for it and serve again"]
    assert told(**plan, served_before=[])[-1] == "nothing serves that would have to stop"


def test_the_plays_end_has_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    report = CallbackModule()
    shown: list[str] = []
    monkeypatch.setattr(report._display, "banner", shown.append)
    monkeypatch.setattr(report._display, "display", shown.append)
    report._take("box", {"results": [{"trial": RECORD, "failed": True}]})
    report._take("box", {"trial": "not one"})
    report.v2_playbook_on_stats(None)
    assert shown == ["TRIAL", trial_text("box", RECORD)]
