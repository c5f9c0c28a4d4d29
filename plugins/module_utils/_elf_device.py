# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cards a program or library holds code for: the code objects in its fat binaries.

AMD: ``.hip_fatbin`` holds offload bundles of clang, plain or compressed (clang's documentation, "Clang Offload
Bundler"). NVIDIA: ``.nv_fatbin`` holds containers of cubins and PTX, whose format is not published: its fields were
read off what nvcc 13.0 writes and are checked against each other, so that another format is refused, not misread.
"""

from __future__ import annotations

import mmap
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator

from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import ElfError, Image, open_elf

__all__ = ["device_archs", "object_archs"]

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_PACKED = b"CCOB"
_ENTRY = struct.Struct("<QQQ")
_MOST_ENTRIES = 1024
_MOST_BUNDLES = 1 << 16
_LONGEST_ID = 512
_MOST_UNPACKED = 4 << 30
_READ = 1 << 20
_CONTAINER = struct.Struct("<IHHQ")
_CONTAINER_MAGIC = 0xBA55ED50
_CUBIN = struct.Struct("<HHIQIIHHI")
_KINDS = {1: "compute", 2: "sm"}
_GFX = re.compile(r"gfx[0-9a-f]+(?:-[0-9a-z-]*generic)?")


def device_archs(path: str) -> set[str]:
    """``gfx1201`` and the like, ``sm_86`` for a cubin, ``compute_86`` for PTX; empty where there is no device code.

    Raises an ElfError for a fat binary that is cut off or of another format.
    """
    archs: set[str] = set()
    with open_elf(path) as image:
        for section in image.named(".hip_fatbin"):
            archs |= set(_bundles(image, section.offset, section.offset + section.size))
        for name in (".nv_fatbin", "__nv_relfatbin"):
            for section in image.named(name):
                archs |= set(_containers(image, section.offset, section.offset + section.size))
    return archs


# EF_AMDGPU_MACH, the lowest byte of e_flags (LLVM, "User Guide for AMDGPU Backend"); others are not judged.
_MACHS = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x36: "gfx1030", 0x3F: "gfx90a", 0x41: "gfx1100", 0x43: "gfx1150",
    0x44: "gfx1103", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x4A: "gfx1151", 0x4C: "gfx942",
    0x4E: "gfx1201",
}  # fmt: skip
_EM_AMDGPU, _MACHINE_AT, _FLAGS_AT = 224, 18, 48


class _Bare(Image):
    """A file of device code that is in no program: bundles are read of it as of a section."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path, self.data, self.machine, self.sections = path, data, "", []

    def fault(self, what: str, expected: object, found: object) -> ElfError:
        """The refusal of this file."""
        return ElfError(
            f"{self.path} is no sound device code: {what}",
            expected=expected,
            found=found,
            remedy="Copy the toolkit's folder of that name anew: the file is cut off or damaged",
        )


def object_archs(path: str) -> set[str]:
    """The cards of a file of device code as rocBLAS and hipBLASLt open it: an AMD code object, or offload bundles.

    Empty for any other file, as a table. Raises an ElfError for one that is cut off.
    """
    with open(path, "rb") as handle:
        head = handle.read(_FLAGS_AT + 4)
        if head[:4] == b"\x7fELF" and len(head) == _FLAGS_AT + 4:
            (machine,), (flags,) = (
                struct.unpack_from("<H", head, _MACHINE_AT),
                struct.unpack_from("<I", head, _FLAGS_AT),
            )
            arch = _MACHS.get(flags & 0xFF) if machine == _EM_AMDGPU else None
            return set() if arch is None else {arch}
        if not head.startswith((_BUNDLE, _PACKED)):
            return set()
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return set(_bundles(_Bare(path, data), 0, len(data)))


def _bundles(image: Image, start: int, end: int) -> Iterator[str]:
    """The cards of every bundle from ``start`` to ``end``; between bundles lies padding."""
    at, places = start, {_BUNDLE: start - 1, _PACKED: start - 1}
    for _ in range(_MOST_BUNDLES):
        for magic, place in places.items():
            if place < at:  # one that lies ahead is not searched again: a section may have thousands of the other kind
                found = image.data.find(magic, at, end)
                places[magic] = end if found < 0 else found
        plain, packed = places[_BUNDLE], places[_PACKED]
        if plain == packed == end:
            if at == start and end > start:
                raise image.fault("its .hip_fatbin section", "an offload bundle", f"{end - start} bytes without one")
            return
        if plain < packed:
            archs, at = _plain(image, image.data, plain, end, end)
        else:
            archs, at = _unpacked(image, packed, end)
        yield from archs
    raise image.fault("its .hip_fatbin section", f"at most {_MOST_BUNDLES} bundles", "more")


def _plain(image: Image, data: bytes | mmap.mmap, start: int, end: int, last_end: int) -> tuple[list[str], int]:
    """(cards, where the bundle ends) of the bundle at ``start``; its entries stand before ``end`` in ``data``, and what
    they tell of lies before ``last_end``."""
    archs: list[str] = []
    at = last = start + len(_BUNDLE) + 8
    if end < at:
        raise image.fault("an offload bundle", "its header", "its end")
    (count,) = struct.unpack_from("<Q", data, at - 8)
    if count > _MOST_ENTRIES:
        raise image.fault("an offload bundle", f"at most {_MOST_ENTRIES} entries", count)
    for _ in range(count):
        if at + _ENTRY.size > end:
            raise image.fault("an offload bundle", f"{count} entries", "its end")
        offset, size, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if length > _LONGEST_ID or at + length > end:
            raise image.fault("an offload bundle", f"an entry's name of at most {_LONGEST_ID} bytes", length)
        told = data[at : at + length].decode("ascii", "replace")
        at += length
        if start + offset + size > last_end:
            raise image.fault(f"the code object {told}", f"an end by byte {last_end}", f"byte {start + offset + size}")
        last = max(last, start + offset + size, at)
        if not told.startswith("host"):
            match = _GFX.search(told)
            if match is None:
                raise image.fault("an offload bundle", "the name of an AMD target", repr(told))
            archs.append(match[0])
    return archs, last


def _unpacked(image: Image, start: int, end: int) -> tuple[list[str], int]:
    """(cards, where it ends) of a compressed bundle; its entries stand at the beginning of what it unpacks to."""
    head = bytes(image.data[start : min(end, start + 32)])
    if len(head) < 8:
        raise image.fault("a compressed bundle", "its header", "its end")
    version, method = struct.unpack_from("<HH", head, 4)
    if version == 1 and len(head) >= 20:
        size, skip, length = end - start, 20, struct.unpack_from("<I", head, 8)[0]
    elif version == 2 and len(head) >= 24:
        (size, length), skip = struct.unpack_from("<II", head, 8), 24
    elif version == 3 and len(head) >= 32:
        (size, length), skip = struct.unpack_from("<QQ", head, 8), 32
    else:
        raise image.fault("a compressed bundle", "version 1 to 3", f"version {version}")
    if not skip <= size <= end - start:
        raise image.fault("a compressed bundle", f"at most {end - start} bytes", size)
    if length > _MOST_UNPACKED:
        raise image.fault("a compressed bundle", f"at most {_MOST_UNPACKED} bytes unpacked", length)
    packed = bytes(image.data[start + skip : start + size])
    opened = _begin_of(image, packed, method)
    if not opened.startswith(_BUNDLE):
        raise image.fault("a compressed bundle", "an offload bundle inside", opened[:24].hex(" ") or "nothing")
    archs, _last = _plain(image, opened, 0, len(opened), max(length, len(opened)))
    # Version 1 does not say where it ends: others may follow, so the search goes on behind its header.
    return archs, start + (skip if version == 1 else size)


def _begin_of(image: Image, packed: bytes, method: int) -> bytes:
    """The beginning, at most 1 MiB, of what ``packed`` unpacks to."""
    if method == 0:
        try:
            return zlib.decompressobj().decompress(packed, _READ)
        except zlib.error as exc:
            raise image.fault("a compressed bundle", "zlib data", exc) from exc
    if method != 1:
        raise image.fault("a compressed bundle", "zlib or zstd", f"method {method}")
    if shutil.which("zstd") is None:
        raise image.fault("a compressed bundle", "the program zstd, to read it", "not installed")
    with tempfile.TemporaryFile() as handle:
        handle.write(packed[:_READ])  # the entries stand in the first block, which is shorter
        handle.seek(0)
        with subprocess.Popen(
            ["zstd", "-q", "-d", "-c"], stdin=handle, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None
            opened = child.stdout.read(_READ)
            child.kill()
    return opened


def _containers(image: Image, start: int, end: int) -> Iterator[str]:
    """The cards of every fat binary from ``start`` to ``end``; they are aligned to 8 bytes, with zeros between."""
    at = start
    while at + _CONTAINER.size <= end:
        magic, version, skip, size = _CONTAINER.unpack_from(image.data, at)
        if magic == 0:
            at += 8
            continue
        if magic != _CONTAINER_MAGIC or version != 1 or skip != _CONTAINER.size:
            raise image.fault("its .nv_fatbin section", "a fat binary of version 1", f"{magic:#x} at byte {at}")
        last = at + skip + size
        if last > end:
            raise image.fault("a fat binary", f"an end by byte {end}", f"byte {last}")
        at += skip
        while at + _CUBIN.size <= last:
            kind, _v, width, length, _packed, _x, _minor, _major, arch = _CUBIN.unpack_from(image.data, at)
            if width < _CUBIN.size or at + width + length > last:
                raise image.fault("an entry of a fat binary", f"an end by byte {last}", f"byte {at + width + length}")
            if not 10 <= arch <= 999:
                raise image.fault("an entry of a fat binary", "a compute capability", arch)
            yield f"{_KINDS.get(kind, f'kind{kind}')}_{arch}"
            at += width + length
        at = last
