# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the memory of a boot off a llama-server's log.

The messages are those of llama.cpp build 11434 at verbosity 4 (``llama-context.cpp``, ``llama-kv-cache.cpp``,
``llama-memory-recurrent.cpp``, ``llama-model.cpp``, ``fit.cpp``, ``clip.cpp``, ``server-context.cpp``), from a file or
a journal: whatever stands before a message is passed over. No log is an error here: what is not there is named in
:attr:`BootLog.missing`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_end import Ending
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootLog, Device
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_load import Load

__all__ = ["TELLING", "parse_boot_log"]

# The verbosity from which the engine tells the sizes of its buffers.
TELLING = 4

# The characters that a line must have and those that are read of it, between which every message of the engine lies;
# how many lines are kept that could not be read.
SHORTEST, LINE, UNREAD = 12, 1000, 20

_BEGIN = "llama_server: initializing ..."
_BUFFER = "buffer size = "
# What is told at that verbosity alone.
_TOLD = (_BUFFER, "sched_reserve: ", " | new slot, n_ctx = ")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_BLOB = re.compile(r"\[[0-9.]{1,8}[BKM]? blob data\]")

_MIB = r"([0-9]{1,9}\.[0-9]{2}) MiB"
_N = r"([0-9]{1,10})"
_TYPE = r"\((\w{1,16})\)"
_QUOTED = r"'([^']{1,800})'"


class _Boot:
    """The last boot while it is read: what the process says of itself, and its last load of a model."""

    def __init__(self) -> None:
        self.build: int | None = None
        self.commit: str | None = None
        self.verbosity: int | None = None
        self.devices: dict[str, Device] = {}
        self.address: str | None = None
        self.blobs = 0
        self.telling = False
        self.load = Load()
        self.ending = Ending()

    def on_build(self, build: str, commit: str) -> None:
        self.build, self.commit = int(build), commit

    def on_verbosity(self, level: str) -> None:
        self.verbosity = int(level)

    def on_device(self, name: str, description: str, total: str, free: str) -> None:
        self.devices[name] = Device(name, description, int(total), int(free))

    def on_model(self, model: str) -> None:
        # A server that slept loads its model anew, and what it held before is gone.
        self.load = Load()
        self.load.model = model

    def on_address(self, address: str) -> None:
        self.address = address


