# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's own count beside the ledger, and in its place; a stand-in prints what llama-fit-params would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import gate_fit
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_opinion import engines_ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import DRIVER_NOTE
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import UnknownMemory
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape
from ansible_collections.dank.llm_fleet.plugins.module_utils._second_opinion import Device, Opinion
from goldens import made

MODELS = Path(__file__).parents[1] / "fixtures" / "probe_model"
MIB = 2**20


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declared:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 64000 * MIB)
    env = {"BIND_ADDR": "127.0.0.1", "LISTEN_PORT": 8080, "ALIAS": "toy", "CTX_SIZE": 2048, "PARALLEL": 1}
    files = [{"name": "toy.gguf", "role": "model"}]
    payload = {"name": "toy", "dir": str(MODELS), "files": files}
    return Declared("chat", "llamacpp", env, "cpu", payload, "llm", "#!/bin/bash\n")


def facts(tmp_path: Path, answer: str | None) -> dict[str, Any]:
    """A blueprint's facts; ``answer`` is what the stand-in for the tool prints, None where the runtime has none."""
    if answer is not None:
        tool = tmp_path / "llama-fit-params"
        tool.write_text(f"#!/bin/sh\n# stand-in for llama-fit-params\necho '{answer}'\n")
        tool.chmod(0o755)
    server = str(tmp_path / "llama-server")
    argv = [server, "--model", str(MODELS / "toy.gguf"), "--ctx-size", "2048", "--parallel", "1"]
    return {"env": {}, "argv": argv, "runtime": {"server_bin": server}}


def test_a_runtime_without_the_tool_is_not_asked(declared: Declared, tmp_path: Path) -> None:
    gates = Gates()
    assert gate_fit(declared, None, None, gates, facts(tmp_path, None)).told["fits"]
    assert [row["gate"] for row in gates.passed] == ["kinship", "second opinion", "fit"]


def test_two_opinions_that_agree_pass(declared: Declared, tmp_path: Path) -> None:
    gates = Gates()
    found = gate_fit(declared, None, None, gates, facts(tmp_path, "Host 1 2 5"))
    assert found.ledger is not None
    assert [row["gate"] for row in gates.passed] == ["kinship", "second opinion", "fit", "second opinion"]


def test_two_opinions_that_differ_stop_the_deploy_and_both_are_shown(declared: Declared, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"disagree: context of Host 2\.00 against 200") as caught:
        gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 1 200 7"))
    assert caught.value.facts["gate"] == "second opinion"
    assert "2.00" in str(caught.value.expected) and "200" in str(caught.value.found)


def test_of_an_unknown_model_the_engines_count_is_taken(
    declared: Declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_args: Any, **_options: Any) -> Any:
        raise UnknownMemory("architecture new", expected="another", found="new")

    monkeypatch.setattr("ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot.Plan.of", unknown)
    with pytest.raises(UnknownMemory):
        gate_fit(declared, None, None, Gates(), facts(tmp_path, None))
    found = gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 100 20 3"))
    host = found.told["host"]
    assert (host["weights_mib"], host["kv_mib"], host["compute_mib"], found.told["fits"]) == (101, 21, 4, True)
    assert found.ledger is None
    monkeypatch.setattr(_proc, "available_bytes", lambda: 120 * MIB)
    with pytest.raises(FleetError, match=r"endpoint chat does not fit the host; .*found 126 MiB needed"):
        gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 100 20 3"))


BESIDE = {
    "drafter": {"SPEC_TYPE": "draft-simple", "SPEC_DRAFT_N_MAX": 3, "SPEC_DRAFT_N_MIN": 0, "SPEC_DRAFT_P_MIN": 0},
    "projector": {},
    "adapter": {},
}
FILES = {"drafter": "toy.gguf", "projector": "toy-mmproj.gguf", "adapter": "toy-lora-yes.gguf"}
FLAGS = {
    "drafter": ["--spec-type", "draft-simple", "--spec-draft-model", str(MODELS / "toy.gguf")],
    "projector": ["--mmproj", str(MODELS / "toy-mmproj.gguf")],
    "adapter": ["--lora", str(MODELS / "toy-lora-yes.gguf")],
}
CARD = {"name": "x", "vendor": "nvidia", "index": 0, "free_mib": 14000, "floor_mib": 100}


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise UnknownMemory("architecture new", expected="another", found="new")

    monkeypatch.setattr("ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot.Plan.of", refuse)


