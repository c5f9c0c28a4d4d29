# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a boot's memory off its log: nine real logs, what a journal makes of them, and damage of every kind."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _bootlog
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import parse_boot_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BOOT_TERMS, BootLog
from bootlogs import (
    ARGV,
    FAILING,
    FITS,
    NO_DRAFTER,
    REFUSED,
    SERVING,
    TINY,
    TOY,
    TOY_COLD,
    TOY_QUIET,
    TWO_CARDS,
    WINDOW,
    ZEALOT,
    boot,
    text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

STAMP = "0.30.800.000 I "


def after(name: str, mark: str, *lines: str, stamp: str = STAMP) -> str:
    """A golden log with lines put in behind the first one that holds ``mark``."""
    rows = text(name).split("\n")
    at = next(index for index, row in enumerate(rows) if mark in row) + 1
    return "\n".join([*rows[:at], *(stamp + line for line in lines), *rows[at:]])


def before(name: str, mark: str) -> str:
    """A golden log that ends before the first line that holds ``mark``."""
    return text(name).split(mark)[0].rsplit("\n", 1)[0]


def without(name: str, *marks: str) -> str:
    """A golden log without the lines that hold one of ``marks``."""
    return "\n".join(row for row in text(name).split("\n") if not any(mark in row for mark in marks))


def reserve(mib: str, device: str = "PHANTOM0") -> tuple[str, ...]:
    return (
        "sched_reserve: reserving ...",
        f"sched_reserve: {device:>10} compute buffer size = {mib:>8} MiB",
        "sched_reserve: reserve took 1.00 ms, sched copies = 1",
    )


# The figures, as the engine printed them.
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (
            ZEALOT,
            {
                ("weights", "CPU_Mapped"): 1030.62,
                ("weights", "PHANTOM0"): 8291.63,
                ("kv", "PHANTOM0"): 14406.00,
                ("recurrent", "PHANTOM0"): 452.25,
                ("compute", "PHANTOM0"): 1681.04,
                ("compute", "PHANTOM_Host"): 456.95,
                ("draft_kv", "PHANTOM0"): 2352.00,
                ("draft_compute", "PHANTOM0"): 480.97,
                ("draft_compute", "PHANTOM_Host"): 424.86,
                ("outputs", "PHANTOM_Host"): 5.68,  # 2.84 of each context
            },
        ),
        (
            NO_DRAFTER,
            {
                ("weights", "CPU_Mapped"): 1030.62,
                ("weights", "PHANTOM0"): 8045.05,
                ("kv", "PHANTOM0"): 14406.00,
                ("recurrent", "PHANTOM0"): 150.75,
                ("compute", "PHANTOM0"): 1681.04,
                ("compute", "PHANTOM_Host"): 456.95,
                ("outputs", "PHANTOM_Host"): 2.84,
            },
        ),
        (
            FITS,
            {
                ("weights", "CPU_Mapped"): 1030.62,
                ("weights", "PHANTOM0"): 8291.63,
                ("kv", "PHANTOM0"): 6664.00,
                ("recurrent", "PHANTOM0"): 301.50,
                ("compute", "PHANTOM0"): 2608.34,
                ("compute", "PHANTOM_Host"): 912.36,
                ("draft_kv", "PHANTOM0"): 1568.00,
                ("draft_compute", "PHANTOM0"): 960.06,
                ("draft_compute", "PHANTOM_Host"): 848.07,
                ("outputs", "PHANTOM_Host"): 3.78,
            },
        ),
        (
            TWO_CARDS,
            {
                ("weights", "CPU_Mapped"): 1288.28,
                ("weights", "PHANTOM0"): 14273.25,
                ("weights", "PHANTOM1"): 11699.04,
                ("kv", "PHANTOM0"): 11520.00,
                ("kv", "PHANTOM1"): 8960.00,
                ("recurrent", "PHANTOM0"): 174.56,
                ("recurrent", "PHANTOM1"): 124.69,
                ("compute", "PHANTOM0"): 892.08,
                ("compute", "PHANTOM1"): 802.06,
                ("compute", "PHANTOM_Host"): 740.09,
                ("draft_weights", "CPU_Mapped"): 515.31,
                ("draft_weights", "PHANTOM1"): 770.40,
                ("draft_kv", "PHANTOM1"): 6400.00,
                ("draft_compute", "PHANTOM1"): 212.01,
                ("draft_compute", "PHANTOM_Host"): 176.02,
                ("outputs", "PHANTOM_Host"): 3.78,
            },
        ),
        (
            WINDOW,
            {
                ("weights", "CPU_Mapped"): 235.16,
                ("weights", "CPU_REPACK"): 12.66,
                ("kv", "CPU"): 54.00,  # 24.00 of the whole context, 30.00 of the window
                ("compute", "CPU"): 23.28,
                ("outputs", "CPU"): 2.00,
            },
        ),
        (
            TINY,
            {
                ("weights", "CPU_Mapped"): 1.38,
                ("kv", "CPU"): 4.50,
                ("compute", "CPU"): 4.28,  # laid out twice, before and with the adapter
                ("adapter", "CPU_Mapped"): 0.02,
                ("projector", "CPU"): 0.23,
                ("outputs", "CPU"): 0.01,
            },
        ),
    ],
)
def test_every_figure_of_a_log(name: str, figures: dict[tuple[str, str], float]) -> None:
    found = boot(name)
    assert {(line.term, line.device): found.mib(line.term, line.device) for line in found.lines} == figures
    assert (found.state, found.missing, found.unread, found.failure) == ("listening", (), (), None)


