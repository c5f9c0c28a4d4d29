# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory's dictionaries may hold: the keys of each, in words and as tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import CAPABILITIES
from ansible_collections.dank.llm_fleet.plugins.module_utils._unknown import UNKNOWN

__all__ = [
    "ACCEPTANCE",
    "ADAPTER",
    "CARD",
    "CLIENT",
    "CUSTOM",
    "ENDPOINT",
    "FILE",
    "LOCK",
    "MEASURED",
    "PATCH",
    "PAYLOAD",
    "PROBES",
    "PROOF",
    "QUALIFY",
    "REPLACES",
    "RUNTIME",
    "SETUP",
    "SOURCES",
    "TOOLKIT",
    "UNKNOWN",
    "Field",
    "check_digest",
    "check_keys",
    "source_fields",
]

_HEX64 = re.compile(r"[0-9a-fA-F]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-fA-F]{8,63}")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_ARCH = re.compile(r"gfx[0-9a-f]{3,5}|sm_[0-9]{2,3}")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Field:
    """A key of a dictionary: what it may hold, in words and as a test, and whether it must be there."""

    expected: str
    test: Callable[[Any], bool]
    required: bool = False


def _is_int(value: Any, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _text(required: bool = False) -> Field:
    return Field("text", lambda value: isinstance(value, str) and value != "", required)


def _count(required: bool = False, low: int = 1, unknown: bool = False) -> Field:
    words = f"a whole number of at least {low}" + (f", or {UNKNOWN}" if unknown else "")
    return Field(words, lambda value: _is_int(value, low) or (unknown and value == UNKNOWN), required)


def _choice(*choices: str, required: bool = False) -> Field:
    return Field("one of " + ", ".join(choices), lambda value: value in choices, required)


def _like(pattern: re.Pattern[str], expected: str, required: bool = False, unknown: bool = False) -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, str) and bool(pattern.fullmatch(value) or (unknown and value == UNKNOWN))

    return Field(expected + (f", or {UNKNOWN}" if unknown else ""), test, required)


def _path(required: bool = False) -> Field:
    return Field("an absolute path", lambda value: isinstance(value, str) and value.startswith("/"), required)


def _texts(required: bool = False) -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)

    return Field("a list of texts", test, required)


def _some(choices: tuple[str, ...]) -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(item in choices for item in value)

    return Field("a list of " + ", ".join(choices), test)


def _one_or_more(required: bool = False) -> Field:
    def test(value: Any) -> bool:
        items = value if isinstance(value, (list, tuple)) else [value]
        return bool(items) and all(isinstance(item, str) and item != "" for item in items)

    return Field("text, or a list of texts", test, required)


def _share() -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1

    return Field("a number from 0 to 1", test)


def _flag() -> Field:
    return Field("true or false", lambda value: isinstance(value, bool))


def _table(required: bool = False) -> Field:
    return Field("a dictionary", lambda value: isinstance(value, Mapping), required)


def _numbers() -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(_is_int(item) for item in value)

    return Field("a list of whole numbers", test)


def _can() -> Field:
    def test(value: Any) -> bool:
        versions = value.get("adapter_versions", {}) if isinstance(value, Mapping) else None
        return isinstance(versions, Mapping) and all(_numbers().test(known) for known in versions.values())

    return Field("a dictionary, whose adapter_versions has a list of whole numbers for each name", test)


def _items(required: bool = False) -> Field:
    def test(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, Mapping) for item in value)

    return Field("a list of dictionaries, not empty", test, required)


_SHA = _like(_HEX64, "64 hexadecimal digits (fewer belong in sha256_prefix)", unknown=True)
_SHA_PREFIX = _like(_PREFIX, "8 to 63 hexadecimal digits (64 belong in sha256)")

