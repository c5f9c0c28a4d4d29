# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards of one model, declared and found as the set that they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf

__all__ = ["check_headers", "check_names"]

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


def check_headers(folder: str, names: Sequence[str]) -> None:
    """Hold each set's headers against each other: numbers, counts, the total of tensors, none of them twice.

    Every file must be in ``folder``. A GgufError names the shard that does not belong.
    """
    for stem, count in _sets(names):
        if count > 1:
            read_gguf(f"{folder}/{stem}-00001-of-{count:05d}.gguf")
