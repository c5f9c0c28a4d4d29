# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation shared by the modules: what check mode, diff mode and a second run do."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes, to be narrowed by each module."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and returns what would change without changing anything.
  diff_mode:
    description: Returns what changed (or would change) in C(--diff) mode.
  idempotent:
    description: A second run with the same inputs on an unchanged host changes nothing.
"""

    # For modules that only look.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and returns what would change without changing anything.
    support: full
    details:
      - This module changes nothing, in check mode or out of it.
  diff_mode:
    description: Returns what changed (or would change) in C(--diff) mode.
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    description: A second run with the same inputs on an unchanged host changes nothing.
    support: full
    details:
      - This module changes nothing.
"""
