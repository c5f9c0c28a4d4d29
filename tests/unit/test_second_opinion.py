# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""llama-fit-params beside the ledger: what it is asked, how its answer is read, and when the two disagree."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Shape
from ansible_collections.dank.llm_fleet.plugins.module_utils._second_opinion import (
    Device,
    Opinion,
    arguments,
    ask_engine,
    comparable,
    compare_opinions,
    parse,
    program_beside,
    require_second_opinion,
)
from conftest import StandIn
from goldens import DRY_RUNS, GOLDEN, LLAMA, NINE, SHAPES, MadeTensor, cards, header, made, model, shape_of
from hypothesis import given
from hypothesis import strategies as st

WHOLE_BATCH: list[dict[str, Any]] = json.loads((GOLDEN / "whole-batch.json").read_text())
RECORDED = Path(__file__).parents[1] / "fixtures" / "fit-params"
INDEX: dict[str, dict[str, Any]] = json.loads((RECORDED / "index.json").read_text())
RUNS = {name: run for name, run in INDEX.items() if "devices" in run}
FAILURES = {name: run for name, run in INDEX.items() if "signal" in run}
ARGV = ["/rt/bin/llama-server", "--model", "/m.gguf", "--ctx-size", "4096", "--parallel", "2"]


def recorded(name: str) -> tuple[str, str]:
    """What the real program wrote: its output and its log."""
    return (RECORDED / f"{name}.out").read_text(), (RECORDED / f"{name}.log").read_text()


# What it is asked.
def test_it_is_asked_with_the_servers_arguments() -> None:
    asked, left_out = arguments(
        "--model /m.gguf --host 127.0.0.1 --port 8080 --alias chat --ctx-size 602112 --parallel 3 --cache-type-k f16"
        " --cache-type-v q8_0 --flash-attn on --batch-size 6144 --ubatch-size 1024 --n-gpu-layers 99"
        " --split-mode layer --device CUDA0,CUDA1 --tensor-split 36,29 --fit off --ctx-checkpoints 8 --cache-ram 0"
        " --jinja --metrics --mmproj /p.gguf --lora-scaled /l.gguf:1 --threads 8 --log-verbosity 4 --temp 0.6"
        " --spec-type draft-mtp --spec-draft-n-max 2".split()
    )
    assert " ".join(asked) == (
        "--model /m.gguf --ctx-size 602112 --parallel 3 --cache-type-k f16 --cache-type-v q8_0 --flash-attn on"
        " --batch-size 6144 --ubatch-size 1024 --n-gpu-layers 99 --split-mode layer --device CUDA0,CUDA1"
        " --tensor-split 36,29 --threads 8"
    )
    assert left_out == ("projector", "adapter", "drafter")


@pytest.mark.parametrize(
    "flag", sorted({flag for key in _envspec.keys("llamacpp").values() for flag in (key.flag, key.off)} - {""})
)
def test_every_flag_that_the_launcher_makes_is_known(flag: str) -> None:
    keys = [key for key in _envspec.keys("llamacpp").values() if flag in (key.flag, key.off)]
    values = [] if flag == keys[0].off or keys[0].form == "switch" else ["1"]
    asked, _ = arguments([*ARGV[1:], flag, *values])
    assert list(asked) in (ARGV[1:], [*ARGV[1:], flag, *values])


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        (["--parallel", "2", "--kv-unified"], "argument --kv-unified of the server"),
        (["--parallel", "2", "-c", "4096"], "argument -c of the server"),
        (["--parallel", "2", "stray"], "argument stray"),
        (["--parallel"], "argument --parallel of the server; expected a value after it"),
        (["--ctx-size", "4096"], "expected --parallel among them"),
        ([], "expected --parallel among them"),
    ],
)
def test_arguments_that_it_cannot_be_asked_with(argv: list[str], match: str) -> None:
    with pytest.raises(FleetError, match=match):
        arguments(argv)


def test_it_lies_beside_the_server() -> None:
    assert program_beside("/opt/rt/bin/llama-server") == "/opt/rt/bin/llama-fit-params"


