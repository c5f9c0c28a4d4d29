# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models in several files: complete sets are read as one, all others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _gguf_errors as errors
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import ArrayInfo, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_split import shard_names
from ggufwriter import ARCH, T, gguf

TABLES = [[], [T("a"), T("b")], [T("c", (32,), 8)]]
NUMBERS = [(1, 3), (2, 3), (3, 3)]


def lay(folder: Path, files: Sequence[bytes], numbers: Sequence[tuple[int, int]] | None = None) -> str:
    """Write the files under the names of a set; the path of the first."""
    names = numbers or [(number, len(files)) for number in range(1, len(files) + 1)]
    paths = [folder / f"m-{number:05d}-of-{count:05d}.gguf" for number, count in names]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return str(paths[0])


def part(number: Any, count: Any = 3, total: Any = 3, table: Sequence[T] = (), pairs: Sequence[w.Pair] = ()) -> bytes:
    """One shard, whose keys need not be true; None leaves a key out, a pair (kind, value) gives it another type."""
    keys = [("split.no", w.U16, number), ("split.count", w.U16, count), ("split.tensors.count", w.I32, total)]
    shown = [(key, *value) if isinstance(value, tuple) else (key, kind, value) for key, kind, value in keys]
    return gguf([*pairs, *(each for each in shown if each[2] is not None)], table)


@pytest.mark.parametrize("tables", [TABLES, [[T("a")], [T("b")]], [[T("a")], [T("b")], []]])
def test_a_complete_set_is_one_model(tmp_path: Path, tables: list[list[T]]) -> None:
    pairs = [ARCH, ("llama.block_count", w.U32, 4), ("tokenizer.ggml.tokens", w.ARRAY, (w.STRING, ["a"]))]
    files = w.shards(tables, pairs)
    found = read_gguf(lay(tmp_path, files))
    assert [(tensor.name, tensor.shard) for tensor in found.tensors] == [
        (tensor.name, number) for number, table in enumerate(tables) for tensor in table
    ]
    assert found.file_bytes == sum(map(len, files)) and found.tensor_count == len(found.tensors)
    assert [shard.file_bytes for shard in found.shards] == [len(data) for data in files]
    assert [shard.tensor_count for shard in found.shards] == [len(table) for table in tables]
    assert [Path(shard.name).name for shard in found.shards] == [
        f"m-{number:05d}-of-{len(tables):05d}.gguf" for number in range(1, len(tables) + 1)
    ]
    assert found.block_count == 4 and found.metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 1)


def test_totals_hold_without_the_table_too(tmp_path: Path) -> None:
    assert read_gguf(lay(tmp_path, w.shards(TABLES)), tensors=False).tensor_count == 3


def test_keys_of_later_shards_are_no_metadata(tmp_path: Path) -> None:
    first = part(0, 2, 1, pairs=[ARCH])
    later = part(1, 2, 1, [T("a")], [("general.architecture", w.STRING, "other"), ("x", w.U8, 1)])
    found = read_gguf(lay(tmp_path, [first, later]))
    assert found.architecture == "llama" and "x" not in found.metadata


@pytest.mark.parametrize("keys", [(0, 1, 1), (0, 1, None), (None, 1, None), (0, 0, 1)])
def test_a_set_of_one_needs_no_name(tmp_path: Path, keys: tuple[int | None, ...]) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(part(*keys, [T("a")], [ARCH]))
    assert read_gguf(str(path)).tensor_count == 1


def first(**keys: Any) -> bytes:
    return part(**{"number": 0, "pairs": [ARCH], **keys})


ONE, TWO = part(1, table=TABLES[1]), part(2, table=TABLES[2])


