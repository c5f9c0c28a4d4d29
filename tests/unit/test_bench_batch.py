# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""llama-bench: its arguments, its lines, the cards' peaks, and the transient unit that it runs in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _bench_arm
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_arm import (
    BenchPaths,
    arm_env,
    stood_still,
    transient_argv,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_batch import (
    Peak,
    bench_batches,
    cells_of_batches,
    llama_bench,
    llama_bench_argv,
    rates,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, render

PLACE = BenchPaths.of(Paths("chat"), "abc", 1)
GUARD, UNIT = "llm-fleet-bench-chat-abc.service", "llm-fleet-bench-chat-abc-1.service"
CELL = {"batch": 2048, "ubatch": 512, "prompt": 512, "output": 128, "depth": 0}
ENV = {"MODEL_FILE": "/m.gguf", "SERVER_BIN": "/rt/bin/llama-server"}
CARD = {"name": "r9700-1", "vendor": "amd", "pci": "0000:03:00.0"}


def lines(*tests: tuple[int, int, list[float]]) -> str:
    told = [json.dumps({"n_prompt": p, "n_gen": n, "samples_ts": samples}) for p, n, samples in tests]
    return "".join(f"{line}\n" for line in ["load_backend: CPU", *told])


def test_no_cell_has_a_ubatch_above_its_batch() -> None:
    cells = cells_of_batches([512, 2048], [512, 1024], 512, 128, 64)
    assert [(cell["batch"], cell["ubatch"]) for cell in cells] == [(512, 512), (2048, 512), (2048, 1024)]
    assert cells[0] == {"batch": 512, "ubatch": 512, "prompt": 512, "output": 128, "depth": 64}


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ({}, ""),
        # llama-bench separates values to sweep by commas, and what belongs to one configuration by slashes
        ({"TENSOR_SPLIT": "36,29", "DEVICE": "ROCm0,ROCm1"}, "-dev ROCm0/ROCm1 -ts 36/29"),
        (
            {"NGL": "99", "FLASH_ATTN": "on", "CACHE_TYPE_K": "f16", "CACHE_TYPE_V": "q8_0", "SPLIT_MODE": "layer"},
            "-ngl 99 -fa on -ctk f16 -ctv q8_0 -sm layer",
        ),
        ({"NGL": "all", "THREADS": "4", "SPEC_TYPE": "draft-mtp", "PARALLEL": "3"}, "-ngl -1 -t 4"),
    ],
)
def test_its_own_syntax(env: dict[str, str], more: str) -> None:
    argv = llama_bench_argv("/rt/bin/llama-bench", {**ENV, **env}, CELL, 3)
    fixed = "-m /m.gguf -o jsonl -r 3 -b 2048 -ub 512 -p 512 -n 128 -d 0"
    assert " ".join(argv) == f"/rt/bin/llama-bench {fixed} {more}".strip()


