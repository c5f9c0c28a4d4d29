# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which single env line brings a boot back above its floors, the one that costs least first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_fit import best_split
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB

__all__ = ["Advice", "advice_text", "advise", "largest_pool"]

_EXACT = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Advice:
    """An env line, what it costs, the MiB it frees by card, and whether every floor is kept with it alone.

    ``room_mib`` is what then stays above the floor of the fullest card.
    """

    line: str
    costs: str
    frees_mib: dict[str, float]
    room_mib: float
    fits: bool


def largest_pool(boot: Boot, fits: Callable[[Ledger], bool] = lambda ledger: ledger.fits) -> int | None:
    """The largest CTX_SIZE below the boot's that fits with nothing else changed, in whole windows of 256 a slot."""
    shape = boot.shape
    step = 256 if shape.kv_unified or shape.parallel is None else 256 * shape.parallel
    low, high = 0, max((shape.ctx_size - 1) // step, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(boot, shape=replace(shape, ctx_size=middle * step)).ledger()):
            low = middle
        else:
            high = middle - 1
    return low * step or None


def _lines(boot: Boot) -> Iterator[tuple[str, str, Boot]]:
    """(env line, what it costs, the boot with it), what costs least first."""
    shape = boot.shape
    if len(boot.cards) > 1:
        cut = best_split(
            boot.model, shape, drafter=boot.drafter, mmproj=boot.mmproj, lora=boot.lora, cards=boot.cards
        ).counts
        if tuple(shape.tensor_split or ()) != tuple(float(share) for share in cut):
            line = "TENSOR_SPLIT=" + ",".join(map(str, cut))
            yield line, "nothing", _shaped(boot, tensor_split=tuple(float(share) for share in cut))
    batch = shape.ubatch_size // 2
    while batch >= 256:
        yield f"UBATCH_SIZE={batch}", "speed of reading prompts", _shaped(boot, ubatch_size=batch)
        batch //= 2
    if shape.flash and shape.drafter_type is not None:
        for key, field in (("SPEC_DRAFT_TYPE_K", "draft_type_k"), ("SPEC_DRAFT_TYPE_V", "draft_type_v")):
            if getattr(shape, field) in _EXACT:
                yield f"{key}=q8_0", "some of the drafts that are accepted", _shaped(boot, **{field: "q8_0"})
    if shape.spec_types:
        yield "SPEC_TYPE=none", "speed of generation", replace(_shaped(boot, spec_type=None), drafter=None)
    if shape.flash and shape.cache_type_v in _EXACT:
        yield "CACHE_TYPE_V=q8_0", "exactness of the cached values", _shaped(boot, cache_type_v="q8_0")
    if shape.flash and shape.cache_type_k in _EXACT:
        yield "CACHE_TYPE_K=q8_0", "exactness of the cached keys", _shaped(boot, cache_type_k="q8_0")
    pool = largest_pool(boot)
    if pool is not None:
        window = pool // (shape.parallel or 1)
        yield f"CTX_SIZE={pool}", f"the window: {window:,} tokens a slot", _shaped(boot, ctx_size=pool)
    if boot.mmproj is not None:
        yield "MMPROJ_FILE=", "sight", replace(boot, mmproj=None)


def _shaped(boot: Boot, **changes: object) -> Boot:
    return replace(boot, shape=replace(boot.shape, **changes))  # type: ignore[arg-type]


def advise(boot: Boot, before: Ledger) -> list[Advice]:
    """The lines that are enough on their own; where none is, all that free something, what they leave short with them.

    Empty where the boot fits.
    """
    if before.fits:
        return []
    found = []
    for line, costs, other in _lines(boot):
        try:
            after = other.ledger()
        except FleetError:  # a combination that the engine refuses is no advice
            continue
        frees = {
            old.name: (old.total - new.total) / MIB
            for old, new in zip((*before.cards, before.host), (*after.cards, after.host), strict=True)
        }
        if after.room_mib > before.room_mib:
            found.append(Advice(line, costs, frees, after.room_mib, after.fits))
    enough = [one for one in found if one.fits]
    return enough or found


def advice_text(one: Mapping[str, Any]) -> str:
    """An Advice (as a dictionary) in words."""
    word = "is enough" if one["fits"] else "helps, and is not enough"
    frees = ", ".join(f"{mib:,.0f} MiB on {card}" for card, mib in one["frees_mib"].items() if mib >= 0.5)
    return f"{one['line']} {word}: frees {frees or 'nothing'}; costs {one['costs']}"
