# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of its cards and endpoints, and the program's place on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _facts, _series
from ansible_collections.dank.llm_fleet.plugins.module_utils import _facts_install as install
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._certificate import certify
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._facts import (
    card_samples,
    endpoint_samples,
    endpoints_of,
    gate_samples,
    metrics_status,
    proof_samples,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB
from ansible_collections.dank.llm_fleet.plugins.module_utils._promql import exposed
from ansible_collections.dank.llm_fleet.plugins.module_utils._series import FAMILIES, Sample, text
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Observed
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import ERA_VARIABLE
from hypothesis import given
from hypothesis import strategies as st
from test_truth import STATE

PROGRAM = Path(__file__).resolve().parents[2] / "roles" / "monitoring" / "files" / "llm-fleet-facts"
CARD = {"name": "c", "vendor": "nvidia", "uuid": "GPU-1", "floor_mib": 1024}
LABEL = {"endpoint": "chat"}


def told(samples: list[Sample]) -> dict[str, float]:
    return {sample.name.removeprefix("llm_fleet_"): sample.value for sample in samples}


# The text format


def test_each_family_once_in_order_with_help_and_type() -> None:
    found = text(
        [
            Sample("llm_fleet_endpoint_true", 1, {"endpoint": "b"}),
            Sample("llm_fleet_facts_errors", 0),
            Sample("llm_fleet_endpoint_true", 0.25, {"endpoint": 'a"\\\n'}),
        ]
    )
    assert found == (
        "# HELP llm_fleet_facts_errors Endpoints and card drivers that could not be read.\n"
        "# TYPE llm_fleet_facts_errors gauge\n"
        "llm_fleet_facts_errors 0\n"
        "# HELP llm_fleet_endpoint_true 1 where what runs is what was deployed.\n"
        "# TYPE llm_fleet_endpoint_true gauge\n"
        'llm_fleet_endpoint_true{endpoint="b"} 1\n'
        'llm_fleet_endpoint_true{endpoint="a\\"\\\\\\n"} 0.25\n'
    )


def test_a_name_that_is_no_familys_is_refused() -> None:
    with pytest.raises(KeyError, match="llm_fleet_made_up"):
        text([Sample("llm_fleet_made_up", 1)])


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_a_number_reads_back_and_a_label_stays_on_its_line(value: float, label: str) -> None:
    line = Sample("llm_fleet_facts_errors", value, {"x": label}).line()
    assert float(line.rpartition(" ")[2]) == value
    assert "\n" not in line


@pytest.mark.parametrize("name", FAMILIES)
def test_a_counter_alone_is_a_total(name: str) -> None:
    assert (FAMILIES[name][0] == "counter") == name.endswith("_total")


# Cards


def test_memory_and_floor_of_a_card(stand_in: Any) -> None:
    stand_in("nvidia-smi", "echo '00000000:01:00.0, GPU-1, 24576, 900'")
    assert told(card_samples([CARD])) == {
        "card_total_bytes": 24576 * MIB,
        "card_free_bytes": 900 * MIB,
        "card_floor_bytes": 1024 * MIB,
    }
    without = {key: value for key, value in CARD.items() if key != "floor_mib"}
    assert "card_floor_bytes" not in told(card_samples([without]))


def test_a_card_of_unknown_address_is_not_asked_for() -> None:
    assert card_samples([{**CARD, "uuid": None, "pci": "unknown"}]) == []


# Endpoints


@pytest.fixture
def era(tmp_path: Path, blueprint: Any) -> Era:
    """A certified era that declares drafting and one probe of its own."""
    store = EraStore(str(tmp_path / "state" / "chat"))
    (tmp_path / "state" / "chat").mkdir(parents=True)
    facts = blueprint("a").facts
    env = {**facts["env"], "SPEC_TYPE": "draft-mtp", "METRICS": "1"}
    probes = {**facts["probes"], "acceptance": {"drafting": 0.3}, "custom": [{"name": "x", "body": {}, "expect": []}]}
    staged = store.stage(blueprint("a", env=env, probes=probes))
    declared = _facts.declare(staged.blueprint.facts)
    names = [*declared.capabilities, "custom:x"]
    passed = [{"probe": name, "verdict": "pass"} for name in names]
    certificate = certify(
        staged.blueprint.digest, staged.blueprint.facts, truth=[], probes=passed, ledger={}, gap_s=0, fit=None
    )
    return store.commit(staged, certificate)


def test_a_whole_certificate(era: Era) -> None:
    found = told(proof_samples(era, LABEL))
    at = datetime.fromisoformat(era.meta["certificate"]["at"]).timestamp()
    assert found == {
        "certificate_expired_probes": 0,
        "certificate_timestamp_seconds": at,
        "endpoint_slots": 2,
        "endpoint_acceptance_floor": 0.3,
    }


@pytest.mark.parametrize("fault", ["a probe failed", "changed", "none"])
def test_a_lost_proof_is_counted(era: Era, fault: str) -> None:
    certificate = json.loads(json.dumps(era.meta["certificate"]))
    count = len(certificate["probes"])
    if fault == "a probe failed":
        failed = [
            {**probe, "verdict": "fail"} if probe["probe"] == "chat" else probe for probe in certificate["probes"]
        ]
        certificate = certify(
            era.blueprint.digest, era.blueprint.facts, truth=[], probes=failed, ledger={}, gap_s=0, fit=None
        )
    elif fault == "changed":
        certificate["gap_s"] = 1
    meta = {key: value for key, value in era.meta.items() if key != "certificate"}
    spoilt = replace(era, meta=meta if fault == "none" else {**meta, "certificate": certificate})
    found = told(proof_samples(spoilt, LABEL))
    assert found["certificate_expired_probes"] == (1 if fault == "a probe failed" else count)
    assert ("certificate_timestamp_seconds" in found) == (fault != "none")


def test_gates_of_the_last_run() -> None:
    at = "2026-01-02T03:04:05+00:00"
    seconds = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    green = {"at": at, "gates": [{"gate": "start", "ok": True}]}
    assert gate_samples(None, LABEL) == []
    assert gate_samples(green, LABEL) == [
        Sample("llm_fleet_last_run_timestamp_seconds", seconds, LABEL),
        Sample("llm_fleet_last_run_red", 0, {**LABEL, "gate": ""}),
    ]
    red = {"at": at, "gates": [*green["gates"], {"gate": "probes", "ok": False}, {"gate": "start", "ok": False}]}
    assert gate_samples(red, LABEL)[1] == Sample("llm_fleet_last_run_red", 1, {**LABEL, "gate": "probes"})


def test_an_endpoint_is_what_has_an_era_or_a_deploy_that_failed(era: Era, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "payloads").mkdir()
    (state / "staged" / "eras").mkdir(parents=True)
    (state / "failed").mkdir()
    red = {"at": "2026-01-02T03:04:05+00:00", "gates": [{"gate": "port", "ok": False}]}
    (state / "failed" / "last-run.json").write_text(json.dumps(red))
    (state / "a-file").touch()
    assert endpoints_of(str(state)) == ["chat", "failed"]
    assert endpoints_of(str(tmp_path / "nowhere")) == []
    found = endpoint_samples(Paths("failed", state=str(state)), 0.0)
    assert found == gate_samples(red, {"endpoint": "failed"}) and len(found) == 2


R9V_ENV = {
    "R9V_STATE_FILE": "/s/setup.json",
    "R9V_SERVED_MODEL_NAME": "big",
    "R9V_HOST_BIND": "127.0.0.1",
    "R9V_HOST_PORT": "1",
    "R9V_CONTAINER_NAME": "big",
}


@pytest.mark.parametrize(
    ("broken", "true"),
    [({}, 1), ({"unit_text": "[Unit]\n"}, 0), ({"environ": {}}, 0), ({"drop_ins": ("/x.conf",)}, 0)],
)
def test_of_r9v_the_units_part_of_the_chain_is_told(
    tmp_path: Path, blueprint: Any, monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], true: int
) -> None:
    paths = Paths("big", state=str(tmp_path))
    store = EraStore(paths.store)
    era = store.commit(store.stage(blueprint("a", engine="r9v", env=R9V_ENV)), {})
    seen = Observed(
        unit=replace(STATE, fragment_path=paths.unit_file, drop_in_paths=()),
        exe="",
        argv=(),
        owners=(),
        health="HTTP 200",
        unit_text=era.blueprint.unit_text,
        env_text=era.blueprint.env_text,
        environ={**R9V_ENV, ERA_VARIABLE: era.blueprint.digest},
        props={"error": "HTTP 404"},
    )
    monkeypatch.setattr(_facts, "observe", lambda *_args: replace(seen, **broken))
    found = told(endpoint_samples(paths, 0.0))
    assert (found["endpoint_true"], found["endpoint_metrics_status"], found["era_info"]) == (true, 0, 1)


