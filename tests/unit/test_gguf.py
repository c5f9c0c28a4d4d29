# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Headers of sound files: what is read, what is passed over, and what it costs."""

from __future__ import annotations

import json
import math
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _gguf_errors as errors
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import (
    TENSOR_TYPES,
    ArrayInfo,
    Gguf,
    read_gguf,
    require_known_types,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_facts import facts
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_types import REMOVED_TYPES, type_label
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError
from ansible_collections.dank.llm_fleet.plugins.modules import gguf_info
from ggufwriter import T, gguf

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MODELS = FIXTURES / "probe_model"
GOLDEN = json.loads((FIXTURES / "golden" / "ledgers.json").read_text())["models"]

ALL_KINDS: list[tuple[str, int, Any]] = [
    ("general.architecture", w.STRING, "llama"),
    ("general.name", w.STRING, "Häubchen"),
    ("general.file_type", w.U32, 7),
    ("llama.block_count", w.U32, 5),
    ("llama.nextn_predict_layers", w.U32, 1),
    ("x.u8", w.U8, 255),
    ("x.i8", w.I8, -128),
    ("x.u16", w.U16, 65535),
    ("x.i16", w.I16, -32768),
    ("x.i32", w.I32, -(2**31)),
    ("x.f32", w.F32, 0.5),
    ("x.true", w.BOOL, 1),
    ("x.false", w.BOOL, 0),
    ("x.u64", w.U64, 2**64 - 1),
    ("x.i64", w.I64, -(2**63)),
    ("x.f64", w.F64, 1e300),
    ("x.empty", w.STRING, ""),
    ("x.pattern", w.ARRAY, (w.BOOL, [1, 0, 1])),
    ("x.heads", w.ARRAY, (w.U32, [8, 0, 8])),
    ("x.none", w.ARRAY, (w.I32, [])),
    ("x.words", w.ARRAY, (w.STRING, ["a", "", "ccc"])),
]
ALL_VALUES = {
    "general.architecture": "llama",
    "general.name": "Häubchen",
    "general.file_type": 7,
    "llama.block_count": 5,
    "llama.nextn_predict_layers": 1,
    "x.u8": 255,
    "x.i8": -128,
    "x.u16": 65535,
    "x.i16": -32768,
    "x.i32": -(2**31),
    "x.f32": 0.5,
    "x.true": True,
    "x.false": False,
    "x.u64": 2**64 - 1,
    "x.i64": -(2**63),
    "x.f64": 1e300,
    "x.empty": "",
    "x.pattern": [True, False, True],
    "x.heads": [8, 0, 8],
    "x.none": [],
    "x.words": ArrayInfo("string", 3),
}


def read(folder: Path, data: bytes, **options: Any) -> Gguf:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return read_gguf(str(path), **options)


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(tmp_path: Path, version: int) -> None:
    found = read(tmp_path, gguf(ALL_KINDS, [T("a")], version=version))
    assert found.metadata == ALL_VALUES
    assert {key: type(value) for key, value in found.metadata.items()} == {
        key: type(value) for key, value in ALL_VALUES.items()
    }
    assert (found.version, found.architecture, found.name, found.file_type) == (version, "llama", "Häubchen", 7)
    assert (found.block_count, found.nextn_predict_layers, found.get("block_count")) == (5, 1, 5)
    assert found.get("nothing") is None and found.get("nothing", 3) == 3


def test_only_what_is_asked(tmp_path: Path) -> None:
    found = read(tmp_path, gguf(ALL_KINDS), keys=["x.words", "x.u8", "not.there"])
    always = ("general.architecture", "general.name", "general.file_type", "llama.block_count")
    assert found.metadata == {
        **{key: ALL_VALUES[key] for key in (*always, "llama.nextn_predict_layers", "x.u8")},
        "x.words": ["a", "", "ccc"],
    }


def test_one_array_whole_beside_all_keys(tmp_path: Path) -> None:
    key = "tokenizer.ggml.tokens"
    data = gguf(w.vocabulary(50, 10), [T("a")])
    found = read(tmp_path, data, whole=[key])
    assert found.metadata == {**read(tmp_path, data).metadata, key: [f"token{number}" for number in range(50)]}
    assert found.metadata["tokenizer.ggml.merges"] == ArrayInfo("string", 10)


def test_long_arrays_are_passed_over_unless_asked(tmp_path: Path) -> None:
    data = gguf([*w.vocabulary(5000, 10), ("x.short", w.ARRAY, (w.U8, [1] * 4096))], [T("a")])
    found = read(tmp_path, data)
    assert found.metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 5000)
    assert found.metadata["tokenizer.ggml.scores"] == ArrayInfo("f32", 5000)
    assert found.metadata["tokenizer.ggml.token_type"] == ArrayInfo("i32", 5000)
    assert found.metadata["x.short"] == [1] * 4096
    found = read(tmp_path, data, keys=["tokenizer.ggml.tokens", "tokenizer.ggml.scores"])
    assert found.metadata["tokenizer.ggml.tokens"] == [f"token{number}" for number in range(5000)]
    assert found.metadata["tokenizer.ggml.scores"][4999] == -4999.0
    assert "tokenizer.ggml.merges" not in found.metadata


