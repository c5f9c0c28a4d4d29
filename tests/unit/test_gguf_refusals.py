# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every reason to refuse a GGUF file, one named case each; and mutated files, which never hang, crash or overrun."""

from __future__ import annotations

import inspect
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _gguf_errors as errors
from ansible_collections.dank.llm_fleet.plugins.module_utils import _gguf_header
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_header import read_header
from ggufwriter import ARCH, T, gguf
from hypothesis import given, settings
from hypothesis import strategies as st

HUGE = 1 << 60
MODELS = Path(__file__).resolve().parents[1] / "fixtures" / "probe_model"


def key(raw: bytes, kind: int = w.U8, rest: bytes = b"\x01") -> bytes:
    """A pair by its raw parts."""
    return raw + struct.pack("<I", kind) + rest


def array(kind: int, count: int, rest: bytes = b"") -> bytes:
    """An array pair whose count need not be true."""
    return key(w.string("x.array"), w.ARRAY, struct.pack("<IQ", kind, count) + rest)


def swapped() -> bytes:
    """A sound file of a big-endian machine."""
    name = b"general.architecture"
    head = b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + struct.pack(">Q", len(name)) + name
    return head + struct.pack(">IQ", w.STRING, 5) + b"llama"


def row(name: str, data: bytes, kind: type[FleetError], says: str) -> Any:
    return pytest.param(data, kind, says, id=name)


