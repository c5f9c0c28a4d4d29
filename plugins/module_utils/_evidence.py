# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint has been seen to do, as it is kept on its host: the current era's certificate, and benches."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_json

__all__ = ["benches", "evidence"]

_KEYS = {"at", "kind", "era", "cells"}


def benches(folder: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(the newest record of each kind in ``folder``, what could not be read and why)."""
    newest: dict[str, dict[str, Any]] = {}
    unread: list[str] = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        path = os.path.join(folder, name)
        try:
            told = read_json(path)
        except FleetError as exc:
            unread.append(exc.message)
            continue
        if not isinstance(told, dict) or not set(told) >= _KEYS:
            unread.append(f"{path} is no result of a bench")
        elif str(told["at"]) >= str(newest.get(str(told["kind"]), {}).get("at", "")):
            newest[str(told["kind"])] = told
    return [newest[kind] for kind in sorted(newest)], unread


def evidence(name: str, store: EraStore) -> dict[str, Any]:
    """``{name, era, cards, certificate, benches, unread}``; an era that cannot be read is told in ``unread``."""
    found, unread = benches(os.path.join(store.folder, "bench"))
    told: dict[str, Any] = {"name": name, "era": store.linked_id("current"), "cards": [], "certificate": None}
    try:
        era = store.current()
    except FleetError as exc:
        unread = [exc.message, *unread]
    else:
        if era is not None:
            told |= {"cards": era.blueprint.facts.get("cards", []), "certificate": era.meta.get("certificate")}
    return {**told, "benches": found, "unread": unread}
