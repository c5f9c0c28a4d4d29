# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Are the files of a boot made for each other: real files that are, and each relation broken once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ggufwriter as w
import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import ArrayInfo, Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship import (
    KINSHIP_KEYS,
    Relation,
    check_kinship,
    require_kinship,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_vocab import (
    Vocabulary,
    compare_tokens,
    vocabulary,
)
from ggufwriter import T
from goldens import LLAMA, NINE, QWEN3, SWA, header
from hypothesis import given, settings
from hypothesis import strategies as st

MODELS = Path(__file__).resolve().parents[1] / "fixtures" / "probe_model"
WIDTH, TOKENS, LAYERS = 64, 40, 4

Keys = Mapping[str, tuple[int, Any] | None]
Build = Callable[..., Gguf]

WORDS = [f"token{number}" for number in range(TOKENS)]
TOKENIZER: Keys = {
    "tokenizer.ggml.model": (w.STRING, "gpt2"),
    "tokenizer.ggml.tokens": (w.ARRAY, (w.STRING, WORDS)),
    "tokenizer.ggml.bos_token_id": (w.U32, 1),
    "tokenizer.ggml.eos_token_id": (w.U32, 2),
}
EMBEDDING = T("token_embd.weight", (WIDTH, TOKENS))
TENSORS = (EMBEDDING, T("blk.0.attn_q.weight", (WIDTH, 96)), T("blk.3.ffn_up.weight", (WIDTH, 128)))


def text(value: str) -> tuple[int, str]:
    return w.STRING, value


def numbers(*values: int) -> tuple[int, Any]:
    return w.ARRAY, (w.U32, list(values))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Write a file and read it: ``keys`` replace those of a small model, None takes one away."""

    def make(
        name: str = "model", arch: str = "llama", tensors: Sequence[T] = TENSORS, keys: Keys | None = None, **own: int
    ) -> Gguf:
        numbers_of = {"block_count": LAYERS, "embedding_length": WIDTH, **own}
        pairs = {
            "general.architecture": text(arch),
            **{f"{arch}.{key}": (w.U32, value) for key, value in numbers_of.items()},
            **TOKENIZER,
            **(keys or {}),
        }
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(w.gguf([(key, *value) for key, value in pairs.items() if value is not None], tensors))
        return read_gguf(str(path), whole=KINSHIP_KEYS)

    return make


@pytest.fixture
def project(build: Build) -> Build:
    """A projector of one type with the one tensor that makes its output."""

    def make(kind: str, tensors: Sequence[T], encoders: Sequence[str] = ("vision",), keys: Keys | None = None) -> Gguf:
        own: Keys = {f"clip.has_{encoder}_encoder": (w.BOOL, 1) for encoder in encoders}
        typed: Keys = {"clip.projector_type": text(kind)} if kind else {}
        return build("mmproj", "clip", tensors, {**own, **typed, **(keys or {})})

    return make


@pytest.fixture
def adapt(build: Build) -> Build:
    """An adapter."""

    def make(tensors: Sequence[T], keys: Keys | None = None, arch: str = "llama") -> Gguf:
        own: Keys = {"general.type": text("adapter"), "adapter.type": text("lora")}
        return build("lora", arch, tensors, {**own, **(keys or {})})

    return make


def pair(name: str, wide: int, high: int, rank: int = 4) -> list[T]:
    return [T(f"{name}.lora_a", (wide, rank)), T(f"{name}.lora_b", (rank, high))]


GOOD = pair("blk.0.attn_q.weight", WIDTH, 96)
PRE = "tokenizer.ggml.pre"


def broken(relations: Sequence[Relation]) -> list[str]:
    return [relation.name for relation in relations if not relation.ok]


def named(relations: Sequence[Relation], name: str) -> Relation:
    (found,) = [relation for relation in relations if relation.name == name]
    return found


# Real files.
def toy(name: str) -> Gguf:
    return read_gguf(str(MODELS / f"{name}.gguf"), whole=KINSHIP_KEYS)


TOYS = {name: toy(name) for name in ("toy", "toy-mmproj", "toy-lora-yes")}


def test_the_toys_are_made_for_each_other() -> None:
    """Served together by a real llama-server: images read, adapter applied, its own drafts accepted."""
    relations = require_kinship(
        toy("toy"),
        mmproj=toy("toy-mmproj"),
        drafter=toy("toy"),
        lora=toy("toy-lora-yes"),
        spec_types=("draft-simple", "ngram-mod"),
    )
    files = [f"{role} {what}" for role in ("model", "projector", "drafter", "adapter") for what in ("kind", "files")]
    assert all(relation.ok for relation in relations)
    assert {relation.name for relation in relations} > {
        *files,
        "model types",
        "spec type",
        "projector width, vision",
        "drafter vocabulary",
        "drafter special tokens",
        "adapter architecture",
        "adapter embeddings",
        "adapter tensors",
    }
    assert named(relations, "projector width, vision").found == 128
    assert named(relations, "projector width, vision").note == "takes images"
    assert named(relations, "drafter vocabulary").found == "992 tokens"
    assert named(relations, "adapter tensors").found == "12 pairs"


def test_a_projector_of_a_sister_is_refused() -> None:
    found = check_kinship(header(NINE), mmproj=toy("toy-mmproj"))
    assert broken(found) == ["projector width, vision"]
    relation = named(found, "projector width, vision")
    assert (relation.expected, relation.found) == (4096, 128)
    assert "toy-mmproj.gguf" in relation.what and NINE in relation.what


def test_the_toys_adapter_on_another_model() -> None:
    found = check_kinship(header(LLAMA), lora=toy("toy-lora-yes"))
    assert broken(found) == ["adapter architecture", "adapter tensors"]
    assert broken(check_kinship(header(QWEN3), lora=toy("toy-lora-yes"))) == ["adapter tensors"]


def test_a_head_in_the_file() -> None:
    assert broken(check_kinship(header(NINE), spec_types=("draft-mtp",))) == []
    assert named(check_kinship(header(NINE), spec_types=("draft-mtp",)), "spec type").found == "1 layers of an MTP head"
    assert "mtp head" not in [relation.name for relation in check_kinship(header(NINE))]


def ghost(model: Gguf) -> Gguf:
    return replace(model, tensors=tuple(tensor for tensor in model.tensors if "nextn" not in tensor.name))


def test_a_ghost_drafter_is_refused() -> None:
    relation = named(check_kinship(ghost(header(NINE)), spec_types=("draft-mtp",)), "spec type")
    assert not relation.ok and relation.expected == "nextn tensors in the model's file"
    assert relation.found == "nextn_predict_layers 1 and no head's tensors"
    # The loader of this family wants the head's tensors though nobody armed it.
    assert broken(check_kinship(ghost(header(NINE)))) == ["mtp head"]


def test_a_trunk_without_its_head_loads_in_other_families(build: Build) -> None:
    model = build(arch="glm4moe", nextn_predict_layers=1)
    relation = named(check_kinship(model), "mtp head")
    assert relation.ok and relation.note == "draft-mtp has nothing to draft with"
    assert broken(check_kinship(model, spec_types=("draft-mtp",))) == ["spec type"]


def test_a_model_without_any_head(build: Build) -> None:
    assert broken(check_kinship(build(), spec_types=("draft-mtp",))) == ["spec type"]


# What each file is.
def test_files_in_the_wrong_place() -> None:
    model, projector, adapter = toy("toy"), toy("toy-mmproj"), toy("toy-lora-yes")
    for wrong, role in ((projector, "projector"), (adapter, "adapter")):
        found = check_kinship(wrong)
        assert broken(found) == ["model kind"], role
        assert named(found, "model kind").remedy == "Give a model that stands alone as the model"
    assert broken(check_kinship(model, mmproj=model)) == ["projector kind"]
    assert broken(check_kinship(model, lora=model)) == ["adapter kind"]
    assert broken(check_kinship(model, lora=projector)) == ["adapter kind"]
    assert broken(check_kinship(model, drafter=adapter, spec_types=("draft-simple",))) == ["drafter kind"]
    assert broken(check_kinship(model, drafter=projector, spec_types=("draft-simple",))) == ["drafter kind"]


@pytest.mark.parametrize("arch", ["dflash", "eagle3", "gemma4-assistant"])
def test_a_drafter_does_not_stand_alone(build: Build, arch: str) -> None:
    found = check_kinship(build(arch=arch))
    assert broken(found) == ["model kind"] and arch in named(found, "model kind").found


def test_an_adapter_that_is_no_lora(adapt: Build, build: Build) -> None:
    adapter = adapt(pair("blk.0.attn_q.weight", WIDTH, 96), {"adapter.type": text("control_vector")})
    found = check_kinship(build(), lora=adapter)
    assert broken(found) == ["adapter kind"]
    assert named(found, "adapter kind").found.endswith("general.type adapter, adapter.type control_vector")


def test_older_files_do_not_say_their_type(project: Build, build: Build) -> None:
    assert "general.type" not in toy("toy").metadata
    assert broken(check_kinship(build(), mmproj=project("mlp", [T("mm.2.weight", (7, WIDTH))]))) == []


# Shards: read_gguf refuses all but a complete set (test_gguf_split), so a set that was read is one.
def lay(folder: Path, files: Sequence[bytes], count: int | None = None) -> Path:
    paths = [folder / f"m-{number:05d}-of-{count or len(files):05d}.gguf" for number in range(1, len(files) + 1)]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths[0]


def test_a_set_of_shards(tmp_path: Path) -> None:
    pairs = [("general.architecture", w.STRING, "llama"), ("llama.embedding_length", w.U32, WIDTH)]
    first = lay(tmp_path, w.shards([TENSORS[:1], TENSORS[1:2], TENSORS[2:]], pairs))
    stranger = tmp_path / "m-00004-of-00004.gguf"
    stranger.write_bytes(w.gguf())
    model = read_gguf(str(first))
    relation = named(check_kinship(model), "model files")
    assert (relation.ok, relation.expected, relation.found) == (True, 3, 3)
    assert stranger.name not in [Path(shard.name).name for shard in model.shards]
    short = replace(model, shards=model.shards[:2])
    assert broken(check_kinship(short)) == ["model files"]


def test_a_set_that_is_not_one_is_never_compared(tmp_path: Path) -> None:
    files = w.shards([TENSORS[:1], TENSORS[1:]])
    first = lay(tmp_path, files)
    other = w.shards([TENSORS[:1], TENSORS[1:2]])[1]
    Path(str(first).replace("00001-of", "00002-of")).write_bytes(other)
    with pytest.raises(FleetError, match="another set"):
        read_gguf(str(first))
    Path(str(first).replace("00001-of", "00002-of")).unlink()
    with pytest.raises(FleetError, match="shard 2 of 2 is missing"):
        read_gguf(str(first))


def test_projector_and_adapter_are_one_file(tmp_path: Path, build: Build) -> None:
    keys = [
        ("general.architecture", w.STRING, "clip"),
        ("clip.has_vision_encoder", w.BOOL, 1),
        ("clip.projector_type", w.STRING, "mlp"),
    ]
    split = read_gguf(str(lay(tmp_path, w.shards([[T("v.a")], [T("mm.2.weight", (7, WIDTH))]], keys))))
    relation = named(check_kinship(build(), mmproj=split), "projector files")
    assert (relation.ok, relation.expected, relation.found) == (False, 1, 2)
    assert relation.remedy == "Merge the shards into one file"


# Tensor types.
def test_types_of_the_runtime(build: Build) -> None:
    strange = T("blk.1.x.weight", (32, 2), 141, nbytes=64), T("blk.2.x.weight", (32, 2), 142, nbytes=64)
    model = build(tensors=(*TENSORS, *strange))
    relation = named(check_kinship(model), "model types")
    assert (relation.ok, relation.expected, relation.found) == (
        False,
        "types of llama.cpp",
        "1 of type 141, 1 of type 142",
    )
    assert "model.gguf" in relation.what and relation.remedy is not None
    one = named(check_kinship(model, runtime="prism", runtime_types=[141]), "model types")
    assert (one.expected, one.found) == ("types of prism", "1 of type 142")
    assert broken(check_kinship(model, runtime="prism", runtime_types={141, 142})) == []
    assert broken(check_kinship(build("plain"), drafter=model, spec_types=("draft-simple",))) == ["drafter types"]


def test_a_format_of_a_version_that_the_fork_does_not_take(build: Build, adapt: Build) -> None:
    """PrismML's build b10709 loads the pack and refuses the adapter: unsupported prism.hadamard.version 2."""
    version = "prism.hadamard.version"
    lora = adapt(GOOD, {version: (w.U32, 2)})
    for takes, red in (
        ({"prism.hadamard": [1]}, ["adapter prism.hadamard"]),
        ({"prism.hadamard": [1, 2]}, []),
        ({}, []),
    ):
        relations = check_kinship(build(), lora=lora, runtime="b10709", runtime_versions=takes)
        assert broken(relations) == red
    with pytest.raises(
        FleetError, match=r"lora.gguf: prism.hadamard.version; expected 1, which runtime b10709 takes; f"
    ):
        require_kinship(build(), lora=lora, runtime="b10709", runtime_versions={"prism.hadamard": [1]})
    model = build(keys={version: (w.U32, 3)})
    assert broken(check_kinship(model, runtime_versions={"prism.hadamard": [2]})) == ["model prism.hadamard"]


# Projectors. The tables' columns are those of clip.cpp: type, tensor, its dimensions.
W, X = WIDTH, 7  # the width that has to be found, and any other number
PROJECTORS = [
    ("ldp", "mm.model.mb_block.1.block.2.1.bias", (W,)),
    ("ldpv2", "mm.model.peg.0.bias", (W,)),
    ("mlp", "mm.2.weight", (X, W)),
    ("phi4", "mm.2.weight", (X, W)),
    ("pixtral", "mm.2.weight", (X, W)),
    ("lightonocr", "mm.2.weight", (X, W)),
    ("dots_ocr", "mm.2.weight", (X, W)),
    ("dots3note_v", "mm.2.weight", (X, W)),
    ("resampler", "resampler.proj.weight", (W, X)),
    ("minicpmv4_6", "mm.down.weight", (X, W)),
    ("adapter", "adapter.linear.dense_4h_to_h.weight", (X, W)),
    ("minimax_m3", "mm.merger.fc2.bias", (W,)),
    ("muse-glimmer", "mm.2.weight", (X, W)),
    ("qwen2vl_merger", "mm.2.bias", (W,)),
    ("qwen2.5vl_merger", "mm.2.bias", (W,)),
    ("qwen3vl_merger", "mm.2.bias", (W,)),
    ("exaone4_5", "mm.2.bias", (W,)),
    ("janus_pro", "mm.1.bias", (W,)),
    ("youtuvl", "mm.2.bias", (W,)),
    ("ling3vl", "mm.2.bias", (W,)),
    ("mimovl", "mm.2.weight", (X, W)),
    ("step3vl", "mm.model.fc.weight", (X, W)),
    ("gemma3", "mm.input_projection.weight", (W, X)),
    ("gemma3nv", "mm.input_projection.weight", (W, X)),
    ("gemma4v", "mm.input_projection.weight", (X, W)),
    ("gemma4uv", "mm.input_projection.weight", (X, W)),
    ("idefics3", "mm.model.fc.weight", (X, W)),
    ("internvl", "mm.model.mlp.3.weight", (X, W)),
    ("nemotron_v2_vl", "mm.model.mlp.3.weight", (X, W)),
    ("llama4", "mm.model.fc.weight", (X, W)),
    ("lfm2", "mm.2.weight", (X, W)),
    ("kimivl", "mm.2.weight", (X, W)),
    ("paddleocr", "mm.2.weight", (X, W)),
    ("kimik25", "mm.2.weight", (X, W)),
    ("yasa2", "mm.2.weight", (X, W)),
    ("deepseek4v", "mm.2.weight", (X, W)),
    ("hunyuanvl", "mm.model.fc.weight", (X, W)),
    ("cogvlm", "mm.down.weight", (X, W)),
    ("deepseekocr", "mm.model.fc.weight", (X, W)),
    ("deepseekocr2", "mm.model.fc.weight", (X, W)),
    ("glm4v", "mm.down.weight", (X, W)),
    ("glm5v", "mm.down.weight", (X, W)),
    ("qwen2.5o", "mm.2.bias", (W,)),
]
SOUND_PROJECTORS = [
    ("gemma4a", "mm.a.input_projection.weight", (X, W)),
    ("gemma4ua", "mm.a.input_projection.weight", (X, W)),
    ("ultravox", "mm.a.mlp.2.weight", (X, W)),
    ("voxtral", "mm.a.mlp.2.weight", (X, W)),
    ("musicflamingo", "mm.a.mlp.2.weight", (X, W)),
    ("meralion", "mm.a.mlp.3.weight", (X, W)),
    ("dots3note_a", "mm.a.mlp.3.weight", (X, W)),
    ("qwen2a", "mm.a.fc.weight", (X, W)),
    ("qwen3a", "mm.a.mlp.2.weight", (X, W)),
    ("glma", "mm.a.mlp.2.weight", (X, W)),
    ("lfm2a", "a.position_embd.weight", (W, X)),
    ("granite_speech", "a.proj_linear.weight", (X, W)),
    ("mimo_audio", "mm.a.mlp.2.weight", (X, W)),
    ("parakeet", "mm.a.mlp.2.weight", (X, W)),
    ("qwen2.5o", "mm.a.fc.weight", (X, W)),
]


@pytest.mark.parametrize(
    ("modality", "kind", "tensor", "dims"),
    [("vision", *row) for row in PROJECTORS] + [("audio", *row) for row in SOUND_PROJECTORS],
)
def test_widths_of_projectors(
    build: Build, project: Build, modality: str, kind: str, tensor: str, dims: tuple[int, ...]
) -> None:
    projector = project(kind, [T(tensor, dims)], [modality])
    found = named(check_kinship(build(), mmproj=projector), f"projector width, {modality}")
    assert (found.ok, found.found) == (True, WIDTH)
    assert found.note == ("takes images" if modality == "vision" else "takes sound")
    assert broken(check_kinship(build(embedding_length=X), mmproj=projector)) == [f"projector width, {modality}"]


def test_the_key_for_the_width_decides_nothing(build: Build, project: Build) -> None:
    projector = project(
        "gemma3",
        [T("mm.input_projection.weight", (X, X))],
        keys={
            "clip.vision.projection_dim": (w.U32, WIDTH),
        },
    )
    assert broken(check_kinship(build(), mmproj=projector)) == ["projector width, vision"]


def test_the_llava_of_yi(build: Build, project: Build) -> None:
    tensors = [T("mm.2.weight", (X, X)), T("mm.3.weight", (X, X)), T("mm.3.bias", (WIDTH,))]
    assert broken(check_kinship(build(), mmproj=project("mlp", tensors))) == []


def test_deepstack_layers_count_on_both_sides(build: Build, project: Build) -> None:
    stack = [T(f"v.deepstack.{layer}.fc1.weight", (X, X)) for layer in (5, 11, 17)]
    deep = project("qwen3vl_merger", [T("mm.2.bias", (WIDTH,)), *stack])
    assert broken(check_kinship(build(arch="qwen3vl", n_deepstack_layers=3), mmproj=deep)) == []
    found = named(check_kinship(build(arch="qwen3vl"), mmproj=deep), "projector width, vision")
    assert (found.ok, found.expected, found.found) == (False, WIDTH, 4 * WIDTH)


def test_projectors_of_granite_lie_side_by_side(build: Build, project: Build) -> None:
    keys: Keys = {"clip.vision.feature_layer": numbers(3, 9, 15), "clip.vision.projection_dim": (w.U32, WIDTH)}
    projector = project("granite4_vision", [T("v.a")], keys=keys)
    mapping: Keys = {"granite.deepstack_mapping": (w.ARRAY, (w.I32, [-1, 0, 0, 1]))}
    assert broken(check_kinship(build(arch="granite", keys=mapping), mmproj=projector)) == []
    assert broken(check_kinship(build(arch="granite"), mmproj=projector)) == ["projector width, vision"]
    bare = project("granite4_vision", [T("v.a")])
    assert named(check_kinship(build(), mmproj=bare), "projector width, vision").found == "none"


@pytest.mark.parametrize("kind", ["gemma3na", "qwen3tts_spkenc", "holographic", ""])
def test_a_type_without_a_rule_is_refused_by_name(build: Build, project: Build, kind: str) -> None:
    keys: Keys = {"clip.vision.projection_dim": (w.U32, WIDTH)}
    projector = project(kind, [T("mm.2.weight", (X, WIDTH))], keys=keys)
    found = named(check_kinship(build(), mmproj=projector), "projector width, vision")
    assert not found.ok and repr(kind) in found.what and found.found == repr(kind)
    assert found.expected == "a type whose output width is known"


def test_a_projector_without_its_last_tensor(build: Build, project: Build) -> None:
    found = named(check_kinship(build(), mmproj=project("gemma3", [T("v.a")])), "projector width, vision")
    assert (found.ok, found.expected, found.found) == (False, "tensor mm.input_projection.weight", "none")


def test_a_projector_that_encodes_nothing(build: Build, project: Build) -> None:
    projector = project("mlp", [T("mm.2.weight", (X, WIDTH))], [])
    found = named(check_kinship(build(), mmproj=projector), "projector width")
    assert not found.ok and found.found == "neither"


def test_images_and_sound(build: Build, project: Build) -> None:
    keys: Keys = {
        "clip.vision.projector_type": text("gemma4v"),
        "clip.audio.projector_type": text("gemma4a"),
    }
    tensors = [T("mm.input_projection.weight", (X, WIDTH)), T("mm.a.input_projection.weight", (X, WIDTH))]
    both = project("", tensors, ["vision", "audio"], keys)
    found = check_kinship(build(), mmproj=both)
    assert broken(found) == []
    assert named(found, "projector width, audio").note == "takes images and sound"
    tensors[1] = T("mm.a.input_projection.weight", (X, X))
    mixed = project("", tensors, ["vision", "audio"], keys)
    assert broken(check_kinship(build(), mmproj=mixed)) == ["projector width, audio"]
    # What generates sound has an encoder of its own, whose rule is not known here.
    speaks = project("", tensors[:1], ["vision", "gen_audio"], {**keys, "clip.gen.audio.projector_type": text("voice")})
    assert broken(check_kinship(build(), mmproj=speaks)) == ["projector width, gen.audio"]


def test_the_sound_of_gemma3n_is_passed_over(build: Build, project: Build) -> None:
    keys: Keys = {"clip.vision.projector_type": text("gemma3nv"), "clip.audio.projector_type": text("gemma3na")}
    tensors = [T("mm.input_projection.weight", (WIDTH, X))]
    found = check_kinship(build(), mmproj=project("", tensors, ["vision", "audio"], keys))
    assert broken(found) == [] and named(found, "projector width, vision").note == "takes images"


# Drafters: the vocabulary.
def test_a_drafter_of_the_same_family(build: Build) -> None:
    drafter = build("drafter", "qwen2", block_count=1, embedding_length=32)
    assert broken(check_kinship(build(), drafter=drafter, spec_types=["draft-simple"])) == []


def changed(words: Sequence[str]) -> Keys:
    return {"tokenizer.ggml.tokens": (w.ARRAY, (w.STRING, list(words)))}


@pytest.mark.parametrize(
    ("keys", "expected", "found"),
    [
        pytest.param({"tokenizer.ggml.model": text("llama")}, "type BPE", "type SPM", id="type"),
        pytest.param(
            changed([*WORDS, *(f"more{number}" for number in range(129))]),
            "40 tokens, 128 more or less",
            "169 tokens",
            id="size",
        ),
        pytest.param(
            changed([*WORDS[:5], "tokenX", *WORDS[6:39], "tokenY"]),
            "token 5 'token5'",
            "'tokenX', and 2 of 40 tokens differ",
            id="texts",
        ),
        pytest.param({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens", "none", id="no-tokens"),
        pytest.param({"tokenizer.ggml.model": None}, None, "none", id="no-tokenizer"),
        pytest.param({"tokenizer.ggml.model": text("abacus")}, None, "'abacus'", id="strange-tokenizer"),
        pytest.param({"tokenizer.ggml.model": text("none")}, "type BPE", "type none", id="ids-alone"),
    ],
)
def test_a_drafter_of_other_tokens(build: Build, keys: Keys, expected: str | None, found: str) -> None:
    drafter = build("drafter", keys=keys)
    relations = check_kinship(build(), drafter=drafter, spec_types=["draft-simple"])
    assert broken(relations) == ["drafter vocabulary"]
    relation = named(relations, "drafter vocabulary")
    assert "drafter.gguf" in relation.what
    assert relation.found == found and expected in (None, relation.expected)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["<a>", "<b>", "<c>", "<d>", "<e>", *WORDS[5:]], id="the first five may differ"),
        pytest.param([*WORDS, *(f"more{number}" for number in range(128))], id="128 more"),
        pytest.param(WORDS[:20], id="fewer"),
    ],
)
def test_tokens_that_may_differ(build: Build, words: list[str]) -> None:
    drafter = build("drafter", keys=changed(words))
    assert broken(check_kinship(build(), drafter=drafter, spec_types=["draft-simple"])) == []


