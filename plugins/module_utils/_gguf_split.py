# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model in several files: their names, and that they are one complete set in the right order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    DuplicateTensor,
    NotFirstShard,
    ShardName,
    ShardsDisagree,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_header import Header
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Split

__all__ = [
    "check_mates",
    "check_place",
    "check_set",
    "check_shard",
    "check_total",
    "shard_count",
    "shard_names",
    "split_of",
]

_NO, _COUNT, _TOTAL = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf")
_MOST_SHARDS = 65535  # split.count is a u16


def _whole(name: str, metadata: dict[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ShardsDisagree(f"{name}: {key} is no count", expected="a whole number", found=repr(value))
    return value


def shard_count(name: str, metadata: dict[str, Any]) -> int:
    """How many files the set has that this first one announces: 1 for a model in one file."""
    count, number, _ = (_whole(name, metadata, key) for key in (_COUNT, _NO, _TOTAL))
    if number:
        of = f" of {count}" if count else ""
        raise NotFirstShard(f"{name} is a later shard{of}", expected=f"{_NO} 0", found=f"{_NO} {number}")
    if (count or 1) > _MOST_SHARDS:
        raise ShardsDisagree(f"{name}: {_COUNT} is beyond all measure", expected=f"<= {_MOST_SHARDS}", found=count)
    if count and count > 1 and number is None:
        raise ShardsDisagree(f"{name} does not say which shard it is", expected=f"{_NO} 0", found=f"no {_NO}")
    return count or 1


def split_of(name: str, metadata: dict[str, Any], tensors: int) -> Split:
    """What a header with this metadata, in a file of so many ``tensors``, says of the set that the file belongs to."""
    number, count, total = (_whole(name, metadata, key) for key in (_NO, _COUNT, _TOTAL))
    return Split(number or 0, count or 1, total, tensors)


def check_place(name: str, split: Split, number: int, count: int) -> None:
    """Refuse a file whose header says another place in another set than its name: ``number`` (from 0) of ``count``."""
    if count == 1 and (split.number, split.count) != (0, 1):
        raise ShardName(
            f"{name} is one shard of a split model",
            expected=f"all {split.count} files, under names that end in -00001-of-{split.count:05d}.gguf and so on",
            found=f"{_NO} {split.number}, {_COUNT} {split.count}",
        )
    if split.count != count:
        raise ShardsDisagree(f"{name} is of another set", expected=f"{_COUNT} {count}", found=f"{_COUNT} {split.count}")
    if split.number != number:
        raise ShardsDisagree(
            f"{name} is another shard than its name says", expected=f"{_NO} {number}", found=f"{_NO} {split.number}"
        )


def check_mates(name: str, one: Split, other: Split) -> None:
    """Refuse two shards that count the tensors of their set differently."""
    if None not in (one.total, other.total) and one.total != other.total:
        raise ShardsDisagree(
            f"{name} is of another set", expected=f"{_TOTAL} {other.total}", found=f"{_TOTAL} {one.total}"
        )


def check_total(name: str, splits: Sequence[Split]) -> None:
    """Refuse a whole set whose files hold another number of tensors in all than they say."""
    found = sum(split.tensors for split in splits)
    for total in {split.total for split in splits} - {None, found}:
        raise ShardsDisagree(
            f"{name}: the tensors of its {len(splits)} files do not add up",
            expected=f"{total} ({_TOTAL})",
            found=found,
        )


def shard_names(path_or_url: str, count: int) -> list[str]:
    """The names of all ``count`` files, by the first one's. Keys count from 0, names from 1; a URL keeps its query."""
    place, mark, query = path_or_url, "", ""
    if path_or_url.startswith(("http://", "https://")):
        place, mark, query = path_or_url.partition("?")
    match = _NAME.search(place)
    if not match or match.end() != len(place) or (int(match[1]), int(match[2])) != (1, count):
        raise ShardName(
            f"{place} does not lead to its other shards",
            expected=f"a name that ends in -00001-of-{count:05d}.gguf",
            found=place.rpartition("/")[2],
        )
    stem = place[: match.start()]
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf{mark}{query}" for number in range(1, count + 1)]


def check_shard(name: str, metadata: dict[str, Any], index: int, first: dict[str, Any]) -> None:
    """Refuse a file that is not shard ``index`` (from 0) of the set whose first file has the metadata ``first``."""
    number = _whole(name, metadata, _NO)
    if number != index:
        raise ShardsDisagree(
            f"{name} is another shard than its name says", expected=f"{_NO} {index}", found=f"{_NO} {number}"
        )
    for key in (_COUNT, _TOTAL):
        here, there = _whole(name, metadata, key), _whole(name, first, key)
        if here is not None and here != there:
            raise ShardsDisagree(f"{name} is of another set", expected=f"{key} {there}", found=f"{key} {here}")


def check_set(name: str, headers: Sequence[Header]) -> None:
    """Refuse totals that do not add up, and tensors that stand in two files."""
    total = _whole(name, headers[0].metadata, _TOTAL)
    found = sum(header.tensor_count for header in headers)
    if total is not None and total != found:
        raise ShardsDisagree(
            f"{name}: the tensors of its {len(headers)} files do not add up",
            expected=f"{total} ({_TOTAL})",
            found=found,
        )
    if len(headers) == 1:
        return  # the table of one file was checked while it was read
    seen: dict[str, int] = {}
    for tensor in (tensor for header in headers for tensor in header.tensors):
        if tensor.name in seen:
            raise DuplicateTensor(
                f"{name}: tensor {tensor.name!r} stands in two shards",
                expected="each name once",
                found=f"it in shard {seen[tensor.name]} and in shard {tensor.shard}",
            )
        seen[tensor.name] = tensor.shard