def test_the_boot_whose_fit_refuses_takes_what_the_one_without_a_fit_takes() -> None:
    assert boot(REFUSED).lines == boot(ZEALOT).lines


def test_how_far_a_figure_is_rounded() -> None:
    resolutions = {line.term: line.resolution for line in boot(WINDOW).lines if line.device == "CPU"}
    assert resolutions == {"kv": 0.01, "compute": 0.005, "outputs": 0.005}
    assert {line.context for line in boot(ZEALOT).lines if line.term == "outputs"} == {"target", "draft"}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (ZEALOT, (602112, 200704, 3, 6144, 1024, 2, 9, True, False, 1)),
        (NO_DRAFTER, (602112, 200704, 3, 6144, 1024, 0, 3, True, False, 1)),
        (FITS, (401408, 200704, 2, 6144, 2048, 2, 6, True, False, 1)),
        (TWO_CARDS, (327680, 163840, 2, 6144, 512, 0, 2, True, False, 4)),
        (WINDOW, (8192, 4096, 2, 2048, 512, 0, 2, True, False, 1)),
        (TINY, (4608, 1536, 3, 2048, 512, 0, 3, True, False, 1)),  # flash attention left to the engine
    ],
)
def test_the_context(name: str, facts: tuple[Any, ...]) -> None:
    found = boot(name)
    target = found.target
    assert target is not None
    numbers = (target.n_ctx, target.n_ctx_seq, target.n_seq_max, target.n_batch, target.n_ubatch, target.n_rs_seq)
    assert (*numbers, target.n_outputs_max, target.flash, target.kv_unified, target.copies) == facts
    assert (found.slots, found.slot_ctx) == (target.n_seq_max, target.n_ctx_seq)
    assert (found.build, found.commit, found.verbosity) == (0, "unknown", 4)  # built from a tree without git
    assert found.address == "http://127.0.0.1:18090"


def test_keys_and_values_and_states() -> None:
    target, draft = boot(ZEALOT).target, boot(ZEALOT).draft
    assert target is not None and draft is not None
    (cache,) = target.caches
    assert (cache.mib, cache.k_mib, cache.v_mib) == (14406.00, 9408.00, 4998.00)
    assert (cache.kind, cache.k_type, cache.v_type) == ("full", "f16", "q8_0")
    assert (cache.cells, cache.layers, cache.sequences, cache.streams) == (200704, 8, 3, 3)
    states = target.states
    assert states is not None
    assert (states.mib, states.r_mib, states.s_mib) == (452.25, 20.25, 432.00)
    assert (states.cells, states.layers, states.sequences, states.rollback) == (3, 32, 3, 2)
    assert (draft.n_ctx, draft.n_rs_seq, draft.states, draft.reserves) == (602112, 0, None, 2)
    assert [(cache.k_mib, cache.v_mib, cache.layers) for cache in draft.caches] == [(1176.00, 1176.00, 1)]
    off = boot(NO_DRAFTER).target
    assert off is not None and off.states is not None
    assert (off.states.mib, off.states.r_mib, off.states.s_mib, off.states.rollback) == (150.75, 6.75, 144.00, 0)


