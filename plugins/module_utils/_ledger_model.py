# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GGUF header says about a model's memory: layers, heads, windows, states; unknown kinds are refused.

Each architecture here was read off llama.cpp build 11434 (``llama-model.cpp``, ``models/<name>.cpp``). One that is
not in :data:`KNOWN`, or that carries a key of another kind of memory, is a FleetError: a guess would be believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["KNOWN", "WAY_OUT", "Facts", "Header", "Recurrent", "TensorInfo", "UnknownMemory", "facts"]

WAY_OUT = "Have llama-fit-params in the runtime, or give the totals of a boot under `measured`"


class UnknownMemory(FleetError):
    """A kind of memory that is not counted here: a guess would be believed."""


class TensorInfo(Protocol):
    """What the ledger reads of a tensor: ``dims[0]`` is the row's length; ``exact`` is False where bytes are a guess
    from offsets."""

    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def type_name(self) -> str | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def exact(self) -> bool: ...


class Header(Protocol):
    """What the ledger reads of a GGUF header (see ``_gguf.read_gguf``)."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Sequence[TensorInfo]: ...
    @property
    def architecture(self) -> str: ...


@dataclass(frozen=True)
class _Kind:
    """How one architecture differs from a plain transformer."""

    window: int | None = None  # the default sliding window; 0: only where the header has one; None: never
    period: int | None = 6  # every period-th layer sees all; None: the header must have the pattern's array
    hybrid: bool = False
    rollback: bool = False
    tied: bool = False  # the output is always token_embd's twin
    scaled: bool = False  # the embeddings' rows are scaled on the card that takes them
    gated: bool = False  # attention computes a gate as wide as the queries
    drafter: bool = False
    encoder: bool = False
    rope_factors: bool = False


KNOWN: dict[str, _Kind] = {
    "llama": _Kind(rope_factors=True),
    "mistral3": _Kind(rope_factors=True),
    "qwen2": _Kind(),
    "qwen3": _Kind(),
    "gemma": _Kind(tied=True, scaled=True),
    "gemma2": _Kind(window=4096, period=2, tied=True, scaled=True),
    "gemma3": _Kind(window=0, period=6, scaled=True),
    "qwen35": _Kind(hybrid=True, rollback=True, gated=True),
    "dflash": _Kind(window=0, period=None, drafter=True, encoder=True, rope_factors=True),
}

# Keys (after "<architecture>.") that mean a memory which is not counted here.
_OTHER_MEMORY = {
    "attention.kv_lora_rank": "latent attention",
    "attention.q_lora_rank": "latent attention",
    "attention.key_length_mla": "latent attention",
    "attention.value_length_mla": "latent attention",
    "attention.shared_kv_layers": "a cache that layers share",
    "attention.indexer.head_count": "an indexer cache",
    "attention.indexer.key_length": "an indexer cache",
    "hyper_connection.count": "hyper connections",
    "wkv.head_size": "a WKV state",
    "shortconv.l_cache": "a short convolution state",
    "kda.head_dim": "a KDA state",
}
# What the engine takes: LLAMA_MAX_LAYERS (llama-hparams.h, asserted when a model is loaded), and numbers of 32 bits.
MAX_LAYERS = 512
MAX_NUMBER = (1 << 32) - 1
_STATE_KEYS = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count")


@dataclass(frozen=True)
class Recurrent:
    """Elements per row and recurrent layer: the convolution's (``r``) and the state's (``s``), and their sizes."""

    r: int
    s: int
    channels: int
    inner: int


@dataclass(frozen=True)
class Facts:
    """A model's numbers, one entry a layer where layers differ; the last ``nextn`` layers are the MTP head."""

    architecture: str
    layers_all: int
    nextn: int
    trained: int
    embd: int
    ff: int
    vocab: int
    heads: tuple[int, ...]
    k_width: tuple[int, ...]
    v_width: tuple[int, ...]
    q_width: int
    windowed: tuple[bool, ...]
    window: int
    recurrent: tuple[bool, ...]
    state: Recurrent | None
    rollback: bool
    tied_always: bool
    gated: bool
    scaled: bool
    encoder_width: int
    rope_factors: bool

    @property
    def layers(self) -> int:
        """The trunk: every layer but the MTP head's."""
        return self.layers_all - self.nextn


class _Keys:
    """The keys of one architecture, with refusals that name them."""

    def __init__(self, header: Header) -> None:
        self.architecture = header.architecture
        self.metadata = header.metadata

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def refuse(self, key: str, expected: str, found: Any) -> FleetError:
        return FleetError(f"{self.architecture}.{key} in the model's header", expected=expected, found=found)

    def uncounted(self, key: str, expected: str, found: Any) -> UnknownMemory:
        return UnknownMemory(
            f"{self.architecture}.{key} in the model's header", expected=expected, found=found, remedy=WAY_OUT
        )

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = MAX_NUMBER) -> int:
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.refuse(key, "a whole number", "no such key")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}", repr(value))
        return value

    def per_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """A number for all layers, or an array with one each."""
        value = self.get(key)
        if value is None and default is not None:
            return tuple(default)
        if isinstance(value, (list, tuple)):
            if len(value) < layers:
                raise self.refuse(key, f"one number for each of {layers} layers", len(value))
            numbers = tuple(value[:layers])
            for number in numbers:
                if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_NUMBER:
                    raise self.refuse(key, f"whole numbers from 0 to {MAX_NUMBER}", repr(number))
            return numbers
        return (self.number(key, least=0),) * layers

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """An array of flags, one a layer; None where the key is absent or no array."""
        value = self.get(key)
        if value is None or isinstance(value, int):
            return None
        if not isinstance(value, (list, tuple)):
            raise self.refuse(key, "an array of flags that was read", type(value).__name__)
        if len(value) > layers:
            raise self.refuse(key, f"at most one flag for each of {layers} layers", len(value))
        return (*(bool(flag) for flag in value), *((False,) * (layers - len(value))))


