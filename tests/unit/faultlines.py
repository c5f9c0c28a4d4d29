# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of failing engines, each with the signature that must know it and where the line is from."""

from __future__ import annotations

FLEET = "the fleet's own pages"
LLAMA = "llama.cpp build 11434, "
R9V = "drwolfen/radiance-vllm-qwen4exp 757ae1f, "
PODMAN = "podman 5.4.2 on a test host"
SYSTEMD = "systemd 257 on a test host"

# (engine, name, where the line is from, the lines)
SEEN = [
    (
        "llamacpp",
        "sdma-page-fault",
        FLEET + "; the form is that of " + LLAMA + "ggml-cuda.cu:105",
        "ROCm error: an illegal memory access was encountered\n"
        "  current device: 1, in function ggml_backend_cuda_cpy_tensor_async at ggml-cuda.cu:3030",
    ),
    (
        "r9v",
        "sdma-page-fault",
        "ggml-org/llama.cpp#3896",
        "amdgpu 0000:0c:00.0: amdgpu:          Faulty UTCL2 client ID: SDMA0 (0xd)",
    ),
    ("llamacpp", "sdma-page-fault", "ollama/ollama#8851", "Memory access fault by GPU node-1 (Agent handle: 0x5635)"),
    (
        "llamacpp",
        "nvidia-fault",
        LLAMA + "ggml-cuda.cu:105",
        "CUDA error: an illegal memory access was encountered",
    ),
    (
        "llamacpp",
        "tensile-unreadable",
        FLEET,
        "rocBLAS error: Cannot read /opt/rt/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU "
        "arch : gfx1201",
    ),
    (
        "llamacpp",
        "tensile-unreadable",
        "ollama/ollama#11555",
        "rocblaslt error: Could not load /usr/local/lib/ollama/rocm/hipblaslt/library/TensileLibrary_lazy_gfx1201.dat",
    ),
    (
        "llamacpp",
        "windows-line-ends",
        "env of coreutils 9.7 on a test host",
        "/usr/bin/env: \u2018bash\\r\u2019: No such file or directory",
    ),
    ("llamacpp", "windows-line-ends", "bash 5.2", "serve: line 5: $'\\r': command not found"),
    (
        "llamacpp",
        "program-unrunnable",
        "bash 5.2",
        "serve-llamacpp: line 307: /opt/rt/llama-server: cannot execute binary file: Exec format error",
    ),
    (
        "llamacpp",
        "chat-template",
        "llama-server 11434 on a test host",
        "0.00.002.434 E common_chat_templates_init: failed to initialize chat template\n"
        "error: the supplied chat template is not supported: {% for %}",
    ),
    (
        "llamacpp",
        "host-out-of-memory",
        "llama-server 11434 on a test host",
        "0.00.012.503 E ggml_aligned_malloc: insufficient memory (attempted to allocate 157.81 MB)\n"
        "llama.cpp/ggml/src/ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed",
    ),
    ("llamacpp", "wrong-architecture", "ggml-org/llama.cpp#8504", "CUDA error: invalid device function"),
    (
        "llamacpp",
        "wrong-architecture",
        "ggml-org/llama.cpp#4215",
        "CUDA error 209 at ggml-cuda.cu:6701: no kernel image is available for execution on the device",
    ),
    (
        "r9v",
        "device-forbidden",
        "rocminfo's words",
        "Unable to open /dev/kfd read-write: Permission denied",
    ),
    ("r9v", "device-node-missing", PODMAN, "Error: stat /dev/kfd: no such file or directory"),
    (
        "r9v",
        "device-node-missing",
        PODMAN,
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ),
    ("r9v", "device-node-missing", R9V + "tools/profile_doctor.py", "FAIL device-node: missing /dev/kfd"),
    (
        "llamacpp",
        "no-device",
        "ggml-org/llama.cpp#20142",
        "ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected",
    ),
    (
        "llamacpp",
        "no-device",
        "abetlen/llama-cpp-python#1890",
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
    ),
    ("llamacpp", "no-device", FLEET, "No CUDA GPUs are available"),
    ("r9v", "no-device", FLEET, "RuntimeError: HIP error: hipErrorNoDevice"),
    (
        "llamacpp",
        "no-device",
        LLAMA + "common/arg.cpp:2803",
        "warning: no usable GPU found, --gpu-layers option will be ignored",
    ),
    (
        "llamacpp",
        "driver-too-old",
        "cudaGetErrorString(cudaErrorInsufficientDriver)",
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
    ),
    ("r9v", "collective-without-atomics", FLEET, "torch.distributed.DistBackendError: hipErrorIllegalState"),
    (
        "llamacpp",
        "library-missing",
        "glibc's dynamic linker",
        "/opt/rt/bin/llama-server: error while loading shared libraries: libhipblas.so.3: cannot open shared object "
        "file: No such file or directory",
    ),
    (
        "llamacpp",
        "library-missing",
        "glibc's dynamic linker",
        "llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by libllama.so)",
    ),
    (
        "llamacpp",
        "oom-killed",
        SYSTEMD + " (its source, core/service.c)",
        "chat.service: Failed with result 'oom-kill'.",
    ),
    (
        "llamacpp",
        "oom-killed",
        "the Linux kernel, mm/oom_kill.c",
        "Out of memory: Killed process 4242 (llama-server) total-vm:30000000kB",
    ),
    (
        "llamacpp",
        "memlock",
        LLAMA + "src/llama-mmap.cpp:732",
        "warning: failed to mlock 4096-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
    ),
    (
        "r9v",
        "memlock",
        PODMAN,
        "Error: crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
    ),
    (
        "llamacpp",
        "card-unusable",
        LLAMA + "ggml-cuda.cu:226",
        "ggml_cuda_init: failed to initialize CUDA: unknown error",
    ),
    ("llamacpp", "segfault", SYSTEMD, "signal-segv.service: Main process exited, code=killed, status=11/SEGV"),
    (
        "llamacpp",
        "drafter-out-of-memory",
        FLEET + "; the backtrace is of the form of fail-two-context-backed-drafters.log",
        "ROCm error: out of memory\n"
        "#3  0x00007f04d44f77a3 in common_speculative_impl_draft_dflash::process(llama_batch const&) () from lib.so",
    ),
    (
        "llamacpp",
        "drafter-out-of-memory",
        LLAMA + "ggml-cuda.cu:888, common/speculative.cpp:1232",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 1: cudaMalloc failed: "
        "out of memory\n"
        "process: llama_process(ctx_dft) failed rc=-3 (n_tokens=512, offset=0)",
    ),
    (
        "llamacpp",
        "two-context-backed-drafters",
        "fail-two-context-backed-drafters.log",
        "common/speculative.cpp:1033: GGML_ASSERT(target_layer_ids_n > 0 && "
        '"DFlash model has no target_layer_ids") failed',
    ),
    (
        "llamacpp",
        "two-context-backed-drafters",
        FLEET,
        "common_speculative_init_result: loading draft model '/models/DFlash2-Q8_0.gguf'\n"
        "llama_init_from_model: context type MTP requested but model doesn't contain MTP layers\n"
        "common_speculative_init_result: failed to create MTP context",
    ),
    (
        "llamacpp",
        "mtp-without-layers",
        "fail-mtp-without-layers.log",
        "llama_init_from_model: context type MTP requested but model doesn't contain MTP layers",
    ),
    (
        "llamacpp",
        "custom-tensor-type",
        LLAMA + "ggml/src/gguf.cpp:731",
        "gguf_init_from_reader: tensor 'blk.0.ffn_up.weight' has invalid ggml type 142. should be in [0, 42)",
    ),
    (
        "llamacpp",
        "hadamard-version",
        FLEET,
        "llama_adapter_lora_init: failed to apply lora adapter: unsupported prism.hadamard.version: 2",
    ),
    (
        "llamacpp",
        "unknown-architecture",
        LLAMA + "src/llama-model.cpp:373",
        "llama_model_load: error loading model: unknown model architecture: 'qwen4exp'",
    ),
    (
        "llamacpp",
        "gguf-too-new",
        LLAMA + "ggml/src/gguf.cpp:516",
        "gguf_init_from_reader: this GGUF file is version 4 but this software only supports up to version 3",
    ),
    (
        "llamacpp",
        "payload-damaged",
        LLAMA + "src/llama-model-loader.h:48",
        "llama_model_load: error loading model: tensor 'blk.7.ffn_up.weight' data is not within the file bounds, model "
        "is corrupted or incomplete",
    ),
    (
        "llamacpp",
        "payload-damaged",
        LLAMA + "ggml/src/gguf.cpp:482",
        "gguf_init_from_reader: invalid magic characters: '<!DO', expected 'GGUF'",
    ),
    (
        "llamacpp",
        "payload-shard-missing",
        LLAMA + "src/llama-model-loader.cpp:605",
        "illegal split file idx: 1 (file: m-00002-of-00006.gguf), model must be loaded with the first split",
    ),
    (
        "llamacpp",
        "payload-missing",
        LLAMA + "ggml/src/gguf.cpp:1021",
        "gguf_init_from_file: failed to open GGUF file '/models/m.gguf' (No such file or directory)",
    ),
    (
        "llamacpp",
        "payload-not-of-this-model",
        LLAMA + "src/llama-model-loader.cpp:1159",
        "llama_model_load: error loading model: missing tensor 'blk.32.nextn.eh_proj.weight'",
    ),
    (
        "llamacpp",
        "adapter-mismatch",
        LLAMA + "src/llama-adapter.cpp:335",
        "llama_adapter_lora_init: failed to apply lora adapter: LoRA tensor 'blk.40.attn_q.weight' does not exist in "
        "base model (hint: maybe wrong base model?)",
    ),
    ("llamacpp", "adapter-mismatch", LLAMA + "src/llama-adapter.cpp:213", "model arch and LoRA arch mismatch"),
    (
        "llamacpp",
        "projector-mismatch",
        LLAMA + "tools/mtmd/mtmd.cpp:605",
        "mtmd_init_from_file: error: mismatch between text model (n_embd = 4096) and mmproj (n_embd = 5120)",
    ),
    (
        "llamacpp",
        "drafter-vocabulary",
        LLAMA + "common/speculative.cpp:287",
        "spec common_specu: the target and draft vocabs are not compatible",
    ),
    (
        "llamacpp",
        "drafter-vocabulary",
        LLAMA + "common/speculative.cpp:126",
        "draft model bos tokens must match target model to use speculation. add: 1 - 0, id: 1 - 11)",
    ),
    (
        "llamacpp",
        "drafter-not-loaded",
        LLAMA + "common/speculative.cpp:2625",
        "common_speculative_init_result: failed to load draft model, '/models/d.gguf'",
    ),
    (
        "llamacpp",
        "draft-depth",
        FLEET + " (the condition's words)",
        "common/speculative.cpp:900: GGML_ASSERT(params.n_max <= block_size - 1) failed",
    ),
    (
        "llamacpp",
        "quantized-v-without-flash-attention",
        LLAMA + "src/llama-context.cpp:3849",
        "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
    ),
    (
        "llamacpp",
        "quantized-v-without-flash-attention",
        LLAMA + "src/llama-context.cpp:469",
        "quantized V cache was requested, but this requires Flash Attention",
    ),
    (
        "llamacpp",
        "cache-type-impossible",
        LLAMA + "src/llama-context.cpp:3858",
        "llama_init_from_model: K cache type q8_0 with block size 32 does not divide n_embd_head_k=80",
    ),
    ("llamacpp", "unknown-argument", LLAMA + "common/arg.cpp:830", "error: invalid argument: --spec-depth"),
    (
        "llamacpp",
        "unknown-argument",
        LLAMA + "common/arg.cpp:876",
        'error while handling argument "--flash-attn": unknown value',
    ),
    ("llamacpp", "unknown-device", LLAMA + "common/arg.cpp:1135", "invalid device: ROCm1"),
    (
        "llamacpp",
        "port-taken",
        LLAMA + "tools/server/server-http.cpp:517",
        "srv        start: couldn't bind HTTP server socket, hostname: 0.0.0.0, port: 7770",
    ),
    (
        "llamacpp",
        "kv-cache-out-of-memory",
        LLAMA + "src/llama-kv-cache.cpp:288",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ),
    (
        "llamacpp",
        "kv-cache-out-of-memory",
        LLAMA + "src/llama-memory-recurrent.cpp:121",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for rs cache",
    ),
    (
        "llamacpp",
        "compute-out-of-memory",
        LLAMA + "ggml/src/ggml-alloc.c:941, src/llama-context.cpp:731",
        "ggml_gallocr_reserve_n_impl: failed to allocate ROCm1 buffer of size 2118123520\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
    ),
    (
        "llamacpp",
        "adapter-out-of-memory",
        LLAMA + "src/llama-adapter.cpp:390",
        "llama_adapter_lora_init: failed to allocate buffer for lora adapter",
    ),
    (
        "llamacpp",
        "model-out-of-memory",
        LLAMA + "src/llama-model.cpp:1872",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    ),
    (
        "llamacpp",
        "card-out-of-memory",
        FLEET + "; the form is that of " + LLAMA + "ggml-cuda.cu:888",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 25088.00 MiB on device 0: cudaMalloc failed: "
        "out of memory",
    ),
    ("llamacpp", "card-out-of-memory", FLEET, "ROCm error: out of memory"),
    (
        "llamacpp",
        "chat-template",
        LLAMA + "common/jinja/value.cpp:418",
        "got exception: Jinja Exception: unsupported reasoning effort: high",
    ),
    (
        "llamacpp",
        "chat-template",
        LLAMA + "tools/server/server-context.cpp:1600",
        "srv          init: init: chat template parsing error: expected ENDIF",
    ),
    (
        "llamacpp",
        "image-without-projector",
        LLAMA + "tools/server/server-common.cpp:1197",
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
    ),
    (
        "llamacpp",
        "content-only-format",
        FLEET,
        "The model produced output that does not match the expected Content-only format",
    ),
    (
        "llamacpp",
        "host-out-of-memory",
        LLAMA + "ggml/src/ggml-backend.cpp:2607",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 8589934592",
    ),
    (
        "llamacpp",
        "context-not-created",
        LLAMA + "common/common.cpp:1414",
        "failed to create context with model '/models/m.gguf'",
    ),
    (
        "llamacpp",
        "assertion",
        LLAMA + "common/speculative.cpp:1437",
        "common/speculative.cpp:1434: GGML_ASSERT(ctx_tgt && ctx_dft && "
        '"MTP requires ctx_tgt and ctx_dft to be set") failed',
    ),
    (
        "llamacpp",
        "model-not-loaded",
        "fail-mtp-without-layers.log",
        "0.00.059.635 E srv  llama_server: exiting due to model loading error",
    ),
    (
        "r9v",
        "container-name-taken",
        PODMAN,
        'Error: creating container storage: the container name "dup" is already in use by 9df29de5. You have to remove '
        "that container to be able to reuse that name: that name is already in use",
    ),
    ("r9v", "container-name-taken", R9V + "scripts/launch.sh", "Container already exists: frank-primary-r9v"),
    ("r9v", "image-unknown", PODMAN, "Error: sha256:2dac17a2aaaabbbb: image not known"),
    (
        "r9v",
        "setup-not-ready",
        "no public text; the words of the fleet's own pages",
        "R9V setup state /home/llm/r9v-state/q8xl/setup.json is not ready",
    ),
    (
        "r9v",
        "ple-not-ready",
        "vLLM's PLE offload worker, as stored publicly",
        "TimeoutError: PLE offload worker did not become ready within 600.0s.",
    ),
    (
        "r9v",
        "doctor-refused",
        R9V + "tools/profile_doctor.py",
        "FAIL expert-budget: static+cache [178, 212] exceed configured maxima [108, 198]",
    ),
    (
        "r9v",
        "setting-refused",
        R9V + "scripts/launch.sh",
        "R9V_PLE_RESIDENCY_MODE must be ssd, pinned, or bounded",
    ),
    (
        "r9v",
        "setting-refused",
        R9V + "tools/r9v.py",
        "placement.json: id 'a' does not match profile placement 'b'",
    ),
    ("r9v", "cache-geometry", FLEET, "RuntimeError: tiered expert cache: baseline mismatch"),
    ("r9v", "file-missing", R9V + "scripts/launch.sh", "Required file missing: /models/q8/ple.bin"),
    ("r9v", "file-missing", PODMAN, "Error: statfs /missing: no such file or directory"),
    (
        "r9v",
        "group-unknown-in-image",
        PODMAN,
        "Error: looking up supplemental groups for container 270df4: Unable to find group render: no matching entries "
        "in group file",
    ),
    (
        "r9v",
        "port-taken",
        "podman's rootless port forwarder",
        "Error: rootlessport listen tcp 0.0.0.0:7770: bind: address already in use",
    ),
    (
        "r9v",
        "projector-required",
        R9V + "weights_adapter/qwen4_exp.py",
        "RuntimeError: Qwen4Exp multimodal mode was enabled without an mmproj GGUF",
    ),
    (
        "r9v",
        "one-precision-per-projection",
        R9V + "weights_adapter/qwen4_exp.py",
        "ValueError: Qwen4Exp GGUF indexer Q/K projections use different quantization types at model.layers.0",
    ),
    (
        "r9v",
        "card-out-of-memory",
        "torch",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    ),
    ("r9v", "chat-template", "jinja2", "jinja2.exceptions.TemplateError: unsupported effort"),
    ("r9v", "engine-died", "vLLM", "(EngineCore_DP0 pid=555309) ERROR [core.py:1100] EngineCore failed to start."),
]
