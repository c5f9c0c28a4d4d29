# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which single env line brings a boot back above its floors, the one that costs least first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import Boot
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_fit import best_split
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Shape

__all__ = ["Advice", "advice_text", "advise"]

_EXACT = ("f32", "f16", "bf16")
# What SPEC_TYPE=none leaves of a shape: the engine's defaults, as the launcher strips the other lines.
_NO_SPEC = {
    name: getattr(Shape, name)
    for name in ("spec_type", "spec_draft_n_max", "draft_type_k", "draft_type_v", "draft_cards")
}


@dataclass(frozen=True)
class Advice:
    """An env line, what it costs, the MiB it frees by card, and whether every floor is kept with it alone.

    ``room_mib`` is what then stays above the floor of the fullest card, or of the host where that is fuller.
    """

    line: str
    costs: str
    frees_mib: dict[str, float]
    room_mib: float
    fits: bool


def _room(ledger: Ledger) -> float:
    return min(device.room_mib for device in (*ledger.cards, ledger.host))


def _shaped(boot: Boot, **changes: Any) -> Boot:
    return replace(boot, shape=replace(boot.shape, **changes))


def _largest_pool(boot: Boot, below: int) -> int | None:
    """The largest CTX_SIZE under ``below`` that fits with nothing else changed, in whole windows of 256 a slot."""
    shape = boot.shape
    step = 256 if shape.kv_unified or shape.parallel is None else 256 * shape.parallel
    low, high = 0, max((below - 1) // step, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if _shaped(boot, ctx_size=middle * step).ledger().fits:
            low = middle
        else:
            high = middle - 1
    return low * step or None


def _cut(boot: Boot) -> tuple[int, ...] | None:
    if len(boot.cards) < 2:
        return None
    try:
        return best_split(
            boot.model, boot.shape, drafter=boot.drafter, mmproj=boot.mmproj, lora=boot.lora, cards=boot.cards
        ).counts
    except FleetError:  # fewer layers than cards: there is no split to advise
        return None


def _lines(boot: Boot, n_ctx: int) -> Iterator[tuple[str, str, Boot]]:
    """(env line, what it costs, the boot with it), what costs least first. A line that env rules refuse is none."""
    shape = boot.shape
    cut = _cut(boot)
    if cut is not None:
        yield "TENSOR_SPLIT=" + ",".join(map(str, cut)), "nothing", _shaped(boot, tensor_split=tuple(map(float, cut)))
    batch = shape.ubatch_size // 2
    while batch >= 256:
        yield f"UBATCH_SIZE={batch}", "speed of reading prompts", _shaped(boot, ubatch_size=batch)
        batch //= 2
    # Quantized values need flash attention by name; keys do not.
    if shape.drafter_type is not None:
        if shape.draft_type_k in _EXACT:
            yield "SPEC_DRAFT_TYPE_K=q8_0", "some accepted drafts", _shaped(boot, draft_type_k="q8_0")
        if shape.draft_type_v in _EXACT and shape.flash_attn == "on":
            yield "SPEC_DRAFT_TYPE_V=q8_0", "some accepted drafts", _shaped(boot, draft_type_v="q8_0")
    if shape.spec_types:
        yield "SPEC_TYPE=none", "speed of generation", replace(_shaped(boot, **_NO_SPEC), drafter=None)
    if shape.cache_type_v in _EXACT and shape.flash_attn == "on":
        yield "CACHE_TYPE_V=q8_0", "exactness of the cached values", _shaped(boot, cache_type_v="q8_0")
    if shape.cache_type_k in _EXACT:
        yield "CACHE_TYPE_K=q8_0", "exactness of the cached keys", _shaped(boot, cache_type_k="q8_0")
    pool = _largest_pool(boot, n_ctx)
    if pool is not None:
        window = pool // (shape.parallel or 1)
        yield f"CTX_SIZE={pool}", f"the window: {window:,} tokens a slot", _shaped(boot, ctx_size=pool)
    if boot.mmproj is not None:
        yield "MMPROJ_FILE=", "sight", replace(boot, mmproj=None)


def advise(boot: Boot, before: Ledger) -> list[Advice]:
    """The lines that are enough on their own; where none is, all that free something, what they leave short with them.

    Empty where the boot fits, and where only its measured total is known.
    """
    if before.fits:
        return []
    try:
        # What was measured beyond the prediction stays: no line frees the driver's context.
        boot = replace(boot, carried=boot.beyond())
    except FleetError:  # of an architecture that is not known nothing can be said but what was measured
        return []
    found = []
    for line, costs, other in _lines(boot, before.n_ctx):
        try:
            after = other.ledger()
        except FleetError:  # a combination that the engine refuses is no advice
            continue
        frees = {
            old.name: (old.total - new.total) / MIB
            for old, new in zip((*before.cards, before.host), (*after.cards, after.host), strict=True)
        }
        if _room(after) > _room(before):
            found.append(Advice(line, costs, frees, _room(after), after.fits))
    enough = [one for one in found if one.fits]
    return enough or found


def advice_text(one: Mapping[str, Any]) -> str:
    """An Advice (as a dictionary) in words."""
    word = "is enough" if one["fits"] else "helps, and is not enough"
    frees = ", ".join(f"{mib:,.0f} MiB on {card}" for card, mib in one["frees_mib"].items() if mib >= 0.5)
    return f"{one['line']} {word}: frees {frees or 'nothing'}; costs {one['costs']}"
