# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicted against measured, for the arguments of seven real boots; and each way in which the two can differ."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import parse_boot_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_compare import (
    Difference,
    compare,
    measured_terms,
    require_agreement,
    require_told,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootLine, BootLog
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger, Line
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from bootlogs import (
    ARGV,
    DEVICES,
    FAILING,
    FITS,
    NO_DRAFTER,
    REFUSED,
    SERVING,
    TINY,
    TOY,
    TOY_COLD,
    TOY_QUIET,
    TWO_CARDS,
    WINDOW,
    ZEALOT,
    boot,
    ledger,
    shape_of_argv,
    text,
    toy_ledger,
)

EXACT = ("weights", "kv", "recurrent", "draft_weights", "draft_kv", "adapter")
BOUND = ("compute", "draft_compute", "outputs", "projector")


def two(mib: float | None) -> str:
    """As the engine prints it."""
    return "none" if mib is None else f"{mib:.2f}"


def at(differences: list[Difference], term: str, card: str | None = "card0") -> Difference:
    return next(each for each in differences if (each.term, each.card) == (term, card))


def with_line(found: BootLog, term: str, device: str, mib: float) -> BootLog:
    """A boot with one figure more, or in place of the one it has."""
    others = [line for line in found.lines if (line.term, line.device) != (term, device)]
    return replace(found, lines=(*others, BootLine(term, device, "target", mib, 0.005)))


@pytest.mark.parametrize("name", SERVING)
def test_the_prediction_for_a_logs_arguments(name: str) -> None:
    differences = require_agreement(ledger(name), boot(name), devices=DEVICES)
    assert [each.sentence for each in differences if not each.ok] == []
    for each in differences:
        if each.label == "exact":
            assert each.term in EXACT
            assert two(each.predicted) == two(each.measured)
        elif each.label == "bound":
            assert each.term in BOUND
            assert each.predicted is not None and each.measured is not None
            assert each.measured <= each.predicted + 0.01
            # A bound that is far off would agree with anything; the output buffers grow to it once drafts run.
            assert each.predicted <= (2.1 if each.term == "outputs" else 1.2) * each.measured + 0.01
    # Nothing on either side is left out.
    assert {(line.term, line.card) for line in ledger(name).lines if line.bytes} == {
        (each.term, each.card) for each in differences if each.predicted is not None
    }
    assert sum(line.mib for line in boot(name).lines) == pytest.approx(sum(each.measured or 0 for each in differences))


def test_the_seven_logs_have_every_term() -> None:
    assert len(SERVING) == 7
    terms = {each.term for name in SERVING for each in compare(ledger(name), boot(name), devices=DEVICES)}
    assert terms == {*EXACT, *BOUND, "weights_repacked"}


@pytest.mark.parametrize("name", SERVING)
def test_keys_values_and_states_one_by_one(name: str) -> None:
    found, sums = boot(name), dict[str, int]()
    for line in ledger(name).lines:
        sums[line.name] = sums.get(line.name, 0) + line.bytes
    printed: dict[str, float] = {}
    for lead, context in (("", found.target), ("draft_", found.draft)):
        for cache in context.caches if context else ():
            kind = "window_" if cache.kind == "window" else ""
            printed[f"{lead}kv_{kind}k"], printed[f"{lead}kv_{kind}v"] = cache.k_mib, cache.v_mib
        states = context.states if context else None
        if states is not None:
            printed["recurrent_r"], printed["recurrent_s"] = states.r_mib, states.s_mib
    assert printed == {name: round(size / MIB, 2) for name, size in sums.items() if name in printed}
    assert {key for key in sums if "kv" in key or "recurrent" in key} == set(printed)
    assert found.target is not None
    predicted = ledger(name)
    assert (found.target.n_ctx, found.target.n_ctx_seq) == (predicted.n_ctx, predicted.n_ctx_seq)


@pytest.mark.parametrize("name", [TOY, TOY_COLD])
def test_a_boot_with_everything_beside_the_model(name: str) -> None:
    differences = require_agreement(toy_ledger(), boot(name), devices={})
    assert {each.term for each in differences if each.label == "exact"} == {*EXACT} - {"recurrent"}
    assert all(two(each.predicted) == two(each.measured) for each in differences if each.label == "exact")
    terms = measured_terms(boot(name), {})["host"]
    projector = {"projector_compute_mib": 0.22} if name == TOY else {}
    assert terms == {"compute_mib": 5.52, "draft_compute_mib": 5.52, **projector}


