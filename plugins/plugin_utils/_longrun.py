# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugins for long modules: plan in one call, work in the background, progress on the user's screen.

The module must take ``plan_only`` and ``progress_file`` and return ``changed`` and ``work``. A host with nothing to
do costs one module call. Long work is detached from the controller: when the controller goes away it runs on, and the
next run waits for nobody but meets the module's lock. Variable ``llm_progress: false`` keeps the screen quiet.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import merge_hash
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import CONTROLLER

__all__ = [
    "Lines",
    "LongRunAction",
    "amount",
    "controller",
    "duration",
    "file_line",
    "left_nothing",
    "parse_poll",
    "progress_line",
    "size",
]

display = Display()

_SEPARATOR = "--llm-fleet--"
_POLL_S = 2.0
_SHOW_EVERY_S = 5.0
_PATIENCE = 45  # polls without a connection before giving up on watching


def duration(seconds: float) -> str:
    """``45s``, ``3m10s`` or ``2h05m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def size(count: float, unit: str) -> str:
    """``count`` bytes in the decimal ``unit`` (kB, MB, GB), one digit after the point below ten of them."""
    value = count / {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _unit_for(count: float) -> str:
    return "GB" if count >= 1e9 else "MB" if count >= 1e6 else "kB"


def amount(done: int, total: int, unit: str) -> str:
    """``131/218 steps``, ``1.2/5.0 GB``, ``12 MB`` where the total is unknown, or nothing where nothing is counted."""
    if unit == "B":
        if not done and not total:
            return ""
        scale = _unit_for(max(done, total))
        return f"{size(done, scale)}/{size(total, scale)} {scale}" if total else f"{size(done, scale)} {scale}"
    if not total:
        return ""
    return f"{done}/{total} {unit}".rstrip()


def progress_line(host: str, title: str, state: Mapping[str, Any], rate: float | None = None) -> str:
    """One line for the user; ``state`` is what the progress file holds, ``rate`` bytes a second."""
    done, total, unit = int(state.get("done") or 0), int(state.get("total") or 0), str(state.get("unit") or "")
    step = " ".join(part for part in (str(state.get("step") or "at work"), amount(done, total, unit)) if part)
    parts = [step]
    if state.get("text"):
        parts.append(str(state["text"]))
    if rate and unit == "B":
        scale = _unit_for(rate)
        parts.append(f"{size(rate, scale)} {scale}/s")
    parts.append(duration(float(state.get("elapsed_s") or 0)))
    left = (total - done) / rate if rate and unit == "B" and total > done else state.get("eta_s")
    if left is not None and done < total:
        parts.append(f"about {duration(float(left))} left")
    return f"[{host}] {title}: {', '.join(parts)}"


def file_line(host: str, file: Mapping[str, Any]) -> str:
    """One line for a file in work, an entry of ``files`` in the progress file."""
    done, total, rate = int(file.get("done") or 0), int(file.get("total") or 0), file.get("rate")
    phase = str(file.get("note") or file.get("phase") or "")
    parts = [" ".join(part for part in (phase, amount(done, total, "B")) if part)]
    if rate:
        scale = _unit_for(rate)
        parts.append(f"{size(rate, scale)} {scale}/s")
        if total > done:
            parts.append(f"about {duration((total - done) / rate)} left")
    return f"[{host}]   {file.get('name', '')}: {', '.join(parts)}"


def _phases(state: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(file.get("name"), file.get("phase")) for file in state.get("files") or ()]


def controller() -> str:
    """``user@host`` of this machine, for those who meet a lock that this run holds."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Lines:
    """Decides which states become lines: each new step at once, else what moved, at most every five seconds.

    Below the line of the whole stand those of the files in work; a payload's only file gives the whole its phase.
    """

    def __init__(self, host: str, title: str, *, quiet: bool = False) -> None:
        self.host, self.title, self.quiet = host, title, quiet
        self._shown: Mapping[str, Any] = {}
        self._shown_at = float("-inf")
        self._sample: tuple[float, int] | None = None

    def feed(self, state: Mapping[str, Any], now: float) -> str | None:
        """The lines to show for ``state`` seen at ``now`` (seconds of any clock), or None."""
        if self.quiet:
            return None
        same_step = state.get("step") == self._shown.get("step") and state.get("text") == self._shown.get("text")
        if same_step and now - self._shown_at < _SHOW_EVERY_S:
            return None
        if same_step and state.get("done") == self._shown.get("done") and _phases(state) == _phases(self._shown):
            return None
        done = int(state.get("done") or 0)
        rate = None
        if self._sample is not None and same_step and now > self._sample[0] and done > self._sample[1]:
            rate = (done - self._sample[1]) / (now - self._sample[0])
        self._sample = (now, done)
        self._shown, self._shown_at = dict(state), now
        files = list(state.get("files") or ())
        alone = len(files) == 1 and files[0].get("name") == state.get("text") and not files[0].get("note")
        if alone and files[0].get("phase"):
            state = {**state, "step": files[0]["phase"]}
        line = progress_line(self.host, self.title, state, state.get("rate") or rate)
        below = () if alone else files
        return "\n".join([line, *(file_line(self.host, file) for file in below)])


def parse_poll(output: str) -> tuple[dict[str, Any] | None, bool, bool]:
    """``(progress, finished, alive)`` of one look at the host; see ``LongRunAction._look`` for what it prints.

    An unreadable or missing progress file is None; a missing result file counts as not finished.
    """
    progress, job, alive = [*output.split(_SEPARATOR), "", ""][:3]
    state = _json(progress)
    result = _json(job)
    finished = result is not None and result.get("finished", True) not in (False, 0)
    return state, finished, alive.strip() == "alive"