REFUSALS = [
    row("empty", b"", errors.EmptyFile, "is empty"),
    row("one-byte", b"G", errors.HeaderTooShort, "found 1 bytes"),
    row("four-bytes", b"GGUF", errors.HeaderTooShort, "found 4 bytes"),
    row("start-cut", gguf()[:23], errors.HeaderTooShort, "first 24 bytes"),
    row("html", b"<!DOCTYPE html><html><title>Sign in</title>", errors.NotGguf, "HTML page"),
    row("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", errors.NotGguf, "LFS pointer"),
    row("ggml", b"lmgg" + bytes(40), errors.NotGguf, "GGML family"),
    row("ggjt", b"tjgg" + bytes(40), errors.NotGguf, "GGML family"),
    row("other-magic", b"PK\x03\x04" + bytes(40), errors.NotGguf, r"b'PK"),
    row("version-0", gguf(version=0), errors.UnsupportedVersion, "version 0"),
    row("version-1", gguf(version=1), errors.UnsupportedVersion, "version 1"),
    row("version-4", gguf(version=4), errors.UnsupportedVersion, "version 4"),
    row("endian", swapped(), errors.ForeignEndian, "big-endian"),
    row("key-count", gguf(pair_count=HUGE), errors.CountBeyondFile, "announces .* keys"),
    row("key-count-by-little", gguf(pair_count=40), errors.CountBeyondFile, "announces 40 keys"),
    row("key-count-one-more", gguf(pair_count=2), errors.TruncatedHeader, "ends inside key 1"),
    row("tensor-count", gguf(tensor_count=2**64 - 1), errors.CountBeyondFile, "announces .* tensors"),
    row("tensor-count-one-more", gguf(tensors=[T("a")], tensor_count=2, data=False), errors.TruncatedHeader, "sor 1"),
    row("key-limit", gguf([ARCH, bytes(14 * 65536)], pair_count=65537), errors.LimitExceeded, "65537 keys"),
    row("tensor-limit", gguf([ARCH, bytes(25 << 20)], tensor_count=(1 << 20) + 1), errors.LimitExceeded, "tensors"),
    row("key-length", gguf([ARCH, w.string("x", HUGE)]), errors.LengthBeyondFile, "the name of key 1"),
    row("key-too-long", gguf([ARCH, ("k" * 65537, w.U8, 1)]), errors.LimitExceeded, "key 1 is too long"),
    row("key-empty", gguf([ARCH, ("", w.U8, 1)]), errors.EmptyKey, "key 1 of 2 is empty"),
    row("key-twice", gguf([ARCH, ("x", w.U8, 1), ("x", w.U8, 1)]), errors.DuplicateKey, "'x' stands twice"),
    # Shown, the first would be the second: four characters of one key, one byte of another.
    row(
        "key-no-text", gguf([ARCH, (b"\\xff", w.U8, 2), (b"\xff", w.U8, 1)]), errors.KeyNotText, "key 2 of 3 is no text"
    ),
    row("key-half-a-letter", gguf([ARCH, (b"x\xc3", w.U8, 1)]), errors.KeyNotText, r"expected UTF-8; found b'x\\xc3'"),
    row("key-surrogate", gguf([ARCH, (b"\xed\xa0\x80", w.U8, 1)]), errors.KeyNotText, "no text"),
    row("architecture-twice", gguf([ARCH, ARCH]), errors.DuplicateKey, "'general.architecture' stands twice"),
    row("string-length", gguf([key(w.string("x"), 8, w.string("y", HUGE)), ARCH]), errors.LengthBeyondFile, "of 'x'"),
    row("string-length-max", gguf([key(w.string("x"), 8, w.string("", 2**64 - 1))]), errors.LengthBeyondFile, "of 'x'"),
    row("array-length", gguf([ARCH, array(w.U8, HUGE)]), errors.LengthBeyondFile, "of .* elements"),
    row("array-length-max", gguf([ARCH, array(w.U64, 2**64 - 1)]), errors.LengthBeyondFile, "of .* elements"),
    row("array-by-one", gguf([ARCH, array(w.U16, 5, bytes(9))]), errors.LengthBeyondFile, "at most 4, the room"),
    row("strings-length", gguf([ARCH, array(w.STRING, HUGE)]), errors.LengthBeyondFile, "of .* elements"),
    row(
        "strings-element",
        gguf([ARCH, array(w.STRING, 2, w.string("a") + w.string("b", HUGE))]),
        errors.LengthBeyondFile,
        "a string of the value of 'x.array'",
    ),
    row("strings-cut", gguf([ARCH, array(w.STRING, 3, w.string("a" * 20) * 2)]), errors.TruncatedHeader, "'x.array'"),
    row("value-type", gguf([ARCH, key(w.string("x"), 13)]), errors.UnknownValueType, "found 13"),
    row("value-type-max", gguf([ARCH, key(w.string("x"), 2**32 - 1)]), errors.UnknownValueType, "unknown type"),
    row("element-type", gguf([ARCH, array(13, 0)]), errors.UnknownValueType, "array of an unknown type"),
    row("nested", gguf([ARCH, array(w.ARRAY, 1, bytes(12))]), errors.NestedArray, "array of arrays"),
    row("alignment-0", gguf([ARCH, ("general.alignment", w.U32, 0)]), errors.BadAlignment, "found 0"),
    row("alignment-48", gguf([ARCH, ("general.alignment", w.U32, 48)]), errors.BadAlignment, "found 48"),
    row("alignment-u64", gguf([ARCH, ("general.alignment", w.U64, 32)]), errors.BadAlignment, "found u64"),
    row("alignment-i32", gguf([ARCH, ("general.alignment", w.I32, 32)]), errors.BadAlignment, "found i32"),
    row("alignment-text", gguf([ARCH, ("general.alignment", w.STRING, "32")]), errors.BadAlignment, "found string"),
    row("five-dims", gguf(tensors=[T("a", (1,) * 5)]), errors.TooManyDimensions, "has 5 dimensions"),
    row("many-dims", gguf(tensors=[T("a", dim_count=2**32 - 1)]), errors.TooManyDimensions, "4294967295"),
    row("dim-zero", gguf(tensors=[T("a", (32, 0))]), errors.BadDimension, r"found \(32, 0\)"),
    row("dim-negative", gguf(tensors=[T("a", (32, -1), nbytes=0)]), errors.BadDimension, r"\(32, -1\)"),
    row("dims-overflow", gguf(tensors=[T("a", (1 << 31, 1 << 32), nbytes=0)]), errors.BadDimension, "too many elem"),
    row("dims-wrap", gguf(tensors=[T("a", (1 << 32, 1 << 32), nbytes=0)]), errors.BadDimension, "too many elements"),
    row("bytes-overflow", gguf(tensors=[T("a", (1 << 62,), nbytes=0)]), errors.BadDimension, "too many bytes"),
    row("type-negative", gguf(tensors=[T("a", kind=-1, nbytes=0)]), errors.UnknownTensorType, "found -1"),
    *(
        row(
            f"type-removed-{kind}",
            gguf(tensors=[T("a", kind=kind, nbytes=32), T("b"), T("c", kind=kind, nbytes=32)]),
            errors.RemovedTensorType,
            rf"2 of type {kind} \(",
        )
        for kind in (4, 5, 31, 32, 33, 36, 37, 38)
    ),
    row("block", gguf(tensors=[T("a", (33,), 8, nbytes=34)]), errors.PartialBlock, "multiple of 32 elements; found 33"),
    row("block-256", gguf(tensors=[T("a", (32, 8), 12, nbytes=144)]), errors.PartialBlock, "q4_K does not divide"),
    row("tensor-name-64", gguf(tensors=[T("n" * 64)]), errors.LongTensorName, "found 64 bytes"),
    row(
        "tensor-name-length",
        gguf(tensor_count=1) + w.string("a", HUGE) + bytes(64),
        errors.LengthBeyondFile,
        "the name of tensor 0",
    ),
    row("tensor-twice", gguf(tensors=[T("a"), T("b"), T("a")]), errors.DuplicateTensor, "'a' stands twice"),
    row("unaligned", gguf(tensors=[T("a"), T("b", offset=257)]), errors.UnalignedOffset, "multiple of 32; found 257"),
    row("overlap", gguf(tensors=[T("a"), T("b", offset=224)]), errors.OverlappingTensors, "256; found offset 224"),
    row("overlap-all", gguf(tensors=[T("a"), T("b", offset=0)]), errors.OverlappingTensors, "'b' overlaps"),
    row("gap", gguf(tensors=[T("a"), T("b", offset=288)]), errors.GapInData, "256; found offset 288"),
    row("gap-first", gguf(tensors=[T("a", offset=32)]), errors.GapInData, "offset 0; found offset 32"),
    row(
        "overlap-vendor",
        gguf(tensors=[T("a"), T("b", kind=141, nbytes=32), T("c", offset=256)]),
        errors.OverlappingTensors,
        "'c' lies on 'b'",
    ),
    row("data-cut", gguf(tensors=[T("a")])[:-1], errors.DataBeyondFile, "ends before its tensors do"),
    row("data-absent", gguf(tensors=[T("a")])[:-256], errors.DataBeyondFile, "'a' is the last"),
    row("data-far", gguf(tensors=[T("a", (1 << 40,), nbytes=0)]), errors.DataBeyondFile, "'a' is the last"),
    row("data-absent-vendor", gguf(tensors=[T("a", kind=141, nbytes=0)]), errors.DataBeyondFile, "'a' is the last"),
    row("architecture-missing", gguf([("x", w.U8, 1)]), errors.ArchitectureFault, "found none"),
    row("architecture-number", gguf([("general.architecture", w.U32, 7)]), errors.ArchitectureFault, "found 7"),
    row("architecture-empty", gguf([("general.architecture", w.STRING, "")]), errors.ArchitectureFault, "found ''"),
    row(
        "architecture-array",
        gguf([("general.architecture", w.ARRAY, (w.STRING, ["llama"]))]),
        errors.ArchitectureFault,
        "as a string",
    ),
]


