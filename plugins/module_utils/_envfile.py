# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Env files, kept to what systemd's EnvironmentFile and bash read alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["flip", "parse", "render", "render_line"]

_PLAIN = r"[A-Za-z0-9_./:,@%+=-]*"
_KEY = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(
    rf"(?P<lead>[ \t]*)(?P<key>{_KEY})=(?P<value>{_PLAIN}|'[^']*'|\"[^\"$`\\]*\")(?P<trail>[ \t]*)",
)
_COMMENT = re.compile(r"[ \t]*#.*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

# Names that bash owns: it refuses to set them or answers with something else than the file says.
_SHELL_OWN = frozenset(
    (
        "_ BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO "
        "BASH_MONOSECONDS BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO COMP_WORDBREAKS DIRSTACK EPOCHREALTIME "
        "EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO PPID RANDOM SECONDS SHELLOPTS SRANDOM UID"
    ).split()
)


@dataclass(frozen=True)
class _Line:
    """One line; ``end`` is its newline ("" at the end of a file without one); ``key`` is "" for blanks and comments."""

    number: int
    text: str
    end: str
    key: str = ""
    value: str = ""
    lead: str = ""
    trail: str = ""


def _is_noncharacter(char: str) -> bool:
    """systemd drops a value that holds one of these, surrogates included, with a word in its log only."""
    code = ord(char)
    return 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def _printable(value: str) -> bool:
    return not _CONTROL.search(value) and not any(map(_is_noncharacter, value))


def _check_key(key: str) -> None:
    if not re.fullmatch(_KEY, key):
        raise FleetError(
            f"{key!r} is no name for an env file line",
            expected="letters, digits and _, not beginning with a digit",
            found=repr(key),
        )
    if key in _SHELL_OWN:
        raise FleetError(
            f"{key} cannot stand in an env file",
            expected="a name that is free in bash",
            found=f"{key}, which bash sets itself",
            remedy="Choose another name",
        )


def render_line(key: str, value: str) -> str:
    """The line for ``key`` (no newline): ``KEY=value``, or ``KEY='value'`` where either reader needs the quotes.

    A FleetError for a bad key, and for a value that no quoting carries through both readers: one with a
    single quote, a line end, NUL or another control character, or what is not UTF-8.
    """
    _check_key(key)
    if "'" in value:
        raise FleetError(
            f"{key} cannot be written to an env file",
            expected="a value without a single quote (systemd and bash disagree on how to escape it)",
            found=repr(value),
            remedy="Leave the quote out, or put the text into a file and name the file",
        )
    if not _printable(value):
        raise FleetError(
            f"{key} cannot be written to an env file",
            expected="one line of text without control characters",
            found=repr(value),
            remedy="Take the line end or control character out",
        )
    return f"{key}={value}" if re.fullmatch(_PLAIN, value) else f"{key}='{value}'"


def render(env: Mapping[str, str]) -> str:
    """The whole file: one line a key in the mapping's order, LF, newline at the end; "" for no key."""
    return "".join(render_line(key, value) + "\n" for key, value in env.items())


def _diagnose(text: str) -> tuple[str, str]:
    """(what systemd or bash would make of a line that is refused, what to do)."""
    quote = "Write KEY=value, or KEY='value' where the value holds anything but A-Z a-z 0-9 _ . / : , @ % + = -"
    body = text.strip(" \t")
    if body.startswith(";"):
        return "a comment to systemd, a syntax error to bash", "Begin the comment with #"
    if re.match(r"export\b", body):
        return "an export, which systemd ignores", "Take the word export away"
    if "=" not in body:
        return "no assignment", quote
    name, value = body.split("=", 1)
    if name != name.rstrip(" \t") or value != value.lstrip(" \t"):
        return "blanks around =, an error to bash", "Take the blanks around = away"
    if not re.fullmatch(_KEY, name):
        return f"{name!r}, no name for a variable", quote
    if value.startswith('"') and re.fullmatch(r'"[^"]*"', value):
        return "a $, ` or \\ in double quotes, which bash expands", "Use single quotes"
    if value.endswith("\\"):
        return "a backslash at the end, which joins the next line to this one", "Write the value on one line"
    if "'" in value or '"' in value:
        return "quotes that do not enclose the whole value", quote
    if "\\" in value:
        return "a backslash, which both readers swallow", quote
    if " " in value or "\t" in value:
        return "a blank outside quotes: bash would run what follows it", quote
    return "a character that bash may expand", quote


def _lines(text: str, where: str) -> Iterator[_Line]:
    """The lines of ``text``, each checked; the last one may lack its newline."""
    if text.startswith("\ufeff"):
        raise FleetError(f"{where} line 1", expected="plain UTF-8", found="a byte order mark", remedy="Save it without")
    seen: dict[str, int] = {}
    pieces = text.split("\n")
    unended = len(pieces) if pieces[-1] else 0
    if not pieces[-1]:
        pieces.pop()
    for number, piece in enumerate(pieces, 1):
        end = "" if number == unended else "\n"
        here = f"{where} line {number}"
        if "\r" in piece:
            raise FleetError(
                here,
                expected="LF line ends",
                found="a carriage return",
                remedy=f"Convert it: sed -i 's/\\r$//' {where}",
            )
        if not _printable(piece):
            raise FleetError(here, expected="text", found=f"a control character or no UTF-8 in {piece!r}")
        if not piece.strip(" \t"):
            yield _Line(number, piece, end)
            continue
        if _COMMENT.fullmatch(piece):
            if piece.endswith("\\"):
                raise FleetError(
                    here,
                    expected="a comment that ends on its line",
                    found="a backslash at its end, with which systemd takes the next line for comment too",
                    remedy="Take the backslash away",
                )
            yield _Line(number, piece, end)
            continue
        match = _ASSIGNMENT.fullmatch(piece)
        if not match:
            found, remedy = _diagnose(piece)
            raise FleetError(here, expected="a line that systemd and bash read alike", found=found, remedy=remedy)
        key, raw = match["key"], match["value"]
        _check_key(key)
        if key in seen:
            raise FleetError(
                here, expected=f"{key} once", found=f"{key} on line {seen[key]} already", remedy="Keep one of the two"
            )
        seen[key] = number
        value = raw[1:-1] if raw[:1] in ("'", '"') else raw
        yield _Line(number, piece, end, key, value, match["lead"], match["trail"])


def parse(text: str, where: str) -> dict[str, str]:
    """The file's keys and values in its order; ``where`` names the file in messages.

    Strict: a line that systemd and bash would read differently is a FleetError with file and line
    (duplicate key, ``export``, CRLF, continuation, a backslash, ``$`` in double quotes, bare blanks ...).
    """
    return {line.key: line.value for line in _lines(text, where) if line.key}


def flip(text: str, changes: Mapping[str, str | None], where: str = "the env file") -> str:
    """``text`` with ``changes`` made: a value is set where its key stands, or appended; None removes the line.

    Every other line stays as it is, byte for byte, and so does a line that already has the value.
    An assignment inside a comment is a comment. Refuses what ``parse`` refuses, before any change.
    """
    for key in changes:
        _check_key(key)
    out: list[str] = []
    present = set()
    for line in _lines(text, where):
        end = line.end
        if line.key and line.key in changes:
            present.add(line.key)
            value = changes[line.key]
            if value is None:
                continue
            if value != line.value:
                out.append(line.lead + render_line(line.key, value) + line.trail + end)
                continue
        out.append(line.text + end)
    added = [(key, value) for key, value in changes.items() if value is not None and key not in present]
    if added and out and not out[-1].endswith("\n"):
        out.append("\n")
    out += [render_line(key, value) + "\n" for key, value in added]
    return "".join(out)
