# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Libraries beside the standard one, loaded where they are used, so that a bare host can still be looked at."""

from __future__ import annotations

import importlib
import platform
import sys
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["load"]

_PACKAGES = {"requests": "python3-requests", "urllib3": "python3-urllib3", "jmespath": "python3-jmespath"}


def load(name: str) -> Any:
    """The library ``name``; a FleetError that names its Debian package where this Python lacks it."""
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        package = _PACKAGES[name.partition(".")[0]]
        raise FleetError(
            f"the Python library {name} is missing on {platform.node()}",
            expected=f"{name} for {sys.executable} (Debian package {package})",
            found=str(exc),
            remedy=f"Run site.yml, which installs it with the step host, or apt-get install {package}",
            package=package,
        ) from exc