def read(folder: Path, data: bytes, **options: Any) -> Gguf:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return read_gguf(str(path), **options)


@pytest.mark.parametrize(("data", "kind", "says"), REFUSALS)
def test_refusal(tmp_path: Path, data: bytes, kind: type[FleetError], says: str) -> None:
    with pytest.raises(FleetError, match=says) as caught:
        read(tmp_path, data)
    assert type(caught.value) is kind
    assert caught.value.what.startswith(str(tmp_path / "m.gguf")), "the message names the file"
    assert caught.value.remedy


@pytest.mark.parametrize("keys", [None, (), ["x.words", "x.heads"]])
def test_truncation_anywhere(tmp_path: Path, keys: list[str] | None) -> None:
    """Cut after any byte of the header: never an answer, never anything but a refusal."""
    pairs = [
        ARCH,
        ("x.number", w.U64, 7),
        ("x.text", w.STRING, "text"),
        ("x.heads", w.ARRAY, (w.U32, [1, 2])),
        ("x.words", w.ARRAY, (w.STRING, ["a", "bb"])),
    ]
    data = gguf(pairs, [T("a"), T("b", (32,), 8)])
    for length in range(len(data) - 30):  # the last tensor's padding is no loss
        with pytest.raises(errors.GgufError):
            read(tmp_path, data[:length], keys=keys)
    assert read(tmp_path, data, keys=keys).tensor_count == 2


