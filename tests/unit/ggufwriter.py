# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes GGUF files for tests, sound ones and every kind of damage; shares no code or table with the reader."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LETTERS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# Bytes and elements of a block, of the types that tests use.
_BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 8: (34, 32), 12: (144, 256), 30: (2, 1)}

Pair = tuple[str | bytes, int, Any]
ARCH: Pair = ("general.architecture", STRING, "llama")


@dataclass(frozen=True)
class T:
    """A tensor; ``offset`` is where the one before it ends unless given, ``nbytes`` must be given for other types."""

    name: str | bytes
    dims: Sequence[int] = (32, 2)
    kind: int = 0
    offset: int | None = None
    nbytes: int | None = None
    dim_count: int | None = None


def string(text: str | bytes, length: int | None = None) -> bytes:
    """A string as it stands in the file; ``length`` lies about it."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def value(kind: int, content: Any) -> bytes:
    """A value without its type; the content of an array is (type of the elements, list) and bytes are taken as are."""
    if isinstance(content, bytes) and kind != STRING:
        return content
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        element, items = content
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, item) for item in items)
    return struct.pack("<" + _LETTERS[kind], content)


def pair(key: str | bytes, kind: int, content: Any) -> bytes:
    """A key with its value."""
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def nbytes(tensor: T) -> int:
    """The bytes of a tensor's data."""
    if tensor.nbytes is not None:
        return tensor.nbytes
    size, block = _BLOCKS[tensor.kind]
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    return elements // block * size


def padded(length: int, alignment: int) -> int:
    """The next multiple."""
    return -(-length // alignment) * alignment


def gguf(
    pairs: Sequence[Pair | bytes] = (ARCH,),
    tensors: Sequence[T] = (),
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    pair_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
    data: bool | Callable[[T], bytes] = True,
) -> bytes:
    """A file; a pair or count that is given as such is written as such, however wrong.

    ``data``: zeros, nothing at all, or what the function gives for each tensor.
    """
    counts = (len(tensors) if tensor_count is None else tensor_count, len(pairs) if pair_count is None else pair_count)
    out = bytearray(magic + struct.pack("<IQQ", version, *counts))
    for each in pairs:
        out += each if isinstance(each, bytes) else pair(*each)
    at = 0
    for tensor in tensors:
        offset = at if tensor.offset is None else tensor.offset
        dim_count = len(tensor.dims) if tensor.dim_count is None else tensor.dim_count
        out += string(tensor.name) + struct.pack("<I", dim_count)
        out += b"".join(struct.pack("<q", dim) for dim in tensor.dims) + struct.pack("<iQ", tensor.kind, offset)
        if data:
            at = padded(offset + nbytes(tensor), alignment)
    if tensors and data:
        out += bytes(padded(len(out), alignment) - len(out))
        if data is True:
            out += bytes(at)
        else:
            for tensor in tensors:
                out += data(tensor).ljust(padded(nbytes(tensor), alignment), b"\0")
    return bytes(out)


def shards(tables: Sequence[Sequence[T]], pairs: Sequence[Pair] = (ARCH,), total: int | None = None) -> list[bytes]:
    """A sound set: the metadata in the first file only."""
    count = sum(map(len, tables)) if total is None else total
    return [
        gguf(
            [
                *(pairs if number == 0 else ()),
                ("split.no", U16, number),
                ("split.count", U16, len(tables)),
                ("split.tensors.count", I32, count),
            ],
            table,
        )
        for number, table in enumerate(tables)
    ]


def vocabulary(tokens: int, merges: int = 0) -> list[Pair]:
    """Metadata with a vocabulary like a real one's: short strings, scores, token types."""
    return [
        ARCH,
        ("llama.block_count", U32, 4),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{number}" for number in range(tokens)])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [float(-number) for number in range(tokens)])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [1] * tokens)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [f"a{number} b{number}" for number in range(merges)])),
    ]
