# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for systemd and podman: units by the files that were there at the last reload, kept in a file.

It outlives the process that uses it, as systemd does: a retirement can be killed and run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Account, Container, Manager, Seen
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import SUFFIXES, DryRun, service_name
from ansible_collections.dank.llm_fleet.plugins.module_utils._retire_plan import Places


class FakeManager(Manager):
    """Loads units from ``places`` at each reload; ``stuck`` units do not stop, ``broken`` quadlets make no unit."""

    def __init__(self, home: Path, places: Places, state: Path, scope: str = "system") -> None:
        self.scope = scope
        self.who = Account("owner", os.geteuid(), os.getegid(), str(home))
        self.unit = None
        self.runtime_dir = str(home)
        self.places = places
        self.path = state
        if not state.exists():
            self.write({"loaded": {}, "active": [], "stuck": [], "broken": [], "hangers": {}, "log": [], "left": {}})
            self.reload()

    @property
    def lock_path(self) -> str:
        return f"{self.path}.lock"

    @property
    def lingers(self) -> bool:
        return False

    @property
    def answers(self) -> bool:
        return True

    def read(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.path.read_text())
        return value

    def write(self, value: dict[str, Any]) -> None:
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps(value))
        os.rename(whole, self.path)

    def change(self, verb: str, unit: str, **changes: Any) -> None:
        value = self.read()
        self.write({**value, "log": [*value["log"], f"{verb} {unit}".strip()], **changes})

    def set(self, **changes: Any) -> None:
        self.write({**self.read(), **changes})

    def _units(self) -> dict[str, str]:
        found = dict(self.dry_run().services)
        for folder in map(Path, (*self.places.units_of_others, *self.places.units)):
            found |= {path.name: str(path) for path in sorted(folder.glob("*.service"))}
        return found

    def show(self, unit: str) -> Seen:
        value = self.read()
        there = unit in value["loaded"]
        fragment = value["loaded"].get(unit, "")
        generated = fragment.endswith(tuple(SUFFIXES))
        enabled = any(Path(folder, "multi-user.target.wants", unit).is_symlink() for folder in self.places.units)
        up = unit in value["active"]
        return Seen(
            load="loaded" if there else "not-found",
            active="active" if up else "inactive",
            sub="running" if up else "dead",
            unit_file=("generated" if generated else "enabled" if enabled else "disabled") if there else "",
            fragment=f"/run/systemd/generator/{unit}" if generated else fragment,
            drop_ins=tuple(str(p) for folder in self.places.units for p in sorted(Path(folder, f"{unit}.d").glob("*"))),
            hangers=tuple(value["hangers"].get(unit, ())),
        )

    def begin_stop(self, unit: str) -> None:
        value = self.read()
        active = [name for name in value["active"] if name != unit or unit in value["stuck"]]
        self.change("stop", unit, active=active)

    def begin_start(self, unit: str) -> None:
        value = self.read()
        assert unit in value["loaded"], unit
        self.change("start", unit, active=sorted({*value["active"], unit}))

    def start(self, unit: str, timeout_s: float) -> None:
        self.begin_start(unit)

    def reload(self) -> None:
        self.change("reload", "", loaded=self._units())

    def forget_failure(self, unit: str) -> None:
        pass

    def wake(self, deadline_s: float) -> None:
        pass

    def pids(self, unit: str) -> list[int]:
        value = self.read()
        pids: list[int] = value["left"].get(unit, [])
        return [*pids, *([os.getpid()] if unit in value["active"] else [])]

    def containers(self) -> list[Container]:
        value = self.read()
        up = [name for name in value["active"] if value["loaded"].get(name, "").endswith(".container")]
        return [Container(f"id-{name}", name, "running", name, 0) for name in up] + [
            Container(*one) for one in value.get("containers", [])
        ]

    def dry_run(self, folders: Sequence[str] = (), left_out: Collection[str] = ()) -> DryRun:
        services, complaints = {}, []
        names = {
            str(path): path.read_text()
            for folder in self.places.quadlets
            for path in sorted(Path(folder).rglob("*"))
            if path.suffix in SUFFIXES and str(path) not in left_out
        }
        for path, text in names.items():
            needs = [line.split("=")[1] for line in text.splitlines() if line.startswith("Volume=")]
            missing = [one for one in needs if one not in {os.path.basename(other) for other in names}]
            if path in self.read()["broken"] or missing:
                complaints.append(f'converting "{os.path.basename(path)}": {"".join(missing) or "bad key"} not found')
            else:
                services[service_name(os.path.basename(path), [text])] = path
        return DryRun(services, tuple(complaints))
