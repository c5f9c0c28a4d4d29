# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Was this adapter made for this model? Every pair has to find its base tensor, in its shape.

Read off llama.cpp build 11434: ``src/llama-adapter.cpp`` (``llama_adapter_lora_init_impl``). It goes by names and
shapes alone, so an adapter of a sister model passes: what an adapter does is proven by probes, not by kinship.
"""

from __future__ import annotations

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import ArrayInfo, Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_relation import (
    Relation,
    name_of,
    number,
    relation_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_weights import adapter_pairs

__all__ = ["check_adapter"]

_ALORA = "adapter.alora.invocation_tokens"
_REMEDY = "Take the adapter that was trained on this very model, or leave the adapter out"


def check_adapter(model: Gguf, adapter: Gguf, *, mtp: bool) -> list[Relation]:
    """Architecture, embeddings, pairs. ``mtp`` says that the MTP head's tensors are loaded."""
    what = f"the adapter {name_of(adapter)} of {name_of(model)}"
    ours, theirs = model.architecture, adapter.architecture
    relations = [Relation("adapter architecture", what, ours, theirs, ours == theirs, _REMEDY)]
    embeddings = [tensor.name for tensor in adapter.tensors if tensor.name.startswith("token_embd.")]
    relations.append(
        Relation(
            "adapter embeddings",
            what,
            "no tensors on token_embd",
            " and ".join(embeddings) or "no tensors on token_embd",
            not embeddings,
            "Take an adapter that leaves the embeddings alone: a rank on token_embd can crash a server",
        )
    )
    if not embeddings:
        pairs = relation_of(
            "adapter tensors", what, "pairs of the model's tensors", lambda: _pairs(model, adapter, mtp), _REMEDY
        )
        note = _note(adapter)
        relations.append(pairs.noting(note) if note else pairs)
    return relations


def _pairs(model: Gguf, adapter: Gguf, mtp: bool) -> str:
    trunk = number(model, "block_count") - model.nextn_predict_layers
    pairs = adapter_pairs(adapter, model)
    if not pairs:
        raise FleetError("no pair at all", expected="lora_a and lora_b of at least one tensor", found="none")
    beyond = [name for layer, name, _ in pairs if layer is not None and layer >= trunk]
    if beyond and not mtp:
        raise FleetError(
            f"adapter tensor {beyond[0]}",
            expected="a tensor that is loaded",
            found="one of the MTP head",
            remedy="Arm draft-mtp, for which alone the head is loaded, or take an adapter of the trunk alone",
        )
    return f"{len(pairs)} pairs"


def _note(adapter: Gguf) -> str | None:
    notes = []
    tokens = adapter.metadata.get(_ALORA)
    if tokens is not None:
        if not isinstance(tokens, (ArrayInfo, list)):
            raise FleetError(f"{_ALORA} in {name_of(adapter)}", expected="an array of tokens", found=repr(tokens))
        count = tokens.count if isinstance(tokens, ArrayInfo) else len(tokens)
        notes.append(f"activated LoRA: it works from its {count} invocation tokens on")
    norms = sum(tensor.name.endswith("_norm.weight") for tensor in adapter.tensors)
    if norms:
        notes.append(f"{norms} norm tensors, which the engine passes over")
    return "; ".join(notes) or None
