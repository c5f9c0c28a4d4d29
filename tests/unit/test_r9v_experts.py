# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What experts weigh by the shards' own headers, how ranks share them, and the embedding table beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import (
    expert_costs,
    expert_of,
    extents,
    parse_partition,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_ple import (
    derive_command,
    locate,
    require_bytes,
    table_fault,
)
from ggufwriter import ARCH, U32, Pair, T
from r9vshards import IQ4_LAYERS, Q8_0, Q8_LAYERS, layer, ple, target, tensor, write, write_set


def test_q8_experts_weigh_what_the_fork_counts_with(tmp_path: Path) -> None:
    first = target(tmp_path, "m", Q8_LAYERS)[0]
    costs = expert_costs("m", read_gguf(str(first)))
    assert set(costs.full) == {5_222_400}  # three tensors of 2560 x 640 at 34 bytes for 32
    assert (set(costs.ranks[0]), set(costs.ranks[1])) == ({3_394_560}, {1_827_840})
    assert costs.totals == (162_938_880, 87_736_320)


def test_a_mixed_quantization_is_counted_layer_by_layer(tmp_path: Path) -> None:
    first = target(tmp_path, "m", IQ4_LAYERS)[0]
    costs = expert_costs("m", read_gguf(str(first)), (320, 320))
    assert len(set(costs.full)) == 3
    assert sum(costs.full) * 512 == 59_519_795_200  # the published package's experts
    assert costs.ranks[0] == costs.ranks[1] and costs.totals[0] == 58_124_800


@pytest.mark.parametrize("partition", [(416, 224), (320, 320), (192, 448)])
def test_two_ranks_share_every_byte(tmp_path: Path, partition: tuple[int, int]) -> None:
    first = target(tmp_path, "m", IQ4_LAYERS)[0]
    costs = expert_costs("m", read_gguf(str(first)), partition)
    for whole, *shares in zip(costs.full, *costs.ranks, strict=True):
        assert sum(shares) == whole and shares[0] * 640 == whole * partition[0]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("blk.0.ffn_up_exps.weight", (0, "ffn_up_exps")),
        ("blk.47.ffn_down_exps.weight", (47, "ffn_down_exps")),
        ("blk.3.ffn_gate_exps.weight", (3, "ffn_gate_exps")),
        ("blk.3.ffn_gate_inp.weight", None),
        ("blk.3.ffn_up_shexp.weight", None),
        ("token_embd.weight", None),
    ],
)
def test_a_name_has_four_parts_and_the_layer_is_the_second(name: str, place: tuple[int, str] | None) -> None:
    assert expert_of(name) == place


@pytest.mark.parametrize(
    "name",
    [
        "blk.ffn_up_exps.weight",
        "blk..ffn_up_exps.weight",
        "blk.x.ffn_up_exps.weight",
        "blk.0.ffn_up_exps",
        "blk.0.ffn_gate_up_exps.weight",
        "blk.0.ffn_up_exps.scale",
        "v.0.ffn_up_exps.weight",
        "blk.0.1.ffn_up_exps.weight",
    ],
)
def test_a_name_of_experts_that_is_made_otherwise_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match="expert tensor"):
        expert_of(name)


@pytest.mark.parametrize("text", ["416", "416,224,0", "400,240", "416,416", "a,b", "", "-416,224", "640,0"])
def test_a_partition_is_one_of_the_forks(text: str) -> None:
    assert parse_partition("416,224", "x") == (416, 224) and parse_partition(" 192, 448", "x") == (192, 448)
    with pytest.raises(FleetError, match="R9V_EXPERT_TP_SPLIT"):
        parse_partition(text, "R9V_EXPERT_TP_SPLIT")


def test_a_layer_that_lacks_a_tensor_or_is_one_too_many(tmp_path: Path) -> None:
    rows = [each for number in range(48) for each in layer(number, Q8_LAYERS[0])]
    write(tmp_path / "short.gguf", [ARCH], rows[:-1])
    with pytest.raises(FleetError, match=r"1 missing, blk\.47\.ffn_up_exps the first"):
        expert_costs("short", read_gguf(str(tmp_path / "short.gguf")))
    write(tmp_path / "long.gguf", [ARCH], [*rows, *layer(48, Q8_LAYERS[0])])
    with pytest.raises(FleetError, match="experts in layer 48 too"):
        expert_costs("long", read_gguf(str(tmp_path / "long.gguf")))
    drafter: list[Pair] = [ARCH, ("llama.nextn_predict_layers", U32, 1)]
    write(tmp_path / "mtp.gguf", drafter, [*rows, *layer(48, Q8_LAYERS[0])])
    assert len(expert_costs("mtp", read_gguf(str(tmp_path / "mtp.gguf"))).full) == 48
    write(tmp_path / "none.gguf", [ARCH], [tensor("a", (32, 2), Q8_0)])
    with pytest.raises(FleetError, match="144 missing"):
        expert_costs("none", read_gguf(str(tmp_path / "none.gguf")))


