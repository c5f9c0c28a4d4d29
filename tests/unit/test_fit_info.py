# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module fit_info through its main: parameters in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card, Shape
from ansible_collections.dank.llm_fleet.plugins.modules import fit_info
from fits import RTX3090, ZEALOT_ENV, entry, payload, sparse
from goldens import LLAMA, NINE, SWA, header

Ask = Callable[..., dict[str, Any]]
ABSENT = "/nowhere/m.gguf"


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 64000 * MIB)
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))

    def run(**params: Any) -> dict[str, Any]:
        with patch_module_args(params), pytest.raises(SystemExit) as caught:
            fit_info.main()
        told: dict[str, Any] = {**json.loads(capsys.readouterr().out), "warned": warned}
        assert caught.value.code == int(told.get("failed", False))
        return told

    return run


def of(here: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An entry as the module's parameters."""
    return {**here, "measured": here.get("measured", []), **more}


PAIR = [{"name": "a", "free_mib": 9000, "floor_mib": 500}, {"name": "b", "free_mib": 7000}]


def test_a_model_and_its_settings(ask: Ask, tmp_path: Path) -> None:
    told = ask(
        model=sparse(tmp_path, LLAMA),
        drafter=sparse(tmp_path, SWA),
        ctx_size="16384",
        parallel=2,
        cache_type_k="q8_0",
        cache_type_v="bf16",
        ubatch_size=256,
        batch_size=1024,
        tensor_split="3,1.5",
        kv_unified=True,
        flash_attn="auto",
        swa_full=True,
        spec_type="draft-simple",
        spec_draft_n_max=5,
        spec_draft_type_k="q8_0",
        spec_draft_type_v="q4_0",
        spec_draft_cards=["b"],
        gpu_layers=20,
        backend="hip",
        cards=PAIR,
        kinship=False,  # these two are of no family
    )
    batches, drafts = (256, 1024), ("draft-simple", 5, "q8_0", "q4_0", ("b",))
    shape = Shape(16384, 2, "q8_0", "bf16", *batches, (3.0, 1.5), "layer", True, "auto", *drafts, 20, True, "hip")
    held = (Card("a", 9000, 500), Card("b", 7000, 0))
    want = predict(header(LLAMA), shape, drafter=header(SWA), cards=held)
    assert [(card["name"], card["total_mib"]) for card in told["fit"]["cards"]] == [
        (card.name, pytest.approx(card.total / MIB)) for card in want.cards
    ]
    assert told["fit"]["host"]["free_mib"] == 64000
    assert (told["changed"], told["name"], told["rungs"], told["kinship"]) == (False, "boot", {}, [])


def test_what_is_searched_for(ask: Ask, tmp_path: Path) -> None:
    plain = {"model": sparse(tmp_path, LLAMA), "parallel": 1, "cards": PAIR}
    fit = ask(**plain, ctx_size="65536", tensor_split="auto")["fit"]
    assert sum(fit["split"]) == 33 and len(fit["neighbours"]) == 2
    again = ask(**plain, ctx_size="65536", tensor_split=",".join(map(str, fit["split"])))["fit"]
    assert again["cards"] == fit["cards"] and again["neighbours"] == []
    longest = ask(**plain, ctx_size="auto")["fit"]
    assert longest["fits"] and longest["n_ctx"] > 32768 and len(longest["neighbours"]) == 2
    assert ask(**plain, tensor_split="")["fit"]["n_ctx"] == 131072  # the header's window


def test_measured_figures(ask: Ask, tmp_path: Path) -> None:
    plain = {"model": sparse(tmp_path, LLAMA), "ctx_size": "4096", "cards": PAIR[:1]}
    measured = [{"cards": {"a": {"driver_mib": 400}}}, {"name": "of Monday", "cards": {"a": {"driver_mib": 401.5}}}]
    fit = ask(**plain, measured=measured)["fit"]
    assert (fit["measured"], fit["cards"][0]["driver_mib"]) == ("of Monday", 401.5)
    assert ask(**plain, measured=measured[:1])["fit"]["measured"] == "measured[0]"


def test_an_endpoint_and_its_rungs(ask: Ask, tmp_path: Path) -> None:
    rungs = {
        "exact_v": {"CACHE_TYPE_V": "f16"},
        "odd": {"PARALLEL": 5},
        "sighted": {"MMPROJ_FILE": "eye.gguf"},
        "headless": {"SPEC_TYPE": "draft-dflash"},
    }
    here = entry(tmp_path, payload=payload(tmp_path, model=f"{NINE}.gguf", mmproj="eye.gguf"))
    env = {**ZEALOT_ENV, "MMPROJ_FILE": ""}
    measured = [{"env": {"CACHE_TYPE_V": "f16"}, "cards": {"rtx3090": {"driver_mib": 300}}}]
    told = ask(**of(here, env=env, rungs=rungs, measured=measured, name="zealot"))
    assert (told["name"], told["fit"]["fits"], told["fit"]["measured"]) == ("zealot", True, None)
    fits = {rung: (fit["fits"], "error" in fit) for rung, fit in told["rungs"].items()}
    # Of a header that cannot be read nothing is known; a boot that cannot be does not fit.
    assert fits == {"exact_v": (False, False), "odd": (False, True), "sighted": (None, True), "headless": (False, True)}
    assert told["rungs"]["exact_v"]["measured"] == "measured[0]"
    assert "eye.gguf cannot be read" in told["rungs"]["sighted"]["error"]
    assert ask(**of(here, env=env, required=True, rungs=rungs))["fit"]["fits"]


def test_files_that_do_not_belong_together(ask: Ask, tmp_path: Path) -> None:
    asked = {"model": sparse(tmp_path, LLAMA), "drafter": sparse(tmp_path, SWA), "spec_type": "draft-simple"}
    told = ask(**asked, cards=PAIR)
    assert told["failed"] and "drafter" in told["msg"]
    assert "fit" in ask(**asked, cards=PAIR, kinship=False)
    assert [one["ok"] for one in ask(model=asked["model"], cards=PAIR)["kinship"]][:1] == [True]
    # Nor does a rung fit that arms such a drafter.
    here = entry(tmp_path, payload=payload(tmp_path, model=f"{NINE}.gguf", drafter=f"{LLAMA}.gguf"))
    told = ask(**of(here, rungs={"beside": {"SPEC_TYPE": "draft-simple"}}))
    assert told["fit"]["fits"] and not told["rungs"]["beside"]["fits"]
    assert "drafter" in told["rungs"]["beside"]["error"]
    told = ask(**of(here, rungs={"beside": {"SPEC_TYPE": "draft-simple"}}, kinship=False))
    assert "cards" in told["rungs"]["beside"]


def test_a_split_in_the_place_of_the_endpoints(ask: Ask, tmp_path: Path) -> None:
    held = [{**RTX3090, "name": name, "index": index, "free_mib": 20000} for index, name in enumerate("ab")]
    here = of(entry(tmp_path, {**ZEALOT_ENV, "TENSOR_SPLIT": "30,4"}, cards=held))
    assert ask(**here)["fit"]["split"] == ask(**here, tensor_split="")["fit"]["split"] == [30, 4]
    assert ask(**here, tensor_split="10,24")["fit"]["split"] == [10, 24]
    fit = ask(**here, tensor_split="auto")["fit"]
    assert 10 < fit["split"][0] < 30 and len(fit["neighbours"]) == 2


def test_a_card_needs_no_more_than_its_vendor_and_what_is_free(ask: Ask, tmp_path: Path) -> None:
    here = entry(tmp_path, cards=[{"name": "x", "vendor": "nvidia", "free_mib": 30000}])
    (card,) = ask(**of(here))["fit"]["cards"]
    assert (card["name"], card["floor_mib"], card["fits"]) == ("x", 0, True)


def test_required(ask: Ask, tmp_path: Path) -> None:
    here = of(entry(tmp_path, {**ZEALOT_ENV, "CACHE_TYPE_V": "f16"}))
    assert not ask(**here)["fit"]["fits"]
    told = ask(**here, required=True)
    assert told["msg"].startswith("endpoint chat does not fit card rtx3090; expected 1,024 MiB free")
    assert told["fit"]["advice"] and "traceback" not in json.dumps(told).lower()
    told = ask(
        model=sparse(tmp_path, LLAMA), cards=[{"name": "a", "free_mib": 10**6}], host_floor_mib=64000, required=True
    )
    assert "does not fit the host; expected 64,000 MiB free" in told["msg"]


@pytest.mark.parametrize("question", ["a model", "an endpoint"])
def test_a_header_that_is_not_there_yet(question: str, ask: Ask, tmp_path: Path) -> None:
    endpoint = {"env": ZEALOT_ENV, "payload": payload(tmp_path, model="m.gguf"), "cards": [RTX3090]}
    asked = {"model": ABSENT, "cards": PAIR} if question == "a model" else endpoint
    told = ask(**asked)
    assert told["failed"] and "m.gguf cannot be read" in told["msg"]
    told = ask(**asked, unread="warn", required=True)
    assert "fit" not in told and told["changed"] is False
    (warning,) = told["warned"]
    assert warning.startswith("whether boot fits cannot be told yet: ") and "m.gguf cannot be read" in warning
    assert ".." not in warning


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({}, "one of the following is required: env, model"),
        ({"model": ABSENT, "env": ZEALOT_ENV}, "mutually exclusive"),
        ({"env": ZEALOT_ENV}, "payload"),
        ({"env": ZEALOT_ENV, "payload": {"name": "it"}}, "missing required arguments: dir, files found in payload"),
        ({"model": ABSENT, "measured": [{"name": "x"}]}, "missing required arguments: cards found in measured"),
        ({"model": ABSENT, "ctx_size": "-1"}, "ctx_size; expected a number of tokens, or auto; found '-1'."),
        ({"model": ABSENT, "ctx_size": "٣"}, "ctx_size; expected a number of tokens"),
        ({"model": ABSENT, "tensor_split": "3;1"}, "tensor_split; expected numbers separated by commas, or auto"),
        ({"model": "SOUND"}, "cards; expected at least one for backend cuda; found none."),
        ({"model": "SOUND", "ctx_size": "auto", "backend": "cpu"}, "ctx_size; expected cards with a floor"),
        ({"model": "SOUND", "cards": PAIR, "measured": [{"cards": {"a": {"x": 1}}}]}, "measured[0]: card a; expected"),
        *(
            (
                {"model": "SOUND", "cards": PAIR, "measured": [{"cards": {"a": {"compute_mib": 1}}, key: value}]},
                f"measured[0]: {key}; expected none beside `model`, whose figures are of the settings asked; found",
            )
            for key, value in (("env", {"UBATCH_SIZE": 128}), ("runtime", "another"), ("payload", "another"))
        ),
        ({"env": ZEALOT_ENV, "payload": "SOUND", "cards": PAIR}, "card a; expected its vendor; found none."),
    ],
)
def test_questions_that_cannot_be_answered(params: dict[str, Any], match: str, ask: Ask, tmp_path: Path) -> None:
    sound = {"model": sparse(tmp_path), "payload": payload(tmp_path, model=f"{NINE}.gguf")}
    told = ask(**{key: sound[key] if value == "SOUND" else value for key, value in params.items()})
    assert told["failed"] and match in told["msg"], told
