# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build ids: of this machine's programs as readelf tells them, of made files of every class, and damaged ones."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._build_id import build_id
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from hypothesis import given
from hypothesis import strategies as st

GNU = b"GNU\0"


def note(name: bytes, kind: int, data: bytes, order: str = "<", align: int = 4) -> bytes:
    text = struct.pack(order + "III", len(name), len(data), kind) + name
    text += b"\0" * (-len(text) % align) + data
    return text + b"\0" * (-len(text) % align)


def elf(notes: bytes, bits: int = 64, order: str = "<", align: int = 4, kind: int = 4) -> bytes:
    """The least ELF file: a header, one segment of the type ``kind``, the notes."""
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    if bits == 64:
        head = ident + struct.pack(order + "HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        return head + struct.pack(order + "IIQQQQQQ", kind, 4, 120, 0, 0, len(notes), len(notes), align) + notes
    head = ident + struct.pack(order + "HHIIIIIHHHHHH", 2, 3, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    return head + struct.pack(order + "IIIIIIII", kind, 84, 0, 0, len(notes), len(notes), 4, align) + notes


def programs() -> list[str]:
    found = [shutil.which(name) for name in ("ls", "bash", "git", "systemctl")]
    return sorted({os.path.realpath(path) for path in found if path} | {os.path.realpath(sys.executable)})


@pytest.mark.parametrize("path", programs())
def test_real_programs_as_readelf_tells_them(path: str) -> None:
    told = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    ids = [line.split()[-1] for line in told.splitlines() if "Build ID" in line]
    assert build_id(path) == (ids[0] if ids else None)


def test_of_a_process_whose_file_is_gone(tmp_path: Path) -> None:
    program = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "", program)
    expected = build_id(str(program))
    assert expected
    with subprocess.Popen([str(program), "60"]) as process:
        try:
            program.unlink()
            assert build_id(f"/proc/{process.pid}/exe") == expected
        finally:
            process.kill()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("align", [4, 8])
def test_every_class_and_byte_order(tmp_path: Path, bits: int, order: str, align: int) -> None:
    notes = note(b"Linux\0", 3, b"not it", order, align) + note(GNU, 1, b"abi!" * 4, order, align)
    notes += note(GNU, 3, bytes(range(20)), order, align)
    path = tmp_path / "program"
    path.write_bytes(elf(notes, bits, order, align))
    assert build_id(str(path)) == bytes(range(20)).hex()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fEL",
        elf(b""),
        elf(note(GNU, 1, b"abi!")),
        elf(note(b"GNU", 3, b"abcd")),
        elf(note(GNU, 3, b"")),
        elf(note(GNU, 3, b"abcd"), kind=1),
    ],
)
def test_without_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "program"
    path.write_bytes(data)
    assert build_id(str(path)) is None


WHOLE = elf(note(GNU, 3, b"0123456789abcdef"))


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:4],  # no more than the magic number
        WHOLE[:40],  # within the header
        WHOLE[:100],  # within the program header
        WHOLE[:-4],  # within the note
        WHOLE[:4] + b"\x07" + WHOLE[5:],  # a class that there is not
        WHOLE[:5] + b"\x07" + WHOLE[6:],  # a byte order that there is not
        WHOLE[:54] + b"\x08\0" + WHOLE[56:],  # program headers of eight bytes
        WHOLE[:96] + b"\xff" * 8 + WHOLE[104:],  # a segment without end
        elf(struct.pack("<III", 4, 1 << 31, 3) + GNU),  # a note without end
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "program"
    path.write_bytes(data)
    with pytest.raises(FleetError, match=f"{path} is damaged"):
        build_id(str(path))


@given(data=st.binary(max_size=200), cut=st.integers(0, len(WHOLE)), at=st.integers(4, len(WHOLE) - 1))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for text in (b"\x7fELF" + data, WHOLE[:cut], WHOLE[:at] + data[:8] + WHOLE[at + 8 :]):
        path.write_bytes(text)
        try:
            found = build_id(str(path))
        except FleetError:
            continue
        assert found is None or bytes.fromhex(found)
