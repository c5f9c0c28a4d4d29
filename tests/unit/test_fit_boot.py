# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measured figures: what they take the place of, and that they are no budget line for another boot."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import answer
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import MEASURED_TERMS, Boot, Measured
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import UnknownMemory
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape
from fits import PROJECTOR
from goldens import cards, made

SHAPE = Shape(4096, parallel=2, tensor_split=(3, 2))
FIGURES = {"card0": {"compute_mib": 7.5, "projector_compute_mib": 40, "driver_mib": 300}, "card1": {"driver_mib": 200}}


def boot(**facts: Any) -> Boot:
    told = {
        "shape": SHAPE,
        "cards": tuple(cards(2, 2000, 100)),
        "mmproj": PROJECTOR,
        "host": Card("host", 64000, 500),
        "runtime": "rt",
        "payload": "it",
        "files": {"model": "/m/a.gguf", "mmproj": "/m/p.gguf"},
    }
    return Boot(made(), **{**told, **facts})


def measured(of: Boot, figures: Any = FIGURES, name: str = "boot of Monday") -> Measured:
    return Measured(name, of.runtime, of.payload, of.shape, of.loads, of.devices, figures)


def with_figures(figures: Any = FIGURES, **facts: Any) -> Boot:
    return replace(boot(**facts), measured=(measured(boot(**facts), figures),))


def test_figures_of_this_very_boot_take_the_place_of_the_bound() -> None:
    plain, told = answer(boot()), answer(with_figures())
    assert (plain["measured"], told["measured"]) == (None, "boot of Monday")
    for before, after, driver, projector in zip(plain["cards"], told["cards"], (300, 200), (40, 0), strict=True):
        want = {"driver_mib": driver, "projector_mib": before["projector_mib"] + projector}
        if before["name"] == "card0":
            want["compute_mib"] = 7.5
        more = sum(value - before[term] for term, value in want.items())
        want |= {"total_mib": before["total_mib"] + more, "free_after_mib": before["free_after_mib"] - more}
        assert after == {**before, **want}
    lines = [(line["name"], line["card"], line["mib"], line["source"]) for line in told["lines"]][-4:]
    assert [line for line in told["lines"] if line["label"] == "measured"] == told["lines"][-4:]
    assert lines[0] == ("compute", "card0", 7.5, "boot of Monday")
    assert [line["name"] for line in told["lines"] if (line["term"], line["card"]) == ("compute", "card0")] == [
        "compute"
    ]
    # What is measured is not among what is not counted.
    labels = [[line["label"] for line in one["lines"] if line["name"] == "projector_compute"] for one in (plain, told)]
    assert labels == [["uncounted"], ["measured"]]
    assert len(plain["notes"]) == 2 and told["notes"] == []
    assert len(answer(with_figures({"card0": {"driver_mib": 1}}))["notes"]) == 2


def test_a_draft_contexts_compute_buffer() -> None:
    shape = replace(SHAPE, spec_type="draft-simple")
    told = answer(with_figures({"card1": {"draft_compute_mib": 3.25}}, shape=shape, drafter=made()))
    assert told["cards"][1]["draft_compute_mib"] == 3.25
    assert told["cards"][0]["draft_compute_mib"] > 3.25


OTHER_SHAPES: dict[str, Any] = {
    "ctx_size": 8192,
    "parallel": 1,
    "cache_type_k": "q8_0",
    "cache_type_v": "q8_0",
    "ubatch_size": 256,
    "batch_size": 1024,
    "tensor_split": (2, 3),
    "split_mode": "row",
    "kv_unified": True,
    "flash_attn": "auto",
    "spec_type": "ngram-mod",
    "spec_draft_n_max": 4,
    "draft_type_k": "q8_0",
    "draft_type_v": "q8_0",
    "draft_cards": ("card0",),
    "gpu_layers": 2,
    "swa_full": True,
    "backend": "hip",
    "outputs": 9,
}