@pytest.mark.parametrize(
    "props, status, expected, asked",
    [({"endpoint_metrics": True}, 501, 200, 0), ({"endpoint_metrics": False}, 501, 501, 1), ({}, 200, 200, 1)],
)
def test_metrics_are_asked_only_where_the_server_does_not_tell(
    served: Any, props: dict[str, Any], status: int, expected: int, asked: int
) -> None:
    served.answers["/metrics"] = (status, b"")
    assert metrics_status(Api("127.0.0.1", served.port), props) == expected
    assert len(served.seen) == asked


def test_nobody_answers_is_zero(served: Any) -> None:
    served.server.shutdown()
    served.server.server_close()
    assert metrics_status(Api("127.0.0.1", served.port), {"error": "no answer"}) == 0


# The program on a host


@pytest.fixture
def systemctl(stand_in: Any) -> None:
    """Everything is enabled and waits; no unit of an endpoint is there."""
    properties = "\\n".join(
        f"{key}={value}"
        for key, value in {
            "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "Result": "success",
            "MainPID": "0", "NRestarts": "3", "FragmentPath": "", "DropInPaths": "", "NeedDaemonReload": "no",
            "UnitFileState": "", "InvocationID": "", "ActiveEnterTimestampMonotonic": "0", "ExecMainCode": "0",
            "ExecMainStatus": "0", "ControlGroup": "",
        }.items()
    )  # fmt: skip
    stand_in(
        "systemctl",
        'case "$*" in *LoadState*) printf "' + properties + '\\n" ;;\n'
        'show*) printf "ActiveState=active\\nUnitFileState=enabled\\nNeedDaemonReload=no\\n" ;; esac',
    )


