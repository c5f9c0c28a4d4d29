# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do two files speak of the same tokens? A drafter proposes ids, which the target reads by its own vocabulary.

Read off llama.cpp build 11434: ``common/speculative.cpp`` (``common_speculative_are_compatible``) and
``src/llama-vocab.cpp`` (types, and what holds where the header is silent).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import ArrayInfo, Gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_relation import Relation, name_of

__all__ = ["KINSHIP_KEYS", "Vocabulary", "compare_specials", "compare_tokens", "vocabulary"]

TOKENS = "tokenizer.ggml.tokens"
# What read_gguf has to read whole (``whole=KINSHIP_KEYS``) of a model and its drafter.
KINSHIP_KEYS = (TOKENS,)
MOST_DIFFERENCE = 128  # tokens that one of the two may have beyond the other
FIRST_COMPARED = 5  # the ids before it may differ

_REMEDY = "Take a drafter that was trained for this model, converted with this model's tokenizer"


class _Kind(NamedTuple):
    """The engine's type of one tokenizer, with its defaults."""

    type: str
    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False
    add_eos: bool = False


_KINDS = {
    "llama": _Kind("SPM", 1, 2, add_bos=True),
    "bert": _Kind("WPM", 101, None, add_bos=True),
    "gpt2": _Kind("BPE", 11, 11),
    "hybriddna": _Kind("BPE", 11, 11),
    "whitespace": _Kind("BPE", 11, 11),
    "gemma4": _Kind("BPE"),
    "t5": _Kind("UGM", None, 1, add_eos=True),
    "rwkv": _Kind("RWKV"),
    "plamo2": _Kind("PLaMo2", 1, 2),
    "none": _Kind("none"),
    "no_vocab": _Kind("none"),
}
# BPE pre-tokenizers that begin with BOS unless the header says otherwise, that do so whatever it says, that know none.
_PRE_BOS = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split()
)
_PRE_ALWAYS_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
_PRE_NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})


@dataclass(frozen=True)
class Vocabulary:
    """``tokens`` is None for a model that has ids alone; ``bos`` and ``eos`` are None where the engine adds none, -1
    where it would but the vocabulary has none."""

    type: str
    size: int
    tokens: Sequence[str] | None
    bos: int | None
    eos: int | None


def vocabulary(gguf: Gguf) -> Vocabulary:
    """As the engine reads it; a FleetError for a file without one, or whose tokens were not read whole."""
    name, model = name_of(gguf), gguf.metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in _KINDS:
        found = "none" if model is None else repr(model)
        raise FleetError(f"the tokenizer of {name}", expected="tokenizer.ggml.model " + ", ".join(_KINDS), found=found)
    kind = _KINDS[model]
    if kind.type == "none":
        size = gguf.get("vocab_size", 0)
        return Vocabulary(kind.type, size if isinstance(size, int) else 0, None, None, None)
    tokens = gguf.metadata.get(TOKENS)
    if isinstance(tokens, ArrayInfo):
        raise TypeError(f"{name} was read without its tokens: read_gguf(..., whole=KINSHIP_KEYS)")
    if not isinstance(tokens, list):
        raise FleetError(f"the tokenizer of {name}", expected=TOKENS, found="none")
    pre = "gemma4" if model == "gemma4" else gguf.metadata.get("tokenizer.ggml.pre", "")
    if not isinstance(pre, str):
        raise FleetError(f"tokenizer.ggml.pre in {name}", expected="a string", found=repr(pre))
    bpe = kind.type == "BPE"
    bos = _special(gguf, "bos", None if bpe and pre in _PRE_NO_BOS else kind.bos, len(tokens))
    eos = _special(gguf, "eos", kind.eos, len(tokens))
    add_bos = gguf.metadata.get("tokenizer.ggml.add_bos_token", kind.add_bos or (bpe and pre in _PRE_BOS))
    add_eos = gguf.metadata.get("tokenizer.ggml.add_eos_token", kind.add_eos)
    add_bos = add_bos or (bpe and pre in _PRE_ALWAYS_BOS)
    return Vocabulary(kind.type, len(tokens), tokens, bos if add_bos else None, eos if add_eos else None)


def _special(gguf: Gguf, name: str, default: int | None, size: int) -> int:
    """The id of a special token, -1 for none; one beyond the vocabulary is passed over, as the engine does."""
    value = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if isinstance(value, int) and 0 <= value < size:
        return value
    return default if default is not None and default < size else -1


def compare_tokens(target: Vocabulary, drafter: Vocabulary, what: str) -> Relation:
    """Type, size within 128, and the same text for each id from 5 up that both have."""
    name, ours, theirs = "drafter vocabulary", target.tokens, drafter.tokens
    if target.type != drafter.type:
        return Relation(name, what, f"type {target.type}", f"type {drafter.type}", False, _REMEDY)
    if abs(target.size - drafter.size) > MOST_DIFFERENCE:
        expected = f"{target.size} tokens, {MOST_DIFFERENCE} more or less"
        return Relation(name, what, expected, f"{drafter.size} tokens", False, _REMEDY)
    if ours is None or theirs is None:
        return Relation(name, what, f"{target.size} ids", f"{drafter.size} ids", True, _REMEDY, "no texts to compare")
    shared = min(target.size, drafter.size)
    if ours[FIRST_COMPARED:shared] != theirs[FIRST_COMPARED:shared]:
        strange = [index for index in range(FIRST_COMPARED, shared) if ours[index] != theirs[index]]
        first = strange[0]
        return Relation(
            name,
            what,
            f"token {first} {ours[first]!r}",
            f"{theirs[first]!r}, and {len(strange)} of {shared} tokens differ",
            False,
            _REMEDY,
        )
    return Relation(name, what, f"{target.size} tokens", f"{drafter.size} tokens", True, _REMEDY)


def compare_specials(target: Vocabulary, drafter: Vocabulary, what: str) -> Relation:
    """The same tokens at the start and the end of a text, or none in both."""
    return Relation(
        "drafter special tokens",
        what,
        _specials(target),
        _specials(drafter),
        (target.bos, target.eos) == (drafter.bos, drafter.eos),
        _REMEDY,
    )


def _specials(vocab: Vocabulary) -> str:
    pairs = (("bos", vocab.bos), ("eos", vocab.eos))
    return ", ".join(f"{name} {'not added' if token is None else token}" for name, token in pairs)