def test_the_table_of_tensors(tmp_path: Path) -> None:
    table = [T("a", (256, 3), 12), T("scalar", (), 0), T("c", (64, 2, 3, 5), 8), T("d", (7,), 1)]
    found = read(tmp_path, gguf(tensors=table))
    assert [(t.name, t.dims, t.type_name, t.offset, t.nbytes, t.exact, t.shard) for t in found.tensors] == [
        ("a", (256, 3), "q4_K", 0, 432, True, 0),
        ("scalar", (1,), "f32", 448, 4, True, 0),
        ("c", (64, 2, 3, 5), "q8_0", 480, 2040, True, 0),
        ("d", (7,), "f16", 2528, 14, True, 0),
    ]
    assert found.tensors[2].elements == 1920
    assert found.tensor_count == 4 and found.tensor_bytes == 432 + 4 + 2040 + 14
    assert found.types == {"q4_K": 1, "f32": 1, "q8_0": 1, "f16": 1} and not found.unknown_types
    assert found.data_offset % 32 == 0 and found.file_bytes == found.data_offset + 2560


def test_without_tensors_their_table_is_not_read(tmp_path: Path) -> None:
    found = read(tmp_path, gguf(tensors=[T("a")])[:-70], tensors=False)
    assert (found.tensors, found.tensor_count, found.data_offset) == ((), 1, 0)


@pytest.mark.parametrize("alignment", [1, 2, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    pairs = [w.ARCH, ("general.alignment", w.U32, alignment)]
    found = read(tmp_path, gguf(pairs, [T("a", (3,)), T("b", (3,))], alignment=alignment))
    assert found.alignment == alignment and found.data_offset % alignment == 0
    assert [tensor.offset for tensor in found.tensors] == [0, w.padded(12, alignment)]


def test_the_last_tensor_may_lack_its_padding(tmp_path: Path) -> None:
    data = gguf(tensors=[T("a", (3,))])
    assert read(tmp_path, data[:-20]).tensor_bytes == 12
    with pytest.raises(errors.DataBeyondFile):
        read(tmp_path, data[:-21])


def test_no_tensors_at_all(tmp_path: Path) -> None:
    data = gguf()
    assert read(tmp_path, data).data_offset == len(data)


def test_text_that_is_no_utf8_stays_readable(tmp_path: Path) -> None:
    # But for a key, which is refused (see test_gguf_refusals).
    found = read(tmp_path, gguf([w.ARCH, ("k", w.STRING, b"v\xfe")], [T(b"t\xfd")]))
    assert found.metadata["k"] == "v\\xfe" and found.tensors[0].name == "t\\xfd"


def test_vendor_types_are_reported_and_measured(tmp_path: Path) -> None:
    table = [
        T("a", kind=141, nbytes=100),
        T("b"),
        T("c", kind=142, nbytes=64),
        T("d", kind=142, nbytes=32),
    ]
    found = read(tmp_path, gguf(tensors=table))
    assert [(t.name, t.type_name, t.nbytes, t.exact) for t in found.tensors] == [
        ("a", None, 128, False),
        ("b", "f32", 256, True),
        ("c", None, 64, False),
        ("d", None, 32, False),
    ]
    assert found.unknown_types == {141: 1, 142: 2}
    assert found.types == {"unknown (142)": 2, "unknown (141)": 1, "f32": 1}
    with pytest.raises(errors.UnknownTensorType, match=r"1 of type 141, 2 of type 142") as caught:
        require_known_types("m.gguf", found)
    assert caught.value.remedy
    shown = facts(found, tensors=True)
    assert shown["exact"] is False and shown["unknown_types"] == {"141": 1, "142": 2}
    assert [tensor["exact"] for tensor in shown["tensors"]] == [False, True, False, False]


def test_known_types_pass(tmp_path: Path) -> None:
    require_known_types("m.gguf", read(tmp_path, gguf(tensors=[T("a")])))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        # The engine's own figures for bits per weight, as its quantizer prints them.
        *[("f32", 32), ("f16", 16), ("bf16", 16), ("q8_0", 8.5), ("q4_0", 4.5), ("q4_1", 5), ("q5_0", 5.5)],
        *[("q5_1", 6), ("q2_K", 2.625), ("q3_K", 3.4375), ("q4_K", 4.5), ("q5_K", 5.5), ("q6_K", 6.5625)],
        *[("iq1_s", 1.5625), ("iq1_m", 1.75), ("iq2_xxs", 2.0625), ("iq2_xs", 2.3125), ("iq2_s", 2.5625)],
        *[("iq3_xxs", 3.0625), ("iq3_s", 3.4375), ("iq4_nl", 4.5), ("iq4_xs", 4.25), ("tq1_0", 1.6875)],
        *[("tq2_0", 2.0625), ("mxfp4", 4.25), ("nvfp4", 4.5), ("q1_0", 1.125), ("q2_0", 2.25), ("q8_1", 9)],
        *[("q8_K", 9.125), ("i8", 8), ("i16", 16), ("i32", 32), ("i64", 64), ("f64", 64)],
    ],
)
def test_bits_per_weight(name: str, bits: float) -> None:
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == name)
    assert kind.block_bytes * 8 / kind.block == bits