def test_a_window_beside_the_whole_cache() -> None:
    target = boot(WINDOW).target
    assert target is not None
    assert [(cache.kind, cache.cells, cache.layers, cache.k_mib, cache.v_mib) for cache in target.caches] == [
        ("full", 4096, 3, 12.00, 12.00),
        ("window", 1024, 15, 15.00, 15.00),
    ]


def test_a_drafter_that_nobody_names_is_let_go() -> None:
    found = boot(TWO_CARDS)
    assert (found.drafter, found.speculation) == ("m/draft5-sparse.gguf", ())
    assert any("let go" in note for note in found.notes)
    assert (boot(ZEALOT).drafter, boot(ZEALOT).speculation, boot(ZEALOT).notes) == ("mtp", ("draft-mtp",), ())
    assert (boot(NO_DRAFTER).drafter, boot(NO_DRAFTER).notes) == (None, ())


def test_projector_and_adapter() -> None:
    found = boot(TINY)
    assert found.projector is not None
    assert (found.projector.kind, found.projector.device) == ("gemma3", "CPU")
    assert (found.projector.mib, found.projector.worst_mib) == (0.23, 0.23)
    assert found.adapters == ("m/lora-tiny.gguf",)
    assert found.target is not None and found.target.reserves == 2


def test_devices_and_layers() -> None:
    found = boot(REFUSED)
    assert [(device.name, device.description, device.free_mib) for device in found.devices] == [
        ("CPU", "AMD EPYC", 24105),
        ("PHANTOM0", "phantom GPU", 24125),
    ]
    assert found.offloaded == (34, 34)
    assert boot(WINDOW).offloaded is None
    assert boot(TWO_CARDS).offloaded == (66, 66)  # the drafter's 6 of 6 come after


# The engine's own fit.
def test_what_the_engine_says_of_the_fit() -> None:
    fits, refused, none, host = boot(FITS).fit, boot(REFUSED).fit, boot(ZEALOT).fit, boot(TINY).fit
    assert fits is not None and refused is not None and host is not None
    assert none is None
    assert (fits.verdict, fits.memory, fits.projected_mib, fits.free_mib) == ("fits", "device", 20393, 24576)
    assert (fits.left_mib, fits.margin_mib, fits.short_mib) == (4182, 1024, None)
    assert (refused.verdict, refused.projected_mib, refused.free_mib) == ("refused", 27663, 24125)
    assert (refused.margin_mib, refused.short_mib) == (1024, 4562)
    assert refused.words == "n_gpu_layers already set by user to 99, abort"
    assert (host.verdict, host.memory, host.projected_mib) == ("fits", "host", 10)


FIT = ("cmn  common_init_: fitting params to device memory ...",)
FIT_END = ("common_fit_params: fitting params to free memory took 0.01 seconds",)
IMPL, DONE = "common_params_fit_impl: ", "common_fit_params: successfully fit params to free device memory"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            (
                IMPL + "projected memory use with initial parameters [MiB]:",
                IMPL + "  - CUDA0 (NVIDIA X (TM)):  32624 total,  26859 used,   5764 free vs. target of   1024",
                IMPL + "  - CUDA1 (NVIDIA X (TM)):  32624 total,  33585 used,   -961 free vs. target of   1024",
                IMPL + "projected to use 60444 MiB of device memory vs. 65248 MiB of free device memory",
                IMPL + "targets for free memory can be met on all devices, no changes needed",
                DONE,
            ),
            {"verdict": "fits", "devices": (("CUDA0", 26859, 5764), ("CUDA1", 33585, -961)), "projected_mib": 60444},
        ),
        (
            (
                IMPL + "cannot meet free memory target of 1024 MiB, need to reduce device memory by 9 MiB",
                IMPL + "context size reduced from 262144 to 4096 -> need 4000 MiB less memory in total",
                DONE,
            ),
            {"verdict": "changed", "n_ctx": 4096, "short_mib": 9},
        ),
        (
            (
                IMPL + "cannot meet free memory targets on all devices, need to use 700 MiB less in total",
                "common_fit_params: encountered an error while trying to fit params to free device memory: no device",
            ),
            {"verdict": "error", "words": "no device", "short_mib": 700},
        ),
        ((), {"verdict": "unfinished"}),
    ],
)
def test_other_outcomes_of_a_fit(lines: tuple[str, ...], expected: dict[str, Any]) -> None:
    found = parse_boot_log(after(ZEALOT, "local path", *FIT, *lines, *FIT_END))
    assert found.fit is not None
    assert {key: getattr(found.fit, key) for key in expected} == expected
    assert found.lines == boot(ZEALOT).lines
    assert any("other settings" in note for note in found.notes) == (expected["verdict"] == "changed")


