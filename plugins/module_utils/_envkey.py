# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One key of an env file: what it means, which values it takes, which flag it becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import render_line
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import UNKNOWN

__all__ = ["Key", "to_text", "value_fault"]

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)")


@dataclass(frozen=True)
class Key:
    """A key of the schema.

    ``kind``: int, float, bool (0 or 1), choice, list (comma-separated, each of ``choices`` or like ``pattern``),
    file (a payload file: its name, or its absolute path), path (absolute), text (like ``pattern``), json (an object).
    A path may be ``unknown``, but not that of a program: then the endpoint is not deployed.
    ``words`` are values that an int takes besides numbers. ``low`` and ``high`` are inclusive.
    ``empty`` says what an empty value opts out of; "" means that an empty value is refused.

    ``form`` is what the launcher makes of the key: value (``flag VALUE``), switch (1: ``flag``; 0: ``off``),
    file (a value that must be readable; empty: ``off``), lora, scale, spec, program, pass (the engine reads it from
    its environment), r9v (read by that engine's own launcher). ``group`` names the SPEC_TYPE that the flag needs:
    draft, ngram, or "" for none. A ``flag`` or ``off`` that is "" adds nothing.
    """

    name: str
    kind: str
    meaning: str
    flag: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    pattern: str = ""
    empty: str = ""
    required: bool = False
    form: str = "value"
    off: str = ""
    group: str = ""
    note: str = ""

    @property
    def may_be_unknown(self) -> bool:
        """Whether the inventory may say ``unknown``, of a file that lies somewhere on the host."""
        return self.kind == "path" and self.form != "program"

    @property
    def values(self) -> str:
        """What the key takes, for a message or a table."""
        if self.kind in ("int", "float"):
            word = "a whole number" if self.kind == "int" else "a number"
            if self.low is not None and self.high is not None:
                word += f" from {self.low:g} to {self.high:g}"
            elif self.low is not None:
                word += f" of at least {self.low:g}"
            return " or ".join([word, *self.words])
        if self.kind == "bool":
            return "0 or 1"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "list":
            return "a comma-separated list of " + (", ".join(self.choices) or f"items like {self.pattern}")
        return {
            "file": "a file of the payload",
            "path": "an absolute path" + (f", or {UNKNOWN}" if self.may_be_unknown else ""),
            "json": "a JSON object",
            "text": f"text like {self.pattern}",
        }[self.kind]


def _number_fault(key: Key, value: str) -> bool:
    if value in key.words:
        return False
    pattern = re.compile(r"-?\d+") if key.kind == "int" else _NUMBER
    if not pattern.fullmatch(value):
        return True
    number = float(value)
    return (key.low is not None and number < key.low) or (key.high is not None and number > key.high)


def _json_fault(value: str) -> bool:
    try:
        return not isinstance(json.loads(value), dict)
    except ValueError:
        return True


def _list_fault(key: Key, value: str) -> bool:
    items = value.split(",")
    if len(set(items)) != len(items) and key.choices:
        return True
    return any(item not in key.choices if key.choices else not re.fullmatch(key.pattern, item) for item in items)


def value_fault(key: Key, value: str) -> str:
    """What is wrong with the text ``value`` of ``key`` ("" when nothing is)."""
    if value == "":
        return "" if key.empty else f"{key.name} is empty, and it has no opt-out; expected {key.values}"
    bad = {
        "int": lambda: _number_fault(key, value),
        "float": lambda: _number_fault(key, value),
        "bool": lambda: value not in ("0", "1"),
        "choice": lambda: value not in key.choices,
        "list": lambda: _list_fault(key, value),
        "file": lambda: "/" in value and not value.startswith("/"),
        "path": lambda: not value.startswith("/") and not (key.may_be_unknown and value == UNKNOWN),
        "json": lambda: _json_fault(value),
        "text": lambda: not re.fullmatch(key.pattern, value),
    }[key.kind]()
    return f"{key.name} is {value!r}; expected {key.values}" if bad else ""


def _as_text(key: Key, value: Any) -> str | None:
    """The text of an inventory's value; None where its type says nothing for this key."""
    if isinstance(value, bool):
        return str(int(value)) if key.kind == "bool" else None
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        text = repr(float(value))
        return format(value, "f") if "e" in text else text
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)) and key.kind == "list":
        return ",".join(str(item) for item in value)
    if isinstance(value, Mapping) and key.kind == "json":
        return json.dumps(value, separators=(",", ":"))
    return None


def to_text(key: Key, value: Any) -> str:
    """The env file's text for an inventory's ``value``; a FleetError that names the key where it is wrong."""
    if value is None:
        opt_out = f'Write {key.name}: "" to opt out ({key.empty})'
        raise FleetError(
            f"{key.name} has no value",
            expected=key.values,
            found="nothing (null)",
            remedy=opt_out if key.empty else "Give it a value, or take it out",
        )
    text = _as_text(key, value)
    if text is None:
        found = f"{type(value).__name__} {value!r}"
        raise FleetError(f"{key.name} has the wrong type", expected=key.values, found=found)
    fault = value_fault(key, text)
    if fault:
        what, _, expected = fault.partition("; expected ")
        raise FleetError(what, expected=expected or key.values, found=repr(text))
    render_line(key.name, text)
    return text
