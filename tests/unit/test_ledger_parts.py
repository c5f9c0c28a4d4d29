# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the ledger: contexts, rows, windows, layers to cards, headers that are refused, the best split."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, Plan, predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_fit import (
    best_split,
    largest_context,
    require_fit,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_kv import row_bytes, window_cells
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import facts
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_search import Loads
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape, context
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_split import (
    counts,
    neighbours,
    placement,
    splits,
)
from goldens import LLAMA, NINE, SWA, TWENTY_SEVEN, MadeTensor, cards, header, made, model
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("shape", "n_ctx", "n_ctx_seq", "streams", "tokens"),
    [
        # "rounding down", says the engine of the first, and rounds up.
        (Shape(4096, parallel=3), 4608, 1536, 3, 513),
        (Shape(1000, parallel=1), 1024, 1024, 1, 512),
        (Shape(4096), 4096, 4096, 1, 512),
        (Shape(4096, parallel=2, kv_unified=True), 4096, 4096, 1, 512),
        (Shape(0, parallel=1), 8192, 8192, 1, 512),
        (Shape(100, parallel=1), 256, 256, 1, 100),
        (Shape(602112, parallel=3, ubatch_size=1024), 602112, 200704, 3, 1026),
    ],
)
def test_contexts(shape: Shape, n_ctx: int, n_ctx_seq: int, streams: int, tokens: int) -> None:
    got = context(shape, 8192)
    assert (got.n_ctx, got.n_ctx_seq, got.streams, got.tokens) == (n_ctx, n_ctx_seq, streams, tokens)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ctx_size": -1}, "ctx_size"),
        ({"ctx_size": 0}, "no context_length"),
        ({"ctx_size": True}, "ctx_size"),
        ({"parallel": 0}, "parallel"),
        ({"parallel": 300}, "parallel"),
        ({"parallel": 200, "ctx_size": 100, "kv_unified": False}, None),
        ({"ctx_size": 100, "parallel": 256 + 1}, "parallel"),
        ({"ubatch_size": 0}, "ubatch_size"),
        ({"outputs": 0}, "outputs"),
        ({"gpu_layers": -1}, "gpu_layers"),
        ({"flash_attn": "maybe"}, "flash_attn"),
        ({"tensor_split": (0, 0)}, "tensor_split"),
        ({"tensor_split": (float("nan"),)}, "tensor_split"),
    ],
)
def test_contexts_that_cannot_be(change: dict[str, Any], match: str | None) -> None:
    shape = replace(Shape(4096), **change)
    if match is None:
        assert context(shape, 0).n_ctx_seq == 256
        return
    with pytest.raises(FleetError, match=match):
        context(shape, 0)


def test_outputs_of_drafters() -> None:
    assert context(Shape(4096, parallel=3, spec_type="draft-mtp", spec_draft_n_max=2), 0).outputs == 9
    assert context(Shape(4096, parallel=2, spec_type="draft-dflash,ngram-mod", spec_draft_n_max=7), 0).outputs == 130
    assert context(Shape(4096, parallel=2, batch_size=64, spec_type="ngram-mod"), 0).outputs == 64


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("f32", 4096),
        ("f16", 2048),
        ("bf16", 2048),
        ("q8_0", 1088),
        ("q4_0", 576),
        ("q4_1", 640),
        ("q5_0", 704),
        ("q5_1", 768),
        ("iq4_nl", 576),
    ],
)
def test_rows(kind: str, size: int) -> None:
    assert row_bytes(kind, 1024) == size


def test_rows_that_cannot_be() -> None:
    with pytest.raises(FleetError, match="multiple of 32"):
        row_bytes("q8_0", 80)
    with pytest.raises(FleetError, match="q6_K"):
        row_bytes("q6_K", 256)


def test_quantized_rows_are_padded_on_a_card_alone() -> None:
    # Two heads of 64: a row of 128 elements, 384 short of 512.
    shape = Shape(ctx_size=1024, parallel=1, cache_type_k="q8_0")
    ledger = predict(made(), shape, cards=cards(1))
    host = predict(made(), replace(shape, backend="cpu"), cards=[])
    assert host.host.kv == 4 * 1024 * (136 + 256)
    assert ledger.cards[0].kv == 4 * (1024 * (136 + 256) + 512)  # 384/32 x 34 = 408, up to 128 more


