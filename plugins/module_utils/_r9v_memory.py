# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Will a start of an R9V profile find the memory and the time that it needs? Told before anything is stopped.

Each check has its formula and where it is from; the reference page's figures are the tests of all of them. Nothing is
measured here but MemAvailable: every other number is the profile's, or a measurement that is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = [
    "ENGINE_TIMEOUT_S",
    "PINNED_RESERVE",
    "REGISTRATIONS",
    "Check",
    "Host",
    "Registration",
    "check_compaction",
    "check_doctor",
    "check_kv",
    "check_pin",
    "check_registration",
    "check_repin",
    "compaction",
    "kv_bytes",
    "plan",
    "registration_s",
    "unchecked",
    "whole",
]

PINNED_RESERVE = 16 << 30  # VLLM_PLE_PINNED_RESERVE_BYTES where the profile says nothing
ENGINE_TIMEOUT_S = 600  # VLLM_PLE_OFFLOAD_READY_TIMEOUT where the profile says nothing


@dataclass(frozen=True)
class Registration:
    """How long it once took to register (page-lock) a table."""

    bytes: int
    seconds: float


# The reference page: the pinning proof of the qualification, and a start after a bench's end (page cache churn).
REGISTRATIONS = (Registration(54_400_261_120, 446), Registration(54_400_261_120, 740))


@dataclass(frozen=True)
class Host:
    """Bytes: MemAvailable now, what stopping the incumbent gives back, and the experts that will be pinned beside the
    table."""

    available: int
    released: int = 0
    cold_experts: int = 0

    @property
    def free(self) -> int:
        """What a start finds once the incumbent is stopped."""
        return self.available + self.released


@dataclass(frozen=True)
class Check:
    """One comparison; ``remedy`` is "" where it holds."""

    name: str
    holds: bool
    expected: str
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        return asdict(self)

    @property
    def words(self) -> str:
        """One line, as an error's."""
        return f"{self.name}: expected {self.expected}; found {self.found}. {self.remedy}."


def _check(name: str, holds: bool, expected: str, found: str, remedy: str) -> Check:
    return Check(name, holds, expected, found, "" if holds else remedy)


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"


def check_pin(ple: int, reserve: int, host: Host) -> Check:
    """The engine registers only where MemAvailable holds table and reserve together (the fork's PLE worker, before
    hipHostRegister), when the cold experts are pinned already."""
    need = host.cold_experts + ple + reserve
    parts = [f"table {ple:,}", f"reserve {reserve:,}"]
    parts += [f"cold experts {host.cold_experts:,}"] if host.cold_experts else []
    return _check(
        "pinned table",
        host.free >= need,
        f"{need:,} bytes of host memory ({' + '.join(parts)})",
        f"{host.free:,} ({_gib(host.free)})",
        f"Free {_gib(need - host.free)}, hold more experts hot, or set R9V_PLE_RESIDENCY_MODE=ssd",
    )


def check_repin(ple: int, host: Host) -> Check:
    """Pinning the table anew before the old mapping is gone takes it twice (reference page: 108,800,522,240 against
    140,876,808,192 available)."""
    need = host.cold_experts + 2 * ple
    cold = f" + cold experts {host.cold_experts:,}" if host.cold_experts else ""
    return _check(
        "pinned table, twice while it is pinned anew",
        host.free >= need,
        f"{need:,} bytes of host memory (2 x {ple:,}{cold})",
        f"{host.free:,} ({_gib(host.free)})",
        "Let the old container end before the next start, or free memory: a start that overlaps does not fit",
    )


def check_doctor(floor: int, host: Host) -> Check:
    """The fork's doctor fails below R9V_MIN_HOST_AVAILABLE_BYTES."""
    return _check(
        "doctor's floor of host memory",
        host.free >= floor,
        f"{floor:,} bytes available (R9V_MIN_HOST_AVAILABLE_BYTES)",
        f"{host.free:,} ({_gib(host.free)})",
        f"Stop what holds {_gib(floor - host.free)}, or name the memory that the incumbent gives back (released_bytes)",
    )


def registration_s(ple: int, measured: Sequence[Registration]) -> tuple[float, float]:
    """(seconds at the best measured rate, at the worst): time goes with the bytes."""
    times = [ple * each.seconds / each.bytes for each in measured]
    return min(times), max(times)


def check_registration(ple: int, timeout_s: int, measured: Sequence[Registration]) -> Check:
    """The slowest registration on record must end within the ready timeout. The remedy is twice that, in whole timeouts
    of the engine's own 600 s: 1800 for the reference page's 740 s, as its env has it."""
    best, worst = registration_s(ple, measured)
    advice = ENGINE_TIMEOUT_S * math.ceil(2 * worst / ENGINE_TIMEOUT_S)
    return _check(
        "registration time",
        worst < timeout_s,
        f"less than {timeout_s} s (R9V_PLE_READY_TIMEOUT)",
        f"{best:,.0f} s to {worst:,.0f} s for {ple:,} bytes by {len(measured)} measurements",
        f"Set R9V_PLE_READY_TIMEOUT={advice}, and the unit's start timeout no shorter",
    )


