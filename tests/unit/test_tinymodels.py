# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiny models that the scenario ``fit`` boots: sound files, the same each time, and different from each other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import KNOWN
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Shape
from tinymodels import MODELS, VOCABULARY, build


def header(name: str, folder: Path) -> Gguf:
    path = folder / f"{name}.gguf"
    path.write_bytes(build(name))
    return read_gguf(str(path))


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str, tmp_path: Path) -> None:
    tiny, read = MODELS[name], header(name, tmp_path)
    assert len(build(name)) < 512 * 1024
    assert read.architecture == tiny.architecture
    assert read.metadata[f"{tiny.architecture}.block_count"] == tiny.layers + tiny.nextn
    names = {tensor.name for tensor in read.tensors}
    assert ("output.weight" in names) != (tiny.tied or bool(tiny.targets))
    assert all(f"blk.{layer}.ffn_down.weight" in names for layer in range(tiny.layers + tiny.nextn))
    assert sum(f"blk.{layer}.ssm_out.weight" in names for layer in range(tiny.layers)) == sum(
        map(tiny.recurs, range(tiny.layers))
    )


def test_every_known_architecture_is_there() -> None:
    assert {tiny.architecture for tiny in MODELS.values()} == set(KNOWN)


def test_no_two_have_the_same_caches(tmp_path: Path) -> None:
    # Else a prediction for one would do for another.
    seen: dict[tuple[tuple[str, int], ...], str] = {}
    for name, tiny in MODELS.items():
        if tiny.targets:
            continue
        ledger = predict(header(name, tmp_path), Shape(8192, parallel=2, backend="cpu"), cards=[])
        caches = tuple((line.name, line.bytes) for line in ledger.lines if line.term in ("kv", "recurrent"))
        assert caches not in seen, (name, seen[caches])
        seen[caches] = name


def test_the_weights_are_random_and_the_same_each_time() -> None:
    first = {name: hashlib.sha256(build(name)).hexdigest() for name in MODELS}
    build.cache_clear()
    assert {name: hashlib.sha256(build(name)).hexdigest() for name in MODELS} == first
    assert len(set(first.values())) == len(MODELS)
    assert b"\0" * 1024 not in build("llama")


def test_the_vocabulary_is_whole(tmp_path: Path) -> None:
    read = header("llama", tmp_path)
    assert read.metadata["tokenizer.ggml.model"] == "gpt2"
    embedding = next(tensor for tensor in read.tensors if tensor.name == "token_embd.weight")
    assert embedding.dims[1] == VOCABULARY
