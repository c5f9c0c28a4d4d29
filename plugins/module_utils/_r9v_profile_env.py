# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile's ``profile.env``: its own values first, then the profile that it stands on, whose lines set what is unset.

Every line is ``: "${R9V_KEY:=value}"``. So what is set first wins: the environment over this file, this file over its
base. A line after the base comes too late. An empty value is none: ``:=`` takes it for unset, and the base fills it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = [
    "Line",
    "Profile",
    "faults_of_profile",
    "first_set",
    "parse_profile",
    "render_profile",
    "require_sound",
    "settings_of",
    "texts",
]

_KEY = re.compile(r"R9V_[A-Z0-9_]+")
# Of these bash looks for the end even between double quotes (a quotation, a process substitution), and a file where it
# finds none breaks at its last line.
_NOT_HERE = frozenset("'<>")
_SET = re.compile(r""": "\$\{(?P<key>[A-Za-z_][A-Za-z0-9_]*):=(?P<value>(?:[^"'<>\\]|\\.)*)\}\"""")
_BASE = re.compile(r'(?:source|\.) "\$(?P<root>[A-Za-z_][A-Za-z0-9_]*)/(?P<path>[^"$`\\]+)"')
# What the fork's own profiles have besides: the checkout's folder, found from the file's own place, and its end.
_ROOT = re.compile(
    r'(?P<name>[a-z_][a-z0-9_]*)=\$\(cd -- "\$\(dirname -- "\$\{BASH_SOURCE\[0\]\}"\)(?:/\.\.)+" && pwd\)'
)
_UNSET = re.compile(r"unset [a-z_][a-z0-9_]*")
_ROOT_NAME = "r9v_profile_base"
_SPECIAL = re.compile(r'([\\"$`}])')


@dataclass(frozen=True)
class Line:
    """One value: its key, where it stands, and whether that is after the base."""

    number: int
    key: str
    value: str
    late: bool


@dataclass(frozen=True)
class Profile:
    """A file as read: its lines in order, and the base's path relative to the checkout ("" without one)."""

    lines: tuple[Line, ...]
    base: str


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[1]


def _unquoted(value: str, root: str) -> str:
    """The value as bash has it; a reference to the checkout's folder is filled in."""
    plain = re.sub(rf"(?<!\\)\$(?:\{{{_ROOT_NAME}\}}|{_ROOT_NAME}(?![A-Za-z0-9_]))", lambda _match: root, value)
    return re.sub(r'\\([\\"$`}])', r"\1", plain)


def parse_profile(text: str, path: str, root: str) -> Profile:
    """The profile at ``path`` of the checkout ``root``; a FleetError at the first line that means something else."""
    lines: list[Line] = []
    base = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t")
        if not line or line.startswith("#") or _ROOT.fullmatch(line) or _UNSET.fullmatch(line):
            continue
        given, source = _SET.fullmatch(line), _BASE.fullmatch(line)
        if source is not None and not base:
            base = source["path"]
        elif given is not None:
            lines.append(Line(number, given["key"], _unquoted(given["value"], root), bool(base)))
        else:
            raise FleetError(
                f"{path}, line {number}",
                expected=': "${R9V_KEY:=value}", or one base: source "$' + _ROOT_NAME + '/..."',
                found=repr(line[:120]),
                remedy="A plain assignment would win over the environment, and nothing may win over that",
            )
    return Profile(tuple(lines), base)


def faults_of_profile(profile: Profile) -> list[str]:
    """Lines that do not do what they say: too late, empty, or set before."""
    faults = []
    seen: dict[str, int] = {}
    for line in profile.lines:
        where = f"line {line.number}: {line.key}"
        if line.key in seen:
            faults.append(f"{where} was set in line {seen[line.key]}, and the first one wins")
        elif line.late:
            faults.append(f"{where} comes after the base {profile.base}, which wins")
        if not line.value and profile.base:
            faults.append(f"{where} is empty, which := takes for unset: the base's value would count")
        seen.setdefault(line.key, line.number)
    return faults


def first_set(*layers: Mapping[str, str]) -> dict[str, str]:
    """What comes of layers, the first first: a key counts where it first has a value, and an empty one is none."""
    found: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.items():
            if value and not found.get(key):
                found[key] = value
    return found


def texts(given: Mapping[str, Any], what: str) -> dict[str, str]:
    """Values as text; a FleetError for what is none (a list, a truth value that YAML made of a word)."""
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise FleetError(
                f"{what}.{key}",
                expected="text or a number",
                found=repr(value),
                remedy="Quote it as the file shall have it",
            )
    return {key: str(value) for key, value in given.items()}


def _read(path: str, root: str) -> Profile:
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            return parse_profile(handle.read(), path, root)
    except FileNotFoundError as exc:
        raise FleetError(f"profile {path}", expected="a file", found="no such file") from exc


def require_sound(path: str, root: str) -> None:
    """A FleetError that names every line of the profile which does not do what it says (``faults``), or nothing."""
    faults = faults_of_profile(_read(path, root))
    if faults:
        raise FleetError(
            f"profile {path}",
            expected="every key once, with a value, before the base",
            found="; ".join(faults),
            remedy="Move the lines before the base, or remove them",
            faults=faults,
        )


def settings_of(path: str, root: str, seen: Sequence[str] = ()) -> dict[str, str]:
    """Every value of the profile at ``path`` with those of its base under it, as a start would have them."""
    if path in seen:
        raise FleetError(f"{path} stands on itself", expected="a base that ends", found=" -> ".join([*seen, path]))
    profile = _read(path, root)
    early, late = ([{line.key: line.value} for line in profile.lines if line.late is kind] for kind in (False, True))
    below = settings_of(os.path.join(root, profile.base), root, [*seen, path]) if profile.base else {}
    return first_set(*early, below, *late)


def render_profile(values: Mapping[str, str], path: str, base: str, comment: str = "") -> str:
    """The text of a profile at ``path`` (relative to the checkout), standing on ``base`` (too; "" for none).

    A FleetError where a key is none of the fork's, or a value is empty or of more than one line.
    """
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise FleetError(f"set.{key}", expected="a key R9V_...", found=key)
        if not value:
            raise FleetError(
                f"set.{key}",
                expected="a value",
                found="an empty one",
                remedy="It does not survive: := takes it for unset. Leave the key out",
            )
        if not value.isprintable() or set(value) & _NOT_HERE:
            raise FleetError(
                f"set.{key}",
                expected="printable text on one line, without apostrophe, < and >",
                found=repr(value),
                remedy="bash would look for their ends even between these quotes",
            )
    for name, where in (("path", path), ("base", base)):
        if os.path.isabs(where) or ".." in where.split("/") or re.search(r'["$`\\\n]', where):
            raise FleetError(name, expected="a plain path relative to the checkout", found=repr(where))
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f': "${{{key}:={_SPECIAL.sub(_escaped, value)}}}"' for key, value in values.items()]
    if base:
        up = "/..".join([""] * (path.count("/") + 1))
        lines += [
            "# The base comes last: its lines set what is unset.",
            f'{_ROOT_NAME}=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}"){up}" && pwd)',
            f'source "${_ROOT_NAME}/{base}"',
            f"unset {_ROOT_NAME}",
        ]
    return "\n".join(lines) + "\n"
