# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ELF reader against readelf and on damage, and the code objects that it finds."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import ElfError, read_elf
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf_device import _bundles, device_archs, object_archs
from hypothesis import given
from hypothesis import strategies as st
from toybundle import compiled, fat_binary, library, offload_bundle, packed_bundle

pytestmark = pytest.mark.skipif(not shutil.which("g++") or not shutil.which("readelf"), reason="g++, binutils")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf")


@pytest.fixture(scope="module")
def real(folder: Path) -> Path:
    """A library with everything that is read."""
    flags = (
        "-Wl,-rpath,$ORIGIN/../lib:/x",
        "-Wl,--disable-new-dtags",
        "-Wl,--build-id=sha1",
        "-lm",
        "-Wl,--no-as-needed",
    )
    return library(
        folder, "libreal.so.3", "int f() { return 1; }\n", *flags, sections={".hip_fatbin": offload_bundle(["gfx1201"])}
    )


def test_it_reads_what_readelf_reads(real: Path) -> None:
    told = read_elf(str(real))
    listing = subprocess.run(["readelf", "-d", "-W", real], check=True, capture_output=True, text=True).stdout
    assert told.soname == "libreal.so.3" and told.machine in ("x86_64", "aarch64")
    assert told.rpath == ("$ORIGIN/../lib", "/x") == told.search and told.runpath is None
    assert [f"[{name}]" in listing for name in told.needed] == [True] * listing.count("(NEEDED)")
    notes = subprocess.run(["readelf", "-n", real], check=True, capture_output=True, text=True).stdout
    assert len(told.build_id) == 40 and told.build_id in notes


def test_a_real_program_without_device_code() -> None:
    assert read_elf(sys.executable).needed
    assert device_archs(sys.executable) == set()


FATBINS = Path(__file__).parent.parent / "fixtures" / "fatbins"
ELSEWHERE = b"\0" * 4096


@pytest.mark.parametrize(
    ("section", "content", "archs"),
    [
        (".hip_fatbin", offload_bundle(["gfx1201"]), {"gfx1201"}),
        (".hip_fatbin", offload_bundle(["gfx1200", "gfx1201"]), {"gfx1200", "gfx1201"}),
        (".hip_fatbin", offload_bundle(["gfx90a:sramecc+:xnack-"]), {"gfx90a"}),
        (".hip_fatbin", offload_bundle(["gfx12-generic"]), {"gfx12-generic"}),
        (".hip_fatbin", offload_bundle(["gfx1201"]) + ELSEWHERE + offload_bundle(["gfx1100"]), {"gfx1201", "gfx1100"}),
        (".hip_fatbin", packed_bundle(offload_bundle(["gfx1201"]), 1), {"gfx1201"}),
        (
            ".hip_fatbin",
            packed_bundle(offload_bundle(["gfx1201"]), 1) + ELSEWHERE + packed_bundle(offload_bundle(["gfx1200"]), 1),
            {"gfx1201", "gfx1200"},
        ),
        (
            ".hip_fatbin",
            packed_bundle(offload_bundle(["gfx1201"])) + ELSEWHERE + packed_bundle(offload_bundle(["gfx1030"]), 3),
            {"gfx1201", "gfx1030"},
        ),
        (".nv_fatbin", fat_binary([(2, 86)]), {"sm_86"}),
        (
            ".nv_fatbin",
            fat_binary([(2, 86), (1, 86)]) + bytes(8) + fat_binary([(2, 120)]),
            {"sm_86", "compute_86", "sm_120"},
        ),
        ("__nv_relfatbin", fat_binary([(2, 86)]), {"sm_86"}),
    ],
)
def test_code_objects(tmp_path: Path, section: str, content: bytes, archs: set[str]) -> None:
    made = compiled(tmp_path / "program", "int main() {}\n", sections={section: content})
    assert device_archs(str(made)) == archs


@pytest.mark.skipif(not shutil.which("zstd"), reason="zstd")
@pytest.mark.parametrize(
    ("section", "names", "archs"),
    [
        (".nv_fatbin", ["nvcc-13.0-sm86-ptx-packed"], {"sm_86", "compute_86"}),
        (".nv_fatbin", ["nvcc-13.0-sm80"], {"sm_80"}),
        (".nv_fatbin", ["nvcc-13.0-sm80", "nvcc-13.0-sm86-ptx-packed"], {"sm_80", "sm_86", "compute_86"}),
        (".hip_fatbin", ["clang-21-gfx1201-packed"], {"gfx1201"}),
        (".hip_fatbin", ["clang-21-gfx1201-packed", "clang-21-gfx1200-packed"], {"gfx1201", "gfx1200"}),
    ],
)
def test_code_objects_as_compilers_write_them(tmp_path: Path, section: str, names: list[str], archs: set[str]) -> None:
    content = b"".join((FATBINS / f"{name}.bin").read_bytes() + bytes(64) for name in names)
    made = compiled(tmp_path / "program", "int main() {}\n", sections={section: content})
    assert device_archs(str(made)) == archs


