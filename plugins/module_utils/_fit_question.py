# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parameters of module fit_info as a boot to be judged, and the answer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import (
    answer,
    require_room,
    with_best_split,
    with_largest_context,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot, Measured
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_endpoint import (
    Unread,
    boot_of,
    host_card,
    kin,
    read_first,
    read_once,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape

__all__ = ["ask"]

_AUTO = "auto"


def _split(given: str | None) -> tuple[float, ...] | None:
    if given in (None, "", _AUTO):
        return None
    try:
        return tuple(float(share) for share in str(given).split(","))
    except ValueError as exc:
        raise FleetError("tensor_split", expected="numbers separated by commas, or auto", found=repr(given)) from exc


def _context(given: str) -> int:
    if given == _AUTO:
        return 0
    if not given.isascii() or not given.isdigit() or len(given) > 12:
        raise FleetError("ctx_size", expected="a number of tokens, or auto", found=repr(given))
    return int(given)


def _shape(params: Mapping[str, Any]) -> Shape:
    draft_cards = params["spec_draft_cards"]
    return Shape(
        ctx_size=_context(params["ctx_size"]),
        parallel=params["parallel"],
        cache_type_k=params["cache_type_k"],
        cache_type_v=params["cache_type_v"],
        ubatch_size=params["ubatch_size"],
        batch_size=params["batch_size"],
        tensor_split=_split(params["tensor_split"]),
        kv_unified=params["kv_unified"],
        flash_attn=params["flash_attn"],
        spec_type=params["spec_type"],
        spec_draft_n_max=params["spec_draft_n_max"],
        draft_type_k=params["spec_draft_type_k"],
        draft_type_v=params["spec_draft_type_v"],
        draft_cards=tuple(draft_cards) if draft_cards else None,
        gpu_layers=params["gpu_layers"],
        swa_full=params["swa_full"],
        backend=params["backend"],
    )


def _require_this_shape(name: str, entry: Mapping[str, Any]) -> None:
    """Refuse figures that name a boot of their own: beside ``model`` there is nothing to hold them against."""
    for key in ("env", "runtime", "payload"):
        if entry.get(key):
            raise FleetError(
                f"{name}: {key}",
                expected="none beside `model`, whose figures are of the settings asked",
                found=repr(entry[key]),
                remedy="Leave figures of another boot out, or ask by `env` and `payload`",
            )


def _plain_boot(params: Mapping[str, Any], host: Card) -> Boot:
    """The boot of a model and settings given one by one."""
    shape = _shape(params)
    files = {role: params[role] for role in ("model", "drafter", "mmproj", "lora") if params[role]}
    read = partial(read_once, vocabulary="drafter" in files)
    headers = {role: read_first([place], read) for role, place in files.items()}
    cards = tuple(Card(card["name"], card["free_mib"], card["floor_mib"]) for card in params["cards"])
    loads, devices = frozenset(files.items()), tuple(card.name for card in cards)
    measured = []
    for number, one in enumerate(params["measured"]):
        name = one["name"] or f"measured[{number}]"
        _require_this_shape(name, one)
        measured.append(Measured(name, "", "", shape, loads, devices, one["cards"]))
    return Boot(
        headers["model"],
        shape,
        cards,
        drafter=headers.get("drafter"),
        mmproj=headers.get("mmproj"),
        lora=headers.get("lora"),
        host=host,
        files=files,
        measured=tuple(measured),
    )


def _chosen(boot: Boot, params: Mapping[str, Any]) -> tuple[Boot, tuple[Ledger, ...]]:
    """The boot with what is to be searched for filled in."""
    split = params["tensor_split"]
    if params["env"] is not None and split:
        boot = replace(boot, shape=replace(boot.shape, tensor_split=_split(split)))
    if params["env"] is None and params["ctx_size"] == _AUTO:
        return with_largest_context(boot)
    return with_best_split(boot) if split == _AUTO else (boot, ())


def ask(params: Mapping[str, Any]) -> dict[str, Any]:
    """``{name, fit, rungs, kinship}``; a FleetError for a boot that cannot be, and with ``required`` for one that does
    not fit."""
    host = host_card(floor_mib=params["host_floor_mib"])
    rungs: dict[str, Any] = {}
    if params["env"] is None:
        boot = _plain_boot(params, host)
    else:
        boot = boot_of(params, params["env"], host=host)
        for rung, lines in params["rungs"].items():
            try:
                other = boot_of(params, {**params["env"], **lines}, host=host)
                if params["kinship"]:
                    kin(other, params["ggml_types"])
                rungs[rung] = answer(other)
            except FleetError as exc:  # a rung that cannot be is an answer; the declared shape has to be one
                rungs[rung] = {"fits": None if isinstance(exc, Unread) else False, "error": exc.message}
    boot, near = _chosen(boot, params)
    relations = kin(boot, params["ggml_types"]) if params["kinship"] else []
    told = answer(boot, near=near)
    if params["required"]:
        require_room(params["name"], told)
    return {"name": params["name"], "fit": told, "rungs": rungs, "kinship": [one.as_dict() for one in relations]}