def spec(tmp_path: Path) -> install.FactsSpec:
    root = tmp_path / "root"
    return install.FactsSpec(
        True,
        PROGRAM.read_text(),
        [CARD],
        home=str(root / "facts"),
        units=str(root / "units"),
        state=str(root / "state"),
    )


def test_cards_reach_the_program_by_name_without_what_it_does_not_need() -> None:
    cards = {"c": {**{key: value for key, value in CARD.items() if key != "name"}, "total_mib": 24576, "arch": "sm_86"}}
    made = install.FactsSpec.from_params({"state": "present", "program": "x", "cards": cards, "interval_s": 30})
    assert list(made.cards) == [CARD] and made.interval_s == 30


def test_it_is_installed_once_and_removed_whole(tmp_path: Path, systemctl: None) -> None:
    wanted = spec(tmp_path)
    assert install.converge(wanted, dry=True)["changed"] and not Path(wanted.home).exists()
    assert install.converge(wanted, dry=False)["changed"]
    assert not install.converge(wanted, dry=False)["changed"]
    assert install.converge(replace(wanted, interval_s=30), dry=True)["files"] == [
        f"{wanted.units}/{install.NAME}.timer"
    ]
    assert install.converge(replace(wanted, cards=[]), dry=True)["files"] == [wanted.cards_file]
    Path(wanted.metrics).write_text("x")
    assert install.converge(replace(wanted, present=False), dry=False)["changed"]
    left = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert left == []


def ran(wanted: install.FactsSpec, state: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", f"{wanted.home}/{install.NAME}", "--cards", wanted.cards_file]
    argv += ["--metrics", wanted.metrics, "--state", str(state)]
    return subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False)


def test_the_installed_program_tells_of_cards_and_endpoints(
    tmp_path: Path, systemctl: None, stand_in: Any, era: Era
) -> None:
    stand_in("nvidia-smi", "echo '00000000:01:00.0, GPU-1, 24576, 900'")
    wanted = spec(tmp_path)
    install.converge(wanted, dry=False)
    done = ran(wanted, tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    written = Path(wanted.metrics).read_text()
    # everything but what a deploy's record would add
    assert exposed(written) == {name for name in FAMILIES if "last_run" not in name}
    assert f'era="{era.id}"' in written and 'llm_fleet_unit_restarts_total{endpoint="chat"} 3' in written
    assert 'llm_fleet_endpoint_true{endpoint="chat"} 0' in written, "no such unit runs"
    assert "llm_fleet_facts_errors 0\n" in written
    assert not list(Path(wanted.home).rglob("__pycache__"))


def test_a_part_that_cannot_be_read_is_counted_and_the_rest_is_told(
    tmp_path: Path, systemctl: None, stand_in: Any, era: Era
) -> None:
    stand_in("nvidia-smi", "echo no driver >&2; exit 9")
    wanted = spec(tmp_path)
    install.converge(wanted, dry=False)
    Path(era.path, "env").write_text("spoilt")
    done = ran(wanted, tmp_path / "state")
    assert done.returncode == 1
    assert "nvidia-smi" in done.stderr and "is not as it was staged" in done.stderr
    written = Path(wanted.metrics).read_text()
    assert "llm_fleet_facts_errors 2\n" in written and "llm_fleet_facts_timestamp_seconds" in written
    assert exposed(written) == {"llm_fleet_facts_errors", "llm_fleet_facts_timestamp_seconds"}


def test_a_file_that_cannot_be_opened_costs_its_endpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An era may be pruned between two looks; that must not take the cards' figures away."""

    def gone(paths: Paths, _now: float) -> list[_series.Sample]:
        if paths.endpoint == "a":
            raise FileNotFoundError(2, "No such file or directory", "/eras/x/env")
        return [_series.Sample("llm_fleet_endpoint_true", 1, {"endpoint": paths.endpoint})]

    monkeypatch.setattr(_facts, "endpoint_samples", gone)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "last-run.json").write_text("{}")
    (tmp_path / "cards.json").write_text("[]")
    out = tmp_path / "m" / "facts.prom"
    argv = ["--cards", str(tmp_path / "cards.json"), "--metrics", str(out), "--state", str(tmp_path)]
    assert _facts.main(argv) == 1
    assert 'llm_fleet_endpoint_true{endpoint="b"} 1' in out.read_text() and "errors 1\n" in out.read_text()
    assert "endpoint a: " in capsys.readouterr().err


def test_series_that_say_when_are_in_seconds() -> None:
    assert all(name.endswith("_seconds") for name, (_kind, says) in _series.FAMILIES.items() if says.startswith("When"))
