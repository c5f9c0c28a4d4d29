# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin of this scenario: SIGKILL to ansible-playbook and its workers where task number KILL_AT begins."""

from __future__ import annotations

import os
import signal

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: kill_at
type: aggregate
short_description: Kill the controller at a task boundary
description:
  - Ends the process group of ansible-playbook with SIGKILL where the task of this number begins, or at the play's end.
options: {}
"""


class CallbackModule(CallbackBase):
    """Counts the tasks that begin; the end of all plays counts as one more."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "kill_at"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0

    def _boundary(self, name: str) -> None:
        self._begun += 1
        if self._begun == int(os.environ["KILL_AT"]):
            with open(os.environ["KILLED_BEFORE"], "w", encoding="utf-8") as handle:
                handle.write(name)
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def v2_playbook_on_task_start(self, task, is_conditional) -> None:
        """A task begins."""
        self._boundary(task.get_name())

    def v2_playbook_on_stats(self, stats) -> None:
        """All tasks are over."""
        self._boundary("the end")
