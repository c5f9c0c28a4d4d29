# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which series a PromQL query names, and which of them nobody exposes; by the words of the language, not its grammar.

Lexical rules as in Prometheus' documentation (querying/basics, querying/operators).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["exposed", "series_of", "unknown_series"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    |(?P<variable>\$\{\w+(?::\w+)?\}|\$\w+)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:ms|[smhdwy]))+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<sign>==|!=|>=|<=|=~|!~|[-+*/%^<>=@,(){}\[\]:])
    """,
    re.VERBOSE,
)
# Words that are followed by a list of labels in parentheses.
_OF_LABELS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS = {"and", "or", "unless", "atan2", "bool", "offset"}
_CONSTANTS = {"inf", "nan"}


def _tokens(query: str) -> list[tuple[str, str]]:
    found, place = [], 0
    while place < len(query):
        match = _TOKEN.match(query, place)
        if match is None:
            raise FleetError(
                f"the query {query!r} is no PromQL", expected="a word, number, text or sign", found=query[place:][:20]
            )
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
        place = match.end()
    return found


def series_of(query: str) -> set[str]:
    """The names of the series that ``query`` selects; ``$variables`` of a dashboard stand for values.

    A selector without a name of its own, ``{__name__=...}``, is a FleetError: what it selects cannot be told.
    """
    tokens = _tokens(query)
    found, braces, until = set(), 0, ""
    previous = ("", "")
    for place, (kind, word) in enumerate(tokens):
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if until:  # inside a list of labels, or a range
            until = "" if word == until else until
        elif word == "[":
            until = "]"
        elif word == "{":
            braces += 1
            if previous[0] != "name" or previous[1].lower() in _OPERATORS | _OF_LABELS:
                raise FleetError(
                    f"the query {query!r} has a selector without a name", expected="NAME{...}", found="{...}"
                )
        elif word == "}":
            braces -= 1
        elif kind == "name" and not braces:
            lower = word.lower()
            if lower in _OF_LABELS:
                until = ")" if following == "(" else ""
            elif lower not in _OPERATORS | _CONSTANTS and not _called(following, tokens, place):
                found.add(word)
        previous = (kind, word)
    if braces:
        raise FleetError(f"the query {query!r} is no PromQL", expected="as many } as {", found="others")
    return found


def _called(following: str, tokens: list[tuple[str, str]], place: int) -> bool:
    """Whether the word at ``place`` is a function or aggregation: before its arguments, or before its ``by``."""
    return following == "(" or (
        following.lower() in ("by", "without") and place + 2 < len(tokens) and tokens[place + 2][1] == "("
    )


def exposed(scrape: str) -> set[str]:
    """The names of the series in an answer of ``/metrics``."""
    lines = (line for line in scrape.splitlines() if line and not line.startswith("#"))
    return {re.split(r"[{\s]", line, maxsplit=1)[0] for line in lines}


def unknown_series(queries: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """A line for every series that a query (by where it stands) names and that is not among ``known``."""
    names = set(known)
    return [
        f"{where}: nobody exposes {name}"
        for where, query in queries.items()
        for name in sorted(series_of(query) - names)
    ]
