# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transient units of a trial, and how they make the host itself bring back what served.

Two kinds. The guard stands for the whole trial: it conflicts with what serves, so that one transaction of systemd stops
that and starts the guard, and whatever ends the guard starts it again (``OnSuccess=``, ``OnFailure=``). The guard waits
for the endpoint's lock, which the kernel takes from the module when it dies; ``RuntimeMaxSec=`` bounds a module that
hangs. Each candidate is bound to the guard (``BindsTo=``) and conflicts with what serves as well: that starts only once
the candidate has stopped. After a restart of the host none of them is left, and what serves is enabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths

__all__ = ["TrialPaths", "candidate_command", "guard_command", "service_properties"]

# Of the endpoint's unit, what a boot for measuring does not have: it is looked at, and not started again.
_NOT_IN_A_TRIAL = ("ExecStart", "Restart", "RestartSec", "RestartPreventExitStatus")


@dataclass(frozen=True)
class TrialPaths(Paths):
    """Where candidate ``number`` of the endpoint's trial ``trial`` (its id) lies.

    No two trials share a name: systemd keeps a guard's for as long as what it started runs.
    """

    trial: str = ""
    number: int = 1

    @classmethod
    def of(cls, paths: Paths, trial: str, number: int) -> TrialPaths:
        """The paths of a candidate beside the endpoint's."""
        return cls(**{one.name: getattr(paths, one.name) for one in fields(Paths)}, trial=trial, number=number)

    @property
    def run_name(self) -> str:
        """The run directory's name under /run; it goes away with the guard."""
        return f"llm-fleet-trial-{self.endpoint}-{self.trial}"

    @property
    def guard(self) -> str:
        """The unit that stands for the whole trial."""
        return f"{self.run_name}.service"

    @property
    def unit(self) -> str:
        """The candidate's unit."""
        return f"{self.run_name}-{self.number}.service"

    @property
    def env_file(self) -> str:
        """The candidate's env file."""
        return f"/run/{self.run_name}/{self.number}.env"


def _systemd_run(unit: str, properties: Sequence[str], argv: Sequence[str]) -> list[str]:
    given = [f"--property={line}" for line in properties]
    return ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *given, "--", *argv]


def guard_command(
    trial: TrialPaths,
    lock_path: str,
    *,
    count: int,
    makes_way: Sequence[str],
    comes_back: Sequence[str],
    limit_s: float,
    also: Sequence[str] = (),
) -> list[str]:
    """The command that starts the guard of a trial of ``count`` candidates.

    ``makes_way`` are the units that may not run beside it, ``comes_back`` those that start when it ends; ``limit_s``
    seconds after its start it ends in any case. ``also`` are further lines of its ``[Service]``.
    """
    others = [replace(trial, number=number).unit for number in range(1, count + 1)]
    properties = [
        f"Description=Trial of LLM endpoint {trial.endpoint}",
        "Type=exec",
        f"Conflicts={' '.join(makes_way)}",
        f"After={' '.join(makes_way)}",
        f"Before={' '.join(others)}",  # also keeps the state of one that has ended, to be read
        f"RuntimeDirectory={trial.run_name}",
        f"RuntimeMaxSec={limit_s:g}",
        *also,
    ]
    if comes_back:
        units = " ".join(comes_back)
        properties += [f"OnSuccess={units}", f"OnFailure={units}"]
    # It ends by itself only when the module is gone, and then fails: OnFailure= replaces jobs that are under way, where
    # OnSuccess= would give up.
    return _systemd_run(trial.guard, properties, ["flock", lock_path, "false"])


def service_properties(unit_text: str) -> list[str]:
    """The lines of a unit's ``[Service]`` that a trial shares with it, as they stand."""
    _, _, service = unit_text.partition("\n[Service]\n")
    lines = service.partition("\n\n")[0].splitlines()
    return [line for line in lines if line.partition("=")[0] not in _NOT_IN_A_TRIAL]


def candidate_command(trial: TrialPaths, unit_text: str, launcher: str, makes_way: Sequence[str]) -> list[str]:
    """The command that starts a candidate with the limits of ``unit_text``, the endpoint's unit for its env file."""
    properties = [
        f"Description=LLM endpoint {trial.endpoint}, trial {trial.number}",
        f"BindsTo={trial.guard}",
        f"After={' '.join([trial.guard, *makes_way])}",
        f"Conflicts={' '.join(makes_way)}",
        *service_properties(unit_text),
        "OOMScoreAdjust=1000",  # where the host's memory ends, the trial is what has to go
    ]
    return _systemd_run(trial.unit, properties, [launcher])
