# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module's ``main()`` shares: the AnsibleModule, one function, and faults as one clear message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["run_module"]


def run_module(
    argument_spec: dict[str, Any],
    work: Callable[[AnsibleModule], dict[str, Any]],
    *,
    supports_check_mode: bool = True,
    **options: Any,
) -> None:
    """Run ``work(module)`` and exit with its result dictionary (``changed``, ``diff``, ...)."""
    module = AnsibleModule(argument_spec=argument_spec, supports_check_mode=supports_check_mode, **options)
    try:
        result = work(module)
    except FleetError as exc:
        module.fail_json(**exc.as_result())
    except OSError as exc:  # a full disk, a read-only file system, a missing right: the path and the kernel's words
        module.fail_json(msg=f"{exc.filename or 'the host'}: {exc.strerror or exc} (while running {module._name}).")
    module.exit_json(**result)
