# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an endpoint's env lines to the shape of its boot, and from the host's cards to those the engine will see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import CONTEXT_DRAFTERS, Card, Shape

__all__ = ["DEVICE_NAMES", "cards_of", "device_names", "drafts", "shape_of_env"]

# The engine's names of devices by the vendor of the card.
DEVICE_NAMES = {"amd": "ROCm", "nvidia": "CUDA"}
_BACKENDS = {"amd": "hip", "nvidia": "cuda"}
_VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}


def _vendor(cards: Sequence[Mapping[str, Any]]) -> str:
    """The one vendor of the cards."""
    for card in cards:
        for key in ("vendor", "free_mib"):
            if card.get(key) is None:
                raise FleetError(f"card {card.get('name')}", expected=f"its {key}", found="none")
    vendors = {str(card["vendor"]) for card in cards}
    if len(vendors) > 1:
        raise FleetError("cards", expected="cards of one vendor", found=[card["name"] for card in cards])
    (vendor,) = vendors
    if vendor not in DEVICE_NAMES:
        raise FleetError("cards", expected="vendor " + " or ".join(DEVICE_NAMES), found=vendor)
    return vendor


def _visible(env: Mapping[str, str], cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The cards that the engine may see, in its order: as the env says, else by index."""
    vendor = _vendor(cards)
    given = env.get(_VISIBLE[vendor])
    if given is None:
        return sorted(cards, key=lambda card: int(card.get("index") or 0))
    found = []
    for word in given.split(",") if given else []:
        match = [card for card in cards if word in (str(card.get("index")), card.get("uuid"))]
        if not match:
            raise FleetError(
                f"{_VISIBLE[vendor]}={given} names {word}",
                expected="the index or uuid of a declared card: "
                + ", ".join(f"{card['name']} is {card.get('uuid') or card.get('index')}" for card in cards),
                found=word,
                remedy="Mend the line, or declare the card in llm_cards and in the endpoint's cards",
            )
        found.append(match[0])
    return found


def device_names(env: Mapping[str, str], cards: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The engine's device names (``ROCm0``, ``CUDA1``) and the declared card behind each, in the engine's order."""
    if not cards:
        return {}
    seen = _visible(env, cards)
    every = {f"{DEVICE_NAMES[card['vendor']]}{number}": card for number, card in enumerate(seen)}
    if env.get("DEVICE") in (None, ""):
        return every
    wanted = env["DEVICE"].split(",")
    if wanted == ["none"]:
        return {}
    for name in wanted:
        if name not in every:
            raise FleetError(
                f"DEVICE={env['DEVICE']} names {name}",
                expected=" or ".join(every) or "no device: no card is visible",
                found=name,
                remedy="Mend DEVICE, the visible devices, or the endpoint's cards",
            )
    return {name: every[name] for name in wanted}


def cards_of(env: Mapping[str, str], cards: Sequence[Mapping[str, Any]]) -> tuple[Card, ...]:
    """The cards that hold layers, in the engine's order.

    ``cards`` are ``{name, vendor, index, uuid, free_mib, floor_mib}``, of which index, uuid and floor_mib may lack.
    """
    seen = list(device_names(env, cards).values())
    if env.get("SPLIT_MODE") == "none":
        seen = seen[:1]
    return tuple(Card(str(card["name"]), float(card["free_mib"]), float(card.get("floor_mib") or 0)) for card in seen)


def _layers(env: Mapping[str, str]) -> int | None:
    given = env.get("NGL", "all")
    return int(given) if re.fullmatch("[0-9]+", given) else None


def drafts(env: Mapping[str, str]) -> bool:
    """Whether SPEC_TYPE names a drafter; without one the launcher strips the SPEC_DRAFT_ lines."""
    return any(name in CONTEXT_DRAFTERS for name in env.get("SPEC_TYPE", "none").split(","))


def _drafting(env: Mapping[str, str], names: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The drafter's part of a shape."""
    types = env.get("SPEC_TYPE", "none")
    if not drafts(env):
        return {"spec_type": None if types == "none" else types}
    cards = None
    given = env.get("SPEC_DRAFT_DEVICE")
    if given and names:
        wanted = [] if given == "none" else given.split(",")
        for name in wanted:
            if name not in names:
                raise FleetError(f"SPEC_DRAFT_DEVICE={given}", expected=" or ".join(names), found=name)
        cards = tuple(str(names[name]["name"]) for name in wanted)
    return {
        "spec_type": types,
        "spec_draft_n_max": int(env.get("SPEC_DRAFT_N_MAX", 3)),
        "draft_type_k": env.get("SPEC_DRAFT_TYPE_K", "f16"),
        "draft_type_v": env.get("SPEC_DRAFT_TYPE_V", "f16"),
        "draft_cards": cards,
    }


def shape_of_env(env: Mapping[str, str], cards: Sequence[Mapping[str, Any]] = ()) -> Shape:
    """The shape that the env lines (as text, see ``_envspec.normalise``) make; absent lines keep the engine's defaults.

    A FleetError for devices that no card is declared for.
    """
    names = device_names(env, cards)
    held = cards_of(env, cards)
    split = env.get("TENSOR_SPLIT")
    mode = env.get("SPLIT_MODE", "layer")
    return Shape(
        ctx_size=int(env["CTX_SIZE"]),
        parallel=int(env["PARALLEL"]) if "PARALLEL" in env else None,
        cache_type_k=env.get("CACHE_TYPE_K", "f16"),
        cache_type_v=env.get("CACHE_TYPE_V", "f16"),
        ubatch_size=int(env.get("UBATCH_SIZE", 512)),
        batch_size=int(env.get("BATCH_SIZE", 2048)),
        tensor_split=tuple(float(share) for share in split.split(",")) if split and held else None,
        split_mode="layer" if mode == "none" or not held else mode,
        flash_attn=env.get("FLASH_ATTN", "auto"),
        gpu_layers=_layers(env) if held else None,
        backend=_BACKENDS[_vendor(cards)] if held else "cpu",
        **_drafting(env, names),
    )
