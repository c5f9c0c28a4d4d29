# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates of a deploy: what each holds shut, in their order, and the record of a run through them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write

__all__ = ["GATES", "Gate", "Gates"]


@dataclass(frozen=True)
class Gate:
    """A named check; ``serving`` is what serves when it is red."""

    name: str
    checks: str
    serving: str


_BEFORE = "what served before"
_BACK = "the last proven era, started again; after a first deploy nothing"

# In the order in which a deploy passes them. None can be left out, and none but the first failure is reached.
GATES = (
    Gate(
        "blueprint",
        "Inventory, runtime and the launcher's dry run make an era, and the eras on the host can be read",
        _BEFORE,
    ),
    Gate("foreign files", "Nobody else's unit has the endpoint's name, nor before a first deploy an env file", _BEFORE),
    Gate("drop-ins", "The unit has no drop-in that the endpoint does not declare", _BEFORE),
    Gate("port", "Nobody but the endpoint, or a rival that makes way, listens on its port", _BEFORE),
    Gate(
        "cards", "The cards are those declared, in their order, no GPU of the CPU's among them, held by nobody", _BEFORE
    ),
    Gate("setup", "R9V: the setup state is ready, and every file that it names is as it was verified", _BEFORE),
    Gate("image", "R9V: the state's image is the runtime's, by its manifest's digest, and podman has it", _BEFORE),
    Gate("free cards", "R9V: where nothing of ours runs, each card has what the fork's doctor asks free", _BEFORE),
    Gate("kinship", "Projector, drafter and adapter belong to the model, whose types the runtime knows", _BEFORE),
    Gate("second opinion", "The engine's own count of the memory, where it has one, agrees with ours", _BEFORE),
    Gate("fit", "The boot leaves every card, and the host, its floor", _BEFORE),
    Gate("stage", "The new era and its launcher can be written", _BEFORE),
    Gate("unit", "systemd-analyze verify has no word to say of the unit", _BEFORE),
    Gate("retire", "What the endpoint replaces is stopped and moved away, and nothing of it is left", _BACK),
    Gate("files", "Env file and unit file can be put in place, and systemd reads them", _BACK),
    Gate("drain", "After the stop the old processes are gone, the port is free, the cards' memory is back", _BACK),
    Gate("start", "systemd can start the unit: its program, user, folder and env file are there", _BACK),
    Gate("health", "The unit stays up, and /health answers 200 within the deadline", _BACK),
    Gate("truth", "What runs is what was deployed, link by link from the unit to the served file", _BACK),
    Gate("probes", "The endpoint is seen to do what it declares", _BACK),
    Gate("hold", "The start that was proven still runs after the settling time", _BACK),
    Gate("ledger", "The cards have their floor free by their drivers' count", _BACK),
)
_NAMES = [gate.name for gate in GATES]


@dataclass
class Gates:
    """One run through the gates. ``passed`` holds ``{gate, ok, seconds}``, and of a red one ``error`` besides.

    A gate may be passed more than once (what served before is proven again); the order holds for the first time.
    """

    passed: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def gate(self, name: str) -> Iterator[None]:
        """Hold a gate around its check; a FleetError in it is this gate's, and says so in ``facts``."""
        if name not in _NAMES:
            raise ValueError(f"no gate is called {name!r}")
        started = time.monotonic()
        row: dict[str, Any] = {"gate": name, "ok": True}
        try:
            yield
        except FleetError as exc:
            exc.facts.setdefault("gate", name)
            exc.facts.setdefault("gates", self.passed)  # this gate's row is added below
            row.update(ok=False, error={key: str(getattr(exc, key)) for key in ("what", "expected", "found", "remedy")})
            raise
        except BaseException:
            row["ok"] = False
            raise
        finally:
            row["seconds"] = round(time.monotonic() - started, 3)
            self.passed.append(row)

    @property
    def red(self) -> str | None:
        """The gate that stopped the run, if one did."""
        return str(self.passed[-1]["gate"]) if self.passed and not self.passed[-1]["ok"] else None

    def fault(self, exc: FleetError | OSError, what: str) -> FleetError:
        """``exc`` itself; what the system refused (a full disk, a missing right) as the fault of the red gate."""
        if isinstance(exc, FleetError):
            return exc
        return FleetError(f"{what}: {exc}", gate=self.red, gates=self.passed)

    def write(self, path: str, **facts: Any) -> None:
        """Leave the record of this run at ``path``, in place of the last one's."""
        told = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **facts, "gates": self.passed}
        atomic_write(path, (json.dumps(told, indent=2) + "\n").encode(), mode=0o644)
