# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A header's table of tensors: shapes, types and sizes, and that their data lies end to end within the file."""

from __future__ import annotations

import struct
from collections import Counter

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_cursor import STRING_LIMIT, Cursor
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    BadDimension,
    DataBeyondFile,
    DuplicateTensor,
    GapInData,
    LongTensorName,
    OverlappingTensors,
    PartialBlock,
    RemovedTensorType,
    TooManyDimensions,
    UnalignedOffset,
    UnknownTensorType,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_types import (
    REMOVED_TYPES,
    TENSOR_TYPES,
    Tensor,
)

__all__ = ["read_tensors"]

_MOST_DIMS = 4
_NAME_LIMIT = 63  # bytes; the engine keeps one of 64 for itself
_LARGEST = (1 << 63) - 1
# Dimensions, type (signed, as the engine reads it) and offset, by number of dimensions.
_REST = [struct.Struct(f"<{count}qiQ") for count in range(_MOST_DIMS + 1)]


def read_tensors(
    cursor: Cursor, count: int, *, alignment: int, file_bytes: int, shard: int
) -> tuple[tuple[Tensor, ...], int]:
    """The ``count`` tensors at the cursor, in the file's order, and where their data begins.

    A type that the engine does not know has its size from the next tensor's offset: an upper bound, marked as such.
    """
    tensors: list[Tensor] = []
    names: set[bytes] = set()
    removed: Counter[int] = Counter()
    pending: tuple[str, tuple[int, ...], int, int] | None = None  # of unknown size until the next offset is read
    expected = 0
    for index in range(count):
        cursor.place = f"tensor {index}"
        raw = cursor.string("the name", STRING_LIMIT)
        name = raw.decode("utf-8", "backslashreplace")
        what = f"{cursor.name}: tensor {name!r}"
        if len(raw) > _NAME_LIMIT:
            raise LongTensorName(
                f"{cursor.name}: the name of tensor {index} ({name[:80]!r}...) is too long",
                expected=f"at most {_NAME_LIMIT} bytes",
                found=f"{len(raw)} bytes",
            )
        if raw in names:
            raise DuplicateTensor(f"{what} stands twice", expected="each name once", found=f"it again as {index}")
        names.add(raw)
        dims, kind, offset = _shape(cursor, what)
        if offset % alignment:
            raise UnalignedOffset(f"{what} is not aligned", expected=f"a multiple of {alignment}", found=offset)
        if pending is not None:
            if offset <= pending[3]:
                raise OverlappingTensors(f"{what} lies on {pending[0]!r}", expected=f"> {pending[3]}", found=offset)
            tensors.append(_guessed(pending, offset, shard))
            pending, expected = None, offset
        if offset != expected:
            fault = OverlappingTensors if offset < expected else GapInData
            says = "overlaps the one before it" if offset < expected else "leaves a gap before it"
            raise fault(f"{what} {says}", expected=f"offset {expected}", found=f"offset {offset}")
        known = TENSOR_TYPES.get(kind)
        if known is None:
            if kind < 0:
                raise UnknownTensorType(f"{what} has an impossible type", expected="a type id of 0 or more", found=kind)
            removed[kind] += kind in REMOVED_TYPES
            pending = (name, dims, kind, offset)
            continue
        nbytes = _nbytes(what, dims, kind)
        tensors.append(Tensor(name, dims, kind, known.name, offset, nbytes, True, shard))
        expected = offset + -(-nbytes // alignment) * alignment
    _refuse_removed(cursor.name, +removed)
    if not count:
        return (), cursor.position
    data_offset = -(-cursor.position // alignment) * alignment
    room = file_bytes - data_offset
    if pending is not None:
        if room <= pending[3]:
            raise _beyond(cursor.name, pending[0], data_offset + pending[3] + 1, file_bytes)
        tensors.append(_guessed(pending, room, shard))
    # They lie end to end, so the last one ends last.
    if tensors[-1].offset + tensors[-1].nbytes > room:
        end = data_offset + tensors[-1].offset + tensors[-1].nbytes
        raise _beyond(cursor.name, tensors[-1].name, end, file_bytes)
    return tuple(tensors), data_offset


def _shape(cursor: Cursor, what: str) -> tuple[tuple[int, ...], int, int]:
    """Dimensions, type and offset."""
    count = cursor.u32()
    if count > _MOST_DIMS:
        raise TooManyDimensions(f"{what} has {count} dimensions", expected=f"at most {_MOST_DIMS}", found=count)
    layout = _REST[count]
    *sizes, kind, offset = layout.unpack(cursor.take(layout.size))
    elements = 1
    for size in sizes:
        if size < 1:
            raise BadDimension(f"{what} has an impossible dimension", expected="1 or more", found=tuple(sizes))
        elements *= size
    if elements > _LARGEST:
        raise BadDimension(f"{what} has too many elements", expected=f"at most {_LARGEST}", found=tuple(sizes))
    return tuple(sizes) or (1,), kind, offset


def _nbytes(what: str, dims: tuple[int, ...], kind: int) -> int:
    name, block, block_bytes = TENSOR_TYPES[kind]
    if dims[0] % block:
        raise PartialBlock(
            f"{what} has rows that {name} does not divide", expected=f"a multiple of {block} elements", found=dims[0]
        )
    nbytes = dims[0] // block * block_bytes
    for size in dims[1:]:
        nbytes *= size
    if nbytes > _LARGEST:
        raise BadDimension(f"{what} has too many bytes", expected=f"at most {_LARGEST}", found=nbytes)
    return nbytes


def _guessed(pending: tuple[str, tuple[int, ...], int, int], end: int, shard: int) -> Tensor:
    name, dims, kind, offset = pending
    return Tensor(name, dims, kind, None, offset, end - offset, False, shard)


def _refuse_removed(name: str, removed: Counter[int]) -> None:
    if removed:
        shown = ", ".join(f"{count} of type {kind} ({REMOVED_TYPES[kind]})" for kind, count in sorted(removed.items()))
        raise RemovedTensorType(
            f"{name} has tensors of a type that the engine took back",
            expected="types that the engine knows",
            found=shown,
        )


def _beyond(name: str, tensor: str, end: int, file_bytes: int) -> DataBeyondFile:
    return DataBeyondFile(
        f"{name} ends before its tensors do ({tensor!r} is the last)",
        expected=f"at least {end} bytes",
        found=f"{file_bytes} bytes",
    )