class Memory:
    """A source that fails the test on any read beyond its bytes, and counts what is read."""

    name = "memory"
    windows = (4096, 65536)

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.served = data, len(data), 0

    def read(self, offset: int, length: int) -> bytes:
        assert offset >= 0 and length > 0 and offset + length <= self.size, "a read beyond the file"
        self.served += length
        return self.data[offset : offset + length]


def parse(data: bytes, keys: list[str] | None = None) -> bool:
    """Whether the header is sound; any exception but a refusal goes through. No byte is read twice."""
    source = Memory(data)
    try:
        read_header(source, keys=keys, tensors=True, file_bytes=len(data))
    except errors.GgufError:
        return False
    finally:
        assert source.served <= source.size
    return True


def test_limits_of_strings_and_header() -> None:
    class Sparse(Memory):
        """A header with a very long part of zeros in its middle."""

        def __init__(self, head: bytes, zeros: int, tail: bytes = b"") -> None:
            super().__init__(head)
            self.tail, self.size = tail, len(head) + zeros + len(tail)

        def read(self, offset: int, length: int) -> bytes:
            assert length < 2 << 20, "a length that nobody checked"
            tail_start = self.size - len(self.tail)
            if offset >= tail_start:
                return self.tail[offset - tail_start :][:length]
            return self.data[offset : offset + length].ljust(length, b"\0")

    def refused(source: Memory, keys: list[str]) -> FleetError:
        with pytest.raises(errors.LimitExceeded) as caught:
            read_header(source, keys=keys, tensors=True, file_bytes=source.size)
        return caught.value

    long = gguf([ARCH, key(w.string("x"), w.STRING, struct.pack("<Q", (64 << 20) + 1))])
    for keys in ([], ["x"]):
        assert "'x' is too long" in refused(Sparse(long, 65 << 20), keys).message
    many = gguf([ARCH, array(w.STRING, (1 << 24) + 1)])
    assert "16777217 elements" in refused(Sparse(many, 200 << 20), []).message
    numbers = gguf([ARCH, array(w.U8, (1 << 24) + 1)])
    assert "16777217 elements" in refused(Sparse(numbers, 200 << 20), ["x.array"]).message
    # Stepped over, a long array is no fault, until the header as a whole is beyond all measure.
    tail = w.pair("y", w.U8, 1)
    for length, sound in ((200 << 20, True), (256 << 20, False)):
        head = gguf([ARCH, array(w.U8, length)], pair_count=3)
        source = Sparse(head, length, tail)
        if sound:
            assert read_header(source, keys=["y"], tensors=True, file_bytes=source.size).metadata["y"] == 1
        else:
            assert "beyond all measure" in refused(source, ["y"]).message


def test_every_class_of_refusal_has_its_case_and_its_remedy() -> None:
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.GgufError)}
    assert {kind.__name__ for kind in classes} == set(errors.__all__)
    here = {case.values[1] for case in REFUSALS}
    elsewhere = {  # test_gguf_split.py, test_gguf_remote.py
        errors.GgufError,
        *(errors.NotFirstShard, errors.ShardMissing, errors.ShardName, errors.ShardsDisagree),
        *(errors.RangesUnsupported, errors.ChangedWhileRead),
    }
    assert classes == here | elsewhere and not here & elsewhere
    assert all(kind.way_out and kind.__doc__ for kind in classes)


