# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file's GGUF header, from any source of bytes: what is asked is decoded, the rest is stepped over.

Time and memory are bounded by the bytes that are there: no count or length is believed before it is compared with
the bytes left, and none is used to allocate.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_cursor import STRING_LIMIT, Cursor
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    BadAlignment,
    CountBeyondFile,
    DuplicateKey,
    EmptyKey,
    ForeignEndian,
    HeaderTooShort,
    KeyNotText,
    LengthBeyondFile,
    LimitExceeded,
    NestedArray,
    NotGguf,
    UnknownValueType,
    UnsupportedVersion,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import Source
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_tensors import read_tensors
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_types import (
    ARRAY,
    BOOL,
    SCALARS,
    STRING,
    ArrayInfo,
    Tensor,
    value_type_name,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import HEAD, head_fault

__all__ = ["Header", "read_header"]

_KEYS_LIMIT = 65536
_KEY_LIMIT = 64 << 10
_TENSORS_LIMIT = 1 << 20
_ELEMENTS_LIMIT = 1 << 24  # of an array of strings, and of any array that is decoded
_PLAIN_ARRAY = 4096  # elements up to which numbers are decoded unasked: layers are counted in tens, tokens not
_LEAST_KEY = 8 + 1 + 4 + 1  # bytes of the shortest key with its value
_LEAST_TENSOR = 8 + 4 + 4 + 8
_START = 24  # magic, version, two counts
_OLD = dict.fromkeys(
    (b"GGML", b"ggml", b"lmgg", b"GGMF", b"ggmf", b"fmgg", b"GGJT", b"ggjt", b"tjgg"),
    "a file of the GGML family, which came before GGUF",
)
_U32 = 4
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
# Kept whatever was asked: the answer's own properties and the checks of a set of shards need them.
_ALWAYS = frozenset(
    (
        "general.architecture",
        "general.name",
        "general.file_type",
        _ALIGNMENT,
        "split.no",
        "split.count",
        "split.tensors.count",
    )
)
_ALWAYS_ENDS = (".block_count", ".nextn_predict_layers")


@dataclass(frozen=True, slots=True)
class Header:
    """As in Gguf, for one file; ``data_offset`` is 0 where the tensors were not read."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    tensor_count: int
    data_offset: int
    alignment: int


def read_header(
    source: Source,
    *,
    keys: Collection[str] | None,
    whole: Collection[str] = (),
    tensors: bool,
    file_bytes: int,
    shard: int = 0,
) -> Header:
    """Read the header of ``source``, whose file has ``file_bytes`` (more than ``source.size`` for a header alone).

    ``keys`` (where the file has them) are decoded whatever they are, and a few that every reader needs; None stands for
    all keys, with arrays of strings and long ones as ArrayInfo but for those in ``whole``. Raises the classes of
    _gguf_errors.
    """
    cursor = Cursor(source)
    version, tensor_count, key_count = _read_start(cursor)
    metadata = _read_metadata(cursor, key_count, keys, whole)
    alignment = _alignment(cursor, metadata)
    if not tensors:
        return Header(version, metadata, (), tensor_count, 0, alignment)
    found, data_offset = read_tensors(cursor, tensor_count, alignment=alignment, file_bytes=file_bytes, shard=shard)
    return Header(version, metadata, found, tensor_count, data_offset, alignment)


def _read_start(cursor: Cursor) -> tuple[int, int, int]:
    """Version, tensor count and key count."""
    name = cursor.name
    head = cursor.peek(HEAD)
    if head[:4] != b"GGUF"[: len(head)]:
        found = head_fault("", head) or _OLD.get(head[:4]) or f"{head[:4]!r}"
        raise NotGguf(f"{name} is no GGUF file", expected="b'GGUF' at its start", found=found)
    if len(head) < _START:
        raise HeaderTooShort(f"{name} ends inside its first {_START} bytes", found=f"{len(head)} bytes")
    _, version, tensor_count, key_count = struct.unpack("<4sIQQ", cursor.take(_START))
    if version and not version & 0xFFFF:
        raise ForeignEndian(
            f"{name} is a big-endian GGUF", expected="version 2 or 3", found=f"version {version:#010x}, bytes swapped"
        )
    if version not in (2, 3):
        raise UnsupportedVersion(f"{name} is GGUF version {version}", expected="version 2 or 3", found=version)
    for kind, count, least, limit in (
        ("keys", key_count, _LEAST_KEY, _KEYS_LIMIT),
        ("tensors", tensor_count, _LEAST_TENSOR, _TENSORS_LIMIT),
    ):
        if count > cursor.left // least:
            raise CountBeyondFile(
                f"{name} announces {count} {kind}",
                expected=f"at most {cursor.left // least}, for which the file has room",
                found=count,
            )
        if count > limit:
            raise LimitExceeded(f"{name} announces {count} {kind}", expected=f"at most {limit}", found=count)
    return version, tensor_count, key_count


def _read_metadata(cursor: Cursor, count: int, keys: Collection[str] | None, whole: Collection[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for index in range(count):
        cursor.place = f"key {index}"
        raw = cursor.string("the name", _KEY_LIMIT)
        if not raw:
            raise EmptyKey(f"{cursor.name}: key {index} of {count} is empty", expected="a name", found="no byte")
        try:
            key = raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            what = f"{cursor.name}: key {index} of {count} is no text"
            raise KeyNotText(what, expected="UTF-8", found=repr(raw[:80])) from exc
        if key in seen:
            raise DuplicateKey(f"{cursor.name}: key {key!r} stands twice", expected="each key once", found="two values")
        seen.add(key)
        cursor.place = f"the value of {key!r}"
        asked = key in whole or (keys is not None and key in keys)
        kept = asked or keys is None or key in _ALWAYS or key.endswith(_ALWAYS_ENDS)
        kind = cursor.u32()
        if key == _ALIGNMENT and kind != _U32:
            raise BadAlignment(
                f"{cursor.name}: {key} is no u32", expected="a power of two as u32", found=value_type_name(kind)
            )
        if kind in SCALARS:
            value = _numbers(cursor, kind, 1)[0]
        elif kind == STRING:
            value = _string(cursor, kept)
        elif kind == ARRAY:
            value = _array(cursor, key, kept, asked)
        else:
            raise UnknownValueType(
                f"{cursor.name}: {key!r} has a value of unknown type", expected="a type of 0 to 12", found=kind
            )
        if kept:
            metadata[key] = value
    return metadata


def _numbers(cursor: Cursor, kind: int, count: int) -> list[Any]:
    _, letter, width = SCALARS[kind]
    values = struct.unpack(f"<{count}{letter}", cursor.take(count * width))
    return [value != 0 for value in values] if kind == BOOL else list(values)


def _string(cursor: Cursor, kept: bool) -> str:
    if kept:
        return cursor.string("the string", STRING_LIMIT).decode("utf-8", "backslashreplace")
    cursor.skip_strings(1)
    return ""


def _array(cursor: Cursor, key: str, kept: bool, asked: bool) -> list[Any] | ArrayInfo:
    kind, count = struct.unpack("<IQ", cursor.take(12))
    what = f"{cursor.name}: {key!r} is an array of"
    if kind == ARRAY:
        raise NestedArray(f"{what} arrays", expected="an array of numbers or strings", found="an array of arrays")
    if kind != STRING and kind not in SCALARS:
        raise UnknownValueType(f"{what} an unknown type", expected="a type of 0 to 12", found=kind)
    width = 8 if kind == STRING else SCALARS[kind][2]  # a string is at least its length
    room = cursor.left // width
    if count > room:
        raise LengthBeyondFile(f"{what} {count} elements", expected=f"at most {room}, the room left", found=count)
    if count > _ELEMENTS_LIMIT and (asked or kind == STRING):
        raise LimitExceeded(f"{what} {count} elements", expected=f"at most {_ELEMENTS_LIMIT}", found=count)
    if kind == STRING and asked:
        return [_string(cursor, True) for _ in range(count)]
    if kind == STRING:
        cursor.skip_strings(count)
    elif asked or (kept and count <= _PLAIN_ARRAY):
        return _numbers(cursor, kind, count)
    else:
        cursor.skip(count * width)
    return ArrayInfo(value_type_name(kind), count)


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment: int = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise BadAlignment(
            f"{cursor.name}: {_ALIGNMENT} is no power of two", expected="1, 2, 4, ... as u32", found=alignment
        )
    return alignment
