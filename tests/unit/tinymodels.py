# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiny models that llama-server loads and runs: one of each architecture that the ledger knows, random weights.

They say nothing of sense; what they are for is the memory that the engine takes for their shapes. Each is some
hundred kilobytes, written anew from its name, so that no two runs differ. Their tensors were read off llama.cpp build
11434, ``models/<architecture>.cpp``.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import cache

from ggufwriter import ARRAY, BOOL, F32, I32, STRING, U32, Pair, T, gguf, nbytes

MATRIX_F32, MATRIX_F16, MATRIX_Q4_0, MATRIX_Q8_0 = 0, 1, 2, 8
SPECIALS = ("<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 288


@dataclass(frozen=True)
class Tiny:
    """A model's numbers; ``kind`` is the ggml type of its matrices, ``window`` None for no such key."""

    architecture: str
    layers: int
    embd: int = 64
    ff: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    kind: int = MATRIX_F16
    tied: bool = False
    window: int | None = None
    pattern: int | tuple[bool, ...] | None = None
    recurrent: tuple[bool, ...] | None = None
    interval: int | None = None
    nextn: int = 0
    rope_factors: bool = False
    targets: tuple[int, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether most layers keep a recurrent state."""
        return self.architecture == "qwen35"

    def recurs(self, layer: int) -> bool:
        """Whether this layer does."""
        if not self.hybrid or layer >= self.layers:
            return False
        return self.recurrent[layer] if self.recurrent else (layer + 1) % (self.interval or 4) != 0


# Row widths, layers and windows differ from one to the next, so that no mistake in one hides in another.
MODELS = {
    "llama": Tiny("llama", 3, rope_factors=True),
    "llama-tied": Tiny("llama", 4, heads=2, kv_heads=1, tied=True, kind=MATRIX_Q8_0),
    "mistral3": Tiny("mistral3", 2, kv_heads=4),
    "qwen2": Tiny("qwen2", 5, heads=2, kv_heads=2, tied=True),
    "qwen3": Tiny("qwen3", 4, heads=2, kv_heads=1, head_dim=96, kind=MATRIX_Q4_0),
    "gemma": Tiny("gemma", 3, heads=2, kv_heads=1, head_dim=96, tied=True),
    "gemma2": Tiny("gemma2", 5, heads=2, kv_heads=2, tied=True),
    "gemma2-window": Tiny("gemma2", 4, heads=2, kv_heads=1, head_dim=64, tied=True, window=512),
    "gemma3": Tiny("gemma3", 7, ff=64, heads=2, kv_heads=1, tied=True, window=640),
    "gemma3-pattern": Tiny("gemma3", 5, heads=2, kv_heads=2, window=300, pattern=3),
    "gemma3-array": Tiny("gemma3", 4, heads=2, kv_heads=1, window=1024, pattern=(True, False, False, True)),
    "gemma3-full": Tiny("gemma3", 3, heads=2, kv_heads=2, head_dim=96),
    "qwen35": Tiny("qwen35", 5, ff=64, heads=2, kv_heads=1, tied=True),
    "qwen35-array": Tiny("qwen35", 5, ff=64, heads=2, kv_heads=2, recurrent=(True, False, False, True, False)),
    "qwen35-mtp": Tiny("qwen35", 4, ff=64, heads=2, kv_heads=2, nextn=1, interval=2),
    "dflash": Tiny("dflash", 3, heads=2, kv_heads=1, targets=(0, 2)),
    "dflash-window": Tiny("dflash", 2, heads=2, kv_heads=2, window=512, pattern=(True, True), targets=(1, 2)),
}
# Of the recurrent layers: convolution, state, groups and heads.
KERNEL, STATE, GROUPS, RANK = 4, 32, 2, 4


def _byte_tokens() -> list[str]:
    """GPT-2's letters for the 256 bytes: those that print stand for themselves, the rest begin at U+0100."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return [chr(byte) if byte in own else chr(0x100 + rest.index(byte)) for byte in range(256)]


def tokenizer() -> list[Pair]:
    """A byte-level vocabulary with a few special tokens and one merge."""
    tokens = [*_byte_tokens(), *SPECIALS]
    tokens += [f"<|unused{number}|>" for number in range(VOCABULARY - len(tokens))]
    control, normal = 3, 1
    return [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [normal] * 256 + [control] * (VOCABULARY - 256))),
        ("tokenizer.ggml.merges", ARRAY, (STRING, ["t h"])),
        ("tokenizer.ggml.bos_token_id", U32, 256),
        ("tokenizer.ggml.eos_token_id", U32, 259),
        ("tokenizer.ggml.mask_token_id", U32, 257),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
    ]


