# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an endpoint's entry to its boot: where headers are read, what is loaded, which figures are its own; the gate."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import answer, require_room
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import (
    Unread,
    boot_of,
    host_card,
    places,
    read_first,
    read_once,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import gate_fit
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import NotGguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape
from fits import PROJECTOR, RTX3090, ZEALOT_ENV, adapter, entry, owners, payload, reads
from goldens import NINE, SWA, TWENTY_SEVEN, header
from rangeserver import RangeServer, range_server

MODELS = Path(__file__).resolve().parents[1] / "fixtures" / "probe_model"
TOY = (MODELS / "toy.gguf").read_bytes()
TOY_ENV = {**{key: ZEALOT_ENV[key] for key in ("BIND_ADDR", "LISTEN_PORT", "ALIAS")}, "CTX_SIZE": 512, "PARALLEL": 2}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server(m_gguf=TOY, other_gguf=b"<!DOCTYPE html>" * 9) as state:
        yield state


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


def toy(folder: Path, *urls: str) -> dict[str, Any]:
    held = payload(folder, model="m.gguf")
    held["files"][0]["urls"] = list(urls)
    return {"name": "chat", "env": TOY_ENV, "runtime": "rt", "payload": held, "cards": []}


# Where headers are read.
def test_the_answer_is_the_same_from_an_address_and_from_the_file(tmp_path: Path, server: RangeServer) -> None:
    here = toy(tmp_path, server.url("broken"), server.url("norange"), server.url())
    remote = answer(boot_of(here, TOY_ENV))
    asked = len(server.requests)
    assert asked >= 3
    (tmp_path / "m.gguf").write_bytes(TOY)
    assert answer(boot_of(here, TOY_ENV)) == remote
    assert remote["host"]["weights_mib"] > 1
    assert len(server.requests) == asked  # a file that is there is read, and no address


def test_a_header_is_read_once(server: RangeServer) -> None:
    read_once(server.url())
    asked = len(server.requests)
    assert read_once(server.url()) is read_once(server.url())
    assert len(server.requests) == asked


def test_neither_a_file_nor_an_address(tmp_path: Path) -> None:
    with pytest.raises(
        Unread, match=r"/m\.gguf cannot be read; expected the file on this host, or an address .*neither"
    ):
        boot_of(toy(tmp_path), TOY_ENV)


def test_every_place_that_gives_nothing_is_named(tmp_path: Path, nobody: str, server: RangeServer) -> None:
    urls = [f"{nobody}/a/m.gguf", f"{nobody}/b/m.gguf", server.url("norange"), server.url("good", "gone.gguf")]
    with pytest.raises(Unread, match=r"the header of m\.gguf cannot be read") as caught:
        boot_of(toy(tmp_path, *urls), TOY_ENV)
    assert all(url in str(caught.value.found) for url in urls)


SET = w.shards([[w.T("a")], [w.T("b")]])


@pytest.mark.parametrize("there", [b"<html>", b"", TOY[:5000]])
def test_an_unsound_file_on_this_host_may_be_fetched_anew(there: bytes, tmp_path: Path, server: RangeServer) -> None:
    (tmp_path / "m.gguf").write_bytes(there)
    found = places(str(tmp_path / "m.gguf"), toy(tmp_path, server.url())["payload"]["files"])
    assert read_first(found, read_gguf).file_bytes == len(TOY)
    with pytest.raises(Unread, match=r"the header of m\.gguf cannot be read"):
        read_first(found[:1], read_gguf)


def test_a_set_of_shards_that_is_fetched_in_part_is_not_read_yet(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(SET[0])
    with pytest.raises(Unread, match="shard 2 of 2 is missing"):
        read_first([str(tmp_path / "m-00001-of-00002.gguf")], read_gguf)


def test_an_unsound_header_at_an_address_is_a_refusal(server: RangeServer) -> None:
    with pytest.raises(NotGguf):
        read_first([server.url("good", "other.gguf"), server.url()], read_gguf)


# What is loaded.
BESIDE = {"model": "m.gguf", "mmproj": "eye.gguf", "lora": "lora.gguf", "drafter": "draft.gguf"}
FLASH = {"SPEC_TYPE": "draft-dflash", "SPEC_DRAFT_N_MAX": 2, "SPEC_DRAFT_N_MIN": 0, "SPEC_DRAFT_P_MIN": 0}
NGRAM = {"SPEC_TYPE": "ngram-mod", "SPEC_NGRAM_N_MIN": 4, "SPEC_NGRAM_N_MAX": 8}


@pytest.mark.parametrize(
    ("lines", "loaded"),
    [
        ({}, {"model", "mmproj", "lora"}),
        ({"MMPROJ_FILE": "", "LORA_FILE": ""}, {"model"}),
        ({"LORA_SCALE": 0}, {"model", "mmproj", "lora"}),
        (FLASH, {"model", "mmproj", "lora", "drafter"}),
        ({**FLASH, "SPEC_TYPE": "none"}, {"model", "mmproj", "lora"}),
        # The launcher strips the drafter's lines, named or not.
        ({**NGRAM, "SPEC_DRAFT_MODEL": "draft.gguf"}, {"model", "mmproj", "lora"}),
        ({**FLASH, "SPEC_TYPE": "none", "SPEC_DRAFT_MODEL": "draft.gguf"}, {"model", "mmproj", "lora"}),
    ],
)
def test_files(lines: dict[str, Any], loaded: set[str], tmp_path: Path) -> None:
    for name in BESIDE.values():
        (tmp_path / name).touch()
    asked = []

    def read(place: str) -> Any:
        asked.append(Path(place).name)
        return header(NINE)

    boot = boot_of({**toy(tmp_path), "payload": payload(tmp_path, **BESIDE)}, {**TOY_ENV, **lines}, read=read)
    assert dict(boot.loads) == {role: str(tmp_path / BESIDE[role]) for role in loaded}
    assert sorted(asked) == sorted(BESIDE[role] for role in loaded)


def test_unsound_lines_are_refused_before_a_header_is_read(tmp_path: Path) -> None:
    for lines, match in (
        ({"PARALLEL": 3}, "endpoint chat: CTX_SIZE 512 is not divisible"),
        ({"NLG": 1}, "NLG is no key"),
    ):
        with pytest.raises(FleetError, match=match):
            boot_of(toy(tmp_path), {**TOY_ENV, **lines}, read=lambda _place: pytest.fail("read"))


# Measured entries.
@pytest.mark.parametrize(
    ("entry_of", "lines", "used"),
    [
        ({}, {}, "measured[0]"),
        ({"name": "Monday"}, {}, "Monday"),
        ({"env": None, "runtime": None, "payload": None, "name": None}, {}, "measured[0]"),
        ({"runtime": "rt", "payload": "it"}, {}, "measured[0]"),
        ({"env": {"UBATCH_SIZE": 512}}, {"UBATCH_SIZE": 512}, "measured[0]"),
        ({"env": {"UBATCH_SIZE": 512}}, {}, None),
        ({}, {"UBATCH_SIZE": 512}, None),
        ({}, {"SPEC_TYPE": "none"}, None),
        ({"env": {"SPEC_TYPE": "none"}}, {"SPEC_TYPE": "none", "SPEC_DRAFT_N_MAX": 9}, "measured[0]"),
        ({}, {"MODEL_FILE": "other.gguf"}, None),
        ({"env": {"MODEL_FILE": "other.gguf"}}, {"MODEL_FILE": "other.gguf"}, "measured[0]"),
        ({}, {"MMPROJ_FILE": ""}, None),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, {"CUDA_VISIBLE_DEVICES": "1"}, "measured[0]"),
        ({"runtime": "rt2"}, {}, None),
        # Lines that make no sense with this payload's files belong to another.
        ({"payload": "it2", "env": {"LORA_FILE": "gone.gguf"}}, {}, None),
    ],
)
def test_which_figures_are_used(
    entry_of: dict[str, Any], lines: dict[str, Any], used: str | None, tmp_path: Path
) -> None:
    held = payload(tmp_path, mmproj="eye.gguf")
    held["files"] += [{"name": name, "role": "model"} for name in ("m.gguf", "other.gguf")]
    for file in held["files"]:
        (tmp_path / file["name"]).touch()
    env = {**ZEALOT_ENV, "MODEL_FILE": "m.gguf", "CUDA_VISIBLE_DEVICES": "0"}
    here = {**toy(tmp_path), "env": env, "payload": held, "cards": [RTX3090, {**RTX3090, "name": "second", "index": 1}]}
    here["measured"] = [{"cards": {"rtx3090": {"driver_mib": 2}, "second": {"driver_mib": 2}}, **entry_of}]
    told = answer(boot_of(here, {**env, **lines}, read=reads(eye=PROJECTOR, m=header(NINE), other=header(NINE))))
    assert told["measured"] == used
    assert [card["driver_mib"] for card in told["cards"]] == [2 if used else 0]


@pytest.mark.parametrize(
    ("one", "match"),
    [
        ({"cards": {"rtx3090": {"driver": 2}}}, r"measured\[0\]: card rtx3090; expected compute_mib, .*'driver'"),
        ({}, r"measured\[0\]: cards; expected figures"),
        ({"cards": {"rtx3090": {"driver_mib": 2}}, "env": {"PARALLEL": 5}}, r"endpoint chat, measured\[0\]: CTX_SIZE"),
    ],
)
def test_malformed_measured_entries(one: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=match):
        boot_of({**entry(tmp_path), "measured": [one]}, ZEALOT_ENV)


# The owner's endpoints: golden headers stand in for the models, whose cache lines are the same.
ZEALOT_KEPT = {
    "": (14406.0, 452.25, 2352.0),
    "spec_off": (14406.0, 150.75, 0.0),
    "ubatch_2048": (14406.0, 452.25, 2352.0),
    "two_slots": (9604.0, 301.5, 1568.0),
    "exact_v": (12544.0, 301.5, 1568.0),
    "q8_keys": (9996.0, 452.25, 2352.0),
    "adapter_off": (14406.0, 452.25, 2352.0),
    "adapter_zero": (14406.0, 452.25, 2352.0),
    "text_only": (14406.0, 452.25, 2352.0),
    "era_exact_kv": (16384.0, 100.5, 0.0),
    "q8_pair_trained_window": (13056.0, 452.25, 3072.0),
}
FLASHED = ((11520.0, 1396.5, 0.0), (8960.0, 997.5, 100.0))  # 1 + 7 planes of states; 5 layers x 2 slots x 2,560 cells
PLAIN = ((11520.0, 174.5625, 0.0), (8960.0, 124.6875, 0.0))
MEDIUM_KEPT = {
    "": FLASHED,
    "spec_off": PLAIN,
    "dflash_alone": FLASHED,
    "ngram_alone": PLAIN,
    "mtp_head": ((11520.0, 698.25, 0.0), (8960.0, 498.75, 1280.0)),
    "text_only": FLASHED,
    "trained_window": ((9216.0, 1346.625, 0.0), (7168.0, 1047.375, 100.0)),
}


def kept(told: dict[str, Any]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(card[f"{term}_mib"] for term in ("kv", "recurrent", "draft_kv")) for card in told["cards"])


def verdicts(here: dict[str, Any], **headers: Any) -> dict[str, dict[str, Any]]:
    """The answers of an endpoint as declared ("") and on each of its rungs."""
    rungs: dict[str, dict[str, Any]] = {"": {}, **here["rungs"]}
    return {
        rung: answer(boot_of(here, {**here["env"], **lines}, read=reads(**headers))) for rung, lines in rungs.items()
    }


def test_frank_zealot_and_each_of_its_rungs(tmp_path: Path) -> None:
    here = owners("dankclaw", "frank-zealot", tmp_path)
    found = verdicts(here, PQ2_0=header(NINE), mmproj=PROJECTOR, LoRA=adapter(NINE))
    assert {rung: kept(told)[0] for rung, told in found.items()} == ZEALOT_KEPT
    for rung, told in found.items():
        (card,) = told["cards"]
        assert (card["name"], card["free_mib"], card["floor_mib"]) == ("rtx3090", 24123, 1024)
        assert (card["adapter_mib"] > 0) == (rung not in ("adapter_off", "era_exact_kv", "q8_pair_trained_window"))
        assert (card["projector_mib"] > 0) == (rung != "text_only")
        assert told["fits"] == (card["free_after_mib"] >= 1024) and bool(told["advice"]) != told["fits"]


def test_frank_medium_and_each_of_its_rungs(tmp_path: Path) -> None:
    here = owners("dankserver", "frank-medium", tmp_path)
    found = verdicts(here, Swift=header(TWENTY_SEVEN), mmproj=PROJECTOR, DFlash2=header(SWA))
    assert {rung: kept(told) for rung, told in found.items()} == MEDIUM_KEPT
    for rung, told in found.items():
        assert [card["name"] for card in told["cards"]] == ["r9700-0", "r9700-1"]
        assert told["fits"], rung
        assert told["split"] == ([36, 30] if rung == "trained_window" else [37, 29])
        drafts = rung not in ("spec_off", "ngram_alone", "mtp_head")
        assert [card["draft_weights_mib"] > 0 for card in told["cards"]] == [False, drafts]


# The gate.
def test_the_host_has_what_is_available_and_what_the_old_process_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 3 * MIB)
    monkeypatch.setattr(_proc, "anonymous_bytes", lambda pid: {7: 5 * MIB}[pid])
    assert host_card() == Card("host", 3.0, 0.0)
    assert host_card(0) == Card("host", 3.0, 0.0)
    assert host_card(7, 2.0) == Card("host", 8.0, 2.0)