# How its answer is read.
def test_total_and_free_are_in_the_log() -> None:
    # The table of a server's log on a simulated card (golden/bootlogs), its columns as they are.
    log = (
        "0.00.006 I common_memory_breakdown_print: | memory breakdown [MiB]     | total    free     self   model\n"
        "0.00.527 I |   - SIM0 (one (simulated) GPU) | 24576 = 24125 + (24830 =  8291 +   14858 +    1681) + -2 |\n"
        "0.00.527 I |   - Host                       |                   1487 =  1030 +       0 +     456       |\n"
    )
    assert parse("SIM0 8291 14858 1681 \nHost 1030 0 456 \n", log) == (
        Device("SIM0", 8291, 14858, 1681, 24576, 24125),
        Device("Host", 1030, 0, 456),
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_answer(name: str) -> None:
    assert [[*vars(device).values()] for device in parse(*recorded(name))] == RUNS[name]["devices"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "<html>",
        "CUDA0 1 2 3 \n",
        "Host 1 2 3 \nCUDA0 1 2 3 \n",
        "CUDA0 1 2 3 \nCUDA0 1 2 3 \nHost 1 2 3 \n",
        "Host 1 2 3 \nHost 1 2 3 \n",
        "Host 1 2\n",
        "Host 1 2 3 4\n",
        "Host 1 -2 3 \n",
        "Host 1 2.5 3 \n",
        "Host a b c \n",
        "-c 4096 -ngl 99\n",
        "build: 11434\nHost 1 2 3 \n",
    ],
)
def test_output_that_is_not_its_own(text: str) -> None:
    with pytest.raises(FleetError, match="llama-fit-params's output"):
        parse(text)


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_output_breaks_the_reader(text: str, log: str) -> None:
    try:
        devices = parse(text, log)
    except FleetError:
        return
    assert devices[-1].name == "Host"


# Asking it.
def test_a_runtime_without_it(tmp_path: Path) -> None:
    assert ask_engine(str(tmp_path / "llama-fit-params"), ARGV) is None


def test_one_that_cannot_be_run(tmp_path: Path) -> None:
    binary = tmp_path / "llama-fit-params"
    binary.write_text("")
    with pytest.raises(FleetError, match="expected a program that can be run"):
        ask_engine(str(binary), ARGV)


@pytest.mark.parametrize("name", RUNS)
def test_an_answer(name: str, stand_in: StandIn) -> None:
    folder = RECORDED / name
    binary = stand_in("llama-fit-params", f"cat {folder}.log >&2\ncat {folder}.out")
    opinion = ask_engine(str(binary), ["/rt/bin/llama-server", *RUNS[name]["argv"]])
    assert opinion is not None
    assert opinion.devices == parse(*recorded(name))
    assert opinion.asked[0] == str(binary)
    assert 0 < opinion.seconds < 30


def test_what_it_is_given(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    binary = stand_in("llama-fit-params", 'echo "$@" >&2; env >&2; exit 3')
    with pytest.raises(FleetError) as caught:
        ask_engine(str(binary), ARGV, env={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    told = caught.value.message
    assert "--model /m.gguf --ctx-size 4096 --parallel 2 --fit-print on --log-verbosity 4 --no-repack" in told
    assert "CUDA_VISIBLE_DEVICES=GPU-1" in told
    assert "LLAMA_ARG" not in told


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("echo 'error: invalid argument: --no-repack' >&2; exit 1", "exit status 0; found 1: error: invalid argument"),
        ("kill -SEGV $$", "found -11"),
        ("echo nonsense", "output; expected NAME MODEL CONTEXT COMPUTE; found 'nonsense'"),
        ("true", "Host last; found"),
    ],
)
def test_it_fails(body: str, match: str, stand_in: StandIn) -> None:
    with pytest.raises(FleetError, match=match):
        ask_engine(str(stand_in("llama-fit-params", body)), ARGV)


@pytest.mark.parametrize("name", FAILURES)
def test_a_recorded_failure(name: str, stand_in: StandIn) -> None:
    binary = stand_in("llama-fit-params", f"cat {RECORDED / name}.log >&2\nkill -{FAILURES[name]['signal']} $$")
    with pytest.raises(FleetError) as caught:
        ask_engine(str(binary), ARGV)
    assert FAILURES[name]["says"] in caught.value.message
    assert "expected exit status 0; found -6: " in caught.value.message
    assert "libggml" not in caught.value.message


LOAD, VOCABULARY = "0.00.125 E load: failed", "0.00.123 E load: no vocabulary"


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([[VOCABULARY, LOAD]] * 5, "load: no vocabulary; load: failed"),
        ([[], [LOAD], [VOCABULARY, LOAD], [], [LOAD]], "load: no vocabulary; load: failed"),
        (
            [[VOCABULARY + "/lib/x.so", LOAD], [LOAD], [VOCABULARY, LOAD], [LOAD], [VOCABULARY, LOAD]],
            "load: no vocabulary; load: failed",
        ),
        ([[]] * 5, "terminate called"),
    ],
)
def test_a_reason_that_an_abort_lost_or_spoilt(
    runs: list[list[str]], reason: str, stand_in: StandIn, tmp_path: Path
) -> None:
    for number, lines in enumerate(runs, 1):
        (tmp_path / str(number)).write_text("".join(f"{line}\n" for line in [*lines, "terminate called"]))
    count = tmp_path / "count"
    body = f"echo x >>{count}; cat {tmp_path}/$(wc -l <{count}) >&2; kill -ABRT $$"
    with pytest.raises(FleetError, match=rf"found -6: {reason}\.$"):
        ask_engine(str(stand_in("llama-fit-params", body)), ARGV)
    assert len(count.read_text().split()) == len(runs)