def test_every_part_of_a_shape_is_tried() -> None:
    assert {field.name for field in fields(Shape)} == set(OTHER_SHAPES)
    assert [name for name, value in OTHER_SHAPES.items() if getattr(SHAPE, name) == value] == []


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": "rt2"},
        {"payload": "it2"},
        {"files": {"model": "/m/b.gguf", "mmproj": "/m/p.gguf"}},
        {"files": {"model": "/m/a.gguf", "mmproj": "/m/q.gguf"}},
        {"mmproj": None},
        {"lora": made()},
        {"drafter": made()},
        {"cards": (Card("card0", 2000, 100), Card("card2", 2000, 100))},
        {"cards": (Card("card1", 2000, 100), Card("card0", 2000, 100))},
        {"cards": (Card("card0", 2000, 100),)},
        *({"shape": replace(SHAPE, **{name: value})} for name, value in OTHER_SHAPES.items()),
    ],
    ids=str,
)
def test_a_credit_measured_at_one_shape_is_not_a_budget_line_at_the_next(change: dict[str, Any]) -> None:
    here = with_figures()
    assert here.applying() is here.measured[0]
    assert replace(here, **change).applying() is None


def test_another_boot_has_the_bound() -> None:
    other = replace(with_figures(), shape=replace(SHAPE, ubatch_size=256))
    assert other.ledger().lines == replace(other, measured=()).ledger().lines


def test_of_several_the_last() -> None:
    here = boot()
    figures = [measured(here, {"card0": {"driver_mib": size}}, f"of {size}") for size in (1, 2)]
    stranger = replace(measured(here), runtime="rt2")
    told = answer(replace(here, measured=(*figures, stranger)))
    assert (told["measured"], told["cards"][0]["driver_mib"]) == ("of 2", 2)


# Totals.
def mystery(free_mib: float, figures: Any, **shape: Any) -> Boot:
    """An architecture of which nothing is known."""
    asked = replace(Shape(4000, parallel=2), **shape)
    here = Boot(made("mystery"), asked, tuple(cards(2, free_mib, 100)), host=Card("host", 9.0))
    return replace(here, measured=(measured(here, figures),))


TOTALS = {"card0": {"total_mib": 1500, "compute_mib": 9}, "card1": {"total_mib": 1700.25}}


@pytest.mark.parametrize(("free_mib", "fits"), [(1800.25, True), (1800, False)])
def test_totals_serve_an_unknown_architecture(free_mib: float, fits: bool) -> None:
    told = answer(mystery(free_mib, TOTALS))
    assert (told["fits"], told["measured"], told["advice"]) == (fits, "boot of Monday", [])
    assert [card["total_mib"] for card in told["cards"]] == [1500, 1700.25]
    assert [card["free_after_mib"] for card in told["cards"]] == [free_mib - 1500, free_mib - 1700.25]
    assert (told["n_ctx"], told["n_ctx_seq"]) == (4096, 2048)  # padded as the engine does
    assert "nothing is counted on the host" in told["notes"][0]


def test_the_context_of_totals() -> None:
    told = answer(mystery(2000, TOTALS, ctx_size=0, parallel=None))
    assert (told["n_ctx"], told["n_ctx_seq"]) == (4096, 4096)  # the header's window, one cache for all


def test_a_split_that_is_not_known_needs_totals() -> None:
    here = boot(shape=replace(SHAPE, split_mode="row"))
    with pytest.raises(UnknownMemory, match=r"split_mode; expected layer; found row.*measured"):
        answer(here)
    assert answer(replace(here, measured=(measured(here, TOTALS),)))["fits"]


def test_a_drafter_on_the_host_is_not_counted() -> None:
    shape = replace(SHAPE, spec_type="draft-simple", draft_cards=())
    with pytest.raises(UnknownMemory, match="draft_cards"):
        answer(boot(shape=shape, drafter=made()))


def test_a_total_on_one_card_does_not_serve_an_unknown_architecture() -> None:
    with pytest.raises(UnknownMemory, match="architecture mystery"):
        answer(mystery(2000, {"card0": {"total_mib": 1500}}))