def test_a_small_file_never_costs_much(tmp_path: Path) -> None:
    """Counts of up to 2^64 in files of under 200 bytes: known to hang other readers."""
    started = time.process_time()
    tracemalloc.start()
    try:
        for count in (2**16, 2**24, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1):
            for data in (
                gguf(pair_count=count),
                gguf(tensor_count=count),
                *(gguf([ARCH, array(kind, count)]) for kind in (w.U8, w.BOOL, w.STRING, w.F64)),
                gguf([ARCH, w.string("x", count)]),
                gguf([ARCH, key(w.string("x"), w.STRING, w.string("", count))]),
                gguf([ARCH, array(w.STRING, 1, struct.pack("<Q", count))]),
                gguf(tensor_count=1) + w.string("a", count) + bytes(30),
            ):
                for keys in (None, ["x", "x.array"]):
                    with pytest.raises(errors.GgufError):
                        read(tmp_path, data, keys=keys)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert time.process_time() - started < 10


def test_memory_is_bounded_by_the_bytes(tmp_path: Path) -> None:
    """The worst that 1 MB can hold: tensors, keys or asked strings as short as they can be."""
    count = 1_000_000
    worst = [
        gguf(tensors=[T(f"{number:x}", (1,)) for number in range(count // 40)], data=False),
        gguf([ARCH, *((f"{number:x}", w.U8, 1) for number in range(65535))]),
        gguf([ARCH, array(w.STRING, count // 8, bytes(count))]),
        gguf([ARCH, array(w.U8, count, os.urandom(count))]),
    ]
    for data in worst:
        tracemalloc.start()
        try:
            parse(data, ["x.array"])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 24 * len(data)


SEEDS = [
    gguf(
        [
            ARCH,
            ("llama.block_count", w.U32, 4),
            ("general.alignment", w.U32, 32),
            ("x.words", w.ARRAY, (w.STRING, ["a", "bb", "ccc"])),
            ("x.heads", w.ARRAY, (w.U32, [8, 8, 0])),
            ("x.text", w.STRING, "some text"),
        ],
        [T("a", (256, 2), 12), T("b", (32,), 8), T("c", kind=141, nbytes=64), T("d", (3, 3))],
    ),
    gguf([*w.vocabulary(20, 5)], [T("a")], version=2),
    w.shards([[T("a")], [T("b")]])[0],
]
NASTY = [0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 48, 63, 64, 141, 255, 256, 65535, 1 << 31, (1 << 32) - 1, HUGE, (1 << 64) - 1]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound file with one to four faults: a number overwritten, bytes flipped, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 5)):
            case 0:
                data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(NASTY)))
            case 1:
                data[at : at + 4] = struct.pack("<I", draw(st.sampled_from(NASTY)) & 0xFFFFFFFF)
            case 2:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 3:
                del data[at : at + draw(st.integers(1, 16))]
            case 4:
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case _:
                data[at:] = b"" if draw(st.booleans()) else data[at : at + 32] * 2
    return bytes(data)


@settings(max_examples=8500, derandomize=True, database=None, deadline=5000)
@given(data=mutated(), asked=st.booleans())
def test_mutated_files_are_read_or_refused(data: bytes, asked: bool) -> None:
    parse(data, ["x.words", "x.heads", "tokenizer.ggml.tokens"] if asked else None)


@settings(max_examples=1500, derandomize=True, database=None, deadline=5000)
@given(tail=st.binary(max_size=200), counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_noise_behind_a_sound_start_is_read_or_refused(tail: bytes, counts: tuple[int, int]) -> None:
    parse(b"GGUF" + struct.pack("<IQQ", 3, *counts) + tail)


def test_every_single_byte_of_a_real_header_may_be_wrong() -> None:
    data = (MODELS / "toy-lora-yes.gguf").read_bytes()
    whole = len(data)
    head = data[:4096]
    sound = 0
    for at in range(0, 1500, 3):
        spoilt = bytearray(head)
        spoilt[at] ^= 0xFF
        source = Memory(bytes(spoilt))
        try:
            read_header(source, keys=None, tensors=True, file_bytes=whole)
            sound += 1
        except errors.GgufError:
            pass
    assert 0 < sound < 450  # letters may change unseen, structure may not


def test_the_least_sizes_are_true() -> None:
    """The room that each key and tensor needs at least: one byte less and a sound file would be refused."""
    assert len(w.pair("k", w.U8, 1)) == _gguf_header._LEAST_KEY
    assert parse(gguf([("k", w.U8, 1)]))
    bare = gguf(tensors=[T("", (), 0)], data=False)
    assert len(bare) - len(gguf()) == _gguf_header._LEAST_TENSOR