def test_every_id_has_one_meaning() -> None:
    assert len(TENSOR_TYPES) == 35 and set(TENSOR_TYPES) | set(REMOVED_TYPES) == set(range(43))
    assert not set(TENSOR_TYPES) & set(REMOVED_TYPES)
    assert (type_label(8), type_label(141)) == ("q8_0", "unknown (141)")


@pytest.mark.parametrize(
    ("name", "architecture", "count"),
    [("toy.gguf", "qwen3", 46), ("toy-mmproj.gguf", "clip", 23), ("toy-lora-yes.gguf", "qwen3", 24)],
)
def test_files_that_another_writer_made(name: str, architecture: str, count: int) -> None:
    path = MODELS / name
    found = read_gguf(str(path))
    last = found.tensors[-1]
    assert (found.architecture, found.tensor_count) == (architecture, count)
    assert path.stat().st_size - 32 < found.data_offset + last.offset + last.nbytes <= path.stat().st_size
    assert found.file_bytes == path.stat().st_size


@pytest.mark.parametrize("model", GOLDEN)
def test_golden_headers(model: str) -> None:
    whole = GOLDEN[model]["file_bytes"]
    path = FIXTURES / "golden" / GOLDEN[model]["file"]
    found = read_gguf(str(path), declared_bytes=whole)
    last = found.tensors[-1]
    assert found.data_offset == path.stat().st_size, "the header ends where the data would begin"
    assert found.data_offset + last.offset + last.nbytes == whole, "the data ends where the file would"
    assert all(tensor.exact for tensor in found.tensors)
    with pytest.raises(errors.DataBeyondFile):
        read_gguf(str(path))


@pytest.mark.parametrize(
    ("model", "architecture", "blocks", "nextn", "types"),
    [
        ("llama-8b-q4_k", "llama", 32, 0, {"q4_K": 226, "f32": 65}),
        ("qwen3-4b-q8_0", "qwen3", 36, 0, {"q8_0": 253, "f32": 145}),
        ("qwen35-9b-mtp-q8_0", "qwen35", 33, 1, {"q8_0": 258, "f32": 184}),
        ("qwen35-27b-mtp-q8_0", "qwen35", 65, 1, {"q8_0": 506, "f32": 360}),
        ("swa-drafter-5l", "gemma3", 5, 0, {"q8_0": 37, "f32": 31}),
    ],
)
def test_what_golden_headers_say(model: str, architecture: str, blocks: int, nextn: int, types: dict[str, int]) -> None:
    entry = GOLDEN[model]
    found = read_gguf(str(FIXTURES / "golden" / entry["file"]), declared_bytes=entry["file_bytes"])
    assert (found.architecture, found.block_count, found.nextn_predict_layers) == (architecture, blocks, nextn)
    assert found.types == types


