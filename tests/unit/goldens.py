# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The golden ledgers of tests/fixtures/golden, and headers made up on the spot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
TABLE: dict[str, Any] = json.loads((GOLDEN / "ledgers.json").read_text())
SHAPES: list[dict[str, Any]] = TABLE["shapes"]
DRY_RUNS: list[dict[str, Any]] = json.loads((GOLDEN / "dryruns.json").read_text())

NINE, TWENTY_SEVEN, SWA = "qwen35-9b-mtp-q8_0", "qwen35-27b-mtp-q8_0", "swa-drafter-5l"
LLAMA, QWEN3 = "llama-8b-q4_k", "qwen3-4b-q8_0"


@cache
def header(name: str) -> Gguf:
    """One of the five golden headers."""
    entry = TABLE["models"][name]
    return read_gguf(str(GOLDEN / entry["file"]), declared_bytes=entry["file_bytes"])


def shape_of(row: Mapping[str, Any]) -> Shape:
    """The shape of a row of ``ledgers.json``."""
    return Shape(
        ctx_size=row["ctx_size"],
        parallel=row["parallel"],
        cache_type_k=row["cache_type_k"],
        cache_type_v=row["cache_type_v"],
        ubatch_size=row["ubatch_size"],
        tensor_split=tuple(row["tensor_split"]),
        kv_unified=False,
    )


def cards(count: int, free_mib: float = 81920.0, floor_mib: float = 0.0) -> list[Card]:
    """So many like cards."""
    return [Card(f"card{index}", free_mib, floor_mib) for index in range(count)]


BLOCKS = {"f16": (1, 2), "f32": (1, 4), "q8_0": (32, 34), "q4_K": (256, 144)}


@dataclass(frozen=True)
class MadeTensor:
    """A tensor that no file holds; of a type unknown to the engine where ``type_name`` is None."""

    name: str
    dims: tuple[int, ...]
    type_name: str | None = "f32"
    exact: bool = True

    @property
    def nbytes(self) -> int:
        """Its length."""
        elements = 1
        for dim in self.dims:
            elements *= dim
        block, size = BLOCKS[self.type_name or "f32"]
        return elements // block * size


@dataclass(frozen=True)
class Made:
    """A header that no file holds."""

    architecture: str
    metadata: Mapping[str, Any]
    tensors: Sequence[MadeTensor]


def made(architecture: str = "llama", tensors: Sequence[MadeTensor] = (), layers: int = 4, **keys: Any) -> Made:
    """A small header; ``keys`` are those after "<architecture>." with ``__`` for a dot, None takes one away."""
    values: dict[str, Any] = {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": 256,
        "feed_forward_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    own = [MadeTensor("token_embd.weight", (256, 1000)), MadeTensor("output_norm.weight", (256,))]
    for layer in range(layers):
        own.append(MadeTensor(f"blk.{layer}.attn_q.weight", (256, 256), "q8_0"))
        own.append(MadeTensor(f"blk.{layer}.ffn_up.weight", (256, 512), "q8_0"))
    return Made(
        architecture,
        {f"{architecture}.{key}": value for key, value in values.items() if value is not None},
        (*own, *tensors),
    )


def model(
    architecture: str,
    layers: int,
    embd: int,
    ff: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    kind: str,
    tied: bool = False,
    window: int = 0,
    nextn: int = 0,
) -> Made:
    """A whole model of one of the known architectures, tensor by tensor; ``kind`` is the type of its matrices."""
    keys: dict[str, Any] = {
        "block_count": layers + nextn,
        "context_length": 131072,
        "embedding_length": embd,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.sliding_window": window,
    }
    q, kv, state, groups = heads * head_dim, kv_heads * head_dim, 128, 16
    wide, hybrid = embd + 2 * groups * state, architecture == "qwen35"
    if hybrid:
        keys |= {"ssm.conv_kernel": 4, "ssm.inner_size": embd, "ssm.state_size": state, "ssm.group_count": groups}
        keys |= {"full_attention_interval": 4, "nextn_predict_layers": nextn}
    if architecture == "dflash":
        keys |= {"target_layers": [1, 2, 3, 4, 5], "attention.sliding_window_pattern": [True] * layers}
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (embd, vocab), "output_norm.weight": (embd,)}
    if not tied:
        sizes["output.weight"] = (embd, vocab)
    if architecture == "dflash":
        sizes |= {"fc.weight": (5 * embd, embd), "enc.output_norm.weight": (embd,)}
    for layer in range(layers + nextn):
        own: dict[str, tuple[int, ...]] = {"attn_norm.weight": (embd,)}
        if architecture in ("qwen35", "gemma2", "gemma3"):
            own["post_attention_norm.weight"] = (embd,)
        if hybrid and layer < layers and (layer + 1) % 4:
            own |= {"attn_qkv.weight": (embd, wide), "attn_gate.weight": (embd, embd), "ssm_conv1d.weight": (4, wide)}
            own |= {"ssm_dt.bias": (embd // state,), "ssm_a": (embd // state,), "ssm_norm.weight": (state,)}
            own |= {"ssm_beta.weight": (embd, embd // state), "ssm_alpha.weight": (embd, embd // state)}
            own |= {"ssm_out.weight": (embd, embd)}
        else:
            own |= {"attn_q.weight": (embd, 2 * q if hybrid else q), "attn_k.weight": (embd, kv)}
            own |= {"attn_v.weight": (embd, kv), "attn_output.weight": (q, embd)}
            if architecture in ("qwen3", "gemma3", "qwen35", "dflash"):
                own |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
            if architecture == "qwen2":
                own |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if architecture in ("gemma2", "gemma3"):
            own["post_ffw_norm.weight"] = (embd,)
        if not hybrid:
            own["ffn_norm.weight"] = (embd,)
        own |= {"ffn_gate.weight": (embd, ff), "ffn_up.weight": (embd, ff), "ffn_down.weight": (ff, embd)}
        if layer >= layers:
            own |= {"nextn.eh_proj.weight": (2 * embd, embd), "nextn.enorm.weight": (embd,)}
            own |= {"nextn.hnorm.weight": (embd,), "nextn.shared_head_norm.weight": (embd,)}
        sizes |= {f"blk.{layer}.{name}": dims for name, dims in own.items()}
    tensors = tuple(
        MadeTensor(name, dims, kind if len(dims) == 2 and "conv1d" not in name else "f32")
        for name, dims in sizes.items()
    )
    return Made(architecture, {f"{architecture}.{key}": value for key, value in keys.items()}, tensors)
