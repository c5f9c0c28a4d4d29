# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The window of a qualification: production stopped and masked, and the host's own promise that it comes back.

The guard is the trial's (see ``_trial_unit``): a transient unit that conflicts with production, waits for the
endpoint's lock, which the kernel takes from a module that dies, and starts production when it ends, however it ends.
Before that its ExecStopPost takes the masks away and removes the scratch container. A mask is a link in systemd's
control folder in /run: it outranks a unit file in /etc, which ``systemctl mask --runtime`` does not, and a restart of
the host takes it away.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._cutover import Say, prove, start_fault
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import make_dirs
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_run import Incumbent
from ansible_collections.dank.llm_fleet.plugins.module_utils._trial_unit import TrialPaths, guard_command

__all__ = ["MASKS", "Window", "after_lines", "close", "open_window", "require_open"]

MASKS = "/run/systemd/system.control"
_STOP_S = 180


@dataclass(frozen=True)
class Window:
    """A window for endpoint ``trial.endpoint``; the scratch ``container`` is of ``user``."""

    trial: TrialPaths
    makes_way: Sequence[str]
    incumbents: Sequence[Incumbent]
    user: str
    container: str
    limit_s: float
    patience_s: float
    masks: str = MASKS

    @property
    def mask_files(self) -> list[str]:
        """The links that mask what makes way."""
        return [os.path.join(self.masks, unit) for unit in self.makes_way]


def after_lines(window: Window) -> list[str]:
    """The lines of the guard's unit that undo the window, whoever ended it."""
    entry = pwd.getpwnam(window.user)
    switch = f"/usr/bin/setpriv --reuid={entry.pw_uid} --regid={entry.pw_gid} --init-groups"
    bare = f"/usr/bin/env --ignore-environment HOME={entry.pw_dir} USER={window.user} PATH=/usr/bin:/bin"
    return [
        f"ExecStopPost=-/usr/bin/rm -f {' '.join(window.mask_files)}",
        "ExecStopPost=-/usr/bin/systemctl daemon-reload",
        f"ExecStopPost=-{switch} {bare} /usr/bin/podman rm --force --ignore --time 60 {window.container}",
        f"TimeoutStopSec={_STOP_S}",
    ]


def open_window(window: Window, lock_path: str) -> None:
    """Stop production, in one transaction with the guard's start, and mask it."""
    command = guard_command(
        window.trial,
        lock_path,
        count=2,
        makes_way=window.makes_way,
        comes_back=[one.paths.unit for one in window.incumbents],
        limit_s=window.limit_s,
        also=after_lines(window),
    )
    run(command, timeout_s=window.patience_s)
    make_dirs(window.masks)
    for path in window.mask_files:
        with contextlib.suppress(FileExistsError):
            os.symlink("/dev/null", path)
    _systemd.daemon_reload()


def require_open(window: Window) -> None:
    """A FleetError where the window was closed from outside."""
    state = _systemd.show(window.trial.guard)
    if not state.running:
        raise FleetError(
            f"the qualification of endpoint {window.trial.endpoint} was ended from outside",
            expected=f"{window.trial.guard} running until it is over, {window.limit_s:g} s at most",
            found=state.words,
            remedy="Give it more time with -e limit_s=SECONDS, or see who stopped it "
            f"(journalctl -u {window.trial.guard})",
        )


def close(window: Window, say: Say) -> tuple[list[str], float]:
    """End the guard, and prove what serves again: (its endpoints, when it first answered by ``time.monotonic``)."""
    guard = window.trial.guard
    if _systemd.show(guard).load_state != "not-found":
        _systemd.stop(guard, timeout_s=2 * _STOP_S + window.patience_s)
    _unmask(window)  # a guard that never came to run undoes nothing
    names, healthy_at = [], time.monotonic()
    for one in window.incumbents:
        say(f"back to {one.paths.endpoint}")
        healthy_at = _bring_back(one.paths, window.patience_s, say)
        names.append(one.paths.endpoint)
    run(["systemctl", "reset-failed", guard], check=False)  # one whose time was over; what is to be said of it was said
    return names, healthy_at


def _unmask(window: Window) -> None:
    for path in window.mask_files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    _systemd.daemon_reload()


def _bring_back(paths: Paths, patience_s: float, say: Say) -> float:
    era = EraStore(paths.store).current()
    engine = era.blueprint.facts.get("engine", "llamacpp") if era is not None else "llamacpp"
    try:
        _systemd.start(paths.unit, timeout_s=2 * patience_s)
    except FleetError as exc:
        raise start_fault(paths.unit, exc, engine) from exc
    if era is None:
        return time.monotonic()
    return prove(era, paths, say, Gates(), fresh=True, expired=()).healthy_at
