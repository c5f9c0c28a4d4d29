# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GGUF header is made of: value types, tensor types with their sizes, and the answer of the reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "ARRAY",
    "BOOL",
    "REMOVED_TYPES",
    "SCALARS",
    "STRING",
    "TENSOR_TYPES",
    "TYPE_IDS",
    "ArrayInfo",
    "Gguf",
    "Shard",
    "Tensor",
    "TensorType",
    "type_label",
    "value_type_name",
]


class TensorType(NamedTuple):
    """``block_bytes`` hold ``block`` consecutive elements of one row."""

    name: str
    block: int
    block_bytes: int


# The tensor types of llama.cpp build 11434, by id. Names are the engine's own, in its capitals.
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("f32", 1, 4),
    1: TensorType("f16", 1, 2),
    2: TensorType("q4_0", 32, 18),
    3: TensorType("q4_1", 32, 20),
    6: TensorType("q5_0", 32, 22),
    7: TensorType("q5_1", 32, 24),
    8: TensorType("q8_0", 32, 34),
    9: TensorType("q8_1", 32, 36),
    10: TensorType("q2_K", 256, 84),
    11: TensorType("q3_K", 256, 110),
    12: TensorType("q4_K", 256, 144),
    13: TensorType("q5_K", 256, 176),
    14: TensorType("q6_K", 256, 210),
    15: TensorType("q8_K", 256, 292),
    16: TensorType("iq2_xxs", 256, 66),
    17: TensorType("iq2_xs", 256, 74),
    18: TensorType("iq3_xxs", 256, 98),
    19: TensorType("iq1_s", 256, 50),
    20: TensorType("iq4_nl", 32, 18),
    21: TensorType("iq3_s", 256, 110),
    22: TensorType("iq2_s", 256, 82),
    23: TensorType("iq4_xs", 256, 136),
    24: TensorType("i8", 1, 1),
    25: TensorType("i16", 1, 2),
    26: TensorType("i32", 1, 4),
    27: TensorType("i64", 1, 8),
    28: TensorType("f64", 1, 8),
    29: TensorType("iq1_m", 256, 56),
    30: TensorType("bf16", 1, 2),
    34: TensorType("tq1_0", 256, 54),
    35: TensorType("tq2_0", 256, 66),
    39: TensorType("mxfp4", 32, 17),
    40: TensorType("nvfp4", 64, 36),
    41: TensorType("q1_0", 128, 18),
    42: TensorType("q2_0", 64, 18),
}

TYPE_IDS: dict[str, int] = {kind.name: number for number, kind in TENSOR_TYPES.items()}

# Ids that the engine once had and took back; forks have given some of them other meanings since.
REMOVED_TYPES: dict[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}

BOOL, STRING, ARRAY = 7, 8, 9
# Metadata values of fixed size: id -> (name, the struct module's letter, bytes).
SCALARS: dict[int, tuple[str, str, int]] = {
    0: ("u8", "B", 1),
    1: ("i8", "b", 1),
    2: ("u16", "H", 2),
    3: ("i16", "h", 2),
    4: ("u32", "I", 4),
    5: ("i32", "i", 4),
    6: ("f32", "f", 4),
    BOOL: ("bool", "B", 1),
    10: ("u64", "Q", 8),
    11: ("i64", "q", 8),
    12: ("f64", "d", 8),
}


def value_type_name(number: int) -> str:
    """The name of a metadata value's type, or its number where it has none."""
    if number in SCALARS:
        return SCALARS[number][0]
    return {STRING: "string", ARRAY: "array"}.get(number, f"type {number}")


def type_label(number: int) -> str:
    """What a table of tensor types shows: the engine's name, or that the id is unknown to it."""
    known = TENSOR_TYPES.get(number)
    return known.name if known else f"unknown ({number})"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Stands for an array that was passed over: the type of its elements and how many there are."""

    type: str
    count: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. ``dims[0]`` is the length of a row, as ggml counts; a scalar has dims ``(1,)``.

    ``offset`` is counted from the start of its shard's data section. Where the type is unknown, ``type_name`` is None,
    ``exact`` is False and ``nbytes`` reaches up to the next tensor (padding included) or the end of the file.
    """

    name: str
    dims: tuple[int, ...]
    type_id: int
    type_name: str | None
    offset: int
    nbytes: int
    exact: bool
    shard: int

    @property
    def elements(self) -> int:
        """The product of the dimensions."""
        product = 1
        for size in self.dims:
            product *= size
        return product


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a model; ``data_offset`` is 0 where the tensors were not read."""

    name: str
    file_bytes: int
    data_offset: int
    alignment: int
    tensor_count: int


@dataclass(frozen=True)
class Gguf:
    """A header as read. ``metadata`` holds scalars and strings as they are, arrays as lists or ArrayInfo.

    ``version``, ``data_offset`` and ``alignment`` are those of the first shard; ``file_bytes`` is the sum over
    ``shards``; ``tensors`` is empty where they were not asked for, ``tensor_count`` never lies.
    """

    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int
    alignment: int
    architecture: str
    shards: tuple[Shard, ...]
    tensor_count: int

    def get(self, suffix: str, default: Any = None) -> Any:
        """The architecture's own value: ``get("block_count")`` of a llama is ``llama.block_count``."""
        return self.metadata.get(f"{self.architecture}.{suffix}", default)

    def _whole(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def block_count(self) -> int | None:
        """Layers, MTP blocks included; None where the file says nothing (or no whole number)."""
        return self._whole(f"{self.architecture}.block_count")

    @property
    def nextn_predict_layers(self) -> int:
        """Declared MTP blocks at the end of ``block_count``; 0 where none are declared."""
        return self._whole(f"{self.architecture}.nextn_predict_layers") or 0

    @property
    def file_type(self) -> int | None:
        """``general.file_type``: the mix of tensor types that the quantizer aimed at."""
        return self._whole("general.file_type")

    @property
    def name(self) -> str | None:
        """``general.name``."""
        value = self.metadata.get("general.name")
        return value if isinstance(value, str) else None

    @property
    def tensor_bytes(self) -> int:
        """The sum over the tensors, without padding."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def types(self) -> dict[str, int]:
        """How many tensors there are of each type, the most frequent first."""
        counts = Counter(tensor.type_id for tensor in self.tensors)
        return {type_label(number): count for number, count in counts.most_common()}

    @property
    def unknown_types(self) -> dict[int, int]:
        """How many tensors there are of each type id that the engine does not know."""
        return dict(Counter(tensor.type_id for tensor in self.tensors if tensor.type_name is None))
