# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GNU build id of a program: what tells one build from another whatever its path (elf(5), ``NT_GNU_BUILD_ID``)."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["build_id"]

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_NOTES_MAX = 1 << 20  # bytes of one note segment; real ones have some hundred
# By class: of the header offset and format of (e_phoff), (e_phentsize, e_phnum); of a segment (p_offset), (p_filesz),
# (p_align).
_LAYOUT = {
    1: ((28, "I"), 42, (4, "I"), (16, "I"), (28, "I"), 32),
    2: ((32, "Q"), 54, (8, "Q"), (32, "Q"), (48, "Q"), 56),
}


def build_id(path: str) -> str | None:
    """Hex build id of the program at ``path`` (also ``/proc/PID/exe``); None where it has none or is no ELF file.

    A damaged ELF file is a FleetError.
    """
    with open(path, "rb") as handle:
        head = handle.read(64)
        if head[:4] != b"\x7fELF":
            return None
        try:
            return _find(handle, head)
        except (struct.error, LookupError, ValueError) as exc:
            raise FleetError(f"{path} is damaged", expected="a whole ELF file", found=str(exc) or repr(exc)) from exc


def _find(handle: BinaryIO, head: bytes) -> str | None:
    (phoff_at, phoff_form), counts_at, offset, size, align, entry = _LAYOUT[head[4]]
    order = {1: "<", 2: ">"}[head[5]]

    def number(data: bytes, at: tuple[int, str]) -> int:
        return int(struct.unpack_from(order + at[1], data, at[0])[0])

    entry_size, count = struct.unpack_from(order + "HH", head, counts_at)
    if count and entry_size < entry:
        raise ValueError(f"program headers of {entry_size} bytes")
    table = _read(handle, number(head, (phoff_at, phoff_form)), entry_size * count)
    for index in range(count):
        segment = table[index * entry_size : (index + 1) * entry_size]
        if number(segment, (0, "I")) != _PT_NOTE:
            continue
        length = number(segment, size)
        if length > _NOTES_MAX:
            raise ValueError(f"notes of {length} bytes")
        notes = _read(handle, number(segment, offset), length)
        found = _note(notes, order, 8 if number(segment, align) == 8 else 4)
        if found is not None:
            return found
    return None


def _read(handle: BinaryIO, offset: int, length: int) -> bytes:
    if offset + length > os.fstat(handle.fileno()).st_size:
        raise ValueError(f"{length} bytes at {offset}, beyond its end")
    handle.seek(offset)
    return handle.read(length)


def _note(data: bytes, order: str, align: int) -> str | None:
    """The build id among the notes of one segment, each (name size, data size, type), name, data, both padded."""
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from(order + "III", data, at)
        begin = at + 12 + name_size
        begin += -begin % align
        if begin + size > len(data):
            raise ValueError(f"a note of {size} bytes at {at} of {len(data)}")
        if kind == _NT_GNU_BUILD_ID and data[at + 12 : at + 12 + name_size] == b"GNU\0" and size:
            return data[begin : begin + size].hex()
        at = begin + size
        at += -at % align
    return None
