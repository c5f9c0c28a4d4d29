# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory plan: the reference page's figures come out of it, and each check is seen red."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_memory import (
    REGISTRATIONS,
    Check,
    Host,
    Registration,
    check_compaction,
    check_doctor,
    check_kv,
    check_pin,
    check_registration,
    check_repin,
    compaction,
    kv_bytes,
    plan,
    registration_s,
    unchecked,
)
from ansible_collections.dank.llm_fleet.plugins.modules import r9v_memory_info
from hypothesis import given
from hypothesis import strategies as st

PLE, AVAILABLE, RESERVE = 54_400_261_120, 140_876_808_192, 16 << 30
Q8 = {
    "R9V_PLE_RESIDENCY_MODE": "pinned",
    "R9V_PLE_EXPECTED_BYTES": str(PLE),
    "R9V_PLE_READY_TIMEOUT": "1800",
    "R9V_MAX_MODEL_LEN": "131072",
    "R9V_KV_CACHE_MEMORY_BYTES": "2448162816",
    "R9V_MIN_HOST_AVAILABLE_BYTES": "60424720384",
}
CLIENT = {"context_window": 131072, "max_tokens": 36864, "percent": 70}


def green(check: Check) -> None:
    assert check.holds and check.remedy == ""


def red(check: Check, *words: str) -> None:
    assert not check.holds and check.remedy
    for word in words:
        assert word in check.words, check.words


def test_pinning_anew_takes_twice_the_table() -> None:
    """108,800,522,240 of 140,876,808,192 available, by the qualification's pinning proof."""
    check = check_repin(PLE, Host(AVAILABLE))
    green(check)
    assert "108,800,522,240" in check.expected and "140,876,808,192" in check.found
    green(check_repin(PLE, Host(108_800_522_240)))
    red(check_repin(PLE, Host(108_800_522_239)), "2 x 54,400,261,120", "Let the old container end")


def test_the_engine_asks_for_table_and_reserve() -> None:
    green(check_pin(PLE, RESERVE, Host(PLE + RESERVE)))
    red(check_pin(PLE, RESERVE, Host(PLE + RESERVE - 1)), "71,580,130,304 bytes", "R9V_PLE_RESIDENCY_MODE=ssd")


def test_what_the_incumbent_gives_back_and_what_cold_experts_take() -> None:
    short = Host(PLE)
    red(check_pin(PLE, RESERVE, short))
    green(check_pin(PLE, RESERVE, Host(PLE, released=RESERVE)))
    red(check_pin(PLE, RESERVE, Host(PLE, released=RESERVE, cold_experts=1)), "cold experts 1")
    red(check_repin(PLE, Host(2 * PLE, cold_experts=1)), "cold experts 1")


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 38), st.integers(0, 1 << 38))
def test_more_memory_never_makes_a_plan_worse(ple: int, available: int, released: int, cold: int) -> None:
    host, more = Host(available, released, cold), Host(available, released + 1, cold)
    for judge in (lambda here: check_pin(ple, RESERVE, here), lambda here: check_repin(ple, here)):
        assert judge(host).holds <= judge(more).holds


def test_registration_by_the_reference_hosts_figures() -> None:
    assert registration_s(PLE, REGISTRATIONS) == (446.0, 740.0)
    red(check_registration(PLE, 600, REGISTRATIONS), "446 s to 740 s", "R9V_PLE_READY_TIMEOUT=1800")
    green(check_registration(PLE, 1800, REGISTRATIONS))
    # The sibling's table is half as large, and the engine's own timeout is enough for it.
    green(check_registration(28_800_138_240, 600, REGISTRATIONS))


def test_registration_by_measurements_of_the_host() -> None:
    slow = [Registration(1 << 30, 10), Registration(2 << 30, 60)]
    assert registration_s(4 << 30, slow) == (40.0, 120.0)
    red(check_registration(4 << 30, 120, slow), "40 s to 120 s", "R9V_PLE_READY_TIMEOUT=600")
    green(check_registration(4 << 30, 121, slow))


def test_the_kv_envelope() -> None:
    """The fork's profile: 18,676 bytes a token, 196,608 tokens in a budget of 3,672,113,152."""
    assert kv_bytes(196_608, 18_676) == 3_671_851_008
    green(check_kv(196_608, 18_676, 3_672_113_152))
    assert kv_bytes(131_072, 18_676) < kv_bytes(196_608, 18_676)
    red(check_kv(196_608, 18_676, 3_671_851_007), "196,607 tokens", "to 3,671,851,008 at least")


