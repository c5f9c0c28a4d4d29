# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is this projector made for this model? Its output must be as wide as what the model takes in.

Read off llama.cpp build 11434: ``tools/mtmd/clip.cpp`` (``clip_n_mmproj_embd`` and ``load_tensors``, which tell whose
dimension is the output of each type), ``tools/mtmd/mtmd.cpp`` (the comparison), ``src/llama-hparams.cpp``
(``n_embd_inp``). The key ``clip.vision.projection_dim`` decides nothing there, but for one type.
"""

from __future__ import annotations

import re

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_relation import Relation, name_of, number

__all__ = ["check_projector", "input_width", "output_width"]

# Types of ``clip.projector_type``: the tensor that makes the output, and which of its dimensions is the width.
_OUTPUT: dict[str, tuple[str, int]] = {
    "ldp": ("mm.model.mb_block.1.block.2.1.bias", 0),
    "ldpv2": ("mm.model.peg.0.bias", 0),
    "resampler": ("resampler.proj.weight", 0),
    "adapter": ("adapter.linear.dense_4h_to_h.weight", 1),
    "minimax_m3": ("mm.merger.fc2.bias", 0),
    "janus_pro": ("mm.1.bias", 0),
    "meralion": ("mm.a.mlp.3.weight", 1),
    "dots3note_a": ("mm.a.mlp.3.weight", 1),
    "lfm2a": ("a.position_embd.weight", 0),
    "granite_speech": ("a.proj_linear.weight", 1),
    "qwen2a": ("mm.a.fc.weight", 1),
    **dict.fromkeys(
        "mlp phi4 pixtral lightonocr dots_ocr dots3note_v muse-glimmer mimovl lfm2 kimivl paddleocr kimik25 yasa2 "
        "deepseek4v".split(),
        ("mm.2.weight", 1),
    ),
    **dict.fromkeys(
        ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "exaone4_5", "youtuvl", "ling3vl"), ("mm.2.bias", 0)
    ),
    **dict.fromkeys(("gemma3", "gemma3nv"), ("mm.input_projection.weight", 0)),
    **dict.fromkeys(("gemma4v", "gemma4uv"), ("mm.input_projection.weight", 1)),
    **dict.fromkeys(("gemma4a", "gemma4ua"), ("mm.a.input_projection.weight", 1)),
    **dict.fromkeys(("internvl", "nemotron_v2_vl"), ("mm.model.mlp.3.weight", 1)),
    **dict.fromkeys(("minicpmv4_6", "cogvlm", "glm4v", "glm5v"), ("mm.down.weight", 1)),
    **dict.fromkeys(
        ("idefics3", "step3vl", "llama4", "hunyuanvl", "deepseekocr", "deepseekocr2"), ("mm.model.fc.weight", 1)
    ),
    **dict.fromkeys(
        ("ultravox", "voxtral", "musicflamingo", "qwen3a", "glma", "mimo_audio", "parakeet"), ("mm.a.mlp.2.weight", 1)
    ),
}
_MODALITIES = {"vision": "images", "audio": "sound", "gen.audio": "generated sound"}
_OMNI = {"vision": "qwen2.5vl_merger", "audio": "qwen2a"}  # what the engine makes of qwen2.5o
_DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.fc1\.weight")
_REMEDY = "Take the projector that was published with this very model, or leave the projector out"


def input_width(model: Gguf) -> int:
    """Elements of one embedding that the model takes in: its own width, and once more for each deepstack layer."""
    layers, mapping = model.get("n_deepstack_layers"), model.get("deepstack_mapping")
    if isinstance(mapping, list):
        layers = len({index for index in mapping if index >= 0})
    return number(model, "embedding_length") * (1 + (layers if isinstance(layers, int) else 0))


def output_width(projector: Gguf, kind: str) -> int:
    """Elements of one embedding that a projector of type ``kind`` makes; a FleetError for a type without a rule."""
    dims = {tensor.name: tensor.dims for tensor in projector.tensors}
    if kind == "granite4_vision":  # one projector a feature layer, side by side
        layers, width = (projector.metadata.get(f"clip.vision.{key}") for key in ("feature_layer", "projection_dim"))
        if not isinstance(layers, list) or not isinstance(width, int):
            raise FleetError(kind, expected="clip.vision.feature_layer and clip.vision.projection_dim", found="none")
        return len(layers) * width
    if kind == "mlp" and "mm.3.weight" in dims:
        name, axis = "mm.3.bias", 0  # the engine's MLP_NORM
    elif kind in _OUTPUT:
        name, axis = _OUTPUT[kind]
    else:
        raise FleetError(
            f"projector type {kind!r}",
            expected="a type whose output width is known",
            found=repr(kind),
            remedy="Take a projector of a type that llama.cpp build 11434 knows, or leave the projector out",
        )
    if name not in dims:
        raise FleetError(f"projector type {kind!r}", expected=f"tensor {name}", found="none")
    width = (*dims[name], 1, 1)[axis]
    if kind == "qwen3vl_merger":
        width *= 1 + sum(_DEEPSTACK.fullmatch(tensor) is not None for tensor in dims)
    return width


def check_projector(model: Gguf, projector: Gguf) -> list[Relation]:
    """One relation for each modality: the width that the projector makes against the width that the model takes."""
    declared = {name: _kind(projector, name) for name in _MODALITIES if _has(projector, name)}
    if declared.get("vision") == "gemma3nv":
        declared.pop("audio", None)  # the engine passes over its sound encoder
    what = f"the output of {name_of(projector)} and the input of {name_of(model)}"
    if not declared.keys() & {"vision", "audio"}:
        expected = "clip.has_vision_encoder or clip.has_audio_encoder"
        return [Relation("projector width", what, expected, "neither", False, _REMEDY)]
    note = "takes " + " and ".join(_MODALITIES[name] for name in declared if name != "gen.audio")
    return [_width(model, projector, what, name, kind).noting(note) for name, kind in declared.items()]


def _width(model: Gguf, projector: Gguf, what: str, modality: str, kind: str) -> Relation:
    name = f"projector width, {modality}"
    expected = input_width(model)
    try:
        found = output_width(projector, kind)
    except FleetError as exc:
        return Relation(name, f"{what}: {exc.what}", exc.expected, exc.found, False, exc.remedy or _REMEDY)
    return Relation(name, what, expected, found, found == expected, _REMEDY)


def _has(projector: Gguf, modality: str) -> bool:
    key = f"clip.has_{modality.replace('.', '_')}_encoder"
    return projector.metadata.get(key) is True


def _kind(projector: Gguf, modality: str) -> str:
    keys = ("clip.projector_type", f"clip.{modality}.projector_type")
    kind = next((str(projector.metadata[key]) for key in keys if projector.metadata.get(key)), "")
    return _OMNI.get(modality, kind) if kind == "qwen2.5o" else kind