@given(words=st.lists(st.text(max_size=3), min_size=6, max_size=20), data=st.data())
def test_one_other_token_is_enough(words: list[str], data: st.DataObject) -> None:
    ours = Vocabulary("BPE", len(words), words, None, None)
    assert compare_tokens(ours, ours, "").ok
    index = data.draw(st.integers(0, len(words) - 1))
    other = [*words[:index], words[index] + "x", *words[index + 1 :]]
    assert compare_tokens(ours, Vocabulary("BPE", len(words), other, None, None), "").ok == (index < 5)


def test_ids_alone() -> None:
    same = check_kinship(header(SWA), drafter=header(SWA), spec_types=["draft-simple"])
    assert broken(same) == [] and named(same, "drafter vocabulary").note == "no texts to compare"
    assert named(same, "drafter vocabulary").found == "248320 ids"
    less = replace(header(SWA), metadata={**header(SWA).metadata, "gemma3.vocab_size": 151936})
    assert broken(check_kinship(header(SWA), drafter=less, spec_types=["draft-simple"])) == ["drafter vocabulary"]


def test_tokens_that_were_not_read(build: Build) -> None:
    model = build()
    unread = read_gguf(model.shards[0].name)
    with pytest.raises(TypeError, match="whole=KINSHIP_KEYS"):
        check_kinship(model, drafter=unread, spec_types=["draft-simple"])


