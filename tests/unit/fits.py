# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Boots to hold against the memory: an endpoint's entry over golden headers, and the owner's two endpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._resolve import resolve
from goldens import GOLDEN, NINE, TABLE, Made, MadeTensor, header, made

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = ROOT / "inventories" / "production"

# The zealot page's boot of 2026-10-19, as far as it decides memory.
ZEALOT_ENV: dict[str, Any] = {
    "BIND_ADDR": "0.0.0.0",
    "LISTEN_PORT": 7771,
    "ALIAS": "frank-zealot",
    "CTX_SIZE": 602112,
    "PARALLEL": 3,
    "CACHE_TYPE_K": "f16",
    "CACHE_TYPE_V": "q8_0",
    "FLASH_ATTN": "on",
    "BATCH_SIZE": 6144,
    "UBATCH_SIZE": 1024,
    "SPEC_TYPE": "draft-mtp",
    "SPEC_DRAFT_N_MAX": 2,
    "SPEC_DRAFT_N_MIN": 0,
    "SPEC_DRAFT_P_MIN": 0,
}
# The stand-in's weights are Q8_0: the card is larger by what they exceed the page's payload (PQ2_0, projector, head).
HEAVIER = 8291.63 - (2283.29 + 595.29 + 248.10)
RTX3090: dict[str, Any] = {
    "name": "rtx3090",
    "vendor": "nvidia",
    "index": 0,
    "free_mib": 24123 + HEAVIER,
    "floor_mib": 1024,
}


def sparse(folder: Path, name: str = NINE) -> str:
    """A file that reads as the whole model and takes no room: a golden header, and a hole for the tensors."""
    told = TABLE["models"][name]
    path = folder / f"{name}.gguf"
    path.write_bytes((GOLDEN / told["file"]).read_bytes())
    os.truncate(path, told["file_bytes"])
    return str(path)


def payload(folder: Path, **names: str) -> dict[str, Any]:
    """A payload of these files by role, in ``folder``."""
    return {
        "name": "it",
        "dir": str(folder),
        "files": [{"name": name, "role": role} for role, name in names.items()],
    }


def entry(folder: Path, env: dict[str, Any] = ZEALOT_ENV, model: str = NINE, **facts: Any) -> dict[str, Any]:
    """An endpoint over a golden header on the page's card; ``facts`` replace what it says."""
    sparse(folder, model)
    told = {"name": "chat", "env": env, "runtime": "rt", "payload": payload(folder, model=f"{model}.gguf")}
    return {**told, "cards": [RTX3090], **facts}


def owners(host: str, name: str, folder: Path) -> dict[str, Any]:
    """An endpoint of the production inventory, resolved, with its payload's files as empty ones in ``folder``."""
    tables: dict[str, Any] = {}
    for path in [*sorted((PRODUCTION / "group_vars" / "all").glob("*.yml")), PRODUCTION / "host_vars" / f"{host}.yml"]:
        tables |= yaml.safe_load(path.read_text())
    runtimes, payloads, cards = tables["llm_runtimes"], tables["llm_payloads"], tables["llm_cards"]
    (found,) = resolve(tables["llm_endpoints"], runtimes, payloads, name, cards=cards, inactive=True)["endpoints"]
    for file in found["payload"]["files"]:
        (folder / file["name"]).touch()
    return {**found, "payload": {**found["payload"], "dir": str(folder)}}


PROJECTOR = made("clip", [MadeTensor("v.blk.0.ffn.weight", (1152, 64), "q8_0")], layers=0)


def adapter(model: str) -> Any:
    """A pair of rank 8 for the first layer's ffn_up of a golden header."""
    (base,) = [tensor for tensor in header(model).tensors if tensor.name == "blk.0.ffn_up.weight"]
    wide, high = base.dims
    pair = [MadeTensor(f"{base.name}.lora_a", (wide, 8)), MadeTensor(f"{base.name}.lora_b", (8, high))]
    return Made(header(model).architecture, {}, pair)


def reads(**headers: Any) -> Callable[[str], Any]:
    """A reader that knows files by a part of their name."""

    def read(place: str) -> Any:
        (found,) = [value for word, value in headers.items() if word in os.path.basename(place)]
        return found

    return read