def test_one_from_before_it_could_print(stand_in: StandIn) -> None:
    binary = stand_in("llama-fit-params", "echo 'error: invalid argument: --fit-print' >&2; exit 1")
    assert ask_engine(str(binary), ARGV) is None


def test_it_hangs(stand_in: StandIn) -> None:
    binary, started = stand_in("llama-fit-params", "sleep 60 & wait"), time.monotonic()
    with pytest.raises(FleetError, match=r"did not end; expected an end within 0\.2 s"):
        ask_engine(str(binary), ARGV, timeout_s=0.2)
    assert time.monotonic() - started < 10


# When the two disagree.
def opinion_of(*devices: Device) -> Opinion:
    return Opinion(devices, ("llama-fit-params", "--model", "/m.gguf"), (), 1.0)


def agreeing(ledger: Ledger, compute: float = 1.0) -> Opinion:
    """An engine that counts what we do, and ``compute`` times our bound."""
    return opinion_of(
        *(
            Device(
                "Host" if device.card is None else device.name.replace("card", "CUDA"),
                device.weights // MIB,
                (device.kv + device.recurrent) // MIB,
                int(compute * device.compute / MIB),
            )
            for device in (*ledger.cards, ledger.host)
        )
    )


NAMES = {f"CUDA{index}": f"card{index}" for index in range(4)}
PAIR = predict(header(NINE), Shape(65536, parallel=2, tensor_split=(1, 1)), cards=cards(2))


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_a_golden_shape_is_agreed_upon(index: int) -> None:
    row = SHAPES[index]
    ledger = predict(header(row["model"]), shape_of(row), cards=cards(len(row["cards"])))
    opinion = opinion_of(
        *(Device(f"CUDA{n}", *card) for n, card in enumerate(row["cards"])), Device("Host", *row["host"])
    )
    assert compare_opinions(ledger, opinion, NAMES) == []