BOS, EOS, ADD_BOS, ADD_EOS = (
    f"tokenizer.ggml.{key}" for key in ("bos_token_id", "eos_token_id", "add_bos_token", "add_eos_token")
)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (None, None)),
        ({ADD_BOS: (w.BOOL, 1)}, (1, None)),
        ({ADD_BOS: (w.BOOL, 1), ADD_EOS: (w.BOOL, 1)}, (1, 2)),
        ({ADD_BOS: (w.BOOL, 1), BOS: None}, (11, None)),
        ({ADD_BOS: (w.BOOL, 1), BOS: (w.U32, TOKENS)}, (11, None)),
        ({"tokenizer.ggml.pre": text("llama-bpe")}, (1, None)),
        ({"tokenizer.ggml.pre": text("llama-bpe"), ADD_BOS: (w.BOOL, 0)}, (None, None)),
        ({"tokenizer.ggml.pre": text("qwen2")}, (None, None)),
        ({"tokenizer.ggml.pre": text("glm4"), ADD_BOS: (w.BOOL, 1), BOS: None}, (-1, None)),
        ({"tokenizer.ggml.model": text("gemma4"), ADD_BOS: (w.BOOL, 0)}, (1, None)),
        ({"tokenizer.ggml.model": text("llama"), BOS: None}, (1, None)),
        ({"tokenizer.ggml.model": text("llama"), BOS: (w.U32, 7)}, (7, None)),
        ({"tokenizer.ggml.model": text("bert"), BOS: None}, (-1, None)),  # 101 is beyond the vocabulary
        ({"tokenizer.ggml.model": text("t5"), EOS: None}, (None, 1)),
        ({"tokenizer.ggml.model": text("rwkv")}, (None, None)),
        ({"tokenizer.ggml.model": text("plamo2"), ADD_BOS: (w.BOOL, 1), BOS: None}, (1, None)),
    ],
)
def test_what_a_text_begins_and_ends_with(build: Build, keys: Keys, expected: tuple[int | None, int | None]) -> None:
    found = vocabulary(build(keys=keys))
    assert (found.bos, found.eos) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ({ADD_BOS: (w.BOOL, 1)}, {}, "bos not added, eos not added"),
        ({ADD_BOS: (w.BOOL, 1)}, {ADD_BOS: (w.BOOL, 1), BOS: (w.U32, 3)}, "bos 3, eos not added"),
        ({}, {ADD_EOS: (w.BOOL, 1)}, "bos not added, eos 2"),
    ],
)
def test_special_tokens_that_differ(build: Build, ours: Keys, theirs: Keys, says: str) -> None:
    found = check_kinship(build(keys=ours), drafter=build("drafter", keys=theirs), spec_types=["draft-simple"])
    assert broken(found) == ["drafter special tokens"] and named(found, "drafter special tokens").found == says