def test_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 5000 * MIB)
    monkeypatch.setattr(_proc, "anonymous_bytes", lambda _pid: 0)
    rungs = {"exact_v": {"CACHE_TYPE_V": "f16"}}
    measured = [{"cards": {"rtx3090": {"driver_mib": 250}}}]
    told = {**entry(tmp_path), "engine": "llamacpp", "rungs": rungs, "measured": measured}
    declared = Declared.from_entry(told, "#!/bin/bash\n")
    gates = Gates()
    foretold = gate_fit(declared, None, None, gates)
    fit = foretold.told
    assert [row["gate"] for row in gates.passed] == ["kinship", "fit"]
    assert (fit["fits"], fit["measured"], fit["host"]["free_mib"]) == (True, "measured[0]", 5000)
    # A boot's log is held against formulas: it tells no driver's figure.
    assert foretold.ledger is not None and (foretold.ledger.cards[0].driver, fit["cards"][0]["driver_mib"]) == (0, 250)
    with pytest.raises(
        FleetError, match=r"(?s)endpoint chat does not fit card rtx3090.*CACHE_TYPE_V=q8_0 is enough"
    ) as caught:
        gate_fit(declared, "exact_v", 7, gates)
    assert caught.value.facts["fit"]["measured"] is None
    monkeypatch.setattr(_proc, "available_bytes", lambda: 500 * MIB)
    monkeypatch.setattr(_proc, "anonymous_bytes", lambda _pid: 4500 * MIB)
    with pytest.raises(FleetError, match="endpoint chat does not fit the host"):
        gate_fit(declared, None, None, Gates())
    assert not gate_fit(declared, None, None, Gates(), required=False).told["fits"]
    assert gate_fit(declared, None, 7, Gates()).told["fits"]


