# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's own count of a boot's memory, from its ``llama-fit-params``, held against the ledger.

Read off llama.cpp build 11434 (``tools/fit-params``, ``common/fit.cpp``, ``common/arg.cpp``). The tool builds model
and context without allocating them and prints, for each device and last for the host, whole MiB of model, context
and compute. It knows the target alone: neither projector nor adapter nor drafter is loaded, no rollback planes are
kept, and the graph is reserved with logits for every token of a batch, where the server asks for a few rows a slot.
:func:`comparable` turns a server's shape into the one that the tool counts.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_lines import CardLedger, Ledger
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Shape
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run

__all__ = [
    "DRAFTER",
    "HOST",
    "OVER",
    "PROGRAM",
    "Device",
    "Difference",
    "Opinion",
    "arguments",
    "ask_engine",
    "comparable",
    "compare_opinions",
    "parse",
    "program_beside",
    "require_second_opinion",
]

PROGRAM = "llama-fit-params"
HOST = "Host"

# What the bound of compute may be: not below the engine's figure by more than a MiB and not above it by more than 35 %.
# The engine's figure is rounded down, so it may be a MiB more than it says. All 122 golden shapes and the other dry
# runs lie within: never below, at most 27 % above. A batch's logits may or may not find room in what the masks leave,
# and the server never asks for them: where they are made, the bound may be above by them too.
OVER = 0.35
UNDER_MIB = 1

# Flag -> (how many values follow, why it is not asked; "" for one that is). Every flag that the launcher can make is
# here. Asked are those that the tool takes and that size weights, cache or graph; the others are not, because
_SERVER = "the tool has no such option: it serves nobody"
_SAMPLING = "what a request samples with sizes nothing"
_HOST_CACHE = "the tool has no such option: prompts kept in host memory grow while serving"
_OURS = "given by us instead"
_PROJECTOR, _ADAPTER, DRAFTER = "projector", "adapter", "drafter"  # it would not load them
_FLAGS: dict[str, tuple[int, str]] = {
    "--model": (1, ""),
    "--ctx-size": (1, ""),
    "--parallel": (1, ""),
    "--cache-type-k": (1, ""),
    "--cache-type-v": (1, ""),
    "--flash-attn": (1, ""),
    "--batch-size": (1, ""),
    "--ubatch-size": (1, ""),
    "--n-gpu-layers": (1, ""),
    "--split-mode": (1, ""),
    "--device": (1, ""),
    "--tensor-split": (1, ""),
    "--threads": (1, ""),
    "--threads-batch": (1, ""),
    "--swa-full": (0, ""),
    "--fit": (1, _OURS),
    "--log-verbosity": (1, _OURS),
    "--host": (1, _SERVER),
    "--port": (1, _SERVER),
    "--alias": (1, _SERVER),
    "--metrics": (0, _SERVER),
    "--threads-http": (1, _SERVER),
    "--api-key-file": (1, _SERVER),
    "--jinja": (0, _SERVER),
    "--no-jinja": (0, _SERVER),
    "--chat-template-file": (1, _SERVER),
    "--reasoning": (1, _SERVER),
    "--reasoning-format": (1, _SERVER),
    "--reasoning-budget": (1, _SERVER),
    "--ctx-checkpoints": (1, _HOST_CACHE),
    "--cache-ram": (1, _HOST_CACHE),
    "--temp": (1, _SAMPLING),
    "--top-p": (1, _SAMPLING),
    "--top-k": (1, _SAMPLING),
    "--min-p": (1, _SAMPLING),
    "--presence-penalty": (1, _SAMPLING),
    "--mmproj": (1, _PROJECTOR),
    "--no-mmproj": (0, _SERVER),
    "--lora": (1, _ADAPTER),
    "--lora-scaled": (1, _ADAPTER),
    "--spec-type": (1, DRAFTER),
    "--spec-draft-n-max": (1, DRAFTER),
    "--spec-draft-n-min": (1, DRAFTER),
    "--spec-draft-p-min": (1, DRAFTER),
    "--spec-draft-model": (1, DRAFTER),
    "--spec-draft-device": (1, DRAFTER),
    "--spec-draft-type-k": (1, DRAFTER),
    "--spec-draft-type-v": (1, DRAFTER),
    "--spec-ngram-mod-n-min": (1, DRAFTER),
    "--spec-ngram-mod-n-max": (1, DRAFTER),
}
# Print instead of fitting; the table of free and total memory is printed at this level; weights that the processor
# would repack lie in a buffer of their own, which the tool leaves out of its figures.
_OWN = ("--fit-print", "on", "--log-verbosity", "4", "--no-repack")