def test_special_tokens_that_nobody_adds(build: Build) -> None:
    other = build("drafter", keys={BOS: (w.U32, 3), EOS: (w.U32, 4)})
    assert broken(check_kinship(build(), drafter=other, spec_types=["draft-simple"])) == []


def test_a_value_of_another_type_than_its_key_has(build: Build, adapt: Build) -> None:
    model = build()
    found = check_kinship(model, drafter=build("drafter", keys={PRE: numbers(1)}), spec_types=["draft-simple"])
    assert broken(found) == ["drafter vocabulary"]
    relation = named(found, "drafter vocabulary")
    assert PRE in relation.what and (relation.expected, relation.found) == ("a string", "[1]")
    match = r"adapter\.alora\.invocation_tokens in .*lora\.gguf; expected an array of tokens; found 7"
    with pytest.raises(FleetError, match=match):
        check_kinship(model, lora=adapt(GOOD, {"adapter.alora.invocation_tokens": (w.U32, 7)}))


ABSURD = [0, -1, 2**31, 2**64 - 1, True, "x", "", 1.5, float("nan"), [], [1], [1.5, -1], ArrayInfo("u32", 9), None]
MORE_KEYS = """split.count clip.vision.feature_layer clip.vision.projection_dim llama.deepstack_mapping
llama.n_deepstack_layers llama.nextn_predict_layers llama.vocab_size general.type adapter.alora.invocation_tokens
tokenizer.ggml.pre tokenizer.ggml.bos_token_id tokenizer.ggml.add_bos_token x.version""".split()


