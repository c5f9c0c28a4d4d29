# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a runtime is declared to be, for the proofs of its build; and one proof's outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._runtime import RPATH

__all__ = ["Check", "Expect", "parse_expect"]

_ARCH = re.compile(r"gfx[0-9a-f]{3,5}|sm_[0-9]{2,3}")
# What every Debian host has of the C and C++ run time and of OpenSSL: taken from the system, never bundled.
_SYSTEM = (
    "linux-vdso.so.1",
    "ld-linux-*.so.?",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libresolv.so.2",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libgomp.so.1",
    "libatomic.so.1",
    "libssl.so.3",
    "libcrypto.so.3",
    "libz.so.1",
    "libzstd.so.1",
)
# What a card's driver brings: it may be missing where there is no card.
_DRIVER = {"sm_": ("libcuda.so.1", "libnvidia-ml.so.1")}
# Where a host's own toolkits lie; a bundle takes nothing from there, whatever the library is called.
_FORBIDDEN = ("/opt/rocm*",)
# Where rocBLAS and hipBLASLt look for their device code, below lib/.
_DEVICE_CODE = {"gfx": ("rocblas/library", "hipblaslt/library/{arch}")}
_KEYS = ("rpath", "system_libs", "driver_libs", "forbidden", "device_code", "cmake", "without_keys")


@dataclass(frozen=True)
class Check:
    """One proof: what was expected and found, and, for a red one, what to do about it."""

    check: str
    ok: bool
    expected: Any
    found: Any
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a result and for build.json."""
        return asdict(self)


@dataclass(frozen=True)
class Expect:
    """What a build is held against.

    ``version`` "" accepts any; ``arch`` "" is a build for the processor alone; ``rpath`` "" leaves search paths open.
    Library names and folders may have wildcards. ``device_code`` are folders below ``lib``. ``cmake`` maps an option
    to the value that CMakeCache.txt must have. ``without`` are env keys that no endpoint of this runtime may use.
    """

    version: str = ""
    arch: str = ""
    rpath: str = RPATH
    system: tuple[str, ...] = _SYSTEM
    driver: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = _FORBIDDEN
    device_code: tuple[str, ...] = ()
    cmake: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def parse_expect(where: str, arch: str, proof: Mapping[str, Any], *, built: bool) -> Expect:
    """The expectations of the runtime declared at ``where``; ``built`` says that we make it ourselves."""
    if arch and not _ARCH.fullmatch(arch):
        raise FleetError(f"{where}.arch", expected="one card's architecture, as gfx1201 or sm_86", found=arch)
    unknown = sorted(set(proof) - set(_KEYS))
    if unknown:
        guess = _envspec.closest(unknown[0], _KEYS)
        remedy = f"Did you mean {guess}" if guess else "Take it out"
        raise FleetError(
            f"{where}.proof.{unknown[0]} is no key", expected=", ".join(_KEYS), found=unknown[0], remedy=remedy
        )
    family = "gfx" if arch.startswith("gfx") else "sm_" if arch else ""
    without = tuple(proof.get("without_keys") or ())
    strange = [name for name in without if name not in _envspec.keys("llamacpp")]
    if strange:
        raise FleetError(f"{where}.proof.without_keys", expected="keys of the env schema", found=", ".join(strange))
    folders = proof.get("device_code")
    chosen = _DEVICE_CODE.get(family, ()) if folders is None else tuple(folders)
    return Expect(
        arch=arch,
        rpath=str(proof.get("rpath") or (RPATH if built else "")),
        system=(*_SYSTEM, *(proof.get("system_libs") or ())),
        driver=(*_DRIVER.get(family, ()), *(proof.get("driver_libs") or ())),
        forbidden=tuple(proof.get("forbidden") or _FORBIDDEN),
        device_code=tuple(folder.replace("{arch}", arch).strip("/") for folder in chosen),
        cmake={str(key): str(value) for key, value in (proof.get("cmake") or {}).items()},
        without=without,
    )