# Each rule: what a line must hold, how to take it apart, what to do with the parts. Every pattern begins with the
# function that prints it and has no nested repetition.
_BOOT: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("_print_info: build ", rf"_print_info: build {_N} \(([^)]{{1,64}})\)", _Boot.on_build),
    ("_print_info: verbosity", rf"_print_info: verbosity = {_N}", _Boot.on_verbosity),
    (
        " MiB free)",
        rf"common_param: +- (\S{{1,64}}) *: (.{{0,200}}) \({_N} MiB, {_N} MiB free\)",
        _Boot.on_device,
    ),
    ("load_model: loading model ", f"load_model: loading model {_QUOTED}", _Boot.on_model),
    ("llama_server: listening on ", r"llama_server: listening on (\S{1,400})", _Boot.on_address),
)
_FIT: tuple[tuple[str, str, Callable[..., None]], ...] = (
    (
        "projected to use ",
        rf"projected to use {_N} MiB of (device|host) memory vs\. {_N} MiB of",
        Load.on_projected,
    ),
    ("will leave ", rf"common_params_fit_impl: will leave {_N} >= {_N} MiB", Load.on_leaves),
    (
        "cannot meet free memory target of ",
        rf"cannot meet free memory target of {_N} MiB, need to reduce device memory by {_N} MiB",
        Load.on_lacks,
    ),
    (
        "cannot meet free memory targets",
        rf"cannot meet free memory targets on all devices, need to use {_N} MiB less",
        Load.on_lacks_together,
    ),
    ("met on all devices", "targets for free memory can be met on all devices", Load.on_unchanged),
    (
        "free vs. target of",
        rf"common_params_fit_impl: +- (\S{{1,64}}) .{{0,200}} total, +{_N} used, +(-?[0-9]{{1,10}}) free vs\.",
        Load.on_fit_device,
    ),
    ("context size reduced from ", rf"context size reduced from {_N} to {_N} -> ", Load.on_cut),
    ("failed to measure the memory of the extra model", "failed to measure the memory", Load.on_blind),
    ("successfully fit params", "common_fit_params: successfully fit params", Load.on_fitted),
    ("failed to fit params", r"common_fit_params: failed to fit params [\w ]{1,40}: (.{1,300})", Load.on_unfitted),
    (
        "while trying to fit params",
        r"common_fit_params: encountered an error while trying to fit params [\w ]{1,40}: (.{1,300})",
        Load.on_fit_error,
    ),
    ("fitting params to free memory took", "common_fit_params: fitting params to free memory took", Load.on_fit_end),
)
_LOAD: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("fitting params to device memory", "fitting params to device memory", Load.on_fit),
    ("estimated worst-case memory", rf"estimated worst-case memory usage of mmproj is {_MIB}", Load.on_worst),
    ("model buffer size", rf"load_tensors: +(\S{{1,64}}) model buffer size = +{_MIB}", Load.on_weights),
    ("layers to GPU", rf"load_tensors: offloaded {_N}/{_N} layers to GPU", Load.on_offloaded),
    ("LoRA buffer size", rf"lora_init_impl: +(\S{{1,64}}) LoRA buffer size = +{_MIB}", Load.on_adapter_buffer),
    ("loading lora adapter", f"loading lora adapter from {_QUOTED}", Load.on_adapter),
    ("loading draft model", f"loading draft model {_QUOTED}", Load.on_drafter),
    ("creating MTP draft context", "creating MTP draft context against the target model", Load.on_mtp),
    ("constructing llama_context", "llama_context: constructing llama_context", Load.on_context),
    ("llama_context: flash_attn ", r"llama_context: flash_attn += (enabled|disabled|auto)", Load.on_flash),
    ("llama_context: kv_unified ", r"llama_context: kv_unified += (true|false)", Load.on_unified),
    ("llama_context: n_", rf"llama_context: (n_[a-z_]{{1,32}}) += {_N}\b", Load.on_number),
    ("output buffer size", rf"llama_context: +(\S{{1,64}})  output buffer size = +{_MIB}", Load.on_outputs),
    (" KV cache, size = ", r"creating +(\S{1,32}) KV cache, size = ", Load.on_cache_kind),
    ("KV buffer size", rf"llama_kv_cache: +(\S{{1,64}}) KV buffer size = +{_MIB}", Load.on_kv),
    (
        "llama_kv_cache: size = ",
        rf"llama_kv_cache: size = +{_MIB} \( *{_N} cells, +{_N} layers, +{_N}/{_N} seqs\), "
        rf"K {_TYPE}: +{_MIB}, V {_TYPE}: +{_MIB}",
        Load.on_cache,
    ),
    ("RS buffer size", rf"llama_memory_recurrent: +(\S{{1,64}}) RS buffer size = +{_MIB}", Load.on_recurrent),
    (
        "llama_memory_recurrent: size = ",
        rf"llama_memory_recurrent: size = +{_MIB} \( *{_N} cells, +{_N} layers, +{_N} seqs +{_N} rs_seq\), "
        rf"R {_TYPE}: +{_MIB}, S {_TYPE}: +{_MIB}",
        Load.on_states,
    ),
    ("sched_reserve: reserving", r"sched_reserve: reserving \.\.\.", Load.on_reserve),
    ("Flash Attention ", r"resolve_fused_ops: Flash Attention (enabled|not supported)", Load.on_resolved),
    ("retrying without pipeline", "sched_reserve: compute buffer allocation failed", Load.on_unpipelined),
    ("sched_reserve: ", rf"sched_reserve: +(\S{{1,64}}) compute buffer size = +{_MIB}", Load.on_compute),
    ("sched copies = ", rf"sched_reserve: reserve took .{{1,40}}, sched copies = {_N}", Load.on_copies),
    ("clip_ctx: CLIP using ", r"clip_ctx: CLIP using (\S{1,64}) backend", Load.on_clip),
    ("load_hparams: projector:", r"load_hparams: projector: +(\S{1,64})", Load.on_projector),
    ("load_hparams: model size:", rf"load_hparams: model size: +{_MIB}", Load.on_projector_size),
    ("reserve_compute_meta: graph splits", "reserve_compute_meta: graph splits", Load.on_projector_end),
    (
        "reserve_compute_meta: ",
        rf"reserve_compute_meta: +(\S{{1,64}}) compute buffer size = +{_MIB}",
        Load.on_projector_compute,
    ),
    ("initializing, n_slots = ", rf"load_model: initializing, n_slots = {_N}, n_ctx_slot = {_N}", Load.on_slots),
    (
        "adding speculative implementation",
        r"adding speculative implementation '([\w-]{1,64})'",
        Load.on_speculation,
    ),
    ("no implementations specified for", "no implementations specified for speculative", Load.on_no_speculation),
    ("llama_server: model loaded", "llama_server: model loaded", Load.on_loaded),
)