def test_the_hosts_own_figures() -> None:
    plain, told = (answer(one)["host"] for one in (boot(), with_figures({"host": {"compute_mib": 3, "driver_mib": 1}})))
    assert (told["compute_mib"], told["driver_mib"]) == (3, 1)
    assert told["free_after_mib"] == plain["free_after_mib"] + plain["compute_mib"] - 4
    figures = {**TOTALS, "host": {"total_mib": 7}}
    told = answer(mystery(2000, figures))
    assert (told["host"]["total_mib"], told["fits"], told["notes"]) == (7, True, [])
    alone = replace(mystery(2000, figures, backend="cpu"), cards=())
    with pytest.raises(UnknownMemory):
        answer(alone)
    told = answer(replace(alone, measured=(measured(alone, figures),)))
    assert (told["cards"], told["host"]["total_mib"], told["fits"]) == ([], 7, True)


def test_a_total_stands_for_all_of_its_card() -> None:
    told = answer(with_figures({"card0": {"total_mib": 1500, "driver_mib": 300}}))
    first, second = told["cards"]
    assert (first["total_mib"], first["driver_mib"], first["weights_mib"]) == (1500, 1500, 0)
    assert second == answer(boot())["cards"][1]
    assert [line["name"] for line in told["lines"] if line["card"] == "card0"] == ["total"]


def test_figures_of_a_card_that_the_boot_does_not_use_are_left_out() -> None:
    assert answer(with_figures({"card7": {"driver_mib": 300}}))["cards"] == answer(boot())["cards"]


# What a boot nearby has to reckon with.
@pytest.mark.parametrize(
    ("figures", "more"),
    [
        ({"card0": {"driver_mib": 300}}, {"card0": 300}),
        (
            {"card0": {"compute_mib": 0, "driver_mib": 300}, "card1": {"projector_compute_mib": 5}},
            {"card0": 300, "card1": 5},
        ),
        ({"card0": {"compute_mib": 0}}, {}),
        ({"host": {"driver_mib": 9}}, {None: 9}),
        ({"card0": {"total_mib": 0}}, {}),
    ],
)
def test_what_is_measured_beyond_the_prediction(figures: Any, more: dict[str | None, float]) -> None:
    assert {line.card: line.bytes / MIB for line in with_figures(figures).beyond()} == more


def test_a_total_beyond_the_prediction() -> None:
    predicted = predict(made(), SHAPE, mmproj=PROJECTOR, cards=cards(2)).cards[0].total
    (line,) = with_figures({"card0": {"total_mib": predicted / MIB + 12}}).beyond()
    assert (line.card, line.bytes) == ("card0", 12 * MIB)
    assert boot().beyond() == ()


@pytest.mark.parametrize(
    ("figures", "match"),
    [
        ({"card0": {"compute": 5}}, "card card0; expected compute_mib, .*found 'compute'"),
        ({"card0": {"compute_mib": "5"}}, "boot of Monday: card card0: compute_mib; expected a number.*'5'"),
        ({"card0": {"compute_mib": True}}, "found True"),
        ({"card0": {"compute_mib": None}}, "found None"),
        ({"card0": {"compute_mib": -0.1}}, "found -0.1"),
        ({"card0": {"compute_mib": math.nan}}, "found nan"),
        ({"card0": {"compute_mib": math.inf}}, "found inf"),
        ({"card0": {"compute_mib": 1 << 24}}, "found 16777216"),
        ({"card0": {"compute_mib": 5}, "card1": 5}, "card card1; expected at least one of"),
        ({"card0": {}}, "card card0; expected at least one of"),
        ({}, "figures of at least one card"),
        ([], "figures of at least one card"),
    ],
)
def test_malformed_figures(figures: Any, match: str) -> None:
    with pytest.raises(FleetError, match=match):
        measured(boot(), figures)


def test_all_terms_may_be_given() -> None:
    assert measured(boot(), {"card0": dict.fromkeys(MEASURED_TERMS, 0)}).cards
