# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a GGUF file is refused: one class for each reason, each with its remedy."""

from __future__ import annotations

from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = [
    "ArchitectureFault",
    "BadAlignment",
    "BadDimension",
    "ChangedWhileRead",
    "CountBeyondFile",
    "DataBeyondFile",
    "DuplicateKey",
    "DuplicateTensor",
    "EmptyFile",
    "EmptyKey",
    "ForeignEndian",
    "GapInData",
    "GgufError",
    "HeaderTooShort",
    "KeyNotText",
    "LengthBeyondFile",
    "LimitExceeded",
    "LongTensorName",
    "NestedArray",
    "NotFirstShard",
    "NotGguf",
    "OverlappingTensors",
    "PartialBlock",
    "RangesUnsupported",
    "RemovedTensorType",
    "ShardMissing",
    "ShardName",
    "ShardsDisagree",
    "TooManyDimensions",
    "TruncatedHeader",
    "UnalignedOffset",
    "UnknownTensorType",
    "UnknownValueType",
    "UnsupportedVersion",
]

_ANEW = "Fetch the file anew from its publisher and check its digest"
_DAMAGED = "The header is damaged or was written by a faulty tool: fetch the file anew, or convert the model again"


class GgufError(FleetError):
    """A file that is no sound GGUF; ``way_out`` is the remedy where the place of the fault knows no better one."""

    way_out = _DAMAGED

    def __init__(self, what: str, *, remedy: str | None = None, **facts: Any) -> None:
        super().__init__(what, remedy=remedy or self.way_out, **facts)


class EmptyFile(GgufError):
    """No bytes at all."""

    way_out = _ANEW


class HeaderTooShort(GgufError):
    """Fewer bytes than the 24 that begin every GGUF."""

    way_out = _ANEW


class NotGguf(GgufError):
    """Another magic: an error page, a pointer, an older format."""

    way_out = _ANEW


class UnsupportedVersion(GgufError):
    """Neither version 2 nor 3."""

    way_out = "Convert the model again with a current converter, or fetch a version 3 file"


class ForeignEndian(GgufError):
    """Numbers in the byte order of another machine."""

    way_out = "Fetch the little-endian file of this model"


class TruncatedHeader(GgufError):
    """The file ends inside the header."""

    way_out = _ANEW


class CountBeyondFile(GgufError):
    """More keys or tensors than the bytes left can hold."""


class LengthBeyondFile(GgufError):
    """A key, string, name or array longer than the bytes left."""


class LimitExceeded(GgufError):
    """Larger than any honest header: reading on would cost more than it can be worth."""


class EmptyKey(GgufError):
    """A metadata key without a name."""


class KeyNotText(GgufError):
    """A metadata key that is no UTF-8: shown, it would be another key's name."""


class DuplicateKey(GgufError):
    """The same metadata key twice: which value holds?"""


class UnknownValueType(GgufError):
    """A metadata value of a type that the format does not have; its length cannot be known."""


class NestedArray(GgufError):
    """An array of arrays, which no engine reads."""


class BadAlignment(GgufError):
    """``general.alignment`` is no u32, or no power of two."""


class TooManyDimensions(GgufError):
    """A tensor of more than four dimensions."""


class BadDimension(GgufError):
    """A dimension of zero or less, or dimensions whose product no machine can address."""


class RemovedTensorType(GgufError):
    """Tensors of a type that the engine took back."""

    way_out = "Fetch or make a file of a current quantization; the engine repacks at load what these types stored"


class UnknownTensorType(GgufError):
    """Tensors of a type that this engine does not know: a vendor's, a fork's, or a newer one."""

    way_out = "Serve this file with the runtime that its publisher names, or fetch a file of a common quantization"


class PartialBlock(GgufError):
    """Rows that the type's blocks do not divide."""


class LongTensorName(GgufError):
    """A tensor name of 64 bytes or more."""


class DuplicateTensor(GgufError):
    """The same tensor twice."""


class UnalignedOffset(GgufError):
    """Tensor data that does not begin at a multiple of the alignment."""


class OverlappingTensors(GgufError):
    """Two tensors that share bytes."""


class GapInData(GgufError):
    """Bytes between two tensors that belong to neither."""


class DataBeyondFile(GgufError):
    """Tensors that end beyond the file: a download that broke off."""

    way_out = _ANEW


class ArchitectureFault(GgufError):
    """``general.architecture`` is missing, empty or no string."""


class NotFirstShard(GgufError):
    """A later shard given as the model."""

    way_out = "Give the first shard, the one that ends in -00001-of-..."


class ShardName(GgufError):
    """A shard whose file name does not lead to the others."""

    way_out = "Give the shards the names that they were published under"


class ShardMissing(GgufError):
    """A set that lacks one of its files."""

    way_out = "Put all shards into one folder"


class ShardsDisagree(GgufError):
    """Shards of different sets, or totals that do not add up."""

    way_out = "Fetch all shards anew from one revision of one publisher"


class RangesUnsupported(GgufError):
    """A server that does not answer a range with exactly that range."""

    way_out = "Name a server that serves byte ranges, or fetch the file and read it from disk"


class ChangedWhileRead(GgufError):
    """Not the same file at the end as at the beginning."""

    way_out = "Read it again once nobody writes to it"
