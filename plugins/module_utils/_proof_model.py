# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model of some fifty kilobytes that llama-server loads and answers with: random weights, the same each time.

Written here so that the proof of a build needs no file and no network. The format is GGUF, version 3 (ggml/docs/gguf.md
in the engine's tree).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

__all__ = ["tiny_model"]

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_PACK = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}
_ALIGNMENT = 32
_WIDTH, _FORWARD, _HEADS, _CONTEXT = 32, 48, 2, 512
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")
_VOCABULARY = 256 + len(_SPECIALS)
_NORMAL, _CONTROL = 1, 3


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _number(key: str, kind: int, value: float) -> bytes:
    return _pair(key, kind, struct.pack(_PACK[kind], value))


def _texts(key: str, values: Sequence[str]) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_string, values)))


def _byte_tokens() -> list[str]:
    """GPT-2's letters for the 256 bytes: those that print stand for themselves, the rest begin at U+0100."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return [chr(byte) if byte in own else chr(0x100 + rest.index(byte)) for byte in range(256)]


def _pairs() -> list[bytes]:
    kinds = [_NORMAL] * 256 + [_CONTROL] * len(_SPECIALS)
    return [
        _pair("general.architecture", _STRING, _string("llama")),
        _number("llama.block_count", _U32, 1),
        _number("llama.context_length", _U32, _CONTEXT),
        _number("llama.embedding_length", _U32, _WIDTH),
        _number("llama.feed_forward_length", _U32, _FORWARD),
        _number("llama.attention.head_count", _U32, _HEADS),
        _number("llama.attention.layer_norm_rms_epsilon", _F32, 1e-6),
        _number("llama.rope.dimension_count", _U32, _WIDTH // _HEADS),
        _pair("tokenizer.ggml.model", _STRING, _string("gpt2")),
        _pair("tokenizer.ggml.pre", _STRING, _string("gpt-2")),
        _texts("tokenizer.ggml.tokens", [*_byte_tokens(), *_SPECIALS]),
        _pair("tokenizer.ggml.token_type", _ARRAY, struct.pack(f"<IQ{len(kinds)}i", _I32, len(kinds), *kinds)),
        _texts("tokenizer.ggml.merges", ["t h"]),
        _number("tokenizer.ggml.bos_token_id", _U32, 256),
        _number("tokenizer.ggml.eos_token_id", _U32, 258),
        _number("tokenizer.ggml.add_bos_token", _BOOL, False),
    ]


def _tensors() -> dict[str, tuple[int, ...]]:
    block = {
        "attn_norm": (_WIDTH,),
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (_WIDTH, _WIDTH),
        "attn_v": (_WIDTH, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (_WIDTH, _FORWARD),
        "ffn_up": (_WIDTH, _FORWARD),
        "ffn_down": (_FORWARD, _WIDTH),
    }
    named = {f"blk.0.{name}.weight": dims for name, dims in block.items()}
    return {"token_embd.weight": (_WIDTH, _VOCABULARY), "output_norm.weight": (_WIDTH,), **named}


def tiny_model() -> bytes:
    """The whole file."""
    source, pairs, tensors = random.Random(1), _pairs(), _tensors()
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
    out += b"".join(pairs)
    data = bytearray()
    for name, dims in tensors.items():
        out += _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        # Vectors are norms, about one; matrices are small.
        values = (1 + source.random() / 8 if len(dims) == 1 else source.random() / 8 - 1 / 16 for _ in range(count))
        data += struct.pack(f"<{count}f", *values)
        data += bytes(-len(data) % _ALIGNMENT)
    out += bytes(-len(out) % _ALIGNMENT)
    return bytes(out + data)
