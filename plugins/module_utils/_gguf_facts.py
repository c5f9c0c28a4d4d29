# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A header as the plain data that a module returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_types import ArrayInfo, Gguf

__all__ = ["facts"]


def facts(gguf: Gguf, *, keys: Sequence[str] | None = None, tensors: bool = False) -> dict[str, Any]:
    """Everything but the metadata that ``keys`` does not name, and the table of tensors only if asked.

    ``missing_keys`` are those of ``keys`` that the file does not have.
    """
    wanted = gguf.metadata if keys is None else {key: gguf.metadata[key] for key in keys if key in gguf.metadata}
    result = {
        "version": gguf.version,
        "architecture": gguf.architecture,
        "name": gguf.name,
        "file_type": gguf.file_type,
        "file_bytes": gguf.file_bytes,
        "data_offset": gguf.data_offset,
        "alignment": gguf.alignment,
        "block_count": gguf.block_count,
        "nextn_predict_layers": gguf.nextn_predict_layers,
        "metadata": {key: _plain(value) for key, value in wanted.items()},
        "missing_keys": [key for key in keys or () if key not in gguf.metadata],
        "tensor_count": gguf.tensor_count,
        "tensor_bytes": gguf.tensor_bytes,
        "exact": not gguf.unknown_types,
        "types": gguf.types,
        "unknown_types": {str(number): count for number, count in gguf.unknown_types.items()},
        "shards": [asdict(shard) for shard in gguf.shards],
    }
    if tensors:
        result["tensors"] = [{**asdict(tensor), "dims": list(tensor.dims)} for tensor in gguf.tensors]
    return result


def _plain(value: Any) -> Any:
    """What JSON can say: an array that was passed over as a dictionary, infinities and NaN as words."""
    if isinstance(value, ArrayInfo):
        return {"type": value.type, "count": value.count}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
