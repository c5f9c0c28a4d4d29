# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an ELF file says of itself: machine, needed libraries, search paths, build id, and its sections as bytes.

Layout after the System V ABI (gABI, chapters 4 and 5); 64-bit little-endian files alone, as every host of ours has.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["MACHINES", "Elf", "ElfError", "Image", "Section", "is_elf", "open_elf", "read_elf"]

# e_machine, of what a host or a card may run.
MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda", 224: "amdgpu"}
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_NOTE = struct.Struct("<III")
_SHT_DYNAMIC, _SHT_NOTE, _SHT_NOBITS = 6, 7, 8
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_NT_GNU_BUILD_ID = 3
_MOST_SECTIONS = 4096
_MOST_ENTRIES = 4096
_LONGEST_NAME = 4096


class ElfError(FleetError):
    """A file that is no ELF file, or no sound one."""


class Section(NamedTuple):
    """Where a section lies in the file; ``size`` is 0 for one that holds no bytes there."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class Elf:
    """One program or library; ``rpath`` and ``runpath`` are None where there is no such entry."""

    path: str
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...] | None
    runpath: tuple[str, ...] | None
    build_id: str

    @property
    def search(self) -> tuple[str, ...]:
        """The folders named for the loader; a RUNPATH takes the place of an RPATH, as the loader has it."""
        return self.runpath if self.runpath is not None else self.rpath or ()


def is_elf(path: str) -> bool:
    """Whether the file begins as an ELF file does."""
    with open(path, "rb") as handle:
        return handle.read(4) == b"\x7fELF"


class Image:
    """An open ELF file: its bytes, mapped, and its table of sections."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.machine, self.sections = self._table()

    def fault(self, what: str, expected: object, found: object) -> ElfError:
        """The refusal of this file."""
        return ElfError(
            f"{self.path} is no sound ELF file: {what}",
            expected=expected,
            found=found,
            remedy="Build or fetch the runtime anew: the file is cut off or damaged",
        )

    def require(self, offset: int, size: int, what: str) -> None:
        """Refuse a file that does not hold these bytes."""
        if offset + size > len(self.data):
            raise self.fault(what, f"{size} bytes at byte {offset}", f"a file of {len(self.data)} bytes")

    def bytes_at(self, offset: int, size: int, what: str) -> bytes:
        """A copy of bytes that the file must hold."""
        self.require(offset, size, what)
        return self.data[offset : offset + size]

    def text_at(self, table: Section, index: int, what: str) -> str:
        """A name from a table of names; it must end within the table."""
        if index >= table.size:
            raise self.fault(what, f"a place within {table.size} bytes", index)
        start = table.offset + index
        end = self.data.find(b"\0", start, min(table.offset + table.size, start + _LONGEST_NAME))
        if end < 0:
            raise self.fault(what, f"a name of at most {_LONGEST_NAME} bytes", "no end")
        return self.data[start:end].decode("utf-8", "replace")

    def named(self, name: str) -> list[Section]:
        """The sections of this name; there may be several."""
        return [section for section in self.sections if section.name == name]

    def _table(self) -> tuple[str, list[Section]]:
        ident = self.bytes_at(0, _HEADER.size, "its header")
        if ident[:4] != b"\x7fELF":
            raise self.fault("its first bytes", "7f 45 4c 46", ident[:4].hex(" "))
        if ident[4:6] != b"\x02\x01":
            raise self.fault("its class", "64 bit, little-endian", ident[4:6].hex(" "))
        fields = _HEADER.unpack(ident)
        machine, start, width, count, names = fields[1], fields[5], fields[10], fields[11], fields[12]
        told = MACHINES.get(machine, f"machine {machine}")
        if start == 0:
            return told, []
        if width != _SECTION.size:
            raise self.fault("the table of sections", f"entries of {_SECTION.size} bytes", width)
        if count == 0:  # more than 65,279: their number stands in the first entry
            count = _SECTION.unpack(self.bytes_at(start, width, "the table of sections"))[5]
        if count > _MOST_SECTIONS:
            raise self.fault("the table of sections", f"at most {_MOST_SECTIONS}", count)
        table = self.bytes_at(start, width * count, "the table of sections")
        raw = [_SECTION.unpack_from(table, width * index) for index in range(count)]
        plain = [
            Section("", kind, offset, 0 if kind == _SHT_NOBITS else size, link)
            for _name, kind, _flags, _address, offset, size, link, _info, _align, _entry in raw
        ]
        for section in plain:
            self.require(section.offset if section.size else 0, section.size, "a section")
        if names >= len(plain):
            raise self.fault("the section of names", f"one of {len(plain)}", names)
        return told, [
            section._replace(name=self.text_at(plain[names], entry[0], "a section's name"))
            for section, entry in zip(plain, raw, strict=True)
        ]


@contextmanager
def open_elf(path: str) -> Iterator[Image]:
    """The file, mapped for reading; an ElfError where it is none."""
    with open(path, "rb") as handle:
        if os.fstat(handle.fileno()).st_size < _HEADER.size:
            raise ElfError(
                f"{path} is no ELF file",
                expected=f"at least {_HEADER.size} bytes",
                found=f"{os.fstat(handle.fileno()).st_size} bytes",
                remedy="Build or fetch the runtime anew: the file is cut off or damaged",
            )
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Image(path, data)


def read_elf(path: str) -> Elf:
    """Machine, libraries, search paths and build id of the program or library ``path``."""
    with open_elf(path) as image:
        entries = _dynamic(image)

        def paths(tag: int) -> tuple[str, ...] | None:
            found = [text for kind, text in entries if kind == tag]
            return tuple(part for text in found for part in text.split(":")) if found else None

        sonames = [text for kind, text in entries if kind == _SONAME]
        return Elf(
            path=path,
            machine=image.machine,
            soname=sonames[0] if sonames else None,
            needed=tuple(text for kind, text in entries if kind == _NEEDED),
            rpath=paths(_RPATH),
            runpath=paths(_RUNPATH),
            build_id=_build_id(image),
        )


def _dynamic(image: Image) -> list[tuple[int, str]]:
    """(tag, text) of the entries whose value is a name."""
    found = []
    for section in image.sections:
        if section.kind != _SHT_DYNAMIC or not section.size:
            continue
        if section.link >= len(image.sections):
            raise image.fault("the dynamic section's names", f"one of {len(image.sections)} sections", section.link)
        names = image.sections[section.link]
        count = section.size // _DYNAMIC.size
        if count > _MOST_ENTRIES:
            raise image.fault("the dynamic section", f"at most {_MOST_ENTRIES} entries", count)
        for index in range(count):
            place = section.offset + index * _DYNAMIC.size
            tag, value = _DYNAMIC.unpack_from(image.data, place)
            if tag == 0:
                break
            if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
                found.append((tag, image.text_at(names, value, "a dynamic entry")))
    return found


def _build_id(image: Image) -> str:
    for section in image.sections:
        if section.kind != _SHT_NOTE:
            continue
        at, end = section.offset, section.offset + section.size
        while at + _NOTE.size <= end:
            name_size, size, kind = _NOTE.unpack_from(image.data, at)
            name_at = at + _NOTE.size
            value_at = name_at + -(-name_size // 4) * 4
            if value_at + size > end:
                raise image.fault("a note", f"{size} bytes at byte {value_at}", f"its section's end at byte {end}")
            if kind == _NT_GNU_BUILD_ID and image.data[name_at : name_at + name_size] == b"GNU\0":
                return image.data[value_at : value_at + size].hex()
            at = value_at + -(-size // 4) * 4
    return ""
