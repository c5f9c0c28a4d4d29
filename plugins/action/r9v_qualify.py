# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of module r9v_qualify: what a qualification is doing, while it lasts."""

from __future__ import annotations

from ansible_collections.dank.llm_fleet.plugins.plugin_utils._longrun import LongRunAction


class ActionModule(LongRunAction):
    """See the base class."""

    title = "qualification"