def kv_bytes(tokens: int, per_token: int) -> int:
    """KV bytes of one rank: tokens x bytes of a token. Measured 18,676 a token and rank (the fork's mtp4-uncensored
    profile): 196,608 tokens need 3,671,851,008, and its budget is 3,672,113,152."""
    return tokens * per_token


def check_kv(tokens: int, per_token: int, budget: int) -> Check:
    """The KV budget of a rank must hold one conversation of the whole window."""
    need = kv_bytes(tokens, per_token)
    return _check(
        "KV cache",
        need <= budget,
        f"{need:,} bytes on each rank for {tokens:,} tokens of {per_token:,} bytes",
        f"R9V_KV_CACHE_MEMORY_BYTES {budget:,}, which is {budget // per_token:,} tokens",
        f"Set R9V_MAX_MODEL_LEN to at most {budget // per_token:,}, or R9V_KV_CACHE_MEMORY_BYTES to {need:,} at least",
    )


def compaction(window: int, percent: int) -> int:
    """The tokens at which a harness compacts: percent of the window, rounded down (70 % of 131,072 is 91,750)."""
    return window * percent // 100


def check_compaction(window: int, served: int, max_tokens: int, percent: int) -> Check:
    """A conversation just below compaction, and the longest answer on top of it, must fit the served window
    (91,750 + 36,864 = 128,614 of 131,072)."""
    at = compaction(window, percent)
    return _check(
        "compaction gap",
        at + max_tokens <= served and window <= served,
        f"a window of {window:,} and {at:,} ({percent} % of it) + {max_tokens:,} tokens within {served:,}",
        f"{at + max_tokens:,}",
        f"Tell clients a window of {min(window, served):,} and at most "
        f"{max(0, served - compaction(min(window, served), percent)):,} tokens an answer",
    )


def whole(settings: Mapping[str, Any], key: str) -> int | None:
    """A setting as a whole number, None where it is not set; a FleetError for anything else."""
    text = str(settings.get(key) or "")
    if not text:
        return None
    if not text.isdecimal():
        raise FleetError(f"settings.{key}", expected="a whole number", found=repr(settings[key]))
    return int(text)


def plan(
    settings: Mapping[str, Any],
    host: Host,
    measured: Sequence[Registration],
    *,
    kv_per_token: int | None = None,
    client: Mapping[str, int] | None = None,
) -> list[Check]:
    """Every check that the settings (``R9V_*``, as a start would have them) give the numbers for, in a start's order.

    ``client`` is ``context_window``, ``max_tokens`` and ``percent``. What cannot be checked is told by ``unchecked``.
    """
    checks = []
    ple, window = whole(settings, "R9V_PLE_EXPECTED_BYTES"), whole(settings, "R9V_MAX_MODEL_LEN")
    floor, budget = whole(settings, "R9V_MIN_HOST_AVAILABLE_BYTES"), whole(settings, "R9V_KV_CACHE_MEMORY_BYTES")
    if floor:
        checks.append(check_doctor(floor, host))
    if ple is not None and settings.get("R9V_PLE_RESIDENCY_MODE") == "pinned":
        reserve = whole(settings, "R9V_PLE_PINNED_RESERVE_BYTES")
        timeout = whole(settings, "R9V_PLE_READY_TIMEOUT")
        checks += [
            check_pin(ple, PINNED_RESERVE if reserve is None else reserve, host),
            check_repin(ple, host),
            check_registration(ple, timeout or ENGINE_TIMEOUT_S, measured),
        ]
    if window and budget and kv_per_token:
        checks.append(check_kv(window, kv_per_token, budget))
    if window and client:
        checks.append(check_compaction(client["context_window"], window, client["max_tokens"], client["percent"]))
    return checks


def unchecked(settings: Mapping[str, Any], kv_per_token: int | None, client: Mapping[str, int] | None) -> list[str]:
    """What was not checked, each with the number that lacks."""
    rows = []
    mode = settings.get("R9V_PLE_RESIDENCY_MODE")
    if mode != "pinned":
        rows.append(f"pinned table: R9V_PLE_RESIDENCY_MODE is {mode or 'not set'}, nothing is pinned")
    elif not settings.get("R9V_PLE_EXPECTED_BYTES"):
        rows.append("pinned table: R9V_PLE_EXPECTED_BYTES is not set")
    if not settings.get("R9V_MIN_HOST_AVAILABLE_BYTES"):
        rows.append("doctor's floor of host memory: R9V_MIN_HOST_AVAILABLE_BYTES is not set or 0")
    lacking = [key for key in ("R9V_MAX_MODEL_LEN", "R9V_KV_CACHE_MEMORY_BYTES") if not settings.get(key)]
    lacking += [] if kv_per_token else ["kv_bytes_per_token"]
    if lacking:
        rows.append(f"KV cache: {', '.join(lacking)} is not set")
    if client is None or not settings.get("R9V_MAX_MODEL_LEN"):
        rows.append(f"compaction gap: {'R9V_MAX_MODEL_LEN' if client else 'client'} is not set")
    return rows