def test_what_a_fit_measures_is_no_buffer() -> None:
    # At a verbosity of 5 its dry runs print the lines of a load.
    rows = text(ZEALOT).split("\n")
    dry = [row.removeprefix(row[:15]) for row in rows if "llama_context" in row or "buffer size" in row]
    found = parse_boot_log(after(ZEALOT, "local path", *FIT, *dry, *FIT_END))
    assert found.lines == boot(ZEALOT).lines
    # Had the fit not been left out, each would count twice.
    assert parse_boot_log(after(ZEALOT, "local path", *dry)).mib("weights") == 2 * (1030.62 + 8291.63)


# Contexts that change, and whose they are.
@pytest.mark.parametrize(
    ("mark", "mib", "compute", "draft"),
    [
        # An adapter's or a sampler's change of the target, before the slots and after the model is loaded.
        ("supports bounded", "1700.00", 1700.00, 480.97),
        ("all slots are idle", "1700.00", 1700.00, 480.97),
        # Between them the drafter is tried.
        ("speculative implementation", "500.00", 1681.04, 500.00),
        # A smaller layout after a larger one: both had to find room.
        ("supports bounded", "1600.00", 1681.04, 480.97),
    ],
)
def test_a_graph_that_is_laid_out_again(mark: str, mib: str, compute: float, draft: float) -> None:
    found = parse_boot_log(after(ZEALOT, mark, *reserve(mib)))
    assert (found.mib("compute", "PHANTOM0"), found.mib("draft_compute", "PHANTOM0")) == (compute, draft)
    assert found.mib("compute", "PHANTOM_Host") == 456.95


def test_a_graph_that_an_adapter_changes() -> None:
    # Without a warmup the target is laid out with its adapter after the drafter's context is there, and once more when
    # a request scales the adapter: a wider graph than the drafter's, whose one layout it must not be taken for.
    warm, cold = boot(TOY), boot(TOY_COLD)
    for found, layouts in ((warm, 2), (cold, 3)):
        assert found.target is not None and found.draft is not None
        assert (found.target.reserves, found.draft.reserves) == (layouts, 1)
    assert cold.lines == tuple(line for line in warm.lines if line.term != "projector_compute")
    # The same log with figures that tell them apart.
    rows = text(TOY_COLD).split("\n")
    at = [index for index, row in enumerate(rows) if "compute buffer size =     5.52" in row]
    for index, size in zip(at, ("1.00", "2.00", "3.00", "4.00"), strict=True):
        rows[index] = rows[index].replace("5.52", size)
    found = parse_boot_log("\n".join(rows))
    assert (found.mib("compute"), found.mib("draft_compute")) == (4.00, 2.00)


def test_two_buffers_in_one_layout_are_summed() -> None:
    line = "sched_reserve:   PHANTOM0 compute buffer size =   100.00 MiB"
    found = parse_boot_log(after(NO_DRAFTER, "PHANTOM0 compute buffer", line))
    assert found.mib("compute", "PHANTOM0") == 1781.04


def test_a_context_that_is_constructed_again_takes_the_place_of_the_first() -> None:
    rows = text(NO_DRAFTER).split("\n")
    begin = next(index for index, row in enumerate(rows) if "constructing llama_context" in row)
    end = next(index for index, row in enumerate(rows) if "reserve took" in row) + 1
    found = parse_boot_log("\n".join([*rows[:end], *rows[begin:end], *rows[end:]]))
    assert found.lines == boot(NO_DRAFTER).lines
    assert found.target is not None and len(found.target.caches) == 1