def on_a_card(declared: Declared, *beside: str, **env: Any) -> Declared:
    """The endpoint on one card, with what it loads beside its model."""
    lines = {**declared.env, **env}
    files = [*declared.payload["files"]]
    for what in beside:
        lines |= BESIDE[what]
        role = {"drafter": "drafter", "projector": "mmproj", "adapter": "lora"}[what]
        files.append({"name": FILES[what], "role": role})
    return replace(declared, env=lines, payload={**declared.payload, "files": files}, cards=[CARD])


def asked(tmp_path: Path, *beside: str) -> dict[str, Any]:
    """Facts with a tool that counts 9,000 MiB of weights on the card."""
    told = facts(tmp_path, "CUDA0 9000 4000 500\nHost 400 0 20")
    return {**told, "argv": [*told["argv"], *(flag for what in beside for flag in FLAGS[what])]}


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("beside", [("drafter",), ("projector",), ("adapter",), ("drafter", "projector", "adapter")])
def test_the_count_of_a_model_alone_is_no_ledger_of_more(
    declared: Declared, tmp_path: Path, beside: tuple[str, ...]
) -> None:
    here = on_a_card(declared, *beside)
    match = f"counts the model alone; .*found {', '.join(beside)} beside it. Give the totals of a boot under `measured`"
    with pytest.raises(UnknownMemory, match=match) as caught:
        gate_fit(here, None, None, Gates(), asked(tmp_path, *beside))
    assert caught.value.facts["gate"] == "fit"
    # That way out is one.
    measured = [{"name": "of Monday", "cards": {"x": {"total_mib": 13800}}}]
    found = gate_fit(replace(here, measured=measured), None, None, Gates(), asked(tmp_path, *beside))
    assert (found.told["measured"], found.told["cards"][0]["total_mib"], found.ledger) == ("of Monday", 13800, None)


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("env", "flags", "n_ctx", "n_ctx_seq"),
    [
        ({"CTX_SIZE": 4608, "PARALLEL": 3}, [], 4608, 1536),
        # A proposer without a context of its own has no buffers that the tool would leave out.
        (
            {"SPEC_TYPE": "ngram-mod", "SPEC_NGRAM_N_MIN": 48, "SPEC_NGRAM_N_MAX": 64},
            ["--spec-type", "ngram-mod"],
            2048,
            2048,
        ),
    ],
)
def test_the_engines_count_on_a_card(
    declared: Declared, tmp_path: Path, env: dict[str, Any], flags: list[str], n_ctx: int, n_ctx_seq: int
) -> None:
    told = asked(tmp_path)
    fit = gate_fit(on_a_card(declared, **env), None, None, Gates(), {**told, "argv": [*told["argv"], *flags]}).told
    assert [(card["name"], card["total_mib"], card["fits"]) for card in fit["cards"]] == [("x", 13503, True)]
    assert (fit["n_ctx"], fit["n_ctx_seq"]) == (n_ctx, n_ctx_seq)
    with pytest.raises(FleetError, match="fit card x"):
        full = replace(on_a_card(declared), cards=[{**CARD, "floor_mib": 500}])
        gate_fit(full, None, None, Gates(), asked(tmp_path))


@pytest.mark.parametrize(
    ("shape", "n_ctx", "n_ctx_seq"),
    [
        (Shape(4000, parallel=3), 4608, 1536),
        (Shape(4000, parallel=2, kv_unified=True), 4096, 4096),
        (Shape(0, parallel=2), 4096, 2048),  # the header's window
    ],
)
def test_the_context_is_padded_as_the_engine_does(shape: Shape, n_ctx: int, n_ctx_seq: int) -> None:
    opinion = Opinion((Device("CUDA0", 900, 40, 5), Device("Host", 40, 0, 2)), (), (), 0.1)
    boot = Boot(made("mystery"), shape, (Card("x", 14000, 100),))
    ledger = engines_ledger(opinion, boot, {"env": {}}, [CARD])
    assert (ledger.n_ctx, ledger.n_ctx_seq) == (n_ctx, n_ctx_seq)
    assert DRIVER_NOTE in ledger.notes and "llama-fit-params" in ledger.notes[0]
