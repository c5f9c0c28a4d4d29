# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Env keys of a llama-server endpoint, in the order of its arguments, and the rules between them.

Flags, choices and ranges were read off llama.cpp build 11434 (common/arg.cpp, common/speculative.cpp).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._envkey import Key
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["FILE_ROLES", "KEYS", "derive", "rules", "shape"]

_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_EXACT = ("f32", "f16", "bf16")
_WITH_FILE = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
_DRAFTERS = (*_WITH_FILE, "draft-mtp")
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_DEVICE = r"[A-Za-z]+[0-9]+|none"
_INDICES = r"[0-9]+|GPU-[0-9a-f-]+"

# The key that names a payload file of this role.
FILE_ROLES = {"MODEL_FILE": "model", "MMPROJ_FILE": "mmproj", "LORA_FILE": "lora", "SPEC_DRAFT_MODEL": "drafter"}

KEYS: tuple[Key, ...] = (
    Key("SERVER_BIN", "path", "The llama-server to run", required=True, form="program",
        note="derived from the runtime"),
    Key("MODEL_FILE", "file", "The model, or its first shard", "--model", required=True, form="file",
        note="derived from the payload"),
    Key("BIND_ADDR", "text", "Address to listen on", "--host", pattern=r"[0-9A-Fa-f.:]+", required=True,
        note="one address; a list or a socket path could not be probed"),
    Key("LISTEN_PORT", "int", "TCP port to listen on", "--port", low=1, high=65535, required=True),
    Key("ALIAS", "text", "The model's name on the wire", "--alias", pattern=r"[A-Za-z0-9][A-Za-z0-9._/:-]*",
        required=True, note="a flag, not a fact: the engine answers to any name"),
    Key("CTX_SIZE", "int", "Tokens of context, all slots together", "--ctx-size", low=256, required=True),
    Key("PARALLEL", "int", "Slots; the context is divided among them", "--parallel", low=1, high=256, required=True),
    Key("CACHE_TYPE_K", "choice", "Type of the cached keys", "--cache-type-k", choices=_KV_TYPES),
    Key("CACHE_TYPE_V", "choice", "Type of the cached values", "--cache-type-v", choices=_KV_TYPES),
    Key("FLASH_ATTN", "choice", "Flash attention", "--flash-attn", choices=("on", "off", "auto")),
    Key("BATCH_SIZE", "int", "Logical batch in tokens", "--batch-size", low=1),
    Key("UBATCH_SIZE", "int", "Physical batch in tokens; sizes the compute buffers", "--ubatch-size", low=1),
    Key("NGL", "int", "Layers on the cards", "--n-gpu-layers", low=0, words=("auto", "all")),
    Key("SPLIT_MODE", "choice", "How the model is spread over cards", "--split-mode",
        choices=("none", "layer", "row", "tensor")),
    Key("DEVICE", "list", "The devices to use, in this order", "--device", pattern=_DEVICE),
    Key("TENSOR_SPLIT", "list", "Each device's share", "--tensor-split", pattern=r"[0-9]+(\.[0-9]+)?"),
    Key("FIT", "choice", "Let the engine change what is unset to fit the memory", "--fit", choices=("on", "off")),
    Key("CTX_CHECKPOINTS", "int", "Snapshots of a slot's context", "--ctx-checkpoints", low=0),
    Key("CACHE_RAM", "int", "MiB of host memory for cached prompts; -1 has no limit, 0 turns it off", "--cache-ram",
        low=-1),
    Key("JINJA", "bool", "Use the model's own chat template", "--jinja", form="switch", off="--no-jinja"),
    Key("CHAT_TEMPLATE_FILE", "path", "A chat template to use instead of the model's", "--chat-template-file",
        form="file", empty="the model's own template"),
    Key("REASONING", "choice", "Thinking", "--reasoning", choices=("on", "off", "auto")),
    Key("REASONING_FORMAT", "choice", "Where the thinking is returned", "--reasoning-format",
        choices=("none", "auto", "deepseek", "deepseek-legacy")),
    Key("REASONING_BUDGET", "int", "Tokens of thinking; -1 has no limit", "--reasoning-budget", low=-1),
    Key("METRICS", "bool", "Serve /metrics; without it the path answers 501", "--metrics", form="switch"),
    Key("MMPROJ_FILE", "file", "The projector, which gives the model sight", "--mmproj", form="file", off="--no-mmproj",
        empty="text only", note="derived from the payload"),
    Key("LORA_FILE", "file", "The adapter, applied at load", "--lora", form="lora", empty="no adapter",
        note="derived from the payload; with LORA_SCALE the flag is --lora-scaled FILE:SCALE"),
    Key("LORA_SCALE", "float", "How much of the adapter; 0 is none", "--lora-scaled", low=-10, high=10, form="scale"),
    Key("THREADS", "int", "Processor threads for generation", "--threads", low=1),
    Key("THREADS_BATCH", "int", "Processor threads for prompts", "--threads-batch", low=1),
    Key("THREADS_HTTP", "int", "Threads for requests", "--threads-http", low=1),
    Key("API_KEY_FILE", "path", "A file of API keys, one a line", "--api-key-file", form="file",
        empty="no key asked for"),
    Key("VERBOSITY", "int", "Log level; 4 tells cache and drafter sizes, 5 floods the journal", "--log-verbosity",
        low=0, high=5),
    Key("TEMP", "float", "Temperature of a request that names none", "--temp", low=0, high=5, empty="the model's own"),
    Key("TOP_P", "float", "top_p of a request that names none", "--top-p", low=0, high=1, empty="the model's own"),
    Key("TOP_K", "int", "top_k of a request that names none; 0 is off", "--top-k", low=0, empty="the model's own"),
    Key("MIN_P", "float", "min_p of a request that names none", "--min-p", low=0, high=1, empty="the model's own"),
    Key("PRESENCE_PENALTY", "float", "Presence penalty of a request that names none", "--presence-penalty",
        low=-2, high=2, empty="the engine's own", note="no model file can carry it"),
    Key("SPEC_TYPE", "list", "Speculative decoding; none strips every other SPEC_ key", "--spec-type",
        choices=("none", *_DRAFTERS, *_NGRAMS), form="spec"),
    Key("SPEC_DRAFT_N_MAX", "int", "Most tokens drafted at once", "--spec-draft-n-max", low=1, high=1024,
        group="draft"),
    Key("SPEC_DRAFT_N_MIN", "int", "Fewest tokens worth drafting", "--spec-draft-n-min", low=0, high=1024,
        group="draft"),
    Key("SPEC_DRAFT_P_MIN", "float", "Least probability of a drafted token", "--spec-draft-p-min", low=0, high=1,
        group="draft"),
    Key("SPEC_DRAFT_MODEL", "file", "The drafter", "--spec-draft-model", form="file", empty="no drafter of its own",
        group="draft", note="derived from the payload where SPEC_TYPE needs one"),
    Key("SPEC_DRAFT_DEVICE", "list", "The devices of the drafter", "--spec-draft-device", pattern=_DEVICE,
        group="draft"),
    Key("SPEC_DRAFT_TYPE_K", "choice", "Type of the drafter's cached keys", "--spec-draft-type-k", choices=_KV_TYPES,
        group="draft", note="the engine's own is f16, whatever CACHE_TYPE_K is"),
    Key("SPEC_DRAFT_TYPE_V", "choice", "Type of the drafter's cached values", "--spec-draft-type-v", choices=_KV_TYPES,
        group="draft"),
    Key("SPEC_NGRAM_N_MIN", "int", "Shortest span that ngram-mod proposes", "--spec-ngram-mod-n-min", low=0, high=1024,
        group="ngram"),
    Key("SPEC_NGRAM_N_MAX", "int", "Longest span that ngram-mod proposes", "--spec-ngram-mod-n-max", low=0, high=1024,
        group="ngram"),
    Key("HIP_VISIBLE_DEVICES", "list", "The AMD cards that the engine may see, by index or UUID", pattern=_INDICES,
        form="pass"),
    Key("CUDA_VISIBLE_DEVICES", "list", "The NVIDIA cards that the engine may see, by index or UUID", pattern=_INDICES,
        form="pass", empty="no card"),
)  # fmt: skip