def test_shards_of_a_file_are_summed() -> None:
    line = "load_tensors:   CPU_Mapped model buffer size =   100.25 MiB"
    found = parse_boot_log(after(NO_DRAFTER, "CPU_Mapped model buffer", line))
    assert found.mib("weights", "CPU_Mapped") == 1130.87


def test_pipelining_that_found_no_room() -> None:
    line = "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism"
    found = parse_boot_log(after(TWO_CARDS, "pipeline parallelism enabled", line))
    assert any("pipelining found no room" in note for note in found.notes)


def test_a_projectors_buffers() -> None:
    found = boot(TOY)
    assert (found.mib("projector"), found.mib("projector_compute")) == (0.17, 0.22)
    assert found.projector is not None and found.projector.worst_mib == 0.38  # both, not rounded before they are summed
    # It lays out its buffers when it is warmed up, else for the first image.
    assert boot(TOY_COLD).mib("projector_compute") is None
    assert (found.build, found.commit, found.speculation) == (11434, "sdist", ("draft-simple",))


def encoder(device: str, *sizes: str, kind: str = "gemma3") -> list[str]:
    """What a projector's encoder prints, its buffers laid out once for each size."""
    lines = [f"clip_ctx: CLIP using {device} backend", f"load_hparams: projector:          {kind}"]
    lines.append("load_hparams: model size:         812.50 MiB")
    for size in sizes:
        lines.append(f"reserve_compute_meta: {device:>10} compute buffer size = {size:>8} MiB")
        lines.append("reserve_compute_meta: graph splits = 1, nodes = 100")
    return lines


def test_a_projector_on_a_card() -> None:
    # Laid out with flash attention and again without; a second encoder of the same file has buffers of its own.
    lines = [*encoder("PHANTOM0", "200.00", "248.10"), *encoder("PHANTOM0", "31.50", kind="whisper")]
    found = parse_boot_log(after(ZEALOT, "creating MTP draft context", *lines))
    assert (found.mib("projector", "PHANTOM0"), found.mib("projector_compute", "PHANTOM0")) == (812.50, 279.60)
    assert found.projector is not None and found.projector.kind == "gemma3"
    # Before the target is loaded it is an estimate's, and no buffer.
    assert parse_boot_log(after(ZEALOT, "local path", *lines)).projector is None


def test_a_server_that_slept_loads_anew() -> None:
    rows = text(FITS).split("\n")
    load = rows[next(index for index, row in enumerate(rows) if "load_model: loading model" in row) :]
    found = parse_boot_log(text(ZEALOT) + "\n" + "\n".join(load))
    assert found.lines == boot(FITS).lines
    assert (found.verbosity, found.boots) == (4, 1)


# Boots that fail.
def test_a_head_that_is_not_there() -> None:
    found = boot("fail-mtp-without-layers.log")
    assert (found.state, found.address, found.draft) == ("failed", None, None)
    assert found.failure is not None
    assert "no MTP head" in found.failure.what
    assert found.failure.remedy is not None and "SPEC_TYPE=none" in found.failure.remedy
    assert found.failure.words == (
        "llama_init_from_model: context type MTP requested but model doesn't contain MTP layers",
        "common_speculative_init_result: failed to create MTP context",
        "srv load_model: failed to create MTP context",
        "srv llama_server: exiting due to model loading error",
    )
    assert "the drafter's context" in found.missing
    assert found.fit is not None and not found.fit.with_drafter


