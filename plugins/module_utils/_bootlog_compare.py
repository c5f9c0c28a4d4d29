# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicted against measured: a ledger beside the boot's own, term by term, and the terms that only a boot can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import TELLING
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import (
    BOOT_TERMS,
    BootLine,
    BootLog,
    total,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB

__all__ = ["MEASURED", "Difference", "compare", "measured_terms", "require_agreement", "require_told", "totals"]

HOST = "host"
# What no header tells: a ledger has a bound for the first two and nothing for the third.
MEASURED = ("compute", "draft_compute", "projector_compute")

# Buffers of the host's weights that are copies of mapped ones, in the layout that this CPU likes best.
_REPACKED = "weights_repacked"
_UNCOUNTED = {
    "projector_compute": "no header tells a projector's compute buffer",
    _REPACKED: "copies that only some CPUs make",
}
# How far a sum of doubles may be off.
_EPSILON = 1e-6


@dataclass(frozen=True)
class Difference:
    """One term on one card (None: the host), in MiB. ``label`` exact or bound as predicted, or uncounted where a
    ledger has no such term by design; ``ok`` whether the two sides agree as their label asks."""

    term: str
    card: str | None
    predicted: float | None
    measured: float | None
    label: str
    ok: bool
    sentence: str


@dataclass(frozen=True)
class _Figure:
    mib: float
    resolution: float
    mapped: bool = False


_Key = tuple[str, "str | None"]


def _on_host(device: str) -> bool:
    """Whether the engine's name is one of its buffers in the host's memory."""
    return device in ("CPU", "AMX") or device.startswith("CPU_") or device.endswith("_Host")


def _place(device: str, devices: Mapping[str, str | None]) -> str | None:
    """The card of a device, None for the host; a device that nobody named stands for itself."""
    card = devices.get(device, None if _on_host(device) else device)
    return None if card == HOST else card


def require_told(boot: BootLog) -> None:
    """A FleetError for a boot that failed, a log whose verbosity hides the sizes, or one that is not whole."""
    if boot.failure is not None:
        raise FleetError(
            f"the boot failed: {boot.failure.what}",
            expected="a boot that serves",
            found="; ".join(boot.failure.words),
            remedy=boot.failure.remedy,
        )
    if boot.quiet:
        raise FleetError(
            "the boot's log",
            expected=f"the sizes of its buffers, which the engine tells at a verbosity of {TELLING}",
            found="none" if boot.verbosity is None else f"a verbosity of {boot.verbosity}",
            remedy=f"Set VERBOSITY={TELLING} and boot again",
        )
    if boot.missing:
        raise FleetError(
            "the boot's log",
            expected="every line from the engine's first to the one that tells where it listens",
            found="a log without " + ", ".join(boot.missing),
            remedy="Read the whole journal of this boot, or wait until it listens",
            notes=list(boot.notes),
        )


def _measured(boot: BootLog, devices: Mapping[str, str | None]) -> dict[_Key, _Figure]:
    mapped = any(line.term == "weights" and line.device.endswith("_Mapped") for line in boot.lines)
    groups: dict[_Key, list[BootLine]] = {}
    for line in boot.lines:
        term, card = line.term, _place(line.device, devices)
        if card is None and term in ("weights", "draft_weights") and mapped and _is_copy(line.device):
            term = _REPACKED
        groups.setdefault((term, card), []).append(line)
    return {
        key: _Figure(
            total(line.mib for line in lines) or 0.0,
            sum(line.resolution for line in lines),
            any(line.device.endswith("_Mapped") for line in lines),
        )
        for key, lines in groups.items()
    }


def _is_copy(device: str) -> bool:
    """A buffer type of the CPU's own beside the mapped file (CPU_REPACK, CPU_KLEIDIAI, AMX)."""
    return device == "AMX" or (device.startswith("CPU_") and device != "CPU_Mapped")


def _predicted(ledger: Ledger) -> dict[_Key, tuple[float, str]]:
    sums: dict[_Key, tuple[int, bool]] = {}
    for line in ledger.lines:
        size, exact = sums.get((line.term, line.card), (0, True))
        sums[line.term, line.card] = size + line.bytes, exact and line.label == "exact"
    return {key: (size / MIB, "exact" if exact else "bound") for key, (size, exact) in sums.items() if size}


def compare(predicted: Ledger, boot: BootLog, *, devices: Mapping[str, str | None]) -> list[Difference]:
    """Every term of both sides by card. ``devices``: the engine's device -> the ledger's card, None or "host" for
    the host; the engine's own host buffers need no entry.

    An exact term agrees within what printing rounds off, a bound where the boot took no more; a buffer that the reader
    does not know (term unread) agrees with nothing. The errors are those of :func:`require_told`.
    """
    require_told(boot)
    foretold, found = _predicted(predicted), _measured(boot, devices)
    order: list[str | None] = [*(card.name for card in predicted.cards), None]
    order += sorted({card for _, card in found if card is not None} - set(order))
    terms = (*BOOT_TERMS, _REPACKED)
    return [
        _difference(term, card, foretold.get((term, card)), found.get((term, card)), boot)
        for card in order
        for term in terms
        if (term, card) in foretold or (term, card) in found
    ] + [
        Difference("unread", None, None, None, "exact", False, f"a buffer that no ledger knows: {line}")
        for line in boot.unread
    ]


def _difference(
    term: str, card: str | None, foretold: tuple[float, str] | None, found: _Figure | None, boot: BootLog
) -> Difference:
    where = f"{term} on {HOST if card is None else card}"
    predicted, label = foretold if foretold is not None else (None, "exact")
    measured = None if found is None else found.mib
    if predicted is None:
        assert found is not None
        label = "uncounted" if term in _UNCOUNTED else "exact"
        ok = label == "uncounted" or found.mib <= found.resolution
        said = f"{where}: the boot took {found.mib:,.2f} MiB, nothing was predicted"
        said += f" ({_UNCOUNTED[term]})" if label == "uncounted" else ""
    elif found is None:
        # Less than the smallest figure printed is no figure at all.
        ok = predicted < 0.005
        said = f"{where}: predicted {predicted:,.2f} MiB, nothing in the log"
    else:
        over = found.mib - predicted
        slack = found.resolution + _EPSILON
        ok = over <= slack if label == "bound" else abs(over) <= slack
        said = f"{where}: predicted {'at most ' if label == 'bound' else ''}{predicted:,.2f} MiB"
        said += f", the boot took {found.mib:,.2f}"
        if not ok and term == "weights" and found.mapped and over > 0 and _partly(boot):
            # What is mapped is a stretch of the file, and layers that a card has may lie in it.
            ok = True
            said += ", mapped together with layers that a card holds"
        elif not ok:
            said += f", {abs(over):,.2f} {'more' if over > 0 else 'less'}"
    return Difference(term, card, predicted, measured, label, ok, said)


def _partly(boot: BootLog) -> bool:
    """Whether some layers lie on cards and some on the host."""
    return boot.offloaded is not None and 0 < boot.offloaded[0] < boot.offloaded[1]


def require_agreement(predicted: Ledger, boot: BootLog, *, devices: Mapping[str, str | None]) -> list[Difference]:
    """:func:`compare`, and one FleetError with both sides of every term that does not agree."""
    differences = compare(predicted, boot, devices=devices)
    wrong = [difference for difference in differences if not difference.ok]
    if wrong:
        raise FleetError(
            "the boot took other memory than was predicted",
            expected=_listed(((each, each.predicted) for each in wrong), "at most "),
            found=_listed((each, each.measured) for each in wrong),
            remedy="Check that the log is of this shape and model; if it is, the ledger is wrong for it: keep the log",
            differences=[asdict(each) for each in wrong],
            notes=[*_contexts(predicted, boot), *boot.notes],
        )
    return differences


def _listed(sides: Iterable[tuple[Difference, float | None]], bound: str = "") -> str:
    """One side of each difference; ``bound`` stands before a figure that is one."""
    return ", ".join(
        f"{each.term} on {HOST if each.card is None else each.card} "
        + ("none" if mib is None else f"{bound if each.label == 'bound' else ''}{mib:,.2f} MiB")
        for each, mib in sides
    )


def _contexts(predicted: Ledger, boot: BootLog) -> list[str]:
    """Where the boot's context is another, every term of it will be."""
    if boot.target is None or (boot.target.n_ctx, boot.target.n_ctx_seq) == (predicted.n_ctx, predicted.n_ctx_seq):
        return []
    return [
        f"predicted for a context of {predicted.n_ctx} ({predicted.n_ctx_seq} a slot), the boot has "
        f"{boot.target.n_ctx} ({boot.target.n_ctx_seq})"
    ]


def measured_terms(boot: BootLog, devices: Mapping[str, str | None]) -> dict[str, dict[str, float]]:
    """Card ("host" for the host) -> ``<term>_mib`` of what only a boot tells: compute buffers of the target, the
    drafter and the projector, as printed. The errors are those of :func:`require_told`, and one for a device that
    ``devices`` does not name."""
    require_told(boot)
    found: dict[str, dict[str, float]] = {}
    for line in boot.lines:
        if line.device not in devices and not _on_host(line.device):
            raise FleetError(
                f"device {line.device} of the boot's log",
                expected="a card's name for it",
                found="names for " + (", ".join(sorted(devices)) or "none"),
            )
    for (term, card), figure in _measured(boot, devices).items():
        if term in MEASURED:
            found.setdefault(HOST if card is None else card, {})[f"{term}_mib"] = figure.mib
    return found


def totals(boot: BootLog, devices: Mapping[str, str | None]) -> dict[str, float]:
    """Card ("host" for the host) -> MiB of all buffers that the log tells of; {} for a log that tells of none."""
    groups: dict[str, list[float]] = {}
    for line in boot.lines:
        groups.setdefault(_place(line.device, devices) or HOST, []).append(line.mib)
    return {place: total(figures) or 0.0 for place, figures in groups.items()}