def _types(env: Mapping[str, str]) -> list[str]:
    """The speculative types in force; [] for none."""
    return [name for name in env.get("SPEC_TYPE", "none").split(",") if name != "none"]


def _context(env: Mapping[str, str]) -> list[str]:
    size, slots = int(env["CTX_SIZE"]), int(env["PARALLEL"])
    if size % slots:
        down, up = size - size % slots, size - size % slots + slots
        return [
            f"CTX_SIZE {size} is not divisible by PARALLEL {slots}: the engine would round each slot's window. "
            f"Set CTX_SIZE to {down} or {up}, or change PARALLEL."
        ]
    if size // slots % 256:
        window = size // slots
        return [
            f"CTX_SIZE {size} over PARALLEL {slots} gives windows of {window}, which the engine pads to a multiple of "
            f"256. Set CTX_SIZE to {(window // 256) * 256 * slots or 256 * slots} or {-(-window // 256) * 256 * slots}."
        ]
    if env.get("FIT") == "on" and slots > 1:
        return [f"FIT is on with PARALLEL {slots}: it enlarges the whole pool and shrinks each slot. Set FIT to off."]
    return []


def _cache(env: Mapping[str, str]) -> list[str]:
    problems = []
    quantized = env.get("CACHE_TYPE_V", "f16")
    if quantized not in _EXACT and env.get("FLASH_ATTN") != "on":
        problems.append(
            f"CACHE_TYPE_V {quantized} is quantized, which only flash attention can read, and the engine would "
            f"fall back in silence. Set FLASH_ATTN to on, or CACHE_TYPE_V to f16."
        )
    if any(name in _DRAFTERS for name in _types(env)):
        drafts = env.get("SPEC_DRAFT_TYPE_V", "f16")
        if drafts not in _EXACT and env.get("FLASH_ATTN") != "on":
            problems.append(
                f"SPEC_DRAFT_TYPE_V {drafts} is quantized and needs flash attention. "
                f"Set FLASH_ATTN to on, or SPEC_DRAFT_TYPE_V to f16."
            )
    batch, ubatch = int(env.get("BATCH_SIZE", 2048)), int(env.get("UBATCH_SIZE", 512))
    if ubatch > batch:
        problems.append(
            f"UBATCH_SIZE {ubatch} exceeds BATCH_SIZE {batch}, and the engine would cut it. Set UBATCH_SIZE to {batch} "
            f"or less, or raise BATCH_SIZE."
        )
    return problems