def left_nothing(done: Mapping[str, Any]) -> bool:
    """Whether these are the async wrapper's own words on a module that printed no result."""
    return bool(done.get("failed")) and "cmd" in done and not str(done.get("data", "a result")).strip()


def _json(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class LongRunAction(ActionBase):
    """Run ``self._task.action``: plan, then nothing, or a short call, or the long one in the background."""

    _supports_check_mode = True
    title = "work"
    # Whether the module, in check mode, does long work that only looks.
    check_mode_works = False
    limit_s = 24 * 3600

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, of the plan where that is all there is to say."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        asked = dict(self._task.args)
        self._task.environment = [*(self._task.environment or []), {CONTROLLER: controller()}]
        if asked.get("plan_only"):
            return dict(merge_hash(result, self._execute_module(module_args=asked, task_vars=variables)))
        plan = self._execute_module(module_args={**asked, "plan_only": True}, task_vars=variables)
        dry = self._task.check_mode and not self.check_mode_works
        if plan.get("failed") and plan.get("gate") and not dry:
            # Red again in the run itself, which then leaves its record on the host.
            return dict(merge_hash(result, self._in_background(asked, variables)))
        if plan.get("failed") or dry or not (plan.get("changed") or plan.get("work")):
            return dict(merge_hash(result, plan))
        if not plan.get("work"):
            return dict(merge_hash(result, self._execute_module(module_args=asked, task_vars=variables)))
        return dict(merge_hash(result, self._in_background(asked, variables)))

    def _in_background(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Start the module detached, show its progress, return its result."""
        host = str(task_vars.get("inventory_hostname") or self._play_context.remote_addr)
        quiet = not boolean(task_vars.get("llm_progress", True))
        lines = Lines(host, f"{self.title} {args.get('name', '')}".strip(), quiet=quiet)
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        progress_file = args.get("progress_file")
        if not progress_file and not self._is_become_unprivileged():
            # in the folder that goes away with the job, whatever becomes of it
            progress_file = self._connection._shell.join_path(self._connection._shell.tmpdir, "progress")
            args = {**args, "progress_file": progress_file}

        asked_async, self._task.async_val = self._task.async_val, self.limit_s
        try:
            started: dict[str, Any] = self._execute_module(module_args=args, task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = asked_async
            self._cleanup_remote_tmp = True  # the wrapper removes its own folder, later calls have theirs
        job, results_file = started.get("ansible_job_id"), started.get("results_file")
        if started.get("failed") or not job or not results_file:
            return started

        self._watch(str(job), str(results_file), str(progress_file or ""), lines)
        done: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.async_status",
            module_args={"jid": job, "mode": "status", "_async_dir": results_file.rpartition("/")[0]},
            task_vars=task_vars,
        )
        self._low_level_execute_command(f"rm -f {shlex.quote(results_file)}")
        if left_nothing(done):
            last = str(done.get("stderr") or "").strip().splitlines()[-1:]
            raise AnsibleActionFail(
                f"{lines.title}: the module on {host} ended and left no result: it was killed, or the host restarted. "
                "Run again; finished parts are kept." + "".join(f" Its last words: {line}" for line in last)
            )
        for key in ("ansible_job_id", "started", "finished", "results_file"):
            done.pop(key, None)
        return done

    def _watch(self, job: str, results_file: str, progress_file: str, lines: Lines) -> None:
        """Return when the job has left its result; show what it says until then."""
        silent, gone, begun = 0, 0, time.monotonic()
        controller_pid = os.getppid()
        while True:
            time.sleep(min(_POLL_S, 0.5 + (time.monotonic() - begun) / 10))  # short work must not wait for a long pause
            if os.getppid() != controller_pid:
                # Killed. Ansible's worker, which this is, would ask the host until the work is done, and then hang.
                raise AnsibleActionFail(f"{lines.title}: ansible-playbook is gone; the work on {lines.host} goes on")
            try:
                state, finished, alive = parse_poll(self._look(job, results_file, progress_file))
            except AnsibleConnectionFailure as exc:
                silent += 1
                if silent >= _PATIENCE:
                    raise AnsibleActionFail(
                        f"{lines.title}: no connection to {lines.host} any more ({exc}). The work goes on there; "
                        "run again when the host answers."
                    ) from exc
                if hasattr(self._connection, "reset"):
                    self._connection.reset()
                continue
            silent = 0
            if finished:
                return
            if state is not None and (line := lines.feed(state, time.monotonic())):
                display.display(line)
            gone = 0 if alive else gone + 1
            if gone >= 3:
                self._low_level_execute_command(f"rm -f {shlex.quote(results_file)}")
                raise AnsibleActionFail(
                    f"{lines.title}: the background job on {lines.host} is gone and left no result: it was killed, or "
                    "the host restarted. Run again; finished parts are kept."
                )

    def _look(self, job: str, results_file: str, progress_file: str) -> str:
        """The progress file, the job's result file and whether any of its processes lives, in one cheap command."""
        token = job.partition(".")[0]
        pattern = f"{token[0]}[{token[1]}]{token[2:]}"
        folder, _, name = results_file.rpartition("/")
        # The shell that looks must not be taken for the job: nowhere in its command line does the token stand whole.
        command = (
            f"a={shlex.quote(name[:1])}; b={shlex.quote(name[1:])}; "
            f"cat {shlex.quote(progress_file or '/dev/null')} 2>/dev/null; echo {_SEPARATOR}; "
            f'cat {shlex.quote(folder)}/"$a$b" 2>/dev/null; echo {_SEPARATOR}; '
            f"grep -qs -- {shlex.quote(pattern)} /proc/[0-9]*/cmdline && echo alive || true"
        )
        return str(self._low_level_execute_command(command)["stdout"])