def test_a_header_alone_with_the_length_declared(tmp_path: Path) -> None:
    data = gguf(tensors=[T("a"), T("b", kind=141, nbytes=64)])
    head = data[: -256 - 64]
    found = read(tmp_path, head, declared_bytes=len(data))
    assert found.file_bytes == len(data) and found.tensors[1].nbytes == 64
    with pytest.raises(errors.DataBeyondFile):
        read(tmp_path, head)
    with pytest.raises(errors.DataBeyondFile, match=r"expected at least \d+ bytes"):
        read(tmp_path, head, declared_bytes=len(head) + 1)
    with pytest.raises(FleetError, match="longer than declared"):
        read(tmp_path, data, declared_bytes=len(data) - 1)


def test_keys_up_to_their_limit(tmp_path: Path) -> None:
    pairs = [w.ARCH, *((f"k{number}", w.U8, 1) for number in range(65535))]
    assert len(read(tmp_path, gguf(pairs)).metadata) == 65536


def test_a_sparse_file_of_the_true_length_is_read_at_no_cost(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(tensors=[T("a", (4096, 4096, 512))], data=False))
    os.truncate(path, 40 << 30)
    assert read_gguf(str(path)).tensor_bytes == 32 << 30


@pytest.mark.parametrize("place", ["missing", "folder", "pipe", "device"])
def test_what_is_no_file(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    if place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    elif place == "device":
        path = Path("/dev/zero")
    with pytest.raises(FleetError, match=str(path)):
        read_gguf(str(path))


def test_a_file_url_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a b.gguf"
    path.write_bytes(gguf())
    assert read_gguf(path.as_uri()).architecture == "llama"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: b"")
    with pytest.raises(errors.ChangedWhileRead, match="was cut"):
        read(tmp_path, gguf())


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int, length: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(SourceError, match="Input/output error"):
        read(tmp_path, gguf())


def test_a_large_vocabulary_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(w.vocabulary(262_144, 200_000), [T("a")]))
    read_gguf(str(path))
    tracemalloc.start()
    try:
        read_gguf(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    started = time.process_time()
    assert read_gguf(str(path)).metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 262_144)
    assert time.process_time() - started < 1.0  # about 0.06 on an idle core
    assert peak < 6 << 20


def test_what_the_module_returns_is_json(tmp_path: Path) -> None:
    pairs = [*ALL_KINDS, ("x.nan", w.F32, math.nan), ("x.inf", w.ARRAY, (w.F64, [math.inf, 1.0]))]
    found = read(tmp_path, gguf(pairs, [T("a")]))
    shown = json.loads(json.dumps(facts(found), allow_nan=False))
    assert shown["metadata"]["x.nan"] == "nan" and shown["metadata"]["x.inf"] == ["inf", 1.0]
    assert shown["metadata"]["x.words"] == {"type": "string", "count": 3}
    assert "tensors" not in shown and shown["exact"] is True and shown["missing_keys"] == []
    shown = facts(found, keys=["x.u8", "gone"], tensors=True)
    assert shown["metadata"] == {"x.u8": 255} and shown["missing_keys"] == ["gone"]
    assert shown["tensors"][0]["dims"] == [32, 2]


def test_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        params = {
            "path": str(tmp_path / "m.gguf"),
            "url": None,
            "keys": ["llama.block_count"],
            "tensors": False,
            "declared_bytes": None,
            "timeout_s": 5.0,
        }

    (tmp_path / "m.gguf").write_bytes(gguf(ALL_KINDS))
    result = gguf_info.work(Module())  # type: ignore[arg-type]
    assert result["changed"] is False
    assert result["gguf"]["metadata"] == {"llama.block_count": 5} and result["gguf"]["nextn_predict_layers"] == 1


def test_values_across_every_edge_of_the_window(tmp_path: Path) -> None:
    """Each length shifts what follows by one byte over the ends of the first read-ahead."""
    for shift in range(40):
        filler = 65536 - 24 - 120 - shift
        pairs = [
            w.ARCH,
            ("x.filler", w.STRING, "f" * filler),
            ("x.words", w.ARRAY, (w.STRING, ["aa", "bbb"] * 9)),
            ("x.number", w.U64, 77),
        ]
        found = read(tmp_path, gguf(pairs, [T("t")]))
        assert found.metadata["x.number"] == 77 and found.metadata["x.words"] == ArrayInfo("string", 18)
        assert len(found.metadata["x.filler"]) == filler and found.tensors[0].name == "t"
        assert read(tmp_path, gguf(pairs), keys=["x.words"]).metadata["x.words"] == ["aa", "bbb"] * 9


def test_the_writer_and_struct_agree() -> None:
    """The tests' own writer, against bytes written by hand from the format's description."""
    hand = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    hand += struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"
    assert gguf() == hand