def _cards(env: Mapping[str, str]) -> list[str]:
    problems = []
    devices = env["DEVICE"].split(",") if "DEVICE" in env else []
    if len(set(devices)) != len(devices):
        problems.append(f"DEVICE {env['DEVICE']} names a device twice. Name each once.")
    if "none" in devices and len(devices) > 1:
        problems.append(f"DEVICE {env['DEVICE']} holds none beside devices. Write none alone, or leave it out.")
    if "TENSOR_SPLIT" in env:
        shares = env["TENSOR_SPLIT"].split(",")
        if devices and len(shares) != len(devices):
            problems.append(
                f"TENSOR_SPLIT {env['TENSOR_SPLIT']} has {len(shares)} shares for {len(devices)} devices in "
                f"DEVICE {env['DEVICE']}. Give one share for each device."
            )
        if not any(float(share) for share in shares):
            problems.append(f"TENSOR_SPLIT {env['TENSOR_SPLIT']} gives no device a share. Give one a share above 0.")
        if env.get("SPLIT_MODE") == "none":
            problems.append("TENSOR_SPLIT has no effect with SPLIT_MODE none. Take one of the two out.")
    drafter = env.get("SPEC_DRAFT_DEVICE")
    if drafter and devices and any(name in _DRAFTERS for name in _types(env)):
        strangers = [name for name in drafter.split(",") if name not in (*devices, "none")]
        if strangers:
            problems.append(
                f"SPEC_DRAFT_DEVICE {drafter} is not among DEVICE {env['DEVICE']}. "
                f"Name one of these, or add {strangers[0]} to DEVICE."
            )
    return problems


