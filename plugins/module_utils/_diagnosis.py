# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a start failed: systemd's own words for how it ended, and the engine's for the cause."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._signatures import Match, match_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import UnitState

__all__ = ["Diagnosis", "diagnose", "told_by_log"]

_SEE_LOG = "Read the lines below, and journalctl -u of the unit"
_INVENTORY = "Mend what it names in the inventory and run site.yml"

# What systemd does between fork and exec, by exit status (systemd.exec(5)): what failed, and what to do.
_STEPS = {
    200: ("CHDIR", "its working directory is not there or closed to its user", "Make the directory, or correct it"),
    203: (
        "EXEC",
        "systemd could not run the program of ExecStart: it is missing, not executable, without a #! line, "
        "with Windows line ends, or its interpreter is missing",
        "Run site.yml, which writes the launcher anew; then look at the file's first line and mode",
    ),
    205: ("LIMITS", "a resource limit of the unit could not be set", "Check the unit's Limit settings"),
    209: ("STDOUT", "its standard output could not be set up", "Check the unit's StandardOutput"),
    216: ("GROUP", "a group of the unit does not exist on this host", "Create it (host_groups), then run site.yml"),
    217: ("USER", "the unit's user does not exist on this host", "Create it (host_user), then run site.yml"),
    218: ("CAPABILITIES", "its capabilities could not be set", "Check the unit's hardening against this kernel"),
    226: (
        "NAMESPACE",
        "its view of the file system could not be set up: a path that the hardening names is missing",
        "Make the path that the line names, or take it out of the unit's ReadWritePaths or ReadOnlyPaths",
    ),
    228: ("SECCOMP", "its system call filter could not be set", "Check the unit's SystemCallFilter"),
    233: ("RUNTIME_DIRECTORY", "its runtime directory could not be made", "Check RuntimeDirectory and the file system"),
    238: ("STATE_DIRECTORY", "its state directory could not be made", "Check StateDirectory and the file system"),
    239: ("CACHE_DIRECTORY", "its cache directory could not be made", "Check CacheDirectory and the file system"),
    240: ("LOGS_DIRECTORY", "its log directory could not be made", "Check LogsDirectory and the file system"),
    243: ("CREDENTIALS", "a credential could not be loaded", "Check the file that LoadCredential names"),
}
_LAST_STEP = 245

# What roles/endpoint/files/serve-llamacpp says by its exit status; systemd does not start it again then.
_LAUNCHER = {
    64: ("launcher refused its arguments", "the launcher was given arguments and takes none", "Run site.yml"),
    66: (
        "launcher misses a file",
        "the launcher found a file missing or unreadable",
        "Run site.yml with --tags payload; check that the unit's user may read the file",
    ),
    78: ("launcher refused the env", "the launcher found a key unknown, missing, overridden or unsound", _INVENTORY),
}

# systemd's Result, where it alone tells.
_RESULTS = {
    "oom-kill": (
        "OOM kill",
        "the kernel killed it for want of host memory, or at the unit's own memory limit",
        "Lower what the shape keeps in host memory (CACHE_RAM, layers off the cards) and see what else runs",
    ),
    "protocol": (
        "protocol",
        "it ended without the sign of readiness that the unit's Type waits for",
        "Check Type in the unit against what its program does",
    ),
    "watchdog": (
        "watchdog",
        "it gave no sign of life in time and was killed",
        "See whether it hangs; raise WatchdogSec",
    ),
    "resources": (
        "resources",
        "systemd could not even begin: the unit's EnvironmentFile is missing or unreadable, or the host lacks "
        "a resource",
        "Run site.yml, which writes the env file anew",
    ),
    "start-limit-hit": (
        "start-limit-hit",
        "it was started too often in too short a time and systemd gave up",
        "Mend what each start died of, then systemctl reset-failed the unit",
    ),
}

_TELLING = re.compile(
    r"Failed at step|Main process exited|Failed to (execute|load|set up|determine|spawn)|Unable to locate executable"
    r"|Changing to the requested working directory|timed out|Deactivated successfully|Start request repeated"
    r"|Watchdog timeout|OOM killer|on client request|fatal error|serve-llamacpp: |Neither a valid"
)
_ENDED = re.compile(r"Main process exited, code=(exited|killed|dumped), status=(\d{1,3})/")
_CODES = {"1": "exited", "2": "killed", "3": "dumped"}
_EVIDENCE = 8


@dataclass(frozen=True)
class Diagnosis:
    """``name`` is how the start ended; ``causes`` are the engine's own words for it, the first explains most.

    ``evidence`` holds the log's lines that told.
    """

    name: str
    meaning: str
    remedy: str
    evidence: tuple[str, ...] = ()
    causes: tuple[Match, ...] = ()

    @property
    def words(self) -> str:
        """``name (first cause): meaning``."""
        cause = f" ({self.causes[0].signature.name})" if self.causes else ""
        return f"{self.name}{cause}: {self.meaning}"

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "causes": [cause.as_dict() for cause in self.causes],
        }