@pytest.mark.parametrize(
    ("slots", "unified", "ctx", "ubatch", "full", "cells"),
    [
        (1, False, 262144, 512, False, 2560),
        (1, False, 262144, 1024, False, 3072),
        (4, False, 8192, 512, False, 2048),
        (4, True, 65536, 512, False, 8704),
        (4, False, 262144, 512, True, 65536),
        (1, False, 1000, 512, False, 1024),
    ],
)
def test_windows(slots: int, unified: bool, ctx: int, ubatch: int, full: bool, cells: int) -> None:
    got = context(Shape(ctx, parallel=slots, kv_unified=unified, ubatch_size=ubatch), 0)
    assert window_cells(got, 2048, full) == cells


def test_the_gemma_log() -> None:
    # golden/bootlogs/gemma3-270m: 3 of 18 layers see all, 15 the last 512; one head of 256.
    model = made(
        "gemma3",
        layers=18,
        embedding_length=640,
        attention__head_count_kv=1,
        attention__key_length=256,
        attention__value_length=256,
        attention__sliding_window=512,
    )
    ledger = predict(model, Shape(8192, parallel=2, backend="cpu"), cards=[])
    sizes = {line.name: line.bytes / 2**20 for line in ledger.lines}
    assert (sizes["kv_k"], sizes["kv_v"]) == (12.0, 12.0)
    assert (sizes["kv_window_k"], sizes["kv_window_v"]) == (15.0, 15.0)


def test_layers_that_differ() -> None:
    model = made("gemma3", layers=2, attention__sliding_window=512, attention__sliding_window_pattern=[True, False])
    model = replace(
        model,
        metadata={
            **model.metadata,
            "gemma3.attention.head_count_kv": [1, 4],
            "gemma3.attention.key_length": 64,
            "gemma3.attention.key_length_swa": 32,
        },
    )
    known = facts(model)
    assert known.windowed == (True, False)
    assert (known.k_width, known.v_width) == ((32, 256), (64, 256))


def test_hybrids() -> None:
    known = facts(header(TWENTY_SEVEN))
    assert (known.layers_all, known.layers, known.nextn) == (65, 64, 1)
    assert sum(known.recurrent) == 48
    assert not known.recurrent[64]
    assert [layer for layer in range(9) if not known.recurrent[layer]] == [3, 7]
    nine = header(NINE)
    flags = [layer % 2 == 0 and layer < 32 for layer in range(33)]
    other = replace(nine, metadata={**nine.metadata, "qwen35.attention.recurrent_layers": flags})
    assert sum(facts(other).recurrent) == 16


@pytest.mark.parametrize(
    ("architecture", "keys", "match"),
    [
        ("mamba2", {}, "architecture mamba2"),
        ("deepseek2", {}, "architecture deepseek2"),
        ("llama", {"attention__kv_lora_rank": 512}, "latent attention"),
        ("llama", {"expert_count": 8}, "experts"),
        ("qwen3", {"ssm__state_size": 128}, "no recurrent state"),
        ("llama", {"nextn_predict_layers": 1}, "nextn_predict_layers"),
        ("llama", {"block_count": 0}, "block_count"),
        ("llama", {"block_count": None}, "block_count"),
        ("llama", {"block_count": "4"}, "block_count"),
        # The engine asserts at most 512 layers, and keeps every number in 32 bits.
        ("llama", {"block_count": 513}, r"llama\.block_count in .*expected a whole number from 1 to 512; found 513"),
        ("llama", {"block_count": 2**31}, "from 1 to 512"),
        ("qwen35", {"nextn_predict_layers": 5}, "nextn_predict_layers"),
        ("qwen35", {"nextn_predict_layers": 2**32}, "nextn_predict_layers.*to 4294967295"),
        ("llama", {"embedding_length": 2**32}, "embedding_length.*to 4294967295"),
        ("llama", {"feed_forward_length": [1, 2**32, 1, 1]}, "feed_forward_length.*to 4294967295"),
        ("llama", {"attention__head_count": [4, 0, 4, 2**63]}, "head_count.*to 4294967295"),
        ("llama", {"attention__head_count_kv": 2**40}, "head_count_kv.*to 4294967295"),
        ("llama", {"attention__key_length": 2**64 - 1}, "key_length.*to 4294967295"),
        ("llama", {"context_length": 2**64 - 1}, "context_length.*to 4294967295"),
        ("dflash", {"vocab_size": 2**32}, "vocab_size.*to 4294967295"),
        ("llama", {"attention__head_count": 0}, "head_count"),
        ("llama", {"attention__head_count_kv": [1, 2]}, "4 layers"),
        ("llama", {"attention__head_count_kv": [1, 2, -1, 2]}, "whole numbers"),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 1}, "at least one layer"),
        ("gemma3", {"attention__sliding_window": 5, "attention__sliding_window_pattern": [True] * 9}, "at most one"),
        ("gemma3", {"attention__sliding_window": 5, "attention__sliding_window_pattern": "x"}, "array of flags"),
        ("dflash", {"attention__sliding_window": 512}, "array of flags"),
        ("dflash", {"hyper_connection__count": 4}, "hyper connections"),
        ("qwen35", {}, "ssm.conv_kernel"),
    ],
)
def test_headers_that_are_refused(architecture: str, keys: dict[str, Any], match: str) -> None:
    model = made(architecture, **keys)
    if "vocab_size" in keys:  # which is asked only where no embedding tells it
        model = replace(model, tensors=())
    with pytest.raises(FleetError, match=match):
        facts(model)