@pytest.mark.skipif(not shutil.which("zstd"), reason="zstd")
def test_code_objects_packed_with_zstd(tmp_path: Path) -> None:
    plain = offload_bundle(["gfx1201"]) + random.Random(1).randbytes(3 << 20)
    made = compiled(tmp_path / "program", "int main() {}\n", sections={".hip_fatbin": packed_bundle(plain, 2, 1)})
    assert device_archs(str(made)) == {"gfx1201"}


class Searched(bytes):
    """Bytes that count how many of them were searched."""

    count = 0

    def find(self, *given: Any) -> int:
        place = super().find(*given)
        Searched.count += (given[2] if place < 0 else place) - given[1]
        return place


def code_object(flags: int, machine: int = 224) -> bytes:
    """The head of an ELF file for a card, as ``readelf -h`` shows it."""
    head = b"\x7fELF\x02\x01\x01\x40".ljust(16, b"\0") + struct.pack("<HHIQQQI", 3, machine, 1, 0, 0, 0, flags)
    return head.ljust(64, b"\0")


@pytest.mark.parametrize(
    ("content", "archs"),
    [
        (code_object(0x54E), {"gfx1201"}),  # higher bits are features (xnack, sramecc)
        (code_object(0x48), {"gfx1200"}),
        (code_object(0xFE), set()),  # a card that is not known here
        (code_object(0x4E, machine=62), set()),
        (offload_bundle(["gfx1200", "gfx1201"]), {"gfx1200", "gfx1201"}),
        (packed_bundle(offload_bundle(["gfx1201"])), {"gfx1201"}),
        (b"\x82\xa9solutions, a table for gfx1200", set()),
        (b"made up", set()),
        (b"", set()),
        (b"\x7fELF", set()),
    ],
)
def test_files_of_device_code(tmp_path: Path, content: bytes, archs: set[str]) -> None:
    (tmp_path / "x.co").write_bytes(content)
    assert object_archs(str(tmp_path / "x.co")) == archs


def test_a_file_of_device_code_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.co").write_bytes(packed_bundle(offload_bundle(["gfx1201"]))[:-20])
    with pytest.raises(ElfError, match=r"x\.co is no sound device code: a compressed bundle"):
        object_archs(str(tmp_path / "x.co"))


def test_many_bundles_of_one_kind_are_not_searched_again_for_the_other() -> None:
    """rocBLAS's library has thousands of plain ones in 1 GB."""
    data = Searched((offload_bundle(["gfx1201"], 2000) + bytes(64)) * 300)
    Searched.count = 0
    image: Any = SimpleNamespace(data=data)
    assert list(_bundles(image, 0, len(data))) == ["gfx1201"] * 300
    assert Searched.count < 2 * len(data)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def at(data: bytes, place: int, value: int) -> bytes:
    return data[:place] + struct.pack("<Q", value) + data[place + 8 :]


BUNDLE, FAT = offload_bundle(["gfx1201"]), fat_binary([(2, 86)])


@pytest.mark.parametrize(
    ("section", "content", "found"),
    [
        (".hip_fatbin", cut(BUNDLE), "an end by byte|its end"),
        (".hip_fatbin", at(BUNDLE, 24, 1 << 40), "at most 1024 entries"),
        (".hip_fatbin", at(BUNDLE, 48, 1 << 40), "at most 512"),
        (".hip_fatbin", BUNDLE.replace(b"gfx1201", b"unknown"), "AMD target"),
        (".hip_fatbin", b"no bundle at all", "an offload bundle"),
        (".hip_fatbin", packed_bundle(BUNDLE)[:40], "bytes|zlib"),
        (".hip_fatbin", packed_bundle(BUNDLE).replace(b"CCOB\2", b"CCOB\7"), "version 1 to 3"),
        (".hip_fatbin", packed_bundle(b"x" * 100), "an offload bundle inside"),
        (".nv_fatbin", cut(FAT), "an end by byte"),
        (".nv_fatbin", b"\x01" + FAT[1:], "a fat binary of version 1"),
        (".nv_fatbin", fat_binary([(2, 5000)]), "a compute capability"),
    ],
)
def test_unsound_code_objects_are_refused(tmp_path: Path, section: str, content: bytes, found: str) -> None:
    made = compiled(tmp_path / "program", "int main() {}\n", sections={section: content})
    with pytest.raises(ElfError, match=found) as fault:
        device_archs(str(made))
    assert str(made) in fault.value.message


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(60), b"\x7fELF\1\1" + bytes(60)]
)
def test_what_is_no_elf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ElfError, match="file"):
        read_elf(str(file))


@given(st.data())
def test_damage_is_refused_or_read_never_worse(real: Path, folder: Path, data: st.DataObject) -> None:
    raw = bytearray(real.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # the header and the table of sections, which lead everywhere else
        table = int.from_bytes(raw[40:48], "little")
        place = data.draw(st.one_of(st.integers(0, 63), st.integers(min(table, len(raw) - 1), len(raw) - 1)))
        raw[place % len(raw)] = data.draw(st.integers(0, 255))
    file = folder / "damaged"
    file.write_bytes(raw[: data.draw(st.integers(1, len(raw)))] if data.draw(st.booleans()) else raw)
    for ask in (read_elf, device_archs):
        try:
            ask(str(file))
        except ElfError as fault:
            assert "damaged" in fault.message
