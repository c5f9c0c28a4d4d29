# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that author an R9V profile: JSON as the fork reads it, written when it differs and at no other time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import (
    atomic_write,
    make_dirs,
    read_json,
    read_optional,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import hash_file

__all__ = ["Draft", "brief", "digest_of", "json_text", "read_object", "within"]

# As json.dumps indents it. A string has no such line breaks: they are escaped in it.
_NUMBERS = re.compile(r"\[\n\s*(-?\d+(?:,\n\s*-?\d+)*)\n\s*\]")
_LONG = re.compile(r"\[\d+(?:, \d+){15,}\]")


class Draft:
    """A file as it shall be; ``data`` is its text, ``before`` what is there now (None where nothing is)."""

    def __init__(self, path: str, data: str) -> None:
        self.path, self.data = path, data
        there = read_optional(path)
        self.before = None if there is None else there.decode("utf-8", "backslashreplace")

    @property
    def changed(self) -> bool:
        """Whether a byte differs."""
        return self.before != self.data

    @property
    def diff(self) -> dict[str, str]:
        """For ansible's ``--diff``; of long lists of numbers only how many they are, and their digest."""
        return {
            "before_header": self.path,
            "after_header": self.path,
            "before": brief(self.before or ""),
            "after": brief(self.data),
        }

    def write(self) -> None:
        """Put it in its place at once; a new file belongs to whom its folder belongs, an old one keeps its mode."""
        folder = os.path.dirname(os.path.abspath(self.path))
        above = folder
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        owner = os.stat(above)
        make_dirs(folder, 0o755, owner.st_uid, owner.st_gid)
        mode = 0o644
        if self.before is not None:
            owner = os.stat(self.path)
            mode = stat.S_IMODE(owner.st_mode)
        atomic_write(self.path, self.data.encode("utf-8"), mode, owner.st_uid, owner.st_gid)


def brief(text: str) -> str:
    """``text`` for people: a list of many numbers as their count and digest, equal ones in a row as one."""
    lines: list[str] = []
    times = 1
    for line in _LONG.sub(_count, text).splitlines():
        bare = line.rstrip(",")
        if lines and bare == lines[-1].rstrip(",") and bare.endswith(")]"):
            times += 1
            continue
        if times > 1:
            lines[-1] = f"{lines[-1].rstrip(',')} x {times},"
        lines.append(line)
        times = 1
    return "".join(f"{line}\n" for line in lines)


def _count(match: re.Match[str]) -> str:
    digest = hashlib.sha256(match[0].encode("ascii")).hexdigest()[:8]
    return f"[({match[0].count(',') + 1} numbers, sha256 {digest})]"


def json_text(value: Mapping[str, Any]) -> str:
    """``value`` as JSON, keys in their order, a list of numbers on one line, a newline at the end."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _NUMBERS.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text) + "\n"


def read_object(path: str, what: str) -> dict[str, Any]:
    """The JSON object in the file ``path``, which is ``what`` for people; a FleetError where there is none."""
    told = read_json(path)
    if not isinstance(told, dict):
        found = "no such file" if told is None else type(told).__name__
        raise FleetError(f"{what} {path}", expected="a JSON object", found=found)
    return told


def digest_of(path: str) -> str:
    """The sha256 of a small file."""
    return hash_file(os.path.realpath(path))[0]


def within(folder: str, name: str, what: str) -> str:
    """The path of ``name`` below ``folder``; a FleetError where it is absolute or leads out of it."""
    path = os.path.normpath(os.path.join(folder, name))
    if os.path.isabs(name) or not path.startswith(f"{os.path.normpath(folder)}/"):
        raise FleetError(what, expected=f"a path below {folder}", found=repr(name))
    return path