def test_as_many_layers_as_the_engine_takes() -> None:
    assert facts(made(layers=512)).layers_all == 512


@pytest.mark.parametrize(("architecture", "windowed"), [("gemma2", 2), ("gemma3", 0), ("gemma", 0), ("qwen2", 0)])
def test_windows_by_architecture(architecture: str, windowed: int) -> None:
    assert sum(facts(made(architecture)).windowed) == windowed


def test_an_output_where_none_can_be() -> None:
    with pytest.raises(FleetError, match=r"output\.weight"):
        predict(made("gemma2", [MadeTensor("output.weight", (256, 1000))]), Shape(1024), cards=cards(1))
    with pytest.raises(FleetError, match="block_count 4"):
        predict(made(tensors=[MadeTensor("blk.4.attn_norm.weight", (256,))]), Shape(1024), cards=cards(1))


# Layers to cards.
@pytest.mark.parametrize(
    ("layers", "split", "gpu_layers", "want"),
    [
        # An MTP block counts: 36/28 trunk layers on 64 blocks, 37/28 on 65 (and the output on the second).
        (64, (36, 29), None, (36, 29)),
        (65, (36, 29), None, (37, 29)),
        (32, (3, 1), None, (25, 8)),
        (32, (1,), None, (33,)),
        (32, (1, 0), None, (33, 0)),
        (32, (0, 1), None, (0, 33)),
        (32, (1, 1), 10, (5, 5)),
        (32, (1, 1), 99, (17, 16)),
        (32, (1, 1), 0, (0, 0)),
    ],
)
def test_placement(layers: int, split: tuple[float, ...], gpu_layers: int | None, want: tuple[int, ...]) -> None:
    places = placement(layers, split, gpu_layers)
    assert len(places) == layers + 1
    assert counts(places, len(split)) == want
    on = [place for place in places if place is not None]
    assert on == sorted(on)
    assert places[: len(places) - len(on)] == (None,) * (len(places) - len(on))


def test_single_precision_decides() -> None:
    # In double precision 0.1 + 0.2 + 0.7 and 3/10 of ten layers meet elsewhere.
    assert counts(placement(9, (0.1, 0.2, 0.7)), 3) == (1, 2, 7)
    with pytest.raises(FleetError, match="32-bit"):
        placement(9, (1e300,))
    with pytest.raises(FleetError, match="at least one card"):
        placement(9, (0.0,))


@given(st.integers(1, 4), st.data())
def test_counts_place_exactly_so(cards_: int, data: st.DataObject) -> None:
    total = data.draw(st.integers(cards_, 130))
    cuts = sorted(data.draw(st.lists(st.integers(1, total), min_size=cards_ - 1, max_size=cards_ - 1)))
    split = tuple(end - begin for begin, end in zip((0, *cuts), (*cuts, total), strict=True))
    assert counts(placement(total - 1, split), cards_) == split