@settings(max_examples=300, derandomize=True, database=None, deadline=5000)
@given(
    role=st.sampled_from(["model", "mmproj", "drafter", "lora"]),
    changes=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([*ABSURD, "granite4_vision", "none", "gpt2"])), max_size=2
    ),
    more=st.dictionaries(st.sampled_from(MORE_KEYS), st.sampled_from(ABSURD), max_size=2),
)
def test_absurd_values_are_compared_or_refused(role: str, changes: list[tuple[int, Any]], more: dict[str, Any]) -> None:
    files = {"model": TOYS["toy"], "mmproj": TOYS["toy-mmproj"], "drafter": TOYS["toy"], "lora": TOYS["toy-lora-yes"]}
    known = sorted(files[role].metadata)
    values = {known[at % len(known)]: value for at, value in changes}
    # What read_gguf refuses already, and whole tokens are asked for.
    values = {key: value for key, value in (values | more).items() if key not in ("split.count", KINSHIP_KEYS[0])}
    files[role] = replace(files[role], metadata={**files[role].metadata, **values})
    try:
        found = check_kinship(files.pop("model"), spec_types=("draft-simple",), runtime_versions={"x": {1}}, **files)
    except FleetError as exc:
        assert exc.what and exc.expected
    else:
        assert all(relation.ok or relation.what for relation in found)