def test_two_drafters_with_contexts() -> None:
    found = boot("fail-two-context-backed-drafters.log")
    assert (found.state, found.speculation) == ("failed", ("draft-mtp",))
    assert found.failure is not None
    assert found.failure.what == "a second drafter with a context of its own beside draft-mtp"
    assert found.failure.words == (
        'common/speculative.cpp:1033: GGML_ASSERT(target_layer_ids_n > 0 && "DFlash model has no target_layer_ids") '
        "failed",
    )


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (
            [
                "0.31.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14406.00 MiB on device 0: "
                "cudaMalloc failed: out of memory",
                "0.31.000.100 E srv  llama_server: exiting due to model loading error",
            ],
            "a buffer found no memory",
        ),
        (
            [
                "0.31.000.000 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1762705408",
                "0.31.000.100 E srv  llama_server: exiting due to model loading error",
            ],
            "a buffer found no memory",
        ),
        (
            [
                "0.31.000.000 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
                "0.31.000.100 E srv  llama_server: exiting due to HTTP server error",
            ],
            "the address is taken",
        ),
        (
            ['common/speculative.cpp:1: GGML_ASSERT(n > 0 && "DFlash model has no target_layer_ids") failed'],
            "the drafter's file is no DFlash drafter",
        ),
        (
            [
                "terminate called after throwing an instance of 'std::runtime_error'",
                "  what():  it is broken",
            ],
            "what(): it is broken",
        ),
        (["Nov 30 09:00:00 host llama-server[7]: ggml/src/ggml.c:12: GGML_ABORT fatal"], "ggml/src/ggml.c:12: GGML"),
        (["llama_server: exiting due to model loading error"], "llama_server: exiting due to model"),
        (["0.31.000.100 I srv  llama_server: exiting due to"], "srv llama_server: exiting due to"),
        (["error: invalid argument: --nonsense"], "error: invalid argument: --nonsense"),
        (
            [
                "0.00.366.700 E llama_init_from_model: quantized V cache requires flash_attn to be enabled",
                "0.00.366.800 E srv    load_model: failed to create_context with model 'm/toy.gguf'",
                "0.00.366.900 E srv  llama_server: exiting due to model loading error",
            ],
            "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
        ),
    ],
)
def test_other_ends(lines: list[str], what: str) -> None:
    found = parse_boot_log(before(NO_DRAFTER, "llama_kv_cache:") + "\n" + "\n".join(lines))
    assert found.state == "failed"
    assert found.failure is not None and found.failure.what.startswith(what)


def test_an_end_after_it_listened() -> None:
    line = "ggml/src/ggml-cuda/ggml-cuda.cu:109: CUDA error"
    found = parse_boot_log(after(ZEALOT, "all slots are idle", line, stamp=""))
    assert (found.state, found.address) == ("failed", "http://127.0.0.1:18090")
    # An error of a request, or a place in a source that a message happens to name, ends nothing.
    line = "srv    send_error: task id = 3, error: see server.cpp:12: no"
    calm = parse_boot_log(after(ZEALOT, "all slots are idle", line, stamp="0.31.000.000 E "))
    assert calm.state == "listening"


# What a journal, a container or a terminal makes of it.
PREFIXES = {
    "short": "Nov 30 08:57:01 host llama-server[4711]: ",
    "iso": "2026-11-30T08:57:01.123456+00:00 host llm-chat[4711]: ",
    "monotonic": "[  123.456789] host llama-server[4711]: ",
    "container": "2026-11-30T08:57:01.123456789+00:00 stderr F ",
}


@pytest.mark.parametrize("name", sorted(ARGV))
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_lines_of_a_journal(name: str, prefix: str) -> None:
    assert parse_boot_log("\n".join(prefix + row for row in text(name).split("\n"))) == boot(name)


@pytest.mark.parametrize("name", sorted(ARGV))
def test_colours_and_line_ends(name: str) -> None:
    rows = []
    for row in text(name).split("\n"):
        stamp, level, rest = row[:12], row[13:14], row[15:]
        coloured = f"\x1b[34m{stamp}\x1b[0m \x1b[32m{level} \x1b[0m{rest}\x1b[0m"
        rows.append(coloured if row[1:2] == "." and row[4:5] == "." else row)
    assert any("\x1b" in row for row in rows)
    assert parse_boot_log("\r\n".join(rows)) == boot(name)


@pytest.mark.parametrize("name", SERVING)
def test_without_the_engines_stamps(name: str) -> None:
    bare = "\n".join(row[15:] if row[1:2] == "." and row[4:5] == "." else row for row in text(name).split("\n"))
    assert parse_boot_log(bare) == boot(name)


def test_lines_that_a_journal_hides() -> None:
    rows = [
        "host llama-server[1]: [84B blob data]" if "KV buffer size" in row else row for row in text(ZEALOT).split("\n")
    ]
    found = parse_boot_log("\n".join(rows))
    assert any("2 lines are hidden" in note and "--all" in note for note in found.notes)
    assert found.mib("kv") is None


