# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The env schema of every engine: what a key is, what it may be, what the keys must be to each other."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec_llamacpp, _envspec_r9v
from ansible_collections.dank.llm_fleet.plugins.module_utils._envkey import Key, to_text, value_fault
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import UNKNOWN

__all__ = [
    "ENGINES",
    "address_of",
    "alias_of",
    "check",
    "closest",
    "derive",
    "engine_of",
    "keys",
    "normalise",
    "port_of",
    "shape",
    "unknown_keys",
]

_SPECS = {"llamacpp": _envspec_llamacpp, "r9v": _envspec_r9v}
_TABLES = {engine: {key.name: key for key in spec.KEYS} for engine, spec in _SPECS.items()}
ENGINES = tuple(_SPECS)


def _engine(engine: str) -> str:
    if engine not in _SPECS:
        raise FleetError(f"engine {engine!r} is not known", expected=" or ".join(ENGINES), found=repr(engine))
    return engine


def keys(engine: str) -> Mapping[str, Key]:
    """Every key of ``engine`` by name, in the order of the env file and of the arguments."""
    return dict(_TABLES[_engine(engine)])


def closest(name: str, known: Sequence[str]) -> str:
    """The known name that ``name`` was probably meant to be, or ""; words may stand in another order."""
    parts = sorted(name.upper().split("_"))
    by_words = {" ".join(sorted(other.upper().split("_"))): other for other in reversed(known)}
    match = difflib.get_close_matches(" ".join(parts), list(by_words), 1, 0.7)
    if match:
        return by_words[match[0]]
    match = difflib.get_close_matches(name.upper(), [other.upper() for other in known], 1, 0.6)
    return next((other for other in known if match and other.upper() == match[0]), "")


def _unknown(engine: str, name: str) -> FleetError:
    table = _TABLES[engine]
    guess = closest(name, list(table))
    return FleetError(
        f"{name} is no key of engine {engine}",
        expected="a key of the env schema",
        found=name,
        remedy=f"Did you mean {guess}" if guess else f"Take it out, or use one of: {', '.join(table)}",
    )


def normalise(engine: str, env: Mapping[str, Any]) -> dict[str, str]:
    """The inventory's env (text, numbers, booleans, lists) as the text of the file's lines, in the schema's order.

    The first unknown key or unsound value is a FleetError that names the key.
    """
    table = _TABLES[_engine(engine)]
    for name in env:
        if name not in table:
            raise _unknown(engine, str(name))
    return {name: to_text(key, env[name]) for name, key in table.items() if name in env}


def unknown_keys(engine: str, env: Mapping[str, Any]) -> list[str]:
    """The keys of an env whose value is ``unknown`` where that is no value."""
    table = _TABLES[_engine(engine)]
    return [name for name, value in env.items() if value == UNKNOWN and name in table and table[name].may_be_unknown]


def check(engine: str, env: Mapping[str, str]) -> list[str]:
    """Every problem of a derived env at once, each a sentence and its remedy; [] when it is sound."""
    table = _TABLES[_engine(engine)]
    problems = [_unknown(engine, name).message for name in env if name not in table]
    missing = [name for name, key in table.items() if key.required and name not in env]
    problems += [f"{name} is missing. Add it: {table[name].meaning.lower()}, {table[name].values}." for name in missing]
    unsound = set(missing)
    for name, value in env.items():
        fault = value_fault(table[name], value) if name in table else ""
        if fault:
            problems.append(fault + ".")
            unsound.add(name)
    for needs, rule in _SPECS[engine].rules():
        if not needs & unsound:
            problems += rule(env)
    return problems


def derive(
    engine: str,
    env: Mapping[str, str],
    payload_dir: str,
    payload_files: Sequence[Mapping[str, Any]],
    server_bin: str,
) -> dict[str, str]:
    """``env`` with the lines that follow from runtime and payload, in the schema's order.

    ``payload_files`` are ``{name, role, ...}``. A given file key must name one of them, by name or by whole path,
    or be empty; a FleetError where it does not, and where two files of one role leave the choice open.
    """
    table = _TABLES[_engine(engine)]
    full = dict(env)
    if engine == "llamacpp":
        full = _envspec_llamacpp.derive(env, payload_dir, payload_files, server_bin)
    else:
        full = _envspec_r9v.derive(env, server_bin)
    return {name: full[name] for name in (*table, *(other for other in full if other not in table)) if name in full}


def shape(engine: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The shape for tables: ctx_size, parallel, ctx_per_slot (tokens, or None), cache_type_k/v, spec_type, ..."""
    if _engine(engine) == "r9v":
        return _envspec_r9v.shape(env)
    return _envspec_llamacpp.shape(env)


def engine_of(env: Mapping[str, str]) -> str:
    """The engine that a derived env belongs to, by the key that each must have."""
    return "r9v" if "R9V_STATE_FILE" in env else "llamacpp"


def alias_of(env: Mapping[str, str]) -> str:
    """The model's name on the wire, "" where the env has none."""
    return env.get("ALIAS") or env.get("R9V_SERVED_MODEL_NAME", "")


def port_of(env: Mapping[str, str]) -> int:
    """The TCP port of a derived env."""
    return int(address_of(engine_of(env), env)[1] or 0)


def address_of(engine: str, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(bind address, port as text) that the env declares; None where the key is absent."""
    names = ("R9V_HOST_BIND", "R9V_HOST_PORT") if _engine(engine) == "r9v" else ("BIND_ADDR", "LISTEN_PORT")
    return env.get(names[0]), env.get(names[1])
