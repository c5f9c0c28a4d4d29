# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The boots to try: every model in several shapes, the drafters beside targets that can take them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Shape
from tinymodels import MODELS


@dataclass(frozen=True)
class Case:
    """A model in a shape; the other files are those of its payload."""

    model: str
    name: str
    shape: Shape
    drafter: str | None = None
    mmproj: str | None = None
    lora: str | None = None

    @property
    def id(self) -> str:
        """Its name in the tests."""
        return f"{self.model}/{self.name}"


def _shape(ctx_size: int, **settings: object) -> Shape:
    return replace(Shape(ctx_size, backend="cpu"), **settings)  # type: ignore[arg-type]


# Sizes that are no multiple of 256, slots that do not divide them, and every kind of cache that flash attention reads.
SHAPES = {
    "auto": _shape(4096),
    "one": _shape(2000, parallel=1),
    "three": _shape(4096, parallel=3),
    "unified": _shape(4096, parallel=3, kv_unified=True, ubatch_size=128),
    "mixed": _shape(3000, parallel=2, cache_type_k="q8_0", cache_type_v="q4_0", ubatch_size=256, batch_size=1024),
    "no-flash": _shape(2048, parallel=2, cache_type_k="bf16", flash_attn="off"),
}
WINDOWS = {
    "full": _shape(4096, parallel=2, swa_full=True),
    "full-unified": _shape(
        1500, parallel=2, swa_full=True, kv_unified=True, cache_type_k="q5_1", cache_type_v="iq4_nl"
    ),
    "batched": _shape(8192, parallel=2, ubatch_size=2048, cache_type_v="q8_0"),
}
_STAND_ALONE = [name for name, tiny in MODELS.items() if not tiny.targets]
_THREE = _shape(4096, parallel=3, cache_type_k="q8_0")

CASES = [
    *(Case(model, name, shape) for model in _STAND_ALONE for name, shape in SHAPES.items()),
    *(
        Case(model, name, shape)
        for model in _STAND_ALONE
        for name, shape in WINDOWS.items()
        if MODELS[model].window is not None or MODELS[model].architecture == "gemma2"
    ),
    # The MTP head: rollback planes beside the states, its own cache over the whole pool.
    Case("qwen35-mtp", "mtp", replace(_THREE, spec_type="draft-mtp", spec_draft_n_max=2)),
    Case("qwen35-mtp", "mtp-auto", _shape(5000, spec_type="draft-mtp", spec_draft_n_max=1)),
    Case(
        "qwen35-mtp",
        "mtp-types",
        _shape(
            9000,
            parallel=5,
            spec_type="draft-mtp,ngram-mod",
            spec_draft_n_max=7,
            draft_type_k="q8_0",
            draft_type_v="q5_0",
            ubatch_size=64,
        ),
    ),
    # A drafter's file of its own.
    Case("llama", "simple", replace(_THREE, spec_type="draft-simple", spec_draft_n_max=4), "llama-tied"),
    Case("gemma3", "simple", replace(_THREE, spec_type="draft-simple", draft_type_k="q8_0"), "gemma3-pattern"),
    Case("qwen35", "simple", _shape(4096, spec_type="draft-simple", spec_draft_n_max=6), "gemma2-window"),
    Case("qwen3", "dflash", replace(_THREE, spec_type="draft-dflash", spec_draft_n_max=3), "dflash"),
    Case("qwen35", "dflash", replace(_THREE, spec_type="draft-dflash", spec_draft_n_max=5), "dflash-window"),
    Case("llama", "ngram", replace(_THREE, spec_type="ngram-mod")),
    # The committed toy with all that it has, and the sandbox's model.
    Case("toy", "whole", _shape(2048, parallel=1), mmproj="toy-mmproj", lora="toy-lora-yes"),
    Case("toy", "itself", replace(_THREE, spec_type="draft-simple", spec_draft_n_max=4), "toy"),
    Case("smollm2", "sandbox", _shape(4096, parallel=2)),
    Case("smollm2", "mixed", SHAPES["mixed"]),
]
