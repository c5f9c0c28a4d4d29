# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A toy that stands for an engine with its ROCm beside it: real programs and libraries, made-up device code.

The layout is the one that the reference host has: ``bin`` and ``lib`` with a search path of ``$ORIGIN/../lib``, device
code of two libraries in folders of fixed depth, fat binaries in the engine's own library, cmake's cache.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_flags import flags_of_schema

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++")
TINY = Path(__file__).parent.parent / "fixtures" / "tiny_engine"
RPATH = "-Wl,-rpath,$ORIGIN/../lib"
ARCH = "gfx1201"
FA_QUANTS = "q4_0-q4_0;q8_0-q8_0;f16-f16;bf16-bf16"
EXPECT = Expect(
    version="7",
    arch=ARCH,
    device_code=("rocblas/library", f"hipblaslt/library/{ARCH}"),
    cmake={"GGML_CUDA_FA_QUANTS": FA_QUANTS, "AMDGPU_TARGETS": ARCH},
)


def offload_bundle(archs: Sequence[str], size: int = 64) -> bytes:
    """A bundle as clang writes it: an empty entry for the host, and a code object for each card."""
    names = ["host-x86_64-unknown-linux--", *(f"hipv4-amdgcn-amd-amdhsa--{arch}" for arch in archs)]
    head = 24 + 8 + sum(24 + len(name) for name in names)
    out, at = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names)), -(-head // 64) * 64
    for number, name in enumerate(names):
        length = size if number else 0
        out += struct.pack("<QQQ", at, length, len(name)) + name.encode()
        at += length
    return out.ljust(at, b"\xee")


def packed_bundle(plain: bytes, version: int = 2, method: int = 0) -> bytes:
    """The same, compressed: with zlib (0) or zstd (1)."""
    body = zlib.compress(plain)
    if method == 1:
        body = subprocess.run(["zstd", "-q", "-c"], input=plain, check=True, capture_output=True).stdout
    sizes, hashed = {1: "<I", 2: "<II", 3: "<QQ"}[version], struct.pack("<Q", 0)
    head = 8 + struct.calcsize(sizes) + 8
    told = (len(plain),) if version == 1 else (head + len(body), len(plain))
    return b"CCOB" + struct.pack("<HH", version, method) + struct.pack(sizes, *told) + hashed + body


def fat_binary(entries: Sequence[tuple[int, int]], size: int = 32) -> bytes:
    """A container as nvcc writes it; entries are (kind, compute capability), of kind 2 for a cubin and 1 for PTX."""
    out = b""
    for kind, arch in entries:
        head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, size, 0, 0, 0, 0, arch)
        out += head.ljust(64, b"\0") + b"\xee" * size
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(out)) + out


def compiled(target: Path, source: str, *options: str, sections: Mapping[str, bytes] | None = None) -> Path:
    """A program or library from C++ ``source``, with sections of given bytes beside its own."""
    code = target.with_suffix(".cpp")
    text = source
    for number, (name, content) in enumerate((sections or {}).items()):
        blob = target.with_suffix(f".blob{number}")
        blob.write_bytes(content)
        text += f'\nasm(".section {name},\\"a\\"\\n.balign 16\\n.incbin \\"{blob}\\"\\n.previous\\n");\n'
    code.write_text(text)
    subprocess.run(["g++", "-O0", "-o", target, code, *options], check=True, capture_output=True)
    return target


def library(folder: Path, name: str, source: str, *options: str, sections: Mapping[str, bytes] | None = None) -> Path:
    """A shared library whose file name is its SONAME."""
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{name}", *options)
    made = compiled(folder / name.partition(".")[0], source, *flags, sections=sections)
    return made.rename(folder / name)


def toy_library(lib: Path, work: Path, archs: Sequence[str] = (ARCH,), rpath: str = RPATH) -> None:
    """The engine's own library: it holds the code objects and needs the toolkit's library."""
    work.mkdir(exist_ok=True)
    source = 'const char * toy_blas();\nconst char * tiny_version() { return *toy_blas() ? "7" : ""; }\n'
    sections = {".hip_fatbin": offload_bundle(archs)} if archs else {}
    made = library(work, "libtiny.so.1", source, str(lib / "libtoyblas.so.4"), rpath, sections=sections)
    shutil.copy2(made, lib / "libtiny.so.1")


def toy_server(
    root: Path, flags: Sequence[str] | None = None, device_code: str = "", options: Sequence[str] = ()
) -> None:
    """The program, from the stand-in that the tests of builds use too."""
    told = " ".join(flags_of_schema() if flags is None else flags)
    defined = [f'-DTINY_FLAGS="{told}"', f'-DTINY_DEVICE_CODE="{device_code}"']
    # The loader follows the chain; the linker need not.
    options = [str(root / "lib" / "libtiny.so.1"), RPATH, "-Wl,--allow-shlib-undefined", *options]
    target = root / "bin" / "llama-server"
    subprocess.run(["g++", "-O0", "-o", target, TINY / "main.cpp", *defined, *options], check=True, capture_output=True)


def toy_bundle(root: Path, work: Path) -> Path:
    """A sound one in ``root``."""
    lib = root / "lib"
    for folder in (root / "bin", lib / "rocblas" / "library", lib / "hipblaslt" / "library" / ARCH, work):
        folder.mkdir(parents=True, exist_ok=True)
    blas = library(work, "libtoyblas.so.4", 'const char * toy_blas() { return "x"; }\n')
    shutil.copy2(blas, lib / blas.name)
    toy_library(lib, work)
    toy_server(root)
    (lib / "rocblas" / "library" / "TensileLibrary.dat").write_bytes(b"made up")
    (lib / "rocblas" / "library" / f"TensileLibrary_lazy_{ARCH}.dat").write_bytes(b"made up")
    (lib / "hipblaslt" / "library" / ARCH / f"TensileLibrary_{ARCH}.co").write_bytes(b"made up")
    (root / "CMakeCache.txt").write_text(
        f"// made up\nGGML_CUDA_FA_QUANTS:STRING={FA_QUANTS}\nAMDGPU_TARGETS:UNINITIALIZED={ARCH}\n"
        "GGML_CUDA_FA_ALL_QUANTS:BOOL=OFF\n"
    )
    return root
