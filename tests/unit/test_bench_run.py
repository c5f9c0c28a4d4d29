# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bench from beginning to end, against a scripted server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils import _bench_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_run import Asked, bench, cells_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._exclusion import file_lock
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed
from ansible_collections.dank.llm_fleet.plugins.modules import endpoint_bench
from bench_stand_in import BenchStandIn
from conftest import Served

OFF = {"spec_off": {"SPEC_TYPE": "none"}}


class Bench:
    """An endpoint of one era; ``run`` measures it and returns (the result, what was said)."""

    def __init__(self, served: Served, era: Era, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.era, self.paths = BenchStandIn(served), era, Paths("chat", state=str(folder))
        self.state = SimpleNamespace(running=True, words="active (running)")
        self.said: list[str] = []
        self.still: list[str] = []
        monkeypatch.setattr(_bench_run._systemd, "show", lambda _unit: self.state)

        @contextlib.contextmanager
        def stood_still(
            *_given: Any, count: int, may_stop: bool, before_stop: Callable[[], None], limit_s: float
        ) -> Iterator[None]:
            assert may_stop and limit_s >= 5 * count
            before_stop()
            self.still.append("stopped")
            try:
                yield
            finally:
                self.still.append("started")

        monkeypatch.setattr(_bench_run, "stood_still", stood_still)

    def run(self, kind: str, **more: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"prompts": [100], "outputs": [8], "repetitions": 2, "timeout_s": 5, **more}
        return bench(Asked(kind, **given), self.era, self.paths, lambda step, *_seconds: self.said.append(step))


@pytest.fixture
def endpoint(
    served: Served, tmp_path: Path, blueprint: Callable[..., Blueprint], monkeypatch: pytest.MonkeyPatch
) -> Bench:
    env = {
        "SERVER_BIN": str(tmp_path / "llama-server"),
        "ALIAS": "chat",
        "MODEL_FILE": "/m.gguf",
        "LISTEN_PORT": str(served.port),
        "CTX_SIZE": "8192",
        "PARALLEL": "2",
        "SPEC_TYPE": "draft-mtp",
    }
    shape = {"ctx_size": 8192, "parallel": 2, "ctx_per_slot": 4096}
    drawn = blueprint(env=env, shape=shape, cards=[])
    return Bench(served, Era("e1", "/eras/e1", drawn, {"state": "certified"}), tmp_path / "state", monkeypatch)


@pytest.mark.parametrize(
    ("asked", "window", "cells"),
    [
        (Asked("shapes"), 8192, [{"prompt": 512, "output": 128}, {"prompt": 4096, "output": 128}]),
        (Asked("shapes"), 512, [{"prompt": 256, "output": 128}]),
        (Asked("shapes", prompts=[9], outputs=[1, 2]), 64, [{"prompt": 9, "output": 1}, {"prompt": 9, "output": 2}]),
        (
            Asked("turn_latency", families=1, turns=1),
            200_704,
            [{"family": 0, "turn": 1, "document": 30_000, "output": 128}],
        ),
        (
            Asked("turn_latency", families=1, turns=1, outputs=[4]),
            4096,
            [{"family": 0, "turn": 1, "document": 2048, "output": 4}],
        ),
        (
            Asked("batch_ubatch", depth=7),
            4096,
            [{"batch": 2048, "ubatch": 512, "prompt": 512, "output": 128, "depth": 7}],
        ),
    ],
)
def test_the_cells(asked: Asked, window: int, cells: list[dict[str, Any]]) -> None:
    assert cells_of(asked, window) == cells


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": [0]}, "prompts; expected numbers above 0; found \\[0\\]"),
        ({"outputs": []}, "outputs; expected numbers above 0"),
        ({"outputs": [4, -1]}, "outputs"),
        ({"repetitions": 0}, "repetitions; expected 1 or more; found 0"),
        ({"kind": "batch_ubatch", "batches": [512], "ubatches": [1024]}, "a ubatch that is not above its batch"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        cells_of(Asked(**{"kind": "shapes", **change}), 4096)


def test_shapes_are_kept_and_held_against_the_last_era(endpoint: Bench) -> None:
    first = endpoint.run("shapes", prompts=[100, 200])
    told = first["bench"]
    assert set(told) >= {"at", "kind", "era", "runtime", "cells"}
    assert told["runtime"] == {"name": "cpu", "version": "b1", "digest": "d" * 64}
    assert told["cells"][0]["figures"]["prefill_tps"] == {"median": 1000.0, "spread": 0.0, "n": 2}
    assert told["against"] is None
    assert endpoint.said == ["warm up", "shapes: cell 1 of 2", "shapes: cell 2 of 2"]
    path = Path(first["files"][0])
    assert path.parent == Path(endpoint.paths.store, "bench") and json.loads(path.read_text()) == told
    assert [Path(one).suffix for one in first["files"]] == [".json", ".tsv", ".svg"]
    endpoint.era = Era("e2", "/eras/e2", endpoint.era.blueprint, {"state": "certified"})
    endpoint.server.decode = 60.0
    cell = endpoint.run("shapes", prompts=[200])["bench"]["cells"][0]
    assert {name: one["verdict"] for name, one in cell["compared"].items()} == {
        "prefill_tps": "same",
        "decode_tps": "better",
    }


def test_rows_are_on_disk_as_they_come(endpoint: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = _bench_run.write
    monkeypatch.setattr(_bench_run, "write", lambda stem, told: counts.append(len(told["cells"])) or real(stem, told))
    endpoint.run("shapes", prompts=[100, 9000, 200])
    assert counts == [1, 2, 3]


def test_a_bench_of_failed_cells_alone_fails_and_shows_them(endpoint: Bench) -> None:
    with pytest.raises(FleetError, match=r"no cell of shapes was measured on chat.*HTTP 400") as caught:
        endpoint.run("shapes", prompts=[9000])
    assert [cell["ok"] for cell in caught.value.facts["bench"]["cells"]] == [False]


def test_a_busy_endpoint_is_asked_nothing(endpoint: Bench) -> None:
    endpoint.server.busy = [1]
    for kind, more in (("shapes", {}), ("turn_latency", {}), ("spec_ab", {"stop": True, "rungs": OFF})):
        with pytest.raises(FleetError, match="slot 1 busy"):
            endpoint.run(kind, **more)
    assert endpoint.server.bodies == [] and endpoint.still == []


def test_an_endpoint_that_does_not_run_is_named(endpoint: Bench) -> None:
    endpoint.state = SimpleNamespace(running=False, words="failed (exit-code)")
    with pytest.raises(FleetError, match=r"endpoint chat does not run.*found failed \(exit-code\)"):
        endpoint.run("shapes")


def test_turns(endpoint: Bench) -> None:
    told = endpoint.run("turn_latency", families=2, turns=2, document=150)["bench"]
    assert [cell["ok"] for cell in told["cells"]] == [True] * 4
    assert [cell["figures"]["cached_share"]["median"] > 0.5 for cell in told["cells"]] == [False, True, False, True]


def other_arm(endpoint: Bench, monkeypatch: pytest.MonkeyPatch, enter: Callable[[], None]) -> None:
    @contextlib.contextmanager
    def served(_era: Era, _place: Paths, lines: Any, *_given: Any, **_options: Any) -> Iterator[dict[str, str]]:
        assert dict(lines) == {"SPEC_TYPE": "none"} and endpoint.still == ["stopped"]
        enter()
        yield endpoint.era.blueprint.facts["env"]

    monkeypatch.setattr(_bench_run, "served", served)


def test_drafters_on_and_off(endpoint: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def off() -> None:
        endpoint.server.drafts, endpoint.server.decode, endpoint.server.prompts = None, 25.0, []

    other_arm(endpoint, monkeypatch, off)
    endpoint.server.drafts = (8, 6)
    told = endpoint.run("spec_ab", stop=True, rungs=OFF)["bench"]
    assert told["note"] == "on: draft-mtp, off: rung spec_off (SPEC_TYPE=none)"
    assert [cell["cell"]["workload"] for cell in told["cells"]] == ["prose", "echo", "structured", "identity"]
    for cell in told["cells"]:
        assert cell["ok"] and cell["figures"]["speedup"]["median"] == 2 and cell["figures"]["identical"]["median"] == 1
    assert endpoint.still == ["stopped", "started"]


def test_another_text_without_drafters_is_loud(endpoint: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def off() -> None:
        endpoint.server.text, endpoint.server.prompts = "else ", []

    other_arm(endpoint, monkeypatch, off)
    with pytest.raises(FleetError, match="the greedy text differs from character 0 on") as caught:
        endpoint.run("spec_ab", stop=True, rungs=OFF)
    assert [cell["figures"]["identical"]["median"] for cell in caught.value.facts["bench"]["cells"]] == [0.0] * 4


def test_an_arm_that_does_not_start_leaves_what_was_measured(endpoint: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FleetError("chat-bench.service does not stay up")

    other_arm(endpoint, monkeypatch, refuse)
    with pytest.raises(FleetError, match=r"without drafters: chat-bench\.service does not stay up") as caught:
        endpoint.run("spec_ab", stop=True, rungs=OFF)
    assert endpoint.still == ["stopped", "started"]
    assert caught.value.facts["bench"]["cells"][0]["figures"]["on_decode_tps"]["median"] == 50.0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rungs": OFF}, r"spec_ab stops endpoint chat.*-e stop=true"),
        ({"stop": True}, "no rung turns the drafters off"),
    ],
)
def test_spec_ab_is_refused_before_anything_is_asked(endpoint: Bench, more: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        endpoint.run("spec_ab", **more)
    assert endpoint.server.bodies == [] and endpoint.still == []


def test_what_drafts_nothing_is_not_compared(endpoint: Bench) -> None:
    endpoint.era.blueprint.facts["env"]["SPEC_TYPE"] = "none"
    with pytest.raises(FleetError, match="endpoint chat drafts nothing"):
        endpoint.run("spec_ab", stop=True, rungs=OFF)


def test_batches(endpoint: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetError, match="runtime cpu has no llama-bench"):
        endpoint.run("batch_ubatch", stop=True)
    assert endpoint.still == []
    program = Path(endpoint.era.blueprint.facts["env"]["SERVER_BIN"]).with_name("llama-bench")
    program.touch(mode=0o755)

    units: list[str] = []

    def start(_era: Era, place: Paths, limit_s: float, argv: list[str]) -> Completed:
        units.append(place.unit)
        assert endpoint.still == ["stopped"] and limit_s == 5 and argv[0] == str(program)
        if "1024" in argv:
            return Completed(tuple(argv), 1, "", "out of memory")
        told = [{"n_prompt": 100, "samples_ts": [9.0, 9.5]}, {"n_prompt": 0, "samples_ts": [4.0, 4.0]}]
        return Completed(tuple(argv), 0, "".join(json.dumps(one) + "\n" for one in told), "")

    monkeypatch.setattr(_bench_run, "run_in_unit", start)
    told = endpoint.run("batch_ubatch", stop=True, ubatches=[512, 1024])["bench"]
    assert [cell["ok"] for cell in told["cells"]] == [True, False]
    assert told["cells"][0]["figures"]["decode_tps"] == {"median": 4.0, "spread": 0.0, "n": 2}
    assert "out of memory" in told["cells"][1]["error"]
    assert len(set(units)) == 2  # systemd does not give a name away twice while the guard speaks of it
    assert endpoint.still == ["stopped", "started"]


def test_what_was_stopped_is_started_when_a_result_cannot_be_written(
    endpoint: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(endpoint.era.blueprint.facts["env"]["SERVER_BIN"]).with_name("llama-bench").touch(mode=0o755)
    told = json.dumps({"n_prompt": 100, "samples_ts": [9.0]})
    monkeypatch.setattr(_bench_run, "run_in_unit", lambda *_given: Completed((), 0, told, ""))

    def full(*_given: Any) -> list[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_bench_run, "write", full)
    with pytest.raises(OSError, match="No space left"):
        endpoint.run("batch_ubatch", stop=True, ubatches=[256, 512])
    assert endpoint.still == ["stopped", "started"]


@pytest.fixture
def ask(
    endpoint: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The module on ``endpoint`` as its one era."""
    Path(endpoint.paths.store).mkdir(parents=True)
    monkeypatch.setattr(endpoint_bench, "Paths", lambda _name: endpoint.paths)
    monkeypatch.setattr(endpoint_bench, "require_era", lambda _paths: endpoint.era)

    def run(**params: Any) -> dict[str, Any]:
        with patch_module_args({"name": "chat", **params}), pytest.raises(SystemExit) as caught:
            endpoint_bench.main()
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert caught.value.code == int(told.get("failed", False))
        return told

    return run


def test_the_module_measures_and_leaves_no_progress(
    ask: Callable[..., dict[str, Any]], endpoint: Bench, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    told = ask(prompts=[100], outputs="4,8", repetitions=1, progress_file=str(progress))
    assert told["changed"] and [cell["cell"]["output"] for cell in told["bench"]["cells"]] == [4, 8]
    assert Path(told["files"][0]).is_file() and not progress.exists()


@pytest.mark.parametrize("how", [{"plan_only": True}, {"_ansible_check_mode": True}])
def test_the_module_lists_its_cells_and_asks_nothing(
    ask: Callable[..., dict[str, Any]], endpoint: Bench, how: dict[str, Any]
) -> None:
    told = ask(prompts=[100, 200], **how)
    assert told["work"] and [cell["prompt"] for cell in told["cells"]] == [100, 200]
    assert endpoint.server.bodies == [] and not Path(endpoint.paths.store, "bench").exists()
    assert "repetitions; expected 1 or more" in ask(repetitions=0, **how)["msg"]


def test_the_module_waits_for_no_deploy(ask: Callable[..., dict[str, Any]], endpoint: Bench) -> None:
    with file_lock(EraStore(endpoint.paths.store).lock_path, wait_s=1, purpose="deploy of endpoint chat"):
        told = ask(prompts=[100])
    assert told["failed"] and "held for deploy of endpoint chat" in told["msg"]
    assert endpoint.server.bodies == []