def _windows(keys: _Keys, kind: _Kind, layers_all: int, trunk: int) -> tuple[int, tuple[bool, ...]]:
    """The window in tokens and which layers have it."""
    none = 0, (False,) * layers_all
    if kind.window is None:
        return none
    window = keys.number("attention.sliding_window", kind.window, least=0)
    if not window:
        return none
    flags = keys.flags("attention.sliding_window_pattern", layers_all)
    if flags is None:
        if kind.period is None:
            raise keys.refuse("attention.sliding_window_pattern", "an array of flags, one a layer", "none")
        period = keys.number("attention.sliding_window_pattern", kind.period, least=0)
        flags = tuple(layer < trunk and (period == 0 or layer % period < period - 1) for layer in range(layers_all))
    if not any(flags):
        raise keys.refuse("attention.sliding_window_pattern", "at least one layer with the window", "none")
    return window, flags


def _states(keys: _Keys, kind: _Kind, layers_all: int, trunk: int) -> tuple[tuple[bool, ...], Recurrent | None]:
    """Which layers keep a recurrent state, and its size."""
    if not kind.hybrid:
        for key in _STATE_KEYS:
            if keys.get(key):
                raise keys.refuse(key, "no recurrent state in this architecture", keys.get(key))
        return (False,) * layers_all, None
    kernel, inner, state, groups = (keys.number(key, least=0) for key in _STATE_KEYS)
    flags = keys.flags("attention.recurrent_layers", layers_all)
    if flags is None:
        interval = keys.number("full_attention_interval", 4)
        flags = tuple(layer < trunk and (layer + 1) % interval != 0 for layer in range(layers_all))
    channels = inner + 2 * groups * state
    return flags, Recurrent(max(kernel - 1, 0) * channels, state * inner, channels, inner)


def _vocabulary(keys: _Keys, header: Header) -> int:
    """Rows of the output: the embedding's own, for no reader has to cross the vocabulary for it."""
    rows = {tensor.name: tensor.dims[1] for tensor in header.tensors if len(tensor.dims) == 2}
    for name in ("output.weight", "token_embd.weight"):
        if name in rows:
            return rows[name]
    return keys.number("vocab_size", 0, least=0)


def facts(header: Header) -> Facts:
    """A header's numbers; a FleetError for an architecture or a memory that is not known."""
    architecture = header.architecture
    kind = KNOWN.get(architecture)
    if kind is None:
        raise UnknownMemory(
            f"architecture {architecture}",
            expected="one whose memory is known: " + ", ".join(sorted(KNOWN)),
            found=architecture,
            remedy=WAY_OUT,
        )
    keys = _Keys(header)
    for key, what in _OTHER_MEMORY.items():
        if keys.get(key):
            raise keys.uncounted(key, "no memory other than keys, values, windows and states", what)
    if keys.number("expert_count", 0, least=0):
        raise keys.uncounted("expert_count", "no experts: their buffers are not known", keys.get("expert_count"))
    layers_all = keys.number("block_count", most=MAX_LAYERS)
    nextn = keys.number("nextn_predict_layers", 0, least=0)
    if nextn > layers_all or (nextn and not kind.hybrid):
        raise keys.refuse("nextn_predict_layers", "an MTP head of qwen35, within the blocks", nextn)
    trunk = layers_all - nextn
    embd = keys.number("embedding_length")
    heads = keys.per_layer("attention.head_count", layers_all)
    if not heads[0]:
        raise keys.refuse("attention.head_count", "heads in the first layer", heads[0])
    kv_heads = keys.per_layer("attention.head_count_kv", layers_all, heads)
    width = embd // heads[0]
    k_dim, v_dim = keys.number("attention.key_length", width), keys.number("attention.value_length", width)
    k_near = keys.number("attention.key_length_swa", k_dim)
    v_near = keys.number("attention.value_length_swa", v_dim)
    window, windowed = _windows(keys, kind, layers_all, trunk)
    recurrent, state = _states(keys, kind, layers_all, trunk)
    targets = keys.get("target_layers") if kind.encoder else None
    return Facts(
        architecture=architecture,
        layers_all=layers_all,
        nextn=nextn,
        trained=keys.number("context_length", 0, least=0),
        embd=embd,
        ff=max(keys.per_layer("feed_forward_length", layers_all)),
        vocab=_vocabulary(keys, header),
        heads=heads,
        k_width=tuple(n * (k_near if near else k_dim) for n, near in zip(kv_heads, windowed, strict=True)),
        v_width=tuple(n * (v_near if near else v_dim) for n, near in zip(kv_heads, windowed, strict=True)),
        q_width=max(n * (k_near if near else k_dim) for n, near in zip(heads, windowed, strict=True)),
        windowed=windowed,
        window=window,
        recurrent=recurrent,
        state=state,
        rollback=kind.rollback,
        tied_always=kind.tied,
        gated=kind.gated,
        scaled=kind.scaled,
        encoder_width=embd * len(targets) if isinstance(targets, (list, tuple)) else 0,
        rope_factors=kind.rope_factors,
    )
