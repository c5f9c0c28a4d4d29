# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the keys of the inventory's dictionaries mean, for docs/reference/inventory.md."""

from __future__ import annotations

# What the schema's keys mean; the schema itself says what each may hold. A key without a text here is an error.
MEANINGS: dict[str, dict[str, str]] = {
    "RUNTIME": {
        "engine": "What it is",
        "version": "The version that the program must state when asked with `--version`",
        "commit": "The commit that it was built from, for the record",
        "source": "Where it comes from; see below",
        "cmake": "CMake options, name to value",
        "targets": "CMake targets to build; `llama-server` serves, `llama-fit-params` is asked for a second opinion",
        "ggml_types": "Ids of tensor types that it knows, as a fork may, beside those of llama.cpp",
    },
    "SOURCES": {
        "urls": "`file://`, `http://` or `https://` URLs, in order of preference",
        "sha256": "The digest",
        "sha256_prefix": "The beginning of the digest, where no more is known",
        "subdir": "The folder that holds `CMakeLists.txt`; a sole top folder, as archives have it, is not named",
        "url": "The repository",
        "commit": "The commit; a build needs all 40 digits",
        "path": "The source tree on the host, or the installed runtime's folder or `llama-server`",
        "image": "The container image",
        "checkout": "The fork's checkout on the host",
    },
    "PAYLOAD": {"dir": "The folder on the host", "files": "The files; see below"},
    "FILE": {
        "name": "Its name in `dir`",
        "role": "What the endpoint loads it as",
        "bytes": "Its exact size",
        "sha256": "Its digest; this or `sha256_prefix`",
        "sha256_prefix": "The beginning of its digest, where no more is known",
        "urls": "Where to get it, in order of preference; none for a file that is there already",
    },
    "ENDPOINT": {
        "engine": "What serves it",
        "state": "That it is to be there",
        "active": "Whether it is to be deployed (default true); one active endpoint for each port and each card",
        "runtime": "Its entry in `llm_runtimes`",
        "payload": "Its entry in `llm_payloads`",
        "user": "Who it runs as (default `llm`)",
        "env": "The lines of its env file; see [env keys](env-keys.md)",
        "rungs": "Named sets of env lines to fall back to",
        "cards": "The cards that it uses, in the order of the engine's devices",
        "client": "What its clients were promised; see below",
        "deadline_s": "Seconds from the start until `/health` must answer 200 (default 300)",
        "drop_ins": "Paths of the unit's drop-ins that are wanted; any other is refused",
        "probes": "What it must be seen to do beside what follows from `env` and `client`; see below",
        "api_key_file": "A file of root's on the host with the API key, which systemd hands to the server alone",
        "keep_eras": "How many eras to keep (default 10)",
        "measured": "Memory figures of boots, which hold for one shape each; see below",
    },
    "MEASURED": {
        "name": "What the figures are called where they are used",
        "runtime": "The runtime of that boot (default: the endpoint's)",
        "payload": "The payload of that boot (default: the endpoint's)",
        "env": "The env lines of that boot that differ from the endpoint's",
        "cards": "By card, or `host`: `compute_mib`, `draft_compute_mib`, `projector_compute_mib`, `driver_mib` or, "
        "alone, `total_mib`",
    },
    "CLIENT": {
        "context_window": "Tokens that one conversation may have; must equal the window of a slot",
        "max_tokens": "The most tokens that a client asks for",
        "input": "What a client may send, such as `text` and `image`",
        "reasoning_field": "The field of an answer that holds the thinking",
        "reasoning_efforts": "The efforts that the chat template takes",
        "sampling": "What a client sends as sampling",
        "rungs": "The window on each rung that has a smaller one",
    },
    "PROBES": {
        "capabilities": "What it can do and the env does not tell, such as `tools`",
        "without": "What is not asked of it although the env or the client tells it",
        "max_tokens": "The most tokens that an answer may take; thinking counts (default 64)",
        "larger_max_tokens": "The same where thinking must fit in, and for the one retry of `chat` (default 1024)",
        "timeout_s": "Seconds until a whole answer must be there (default 120)",
        "acceptance": "The least shares of drafted tokens that are accepted; see below",
        "adapter": "A prompt that the adapter answers otherwise; see below",
        "custom": "Probes of your own; see below",
    },
    "ACCEPTANCE": {
        "drafting": "Of a drafter, in each slot (default 0.1)",
        "ngram": "Of n-grams, on text that comes again (default 0.5)",
    },
    "ADAPTER": {
        "prompt": "What to ask, at temperature 0",
        "marker": "Words that the answer holds as served, and not with the adapter at scale 0",
        "without": "Words that the answer holds with the adapter at scale 0",
    },
    "CUSTOM": {
        "name": "Its name; in results it is `custom:NAME`",
        "body": "The chat request; `model`, `temperature: 0` and `max_tokens` are added where it lacks them",
        "expect": "JMESPath on the answer, one or several; what is false, null or empty fails",
        "max_tokens": "The most tokens of the answer (default the probes' `max_tokens`)",
        "timeout_s": "Seconds until the answer must be there (default the probes' `timeout_s`)",
    },
    "CARD": {
        "vendor": "Who made it",
        "arch": "Its architecture, such as `sm_86` or `gfx1201`",
        "pci": "Its PCI address; this or `uuid`",
        "uuid": "Its UUID",
        "index": "Its index to the vendor's driver",
        "total_mib": "Its memory in MiB",
        "addressable_mib": "What the driver leaves of that",
        "floor_mib": "Memory that must stay free",
        "shared": "Whether several active endpoints may use it",
    },
}
