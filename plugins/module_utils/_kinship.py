# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinship: are the files of a boot made for each other? Decided on their headers alone, before anything is loaded.

A header that is unsound, or a set of shards that is not complete, is refused by ``read_gguf`` already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, require_known_types
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf_errors import UnknownTensorType
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_adapter import check_adapter
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_drafter import (
    DEPENDENT,
    armed_type,
    check_drafter,
    check_mtp_head,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_projector import check_projector
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_relation import Relation, name_of, relation_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._kinship_vocab import KINSHIP_KEYS
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_weights import require_source

__all__ = ["KINSHIP_KEYS", "Relation", "check_kinship", "require_kinship"]

# What each of the files has to be.
_KINDS = {
    "model": "a model that stands alone",
    "projector": "a projector (general.architecture clip)",
    "drafter": "a model that drafts",
    "adapter": "an adapter (general.type adapter, adapter.type lora)",
}
_ONE_FILE = frozenset({"projector", "adapter"})  # whose loaders read no further shards


def check_kinship(
    model: Gguf,
    *,
    mmproj: Gguf | None = None,
    drafter: Gguf | None = None,
    lora: Gguf | None = None,
    spec_types: Collection[str] = (),
    runtime: str = "llama.cpp",
    runtime_types: Collection[int] | None = None,
    runtime_versions: Mapping[str, Collection[int]] | None = None,
) -> list[Relation]:
    """Every comparison between these files, the whole ones and the broken ones.

    All headers are read with their tensors and all their keys; ``model`` and ``drafter``, where there is a drafter,
    with ``whole=KINSHIP_KEYS`` besides (a TypeError otherwise). ``spec_types`` are the names in SPEC_TYPE, without
    none. ``runtime_types`` are the ids of tensor types that ``runtime``, a fork, knows beyond llama.cpp's,
    ``runtime_versions`` the versions that it takes of its own formats: ``{"prism.hadamard": [2]}`` is held against the
    files' key ``prism.hadamard.version``.

    A file of the wrong kind is compared no further. FleetError for a header without the numbers to compare.
    """
    files = {"model": model, "projector": mmproj, "drafter": drafter, "adapter": lora}
    given = {role: gguf for role, gguf in files.items() if gguf is not None}
    kinds = {role: _kind(role, gguf) for role, gguf in given.items()}
    relations: list[Relation] = []
    for role, gguf in given.items():
        relations += [kinds[role], _shards(role, gguf), _types(role, gguf, runtime, runtime_types or ())]
        relations += _versions(role, gguf, runtime, runtime_versions or {})
    if not kinds["model"].ok:
        return relations
    armed = armed_type(spec_types)
    if armed is None:
        relations += check_mtp_head(model)
    else:
        relations.append(_source(model, armed, drafter is not None))
    if mmproj is not None and kinds["projector"].ok:
        relations += check_projector(model, mmproj)
    if drafter is not None and kinds["drafter"].ok and armed != "draft-mtp":
        relations += check_drafter(model, drafter, spec_types)
    if lora is not None and kinds["adapter"].ok:
        relations += check_adapter(model, lora, mtp=armed == "draft-mtp")
    return relations


def require_kinship(
    model: Gguf,
    *,
    mmproj: Gguf | None = None,
    drafter: Gguf | None = None,
    lora: Gguf | None = None,
    spec_types: Collection[str] = (),
    runtime: str = "llama.cpp",
    runtime_types: Collection[int] | None = None,
    runtime_versions: Mapping[str, Collection[int]] | None = None,
) -> list[Relation]:
    """As :func:`check_kinship`; a FleetError for the first broken one, with all broken ones as ``kinship``."""
    relations = check_kinship(
        model,
        mmproj=mmproj,
        drafter=drafter,
        lora=lora,
        spec_types=spec_types,
        runtime=runtime,
        runtime_types=runtime_types,
        runtime_versions=runtime_versions,
    )
    broken = [relation for relation in relations if not relation.ok]
    if broken:
        first = broken[0]
        raise FleetError(
            first.what,
            expected=first.expected,
            found=first.found,
            remedy=first.remedy,
            kinship=[relation.as_dict() for relation in broken],
        )
    return relations


def _kind(role: str, gguf: Gguf) -> Relation:
    """Whether a file is what it is given for; ``general.type`` is missing in many older ones."""
    kind, architecture = gguf.metadata.get("general.type"), gguf.architecture
    found = f"general.architecture {architecture}" + (f", general.type {kind}" if kind else "")
    if role == "projector":
        ok = architecture == "clip"
    elif role == "adapter":
        lora = gguf.metadata.get("adapter.type")
        found += f", adapter.type {lora}" if lora else ""
        ok = kind == "adapter" and lora == "lora"
    else:
        ok = architecture != "clip" and kind in (None, "model") and (role == "drafter" or architecture not in DEPENDENT)
    return Relation(f"{role} kind", name_of(gguf), _KINDS[role], found, ok, f"Give {_KINDS[role]} as the {role}")


def _shards(role: str, gguf: Gguf) -> Relation:
    count = gguf.metadata.get("split.count") or 1
    expected = 1 if role in _ONE_FILE else count
    remedy = "Merge the shards into one file" if expected != count else "Put all shards into one folder"
    found = max(count, len(gguf.shards)) if role in _ONE_FILE else len(gguf.shards)
    return Relation(f"{role} files", f"the files of {name_of(gguf)}", expected, found, found == expected, remedy)


def _types(role: str, gguf: Gguf, runtime: str, also: Collection[int]) -> Relation:
    name, expected = name_of(gguf), f"types of {runtime}"
    try:
        require_known_types(name, gguf, also=also, runtime=runtime)
    except UnknownTensorType as exc:
        return Relation(f"{role} types", exc.what, exc.expected, exc.found, False, exc.remedy)
    found = ", ".join(gguf.types) or "no tensors"
    return Relation(f"{role} types", f"the tensor types of {name}", expected, found, True)


def _versions(role: str, gguf: Gguf, runtime: str, known: Mapping[str, Collection[int]]) -> list[Relation]:
    """The engine refuses a file of a later format than its own, by a key of the file, once it is loaded."""
    found = {name: gguf.metadata[f"{name}.version"] for name in known if f"{name}.version" in gguf.metadata}
    return [
        Relation(
            f"{role} {name}",
            f"{name_of(gguf)}: {name}.version",
            f"{' or '.join(map(str, sorted(known[name])))}, which runtime {runtime} takes",
            version,
            any(version == one for one in known[name]),  # the file may have an array there
            "Give the endpoint a runtime that takes this version, or the file of another one",
        )
        for name, version in found.items()
    ]


def _source(model: Gguf, armed: str, drafter: bool) -> Relation:
    def check() -> str:
        require_source(armed, model, model.block_count or 0, model.nextn_predict_layers, drafter=drafter)
        return "a drafter file" if drafter else f"{model.nextn_predict_layers} layers of an MTP head"

    expected = "what it drafts with"
    return relation_of("spec type", name_of(model), expected, check, f"Set SPEC_TYPE=none, or give {armed} its drafter")