def _adapter(env: Mapping[str, str]) -> list[str]:
    problems = []
    if "LORA_SCALE" in env and "LORA_FILE" not in env:
        problems.append("LORA_SCALE is set without LORA_FILE. Give the payload a lora file, or take LORA_SCALE out.")
    path = env.get("LORA_FILE", "")
    if "," in path or ":" in path:
        problems.append(f"LORA_FILE {path} holds a comma or a colon, at which the engine splits it. Rename the file.")
    return problems


def _drafting(env: Mapping[str, str]) -> list[str]:
    if "SPEC_TYPE" not in env:
        loose = sorted(key for key in env if key.startswith("SPEC_"))
        if loose:
            return [
                f"{', '.join(loose)} without SPEC_TYPE is half a set. "
                "Set SPEC_TYPE (none strips them), or take them out."
            ]
        return []
    given = env["SPEC_TYPE"].split(",")
    if "none" in given and len(given) > 1:
        return [f"SPEC_TYPE {env['SPEC_TYPE']} holds none beside others. Write none alone, or take it out."]
    problems = []
    types = _types(env)
    drafters = [name for name in types if name in _DRAFTERS]
    if len(drafters) > 1:
        problems.append(
            f"SPEC_TYPE {env['SPEC_TYPE']} chains {' and '.join(drafters)}, and one process holds one draft context. "
            f"Keep one of them; ngram-mod may ride beside it."
        )
    if drafters:
        missing = [key for key in ("SPEC_DRAFT_N_MAX", "SPEC_DRAFT_N_MIN", "SPEC_DRAFT_P_MIN") if key not in env]
        if missing:
            problems.append(
                f"SPEC_TYPE {env['SPEC_TYPE']} needs its whole set. Add {', '.join(missing)}, or set SPEC_TYPE to none."
            )
        elif int(env["SPEC_DRAFT_N_MIN"]) > int(env["SPEC_DRAFT_N_MAX"]):
            problems.append(
                f"SPEC_DRAFT_N_MIN {env['SPEC_DRAFT_N_MIN']} exceeds SPEC_DRAFT_N_MAX {env['SPEC_DRAFT_N_MAX']}, so "
                f"nothing would be drafted. Lower the one or raise the other."
            )
        model = env.get("SPEC_DRAFT_MODEL", "")
        needing = [name for name in drafters if name in _WITH_FILE]
        if needing and not model:
            problems.append(
                f"SPEC_TYPE {needing[0]} drafts from a file of its own. "
                "Give the payload a drafter file, or name it in SPEC_DRAFT_MODEL."
            )
        if model and "draft-mtp" in drafters:
            problems.append(
                "SPEC_TYPE draft-mtp drafts with the model's own head, and SPEC_DRAFT_MODEL would load it twice. "
                "Take SPEC_DRAFT_MODEL out."
            )
    if "ngram-mod" in types:
        missing = [key for key in ("SPEC_NGRAM_N_MIN", "SPEC_NGRAM_N_MAX") if key not in env]
        if missing:
            problems.append(
                f"SPEC_TYPE {env['SPEC_TYPE']} needs ngram-mod's window. "
                f"Add {', '.join(missing)} (the engine's own are 48 and 64)."
            )
        elif int(env["SPEC_NGRAM_N_MIN"]) > int(env["SPEC_NGRAM_N_MAX"]):
            problems.append(
                f"SPEC_NGRAM_N_MIN {env['SPEC_NGRAM_N_MIN']} exceeds SPEC_NGRAM_N_MAX {env['SPEC_NGRAM_N_MAX']}. "
                f"Lower the one or raise the other."
            )
    return problems


