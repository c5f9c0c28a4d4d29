# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure messages of llama-server and its forks; see ``_signatures_host`` for the form of a row.

The wording is that of llama.cpp build 11434, and of older builds where the reference pages quote them.
"""

from __future__ import annotations

__all__ = ["CAUSES", "CONSEQUENCES"]

_OOM = r"out of memory|cudaMalloc failed|hipMalloc failed"

CAUSES: tuple[tuple[str, ...], ...] = (
    (
        "drafter-out-of-memory",
        r"common_speculative_impl_\w{1,40}::(process|draft|accept)|llama_process\(ctx_dft\) failed"
        r"|failed to process speculative batch",
        "a card ran out of memory inside the drafter, after a good load. The shape is too big, the drafter is sound: "
        "its cache follows the target's context unless its file declares a sliding window",
        "Lower CTX_SIZE, PARALLEL or UBATCH_SIZE, move layers away from the drafter's card (TENSOR_SPLIT), or set "
        "SPEC_TYPE=none. playbooks/fit.yml shows the drafter's share",
        _OOM,
    ),
    (
        "two-context-backed-drafters",
        r"DFlash model has no target_layer_ids|EAGLE3? requires ctx_tgt|draft model is not eagle3",
        "SPEC_TYPE chains two drafters that both need a context; there is one draft context, made for the other",
        "Keep one of them; only ngram-mod may ride beside a drafter (SPEC_TYPE=draft-mtp,ngram-mod)",
    ),
    (
        "two-context-backed-drafters",
        r"context type MTP requested but model doesn't contain MTP layers|failed to create MTP context",
        "SPEC_TYPE chains draft-mtp with a drafter file, and MTP looked for its layers in that file",
        "Keep one of them; only ngram-mod may ride beside a drafter (SPEC_TYPE=draft-mtp,ngram-mod)",
        r"loading draft model '",
    ),
    (
        "mtp-without-layers",
        r"context type MTP requested but model doesn't contain MTP layers|failed to create MTP context",
        "SPEC_TYPE asks for draft-mtp, and the model file has no MTP layers; they are a property of the export",
        "Declare the file that carries blk.N.nextn tensors, or set SPEC_TYPE=none",
    ),
    (
        "custom-tensor-type",
        r"invalid ggml type|unknown ggml type|unknown (tensor )?type \d{1,4}\b",
        "the file holds tensors of a type that this runtime does not know: it was made for a fork",
        "Give the endpoint the runtime that the payload was made for, and declare its ids under the runtime's "
        "ggml_types",
    ),
    (
        "hadamard-version",
        r"[Uu]nsupported prism\.hadamard",
        "the file or the adapter needs a newer form of the fork's transform than this build has",
        "Build the fork at the commit that the payload and its adapter name, and point the endpoint's runtime at it",
    ),
    (
        "unknown-architecture",
        r"unknown model architecture",
        "this runtime is older than the model's architecture, or lacks it",
        "Pin the runtime to a build that has it; look in the source tree, not in the program",
    ),
    (
        "gguf-too-new",
        r"this GGUF file is version|bad GGUF version|GGUFv1 is no longer supported",
        "the file's format version is not one that this runtime reads",
        "Build a newer runtime, or fetch the payload's current export",
    ),
    (
        "payload-damaged",
        r"is not within the file bounds|invalid magic characters|failed to read (magic|header|tensor (data|info))"
        r"|corrupted model:|has invalid data\b|exceeds remaining file size",
        "a model file is truncated or not what it claims: an unfinished download, or an error page saved as a model",
        "Run site.yml with --tags payload and payload_verify=full; it fetches again what does not match its sha256",
    ),
    (
        "payload-shard-missing",
        r"failed to load GGUF split|illegal split file idx|invalid split (file|count)",
        "a part of a split model is missing, or MODEL_FILE is not its first part",
        "Declare every part under the payload's files, and the -00001-of- file as the model",
    ),
    (
        "payload-missing",
        r"failed to open GGUF file|failed to load model from |failed to open \S{1,400}: No such file"
        r"|error: failed to open file '",
        "a file that the arguments name is not there, or the unit's user may not read it",
        "Run site.yml with --tags payload; check the folder's mode for the unit's user",
    ),
    (
        "payload-not-of-this-model",
        r"missing tensor '|wrong number of tensors; expected|key not found in model:|check_tensor_dims: tensor",
        "the file's tensors are not those that this build expects of the architecture",
        "Use the runtime that the payload's publisher names; look whether the export lacks a block (MTP)",
    ),
    (
        "adapter-mismatch",
        r"model arch and LoRA arch mismatch|does not exist in base model|hint: maybe wrong base model"
        r"|failed to apply lora adapter|failed to load lora adapter|LoRA tensor (pair )?(for )?'",
        "the adapter was made for another model, or its file is damaged",
        "Declare the adapter of this very model, or set LORA_FILE= (empty) to serve without it",
    ),
    (
        "projector-mismatch",
        r"mismatch between text model|may be using wrong mmproj|failed to load multimodal model"
        r"|Failed to load CLIP model",
        "the projector does not belong to this model, or could not be loaded",
        "Declare the projector published with this model, or set MMPROJ_FILE= (empty) for text alone",
    ),
    (
        "drafter-vocabulary",
        r"target and draft vocabs are not compatible|draft model (vocab|bos tokens|eos tokens).{0,40}must.{0,10} match",
        "the drafter's vocabulary is not the model's, so its proposals would mean other words",
        "Declare a drafter made for this model, or set SPEC_TYPE=none",
    ),
    (
        "drafter-not-loaded",
        r"failed to load draft model|failed to initialize speculative decoding context",
        "the drafter could not be set up; some builds then serve on without it and say nothing more",
        "Check SPEC_DRAFT_MODEL and that this build knows its architecture, or set SPEC_TYPE=none",
    ),
    (
        "draft-depth",
        r"GGML_ASSERT\(.{0,120}n_max.{0,60}block_size",
        "SPEC_DRAFT_N_MAX asks for more tokens than the drafter's block holds",
        "Set SPEC_DRAFT_N_MAX to at most the block size less one",
    ),
    (
        "quantized-v-without-flash-attention",
        r"quantized V cache.{0,40}requires? [Ff]lash",
        "a quantized V cache exists only with flash attention",
        "Set FLASH_ATTN=on, or CACHE_TYPE_V=f16",
    ),
    (
        "cache-type-impossible",
        r"[KV] cache type \S{1,12} with block size|does not support different K|Unsupported cache type",
        "the model's head size, or this build, does not allow that cache type",
        "Choose another CACHE_TYPE_K or CACHE_TYPE_V; f16 always works",
    ),
    (
        "unknown-argument",
        r"error: invalid argument:|error while handling argument|the argument has been removed|unknown argument",
        "this build does not know an argument, or not its value: flags are renamed between builds",
        "Take the key out, or pin the runtime to a build that has the flag (llama-server --help of that build)",
    ),
    (
        "unknown-device",
        r"invalid device: |no devices specified|invalid value for main_gpu",
        "DEVICE names a card that this build or process does not see",
        "Compare DEVICE with llama-server --list-devices in the unit's environment",
    ),
    (
        "port-taken",
        r"couldn't bind HTTP server socket|couldn't start HTTP listener",
        "another process holds the address; a server started by hand outlives its shell",
        "Find it with ss -ltnp and stop it by its process id or its unit, or give the endpoint another LISTEN_PORT",
    ),
    (
        "kv-cache-out-of-memory",
        r"failed to allocate buffer for (kv|rs) cache|failed to allocate buffer for DSV4",
        "the weights fitted and the cache for the context did not: CTX_SIZE, PARALLEL and the cache types decide its "
        "size",
        "Lower CTX_SIZE or CACHE_TYPE_V, or take a rung; playbooks/fit.yml says which steps fit",
    ),
    (
        "compute-out-of-memory",
        r"failed to allocate compute|failed to allocate \S{1,24} buffer of size|failed to allocate output buffer",
        "weights and cache fitted, the work buffers did not; they grow with UBATCH_SIZE and are larger on the card of "
        "the output layers",
        "Lower UBATCH_SIZE, or move a layer off that card (TENSOR_SPLIT); playbooks/fit.yml shows both",
    ),
    (
        "adapter-out-of-memory",
        r"failed to allocate buffer for lora adapter",
        "the adapter found no room beside the model",
        "Lower CTX_SIZE or UBATCH_SIZE",
    ),
    (
        "model-out-of-memory",
        r"unable to allocate \S{1,24} buffer",
        "the weights alone are larger than what the card has free",
        "See what else is on the card; else a smaller quantisation, fewer layers (NGL), or another TENSOR_SPLIT",
    ),
    (
        "card-out-of-memory",
        r"(cuda|hip)Malloc failed|(CUDA|ROCm|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "a card has no memory left for what was asked of it",
        "Take a smaller shape (playbooks/fit.yml), and see what else is on the card",
    ),
    (
        "chat-template",
        r"chat template parsing error|Jinja Exception|raise_exception"
        r"|supplied chat template is not supported|failed to initialize chat template",
        "the chat template cannot be read by this build, or refused a request: some accept only certain reasoning "
        "efforts and raise on others",
        "Map the clients' efforts to those that the template names, or set CHAT_TEMPLATE_FILE to a fixed one",
    ),
    (
        "image-without-projector",
        r"(image|audio|video) input is not supported",
        "a request held an image and no projector is loaded; this engine does not find one by itself",
        "Declare the projector among the payload's files (role projector), which sets MMPROJ_FILE",
    ),
    (
        "content-only-format",
        r"does not match the expected Content-only format",
        "the raw completion route of this build refuses reasoning markup; the endpoint itself is sound",
        "Ask /v1/chat/completions instead, which carries the same timings",
    ),
    (
        "host-out-of-memory",
        r"ggml_backend_cpu_buffer_type_alloc_buffer: failed|std::bad_alloc|failed to allocate .{0,40}pinned memory"
        r"|ggml_aligned_malloc: insufficient memory",
        "the host's own memory, or what a limit of the unit leaves of it, did not suffice",
        "Lower CACHE_RAM or what is kept off the cards, and see what else runs and what the unit allows "
        "(systemctl show -p LimitAS -p MemoryMax)",
    ),
)

CONSEQUENCES: tuple[tuple[str, ...], ...] = (
    (
        "context-not-created",
        r"failed to initialize the context|failed to create[ _]context with model",
        "the model loaded, and a context of the asked shape could not be made",
        "Read the line above it in the journal; try CTX_SIZE halved",
    ),
    (
        "assertion",
        r"GGML_ASSERT\(.{1,400}\) failed|GGML_ABORT|terminate called after throwing",
        "the engine stopped at a condition that it holds for impossible",
        "Search the engine's issues for the line; try SPEC_TYPE=none, then another build",
    ),
    (
        "model-not-loaded",
        r"exiting due to model loading error|error loading model: |failed to load model, '",
        "the model could not be loaded",
        "Read the lines above it in the journal",
    ),
)
