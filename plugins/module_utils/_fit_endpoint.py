# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the inventory says of an endpoint to the boot that its env lines would make."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot, Measured
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_env import cards_of, drafts, shape_of_env
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import (
    ChangedWhileRead,
    GgufError,
    RangesUnsupported,
    ShardMissing,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_source import is_url
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import SourceError
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship import KINSHIP_KEYS, Relation, require_kinship
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Card

__all__ = ["Unread", "boot_of", "derived_env", "host_card", "kin", "measured_of", "places", "read_first", "read_once"]

# The env key of each file and its part in a Boot.
_FILES = {"MODEL_FILE": "model", "SPEC_DRAFT_MODEL": "drafter", "MMPROJ_FILE": "mmproj", "LORA_FILE": "lora"}


@cache
def read_once(place: str, vocabulary: bool = False) -> Gguf:
    """A header by path or URL, read once for all rungs; with its ``vocabulary`` where a drafter is held against it."""
    return read_gguf(place, whole=KINSHIP_KEYS if vocabulary else ())


def places(path: str, files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the header of a payload's file can be read: the file itself, then the addresses that it may come from."""
    found = [path] if os.path.exists(path) else []
    found += [str(url) for file in files if file["name"] == os.path.basename(path) for url in file.get("urls") or ()]
    if found:
        return found
    raise Unread(
        f"{path} cannot be read",
        expected="the file on this host, or an address under its `urls`",
        found="neither",
        remedy="Put the file there, or add an address to llm_payloads",
    )


class Unread(FleetError):
    """The header is not to be had, now; nothing is known against the file."""


def read_first(found: Sequence[str], read: Callable[[str], Gguf]) -> Gguf:
    """The header from the first place that gives it; Unread with what each said where none does.

    A header at an address that is unsound is a GgufError; a file on this host may yet be fetched anew.
    """
    said = []
    for place in found:
        try:
            return read(place)
        except (SourceError, RangesUnsupported, ChangedWhileRead, ShardMissing) as exc:
            said.append(exc.message.rstrip("."))
        except GgufError as exc:
            if is_url(place):
                raise
            said.append(exc.message.rstrip("."))
    raise Unread(f"the header of {os.path.basename(found[0])} cannot be read", found=" | ".join(said))


def derived_env(entry: Mapping[str, Any], env: Mapping[str, Any]) -> dict[str, str]:
    """The env lines of an endpoint's entry with its payload's files filled in; a FleetError for unsound lines."""
    payload = entry["payload"]
    given = _envspec.normalise("llamacpp", env)
    lines = _envspec.derive("llamacpp", given, payload["dir"], payload["files"], "/")
    problems = _envspec.check("llamacpp", lines)
    if problems:
        raise FleetError(f"endpoint {entry['name']}: " + " ".join(problems))
    return lines


def _loaded(lines: Mapping[str, str]) -> dict[str, str]:
    """The files that these lines load, by role; a drafter only where SPEC_TYPE calls for one."""
    return {
        role: lines[key]
        for key, role in _FILES.items()
        if lines.get(key) and (key != "SPEC_DRAFT_MODEL" or drafts(lines))
    }


def measured_of(entry: Mapping[str, Any]) -> tuple[Measured, ...]:
    """The endpoint's ``measured`` entries: ``{name, env, cards: {name: {term_mib}}, runtime, payload}``.

    ``env`` holds the lines that differ from the endpoint's own; runtime and payload are the endpoint's unless named.
    Those of another runtime or payload are left out: their lines need not make sense with this one's files.
    """
    found = []
    cards = entry.get("cards") or ()
    mine = (str(entry["runtime"]), str(entry["payload"]["name"]))
    for number, one in enumerate(entry.get("measured") or ()):
        if (str(one.get("runtime") or mine[0]), str(one.get("payload") or mine[1])) != mine:
            continue
        name = str(one.get("name") or f"measured[{number}]")
        lines = derived_env({**entry, "name": f"{entry['name']}, {name}"}, {**entry["env"], **(one.get("env") or {})})
        devices = tuple(card.name for card in cards_of(lines, cards))
        loads = frozenset(_loaded(lines).items())
        found.append(Measured(name, *mine, shape_of_env(lines, cards), loads, devices, one.get("cards") or {}))
    return tuple(found)


def host_card(leaving: int | None = None, floor_mib: float = 0.0) -> Card:
    """What this machine has available, and what the process ``leaving`` gives back when it ends."""
    free = _proc.available_bytes() + (_proc.anonymous_bytes(leaving) if leaving else 0)
    return Card("host", free / MIB, floor_mib)


def kin(
    boot: Boot, ggml_types: Collection[int] = (), versions: Mapping[str, Collection[int]] | None = None
) -> list[Relation]:
    """What holds the boot's files together (see ``_kinship``); a FleetError at the first that does not.

    ``ggml_types`` and ``versions`` are what the runtime takes of a fork's own.
    Only what the shape arms counts: a drafter's file that is not loaded is not held against anything.
    """
    return require_kinship(
        boot.model,
        mmproj=boot.mmproj,
        drafter=boot.drafter,
        lora=boot.lora,
        spec_types=boot.shape.spec_types,
        runtime=boot.runtime or "the engine",
        runtime_types=ggml_types,
        runtime_versions=versions,
    )


def boot_of(
    entry: Mapping[str, Any],
    env: Mapping[str, Any],
    *,
    host: Card | None = None,
    read: Callable[[str], Gguf] | None = None,
) -> Boot:
    """The boot of an endpoint's entry under ``env`` (the entry's own lines, or with a rung's over them).

    ``entry`` holds name, runtime, payload (``{name, dir, files}``) and cards (see ``_fit_env.cards_of``).
    """
    lines = derived_env(entry, env)
    cards = entry.get("cards") or ()
    paths = _loaded(lines)
    read = read or partial(read_once, vocabulary="drafter" in paths)
    headers = {role: read_first(places(path, entry["payload"]["files"]), read) for role, path in paths.items()}
    return Boot(
        shape=shape_of_env(lines, cards),
        cards=cards_of(lines, cards),
        host=host,
        runtime=str(entry["runtime"]),
        payload=str(entry["payload"]["name"]),
        files=paths,
        measured=measured_of(entry),
        model=headers["model"],
        drafter=headers.get("drafter"),
        mmproj=headers.get("mmproj"),
        lora=headers.get("lora"),
    )