def _paths(env: Mapping[str, str]) -> list[str]:
    return [
        f"{key} {env[key]!r} is no absolute path. Declare the file in the payload, or write its whole path."
        for key in FILE_ROLES
        if env.get(key) and not env[key].startswith("/")
    ]


def rules() -> Sequence[tuple[frozenset[str], Callable[[Mapping[str, str]], list[str]]]]:
    """(keys whose values must be sound before the rule can be asked, the rule); a rule answers with its problems."""
    return (
        (frozenset({"CTX_SIZE", "PARALLEL"}), _context),
        (frozenset({"BATCH_SIZE", "UBATCH_SIZE"}), _cache),
        (frozenset({"TENSOR_SPLIT"}), _cards),
        (frozenset(), _adapter),
        (frozenset({"SPEC_DRAFT_N_MIN", "SPEC_DRAFT_N_MAX", "SPEC_NGRAM_N_MIN", "SPEC_NGRAM_N_MAX"}), _drafting),
        (frozenset(), _paths),
    )


def _of_role(files: Sequence[Mapping[str, Any]], role: str, key: str) -> str | None:
    names = sorted(str(file["name"]) for file in files if file.get("role") == role)
    if not names and role == "model":
        names = sorted(str(file["name"]) for file in files if file.get("role") == "shard")[:1]
    if len(names) > 1:
        raise FleetError(
            f"the payload has {len(names)} files of role {role}",
            expected=f"one, or {key} in the endpoint's env to choose",
            found=", ".join(names),
        )
    return names[0] if names else None


def _resolve(key: str, value: str, folder: str, files: Sequence[Mapping[str, Any]]) -> str:
    """A given file's absolute path; it must be one of the payload's, and of the key's role."""
    role = FILE_ROLES[key]
    roles = (role, "shard") if role == "model" else (role,)
    fitting = {str(file["name"]): str(file.get("role")) for file in files if file.get("role") in roles}
    name = value if "/" not in value else os.path.relpath(value, folder)
    if name not in fitting:
        known = ", ".join(f"{folder}/{other}" for other in sorted(fitting))
        raise FleetError(
            f"{key} names a file that is no {role} of the payload",
            expected=known or f"a file of role {role} in {folder}",
            found=value,
            remedy="Name one of these, or declare the file in llm_payloads with its size and sha256",
        )
    return os.path.join(folder, name)


def derive(
    env: Mapping[str, str], payload_dir: str, payload_files: Sequence[Mapping[str, Any]], server_bin: str
) -> dict[str, str]:
    """The endpoint's env with SERVER_BIN and the payload's files filled in where the key is absent."""
    full = dict(env)
    full.setdefault("SERVER_BIN", server_bin)
    for key, role in FILE_ROLES.items():
        if key in full:
            if full[key]:
                full[key] = _resolve(key, full[key], payload_dir, payload_files)
            continue
        if role == "drafter" and not any(name in _WITH_FILE for name in _types(env)):
            continue
        name = _of_role(payload_files, role, key)
        if name is not None:
            full[key] = os.path.join(payload_dir, name)
    return full


def shape(env: Mapping[str, str]) -> dict[str, Any]:
    """What decides memory, for tables: ctx_size, parallel, ctx_per_slot (tokens), cache types, batches, drafter ..."""
    size, slots = int(env["CTX_SIZE"]), int(env["PARALLEL"])
    return {
        "ctx_size": size,
        "parallel": slots,
        "ctx_per_slot": size // slots,
        "cache_type_k": env.get("CACHE_TYPE_K", "f16"),
        "cache_type_v": env.get("CACHE_TYPE_V", "f16"),
        "flash_attn": env.get("FLASH_ATTN", "auto"),
        "batch_size": int(env.get("BATCH_SIZE", 2048)),
        "ubatch_size": int(env.get("UBATCH_SIZE", 512)),
        "split": env.get("TENSOR_SPLIT"),
        "spec_type": ",".join(_types(env)) or None,
        "vision": bool(env.get("MMPROJ_FILE")),
        "adapter": bool(env.get("LORA_FILE")),
    }