def test_the_arguments_are_read_whole() -> None:
    shape = shape_of_argv(ARGV[TWO_CARDS])
    assert (shape.tensor_split, shape.draft_cards, shape.spec_draft_n_max) == ((36.0, 29.0), ("card1",), 7)
    shape = shape_of_argv(ARGV[ZEALOT])
    assert (shape.cache_type_k, shape.cache_type_v, shape.parallel, shape.spec_type) == ("f16", "q8_0", 3, "draft-mtp")


# Each way to differ.
@pytest.mark.parametrize(
    ("change", "term", "sentence"),
    [
        (
            {"cache_type_v": "f16"},
            "kv",
            r"kv on card0: predicted 18,816\.00 MiB, the boot took 14,406\.00, 4,410\.00 less",
        ),
        (
            {"spec_draft_n_max": 1},
            "recurrent",
            r"recurrent on card0: predicted 301\.50 MiB, the boot took 452\.25, 150\.75 more",
        ),
        (
            {"draft_type_k": "q8_0"},
            "draft_kv",
            r"draft_kv on card0: predicted 1,800\.75 MiB, the boot took 2,352\.00, 551\.25 more",
        ),
        (
            {"spec_type": "none"},
            "draft_kv",
            r"draft_kv on card0: the boot took 2,352\.00 MiB, nothing was predicted",
        ),
        (
            {"ubatch_size": 512},
            "compute",
            r"compute on card0: predicted at most 1,4\d\d\.\d\d MiB, the boot took 1,681\.04, 2\d\d\.\d\d more",
        ),
    ],
)
def test_a_wrong_prediction(change: dict[str, Any], term: str, sentence: str) -> None:
    each = at(compare(ledger(ZEALOT, **change), boot(ZEALOT), devices=DEVICES), term)
    assert not each.ok
    assert re.fullmatch(sentence, each.sentence)


def test_what_was_predicted_and_never_came() -> None:
    differences = compare(ledger(ZEALOT), boot(NO_DRAFTER), devices=DEVICES)
    each = at(differences, "draft_kv")
    assert (each.ok, each.predicted, each.measured, each.label) == (False, 2352.0, None, "exact")
    assert each.sentence == "draft_kv on card0: predicted 2,352.00 MiB, nothing in the log"
    assert {each.term for each in differences if not each.ok} == {"weights", "recurrent", "draft_kv", "draft_compute"}


@pytest.mark.parametrize(
    ("mib", "ok"), [(14406.00, True), (14406.01, False), (14405.99, False), (14406.005, True), (14405.995, True)]
)
def test_an_exact_term_agrees_to_the_printed_digits(mib: float, ok: bool) -> None:
    found = with_line(boot(ZEALOT), "kv", "PHANTOM0", mib)
    assert at(compare(ledger(ZEALOT), found, devices=DEVICES), "kv").ok is ok


def test_a_bound_never_falls_short() -> None:
    bound = at(compare(ledger(ZEALOT), boot(ZEALOT), devices=DEVICES), "compute").predicted
    assert bound is not None
    for mib, ok in ((0.0, True), (bound, True), (bound + 0.006, False), (99999.0, False)):
        found = with_line(boot(ZEALOT), "compute", "PHANTOM0", mib)
        assert at(compare(ledger(ZEALOT), found, devices=DEVICES), "compute").ok is ok


@pytest.mark.parametrize(("size", "ok"), [(1000, True), (10000, False)])
def test_what_is_too_small_to_be_printed(size: int, ok: bool) -> None:
    whole = ledger(NO_DRAFTER)
    small = replace(whole, lines=(*whole.lines, Line("adapter", "adapter", "card0", size, "exact", "llama-adapter")))
    assert at(compare(small, boot(NO_DRAFTER), devices=DEVICES), "adapter").ok is ok
    printed = with_line(boot(NO_DRAFTER), "adapter", "PHANTOM0", 0.0 if ok else 0.01)
    assert at(compare(whole, printed, devices=DEVICES), "adapter").ok is ok