@pytest.mark.parametrize(
    ("files", "numbers", "kind", "says"),
    [
        pytest.param([TWO], [(3, 3)], errors.NotFirstShard, "later shard of 3", id="later-shard-given"),
        pytest.param([part(1, None, None, pairs=[ARCH])], [(1, 1)], errors.NotFirstShard, "later", id="later-alone"),
        pytest.param([first(), ONE], NUMBERS[:2], errors.ShardMissing, "shard 3 of 3 is missing", id="last-missing"),
        pytest.param([first(), TWO], [(1, 3), (3, 3)], errors.ShardMissing, "shard 2 of 3", id="middle-missing"),
        pytest.param([first(), TWO, ONE], NUMBERS, errors.ShardsDisagree, "split.no 1; found split.no 2", id="order"),
        pytest.param([first(), ONE, ONE], NUMBERS, errors.ShardsDisagree, "split.no 2; found split.no 1", id="double"),
        pytest.param([first(), part(None), TWO], NUMBERS, errors.ShardsDisagree, "found split.no None", id="no-number"),
        pytest.param([first(), part(1, 4), TWO], NUMBERS, errors.ShardsDisagree, "another set", id="other-count"),
        pytest.param([first(), part(1, 3, 9), TWO], NUMBERS, errors.ShardsDisagree, "another set", id="other-total"),
        pytest.param([first(total=None), part(1, total=3), TWO], NUMBERS, errors.ShardsDisagree, "None", id="total"),
        pytest.param([first(), part(1, table=[T("a")]), TWO], NUMBERS, errors.ShardsDisagree, "add up", id="too-few"),
        pytest.param([first(table=[T("x")]), ONE, TWO], NUMBERS, errors.ShardsDisagree, "add up", id="too-many"),
        pytest.param([first(count=1, total=4)], [(1, 1)], errors.ShardsDisagree, "add up", id="single-total"),
        pytest.param(
            [first(total=4, table=[T("a")]), part(1, total=4, table=TABLES[1]), part(2, total=4, table=TABLES[2])],
            NUMBERS,
            errors.DuplicateTensor,
            "'a' stands in two shards",
            id="tensor-in-two",
        ),
        pytest.param([part(None, pairs=[ARCH])], [(1, 3)], errors.ShardsDisagree, "does not say", id="unnumbered"),
        pytest.param(
            [first(number=(w.STRING, "0"))], [(1, 3)], errors.ShardsDisagree, "split.no is no count", id="number-text"
        ),
        pytest.param(
            [first(count=(w.I32, -3))], [(1, 3)], errors.ShardsDisagree, "split.count is no count", id="count-negative"
        ),
        pytest.param(
            [first(count=(w.U64, 2**63))], [(1, 3)], errors.ShardsDisagree, "beyond all measure", id="count-huge"
        ),
        pytest.param(
            [first(total=(w.BOOL, 1))], [(1, 3)], errors.ShardsDisagree, "tensors.count is no count", id="total-bool"
        ),
        pytest.param([first()], [(1, 4)], errors.ShardName, "-00001-of-00003.gguf", id="name-of-another-count"),
        pytest.param([first()], [(2, 3)], errors.ShardName, "-00001-of-00003.gguf", id="name-of-another-number"),
        pytest.param([first(), ONE, b"<html>"], NUMBERS, errors.NotGguf, "00003-of-00003", id="page-as-shard"),
        pytest.param([first(), ONE[:-1], TWO], NUMBERS, errors.DataBeyondFile, "00002-of-00003", id="cut-shard"),
        pytest.param([part(0), ONE, TWO], NUMBERS, errors.ArchitectureFault, "architecture", id="no-metadata"),
    ],
)
def test_refusal(
    tmp_path: Path, files: list[bytes], numbers: list[tuple[int, int]], kind: type[FleetError], says: str
) -> None:
    with pytest.raises(FleetError, match=says) as caught:
        read_gguf(lay(tmp_path, files, numbers))
    if kind is errors.ShardsDisagree and says == "add up":
        with pytest.raises(errors.ShardsDisagree):
            read_gguf(str(tmp_path / f"m-{numbers[0][0]:05d}-of-{numbers[0][1]:05d}.gguf"), tensors=False)
    assert type(caught.value) is kind and caught.value.remedy


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00003.bin", "m-1-of-3.gguf", "m-00001-of-00003.gguf.part"])
def test_a_name_that_does_not_lead_to_the_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(first())
    with pytest.raises(errors.ShardName, match=r"expected a name that ends in -00001-of-00003\.gguf"):
        read_gguf(str(tmp_path / name))


def test_an_unreadable_shard_is_not_called_missing(tmp_path: Path) -> None:
    path = lay(tmp_path, [first()], [(1, 3)])
    (tmp_path / "m-00002-of-00003.gguf").mkdir()
    with pytest.raises(FleetError, match="is no file"):
        read_gguf(path)


def test_a_declared_length_is_for_one_file(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="first of 3 files"):
        read_gguf(lay(tmp_path, w.shards(TABLES)), declared_bytes=1 << 20)


def test_names() -> None:
    assert shard_names("/m-00001-of-00002.gguf", 2) == ["/m-00001-of-00002.gguf", "/m-00002-of-00002.gguf"]
    assert shard_names("https://h/m-00001-of-00002.gguf?a=b", 2)[1] == "https://h/m-00002-of-00002.gguf?a=b"