@pytest.mark.parametrize("index", range(len(DRY_RUNS)))
def test_a_dry_run_is_agreed_upon(index: int) -> None:
    row = DRY_RUNS[index]
    shape = Shape(**{**row["shape"], "tensor_split": tuple(row["shape"]["tensor_split"])})
    ledger = predict(model(*row["model"]), shape, cards=cards(len(row["cards"])))
    host = agreeing(ledger).devices[-1]
    opinion = opinion_of(
        *(Device(f"CUDA{n}", *(size // MIB for size in card)) for n, card in enumerate(row["cards"])), host
    )
    assert compare_opinions(ledger, opinion, NAMES) == []


@pytest.mark.parametrize("index", range(len(WHOLE_BATCH)))
def test_compute_of_a_whole_batch(index: int) -> None:
    row = WHOLE_BATCH[index]
    shape = Shape(**{**row["shape"], "tensor_split": tuple(row["shape"].get("tensor_split", [1]))})
    asked = header(row["model"]) if isinstance(row["model"], str) else model(*row["model"])
    ledger = predict(asked, comparable(shape), cards=cards(len(row["compute"]) - 1))
    devices = agreeing(ledger).devices
    opinion = opinion_of(
        *(replace(device, compute_mib=mib) for device, mib in zip(devices, row["compute"], strict=True))
    )
    assert compare_opinions(ledger, opinion, NAMES) == []


@pytest.mark.parametrize(
    ("change", "term"),
    [
        ({"model_mib": 1}, "weights"),
        ({"model_mib": -1}, "weights"),
        ({"context_mib": 1}, "context"),
        ({"context_mib": -1}, "context"),
        ({"compute_mib": 500}, "compute"),
        ({"compute_mib": -300}, "compute"),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_difference(change: dict[str, int], term: str, at: int) -> None:
    devices = list(agreeing(PAIR).devices)
    ((field, by),) = change.items()
    devices[at] = replace(devices[at], **{field: getattr(devices[at], field) + by})
    (found,) = compare_opinions(PAIR, opinion_of(*devices), NAMES)
    assert (found.device, found.term) == (f"CUDA{at}", term)
    assert found.engine_mib == getattr(devices[at], field)


def test_how_far_compute_may_differ() -> None:
    logits = 4 * 2 * 248320 / MIB  # rows for two slots, made on the second card

    def differences(at: int, compute: int) -> list[str]:
        devices = list(agreeing(PAIR).devices)
        devices[at] = replace(devices[at], compute_mib=compute)
        return [found.term for found in compare_opinions(PAIR, opinion_of(*devices), NAMES)]

    for at, room in ((0, 0.0), (1, logits)):
        bound = PAIR.cards[at].compute / MIB
        least = next(mib for mib in range(10000) if bound <= 1.35 * (mib + 1) + room)
        most = int(bound) + 1
        assert differences(at, least) == differences(at, most) == []
        assert differences(at, least - 1) == differences(at, most + 1) == ["compute"]


def test_a_batchs_logits_may_lie_where_the_masks_were() -> None:
    # A recorded dry run on a simulated card: 692 MiB, as the masks of 588 are free again when 485 of logits come.
    shape = Shape(602112, parallel=1, tensor_split=(1,))
    ledger = predict(header(NINE), comparable(shape), cards=cards(1))
    assert ledger.cards[0].compute / MIB > 1.35 * 693
    host = agreeing(ledger).devices[-1]
    assert compare_opinions(ledger, opinion_of(Device("CUDA0", 8045, 18866, 692), host), NAMES) == []
    (found,) = compare_opinions(ledger, opinion_of(Device("CUDA0", 8045, 18866, 400), host), NAMES)
    assert found.rule == "not above it by more than 35% and 485 MiB of logits"


def test_weights_of_unknown_types_are_a_bound() -> None:
    odd = made(tensors=[MadeTensor("blk.0.attn_k.weight", (256, 65536), None, exact=False)])
    ledger = predict(odd, Shape(4096, parallel=1), cards=cards(1))
    devices = list(agreeing(ledger).devices)
    fewer = opinion_of(replace(devices[0], model_mib=devices[0].model_mib - 1), devices[1])
    more = opinion_of(replace(devices[0], model_mib=devices[0].model_mib + 1), devices[1])
    assert compare_opinions(ledger, fewer, NAMES) == []
    assert [found.term for found in compare_opinions(ledger, more, NAMES)] == ["weights"]


@pytest.mark.parametrize("kept", [[0, 2], [2], [0, 1, 1, 2]])
def test_other_devices_than_declared(kept: list[int]) -> None:
    devices = [agreeing(PAIR).devices[index] for index in kept]
    with pytest.raises(FleetError, match="the devices that llama-fit-params sees; expected card0, card1"):
        compare_opinions(PAIR, opinion_of(*devices), NAMES)
    with pytest.raises(FleetError, match="found CUDA0, CUDA1"):
        compare_opinions(PAIR, agreeing(PAIR), {})


def test_both_tables_are_printed() -> None:
    require_second_opinion(PAIR, agreeing(PAIR), NAMES)
    first, *rest = agreeing(PAIR).devices
    wrong = opinion_of(replace(first, context_mib=first.context_mib + 7), *rest)
    with pytest.raises(FleetError) as caught:
        require_second_opinion(PAIR, wrong, NAMES)
    told, card = caught.value.message, PAIR.cards[0]
    assert f"context of CUDA0 {(card.kv + card.recurrent) / MIB:,.2f} against {first.context_mib + 7:,}" in told
    assert f"by the ledger: CUDA0 {card.weights / MIB:,.2f} + {(card.kv + card.recurrent) / MIB:,.2f} + " in told
    assert (
        f"by the engine: CUDA0 {first.model_mib:,} + {first.context_mib + 7:,} + {first.compute_mib:,}; CUDA1" in told
    )
    assert told.count("Host ") == 2
    assert "llama-fit-params --model /m.gguf" in told
    assert [found["term"] for found in caught.value.facts["differences"]] == ["context"]


def test_what_the_program_counts() -> None:
    # It knows no drafter, and makes logits for every token: 512 rows of 128,256 numbers, where the server asks for 2.
    shape = Shape(8192, parallel=2, spec_type="draft-simple", spec_draft_n_max=4)
    counted = comparable(shape)
    assert (counted.spec_type, counted.outputs) == (None, 2048)
    (few,) = predict(header(LLAMA), replace(shape, spec_type=None), cards=cards(1)).cards
    (all_of_them,) = predict(header(LLAMA), counted, cards=cards(1)).cards
    assert all_of_them.compute > few.compute
    assert all_of_them.compute >= 4 * 512 * 128256
    assert (all_of_them.weights, all_of_them.kv) == (few.weights, few.kv)