def _compiled(
    rules: tuple[tuple[str, str, Callable[..., None]], ...],
) -> tuple[tuple[str, re.Pattern[str], Callable[..., None]], ...]:
    return tuple((held, re.compile(pattern), act) for held, pattern, act in rules)


_BOOT_RULES, _FIT_RULES, _LOAD_RULES = _compiled(_BOOT), _compiled(_FIT), _compiled(_LOAD)


def _apply(rules: tuple[tuple[str, re.Pattern[str], Callable[..., None]], ...], line: str, to: _Boot | Load) -> bool:
    for held, pattern, act in rules:
        if held in line:
            found = pattern.search(line)
            if found:
                act(to, *found.groups())
                return True
    return False


def _read(boot: _Boot, line: str) -> None:
    boot.ending.read(line)
    boot.telling = boot.telling or any(mark in line for mark in _TOLD)
    if _apply(_BOOT_RULES, line, boot):
        return
    load = boot.load
    if load.fitting:
        # At a verbosity of 5 the fit's dry runs print contexts of their own.
        _apply(_FIT_RULES, line, load)
    elif not _apply(_LOAD_RULES, line, load):
        if _BUFFER in line and len(load.unread) < UNREAD:
            load.unread.append(" ".join(line.split()))
        elif _BLOB.search(line):
            boot.blobs += 1


def parse_boot_log(text: str) -> BootLog:
    """The last boot in a log; never an error, in time that grows with its length alone."""
    boots = text.count(_BEGIN)
    begin = text.rfind(_BEGIN)
    boot = _Boot()
    for line in text[max(begin, 0) :].split("\n"):
        if len(line) >= SHORTEST:
            row = line[:LINE].rstrip("\r")
            _read(boot, _COLOUR.sub("", row) if "\x1b" in row else row)
    load = boot.load
    context, draft = load.context("target"), load.context("draft")
    lines = tuple(load.lines())
    failure = boot.ending.failure(load.speculation)
    low = boot.verbosity is not None and boot.verbosity < TELLING
    unsaid = boot.verbosity is None and load.slots is not None
    quiet = not boot.telling and (low or unsaid)
    missing = [] if quiet else load.missing()
    if boot.address is None:
        missing.append("the line that tells where it listens")
    return BootLog(
        lines=lines,
        target=context,
        draft=draft,
        build=boot.build,
        commit=boot.commit,
        verbosity=boot.verbosity,
        devices=tuple(boot.devices.values()),
        model=load.model,
        drafter=load.drafter,
        speculation=tuple(load.speculation),
        slots=None if load.slots is None else load.slots[0],
        slot_ctx=None if load.slots is None else load.slots[1],
        offloaded=load.offloaded,
        fit=load.fitted(),
        projector=load.projector(),
        adapters=tuple(load.adapters),
        address=boot.address,
        failure=failure,
        boots=max(boots, 1),
        quiet=quiet,
        missing=tuple(missing),
        unread=tuple(load.unread),
        notes=tuple(_notes(boot, boots)),
    )


def _notes(boot: _Boot, boots: int) -> list[str]:
    load = boot.load
    notes = list(load.notes)
    if not boots:
        notes.append("the log begins after the boot's first line")
    elif boots > 1:
        notes.append(f"the log holds {boots} boots: the last one is read")
    if boot.blobs:
        notes.append(f"{boot.blobs} lines are hidden as blob data: read the journal with --all")
    if load.dropped:
        notes.append("the drafter was loaded and let go again: SPEC_TYPE names no proposer")
    fit = load.fitted()
    if fit is not None and fit.verdict == "changed":
        cut = "" if fit.n_ctx is None else f", a context of {fit.n_ctx} for one"
        notes.append(f"the engine's own fit took other settings than it was given{cut}")
    if fit is not None and not fit.with_drafter:
        notes.append("the engine's own fit could not measure the drafter and left it out")
    return notes