@pytest.mark.parametrize("first", sorted(ARGV))
@pytest.mark.parametrize("last", [ZEALOT, WINDOW, FAILING[0]])
def test_the_last_of_several_boots(first: str, last: str) -> None:
    found = parse_boot_log(text(first) + "\n" + text(last))
    assert found.boots == 2
    assert replace(found, boots=1, notes=boot(last).notes) == boot(last)
    assert "the log holds 2 boots: the last one is read" in found.notes


# Too little, too much, wrong.
def test_a_verbosity_that_tells_no_sizes() -> None:
    found = boot(TOY_QUIET)
    assert (found.quiet, found.verbosity, found.lines, found.missing) == (True, 3, (), ())
    assert (found.state, found.slots, found.slot_ctx, found.drafter) == ("listening", 2, 2048, "m/toy.gguf")
    # Without its first lines it is known by what it lacks.
    assert parse_boot_log("\n".join(text(TOY_QUIET).split("\n")[3:])).quiet
    assert not boot(TOY).quiet
    # At 4 it is the lines that are missing.
    damaged = parse_boot_log(text(TOY_QUIET).replace("verbosity = 3", "verbosity = 4"))
    assert not damaged.quiet
    assert damaged.missing[:2] == ("the target's weights", "the target's context")


@pytest.mark.parametrize(
    ("mark", "missing"),
    [
        ("load_tensors:   CPU_Mapped", ["the target's weights", "the target's context"]),
        ("constructing llama_context", ["the target's context"]),
        (
            "n_batch               =",
            ["the target's n_batch", "the target's n_ubatch", "the target's compute buffers", "the target's caches"],
        ),
        ("llama_kv_cache:   PHANTOM0", ["the target's compute buffers", "the target's caches"]),
        ("PHANTOM0 compute", ["the target's compute buffers"]),
        ("PHANTOM0 KV buffer size =  2352", ["the drafter's compute buffers", "the drafter's caches"]),
        ("PHANTOM0 compute buffer size =   480", ["the drafter's compute buffers"]),
        ("initializing, n_slots", []),
        ("listening on", None),
    ],
)
def test_a_log_that_ends_early(mark: str, missing: list[str] | None) -> None:
    found = parse_boot_log(before(ZEALOT, mark))
    assert (found.state, found.quiet) == ("unfinished", False)
    slots = [] if missing is None else [*missing, "the slots"]
    assert list(found.missing) == [*slots, "the line that tells where it listens"]


def test_a_drafter_file_without_its_weights() -> None:
    assert parse_boot_log(before(TWO_CARDS, "CPU_Mapped model buffer size =   515.31")).missing[:2] == (
        "the drafter's weights",
        "the drafter's context",
    )


@pytest.mark.parametrize("name", [ZEALOT, TINY, *FAILING])
def test_a_log_cut_anywhere(name: str) -> None:
    whole = text(name)
    last: BootLog | None = None
    for end in range(0, len(whole), 211):
        found = parse_boot_log(whole[:end])
        assert found.state in ("unfinished", "listening", "failed")
        assert found.missing or found.address is not None
        last = found
    assert last is not None and last.model == boot(name).model


@pytest.mark.parametrize("name", SERVING)
def test_a_log_that_begins_late(name: str) -> None:
    whole = text(name)
    found = parse_boot_log(whole[whole.index("load_tensors:   CPU_Mapped") :])
    assert found.lines == boot(name).lines
    assert "the log begins after the boot's first line" in found.notes
    for mark in ("sched_reserve: reserving", "load_model: initializing, n_slots", "load_model: id  0"):
        late = parse_boot_log(whole[whole.index(mark) :])
        assert "the target's weights" in late.missing and not late.quiet


def test_a_model_without_a_memory_misses_none() -> None:
    found = parse_boot_log(without(NO_DRAFTER, "llama_kv_cache", "llama_memory_recurrent"))
    assert (found.missing, found.mib("kv")) == ((), None)


@pytest.mark.parametrize(
    "size", ["99999999999999999999999999.99", "-14406.00", "nan", "inf", "14406", "14406.0", "1e9", ""]
)
def test_a_size_that_is_none_is_kept_as_unread(size: str) -> None:
    found = parse_boot_log(text(NO_DRAFTER).replace("KV buffer size = 14406.00 MiB", f"KV buffer size = {size} MiB"))
    assert found.mib("kv") is None
    assert len(found.unread) == 1 and "KV buffer size" in found.unread[0]


