# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates' order, their record, and whose a failure is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import GATES, Gates

CODE = Path(__file__).parents[2] / "plugins" / "module_utils"


def test_a_red_gate_is_recorded_and_names_itself(tmp_path: Path) -> None:
    gates = Gates()
    with gates.gate("port"):
        pass
    with pytest.raises(FleetError) as caught, gates.gate("fit"):
        raise FleetError("too big", expected="5 MiB", found="7 MiB", remedy="Take less")
    assert caught.value.facts["gate"] == "fit"
    assert [(row["gate"], row["ok"]) for row in caught.value.facts["gates"]] == [("port", True), ("fit", False)]
    with pytest.raises(OSError), gates.gate("drain"):
        raise OSError(5, "I/O error")
    gates.write(str(tmp_path / "last-run.json"), kind="deploy")
    told = json.loads((tmp_path / "last-run.json").read_text())
    assert told["kind"] == "deploy" and told["at"].endswith("+00:00")
    assert all(row.pop("seconds") >= 0 for row in told["gates"])
    error = {"what": "too big", "expected": "5 MiB", "found": "7 MiB", "remedy": "Take less"}
    assert told["gates"] == [
        {"gate": "port", "ok": True},
        {"gate": "fit", "ok": False, "error": error},
        {"gate": "drain", "ok": False},
    ]


def test_a_gate_within_a_check_keeps_its_name() -> None:
    with pytest.raises(FleetError) as caught, Gates().gate("health"):
        raise FleetError("x", gate="hold")
    assert caught.value.facts["gate"] == "hold"


def test_what_the_system_refuses_is_a_fault_of_the_gate_that_it_was_in() -> None:
    gates = Gates()
    assert gates.red is None
    with pytest.raises(OSError) as caught, gates.gate("stage"):
        raise OSError(28, "No space left on device", "/x/y")
    fault = gates.fault(caught.value, "deploy of chat")
    assert fault.message == "deploy of chat: [Errno 28] No space left on device: '/x/y'."
    assert fault.facts["gate"] == gates.red == "stage"
    assert gates.fault(fault, "else") is fault
    with gates.gate("port"):
        pass
    assert gates.red is None  # what went on was not stopped by it


def test_there_are_no_other_gates() -> None:
    with pytest.raises(ValueError, match="no gate is called 'luck'"), Gates().gate("luck"):
        pass


def test_the_code_holds_each_gate_and_no_other() -> None:
    code = "".join(
        (CODE / name).read_text()
        for name in ("_endpoint.py", "_gate_fit.py", "_deploy.py", "_cutover.py", "_r9v_gates.py")
    )
    assert set(re.findall(r"gates?\.gate\(\"([a-z -]+)\"\)", code)) == {gate.name for gate in GATES}
