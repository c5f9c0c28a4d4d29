# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proofs of a runtime that is there already: a named one by its build.json, or any folder by what is declared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof import (
    SERVER,
    build_id_of,
    prove,
    require_proofs,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect, parse_expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import read_record

__all__ = ["ask_anew", "expect_of", "find_server", "home_of"]


def ask_anew(given: Mapping[str, Any]) -> dict[str, Any]:
    """The module's result; a FleetError for the first red proof, with all of them."""
    if given.get("name"):
        root, server, record = _named(given["prefix"], given["name"])
        expect = expect_of(record)
    else:
        server = find_server(given["path"])
        root, record = home_of(server, given["path"]), {}
        expect = parse_expect("runtime_info", given.get("arch") or "", given.get("proof") or {}, built=False)
        expect = replace(expect, version=given.get("version") or "")
    checks = prove(root, server, expect, foreign=record.get("from_toolkit", []), device=given["device"])
    require_proofs(f"runtime {given.get('name') or root}", checks)
    states = next(check.found for check in checks if check.check == "version")
    return {
        "proofs": [check.as_dict() for check in checks],
        "runtime": {
            "name": given.get("name") or "",
            "path": root,
            "server_bin": server,
            "digest": record.get("digest", ""),
            "states": states,
            "build_id": build_id_of(server),
            "can": record.get("can", {}),
        },
    }


def _named(prefix: str, name: str) -> tuple[str, str, dict[str, Any]]:
    """(folder, program, build.json) of a linked runtime; an adopted one lies where it was installed."""
    link = os.path.join(prefix, name)
    record = read_record(os.path.realpath(link)) if os.path.islink(link) else None
    if record is None or "expect" not in record:
        raise FleetError(
            f"runtime {name} is not on this host",
            expected=f"{link}, linked to a tree with its proofs in build.json",
            found="no such link" if not os.path.islink(link) else f"{os.path.realpath(link)} without them",
            remedy="Run site.yml with --tags runtime, or name a folder with path",
        )
    server = str(record["server_bin"])
    origin = os.path.join(link, "origin")
    root = home_of(server, os.path.realpath(origin)) if os.path.islink(origin) else os.path.realpath(link)
    if not os.path.isfile(server):
        raise FleetError(
            f"the program of runtime {name} is gone",
            expected=server,
            found="nothing there",
            remedy="Run site.yml with --tags runtime: it is built or adopted anew",
        )
    return root, server, record


def expect_of(record: Mapping[str, Any]) -> Expect:
    """The expectations that a build.json keeps."""
    told = record["expect"]
    kept: dict[str, Any] = {
        one.name: tuple(told[one.name]) if isinstance(told[one.name], list) else told[one.name]
        for one in fields(Expect)
        if one.name in told
    }
    # The declared version, or else what it stated when it was proven.
    return Expect(**{**kept, "version": str(record.get("version") or "")})


def find_server(path: str) -> str:
    """The server of a folder, or the program itself."""
    for candidate in (path, os.path.join(path, "bin", SERVER), os.path.join(path, SERVER)):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.realpath(candidate)
    raise FleetError(
        f"{path} is no runtime",
        expected=f"the program {SERVER}, or a folder with it, or with it in bin/",
        found="nothing of that name that can be executed" if os.path.lexists(path) else "nothing at this path",
        remedy="Name the folder of the build, or the program",
    )


def home_of(server: str, path: str) -> str:
    """The runtime's folder: ``path`` itself, or of a program the folder above ``bin``, else the program's own."""
    real = os.path.realpath(path)
    if os.path.isdir(real):
        return real
    folder = os.path.dirname(os.path.realpath(server))
    return os.path.dirname(folder) if os.path.basename(folder) == "bin" else folder