@pytest.mark.parametrize(
    ("window", "percent", "tokens"), [(131_072, 70, 91_750), (196_608, 70, 137_625), (100, 0, 0), (101, 50, 50)]
)
def test_where_a_harness_compacts(window: int, percent: int, tokens: int) -> None:
    assert compaction(window, percent) == tokens


def test_the_compaction_gap() -> None:
    """70 % of 131,072 is 91,750; with 36,864 that is 128,614 of 131,072."""
    check = check_compaction(131_072, 131_072, 36_864, 70)
    green(check)
    assert check.found == "128,614"
    green(check_compaction(131_072, 131_072, 39_322, 70))
    red(check_compaction(131_072, 131_072, 39_323, 70), "at most 39,322 tokens an answer")
    red(check_compaction(196_608, 131_072, 1, 70), "a window of 131,072")


def test_the_doctors_floor() -> None:
    green(check_doctor(100, Host(60, released=40)))
    red(check_doctor(100, Host(60, released=39)), "R9V_MIN_HOST_AVAILABLE_BYTES", "released_bytes")


def test_the_whole_plan_of_the_reference_profile() -> None:
    checks = plan(Q8, Host(AVAILABLE), REGISTRATIONS, kv_per_token=18_676, client=CLIENT)
    assert [check.name for check in checks if not check.holds] == []
    assert len(checks) == 6 and unchecked(Q8, 18_676, CLIENT) == []
    # As it was on the morning when a start failed: no line for the timeout.
    bare = {key: value for key, value in Q8.items() if key != "R9V_PLE_READY_TIMEOUT"}
    (late,) = [check for check in plan(bare, Host(AVAILABLE), REGISTRATIONS) if not check.holds]
    assert late.name == "registration time" and "less than 600 s" in late.expected


@pytest.mark.parametrize(
    ("settings", "names", "reasons"),
    [
        ({}, [], ["R9V_PLE_RESIDENCY_MODE is not set", "R9V_MIN_HOST", "R9V_MAX_MODEL_LEN, R9V_KV", "compaction gap"]),
        ({**Q8, "R9V_PLE_RESIDENCY_MODE": "ssd"}, ["doctor's floor of host memory"], ["is ssd, nothing is pinned",
         "KV cache: kv_bytes_per_token", "compaction gap: client"]),
        ({**Q8, "R9V_PLE_EXPECTED_BYTES": ""}, ["doctor's floor of host memory"], ["R9V_PLE_EXPECTED_BYTES is not set",
         "KV cache", "compaction gap"]),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_told(settings: dict[str, str], names: list[str], reasons: list[str]) -> None:
    assert [check.name for check in plan(settings, Host(AVAILABLE), REGISTRATIONS)] == names
    told = unchecked(settings, None, None)
    assert len(told) == len(reasons)
    for row, reason in zip(told, reasons, strict=True):
        assert reason in row


def test_a_setting_that_is_no_number() -> None:
    with pytest.raises(FleetError, match=r"settings\.R9V_PLE_EXPECTED_BYTES; expected a whole number; found '54 GB'"):
        plan({**Q8, "R9V_PLE_EXPECTED_BYTES": "54 GB"}, Host(AVAILABLE), REGISTRATIONS)


def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **params: Any) -> dict[str, Any]:
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    monkeypatch.setattr(r9v_memory_info, "available_bytes", lambda: AVAILABLE)
    with patch_module_args(params), pytest.raises(SystemExit) as caught:
        r9v_memory_info.main()
    told: dict[str, Any] = {**json.loads(capsys.readouterr().out), "warned": warned}
    assert caught.value.code == int(told.get("failed", False))
    return told


def test_the_module_warns_and_does_not_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ask(capsys, monkeypatch, settings=Q8, kv_bytes_per_token=18_676, client={**CLIENT})
    assert (told["fits"], told["changed"], told["warned"], told["available_bytes"]) == (True, False, [], AVAILABLE)
    told = ask(
        capsys,
        monkeypatch,
        settings=Q8,
        available_bytes=PLE,
        cold_bytes=5,
        registrations=[{"bytes": PLE, "seconds": 2000}],
    )
    assert not told["fits"] and told["warned"] == told["table"]
    assert [check["name"] for check in told["checks"] if not check["holds"]] == [
        "doctor's floor of host memory",
        "pinned table",
        "pinned table, twice while it is pinned anew",
        "registration time",
    ]
    for check in told["checks"]:
        assert bool(check["remedy"]) is not check["holds"] and check["expected"] and check["found"]
