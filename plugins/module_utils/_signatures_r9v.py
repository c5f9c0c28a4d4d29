# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure messages of the R9V fork of vLLM, its launcher and podman; see ``_signatures_host`` for the form of a row."""

from __future__ import annotations

__all__ = ["CAUSES", "CONSEQUENCES"]

CAUSES: tuple[tuple[str, ...], ...] = (
    (
        "container-name-taken",
        r"Container already exists: |container name \"?\S{1,80} is already in use",
        "a container of this name is left from an earlier start, and the launcher replaces none",
        "podman ps -a --filter name=NAME shows it; podman rm it by name once it is stopped",
    ),
    (
        "image-unknown",
        r"image not known|No such image: |manifest unknown",
        "podman has no image of that digest; a bundle's manifest digest is not the image's own id",
        "Run site.yml with --tags runtime, which loads the bundle and notes both digests",
    ),
    (
        "setup-not-ready",
        r"(setup|state)\S{0,200} .{0,60}not ready|\"ready\": false",
        "the setup state that R9V_STATE_FILE names has not passed its qualification",
        "Finish r9v setup for that state folder, or set R9V_STATE_FILE to one that is ready",
    ),
    (
        "ple-not-ready",
        r"PLE offload worker did not become ready",
        "pinning the embedding table took longer than the engine waits; the page cache makes it slow after other work",
        "Raise R9V_PLE_READY_TIMEOUT (1800) and the unit's deadline_s with it, and start again on a quiet host",
    ),
    (
        "doctor-refused",
        r"^FAIL [a-z0-9-]{1,40}: ",
        "the fork's own check of the host refused to start; a second instance on the cards is one reason",
        "Do what its FIX line says",
    ),
    (
        "setting-refused",
        r"R9V_[A-Z0-9_]{1,60} (must|is unsupported|is not readable|needs)|Set R9V_[A-Z0-9_]{1,60} to"
        r"|does not match profile|Profile not found: |unknown profile '",
        "the launcher refuses a setting, or the profile and the state are not of one kind",
        "Correct the key that the line names in the endpoint's env",
    ),
    (
        "cache-geometry",
        r"baseline mismatch",
        "the expert cache's layout is not the one that this profile was qualified with",
        "Set R9V_FULL_MUTABLE_CACHE=0, which comes after the overlay's own value",
    ),
    (
        "file-missing",
        r"Required file missing: |statfs \S{1,300}: no such file or directory|Development \S{1,60} missing: ",
        "a file or folder that the launcher needs or mounts is not there; podman makes no missing folder",
        "Run site.yml with --tags payload, or correct the path in the env",
    ),
    (
        "group-unknown-in-image",
        r"Unable to find group \S{1,40}: no matching entries in group file",
        "the image has no group of that name; names are looked up inside it",
        "Give the group's number, or keep-groups",
    ),
    (
        "port-taken",
        r"bind: address already in use|\[Errno 98\]|proxy listen tcp",
        "another process or container holds the published port",
        "Find it with ss -ltnp and podman ps, stop it by its id, or set another R9V_HOST_PORT",
    ),
    (
        "projector-required",
        r"multimodal mode was enabled without an mmproj|mmproj loading requires",
        "the payload's projector and the multimodal switch do not agree",
        "Declare the projector, or turn the multimodal switch off",
    ),
    (
        "one-precision-per-projection",
        r"use different quantization types|has no matching (down|K) projection|requires one precision",
        "the payload quantizes parts that this fork fuses, and they differ",
        "Set R9V_DEV_QWEN4_EXP_ADAPTER_PY to the overlay that dequantizes them",
    ),
    (
        "card-out-of-memory",
        r"(HIP|CUDA) out of memory|torch\.(cuda\.)?OutOfMemoryError|No available memory for the cache blocks"
        r"|error: out of memory",
        "a card has no memory left; a prefill chunk beyond the qualified size fails at the first request, not at load",
        "Go back to the qualified chunk, slots and context, and see what else is on the card",
    ),
    (
        "chat-template",
        r"jinja2\.exceptions\.|TemplateError|raise_exception",
        "the chat template refused a request or cannot be read",
        "Map the clients' efforts to those that the template names; see R9V_CHAT_TEMPLATE_FILE",
    ),
)

CONSEQUENCES: tuple[tuple[str, ...], ...] = (
    (
        "engine-died",
        r"EngineCore (failed to start|encountered a fatal error)|EngineDeadError|Engine core initialization failed",
        "the engine's process ended while its HTTP server went on; /health may still answer",
        "Read the first error above it in the container's log (podman logs)",
    ),
)
