# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a module ends: a result, or one clear message."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._module import run_module


def ended(capsys: pytest.CaptureFixture[str], work: Any, given: dict[str, Any] | None = None, **kw: Any) -> Any:
    with patch_module_args(given or {}), pytest.raises(SystemExit) as caught:
        run_module({"name": {"type": "str"}}, work, **kw)
    return caught.value.code, json.loads(capsys.readouterr().out)


def test_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ended(capsys, lambda module: {"changed": True, "x": module.params["name"]}, {"name": "n"})
    assert (code, told["changed"], told["x"]) == (0, True, "n")


def test_a_refusal_has_its_facts_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_module: basic.AnsibleModule) -> dict[str, Any]:
        raise FleetError("w", expected="e", found="f", gate="port")

    code, told = ended(capsys, work)
    assert code == 1
    assert told["failed"] is True
    assert (told["msg"], told["expected"], told["found"], told["gate"]) == ("w; expected e; found f.", "e", "f", "port")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/etc/x"), "/etc/x: No space left on device"),
        (OSError("odd"), "the host: odd"),
    ],
)
def test_a_fault_of_the_system_names_the_path(capsys: pytest.CaptureFixture[str], error: OSError, message: str) -> None:
    def work(_module: basic.AnsibleModule) -> dict[str, Any]:
        raise error

    code, told = ended(capsys, work)
    assert code == 1
    assert told["msg"].startswith(message)


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ended(capsys, lambda _module: {}, {"nmae": "n"})
    assert code == 1
    assert "nmae" in told["msg"]


def test_options_reach_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ended(capsys, lambda _module: {}, required_one_of=[("name",)])
    assert (code, "name" in told["msg"]) == (1, True)
