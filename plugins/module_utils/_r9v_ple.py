# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The per-layer embedding (PLE) of an R9V target: one tensor of its shards, cut out into a table that the engine maps.

The fork's ``tools/prepare_ple.py`` cuts it. What it must come to is read here from the shards' headers.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_experts import extents

__all__ = ["PLE_TENSOR", "Ple", "derive_command", "locate", "require_bytes", "table_fault"]

PLE_TENSOR = "per_layer_token_embd.weight"


@dataclass(frozen=True)
class Ple:
    """The tensor: the shard that holds it, its type as the fork writes it, its shape (a row's length first), bytes."""

    source: str
    tensor: str
    type: str
    shape: tuple[int, ...]
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        return {**asdict(self), "shape": list(self.shape)}


def locate(gguf: Gguf, tensor: str = PLE_TENSOR) -> Ple:
    """The table's tensor in the shards; a FleetError where they have none, or one of a type without a known size.

    Q8_0 rows of 160, 320,001,536 of them, are 54,400,261,120 bytes (160 / 32 x 34 a row): the reference page's table.
    """
    found = [each for each in gguf.tensors if each.name == tensor]
    if not found:
        raise FleetError(
            f"{gguf.shards[0].name} and its other shards",
            expected=f"a tensor {tensor}",
            found=f"none among {gguf.tensor_count}",
            remedy="A target without a per-layer embedding needs no table: leave ple out",
        )
    each = found[0]
    if each.type_name is None:
        raise FleetError(
            f"tensor {tensor}", expected="a type whose size is known", found=f"type {each.type_id}",
            remedy="Name a runtime that knows the type, or take another quantization",
        )  # fmt: skip
    extents(gguf)  # refuses what lies behind the last tensor of a shard
    shard = gguf.shards[each.shard]
    return Ple(shard.name, tensor, each.type_name.upper(), each.dims, each.nbytes)


def require_bytes(ple: Ple, declared: int | None) -> None:
    """A FleetError where the declared size of the table is not the tensor's, to the byte."""
    if declared is not None and declared != ple.bytes:
        raise FleetError(
            f"the declared bytes of the table from {ple.tensor}",
            expected=f"{ple.bytes:,}, as {ple.source} has it ({ple.type}, {'x'.join(map(str, ple.shape))})",
            found=f"{declared:,}",
            remedy="Correct ple.bytes, and the setup's ple_bytes in the inventory with it",
        )


def table_fault(path: str, wanted: int) -> str:
    """Why the table at ``path`` is not the one of ``wanted`` bytes, or "": a byte short is a row cut in two.

    A table that is not there is no fault: the fork's setup cuts it out, and leaves one of the right size alone.
    """
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return ""
    return "" if size == wanted else f"{size:,} bytes"


def derive_command(ple: Ple, checkout: str, output: str) -> list[str]:
    """The fork's command that cuts the table out; the fork runs it in its image, where the gguf package is."""
    return [
        os.path.join(checkout, "tools", "prepare_ple.py"),
        ple.source,
        "--output",
        output,
        "--tensor-name",
        ple.tensor,
        "--expected-bytes",
        str(ple.bytes),
        "--expected-type",
        ple.type,
        "--expected-shape",
        ",".join(map(str, ple.shape)),
    ]