def diagnose(state: UnitState, journal: str, engine: str) -> Diagnosis:
    """Name the fault of a start from the unit's state and this start's journal (``_systemd.journal``)."""
    lines = [line.strip() for line in journal.splitlines()]
    name, meaning, remedy = _ending(state, lines)
    causes = tuple(match_log(engine, journal))
    if causes:
        meaning, remedy = f"{meaning}; {causes[0].signature.meaning}", causes[0].signature.remedy
    told = dict.fromkeys([line for line in lines if _TELLING.search(line)] + [cause.line for cause in causes])
    return Diagnosis(name, meaning, remedy, tuple(told)[-_EVIDENCE:], causes)


def told_by_log(fault: FleetError, journal: str, engine: str) -> FleetError:
    """``fault`` of a server that runs on, with what its start's log knows of causes; itself where that is nothing."""
    causes = match_log(engine, journal)
    if not causes:
        return fault
    told = "".join(
        f"\n  {cause.signature.name}: {cause.signature.meaning}. {cause.signature.remedy}.\n    {cause.line}"
        for cause in causes
    )
    return FleetError(
        fault.what,
        expected=fault.expected,
        found=fault.found,
        remedy=f"{(fault.remedy or 'See its log').rstrip('.')}.\nThe log of this start tells:{told}",
        **fault.facts,
        signatures=[cause.as_dict() for cause in causes],
    )


def _last_exit(state: UnitState, lines: list[str]) -> tuple[str, int]:
    """(exited, killed, dumped or nothing; status or signal) of the last main process that ended."""
    if state.exit_code in _CODES:
        return _CODES[state.exit_code], int(state.exit_status or 0)
    for line in reversed(lines):  # systemd forgets it when it starts the unit again
        ended = _ENDED.search(line)
        if ended:
            return ended[1], int(ended[2])
    return "", 0


def _ending(state: UnitState, lines: list[str]) -> tuple[str, str, str]:
    """(name, meaning, remedy) from systemd alone, what says most first."""

    def said(words: str) -> bool:
        return any(words in line for line in lines)

    if state.load_state != "loaded":
        meaning = f"systemd has no sound unit of this name ({state.load_state})"
        return "unit not loaded", meaning, "See what systemd says of the unit file below, then run site.yml"
    how, status = _last_exit(state, lines)
    looping = state.n_restarts > 0 or state.sub_state.startswith("auto-restart")
    again = f"; systemd has started it again {state.n_restarts} times" if state.n_restarts else ""
    if said("Start request repeated too quickly"):
        name, meaning, remedy = _RESULTS["start-limit-hit"]
        return name, f"{meaning}; {_exit_words(how, status)}", remedy
    if how == "exited" and 200 <= status <= _LAST_STEP:
        name, meaning, remedy = _STEPS.get(
            status, ("", "systemd could not set up what the unit asks for", "See the step that systemd names below")
        )
        return f"{status}/{name}".rstrip("/"), meaning + again, remedy
    if how == "exited" and status in _LAUNCHER:
        name, meaning, remedy = _LAUNCHER[status]
        return f"{name} (exit status {status})", meaning + again, remedy
    if state.result == "timeout":
        if said("State 'stop-"):
            return "stop timeout", "it did not stop in the time it has", "Raise timeout_stop_s of the endpoint"
        meaning = "it was not up in the time that the unit gives a start, and systemd ended it"
        return "start timeout", meaning + again, "Raise deadline_s of the endpoint, or find what it waits for"
    if state.result in _RESULTS:
        name, meaning, remedy = _RESULTS[state.result]
        return name, meaning + again, remedy
    if said("killed by the OOM killer"):  # of an earlier start in a loop
        name, meaning, remedy = _RESULTS["oom-kill"]
        return name, meaning + again, remedy
    if looping:
        times = f"{state.n_restarts} times" if state.n_restarts else "once more"
        return "crash loop", f"{_exit_words(how, status)}, and systemd starts it again ({times} so far)", _SEE_LOG
    return _single(state, how, status, stopped=said("Stopping "))


def _single(state: UnitState, how: str, status: int, *, stopped: bool) -> tuple[str, str, str]:
    """The ending of a start that systemd did not repeat."""
    if state.active_state in ("active", "activating", "reloading"):
        return "not ready", f"it still runs ({state.words}) and does not answer", "Raise deadline_s if it still loads"
    if stopped:
        return "stopped", "somebody or something stopped the unit", "See who did (journalctl), and run site.yml"
    if how in ("killed", "dumped"):
        killed = status == signal.SIGKILL
        remedy = "See journalctl -k for the kernel's OOM killer; else somebody killed it" if killed else _SEE_LOG
        return f"killed by {_signal_name(status)}", _exit_words(how, status), remedy
    if how == "exited" and status:
        return f"exit status {status}", _exit_words(how, status), _SEE_LOG
    return (
        "early exit",
        "it ended by itself with status 0 and serves nothing, which systemd takes for success",
        "See what ExecStart waits for: a launcher must exec the server, or end with the status of what it started",
    )


def _signal_name(number: int) -> str:
    return signal.Signals(number).name.removeprefix("SIG") if number in set(signal.Signals) else f"signal {number}"


def _exit_words(how: str, status: int) -> str:
    if how in ("killed", "dumped"):
        return f"signal {_signal_name(status)} ended it" + (" and left a core dump" if how == "dumped" else "")
    return f"it ended with exit status {status}" if how else "it did not come to run"