RUNTIME = {
    "engine": _choice(*_envspec.ENGINES, required=True),
    "version": _text(),
    "commit": _like(_COMMIT, "7 to 40 hexadecimal digits"),
    "source": _table(required=True),
    "cmake": _table(),
    "targets": _texts(),
    "ggml_types": _numbers(),
    "state": _choice("present", "absent"),
    "arch": _like(_ARCH, "one card's architecture, as gfx1201 or sm_86"),
    "toolkit": _table(),
    "proof": _table(),
    "can": _can(),
}
TOOLKIT = {"path": _path(required=True), "libs": _texts()}
PROOF = {
    "rpath": _text(),
    "system_libs": _texts(),
    "driver_libs": _texts(),
    "forbidden": _texts(),
    "device_code": _texts(),
    "cmake": _table(),
    "without_keys": _texts(),
}
PATCH = {
    "url": _text(required=True),
    "sha256": _like(_SHA256, "64 hexadecimal digits in small letters", required=True),
}
SOURCES = {
    "archive": {
        "urls": _texts(required=True),
        "sha256": _SHA,
        "sha256_prefix": _SHA_PREFIX,
        "subdir": _text(),
        "patches": _items(),
    },
    "git": {
        "url": _text(required=True),
        "commit": _like(_COMMIT, "7 to 40 hexadecimal digits", required=True),
        "tag": _text(),
        "mirrors": _texts(),
        "subdir": _text(),
        "patches": _items(),
    },
    "path": {"path": _path(required=True), "subdir": _text()},
    "installed": {"path": _path(required=True)},
    "bundle": {
        "image": _text(required=True),
        "checkout": _path(),
        "sha256": _SHA,
        "sha256_prefix": _SHA_PREFIX,
        "url": _text(),
        "commit": _like(_COMMIT, "7 to 40 hexadecimal digits"),
        "includes": _texts(),
        "archive": _path(),
        "archive_sha256": _SHA,
    },
}
PAYLOAD = {"dir": _path(required=True), "files": _items(required=True)}
FILE = {
    "name": _like(re.compile(r"[^./][^/\x00-\x1f]*"), "a plain file name", required=True, unknown=True),
    "role": _choice("model", "mmproj", "lora", "drafter", "shard", required=True),
    "bytes": _count(unknown=True),
    "sha256": _SHA,
    "sha256_prefix": _SHA_PREFIX,
    "urls": _texts(),
    "repo": _like(re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?"), "a repository of the hub as owner/name"),
    "revision": _text(),
    "file": _text(),
}
LOCK = {
    "bytes": _count(required=True),
    "sha256": _like(_SHA256, "64 hexadecimal digits in small letters", required=True),
    "revision": _like(re.compile(r"[0-9a-f]{40}"), "a commit, 40 hexadecimal digits", required=True),
    "of": _text(required=True),
}
ENDPOINT = {
    "engine": _choice(*_envspec.ENGINES, required=True),
    "state": _choice("present"),
    "active": _flag(),
    "runtime": _text(required=True),
    "payload": _text(required=True),
    "user": _like(re.compile(r"[a-z_][a-z0-9_-]*"), "a login name"),
    "env": _table(required=True),
    "rungs": _table(),
    "cards": _texts(),
    "client": _table(),
    "deadline_s": _count(),
    "drop_ins": _texts(),
    "replaces": _table(),
    "probes": _table(),
    "setups": _table(),
    "measured": _items(),
    "api_key_file": _path(),
    "keep_eras": _count(),
}
MEASURED = {
    "name": _text(),
    "runtime": _text(),
    "payload": _text(),
    "env": _table(),
    "cards": _table(required=True),
}
CLIENT = {
    "context_window": _count(required=True),
    "max_tokens": _count(),
    "input": _texts(),
    "reasoning_field": _text(),
    "reasoning_efforts": _texts(),
    "sampling": _table(),
    "rungs": _table(),
}
SETUP = {
    "file": _path(required=True),
    "ple_bytes": _count(),
    "headroom_gib": Field("a number of GiB", lambda value: isinstance(value, (int, float)) and not value < 0),
    "keys": _texts(),
    "qualify": _table(),
}
QUALIFY = {
    "profile": _text(required=True),
    "model_dir": _path(required=True),
    "ple_path": _path(),
    "port": Field("a TCP port", lambda value: _is_int(value, 1) and value < 65536, required=True),
    "container": _like(re.compile(r"[a-z0-9][a-z0-9._-]*"), "a container's name", required=True),
    "state_dir": _path(),
    "arguments": _texts(),
    "battery": _some(CAPABILITIES),
}
REPLACES = {
    "slug": _like(re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*"), "letters, digits, _ . and -"),
    "user": _like(re.compile(r"[a-z_][a-z0-9_-]*"), "a login name", required=True),
    "scope": _choice("system", "user"),
    "units": _texts(),
    "quadlets": _texts(),
    "drop_ins": _texts(),
    "files": _texts(),
}
PROBES = {
    "capabilities": _some(CAPABILITIES),
    "without": _some(tuple(name for name in CAPABILITIES if name not in ("health", "chat"))),
    "max_tokens": _count(),
    "larger_max_tokens": _count(),
    "timeout_s": _count(),
    "acceptance": _table(),
    "adapter": _table(),
    "custom": _items(),
}
ACCEPTANCE = {"drafting": _share(), "ngram": _share()}
ADAPTER = {"prompt": _text(required=True), "marker": _text(required=True), "without": _text()}
CUSTOM = {
    "name": _like(re.compile(r"[a-z0-9][a-z0-9_-]*"), "small letters, digits and dashes", required=True),
    "body": _table(required=True),
    "expect": _one_or_more(required=True),
    "max_tokens": _count(),
    "timeout_s": _count(),
}
CARD = {
    "vendor": _choice("amd", "nvidia", required=True),
    "arch": _text(required=True),
    "pci": _like(_PCI, "a PCI address such as 0000:03:00.0", unknown=True),
    "uuid": _text(),
    "index": _count(required=True, low=0),
    "total_mib": _count(required=True),
    "addressable_mib": _count(),
    "floor_mib": _count(required=True, low=0),
    "shared": _flag(),
}


def check_keys(where: str, given: Any, fields: Mapping[str, Field]) -> list[str]:
    """Unknown keys, missing keys and unsound values of one dictionary."""
    if not isinstance(given, Mapping):
        return [f"{where} is {type(given).__name__}; expected a dictionary."]
    problems = []
    for key, value in given.items():
        if key not in fields:
            guess = _envspec.closest(str(key), list(fields))
            hint = f"Did you mean {guess}?" if guess else f"Known: {', '.join(fields)}."
            problems.append(f"{where}.{key} is no key of this dictionary. {hint}")
        elif not fields[key].test(value):
            problems.append(f"{where}.{key} is {value!r}; expected {fields[key].expected}.")
    problems += [
        f"{where}.{key} is missing; expected {wanted.expected}."
        for key, wanted in fields.items()
        if wanted.required and key not in given
    ]
    return problems


def check_digest(where: str, given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(problems, warnings) of the sha256 of a file, an archive or an image."""
    if "sha256" in given and "sha256_prefix" in given:
        return [f"{where} has sha256 and sha256_prefix. Keep sha256."], []
    if "sha256" not in given and "sha256_prefix" not in given:
        return [f"{where} has no digest. Add sha256 (64 digits), sha256_prefix, or sha256: {UNKNOWN}."], []
    if given.get("sha256") == UNKNOWN:
        return [], [f"{where}: sha256 is unknown, so nothing can be fetched or adopted until it is declared"]
    if "sha256_prefix" in given:
        return [], [f"{where}: of the sha256 only a prefix is declared"]
    return [], []


def source_fields(kind: str) -> dict[str, Field]:
    """The keys of a runtime's source of this kind."""
    return {"kind": _choice(*SOURCES, required=True), **SOURCES[kind]}