def test_the_gate_of_a_boot_of_which_only_totals_are_known(tmp_path: Path) -> None:
    measured = [{"env": {"SPLIT_MODE": "row"}, "cards": {"rtx3090": {"total_mib": 20000}}}]
    told = {**entry(tmp_path), "engine": "llamacpp", "rungs": {"row": {"SPLIT_MODE": "row"}}, "measured": measured}
    foretold = gate_fit(Declared.from_entry(told, "#!/bin/bash\n"), "row", None, Gates())
    assert (foretold.told["cards"][0]["total_mib"], foretold.ledger) == (20000, None)


def test_the_gate_asks_for_kinship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 64000 * MIB)
    for name in ("toy.gguf", "toy-mmproj.gguf", "toy-lora-yes.gguf"):
        (tmp_path / name).write_bytes((MODELS / name).read_bytes())
    held = payload(tmp_path, model="toy.gguf", mmproj="toy-mmproj.gguf", lora="toy-lora-yes.gguf")
    told = {**toy(tmp_path), "engine": "llamacpp", "payload": held}
    assert gate_fit(Declared.from_entry(told, "#!/bin/bash\n"), None, None, Gates()).told["fits"]
    told["payload"] = payload(tmp_path, model="toy.gguf", mmproj="toy-lora-yes.gguf")
    with pytest.raises(FleetError, match="expected a projector"):
        gate_fit(Declared.from_entry(told, "#!/bin/bash\n"), None, None, Gates())


def test_a_boot_without_cards_is_held_against_the_host(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(TOY)
    here = toy(tmp_path)
    told = answer(boot_of(here, TOY_ENV, host=Card("host", 4, 1)))
    assert (boot_of(here, TOY_ENV).shape.backend, told["cards"]) == ("cpu", [])
    with pytest.raises(FleetError, match="endpoint chat does not fit the host"):
        require_room("chat", told)
    assert boot_of(here, TOY_ENV).shape == Shape(512, parallel=2, flash_attn="auto", backend="cpu")
