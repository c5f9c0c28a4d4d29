# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure signatures: each against a line of a real log or of the program's own format, and against healthy boots."""

from __future__ import annotations

import json
import re
import time
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._signatures import ENGINES, SIGNATURES, match_log
from faultlines import SEEN
from goldens import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

BOOTLOGS = GOLDEN / "bootlogs"
HEALTHY = sorted(name for name in json.loads((BOOTLOGS / "index.json").read_text())["logs"] if "fail-" not in name)


@pytest.mark.parametrize(("engine", "name", "source", "lines"), SEEN, ids=[f"{row[0]}-{row[1]}" for row in SEEN])
def test_a_message_is_known(engine: str, name: str, source: str, lines: str) -> None:
    assert source
    found = match_log(engine, f"0.01 I srv  load_model: loading model\n{lines}\nmore\n")
    assert [match.signature.name for match in found][:1] == [name]
    assert found[0].line in [line.strip()[:300] for line in lines.splitlines()]


def test_every_signature_was_seen() -> None:
    seen = {name for _engine, name, _source, _lines in SEEN}
    assert {each.name for each in SIGNATURES} == seen
    for each in SIGNATURES:
        assert any(
            each.pattern.search(line)
            for engine, name, _source, lines in SEEN
            for line in lines.splitlines()
            if name == each.name and each.engine in (engine, "any")
        ), f"{each.engine} {each.name}: {each.pattern.pattern}"


def test_every_signature_says_what_it_means_and_what_to_do() -> None:
    for each in SIGNATURES:
        assert each.engine in (*ENGINES, "any")
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name)
        assert len(each.meaning) > 20 and len(each.remedy) > 20
        assert each.meaning[-1] != "." and each.remedy[-1] != "."  # FleetError puts it there


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_healthy_boot_matches_nothing(engine: str, name: str) -> None:
    assert match_log(engine, (BOOTLOGS / name).read_text()) == []


def test_there_are_seven_healthy_boots() -> None:
    assert len(HEALTHY) == 7


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fail-mtp-without-layers.log", ["mtp-without-layers", "model-not-loaded"]),
        ("fail-two-context-backed-drafters.log", ["two-context-backed-drafters"]),
    ],
)
def test_a_failed_boot_is_explained(name: str, expected: list[str]) -> None:
    assert [match.signature.name for match in match_log("llamacpp", (BOOTLOGS / name).read_text())] == expected


def test_causes_stand_before_consequences_whatever_the_log_says_first() -> None:
    log = (
        "srv  llama_server: exiting due to model loading error\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1 MiB on device 0: cudaMalloc failed: out of memory\n"
        "invalid device: ROCm1\n"
        "ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected\n"
    )
    assert [match.signature.name for match in match_log("llamacpp", log)] == [
        "no-device",
        "unknown-device",
        "kv-cache-out-of-memory",
        "card-out-of-memory",
        "model-not-loaded",
    ]


def test_lines_are_counted_and_the_first_is_shown() -> None:
    (match,) = match_log("llamacpp", "a\nROCm error: out of memory (1)\nb\nROCm error: out of memory (2)\n")
    assert (match.count, match.line) == (2, "ROCm error: out of memory (1)")
    assert match.as_dict() == {
        "name": "card-out-of-memory",
        "meaning": match.signature.meaning,
        "remedy": match.signature.remedy,
        "line": "ROCm error: out of memory (1)",
        "count": 2,
    }


def test_an_engine_is_not_told_another_ones_faults() -> None:
    assert match_log("r9v", "srv start: couldn't bind HTTP server socket, hostname: x, port: 1") == []
    assert match_log("llamacpp", "Container already exists: x") == []
    assert match_log("llamacpp", "") == []


def test_a_drafter_is_blamed_only_where_memory_ran_out() -> None:
    line = "#3 0x1 in common_speculative_impl_draft_dflash::process(llama_batch const&) () from lib.so"
    assert match_log("llamacpp", line) == []


def repeats(parsed: Any, above: int = 0) -> int:
    """How deep unbounded (or long) repeats stand inside each other in a parsed pattern."""
    deepest = above
    for op, value in parsed:
        inside = above
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, below = value
            inside = above + (high > 16 and high != low)
            deepest = max(deepest, repeats(below, inside))
        elif op is _constants.BRANCH:
            deepest = max([deepest, *(repeats(branch, above) for branch in value[1])])
        elif op is _constants.SUBPATTERN:
            deepest = max(deepest, repeats(value[-1], above))
    return deepest


@pytest.mark.parametrize("each", SIGNATURES, ids=lambda each: f"{each.engine}-{each.name}")
def test_a_pattern_repeats_nothing_inside_a_repeat(each: Any) -> None:
    assert repeats(_parser.parse(each.pattern.pattern)) <= 1
    assert "*" not in each.pattern.pattern.replace(r"\*", "") and "+" not in each.pattern.pattern


def test_the_search_for_nested_repeats_finds_one() -> None:
    assert repeats(_parser.parse(r"(a{1,99}b){1,99}")) == 2


def test_a_long_log_of_lines_made_to_be_slow_is_searched_at_once() -> None:
    slow = 'GGML_ASSERT(n_max setup/ /dev/kfd Cannot read container name "' * 30
    started = time.monotonic()
    match_log("llamacpp", "\n".join([slow] * 200))
    match_log("r9v", "A" * 3_000_000)
    assert time.monotonic() - started < 60


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_searched(text: str) -> None:
    for engine in ENGINES:
        assert all(match.count >= 1 for match in match_log(engine, text))