def test_a_device_that_nobody_named() -> None:
    differences = compare(ledger(TWO_CARDS), boot(TWO_CARDS), devices={"PHANTOM0": "card0"})
    stranger = at(differences, "kv", "PHANTOM1")
    assert (stranger.ok, stranger.predicted, stranger.measured) == (False, None, 8960.0)
    assert not at(differences, "kv", "card1").ok
    with pytest.raises(FleetError, match=r"device PHANTOM1.*names for PHANTOM0"):
        measured_terms(boot(TWO_CARDS), {"PHANTOM0": "card0"})


@pytest.mark.parametrize("host", [None, "host"])
def test_the_hosts_buffers_may_be_named(host: str | None) -> None:
    named = {**DEVICES, "PHANTOM_Host": host, "CPU_Mapped": host}
    assert compare(ledger(ZEALOT), boot(ZEALOT), devices=named) == compare(
        ledger(ZEALOT), boot(ZEALOT), devices=DEVICES
    )


@pytest.mark.parametrize("device", ["CPU", "CPU_Mapped", "CPU_REPACK", "AMX", "CUDA_Host", "ROCm_Host"])
def test_what_lies_on_the_host(device: str) -> None:
    found = with_line(boot(NO_DRAFTER), "adapter", device, 7.0)
    assert at(compare(ledger(NO_DRAFTER), found, devices=DEVICES), "adapter", None).measured == 7.0


# Terms that a ledger leaves to the boot.
def test_copies_of_mapped_weights_are_told_apart() -> None:
    differences = compare(ledger(WINDOW), boot(WINDOW), devices={})
    copies = at(differences, "weights_repacked", None)
    assert (copies.ok, copies.label, copies.predicted, copies.measured) == (True, "uncounted", None, 12.66)
    # Where nothing is mapped they are no copies, but a part of the weights.
    lines = [line for line in boot(WINDOW).lines if line.device != "CPU_Mapped"]
    rest = BootLine("weights", "CPU", "target", 222.50, 0.005)
    loaded = replace(boot(WINDOW), lines=(*lines, rest))
    differences = compare(ledger(WINDOW), loaded, devices={})
    assert at(differences, "weights", None).ok
    assert at(differences, "weights", None).measured == 235.16
    assert not any(each.term == "weights_repacked" for each in differences)


def test_a_stretch_of_the_file_that_holds_a_cards_layers_too() -> None:
    found = with_line(replace(boot(NO_DRAFTER), offloaded=(20, 34)), "weights", "CPU_Mapped", 4000.0)
    each = at(compare(ledger(NO_DRAFTER), found, devices=DEVICES), "weights", None)
    assert each.ok and "mapped together" in each.sentence
    for wrong in (
        replace(found, offloaded=(34, 34)),
        replace(found, offloaded=None),
        with_line(found, "weights", "CPU_Mapped", 1000.0),
    ):
        assert not at(compare(ledger(NO_DRAFTER), wrong, devices=DEVICES), "weights", None).ok


def test_a_projectors_compute_buffer() -> None:
    found = with_line(boot(ZEALOT), "projector_compute", "PHANTOM0", 248.10)
    each = at(compare(ledger(ZEALOT), found, devices=DEVICES), "projector_compute")
    assert (each.ok, each.label, each.measured) == (True, "uncounted", 248.10)
    assert "no header tells" in each.sentence
    assert measured_terms(found, DEVICES)["card0"]["projector_compute_mib"] == 248.10
    # Its file is a term like any other.
    file = with_line(boot(ZEALOT), "projector", "PHANTOM0", 595.29)
    assert not at(compare(ledger(ZEALOT), file, devices=DEVICES), "projector").ok


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        (
            ZEALOT,
            {
                "card0": {"compute_mib": 1681.04, "draft_compute_mib": 480.97},
                "host": {"compute_mib": 456.95, "draft_compute_mib": 424.86},
            },
        ),
        (NO_DRAFTER, {"card0": {"compute_mib": 1681.04}, "host": {"compute_mib": 456.95}}),
        (
            FITS,
            {
                "card0": {"compute_mib": 2608.34, "draft_compute_mib": 960.06},
                "host": {"compute_mib": 912.36, "draft_compute_mib": 848.07},
            },
        ),
        (
            TWO_CARDS,
            {
                "card0": {"compute_mib": 892.08},
                "card1": {"compute_mib": 802.06, "draft_compute_mib": 212.01},
                "host": {"compute_mib": 740.09, "draft_compute_mib": 176.02},
            },
        ),
        (TINY, {"host": {"compute_mib": 4.28}}),
    ],
)
def test_what_a_boot_measures(name: str, terms: dict[str, dict[str, float]]) -> None:
    assert measured_terms(boot(name), DEVICES) == terms