_ROW = re.compile(r"(\S+) (\d+) (\d+) (\d+) ?")
_ASK_AGAIN = 4
_ERROR = re.compile(r"^[\d.]+ E (.*\S)", re.MULTILINE)
_MEMORY = re.compile(r"\|\s+- (\S+) \(.*\)\s*\|\s*(\d+) = (\d+) \+ \(")


@dataclass(frozen=True)
class Device:
    """One line of the answer in whole MiB, rounded down; total and free where the log tells them, not for the host."""

    name: str
    model_mib: int
    context_mib: int
    compute_mib: int
    total_mib: int | None = None
    free_mib: int | None = None


@dataclass(frozen=True)
class Opinion:
    """The engine's answer: ``devices`` with the host last; ``left_out`` what it does not count; what it cost."""

    devices: tuple[Device, ...]
    asked: tuple[str, ...]
    left_out: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Difference:
    """One figure that is outside the bound: the engine's device, the term, both sides in MiB, what must hold."""

    device: str
    term: str
    ours_mib: float
    engine_mib: int
    rule: str


def program_beside(server_bin: str) -> str:
    """Where a runtime's llama-fit-params is: beside its llama-server."""
    return os.path.join(os.path.dirname(server_bin), PROGRAM)


def arguments(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a server's arguments (without the program) those to ask the tool with, and what is then not counted.

    A FleetError for a flag that the table does not know: it might change memory.
    """
    asked: list[str] = []
    left_out: list[str] = []
    rest = list(argv)
    while rest:
        flag = rest.pop(0)
        if flag not in _FLAGS:
            raise FleetError(
                f"argument {flag} of the server",
                expected=f"one that {PROGRAM} can be asked with or without",
                found=flag,
            )
        count, why = _FLAGS[flag]
        if len(rest) < count:
            raise FleetError(f"argument {flag} of the server", expected="a value after it", found="none")
        values, rest = rest[:count], rest[count:]
        if not why:
            asked += [flag, *values]
        elif why in (_PROJECTOR, _ADAPTER, DRAFTER) and why not in left_out:
            left_out.append(why)
    if "--parallel" not in asked:
        # Without it the server takes 4 slots and one cache for all of them, which the tool cannot be asked for.
        raise FleetError("the server's arguments", expected="--parallel among them", found=" ".join(argv))
    return tuple(asked), tuple(left_out)


def parse(stdout: str, log: str = "") -> tuple[Device, ...]:
    """The tool's output (``NAME model context compute`` a line) with total and free from its ``log``.

    A FleetError where a line is anything else, a name comes twice or the host is not last.
    """
    memory = {found[1]: (int(found[2]), int(found[3])) for found in _MEMORY.finditer(log)}
    devices: list[Device] = []
    for line in stdout.splitlines():
        if not line.strip():
            continue
        found = _ROW.fullmatch(line)
        if found is None:
            raise FleetError(f"{PROGRAM}'s output", expected="NAME MODEL CONTEXT COMPUTE", found=repr(line[:200]))
        devices.append(Device(found[1], *(int(found[n]) for n in (2, 3, 4)), *memory.get(found[1], ())))
    names = [device.name for device in devices]
    if names[-1:] != [HOST] or len(set(names)) < len(names):
        raise FleetError(f"{PROGRAM}'s output", expected=f"each device once and {HOST} last", found=names)
    return tuple(devices)


def ask_engine(
    binary: str, argv: Sequence[str], *, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> Opinion | None:
    """What the runtime's ``binary`` counts for a server started as ``argv`` (the program first), in ``env``.

    None where the runtime has no such program (built before there was one, or without the target), or one from
    before it could print. A FleetError for arguments it cannot be asked with, an end with another status than 0,
    output that is not its own, and no end within ``timeout_s``. It allocates and reads no weights.
    """
    if not os.path.exists(binary):
        return None
    if not os.access(binary, os.X_OK):
        raise FleetError(binary, expected="a program that can be run", found="a file that cannot")
    asked, left_out = arguments(argv[1:])
    command = (binary, *asked, *_OWN)
    bare = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **(env or {})}
    started = time.monotonic()

    def ask() -> Completed:
        return run(command, env=bare, timeout_s=timeout_s, check=False)

    done = ask()
    seconds = time.monotonic() - started
    if done.rc:
        if "invalid argument: --fit-print" in done.stderr:
            return None
        found = f"{done.rc}: {_reason(done, ask)}"
        raise FleetError(f"{shlex.join(command)} failed", expected="exit status 0", found=found)
    return Opinion(parse(done.stdout, done.stderr), command, left_out, seconds)


def _reason(done: Completed, ask: Callable[[], Completed]) -> str:
    """Why it failed: its error lines, which come before a backtrace.

    It writes them from a thread of its own: an abort loses what that has not written yet, or the backtrace gets into
    it (on a busy machine every tenth time). So it is asked anew, and what most of those say that say the most is told.
    """
    asked = [done, *(ask() for _again in range(_ASK_AGAIN if done.rc < 0 else 0))]
    told: list[list[str]] = [_ERROR.findall(each.stderr) for each in asked]
    most = max(range(len(told)), key=lambda number: (len(told[number]), told.count(told[number])))
    return "; ".join(told[most]) or done.tail


def comparable(shape: Shape) -> Shape:
    """The shape that the tool counts for a server of this one: no drafter, and logits for a whole batch.

    The ledger of it, without projector and adapter, is what an opinion is compared with.
    """
    return replace(shape, spec_type=None, outputs=shape.batch_size)


def _differences(ours: CardLedger, engine: Device, exact: bool, logits: float) -> Iterable[Difference]:
    name = engine.name
    weights, context, compute = ours.weights / MIB, (ours.kv + ours.recurrent) / MIB, ours.compute / MIB
    if exact and int(weights) != engine.model_mib:
        yield Difference(name, "weights", weights, engine.model_mib, "equal, rounded down to MiB")
    elif not exact and weights < engine.model_mib:
        yield Difference(name, "weights", weights, engine.model_mib, "a bound: not below the engine's")
    if int(context) != engine.context_mib:
        yield Difference(name, "context", context, engine.context_mib, "equal, rounded down to MiB")
    if compute < engine.compute_mib - UNDER_MIB:
        yield Difference(name, "compute", compute, engine.compute_mib, f"not below it by more than {UNDER_MIB:g} MiB")
    elif compute > (1 + OVER) * (engine.compute_mib + 1) + logits:
        rule = f"not above it by more than {OVER:.0%}" + (f" and {logits:,.0f} MiB of logits" if logits else "")
        yield Difference(name, "compute", compute, engine.compute_mib, rule)


def _pairs(ledger: Ledger, opinion: Opinion, devices: Mapping[str, str]) -> list[tuple[Device, CardLedger]]:
    """Each device of the opinion with its card of the ledger. A FleetError where the two sets are not the same."""
    cards = {card.name: card for card in ledger.cards}
    engine = [devices.get(device.name, device.name) for device in opinion.devices if device.name != HOST]
    if sorted(engine) != sorted(cards):
        raise FleetError(
            f"the devices that {PROGRAM} sees",
            expected=", ".join(sorted(cards)) or "none",
            found=", ".join(engine) or "none",
            remedy="Give the server the cards that are declared for it (DEVICE, CUDA_VISIBLE_DEVICES)",
        )
    return [
        (device, ledger.host if device.name == HOST else cards[devices.get(device.name, device.name)])
        for device in opinion.devices
    ]


def compare_opinions(ledger: Ledger, opinion: Opinion, devices: Mapping[str, str]) -> list[Difference]:
    """Where ledger and engine disagree; ``devices`` maps the engine's names (``CUDA0``) to the ledger's cards.

    ``ledger`` is that of :func:`comparable`. Weights and context must be equal when rounded down to MiB, the engine's
    own resolution. Compute is a bound: below the engine's figure by at most a MiB, above it by at most 35 % and, on
    the device that makes them, a batch's logits.
    """
    bounds = {line.card for line in ledger.lines if line.term == "weights" and line.label != "exact"}
    layered = [card.name for card, layers in zip(ledger.cards, ledger.split, strict=False) if layers]
    output = layered[-1] if layered else None
    found: list[Difference] = []
    for device, ours in _pairs(ledger, opinion, devices):
        card = None if device.name == HOST else ours.name
        logits = ledger.host.outputs / MIB if card == output else 0.0
        found += _differences(ours, device, card not in bounds, logits)
    return found


def require_second_opinion(ledger: Ledger, opinion: Opinion, devices: Mapping[str, str]) -> None:
    """One FleetError that prints both tables and names every difference, or nothing."""
    differences = compare_opinions(ledger, opinion, devices)
    if not differences:
        return
    pairs = _pairs(ledger, opinion, devices)
    ours = "; ".join(
        f"{device.name} {card.weights / MIB:,.2f} + {(card.kv + card.recurrent) / MIB:,.2f} + {card.compute / MIB:,.2f}"
        for device, card in pairs
    )
    engine = "; ".join(
        f"{device.name} {device.model_mib:,} + {device.context_mib:,} + {device.compute_mib:,}" for device, _ in pairs
    )
    what = ", ".join(
        f"{found.term} of {found.device} {found.ours_mib:,.2f} against {found.engine_mib:,} ({found.rule})"
        for found in differences
    )
    raise FleetError(
        f"the ledger and the engine's own {PROGRAM} disagree: {what}",
        expected=f"MiB of weights + context + compute by the ledger: {ours}",
        found=f"by the engine: {engine}",
        remedy=f"Do not trust the fit of this shape; report it with the command: {shlex.join(opinion.asked)}",
        differences=[asdict(difference) for difference in differences],
    )
