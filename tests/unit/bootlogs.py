# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The golden boot logs, and the ledger that is predicted for the arguments of each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import parse_boot_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootLog
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import Header
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape
from goldens import GOLDEN, NINE, TWENTY_SEVEN, Made, MadeTensor, header, model

ARGV: dict[str, list[str]] = {
    name: entry["argv"] for name, entry in json.loads((GOLDEN / "bootlogs" / "index.json").read_text())["logs"].items()
}
FAILING = sorted(name for name in ARGV if name.startswith("fail-"))
SERVING = sorted(set(ARGV) - set(FAILING))

ZEALOT, NO_DRAFTER = "hybrid-9b-mtp-3slots-f16k-q8v.log", "hybrid-9b-no-drafter.log"
FITS, REFUSED = "hybrid-9b-mtp-2slots-q8-fit-passes.log", "hybrid-9b-mtp-fit-refuses.log"
TWO_CARDS, WINDOW = "hybrid-27b-two-cards-drafter-file.log", "gemma3-270m-cpu-sliding-window.log"
TINY = "tiny-llama-cpu-lora-projector.log"

# The same engine with the models of tests/fixtures/probe_model: both at a verbosity of 4, then one of 3.
TOY, TOY_COLD, TOY_QUIET = "toy-drafter-lora-projector.log", "toy-no-warmup.log", "toy-verbosity-3.log"
MODELS = Path(__file__).parents[1] / "fixtures" / "probe_model"

DEVICES = {"PHANTOM0": "card0", "PHANTOM1": "card1"}


@cache
def text(name: str) -> str:
    """A golden log as it was written."""
    return (GOLDEN / "bootlogs" / name).read_text(encoding="utf-8")


@cache
def boot(name: str) -> BootLog:
    """A golden log, read."""
    return parse_boot_log(text(name))


def _projector() -> Made:
    """The tiny projector of the log: 64 wide, two layers, patches of 14 in 112 x 112; matrices f16, the rest f32."""
    sizes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (14, 14, 3, 64),
        "v.patch_embd.bias": (64,),
        "v.position_embd.weight": (64, 64),
        "mm.input_projection.weight": (64, 128),
        "mm.soft_emb_norm.weight": (64,),
        "v.post_ln.weight": (64,),
        "v.post_ln.bias": (64,),
    }
    for layer in range(2):
        for name, dims in (
            ("ln1", (64,)),
            ("ln2", (64,)),
            ("attn_q", (64, 64)),
            ("attn_k", (64, 64)),
            ("attn_v", (64, 64)),
            ("attn_out", (64, 64)),
            ("ffn_down", (64, 128)),
            ("ffn_up", (128, 64)),
        ):
            sizes[f"v.blk.{layer}.{name}.weight"] = dims
            sizes[f"v.blk.{layer}.{name}.bias"] = dims[-1:]
    tensors = (
        MadeTensor(name, dims, "f16" if len(dims) > 1 and "position" not in name else "f32")
        for name, dims in sizes.items()
    )
    return Made("clip", {}, tuple(tensors))


def _adapter() -> Made:
    """An adapter of eight tensors like the log's; that one is not kept, its size is 0.02 MiB to two decimals."""
    pairs = (("lora_a", (128, 4)), ("lora_b", (4, 128)))
    return Made(
        "llama",
        {},
        tuple(MadeTensor(f"blk.{layer}.attn_q.weight.{suffix}", dims) for layer in range(4) for suffix, dims in pairs),
    )


@cache
def file(name: str) -> Header:
    """The header of a file that the logs' arguments name."""
    if name == "gemma270.gguf":
        path = GOLDEN / "headers" / "gemma3-270m-q4_k_m.gguf-header"
        return read_gguf(str(path), declared_bytes=246602848)
    makers: dict[str, Any] = {
        "q35-9b-bpe.gguf": lambda: header(NINE),
        "q35-27b-mtp-bpe.gguf": lambda: header(TWENTY_SEVEN),
        "draft5-sparse.gguf": lambda: model("qwen3", 5, 2048, 6144, 16, 8, 128, 248320, "q8_0"),
        "llama-tiny.gguf": lambda: model("llama", 4, 128, 256, 4, 2, 32, 512, "f16"),
        "lora-tiny.gguf": _adapter,
        "mmproj-tiny.gguf": _projector,
    }
    made: Header = makers[name]()
    return made


def options(argv: list[str]) -> dict[str, str]:
    """The arguments as a mapping: in these logs each flag has one value."""
    return dict(zip(argv[::2], argv[1::2], strict=True))


def toy_ledger() -> Ledger:
    """What is predicted for the toy's logs: a drafter that is the model itself, a projector, an adapter."""
    toy, projector, adapter = (
        read_gguf(str(MODELS / name)) for name in ("toy.gguf", "toy-mmproj.gguf", "toy-lora-yes.gguf")
    )
    shape = Shape(ctx_size=4096, parallel=2, spec_type="draft-simple", spec_draft_n_max=4, backend="cpu")
    return predict(toy, shape, drafter=toy, mmproj=projector, lora=adapter, cards=[])


def shape_of_argv(argv: list[str]) -> Shape:
    """The settings in a llama-server's arguments that decide memory."""
    given = options(argv)
    cards = [DEVICES[device] for device in given.get("--device", "").split(",") if device]
    draft = given.get("--spec-draft-device")
    split = given.get("-ts")
    return Shape(
        ctx_size=int(given["-c"]),
        parallel=int(given["-np"]) if "-np" in given else None,
        cache_type_k=given.get("-ctk", "f16"),
        cache_type_v=given.get("-ctv", "f16"),
        ubatch_size=int(given.get("-ub", 512)),
        batch_size=int(given.get("-b", 2048)),
        tensor_split=tuple(float(part) for part in split.split(",")) if split else None,
        flash_attn=given.get("-fa", "auto"),
        spec_type=given.get("--spec-type"),
        spec_draft_n_max=int(given.get("--spec-draft-n-max", 3)),
        draft_cards=tuple(DEVICES[device] for device in draft.split(",")) if draft else None,
        backend="cuda" if cards else "cpu",
    )


def ledger(name: str, **changes: Any) -> Ledger:
    """What is predicted for a log's arguments; ``changes`` are of the shape."""
    given = options(ARGV[name])
    shape = shape_of_argv(ARGV[name])
    cards = [Card(DEVICES[device], 24576) for device in given.get("--device", "").split(",") if device]
    parts = {"drafter": given.get("-md"), "mmproj": given.get("--mmproj"), "lora": given.get("--lora-scaled")}
    return predict(
        file(given["-m"]),
        Shape(**{**vars(shape), **changes}),
        cards=cards,
        **{key: file(part.split(":")[0]) for key, part in parts.items() if part},
    )