@pytest.mark.parametrize("number", ["99999999999999999999", "-1", "nan", "0x10", ""])
def test_a_number_that_is_none_is_missing(number: str) -> None:
    found = parse_boot_log(text(NO_DRAFTER).replace("n_ctx                 = 602112", f"n_ctx      = {number}"))
    assert found.missing == ("the target's n_ctx",)


def test_a_buffer_of_an_engine_to_come() -> None:
    line = "llama_kv_cache_next: PHANTOM0 Q buffer size = 100.00 MiB"
    found = parse_boot_log(after(ZEALOT, "PHANTOM0 RS buffer", line))
    assert found.unread == (STAMP + line,)
    assert found.lines == boot(ZEALOT).lines
    many = parse_boot_log(after(ZEALOT, "PHANTOM0 RS buffer", *[line] * 1000))
    assert len(many.unread) == 20


@pytest.mark.parametrize("garbage", ["", "\n", "\0", "\ud800", "{}", "no log at all", "llama_server: initializing ..."])
def test_no_log_at_all(garbage: str) -> None:
    found = parse_boot_log(garbage)
    assert (found.lines, found.state, found.quiet) == ((), "unfinished", False)
    assert found.missing == (
        "the target's weights",
        "the target's context",
        "the slots",
        "the line that tells where it listens",
    )


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["drop", "repeat", "swap", "replace"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 400),
        st.text(max_size=40),
    ),
    max_size=12,
)


def edited(whole: str, edits: list[tuple[str, float, int, str]]) -> str:
    for kind, where, length, new in edits:
        at = int(where * len(whole))
        piece = whole[at : at + length]
        middle = {"drop": "", "repeat": piece * 2, "swap": piece[::-1], "replace": new}[kind]
        whole = whole[:at] + middle + whole[at + length :]
    return whole


# The clock of a busy machine is no measure: test_time_is_bounded counts the processor's time.
@settings(deadline=None)
@given(name=st.sampled_from(sorted(ARGV)), edits=EDITS)
def test_a_damaged_log_is_read_as_far_as_it_goes(name: str, edits: list[tuple[str, float, int, str]]) -> None:
    found = parse_boot_log(edited(text(name), edits))
    for line in found.lines:
        assert line.term in BOOT_TERMS
        assert line.context in ("target", "draft")
        assert 0 <= line.mib < 1e12 and line.resolution > 0
    # Whatever is left of it, what a whole boot would have is either there or named.
    terms = {line.term for line in found.lines}
    if found.state == "listening" and not found.missing and not found.quiet:
        assert {"weights", "compute"} <= terms
        assert found.slots is not None and found.target is not None and found.target.n_ctx is not None
    assert len(found.unread) <= 20


@pytest.mark.parametrize(
    ("pattern", "act"),
    [(pattern, act) for table in (_bootlog._BOOT, _bootlog._FIT, _bootlog._LOAD) for _, pattern, act in table],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_rule_gives_what_its_method_takes(pattern: str, act: Callable[..., None]) -> None:
    assert re.compile(pattern).groups == len(inspect.signature(act).parameters) - 1


@settings(deadline=None)
@given(garbage=st.text(max_size=2000))
def test_any_text_is_read(garbage: str) -> None:
    assert parse_boot_log(garbage).boots >= 1


HOSTILE = [" ", "1", "a", "\n", "a\n", ".c:1: ", "\x1b[", "0.00.000.000 E ", "llama_kv_cache: ", "sched_reserve:  1"]
HOSTILE += ["llama_kv_cache: size = 1.00 MiB ( ", "common_param: - a : (", "clip_ctx: CLIP using "]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
@pytest.mark.parametrize("row", [900, 1_000_000])
def test_time_is_bounded(piece: str, row: int) -> None:
    line = (piece * (row // len(piece))) + "\n"
    whole = line * (1_000_000 // len(line) or 1)
    begin = time.process_time()
    parse_boot_log(whole)
    # A megabyte; measured 0.15 s at most.
    assert time.process_time() - begin < 3
