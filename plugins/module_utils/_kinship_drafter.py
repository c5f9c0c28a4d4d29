# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is this drafter made for this model, and does the spec type that is armed find what it drafts with?

Read off llama.cpp build 11434: ``common/speculative.cpp`` (each type's constructor, and
``common_speculative_types_from_gguf``, which tells the kinds of drafters apart), ``src/models/dflash.cpp``,
``src/models/eagle3.cpp``, ``src/llama-context.cpp`` (``set_embeddings_layer_inp``).
"""

from __future__ import annotations

from collections.abc import Collection

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_relation import Relation, name_of, number
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_vocab import (
    compare_specials,
    compare_tokens,
    vocabulary,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import CONTEXT_DRAFTERS
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_weights import has_mtp_head

__all__ = ["DEPENDENT", "armed_type", "check_drafter", "check_mtp_head", "drafter_type"]

# Architectures that draft for another model and cannot stand alone.
DEPENDENT = frozenset({"dflash", "eagle3", "gemma4-assistant"})
# Those whose loader wants the MTP head's tensors wherever the header declares a head, armed or not.
_HEAD_REQUIRED = frozenset(
    "qwen35 qwen35moe qwen3next qwen4exp deepseek4 nemotron_h nemotron_h_moe glm4 glm5-next exaone4 exaone-moe "
    "bailingmoe2".split()
)
_EAGLE_LAYERS = 3
_REMEDY = "Take a drafter that was trained for this model"


def armed_type(spec_types: Collection[str]) -> str | None:
    """The one proposer that has a context of its own; that there is but one is the env's own rule."""
    return next((name for name in spec_types if name in CONTEXT_DRAFTERS), None)


def check_mtp_head(model: Gguf) -> list[Relation]:
    """A declared head that is not armed: without its tensors most families load all the same, some do not."""
    declared, blocks = model.nextn_predict_layers, model.block_count or 0
    if not declared or has_mtp_head(model, blocks, declared):
        return []
    return [
        Relation(
            "mtp head",
            f"the MTP head that {name_of(model)} declares",
            f"nextn tensors of {declared} layers",
            "none",
            model.architecture not in _HEAD_REQUIRED,
            "Take a file that was converted with its MTP head, or one that declares none",
            "draft-mtp has nothing to draft with",
        )
    ]


def drafter_type(drafter: Gguf) -> str:
    """The spec type that a drafter file is for."""
    if drafter.architecture == "dflash":
        markov = any(tensor.name == "markov_w1.weight" for tensor in drafter.tensors)
        return "draft-dspark" if markov else "draft-dflash"
    return {"eagle3": "draft-eagle3", "gemma4-assistant": "draft-mtp"}.get(drafter.architecture, "draft-simple")


def check_drafter(model: Gguf, drafter: Gguf, spec_types: Collection[str]) -> list[Relation]:
    """Its kind against the spec type, its vocabulary and, where it reads the target's layers, those."""
    armed, kind = armed_type(spec_types), drafter_type(drafter)
    what = f"the drafter {name_of(drafter)} of {name_of(model)}"
    if armed != kind:
        found = armed or ", ".join(spec_types) or "none"
        remedy = f"Set SPEC_TYPE={kind}, or give a drafter of the type that is set"
        return [Relation("drafter type", what, f"spec_type {kind}", f"spec_type {found}", False, remedy)]
    relations = [Relation("drafter type", what, f"spec_type {kind}", f"spec_type {armed}", True)]
    if kind != "draft-simple":
        relations += _target(model, drafter, kind, what)
    return relations + _tokens(model, drafter, kind, what)


def _tokens(model: Gguf, drafter: Gguf, kind: str, what: str) -> list[Relation]:
    """The engine compares for draft-simple alone; the others borrow the target's ids all the more."""
    try:
        ours, theirs = vocabulary(model), vocabulary(drafter)
    except FleetError as exc:
        return [Relation("drafter vocabulary", f"{what}: {exc.what}", exc.expected, exc.found, False, _REMEDY)]
    tokens = compare_tokens(ours, theirs, what)
    return [tokens, compare_specials(ours, theirs, what)] if kind == "draft-simple" and tokens.ok else [tokens]


def _target(model: Gguf, drafter: Gguf, kind: str, what: str) -> list[Relation]:
    """What a drafter that reads the target's hidden states expects of them."""
    arch, width = drafter.architecture, number(model, "embedding_length")
    # DFlash has no key of its own for the target's width: its encoder takes the drafter's.
    key = "target_hidden_size" if kind == "draft-eagle3" else "embedding_length"
    read = number(drafter, key)
    relations = [
        Relation("drafter width", f"{what}, its {arch}.{key}", width, read, read == width, _REMEDY),
        _layers(model, drafter, kind, what),
    ]
    names = {tensor.name for tensor in drafter.tensors}
    if kind != "draft-eagle3":
        return relations + _block(model if "token_embd.weight" not in names else drafter, drafter, kind, what)
    borrowed = [name for name in ("token_embd.weight", "output.weight") if name not in names]
    if borrowed:
        own, about = number(drafter, "embedding_length"), f"{what}, which borrows {' and '.join(borrowed)}"
        relations.append(Relation("drafter embeddings", about, width, own, own == width, _REMEDY))
    return relations


def _layers(model: Gguf, drafter: Gguf, kind: str, what: str) -> Relation:
    layers, trunk = drafter.get("target_layers"), number(model, "block_count") - model.nextn_predict_layers
    wanted = f"{_EAGLE_LAYERS} layers" if kind == "draft-eagle3" else "layers"
    right = isinstance(layers, list) and (len(layers) == _EAGLE_LAYERS if kind == "draft-eagle3" else len(layers) > 0)
    ok = right and all(isinstance(layer, int) and 0 <= layer <= trunk for layer in layers)
    about = f"{what}, its {drafter.architecture}.target_layers"
    found = "none" if layers is None else layers
    return Relation("drafter layers", about, f"{wanted} from 0 to {trunk}", found, ok, _REMEDY)


def _block(embeds: Gguf, drafter: Gguf, kind: str, what: str) -> list[Relation]:
    """A drafter of whole blocks fills them with a mask token, which ``embeds`` has to hold a row for; DSpark has to
    say how long they are."""
    rows = next((tensor.dims[-1] for tensor in embeds.tensors if tensor.name == "token_embd.weight"), 0)
    mask, size = drafter.metadata.get("tokenizer.ggml.mask_token_id"), drafter.get("block_size")
    ok, found = isinstance(mask, int) and 0 <= mask < rows, "none" if mask is None else mask
    about = f"{what}, its tokenizer.ggml.mask_token_id"
    relations = [Relation("drafter mask", about, f"a token id below {rows}", found, ok, _REMEDY)]
    if kind == "draft-dspark":
        ok, found = isinstance(size, int) and size > 0, "none" if size is None else size
        relations.append(Relation("drafter block", f"{what}, its dflash.block_size", "1 or more", found, ok, _REMEDY))
    return relations