# Drafters: the spec type, and what those read that look into the target.
MASK: Keys = {"tokenizer.ggml.mask_token_id": (w.U32, 39)}
DFLASH: Keys = {**MASK, "dflash.target_layers": numbers(1, 2, LAYERS)}
EAGLE: Keys = {"eagle3.target_layers": numbers(0, 2, LAYERS), "eagle3.target_hidden_size": (w.U32, WIDTH)}
MARKOV = T("markov_w1.weight", (X, TOKENS))


def dflash(build: Build, keys: Keys | None = None, tensors: Sequence[T] = (T("fc.weight"),), **own: int) -> Gguf:
    return build("drafter", "dflash", tensors, {**DFLASH, **(keys or {})}, **own)


def eagle(build: Build, keys: Keys | None = None, tensors: Sequence[T] = (T("fc.weight"),), **own: int) -> Gguf:
    return build("drafter", "eagle3", tensors, {**EAGLE, **(keys or {})}, **own)


def drafted(build: Build, drafter: Gguf, kind: str) -> list[str]:
    return broken(check_kinship(build(), drafter=drafter, spec_types=[kind]))


def test_drafters_that_look_into_the_target(build: Build) -> None:
    assert drafted(build, dflash(build), "draft-dflash") == []
    assert drafted(build, dflash(build, tensors=[MARKOV], block_size=7), "draft-dspark") == []
    assert drafted(build, eagle(build), "draft-eagle3") == []
    # Its own width is its own affair where it borrows nothing of the target's.
    own = [T("token_embd.weight", (32, TOKENS)), T("output.weight", (32, TOKENS))]
    assert drafted(build, eagle(build, tensors=own, embedding_length=32), "draft-eagle3") == []