def test_a_buffer_that_no_ledger_knows() -> None:
    line = "0.30.756.200 I llama_kv_cache_next: PHANTOM0 Q buffer size = 100.00 MiB"
    found = parse_boot_log(text(ZEALOT).replace("0.30.756.314 I", f"{line}\n0.30.756.314 I"))
    with pytest.raises(FleetError, match="other memory") as caught:
        require_agreement(ledger(ZEALOT), found, devices=DEVICES)
    (row,) = caught.value.facts["differences"]
    assert row["term"] == "unread" and line in row["sentence"]


# Refusals.
def test_one_error_with_both_sides() -> None:
    predicted = ledger(ZEALOT, cache_type_v="f16", ubatch_size=512)
    with pytest.raises(FleetError) as caught:
        require_agreement(predicted, boot(ZEALOT), devices=DEVICES)
    error = caught.value
    assert "kv on card0 18,816.00 MiB" in error.expected and "kv on card0 14,406.00 MiB" in error.found
    assert "compute on card0 at most" in error.expected and "compute on card0 1,681.04 MiB" in error.found
    assert "weights" not in error.expected
    assert {row["term"] for row in error.facts["differences"]} == {"kv", "compute", "draft_compute"}
    assert error.facts["notes"] == []


def test_one_error_with_a_side_that_has_nothing() -> None:
    with pytest.raises(FleetError) as caught:
        require_agreement(ledger(ZEALOT), boot(NO_DRAFTER), devices=DEVICES)
    assert "draft_kv on card0 2,352.00 MiB" in caught.value.expected
    assert "draft_kv on card0 none" in caught.value.found


def test_a_boot_of_another_context_is_said_to_be_one() -> None:
    with pytest.raises(FleetError) as caught:
        require_agreement(ledger(ZEALOT), boot(FITS), devices=DEVICES)
    assert caught.value.facts["notes"] == [
        "predicted for a context of 602112 (200704 a slot), the boot has 401408 (200704)"
    ]


def calls(found: BootLog, predicted: Ledger) -> list[Any]:
    return [
        lambda: require_told(found),
        lambda: compare(predicted, found, devices=DEVICES),
        lambda: require_agreement(predicted, found, devices=DEVICES),
        lambda: measured_terms(found, DEVICES),
    ]


def refused(found: BootLog, match: str) -> None:
    for call in calls(found, ledger(ZEALOT)):
        with pytest.raises(FleetError, match=match):
            call()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (FAILING[0], r"the boot failed: SPEC_TYPE draft-mtp.*doesn't contain MTP layers.*SPEC_TYPE=none"),
        (FAILING[1], r"the boot failed: a second drafter.*GGML_ASSERT.*Keep one of them"),
    ],
)
def test_a_boot_that_failed_is_no_measure(name: str, match: str) -> None:
    refused(boot(name), match)


def test_a_log_that_tells_no_sizes_is_no_measure() -> None:
    refused(boot(TOY_QUIET), r"verbosity of 4; found a verbosity of 3\. Set VERBOSITY=4")


def test_a_log_that_is_not_whole_is_no_measure() -> None:
    cut = text(REFUSED).split("initializing, n_slots")[0]
    refused(parse_boot_log(cut), r"found a log without the slots, the line that tells where it listens")
    refused(parse_boot_log(""), r"a log without the target's weights, the target's context")


@pytest.mark.parametrize("name", SERVING)
def test_every_serving_log_is_a_measure(name: str) -> None:
    require_told(boot(name))
