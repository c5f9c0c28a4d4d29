# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the docker shim, a program without a suffix, as a module; and a fake podman for it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SHIM = Path(__file__).resolve().parents[2] / "roles" / "r9v" / "files" / "docker"


def load() -> ModuleType:
    """The shim as a module."""
    if "docker_shim" not in sys.modules:
        loader = importlib.machinery.SourceFileLoader("docker_shim", str(SHIM))
        spec = importlib.util.spec_from_loader("docker_shim", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["docker_shim"] = module
        before, sys.dont_write_bytecode = (
            sys.dont_write_bytecode,
            True,
        )  # it lies in a folder that roles are copied from
        try:
            loader.exec_module(module)
        finally:
            sys.dont_write_bytecode = before
    return sys.modules["docker_shim"]
