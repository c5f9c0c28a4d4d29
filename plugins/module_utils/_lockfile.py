# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock file: a group_vars file with ``llm_payload_locks``, always written whole, sorted, byte for byte the same."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional

__all__ = ["Planned", "carry_out", "plan", "render"]

_MARK = "# Written by module dank.llm_fleet.hf_lock (playbooks/lock.yml); a change here is lost."
_HEAD = f"---\n{_MARK}\n"


@dataclass(frozen=True)
class Planned:
    """The file as it is (None: absent) and as it is to be; ``mode`` is kept."""

    path: str
    before: str | None
    after: str | None
    mode: int

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> dict[str, str]:
        """For the module's result."""
        return {
            "before_header": self.path,
            "after_header": self.path,
            "before": self.before or "",
            "after": self.after or "",
        }


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar: no digest is read as a number, no name as anything but itself."""
    if not text.isprintable():
        raise FleetError(f"the name {text!r}", expected="printable characters", found="others")
    return json.dumps(text, ensure_ascii=False)


def render(locks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The file's text: payloads, files and keys in the order of their names."""
    if not locks:
        return f"{_HEAD}llm_payload_locks: {{}}\n"
    lines = ["llm_payload_locks:"]
    for payload, files in sorted(locks.items()):
        lines.append(f"  {_quoted(payload)}:")
        for name, lock in sorted(files.items()):
            lines.append(f"    {_quoted(name)}:")
            for key, value in sorted(lock.items()):
                lines.append(f"      {key}: {value if isinstance(value, int) else _quoted(value)}")
    return _HEAD + "\n".join(lines) + "\n"


def plan(path: str, locks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Planned:
    """What is to be written; nothing is. A FleetError where the file is not this module's, or would hide another.

    No file is made where nothing is locked.
    """
    if not os.path.isabs(path):
        raise FleetError("path", expected="an absolute path", found=path)
    if os.path.islink(path):
        raise FleetError(
            f"{path} is a symbolic link", expected="a file", found=f"a link to {os.readlink(path)}", remedy="Name that"
        )
    data = read_optional(path)
    if data is not None and not data.startswith(_HEAD.encode()):
        raise FleetError(
            f"{path} is no lock file",
            expected=f"a file that begins with {_MARK!r}",
            found="another, which would be overwritten",
            remedy="Name another path, or move the file away",
        )
    folder = os.path.dirname(path)
    for ending in (".yml", ".yaml", ".json"):
        if not os.path.isdir(folder) and os.path.isfile(folder + ending):
            raise FleetError(
                f"{folder} would hide {folder}{ending}",
                expected="a folder of variables, or none beside it",
                found="Ansible reads the folder alone where both are there",
                remedy=f"Move {folder}{ending} into a new folder {folder}",
            )
    before = None if data is None else data.decode("utf-8", "replace")
    after = None if before is None and not locks else render(locks)
    return Planned(path, before, after, 0o644 if data is None else stat.S_IMODE(os.stat(path).st_mode))


def carry_out(planned: Planned) -> None:
    """Write the file, atomically; its folder is made where it is missing."""
    if planned.after is not None:
        make_dirs(os.path.dirname(planned.path))
        atomic_write(planned.path, planned.after.encode("utf-8"), planned.mode)