def test_splits_and_neighbours() -> None:
    assert list(splits(3, 2)) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert list(splits(3, 1)) == [(3,)]
    assert len(set(splits(10, 3))) == 66
    assert all(sum(split) == 10 and min(split) >= 0 for split in splits(10, 3))
    assert neighbours((1, 5, 4)) == [(0, 6, 4), (2, 4, 4), (1, 4, 5), (1, 6, 3)]
    assert neighbours((0, 2)) == [(1, 1)]


def test_the_best_split() -> None:
    shape = Shape(262144, parallel=2, tensor_split=(1, 9))
    pair = [Card("a", 32624, 1536), Card("b", 28000, 1536)]
    found = best_split(header(TWENTY_SEVEN), shape, cards=pair)
    assert sum(found.counts) == 66
    assert found.ledger.split == found.counts
    plan = Plan.of(header(TWENTY_SEVEN), shape, cards=pair)
    assert found.ledger.room_mib == max(plan.at(cut).room_mib for cut in splits(66, 2))
    assert [near.split for near in found.neighbours] == neighbours(found.counts)
    assert all(near.room_mib <= found.ledger.room_mib for near in found.neighbours)


def test_the_best_split_of_many_ways() -> None:
    """A boundary moved at a time stops at 5,101 MiB here; with a layer on each card the most is 7,427."""
    held = [Card(f"c{number}", free, 500) for number, free in enumerate((24000, 16000, 12000, 9000))]
    shape = Shape(262144, parallel=2)
    started = time.process_time()
    found = best_split(header(NINE), shape, cards=held)
    assert time.process_time() - started < 0.5
    assert sum(found.counts) == 34
    # The last card's own 9,000 less its floor: no split leaves more.
    assert (found.ledger.room_mib, found.counts[3]) == (8500, 0)


def test_a_card_that_is_better_left_empty() -> None:
    # 100 MiB above its floor hold no layer; the engine takes `-ts 33,0`.
    pair = [Card("a", 24000), Card("b", 400, 300)]
    found = best_split(header(LLAMA), Shape(65536, parallel=1), cards=pair)
    assert (found.counts, found.ledger.fits, found.ledger.room_mib) == ((33, 0), True, 100)
    # And does not hide how the others are filled.
    three = best_split(header(LLAMA), Shape(65536, parallel=1), cards=[Card("c", 24000), *pair])
    assert three.counts[2] == 0 and abs(three.counts[0] - three.counts[1]) <= 1


MODELS = {
    "dense": made(layers=6),
    "windows": made("gemma3", layers=7, attention__sliding_window=512),
    "heads": made(layers=5, attention__head_count_kv=[1, 4, 1, 2, 4]),
    "hybrid": model("qwen35", 7, 256, 512, 4, 2, 64, 1000, "q8_0", nextn=1),
    "ropes": made(layers=5, tensors=[MadeTensor("rope_freqs.weight", (4096, 64))]),
    "vocabulary": made(layers=4, tensors=[MadeTensor("output.weight", (256, 90000))]),
}
PAIRS = [
    MadeTensor(f"blk.{layer}.{name}.{side}", dims)
    for layer, name in ((1, "attn_q.weight"), (3, "ffn_up.weight"))
    for side, dims in (("lora_a", (256, 2048)), ("lora_b", (2048, 256 if "q" in name else 512)))
]


