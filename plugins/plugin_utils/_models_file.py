# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A harness's models.yml with the fleet's providers in it; everything else of the file stays as its owner wrote it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

__all__ = ["merged"]


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def merged(existing: str, providers: Mapping[str, Any], path: str = "models.yml") -> str:
    """``existing`` (the file's text, "" where there is none) with these providers in place of those of the same name.

    Comments and other providers are kept, and an unchanged provider leaves the text as it is.
    """
    yaml = _yaml()
    try:
        tree = yaml.load(existing) if existing.strip() else CommentedMap()
    except YAMLError as exc:
        raise FleetError(f"{path} cannot be read", expected="YAML", found=str(exc).replace("\n", " ")[:300]) from exc
    if not isinstance(tree, CommentedMap) or not isinstance(tree.get("providers", {}), dict):
        raise FleetError(
            f"{path} is none of the harness's", expected="a mapping with `providers`", found="something else"
        )
    here = tree.setdefault("providers", CommentedMap())
    wanted = {name: dict(given) for name, given in providers.items() if here.get(name) != given}
    if not wanted and existing.strip():
        return existing
    for name, given in wanted.items():
        here[name] = given
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()
