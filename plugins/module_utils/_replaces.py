# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint's deploy retires: its declaration as a retirement, and whom that frees the endpoint's names from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import service_name
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import RetireSpec

__all__ = ["frees", "leaving_units", "spec_of"]

_LISTS = ("units", "quadlets", "drop_ins", "files")


def spec_of(declared: Declared, paths: Paths) -> RetireSpec | None:
    """The retirement that ``replaces`` asks for (its slug is the endpoint's name by default); None for none."""
    told: Mapping[str, Any] = declared.replaces
    if not any(told.get(key) for key in _LISTS):
        return None
    return RetireSpec(
        slug=str(told.get("slug") or declared.name),
        user=str(told.get("user") or declared.user),
        scope=str(told.get("scope") or "system"),
        units=tuple(told.get("units") or ()),
        quadlets=tuple(told.get("quadlets") or ()),
        drop_ins=tuple(told.get("drop_ins") or ()),
        files=tuple(told.get("files") or ()),
        own=(paths.unit_file, paths.env_file),
    )


def leaving_units(spec: RetireSpec | None) -> set[str]:
    """The names of the services that a retirement ends, without their manager's."""
    if spec is None:
        return set()
    units = {name if "." in name else f"{name}.service" for name in spec.units}
    return units | {service_name(os.path.basename(name)) for name in spec.quadlets}


def frees(spec: RetireSpec | None, paths: Paths) -> set[str]:
    """Which of the endpoint's own files a retirement moves out of the way: paths."""
    if spec is None:
        return set()
    own = {paths.unit_file} if paths.unit in leaving_units(spec) else set()
    return own | ({paths.env_file} & set(spec.files))
