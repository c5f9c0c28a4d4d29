# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's own count beside the ledger, and in its place; a stand-in prints what llama-fit-params would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import gate_fit
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_model import UnknownMemory

MODELS = Path(__file__).parents[1] / "fixtures" / "probe_model"
MIB = 2**20


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declared:
    monkeypatch.setattr(_proc, "available_bytes", lambda: 64000 * MIB)
    env = {"BIND_ADDR": "127.0.0.1", "LISTEN_PORT": 8080, "ALIAS": "toy", "CTX_SIZE": 2048, "PARALLEL": 1}
    files = [{"name": "toy.gguf", "role": "model"}]
    payload = {"name": "toy", "dir": str(MODELS), "files": files}
    return Declared("chat", "llamacpp", env, "cpu", payload, "llm", "#!/bin/bash\n")


def facts(tmp_path: Path, answer: str | None) -> dict[str, Any]:
    """A blueprint's facts; ``answer`` is what the stand-in for the tool prints, None where the runtime has none."""
    if answer is not None:
        tool = tmp_path / "llama-fit-params"
        tool.write_text(f"#!/bin/sh\n# stand-in for llama-fit-params\necho '{answer}'\n")
        tool.chmod(0o755)
    server = str(tmp_path / "llama-server")
    argv = [server, "--model", str(MODELS / "toy.gguf"), "--ctx-size", "2048", "--parallel", "1"]
    return {"env": {}, "argv": argv, "runtime": {"server_bin": server}}


def test_a_runtime_without_the_tool_is_not_asked(declared: Declared, tmp_path: Path) -> None:
    gates = Gates()
    assert gate_fit(declared, None, None, gates, facts(tmp_path, None)).told["fits"]
    assert [row["gate"] for row in gates.passed] == ["kinship", "second opinion", "fit"]


def test_two_opinions_that_agree_pass(declared: Declared, tmp_path: Path) -> None:
    gates = Gates()
    found = gate_fit(declared, None, None, gates, facts(tmp_path, "Host 1 2 5"))
    assert found.ledger is not None
    assert [row["gate"] for row in gates.passed] == ["kinship", "second opinion", "fit", "second opinion"]


def test_two_opinions_that_differ_stop_the_deploy_and_both_are_shown(declared: Declared, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"disagree: context of Host 2\.00 against 200") as caught:
        gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 1 200 7"))
    assert caught.value.facts["gate"] == "second opinion"
    assert "2.00" in str(caught.value.expected) and "200" in str(caught.value.found)


def test_of_an_unknown_model_the_engines_count_is_taken(
    declared: Declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_args: Any, **_options: Any) -> Any:
        raise UnknownMemory("architecture new", expected="another", found="new")

    monkeypatch.setattr("ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot.Plan.of", unknown)
    with pytest.raises(UnknownMemory):
        gate_fit(declared, None, None, Gates(), facts(tmp_path, None))
    found = gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 100 20 3"))
    host = found.told["host"]
    assert (host["weights_mib"], host["kv_mib"], host["compute_mib"], found.told["fits"]) == (101, 21, 4, True)
    assert found.ledger is None
    monkeypatch.setattr(_proc, "available_bytes", lambda: 120 * MIB)
    with pytest.raises(FleetError, match=r"endpoint chat does not fit the host; .*found 126 MiB needed"):
        gate_fit(declared, None, None, Gates(), facts(tmp_path, "Host 100 20 3"))
