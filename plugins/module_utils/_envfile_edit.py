# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An env file on disk: what an edit would make of it, and the edit."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import flip
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, read_optional

__all__ = ["Edit", "Planned", "carry_out", "plan"]


@dataclass(frozen=True)
class Edit:
    """What is asked for; None keeps mode, owner or group."""

    path: str
    set: Mapping[str, Any]
    unset: Sequence[str]
    create: bool = False
    mode: str | None = None
    owner: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Planned:
    """The file before (None: absent) and after, and its mode, owner and group after."""

    path: str
    before: str | None
    after: str
    was: tuple[int, int, int]
    mode: int
    uid: int
    gid: int

    @property
    def changed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after or self.was != (self.mode, self.uid, self.gid)

    @property
    def diff(self) -> list[dict[str, str]]:
        """For ``--diff``: the content, and mode and owner where they differ."""
        parts = [
            {"before_header": self.path, "after_header": self.path, "before": self.before or "", "after": self.after}
        ]
        now = (self.mode, self.uid, self.gid)
        if self.before is not None and self.was != now:
            old, new = (f"mode {mode:04o}, owner {uid}:{gid}\n" for mode, uid, gid in (self.was, now))
            parts.append({"before_header": self.path, "after_header": self.path, "before": old, "after": new})
        return parts


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise FleetError(
            f"set.{key}",
            expected="text or a number",
            found=f"{type(value).__name__} {value!r}",
            remedy="Quote it as the file shall have it",
        )
    return str(value)


def _id(kind: str, name: str) -> int:
    """The number of a user or group, by name or number."""
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "owner" else grp.getgrnam(name).gr_gid
    except KeyError as exc:
        raise FleetError(f"{kind} {name!r}", expected="a name that this host knows", found="no such name") from exc


def _mode(text: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise FleetError("mode", expected="octal digits in quotes, as '0644'", found=repr(text))
    return int(text, 8)


def plan(edit: Edit) -> Planned:
    """What the edit would make of the file; nothing is written. A FleetError where it cannot be made."""
    both = sorted(set(edit.set) & set(edit.unset))
    if both:
        raise FleetError(f"{both[0]} is in set and in unset", expected="one of the two", found="both")
    if not os.path.isabs(edit.path):
        raise FleetError("path", expected="an absolute path", found=edit.path)
    if os.path.islink(edit.path):
        raise FleetError(
            f"{edit.path} is a symbolic link",
            expected="a file",
            found=f"a link to {os.readlink(edit.path)}",
            remedy="Name the file it points to",
        )
    data = read_optional(edit.path)
    if data is None and not edit.create:
        raise FleetError(
            f"{edit.path} is not there", expected="an env file", found="none", remedy="Set create: true to make it"
        )
    try:
        before = None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise FleetError(f"{edit.path} is no text", expected="UTF-8", found=str(exc)) from exc
    changes: dict[str, str | None] = {key: _text(key, value) for key, value in edit.set.items()}
    changes.update(dict.fromkeys(edit.unset))
    after = flip(before or "", changes, edit.path)
    if data is None:
        was = (0o644, os.geteuid(), os.getegid())
    else:
        status = os.stat(edit.path)
        was = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    return Planned(
        edit.path,
        before,
        after,
        was,
        was[0] if edit.mode is None else _mode(edit.mode),
        was[1] if edit.owner is None else _id("owner", edit.owner),
        was[2] if edit.group is None else _id("group", edit.group),
    )


def carry_out(planned: Planned) -> None:
    """Write the file, atomically."""
    atomic_write(planned.path, planned.after.encode("utf-8"), planned.mode, planned.uid, planned.gid)
