# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a trial is asked to try: env lines over an endpoint's own, and tensor splits to walk."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import cards_of

__all__ = ["Candidate", "candidates", "parse_env", "parse_splits", "require_whole"]

_SPLIT = "TENSOR_SPLIT"
_FORM = "-e 'env=\"KEY=value KEY2=value2\"'"


@dataclass(frozen=True)
class Candidate:
    """One boot to measure: ``lines`` go over the endpoint's own env lines; ``number`` counts from 1."""

    number: int
    lines: Mapping[str, str]

    @property
    def label(self) -> str:
        """The lines, as a person would write them."""
        return " ".join(f"{key}={value}" for key, value in self.lines.items())


def parse_env(given: Any, engine: str) -> dict[str, str]:
    """Env lines from ``KEY=value KEY2=value2`` (quoted as in a shell) or from a mapping, as the env file's text.

    A FleetError for a word that is no line, a key given twice or unknown to ``engine``, and a value that its key cannot
    have.
    """
    if not isinstance(given, str | Mapping):
        raise FleetError("env of a trial", expected=f"{_FORM}, or a mapping", found=repr(given))
    lines = dict(given) if isinstance(given, Mapping) else _lines(given)
    found = _envspec.normalise(engine, lines)
    return {key: found[key] for key in lines}


def _lines(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise FleetError("env of a trial", expected="closed quotes", found=f"{text!r} ({exc})") from exc
    lines: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise FleetError("env of a trial", expected="KEY=value, several parted by blanks", found=repr(word))
        if key in lines:
            raise FleetError("env of a trial", expected=f"one {key}", found=f"{lines[key]!r} and {value!r}")
        lines[key] = value
    return lines


def parse_splits(text: str) -> list[str]:
    """The shares of each split of ``35,30;36,29``; whether they make sense the env schema tells."""
    if not text.strip():
        return []
    splits = ["".join(part.split()) for part in text.split(";")]
    if not all(splits):
        raise FleetError(
            "split of a trial", expected='the shares of each split, parted by ";": "35,30;36,29"', found=repr(text)
        )
    return splits


def candidates(
    name: str, env: Mapping[str, Any], given: Any, split: str, cards: Sequence[Mapping[str, Any]], engine: str
) -> list[Candidate]:
    """What is to be tried of endpoint ``name``, in order: ``given`` (see :func:`parse_env`) over its ``env``, under
    each ``split``.

    A FleetError where nothing is asked for, and for splits that the endpoint's ``cards`` cannot have.
    """
    lines, splits = parse_env(given, engine), parse_splits(split)
    if not lines and not splits:
        raise FleetError(
            f"trial of endpoint {name}", expected=f"{_FORM}, or -e 'split=35,30;36,29'", found="nothing to try"
        )
    if not splits:
        return [Candidate(1, lines)]
    held = [card.name for card in cards_of({**_envspec.normalise(engine, env), **lines}, cards)]
    if len(held) < 2:
        raise FleetError(
            f"endpoint {name} has {'one card' if held else 'no cards'} to split between",
            expected="two cards or more that hold layers",
            found=", ".join(held) or f"none under llm_endpoints.{name}.cards",
            remedy="Leave split out, and try other lines with env",
        )
    if _SPLIT in lines:
        raise FleetError(
            f"trial of endpoint {name}", expected=f"{_SPLIT} in env or split", found="both", remedy="Take one out"
        )
    found = []
    for number, shares in enumerate(splits, 1):
        if len(shares.split(",")) != len(held):
            raise FleetError(
                f"split {shares} of endpoint {name}",
                expected=f"{len(held)} shares, one for each of {', '.join(held)}",
                found=f"{len(shares.split(','))}",
            )
        found.append(Candidate(number, {**lines, **parse_env({_SPLIT: shares}, engine)}))
    return found


def require_whole(names: Iterable[str], engine: str) -> None:
    """A FleetError where an env line has become a variable of its own among ``names``: it would be left out in silence.

    Of ``-e env="A=1 B=2"`` the shell takes the quotes away, and Ansible reads two variables.
    """
    lost = sorted(set(names) & set(_envspec.keys(engine)))
    if lost:
        raise FleetError(
            f"{', '.join(lost)} became {'variables' if len(lost) > 1 else 'a variable'} of Ansible",
            expected=f"all lines within env: {_FORM}",
            found=f"{lost[0]} beside env",
            remedy="Put quotes of their own around the lines, inside those of the shell",
        )