UP = "blk.0.ffn_up_exps.weight"


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (tensor(UP, (2560, 640, 256), Q8_0), "640 channels, 512 experts; found"),
        (tensor(UP, (2560, 320, 512), Q8_0), "640 channels, 512 experts; found"),
        (tensor(UP, (2560, 640), Q8_0), "three dimensions"),
        (tensor("blk.0.ffn_down_exps.weight", (2560, 640, 512), Q8_0), "640 channels, 512 experts; found"),
        # Of a type that the reader does not know, so that the bytes are the offsets' alone.
        (T(UP, (2560, 640, 512), 99, nbytes=512 * 640 + 32), "a multiple of 512 experts"),
        (T(UP, (2560, 640, 512), 99, nbytes=512 * 64), "that 416 of 640 channels divide; found 32,768"),
    ],
)
def test_a_shape_that_is_not_the_forks(tmp_path: Path, odd: T, words: str) -> None:
    write(tmp_path / "m.gguf", [ARCH], [odd, tensor("z", (32, 1), Q8_0)])
    with pytest.raises(FleetError, match=words):
        expert_costs("m", read_gguf(str(tmp_path / "m.gguf")))


def test_bytes_reach_from_offset_to_offset_and_the_last_to_the_files_end(tmp_path: Path) -> None:
    rows = [tensor("a", (32, 1), Q8_0), tensor("b", (32, 3), Q8_0)]
    write(tmp_path / "m.gguf", [ARCH], rows)
    assert extents(read_gguf(str(tmp_path / "m.gguf"))) == {"a": 64, "b": 128}  # 34 and 102, padded
    write(tmp_path / "m.gguf", [ARCH], rows, more=32)
    with pytest.raises(FleetError, match="tensor 'b' ends before the next one begins; expected 102 bytes"):
        extents(read_gguf(str(tmp_path / "m.gguf")))


def test_offsets_count_within_their_own_shard(tmp_path: Path) -> None:
    first = write_set(tmp_path, "m", [[], [tensor("a", (32, 2), Q8_0)], [tensor("b", (32, 4), Q8_0)]])[0]
    assert extents(read_gguf(str(first))) == {"a": 96, "b": 160}


def test_the_embedding_table_of_the_reference_page(tmp_path: Path) -> None:
    first, *_rest, last = target(tmp_path, "m", Q8_LAYERS)
    table = locate(read_gguf(str(first)))
    assert (table.bytes, table.shape, table.type) == (54_400_261_120, (160, 320_001_536), "Q8_0")
    assert table.source == str(last)
    require_bytes(table, 54_400_261_120)
    require_bytes(table, None)
    with pytest.raises(FleetError, match=r"expected 54,400,261,120.*found 54,400,261,119"):
        require_bytes(table, 54_400_261_119)
    assert derive_command(table, "/fork", "/m/table.bin") == [
        "/fork/tools/prepare_ple.py",
        str(last),
        *("--output", "/m/table.bin", "--tensor-name", "per_layer_token_embd.weight"),
        *("--expected-bytes", "54400261120", "--expected-type", "Q8_0", "--expected-shape", "160,320001536"),
    ]


def test_the_embedding_table_of_the_sibling(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", [ARCH], [ple(20)])
    table = locate(read_gguf(str(tmp_path / "m.gguf")))
    assert (table.bytes, table.type) == (28_800_138_240, "IQ4_NL")


def test_a_target_without_that_tensor_or_with_a_strange_one(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", [ARCH], [tensor("a", (32, 2), Q8_0)])
    with pytest.raises(FleetError, match=r"expected a tensor per_layer_token_embd\.weight; found none among 1"):
        locate(read_gguf(str(tmp_path / "m.gguf")))
    write(tmp_path / "m.gguf", [ARCH], [T("per_layer_token_embd.weight", (160, 2), 99, nbytes=64)])
    with pytest.raises(FleetError, match="found type 99"):
        locate(read_gguf(str(tmp_path / "m.gguf")))


def test_a_table_one_byte_short_is_told_and_a_missing_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "table.bin"
    assert table_fault(str(path), 4096) == ""
    path.write_bytes(bytes(4096))
    assert table_fault(str(path), 4096) == ""
    path.write_bytes(bytes(4095))
    assert table_fault(str(path), 4096) == "4,095 bytes"