def metadata(tiny: Tiny) -> list[Pair]:
    """The header's keys."""
    arch, blocks = tiny.architecture, tiny.layers + tiny.nextn
    pairs: list[Pair] = [
        ("general.architecture", STRING, arch),
        (f"{arch}.block_count", U32, blocks),
        (f"{arch}.context_length", U32, 8192),
        (f"{arch}.embedding_length", U32, tiny.embd),
        (f"{arch}.feed_forward_length", U32, tiny.ff),
        (f"{arch}.attention.head_count", U32, tiny.heads),
        (f"{arch}.attention.head_count_kv", U32, tiny.kv_heads),
        (f"{arch}.attention.key_length", U32, tiny.head_dim),
        (f"{arch}.attention.value_length", U32, tiny.head_dim),
        (f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-6),
        (f"{arch}.rope.dimension_count", U32, tiny.head_dim),
    ]
    if tiny.window is not None:
        pairs.append((f"{arch}.attention.sliding_window", U32, tiny.window))
    if isinstance(tiny.pattern, tuple):
        pairs.append((f"{arch}.attention.sliding_window_pattern", ARRAY, (BOOL, list(tiny.pattern))))
    elif tiny.pattern is not None:
        pairs.append((f"{arch}.attention.sliding_window_pattern", U32, tiny.pattern))
    if tiny.targets:
        pairs += [(f"{arch}.target_layers", ARRAY, (I32, list(tiny.targets))), (f"{arch}.block_size", U32, 8)]
    if tiny.hybrid:
        half = tiny.head_dim // 2
        pairs += [
            (f"{arch}.rope.dimension_sections", ARRAY, (I32, [half - 10, 5, 5, 0])),
            (f"{arch}.ssm.conv_kernel", U32, KERNEL),
            (f"{arch}.ssm.inner_size", U32, STATE * RANK),
            (f"{arch}.ssm.state_size", U32, STATE),
            (f"{arch}.ssm.group_count", U32, GROUPS),
            (f"{arch}.ssm.time_step_rank", U32, RANK),
        ]
        if tiny.recurrent:
            pairs.append((f"{arch}.attention.recurrent_layers", ARRAY, (BOOL, list(tiny.recurrent))))
        if tiny.interval:
            pairs.append((f"{arch}.full_attention_interval", U32, tiny.interval))
        if tiny.nextn:
            pairs.append((f"{arch}.nextn_predict_layers", U32, tiny.nextn))
    return pairs + tokenizer()


def _block(tiny: Tiny, layer: int) -> dict[str, tuple[int, ...]]:
    """One layer's tensors: name after the layer's number, and dimensions."""
    arch, embd, ff, dim = tiny.architecture, tiny.embd, tiny.ff, tiny.head_dim
    q, kv = tiny.heads * dim, tiny.kv_heads * dim
    own: dict[str, tuple[int, ...]] = {"attn_norm.weight": (embd,)}
    if tiny.recurs(layer):
        value, channels = STATE * RANK, STATE * RANK + 2 * STATE * GROUPS
        own |= {"attn_qkv.weight": (embd, channels), "attn_gate.weight": (embd, value)}
        own |= {"ssm_conv1d.weight": (KERNEL, channels), "ssm_dt.bias": (RANK,), "ssm_a": (RANK,)}
        own |= {"ssm_beta.weight": (embd, RANK), "ssm_alpha.weight": (embd, RANK), "ssm_norm.weight": (STATE,)}
        own |= {"ssm_out.weight": (value, embd)}
    else:
        own |= {"attn_q.weight": (embd, 2 * q if tiny.hybrid else q), "attn_k.weight": (embd, kv)}
        own |= {"attn_v.weight": (embd, kv), "attn_output.weight": (q, embd)}
        if arch in ("qwen3", "gemma3", "qwen35", "dflash"):
            own |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
        if arch == "qwen2":
            own |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if arch in ("gemma2", "gemma3", "qwen35"):
        own["post_attention_norm.weight"] = (embd,)
    if arch in ("gemma2", "gemma3"):
        own["post_ffw_norm.weight"] = (embd,)
    if not tiny.hybrid:
        own["ffn_norm.weight"] = (embd,)
    own |= {"ffn_gate.weight": (embd, ff), "ffn_up.weight": (embd, ff), "ffn_down.weight": (ff, embd)}
    if layer >= tiny.layers:
        own |= {"nextn.eh_proj.weight": (2 * embd, embd), "nextn.enorm.weight": (embd,)}
        own |= {"nextn.hnorm.weight": (embd,), "nextn.shared_head_norm.weight": (embd,)}
    return own


def tensors(tiny: Tiny) -> list[T]:
    """The tensor table; a drafter that borrows the target's embeddings and output has none of its own."""
    embd = tiny.embd
    sizes: dict[str, tuple[int, ...]] = {"output_norm.weight": (embd,)}
    if tiny.targets:
        sizes |= {"fc.weight": (len(tiny.targets) * embd, embd), "enc.output_norm.weight": (embd,)}
    else:
        sizes["token_embd.weight"] = (embd, VOCABULARY)
        if not tiny.tied:
            sizes["output.weight"] = (embd, VOCABULARY)
    if tiny.rope_factors:
        sizes["rope_freqs.weight"] = (tiny.head_dim // 2,)
    for layer in range(tiny.layers + tiny.nextn):
        sizes |= {f"blk.{layer}.{name}": dims for name, dims in _block(tiny, layer).items()}
    return [
        T(name, dims, tiny.kind if len(dims) == 2 and "conv1d" not in name else MATRIX_F32)
        for name, dims in sizes.items()
    ]


def _fill(tensor: T, source: random.Random) -> bytes:
    """Small random numbers for a matrix, numbers about one for a vector."""
    size = nbytes(tensor)
    if tensor.kind == MATRIX_F32:
        table = [struct.pack("<f", 0.75 + byte / 512) for byte in range(256)]
        return b"".join(map(table.__getitem__, source.randbytes(size // 4)))
    if tensor.kind == MATRIX_F16:
        table = [struct.pack("<e", (byte - 127.5) / 1024) for byte in range(256)]
        return b"".join(map(table.__getitem__, source.randbytes(size // 2)))
    block = {MATRIX_Q4_0: 16, MATRIX_Q8_0: 32}[tensor.kind]
    scale = struct.pack("<e", 1 / 1024)
    return b"".join(scale + source.randbytes(block) for _ in range(size // (block + 2)))


@cache
def build(name: str) -> bytes:
    """The file of one of :data:`MODELS`."""
    tiny, source = MODELS[name], random.Random(name)
    return gguf(metadata(tiny), tensors(tiny), data=lambda tensor: _fill(tensor, source))