@pytest.mark.parametrize(
    ("armed", "fits"),
    [
        ("draft-simple", "draft-dflash"),
        ("draft-dspark", "draft-dflash"),
        ("draft-eagle3", "draft-dflash"),
        ("ngram-mod", "draft-dflash"),
        ("", "draft-dflash"),
    ],
)
def test_a_drafter_under_another_spec_type(build: Build, armed: str, fits: str) -> None:
    found = check_kinship(build(), drafter=dflash(build), spec_types=[armed] if armed else [])
    relation = named(found, "drafter type")
    assert broken(found) == ["drafter type"]
    assert (relation.expected, relation.found) == (f"spec_type {fits}", f"spec_type {armed or 'none'}")
    assert relation.remedy is not None and f"SPEC_TYPE={fits}" in relation.remedy


def test_spec_types_without_what_they_draft_with(build: Build) -> None:
    found = named(check_kinship(build(), spec_types=["draft-dflash"]), "spec type")
    assert (found.ok, found.expected, found.found) == (False, "a drafter file", "none")
    both = check_kinship(header(NINE), drafter=build("drafter"), spec_types=["draft-mtp"])
    assert broken(both) == ["spec type"] and named(both, "spec type").expected == "no drafter file beside it"


@pytest.mark.parametrize(
    ("keys", "own", "name"),
    [
        pytest.param({}, {"embedding_length": 32}, "drafter width", id="width"),
        pytest.param({"dflash.target_layers": None}, {}, "drafter layers", id="no layers"),
        pytest.param({"dflash.target_layers": numbers()}, {}, "drafter layers", id="empty layers"),
        pytest.param({"dflash.target_layers": numbers(1, LAYERS + 1)}, {}, "drafter layers", id="layer beyond"),
        pytest.param({"tokenizer.ggml.mask_token_id": None}, {}, "drafter mask", id="no mask"),
        pytest.param({"tokenizer.ggml.mask_token_id": (w.U32, TOKENS)}, {}, "drafter mask", id="mask beyond"),
        pytest.param(changed(["x"] * TOKENS), {}, "drafter vocabulary", id="tokens"),
    ],
)
def test_a_dflash_drafter_of_another_model(build: Build, keys: Keys, own: dict[str, int], name: str) -> None:
    found = check_kinship(build(), drafter=dflash(build, keys, **own), spec_types=["draft-dflash"])
    assert broken(found) == [name] and "drafter.gguf" in named(found, name).what


def test_a_mask_token_of_its_own_embeddings(build: Build) -> None:
    keys: Keys = {"tokenizer.ggml.mask_token_id": (w.U32, TOKENS)}
    own = dflash(build, keys, [T("token_embd.weight", (WIDTH, TOKENS + 1))])
    assert drafted(build, own, "draft-dflash") == []


def test_the_layers_of_the_trunk_alone(build: Build) -> None:
    head = T(f"blk.{LAYERS - 1}.nextn.eh_proj.weight", (2 * WIDTH, WIDTH))
    model = build(tensors=(*TENSORS, head), nextn_predict_layers=1)
    found = check_kinship(model, drafter=dflash(build), spec_types=["draft-dflash"])
    assert broken(found) == ["drafter layers"] and named(found, "drafter layers").expected == "layers from 0 to 3"


@pytest.mark.parametrize("size", [None, 0])
def test_a_dspark_drafter_without_its_block(build: Build, size: int | None) -> None:
    own = {} if size is None else {"block_size": size}
    assert drafted(build, dflash(build, tensors=[MARKOV], **own), "draft-dspark") == ["drafter block"]


@pytest.mark.parametrize(
    ("keys", "own", "tensors", "name"),
    [
        pytest.param({"eagle3.target_hidden_size": (w.U32, 32)}, {}, [T("fc")], "drafter width", id="width"),
        pytest.param({"eagle3.target_layers": numbers(0, 2)}, {}, [T("fc")], "drafter layers", id="two layers"),
        pytest.param({"eagle3.target_layers": numbers(0, 2, 5)}, {}, [T("fc")], "drafter layers", id="layer beyond"),
        pytest.param({}, {"embedding_length": 32}, [T("fc")], "drafter embeddings", id="borrows both"),
        pytest.param(
            {}, {"embedding_length": 32}, [T("token_embd.weight")], "drafter embeddings", id="borrows the output"
        ),
        pytest.param({"tokenizer.ggml.model": text("llama")}, {}, [T("fc")], "drafter vocabulary", id="tokens"),
    ],
)
def test_an_eagle_of_another_model(build: Build, keys: Keys, own: dict[str, int], tensors: list[T], name: str) -> None:
    assert drafted(build, eagle(build, keys, tensors, **own), "draft-eagle3") == [name]