@settings(max_examples=100, derandomize=True, database=None, deadline=5000)
@given(
    name=st.sampled_from(sorted(MODELS)),
    held=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 300)), min_size=1, max_size=4),
    ctx=st.sampled_from([2048, 16384, 65536]),
    v_type=st.sampled_from(["f16", "q8_0"]),
    gpu_layers=st.sampled_from([None, None, 1, 4]),
    beside=st.sampled_from(["", "", "lora", "mmproj", "draft"]),
    data=st.data(),
)
def test_no_other_split_leaves_more_room(
    name: str,
    held: list[tuple[int, int]],
    ctx: int,
    v_type: str,
    gpu_layers: int | None,
    beside: str,
    data: st.DataObject,
) -> None:
    """Every split is tried, on up to four cards, and the engine's placement of each counted anew."""
    whole, cards_ = MODELS[name], [Card(f"card{at}", 100.0 + free, floor) for at, (free, floor) in enumerate(held)]
    shape = Shape(ctx, parallel=2, cache_type_v=v_type, gpu_layers=gpu_layers)
    files: dict[str, Any] = {}
    if beside == "lora" and whole.architecture == "llama":
        files["lora"] = replace(made(), tensors=tuple(PAIRS))
    elif beside == "mmproj":
        files["mmproj"] = made("clip", [MadeTensor("v.blk.0.ffn.weight", (1152, 20000), "q8_0")], layers=0)
    elif beside == "draft" and name == "hybrid":
        shape = replace(shape, spec_type="draft-mtp")
    elif beside == "draft":
        files["drafter"] = made(layers=2)
        names = data.draw(st.permutations([card.name for card in cards_]))
        own = data.draw(st.sampled_from([None, *(tuple(names[:many]) for many in range(1, len(names) + 1))]))
        shape = replace(shape, spec_type="draft-simple", draft_cards=own)
    plan = Plan.of(whole, shape, **files, cards=cards_)
    total = plan.parts[0].model.layers_all + 1
    total = total if gpu_layers is None else min(total, gpu_layers)

    def rooms(ledger: Ledger) -> list[float]:
        return sorted(card.room_mib for card in ledger.cards)

    every = {cut: plan.at(cut) for cut in splits(total, len(cards_))}
    loads = Loads(plan, total)
    if loads.exact:  # each card's room follows from its own boundaries
        for cut, ledger in every.items():
            edges = [sum(cut[:card]) for card in range(len(cut) + 1)]
            own = [loads.room_mib(card, *edges[card : card + 2]) for card in range(len(cut))]
            assert own == [card.room_mib for card in ledger.cards]
    else:
        assert beside == "draft" and shape.draft_cards not in (None, tuple(card.name for card in cards_))
    found = best_split(whole, shape, **files, cards=cards_)
    assert found.ledger == every[found.counts]
    assert found.ledger.room_mib == max(ledger.room_mib for ledger in every.values())
    # Of those that leave as much on the fullest card, the one that leaves most on the next.
    assert rooms(found.ledger) == max(map(rooms, every.values()))
    assert [near.split for near in found.neighbours] == neighbours(found.counts)


def test_the_best_split_beside_a_drafter() -> None:
    # The drafter on the second card moves layers to the first.
    shape = Shape(131072, parallel=1, spec_type="draft-simple", draft_cards=("card1",))
    alone = best_split(header(LLAMA), replace(shape, spec_type=None), cards=cards(2))
    beside = best_split(header(LLAMA), shape, drafter=header(SWA), cards=cards(2))
    assert beside.counts[0] > alone.counts[0]


def test_more_cards_than_layers() -> None:
    found = best_split(made(layers=1), Shape(1024), cards=cards(3))
    assert sum(found.counts) == 2 and found.counts.count(0) == 1


def test_no_layers_to_split() -> None:
    with pytest.raises(FleetError, match="tensor_split; expected layers on cards to be split; found all of them on"):
        best_split(made(), Shape(1024, gpu_layers=0), cards=cards(2))


def test_a_drafter_whose_share_is_nothing() -> None:
    # The engine takes its own split, by free memory, where all of a drafter's shares are 0.
    shape = Shape(4096, parallel=1, spec_type="draft-simple", draft_cards=("card1",), tensor_split=(0, 5))
    first, second = predict(made(), shape, drafter=made(), cards=cards(2)).cards
    assert first.total == 0 and second.draft_weights > 0


def test_the_largest_context() -> None:
    shape = Shape(0, parallel=2)
    pair = cards(2, 24000, 1536)
    answer = largest_context(header(TWENTY_SEVEN), shape, cards=pair)
    assert answer is not None
    size, found = answer
    assert found.ledger.fits and size % 512 == 0
    require_fit(found.ledger)
    more = best_split(header(TWENTY_SEVEN), replace(shape, ctx_size=size + 512), cards=pair)
    assert not more.ledger.fits
    fixed = largest_context(header(TWENTY_SEVEN), replace(shape, tensor_split=(36, 29)), cards=pair)
    assert fixed is not None and fixed[0] <= size and fixed[1].ledger.split == (37, 29)
    assert largest_context(header(TWENTY_SEVEN), shape, cards=cards(2, 4000)) is None
