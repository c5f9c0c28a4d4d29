# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure messages of drivers, libraries, systemd and podman, which any engine's log may hold.

Rows are (name, pattern, meaning, remedy[, pattern that another line must match]); a pattern is tried on one line at a
time and repeats nothing inside a repeat. CAUSES stand before CONSEQUENCES in a diagnosis, each in the given order.
"""

from __future__ import annotations

__all__ = ["CAUSES", "CONSEQUENCES"]

CAUSES: tuple[tuple[str, ...], ...] = (
    (
        "windows-line-ends",
        r"env: .{0,20}bash\\r|\$'\\r': command not found|bad interpreter: .{0,100}\^M",
        "a script has Windows line ends, so that the kernel looks for an interpreter of another name",
        "Run site.yml, which writes the launcher anew; keep text files with LF line ends (git: core.autocrlf=input)",
    ),
    (
        "program-unrunnable",
        r"Exec format error|cannot execute binary file",
        "the program was made for another machine, or its file is damaged",
        "Run site.yml with --tags runtime, which builds or loads it anew; an adopted build must be of this machine's "
        "architecture",
    ),
    (
        "sdma-page-fault",
        r"(ROCm|HIP) error: an illegal memory access|hipErrorIllegalAddress"
        r"|UTCL2 client ID: SDMA|SDMA\d UTCL2|Memory access fault by GPU node",
        "the GPU faulted while it read or copied memory; with a model split over two cards that is the copy at the "
        "border between them. It is no lack of memory, and more headroom does not prevent it",
        "See journalctl -k for amdgpu lines of this minute. Move the border (TENSOR_SPLIT) and prove the new split by "
        "requests, not by free memory",
    ),
    (
        "nvidia-fault",
        r"CUDA error: an illegal memory access|NVRM: Xid",
        "the NVIDIA driver reported a fault of the card or an access outside its memory",
        "Read the Xid number in journalctl -k; test the same shape without the drafter, then another build",
    ),
    (
        "tensile-unreadable",
        r"(rocBLAS|rocblaslt|hipBLASLt) error: (Cannot read|Could not load)|Cannot read .{0,300}TensileLibrary",
        "the GPU library finds no compiled kernels for this card at the depth below the program where it looks: the "
        "bundle was flattened, or lacks this architecture. The load does not notice, the first request does",
        "Run site.yml with --tags runtime: it builds the bundle anew and checks lib/rocblas/library and "
        "lib/hipblaslt/library",
    ),
    (
        "wrong-architecture",
        r"invalid device function|no kernel image is available|hipErrorNoBinaryForGpu|hipErrorInvalidDeviceFunction"
        r"|hipErrorInvalidImage|invalid architecture ID",
        "the runtime was not compiled for this card's architecture, or an undeclared one (an integrated GPU) is used",
        "Add the card's architecture to the runtime's cmake options and build; hide other GPUs with "
        "HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES",
    ),
    (
        "device-forbidden",
        r"/dev/(kfd|dri|nvidia)\S{0,40}.{0,80}([Pp]ermission denied|Operation not permitted)",
        "the unit's user may not open the GPU's device node",
        "Put the user into the groups render and video (host_groups), and allow the device where the unit has a device "
        "policy",
    ),
    (
        "device-node-missing",
        r"stat /dev/(kfd|dri|nvidia)\S{0,60}: no such file|FAIL device-node: missing|unresolvable CDI devices",
        "the GPU's device node is not there: the driver is not loaded, or has not made its nodes",
        "Load the driver: modprobe amdgpu; for NVIDIA nvidia-modprobe -u -c=0, and nvidia-ctk cdi generate for "
        "containers",
    ),
    (
        "no-device",
        r"hipErrorNoDevice|no (CUDA|ROCm)-capable device|No (CUDA|HIP) GPUs are available"
        r"|no usable GPU found|(CUDA|ROCm|HIP) error: invalid device ordinal|hipErrorInvalidDevice\b",
        "the process sees no card, or not the one it was told to use",
        "Compare HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES and DEVICE with rocm-smi or nvidia-smi -L; for NVIDIA run "
        "nvidia-modprobe -u -c=0",
    ),
    (
        "driver-too-old",
        r"CUDA driver version is insufficient|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|Driver/library version mismatch",
        "the kernel driver is older than the libraries that the runtime was built with, or was updated without a "
        "reboot",
        "Reboot after a driver update, or build the runtime with the toolkit that this driver supports",
    ),
    (
        "collective-without-atomics",
        r"hipErrorIllegalState",
        "a collective between the cards was started, and one of them sits behind a slot without PCIe atomics",
        "Serve with SPLIT_MODE=layer, which only copies; tensor and pipeline parallelism need the atomics",
    ),
    (
        "library-missing",
        r"error while loading shared libraries|version `\S{1,60}' not found|symbol lookup error|undefined symbol",
        "the program was linked against a library that this host lacks or has in another version",
        "Run site.yml with --tags runtime; an adopted build must bring its own libraries beside the program",
    ),
    (
        "oom-killed",
        r"killed by the OOM killer|Failed with result 'oom-kill'|Out of memory: Killed process",
        "the kernel killed the process because the host, or the unit's memory limit, had no memory left",
        "Hold the boot against the host's memory (fit.yml): lower CACHE_RAM, CTX_SIZE or the layers kept in host "
        "memory, and see what else runs",
    ),
)

CONSEQUENCES: tuple[tuple[str, ...], ...] = (
    (
        "memlock",
        r"failed to mlock|RLIMIT_MEMLOCK",
        "the process may not lock as much memory as it needs to stage transfers to the card",
        "The unit must say LimitMEMLOCK=infinity; a shell's own limit is no measure. In rootless podman raise the "
        "user's limit",
    ),
    (
        "card-unusable",
        r"failed to initialize (CUDA|ROCm)",
        "the engine could not set up the GPU backend and goes on without it",
        "See the words after the colon; then the driver (journalctl -k), the device nodes and the visible devices",
    ),
    (
        "segfault",
        r"code=(killed|dumped), status=11/SEGV",
        "the engine crashed. Known causes are a build for a sister architecture, a visible integrated GPU, half a set "
        "of drafting keys, and an adapter on the embedding",
        "Try SPEC_TYPE=none and LORA_FILE= (one at a time); check the runtime's architecture; "
        "coredumpctl info shows the stack",
    ),
)
