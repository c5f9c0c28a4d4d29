# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards of one model, declared and found as the set that they are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import GgufError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_header import Header, read_header
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import open_bytes
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_split import (
    check_mates,
    check_place,
    check_set,
    check_total,
    split_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Split

__all__ = ["Shards", "check_names", "read_split"]

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def _sets(names: Sequence[str]) -> dict[tuple[str, int], list[int]]:
    """``{(stem, count): numbers}`` of the names that belong to a split GGUF."""
    found: dict[tuple[str, int], list[int]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault((match["stem"], int(match["count"])), []).append(int(match["number"]))
    return found


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse a declaration that leaves a shard out, or has one too many: the engine would find it at the load."""
    for (stem, count), numbers in _sets(names).items():
        wanted = set(range(1, count + 1))
        if wanted != set(numbers):
            lacks, strange = sorted(wanted - set(numbers)), sorted(set(numbers) - wanted)
            shown = [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in lacks or strange]
            raise FleetError(
                f"{what} does not declare the whole of a split model",
                expected=f"all {count} files of {stem}",
                found=("without " if lacks else "with a stray ")
                + ", ".join(shown[:4])
                + (", ..." if shown[4:] else ""),
                remedy="Declare each shard with its bytes and sha256",
            )


def read_split(name: str, path: str) -> Split | None:
    """What the header of the file at ``path`` says of the set it belongs to; None for what is no GGUF by its name.

    ``name`` is for messages. A file in one piece whose header cannot be read says nothing: its digest holds, and what
    loads it judges the rest. A shard must be readable, or it is a GgufError.
    """
    if not name.lower().endswith(".gguf"):
        return None
    try:
        header = _header(name, path, tensors=False)
    except GgufError:
        if _place_of(name)[1] > 1:
            raise
        return Split(0, 1, None, 0)
    return split_of(name, header.metadata, header.tensor_count)


def _header(name: str, path: str, *, tensors: bool, shard: int = 0) -> Header:
    with open_bytes(path, timeout_s=0.0, deadline_s=0.0) as source:
        source.name = name
        return read_header(source, keys=(), tensors=tensors, file_bytes=source.size, shard=shard)


def _place_of(name: str) -> tuple[int, int]:
    """``(number from 0, count)`` by the file's name: (0, 1) for a model in one piece."""
    match = _NAME.fullmatch(os.path.basename(name))
    return (int(match["number"]) - 1, int(match["count"])) if match else (0, 1)


class Shards:
    """Headers of a payload's proven files, held against their names and each other as they are added.

    ``deep``: once a set is whole, the tables of its tensors are read too, and no tensor may stand in two files.
    """

    def __init__(self, folder: str, *, deep: bool) -> None:
        self._folder, self._deep = folder, deep
        self._found: dict[str, Split] = {}
        self._paths: dict[str, str] = {}

    def add(self, name: str, path: str, known: Split | None = None) -> Split | None:
        """The file ``name`` is proven and its bytes lie at ``path``; ``known``: what its stamp says of its header.

        Returns what it says. A GgufError names the file that does not belong; it is not added then.
        """
        split = known or read_split(os.path.join(self._folder, name), path)
        if split is None:
            return None
        number, count = _place_of(name)
        check_place(os.path.join(self._folder, name), split, number, count)
        mates = self._mates(name)
        for mate in mates:
            if mate in self._found:
                check_mates(os.path.join(self._folder, name), split, self._found[mate])
        found, paths = {**self._found, name: split}, {**self._paths, name: path}
        if count > 1 and all(mate in found for mate in mates):
            first = os.path.join(self._folder, mates[0])
            check_total(first, [found[mate] for mate in mates])
            if self._deep:
                places = [os.path.join(self._folder, mate) for mate in mates]
                headers = [
                    _header(place, paths[mate], tensors=True, shard=index)
                    for index, (place, mate) in enumerate(zip(places, mates, strict=True))
                ]
                check_set(first, headers)
        self._found, self._paths = found, paths
        return split

    def placed(self, name: str) -> None:
        """The bytes of ``name``, which was added, have their final name now."""
        self._paths[name] = os.path.join(self._folder, name)

    def _mates(self, name: str) -> list[str]:
        """All names of the set that ``name`` belongs to, in their order; itself alone where it is in one piece."""
        match = _NAME.fullmatch(name)
        if not match:
            return [name]
        stem, count = match["stem"], int(match["count"])
        return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
