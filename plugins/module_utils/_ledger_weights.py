# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of a model, layer by layer, and those of a projector and an adapter. Exact where the types are known.

Read off llama.cpp build 11434: ``llama-model-loader.cpp`` (create_tensor), ``llama-adapter.cpp``,
``ggml-cuda.cu`` (the size that a tensor takes on a card).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_kv import allocated
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import Facts, Header, TensorInfo

__all__ = ["Size", "Weights", "adapter_pairs", "has_mtp_head", "projector_size", "require_source", "weights"]

_BLOCK = re.compile(r"blk\.(\d+)\.")
_INPUT = ("token_embd.", "position_embd.", "token_types.")
_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_PLAIN = frozenset({"f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64"})


@dataclass(frozen=True)
class Size:
    """Bytes on a card and on the host, which pads nothing."""

    card: int = 0
    host: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.card + other.card, self.host + other.host)

    def on(self, device: bool) -> int:
        """The one or the other."""
        return self.card if device else self.host


def tensor_size(tensor: TensorInfo) -> Size:
    """What one tensor takes."""
    rows = 1
    for dim in tensor.dims[1:]:
        rows *= dim
    row = tensor.dims[0]
    quantized = tensor.type_name not in _PLAIN
    return Size(allocated(tensor.nbytes, row, -(-tensor.nbytes // rows), quantized, True), tensor.nbytes)


@dataclass(frozen=True)
class Weights:
    """``layers`` one a layer; ``output`` lies with the last; ``everywhere`` on each card that has a layer; ``input``
    stays on the host; ``twin`` is the copy of token_embd that a card takes as output where the file has none
    (the host reads the one it has); ``exact`` says that every type is known."""

    layers: tuple[Size, ...]
    output: Size
    everywhere: Size
    input: Size
    twin: Size
    exact: bool


def weights(header: Header, model: Facts, *, mtp: bool) -> Weights:
    """Where the tensors of a model go. The MTP head's are loaded for draft-mtp alone (``mtp``)."""
    layers = [Size()] * model.layers_all
    output, everywhere, inputs, embedding = Size(), Size(), Size(), Size()
    own_output, exact = False, True
    for tensor in header.tensors:
        block = _BLOCK.match(tensor.name)
        size = tensor_size(tensor)
        if block:
            layer = int(block[1])
            if layer >= model.layers_all:
                raise FleetError(
                    f"tensor {tensor.name}", expected=f"a layer below block_count {model.layers_all}", found=layer
                )
            if layer >= model.layers and not mtp:
                continue
            layers[layer] += size
        elif tensor.name.startswith(_INPUT):
            inputs += size
            if tensor.name == "token_embd.weight":
                embedding = size
        elif tensor.name in _ROPE:
            if not model.rope_factors:
                raise FleetError(
                    f"tensor {tensor.name}", expected=f"none in {model.architecture}, which loads none", found="one"
                )
            everywhere += size
        else:
            if tensor.name == "output.weight":
                own_output = True
                if model.tied_always:
                    raise FleetError("tensor output.weight", expected=f"none in {model.architecture}", found="one")
            output += size
        exact = exact and tensor.exact
    return Weights(tuple(layers), output, everywhere, inputs, Size() if own_output else embedding, exact)


def has_mtp_head(header: Header, blocks: int, nextn: int) -> bool:
    """Whether the file holds the tensors of the MTP head that its header declares: the last ``nextn`` of ``blocks``."""
    names = {tensor.name for tensor in header.tensors}
    return nextn > 0 and all(f"blk.{layer}.nextn.eh_proj.weight" in names for layer in range(blocks - nextn, blocks))


def require_source(armed: str | None, header: Header, blocks: int, nextn: int, *, drafter: bool) -> None:
    """Refuse a spec type without what it drafts with: the head in the model's file, or a drafter file."""
    if armed == "draft-mtp":
        if drafter:
            raise FleetError("spec_type draft-mtp", expected="no drafter file beside it", found="one")
        if not has_mtp_head(header, blocks, nextn):
            raise FleetError(
                "spec_type draft-mtp",
                expected="nextn tensors in the model's file",
                found=f"nextn_predict_layers {nextn} and no head's tensors",
                remedy="Take a file that was converted with its MTP head, or set SPEC_TYPE=none",
            )
    elif armed is not None and not drafter:
        raise FleetError(f"spec_type {armed}", expected="a drafter file", found="none")


def projector_size(header: Header) -> Size:
    """A projector's tensors: all of them lie on one device."""
    total = Size()
    for tensor in header.tensors:
        total += tensor_size(tensor)
    return total


def adapter_pairs(adapter: Header, model: Header) -> list[tuple[int | None, str, Size]]:
    """Each LoRA pair: its base tensor's layer (None: outside the layers), its name, its size.

    A FleetError for a pair that is not whole, or whose base the model lacks or has in another shape.
    """
    bases = {tensor.name: tensor for tensor in model.tensors}
    pairs: dict[str, dict[str, TensorInfo]] = {}
    for tensor in adapter.tensors:
        for suffix in ("lora_a", "lora_b"):
            if tensor.name.endswith(f".{suffix}"):
                pairs.setdefault(tensor.name.removesuffix(f".{suffix}"), {})[suffix] = tensor
                break
        else:
            if not tensor.name.endswith("_norm.weight"):
                raise FleetError(f"adapter tensor {tensor.name}", expected="a name ending in .lora_a or .lora_b")
    found: list[tuple[int | None, str, Size]] = []
    for name, pair in sorted(pairs.items()):
        if len(pair) < 2:
            raise FleetError(f"adapter tensor {name}", expected="lora_a and lora_b", found=" ".join(pair))
        base = bases.get(name)
        if base is None:
            raise FleetError(f"adapter tensor {name}", expected="a tensor of that name in the model", found="none")
        _check_shapes(name, base.dims, pair["lora_a"].dims, pair["lora_b"].dims)
        block = _BLOCK.match(name)
        size = tensor_size(pair["lora_a"]) + tensor_size(pair["lora_b"])
        found.append((int(block[1]) if block else None, name, size))
    return found


def _check_shapes(name: str, base: Sequence[int], a: Sequence[int], b: Sequence[int]) -> None:
    wide = [*base, 1]
    a, b = [*a, 1], [*b, 1]
    if name.startswith("token_embd."):
        right = wide[0] == b[1] and wide[1] == a[1]
    else:
        right = wide[0] == a[0] and wide[1] == b[1] and a[1] == b[0]
    if not right:
        raise FleetError(
            f"adapter tensor {name}", expected=f"a pair for the model's {tuple(base)}", found=f"{a[:2]} and {b[:2]}"
        )