def test_rates_of_its_lines() -> None:
    told = rates(lines((512, 0, [900.0, 950.5]), (0, 128, [40.0, 41.0])))
    assert told == {"prefill_tps": [900.0, 950.5], "decode_tps": [40.0, 41.0]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "measured nothing.*found none"),
        ("no device\n", "measured nothing.*found no device"),
        ('{"n_prompt": 512', "cannot be read"),
        ('{"n_prompt": 512}', "cannot be read"),
        ('{"n_prompt": 512, "samples_ts": ["x"]}', "cannot be read"),
        ('{"n_prompt": 512, "samples_ts": []}', "measured nothing"),
    ],
)
def test_lines_that_say_nothing(text: str, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        rates(text)


def test_a_runtime_without_it_is_named(tmp_path: Path) -> None:
    env = {"SERVER_BIN": str(tmp_path / "llama-server")}
    with pytest.raises(FleetError, match=r"runtime cpu has no llama-bench.*llm_runtimes\.cpu\.targets"):
        llama_bench(env, "cpu")
    program = tmp_path / "llama-bench"
    program.touch(mode=0o644)
    with pytest.raises(FleetError, match="has no llama-bench"):
        llama_bench(env, "cpu")
    program.chmod(0o755)
    assert llama_bench(env, "cpu") == str(program)


def card_reader(*free_mib: float) -> Callable[[Any], dict[str, CardState]]:
    left = list(free_mib)

    def read(_cards: Any) -> dict[str, CardState]:
        return {"r9700-1": CardState("r9700-1", 32000.0, left.pop(0) if len(left) > 1 else left[0])}

    return read


def test_the_peak_of_a_card_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.dank.llm_fleet.plugins.module_utils._bench_batch._POLL_S", 0.01)
    with Peak([CARD], card_reader(30000.0, 2000.0, 25000.0)) as peak:
        time.sleep(0.2)
    assert peak.used == {"r9700-1": 30000.0}


def test_a_card_that_cannot_be_asked_is_passed_over_and_one_that_is_gone_told() -> None:
    def gone(_cards: Any) -> dict[str, CardState]:
        raise FleetError("card r9700-1 is not there")

    with Peak([{**CARD, "pci": "unknown"}], gone) as peak:
        pass
    assert peak.used == {}
    with pytest.raises(FleetError, match="is not there"), Peak([CARD], gone):
        time.sleep(0.05)
    with pytest.raises(ZeroDivisionError), Peak([CARD], gone):
        _ = 1 / 0  # what went wrong first is what is told


def test_a_process_a_cell_and_one_that_dies_costs_its_row() -> None:
    ran: list[Sequence[str]] = []

    def start(argv: Sequence[str]) -> Completed:
        ran.append(argv)
        if "1024" in argv:
            return Completed(tuple(argv), 1, "", "a\nb\nc\nmain: error: failed to create context with model '/m.gguf'")
        return Completed(tuple(argv), 0, lines((512, 0, [9.0]), (0, 128, [4.0])), "")

    cells = cells_of_batches([2048], [512, 1024, 2048], 512, 128, 0)
    rows = list(bench_batches("/rt/bin/llama-bench", ENV, [], cells, 1, start))
    assert len(ran) == 3 and [row.error is None for row in rows] == [True, False, True]
    assert rows[0].samples == {"prefill_tps": [9.0], "decode_tps": [4.0]}
    assert str(rows[1].error).startswith("llama-bench failed; expected exit status 0; found 1: b | c | main: error")


def era_of(facts: dict[str, Any], **spec: Any) -> Era:
    unit = render(UnitSpec("chat", "llm", "/opt/l/serve", "/etc/llm-fleet/chat.env", **spec), "d" * 64)
    return Era("e1", "/eras/e1", Blueprint("d", "", unit, "", facts), {"state": "certified"})


def test_the_transient_unit_has_the_endpoints_limits_and_none_of_its_ways_to_come_back() -> None:
    era = era_of({"env": {"HIP_VISIBLE_DEVICES": "0,1"}}, vendor="amd", api_key_file="/etc/key")
    argv = transient_argv(era, PLACE, 60, ["--wait"], ["/rt/bin/llama-bench", "-m", "x"])
    assert argv[:5] == ["systemd-run", "--quiet", "--collect", f"--unit={UNIT}", "--wait"]
    assert argv[-4:] == ["--", "/rt/bin/llama-bench", "-m", "x"]
    kept = [word.removeprefix("--property=") for word in argv[5:-4]]
    assert {"User=llm", "LimitMEMLOCK=infinity", "DeviceAllow=char-kfd rw", "LoadCredential=api-key:/etc/key"} <= {
        *kept
    }
    assert "Environment=XDG_CACHE_HOME=/var/cache/llm-fleet/chat" in kept
    own = {"Environment=HIP_VISIBLE_DEVICES=0,1", "Conflicts=chat.service", f"BindsTo={GUARD}", "RuntimeMaxSec=60"}
    assert own <= {*kept}
    dropped = ("Restart", "ExecStart", "EnvironmentFile", "Environment=LLM", "Type", "WantedBy", "[")
    assert [line for line in kept if line.startswith(dropped)] == []


def test_the_other_arm_is_reached_from_its_host_alone() -> None:
    env = {
        **ENV,
        "BIND_ADDR": "0.0.0.0",
        "LISTEN_PORT": "7770",
        "ALIAS": "chat",
        "CTX_SIZE": "4096",
        "PARALLEL": "2",
        "SPEC_TYPE": "ngram-mod",
        "SPEC_NGRAM_N_MIN": "48",
        "SPEC_NGRAM_N_MAX": "64",
        "API_KEY_FILE": "/run/credentials/chat.service/api-key",
    }
    told = arm_env(era_of({"env": env}), PLACE, {"SPEC_TYPE": "none"}, 4711)
    assert told == {
        **env,
        "BIND_ADDR": "127.0.0.1",
        "LISTEN_PORT": "4711",
        "SPEC_TYPE": "none",
        "API_KEY_FILE": "/run/credentials/llm-fleet-bench-chat-abc-1.service/api-key",
    }
    with pytest.raises(FleetError, match=r"the rung's lines over endpoint chat: .*divisible"):
        arm_env(era_of({"env": env}), PLACE, {"PARALLEL": 3}, 4711)
    with pytest.raises(FleetError, match="SPEC_TIPE is no key"):
        arm_env(era_of({"env": env}), PLACE, {"SPEC_TIPE": "none"}, 4711)


class Host:
    """systemd, the drain and the wait for health, recorded in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, active: str) -> None:
        self.did: list[str] = []
        state = SimpleNamespace(active_state=active, main_pid=7, words=f"{active} (running)")
        monkeypatch.setattr(_bench_arm._systemd, "show", lambda _unit: state)
        monkeypatch.setattr(_bench_arm._systemd, "stop", lambda unit, **_o: self.did.append(f"stop {unit}"))
        monkeypatch.setattr(_bench_arm._systemd, "start", lambda unit, **_o: self.did.append(f"start {unit}"))
        monkeypatch.setattr(_bench_arm, "run", lambda argv, **_o: self.ran(argv))
        monkeypatch.setattr(_bench_arm, "drain", lambda *_a, **_o: self.did.append("drain"))
        monkeypatch.setattr(_bench_arm, "await_health", lambda unit, *_a, **_o: self.did.append(f"healthy {unit}"))

    def ran(self, argv: Sequence[str]) -> None:
        if argv[0] == "systemctl":
            self.did.append(" ".join(argv[1:]))
        else:
            back = [word.partition("=")[2] for word in argv if word.startswith("--property=OnFailure=")]
            self.did.append(f"guard {back or 'alone'}")

    def still(self, *, may_stop: bool, busy: bool = False) -> Any:
        facts = {"engine": "llamacpp", "env": {"LISTEN_PORT": "1"}, "cards": [], "timeout_stop_s": 1, "deadline_s": 1}

        def idle() -> None:
            self.did.append("idle?")
            if busy:
                raise FleetError("endpoint chat is at work")

        say = lambda *_words: None  # noqa: E731
        return stood_still(
            era_of(facts), Paths("chat"), PLACE, say, count=1, may_stop=may_stop, before_stop=idle, limit_s=9
        )


AROUND = (
    ["idle?", "guard ['OnFailure=chat.service']", "drain"],
    ["start chat.service", "healthy chat.service", f"reset-failed {GUARD}"],
)


def test_what_served_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, "active")
    with host.still(may_stop=True):
        host.did.append("bench")
    assert host.did == [*AROUND[0], "bench", *AROUND[1]]


def test_what_served_serves_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, "active")
    with pytest.raises(FleetError, match="broken"), host.still(may_stop=True):
        raise FleetError("broken")
    assert host.did == [*AROUND[0], *AROUND[1]]


@pytest.mark.parametrize(
    ("may_stop", "busy", "words"),
    [(False, False, r"endpoint chat runs.*-e stop=true"), (True, True, "endpoint chat is at work")],
)
def test_nothing_is_stopped_without_leave_or_under_a_client(
    monkeypatch: pytest.MonkeyPatch, may_stop: bool, busy: bool, words: str
) -> None:
    host = Host(monkeypatch, "active")
    with pytest.raises(FleetError, match=words), host.still(may_stop=may_stop, busy=busy):
        pytest.fail("it was let in")
    assert [step for step in host.did if step != "idle?"] == []


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_what_stood_still_goes_on_standing(monkeypatch: pytest.MonkeyPatch, active: str) -> None:
    host = Host(monkeypatch, active)
    with host.still(may_stop=False):
        pass
    assert host.did == ["guard alone", "drain", f"stop {GUARD}", f"reset-failed {GUARD}"]