def test_a_drafter_without_its_numbers(build: Build) -> None:
    with pytest.raises(FleetError, match=r"eagle3\.target_hidden_size in .*drafter\.gguf; .*no such key"):
        drafted(build, eagle(build, {"eagle3.target_hidden_size": None}), "draft-eagle3")


# Adapters.
def test_an_adapter_of_the_model(build: Build, adapt: Build) -> None:
    keys: Keys = {"adapter.alora.invocation_tokens": numbers(1, 2, 3)}
    tensors = [*GOOD, *pair("blk.3.ffn_up.weight", WIDTH, 128), T("blk.0.attn_norm.weight", (WIDTH,))]
    found = check_kinship(build(), lora=adapt(tensors, keys))
    assert broken(found) == []
    relation = named(found, "adapter tensors")
    assert relation.found == "2 pairs"
    assert relation.note == (
        "activated LoRA: it works from its 3 invocation tokens on; 1 norm tensors, which the engine passes over"
    )


@pytest.mark.parametrize(
    ("tensors", "name", "says"),
    [
        pytest.param([], "adapter tensors", "lora_a and lora_b of at least one tensor", id="empty"),
        pytest.param(GOOD[:1], "adapter tensors", "lora_a and lora_b", id="half a pair"),
        pytest.param([*GOOD, T("blk.0.attn_q.weight")], "adapter tensors", "a name ending in", id="suffix"),
        pytest.param(pair("blk.9.attn_q.weight", WIDTH, 96), "adapter tensors", "a tensor of that name", id="no base"),
        pytest.param(pair("blk.0.attn_q.weight", 32, 96), "adapter tensors", "(64, 96)", id="too narrow"),
        pytest.param(pair("blk.0.attn_q.weight", WIDTH, 97), "adapter tensors", "(64, 96)", id="too high"),
        pytest.param(
            [T("blk.0.attn_q.weight.lora_a", (WIDTH, 4)), T("blk.0.attn_q.weight.lora_b", (5, 96))],
            "adapter tensors",
            "(64, 96)",
            id="two ranks",
        ),
        pytest.param(
            [T("blk.0.attn_q.weight.lora_a", (4, WIDTH)), T("blk.0.attn_q.weight.lora_b", (96, 4))],
            "adapter tensors",
            "(64, 96)",
            id="not transposed",
        ),
        pytest.param(
            [*GOOD, T("token_embd.weight.lora_a", (4, TOKENS)), T("token_embd.weight.lora_b", (4, WIDTH))],
            "adapter embeddings",
            "no tensors on token_embd",
            id="embeddings",
        ),
    ],
)
def test_an_adapter_that_does_not_fit(build: Build, adapt: Build, tensors: list[T], name: str, says: str) -> None:
    found = check_kinship(build(), lora=adapt(tensors))
    assert broken(found) == [name]
    assert says in str(named(found, name).expected)
    assert "lora.gguf" in named(found, name).what and named(found, name).remedy is not None


def test_an_adapter_of_another_architecture(build: Build, adapt: Build) -> None:
    found = check_kinship(build(), lora=adapt(GOOD, arch="qwen2"))
    assert broken(found) == ["adapter architecture"]
    assert (named(found, "adapter architecture").expected, named(found, "adapter architecture").found) == (
        "llama",
        "qwen2",
    )


def test_an_adapter_on_the_mtp_head(build: Build, adapt: Build) -> None:
    head = [T("blk.3.nextn.eh_proj.weight", (2 * WIDTH, WIDTH)), T("blk.3.attn_q.weight", (WIDTH, 96))]
    model = build(arch="qwen35", tensors=(*TENSORS[:2], *head), nextn_predict_layers=1)
    adapter = adapt([*GOOD, *pair("blk.3.attn_q.weight", WIDTH, 96)], arch="qwen35")
    found = named(check_kinship(model, lora=adapter), "adapter tensors")
    assert not found.ok and "blk.3.attn_q.weight" in found.what and found.found == "one of the MTP head"
    assert broken(check_kinship(model, lora=adapter, spec_types=["draft-mtp"])) == []


# All at once.
def test_the_first_is_raised_and_all_are_told() -> None:
    with pytest.raises(FleetError) as caught:
        require_kinship(
            ghost(header(NINE)), mmproj=toy("toy-mmproj"), lora=toy("toy-lora-yes"), spec_types=["draft-mtp"]
        )
    error = caught.value
    assert "nextn tensors" in error.message and NINE in error.what
    rows = error.as_result()["kinship"]
    assert [row["name"] for row in rows] == [
        "spec type",
        "projector width, vision",
        "adapter architecture",
        "adapter tensors",
    ]
    assert rows[1]["expected"] == 4096 and rows[1]["found"] == 128 and "remedy" in rows[1] and not rows[1]["ok"]


def test_a_relation_as_data(build: Build) -> None:
    (kind, files, types) = [relation.as_dict() for relation in check_kinship(build())]
    assert kind == {
        "name": "model kind",
        "what": kind["what"],
        "expected": "a model that stands alone",
        "found": "general.architecture llama",
        "ok": True,
    }
    assert (files["expected"], types["found"]) == (1, "f32")
