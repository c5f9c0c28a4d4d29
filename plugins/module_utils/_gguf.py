# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's GGUF header, wherever it lies: one file, a set of shards, or a URL; tensor data is never read."""

from __future__ import annotations

from collections.abc import Collection

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    ArchitectureFault,
    GgufError,
    ShardMissing,
    UnknownTensorType,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_header import Header, read_header
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import open_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_split import (
    check_set,
    check_shard,
    shard_count,
    shard_names,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_types import (
    TENSOR_TYPES,
    TYPE_IDS,
    ArrayInfo,
    Gguf,
    Shard,
    Tensor,
    TensorType,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError, shown_url

__all__ = [
    "TENSOR_TYPES",
    "TYPE_IDS",
    "ArrayInfo",
    "Gguf",
    "GgufError",
    "Shard",
    "Tensor",
    "TensorType",
    "read_gguf",
    "require_known_types",
]


def read_gguf(
    path_or_url: str,
    *,
    keys: Collection[str] | None = None,
    whole: Collection[str] = (),
    tensors: bool = True,
    declared_bytes: int | None = None,
    timeout_s: float = 30.0,
    deadline_s: float = 300.0,
) -> Gguf:
    """Read the header of the model at a path or an HTTP(S) URL; the first of a set of shards stands for the set.

    ``keys`` are returned whatever they are, beside the few that properties of Gguf need; None returns all, with arrays
    of strings and arrays of more than 4,096 numbers as ArrayInfo, but for those in ``whole``. Without ``tensors`` their
    table is neither read nor checked. ``declared_bytes`` is the whole file's length where only its header is at hand.
    ``timeout_s`` is the longest silence of a server, ``deadline_s`` all that it may take for one file.

    Raises a class of _gguf_errors where the file is unsound, SourceError where it cannot be read.
    """

    first, shard = _read_file(path_or_url, 0, keys, whole, tensors, declared_bytes, timeout_s, deadline_s)
    count = shard_count(shard.name, first.metadata)
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ArchitectureFault(
            f"{shard.name} does not say of which architecture it is",
            expected="general.architecture as a string",
            found="none" if architecture is None else repr(architecture),
        )
    headers, shards = [first], [shard]
    if count > 1:
        if declared_bytes is not None:
            raise FleetError(
                f"{shard.name} is the first of {count} files",
                expected="a model in one file where a length is declared",
                remedy="Read the shards as they are",
            )
        for index, place in enumerate(shard_names(path_or_url, count)[1:], start=1):
            try:
                header, shard = _read_file(place, index, (), (), tensors, None, timeout_s, deadline_s)
            except SourceError as exc:
                if isinstance(exc.__cause__, FileNotFoundError) or exc.facts.get("status") in (404, 410):
                    of = f"{index + 1} of {count}"
                    raise ShardMissing(
                        f"{shards[0].name}: shard {of} is missing", expected=shown_url(place), found=exc.found
                    ) from exc
                raise
            check_shard(shard.name, header.metadata, index, first.metadata)
            headers.append(header)
            shards.append(shard)
    check_set(shards[0].name, headers)
    return Gguf(
        version=first.version,
        metadata=first.metadata,
        tensors=tuple(tensor for header in headers for tensor in header.tensors),
        data_offset=first.data_offset,
        file_bytes=sum(shard.file_bytes for shard in shards),
        alignment=first.alignment,
        architecture=architecture,
        shards=tuple(shards),
        tensor_count=sum(header.tensor_count for header in headers),
    )


def require_known_types(name: str, gguf: Gguf, *, also: Collection[int] = (), runtime: str = "the engine") -> None:
    """Refuse a model with tensors of a type that neither the engine knows nor ``runtime``, which has ``also``."""
    strange = {kind: count for kind, count in gguf.unknown_types.items() if kind not in also}
    if strange:
        shown = ", ".join(f"{count} of type {kind}" for kind, count in sorted(strange.items()))
        raise UnknownTensorType(f"{name} has tensors of an unknown type", expected=f"types of {runtime}", found=shown)


def _read_file(
    place: str,
    shard: int,
    keys: Collection[str] | None,
    whole: Collection[str],
    tensors: bool,
    declared_bytes: int | None,
    timeout_s: float,
    deadline_s: float,
) -> tuple[Header, Shard]:
    with open_bytes(place, timeout_s=timeout_s, deadline_s=deadline_s) as source:
        size = source.size if declared_bytes is None else declared_bytes
        if size < source.size:
            raise FleetError(
                f"{source.name} is longer than declared",
                expected=f"at most {size} bytes",
                found=f"{source.size} bytes",
                remedy="Correct the declared length",
            )
        header = read_header(source, keys=keys, whole=whole, tensors=tensors, file_bytes=size, shard=shard)
    return header, Shard(source.name, size, header.data_offset, header.alignment, header.tensor_count)
