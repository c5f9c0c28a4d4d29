# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtime's own llama-fit-params against the ledger, for models of every size, and what asking it costs.

It runs on the test host, started from here by ssh. The large models are the golden headers at the head of empty
files of the true length: it reads no weights.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Shape
from ansible_collections.dank.llm_fleet.plugins.module_utils._second_opinion import (
    PROGRAM,
    Opinion,
    ask_engine,
    comparable,
    compare_opinions,
    require_second_opinion,
)
from boots import FOLDER, RUNTIME, flags, header, on_host, put, sources
from cases import SHAPES, WINDOWS
from fleet import Fleet
from goldens import GOLDEN, TABLE
from goldens import header as golden

LARGE = [name for name in TABLE["models"] if golden(name).architecture != "dflash"]
LARGE_SHAPES = {
    "long": Shape(262144, parallel=2, cache_type_v="q8_0", backend="cpu"),
    "slots": Shape(98304, parallel=3, cache_type_k="q8_0", cache_type_v="q4_0", ubatch_size=1024, backend="cpu"),
    "plain": Shape(32768, parallel=1, backend="cpu"),
    "no-flash": Shape(8192, parallel=4, ubatch_size=2048, flash_attn="off", backend="cpu"),
}
# It cannot be asked for one cache for all slots, nor without --parallel. So long that even a tiny model's cache is
# hundreds of MiB to compare.
SMALL_SHAPES = {
    name: replace(shape, ctx_size=100 * shape.ctx_size)
    for name, shape in {**SHAPES, **WINDOWS}.items()
    if shape.parallel and not shape.kv_unified
}
SMALL = ["smollm2", "toy", "qwen3", "gemma3", "qwen35-mtp"]


@pytest.fixture(scope="session")
def binary(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host's llama-fit-params, as a program here; the large models are on the host."""
    put(fleet, {f"{name}.gguf": (GOLDEN / TABLE["models"][name]["file"]).read_bytes() for name in LARGE})
    for name in LARGE:
        fleet.run(f"truncate -s {TABLE['models'][name]['file_bytes']} {FOLDER}/{name}.gguf")
    script = tmp_path_factory.mktemp("host") / PROGRAM
    config = sources().parent / "testhosts" / "ssh_config"
    script.write_text(f'#!/bin/sh\nexec ssh -F {config} {fleet.host} {RUNTIME}/{PROGRAM} "$@"\n')
    script.chmod(0o755)
    return str(script)


def ask(binary: str, model: str, shape: Shape, *more: str) -> Opinion:
    """Ask with all that a launcher gives a server."""
    server = ["--host", "127.0.0.1", "--port", "8080", "--alias", "x", "--jinja", "--metrics", "--threads", "2"]
    argv = [f"{RUNTIME}/llama-server", "--model", on_host(model), *server, *flags(shape), "--fit", "off", *more]
    opinion = ask_engine(binary, argv, env={"HOME": os.environ["HOME"]})
    assert opinion is not None
    return opinion


@pytest.mark.parametrize("name", LARGE_SHAPES)
@pytest.mark.parametrize("model", LARGE)
def test_a_large_model(binary: str, model: str, name: str) -> None:
    shape = LARGE_SHAPES[name]
    opinion = ask(binary, model, shape)
    require_second_opinion(predict(golden(model), comparable(shape), cards=[]), opinion, {})
    assert opinion.devices[-1].model_mib > 1000 and opinion.devices[-1].context_mib > 0


@pytest.mark.parametrize("name", SMALL_SHAPES)
@pytest.mark.parametrize("model", SMALL)
def test_a_small_model(binary: str, model: str, name: str) -> None:
    shape = SMALL_SHAPES[name]
    require_second_opinion(predict(header(model), comparable(shape), cards=[]), ask(binary, model, shape), {})


def test_what_it_does_not_count(binary: str) -> None:
    shape = Shape(65536, parallel=2, spec_type="draft-mtp", spec_draft_n_max=2, backend="cpu")
    opinion = ask(binary, "qwen35-9b-mtp-q8_0", shape, "--mmproj", "/x", "--lora", "/y")
    assert opinion.left_out == ("drafter", "projector", "adapter")
    assert compare_opinions(predict(golden("qwen35-9b-mtp-q8_0"), comparable(shape), cards=[]), opinion, {}) == []


def test_another_shape_than_ours(binary: str) -> None:
    shape = Shape(65536, parallel=2, cache_type_k="q8_0", backend="cpu")
    opinion = ask(binary, "qwen3-4b-q8_0", shape)
    ours = predict(golden("qwen3-4b-q8_0"), comparable(replace(shape, cache_type_k="f16")), cards=[])
    with pytest.raises(
        FleetError, match=r"context of Host 9,216\.00 against 7,056 .*by the engine: Host 4,076 \+ 7,056"
    ):
        require_second_opinion(ours, opinion, {})


def test_a_model_that_it_cannot_load(binary: str) -> None:
    with pytest.raises(FleetError, match=r"failed to load model from .*/gone\.gguf"):
        ask(binary, "gone", Shape(4096, parallel=1, backend="cpu"))


def test_what_it_costs(fleet: Fleet) -> None:
    # On the host itself, without the way there: it is to run inside a deploy.
    model = f"{FOLDER}/qwen35-27b-mtp-q8_0.gguf"
    command = f"{RUNTIME}/{PROGRAM} --model {model} --ctx-size 262144 --parallel 2 --fit-print on"
    told = fleet.run(f"bash -c 'TIMEFORMAT=%R; time {command} 2>/dev/null' 2>&1").splitlines()
    assert told[0].startswith("Host 27260 ")
    assert float(told[-1]) < 10
