# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module r9v_placement through its main: every number is from a file, and one that is changed anywhere is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_files import brief
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_placement import KEYS
from ansible_collections.dank.llm_fleet.plugins.modules import r9v_placement
from r9vshards import Bench, make_bench, save, sibling_manifest

Ask = Callable[..., dict[str, Any]]
MANIFEST, WRAPPER = "placements/q8/bootstrap-manifest.json", "placements/q8/bootstrap.json"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture
def ask(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(**more: Any) -> dict[str, Any]:
        given = {key: value for key, value in {**bench.params, **more}.items() if value is not None}
        with patch_module_args(given), pytest.raises(SystemExit) as caught:
            r9v_placement.main()
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert caught.value.code == int(told.get("failed", False))
        return told

    return run


def test_the_maxima_that_the_forks_doctor_told(bench: Bench, ask: Ask) -> None:
    told = ask()
    assert told["changed"] and told["hot_counts"] == [28, 198]
    assert told["bytes_per_expert"] == [162_938_880, 87_736_320]
    assert told["settings"] == {
        "R9V_EXPERT_MANIFEST_PATH": str(bench.checkout / MANIFEST),
        "R9V_EXPERT_TP_SPLIT": "416,224",
        "R9V_MAX_EFFECTIVE_EXPERTS_PER_RANK": "108,198",  # reference page: expert-budget rank maxima
    }
    assert told["memory"] == [
        {
            "rank": 0,
            "hot_bytes": 28 * 162_938_880,
            "cold_bytes": 484 * 162_938_880,
            "cache_slots": 80,
            "cache_bytes": 80 * 162_938_880,
        },
        {"rank": 1, "hot_bytes": 198 * 87_736_320, "cold_bytes": 314 * 87_736_320, "cache_slots": 0, "cache_bytes": 0},
    ]
    assert told["sibling"]["hot_bytes"] == [4_684_858_880, 17_414_190_080]
    for key, path in (("state", bench.sibling_state), ("manifest", bench.sibling_manifest)):
        assert told["sibling"][f"{key}_path"] == str(path)
        assert told["sibling"][f"{key}_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_wrapper_is_the_schemas_exactly(bench: Bench, ask: Ask) -> None:
    ask()
    wrapper = json.loads((bench.checkout / WRAPPER).read_text())
    assert tuple(wrapper) == KEYS
    assert wrapper == {
        "schema": "r9v.placement.v1",
        "id": "flash-q8-dual-r9700-bootstrap",
        "model_package": "flash-q8",
        "hardware": "dual-r9700-32gb-asymmetric",
        "artifact_path": MANIFEST,
        "artifact_sha256": hashlib.sha256((bench.checkout / MANIFEST).read_bytes()).hexdigest(),
        "scope": "Unranked routing bootstrap only; does not certify fit or headroom",
    }


def test_the_manifest_is_one_that_the_forks_tools_read(bench: Bench, ask: Ask) -> None:
    ask()
    manifest = json.loads((bench.checkout / MANIFEST).read_text())
    weights = manifest["expert_memory"]
    assert (manifest["version"], manifest["num_layers"], manifest["num_experts"]) == (1, 48, 512)
    assert weights["schema"] == "r9v.expert-memory.v1" and weights["expert_partition"] == [416, 224]
    assert [row["path"] for row in weights["target_artifacts"]] == sorted(
        row["path"] for row in weights["target_artifacts"]
    )
    assert "unqualified" in manifest["r9v_derivation"]["qualification"]
    for rank, entry in manifest["ranks"].items():
        costs = weights["packed_bytes_per_expert_by_layer_by_rank"][rank]
        lists = entry["hot_experts_by_layer"]
        assert len(lists) == len(costs) == 48
        assert entry["hot_bytes"] == sum(len(ids) * cost for ids, cost in zip(lists, costs, strict=True))
        assert entry["hot_slots"] == sum(map(len, lists)) and lists[0] == list(range(entry["hot_count"]))


def test_a_second_run_changes_no_byte_and_check_mode_writes_none(bench: Bench, ask: Ask) -> None:
    dry = ask(_ansible_check_mode=True, _ansible_diff=True)
    assert dry["changed"] and [each["before"] for each in dry["diff"]] == ["", ""]
    assert not (bench.checkout / "placements" / "q8").exists()
    ask()
    files = [bench.checkout / MANIFEST, bench.checkout / WRAPPER]
    before = [(path.read_bytes(), path.stat().st_ino) for path in files]
    assert [each["after"] for each in dry["diff"]] == [brief(data.decode()) for data, _inode in before]
    again = ask()
    assert not again["changed"] and again["diff"] == []
    assert [(path.read_bytes(), path.stat().st_ino) for path in files] == before
    assert not ask(state="verified", sibling_state=None)["changed"]


def test_no_option_takes_a_number_of_hot_bytes(ask: Ask) -> None:
    for name in ("hot_bytes", "hot_counts", "budget"):
        assert "Unsupported parameters" in ask(**{name: 4_684_858_880})["msg"]
    assert "sibling_state" in ask(sibling_state=None)["msg"]


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value, at a path of keys."""

    def change(told: Any) -> None:
        *way, last = key.split("/")
        for step in way:
            told = told[int(step) if isinstance(told, list) else step]
        told[int(last) if isinstance(told, list) else last] = value

    return change


SIBLING = "placements/uncensored.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("ranks/0/hot_bytes", 4_684_858_881), "rank 0: hot_bytes 4,684,858,881, and 4,684,858,880 by the"),
        (changed("ranks/1/hot_bytes", 30_000_000_000), "rank 1: hot_bytes 30,000,000,000, and 17,414,190,080"),
        (changed("ranks/1/hot_bytes", None), "rank 1: no hot_bytes"),
        (changed("ranks/1/hot_bytes", "17"), "rank 1: hot_bytes '17', and 17,414,190,080"),
        (changed("expert_memory", {"expert_partition": [416, 224], "packed_bytes_per_expert_by_layer_by_rank": [1]}),
         "expert_memory: rank 0, layer 0: nothing"),
        (changed("expert_memory", {"packed_bytes_per_expert_by_layer_by_rank": {"0": 1.5}}),
         "expert_memory: rank 0, layer 0: nothing"),
        (changed("ranks/0/hot_count", 63), "hot_count 63, and the lists hold 62 to 62"),
        (changed("ranks/0/hot_slots", 1), "hot_slots 1, and the lists hold 2976"),
        (changed("ranks/0/hot_experts_by_layer/0", []), "layer 0 has no hot expert"),
        (changed("ranks/0/hot_experts_by_layer/7/0", 512), "layer 7: hot experts are not different numbers"),
        (changed("ranks/0/hot_experts_by_layer/7/0", 1), "layer 7: hot experts are not different numbers"),
        (changed("ranks/0/hot_experts_by_layer/7/0", True), "layer 7: hot experts are not different numbers"),
        (changed("ranks/0/hot_experts_by_layer", [[1]]), "hot_experts_by_layer is no list of 48"),
        (changed("ranks", {"0": {}}), "ranks are not 0 and 1"),
        (changed("num_layers", 47), "num_layers 47, not 48"),
        (changed("top_k", 8), "top_k 8, not 10"),
        (changed("expert_memory", {"expert_partition": [320, 320], "packed_bytes_per_expert_by_layer_per_rank": [1]}),
         "expert_memory: partition"),
    ],
)  # fmt: skip
def test_a_sibling_whose_manifest_is_not_its_shards_is_refused(
    bench: Bench, ask: Ask, change: Callable[[Any], None], words: str
) -> None:
    bench.edit(SIBLING, change)
    told = ask()
    assert words in told["msg"] and str(bench.sibling_manifest) in told["msg"]
    assert not (bench.checkout / WRAPPER).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("ready", False), "is not ready; expected ready: true"),
        (changed("config/R9V_EXPERT_MANIFEST_PATH", ""), "expected config.R9V_EXPERT_MANIFEST_PATH; found none"),
        (changed("config/R9V_EXPERT_MANIFEST_PATH", "/nowhere/m.json"), "manifest /nowhere/m.json; expected a JSON"),
        (changed("config/R9V_TARGET_REL", ""), "expected config.R9V_TARGET_REL"),
        (changed("config/R9V_EXPERT_TP_SPLIT", "320,320"), "rank 0: hot_bytes 4,684,858,880, and 3,603,737,600"),
        (changed("config/R9V_EXPERT_TP_SPLIT", "400,240"), "R9V_EXPERT_TP_SPLIT; expected two of"),
    ],
)
def test_a_sibling_that_was_not_qualified_is_refused(
    bench: Bench, ask: Ask, change: Callable[[Any], None], words: str
) -> None:
    told = json.loads(bench.sibling_state.read_text())
    change(told)
    save(bench.sibling_state, told, 0o600)
    assert words in ask()["msg"]


def test_a_sibling_without_its_shards_is_refused(bench: Bench, ask: Ask) -> None:
    shard = next((bench.root / "iq4" / "target").glob("*-00003-of-*"))
    os.truncate(shard, shard.stat().st_size - 1)
    told = ask()
    assert "is not whole" in told["msg"] and shard.name in told["msg"]
    shard.unlink()
    assert f"{shard} is missing" in ask()["msg"]


def test_a_budget_below_one_expert_is_refused(bench: Bench, ask: Ask) -> None:
    save(bench.sibling_manifest, sibling_manifest((2, 428), (75_562_240, 40_687_360)))
    assert "at least one expert of every layer, 162,938,880 bytes; found 151,124,480" in ask()["msg"]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("profiles/q8/profile.json", changed("placement", ""), "names no placement"),
        ("profiles/q8/profile.json", changed("model_package", "other"), "has model_package other"),
        ("profiles/q8/profile.json", changed("hardware", "single-r9700"), "has hardware single-r9700"),
        ("packages/q8/package.json", changed("artifacts/1/bytes", 5), "bytes, and the package says 5"),
        ("packages/q8/package.json", changed("artifacts/1/path", "../x.gguf"), "is no relative path"),
        ("packages/q8/package.json", changed("artifacts/1/role", "license"), "of the set or of the package"),
        ("packages/q8/package.json", changed("schema", "r9v.model-package.v2"), "schema 'r9v.model-package.v2'"),
        ("runtimes/v3/runtime.json", changed("capabilities/max_cache_slots", 64), "80 cache slots, and"),
        ("runtimes/v3/runtime.json", changed("capabilities/target_qtypes", ["IQ4_XS"]), "experts of type Q8_0"),
        ("runtimes/v3/runtime.json", changed("capabilities/expert_channel_partitions", [[320, 320]]), "partition [416"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    bench: Bench, ask: Ask, file: str, change: Callable[[Any], None], words: str
) -> None:
    bench.edit(file, change)
    assert words in ask()["msg"]


def test_options_out_of_range(bench: Bench, ask: Ask) -> None:
    assert "at most 16" in ask(runtime=None)["msg"]
    assert "ranks 0 and 1" in ask(cache_ranks=[2])["msg"]
    assert "a path below" in ask(manifest=str(bench.root / "m.json"))["msg"]
    assert ask(runtime=None, cache_slots=16, _ansible_check_mode=True)["changed"]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (WRAPPER, changed("schema", "r9v.placement.v2"), "schema is 'r9v.placement.v2'"),
        (WRAPPER, changed("id", "another"), "id is 'another', not 'flash-q8-dual-r9700-bootstrap'"),
        (WRAPPER, changed("model_package", "another"), "model_package is 'another'"),
        (WRAPPER, changed("hardware", "single"), "hardware is 'single'"),
        (WRAPPER, changed("scope", "Qualified"), "scope is 'Qualified'"),
        (WRAPPER, changed("artifact_sha256", "0" * 64), "artifact_sha256 is"),
        (WRAPPER, changed("artifact_path", "elsewhere.json"), "artifact_path is 'elsewhere.json'"),
        (WRAPPER, changed("policy", {}), "policy is no key of r9v.placement.v1"),
        (WRAPPER, lambda told: told.pop("scope"), "no scope"),
        (MANIFEST, changed("ranks/0/hot_bytes", 1), "rank 0: hot_bytes 1, and 4,562,288,640"),
        (MANIFEST, changed("expert_memory/packed_bytes_per_expert_by_layer_by_rank/1/3", 7), "rank 1, layer 3: 7, and"),
        (MANIFEST, changed("expert_memory/expert_partition", [320, 320]), "expert_memory: partition"),
        (MANIFEST, changed("expert_memory/model_package", "x"), "expert_memory is of x"),
        (MANIFEST, changed("expert_memory/target_artifacts/0/sha256", "0" * 64), "target_artifacts are not"),
        (MANIFEST, changed("r9v_derivation/sibling/hot_bytes", [1, 2]), "sibling.hot_bytes is [1, 2], not [4684858880"),
        (MANIFEST, changed("r9v_derivation/sibling/manifest_sha256", "0"), "sibling.manifest_sha256 is '0'"),
        (MANIFEST, changed("r9v_derivation/sibling/state_sha256", "0"), "sibling.state_sha256 is '0'"),
        (MANIFEST, changed("r9v_derivation/sibling/profile_id", "0"), "sibling.profile_id is '0'"),
        (MANIFEST, lambda told: told.pop("r9v_derivation"), "hot counts without a measurement are invented"),
        ("profiles/q8/profile.json", changed("placement", "renamed"), "not 'renamed'"),
    ],
)
def test_one_changed_number_of_a_placement_is_seen(
    bench: Bench, ask: Ask, file: str, change: Callable[[Any], None], words: str
) -> None:
    ask()
    bench.edit(file, change)
    told = ask(state="verified")
    assert told["failed"] and words in told["msg"], told
    assert any(words in lie for lie in told["lies"])


def counted(told: dict[str, Any], rank: str, count: int, cost: int) -> None:
    told["ranks"][rank] = {
        "hot_count": count,
        "hot_slots": count * 48,
        "hot_bytes": count * cost,
        "hot_experts_by_layer": [list(range(count)) for _ in range(48)],
    }


def reseal(bench: Bench) -> None:
    """The wrapper with the digest of the manifest as it is now."""
    digest = hashlib.sha256((bench.checkout / MANIFEST).read_bytes()).hexdigest()
    bench.edit(WRAPPER, changed("artifact_sha256", digest))


def test_a_trim_may_lower_hot_counts_and_nothing_may_raise_them(bench: Bench, ask: Ask) -> None:
    ask()
    bench.edit(MANIFEST, lambda told: counted(told, "1", 190, 87_736_320))
    reseal(bench)
    assert ask(state="verified")["hot_counts"] == [28, 190]
    bench.edit(MANIFEST, lambda told: counted(told, "0", 29, 162_938_880))
    reseal(bench)
    assert ask(state="verified")["lies"] == ["rank 0: 29 hot experts, and the sibling's bytes hold 28"]


@pytest.fixture
def run(bench: Bench) -> Path:
    """Headroom evidence as qualify.yml writes it: rank 1 lacks 100 MiB of 3.3 GiB."""
    path = bench.root / "evidence" / "headroom.json"
    cards = [{"name": "b", "free_mib": 3279.2, "total_mib": 32624}, {"name": "a", "free_mib": 3400, "total_mib": 32624}]
    save(path, {"floor_gib": 3.3, "cards": cards})
    return path


def test_a_run_that_left_too_little_room_trims_by_whole_experts(bench: Bench, ask: Ask, run: Path) -> None:
    ask()
    told = ask(headroom=str(run), cards=["a", "b"])  # 83.7 MiB an expert of rank 1, so two
    assert told["changed"] and told["hot_counts"] == [28, 196]
    assert told["settings"]["R9V_MAX_EFFECTIVE_EXPERTS_PER_RANK"] == "108,196"
    derivation = json.loads((bench.checkout / MANIFEST).read_text())["r9v_derivation"]
    assert derivation["headroom"] == {
        "path": str(run),
        "sha256": hashlib.sha256(run.read_bytes()).hexdigest(),
        "floor_gib": 3.3,
        "cards": ["a", "b"],
        "free_mib": [3400.0, 3279.2],
        "hot_counts": [28, 198],
    }
    assert not ask(headroom=str(run), cards=["a", "b"])["changed"]  # and not two more with every run
    assert ask(state="verified", sibling_state=None)["hot_counts"] == [28, 196]


def test_a_second_run_trims_what_the_first_left(bench: Bench, ask: Ask, run: Path) -> None:
    ask()
    ask(headroom=str(run), cards=["a", "b"])
    again = bench.root / "evidence2" / "headroom.json"
    save(again, {"floor_gib": 3.3, "cards": [{"name": "a", "free_mib": 3000}, {"name": "b", "free_mib": 4000}]})
    assert ask(headroom=str(again), cards=["a", "b"])["hot_counts"] == [25, 196]
    assert ask(state="verified")["hot_counts"] == [25, 196]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("r9v_derivation/headroom/free_mib", [3400.0, 3278.2]), "headroom.free_mib is [3400.0, 3278.2]"),
        (changed("r9v_derivation/headroom/floor_gib", 3.2), "headroom.floor_gib is 3.2, not 3.3"),
        (changed("r9v_derivation/headroom/sha256", "0"), "headroom.sha256 is '0'"),
        (changed("r9v_derivation/headroom/hot_counts", [28, 197]), "hot experts [28, 196], and [28, 195] by the"),
        (changed("r9v_derivation/headroom/hot_counts", [28, 199]), "headroom.hot_counts are [28, 199]"),
        (changed("r9v_derivation/headroom", {}), "r9v_derivation.headroom has not the keys"),
        (lambda told: counted(told, "1", 197, 87_736_320), "hot experts [28, 197], and [28, 196] by the headroom run"),
    ],
)
def test_one_changed_number_of_a_trim_is_seen(
    bench: Bench, ask: Ask, run: Path, change: Callable[[Any], None], words: str
) -> None:
    ask()
    ask(headroom=str(run), cards=["a", "b"])
    bench.edit(MANIFEST, change)
    reseal(bench)
    assert any(words in lie for lie in ask(state="verified")["lies"])


@pytest.mark.parametrize(
    ("evidence", "cards", "words"),
    [
        ({"floor_gib": 3.3, "cards": []}, ["a", "b"], "found floor_gib 3.3, cards none"),
        ({"floor_gib": 3.3, "cards": [{"name": "a", "free_mib": 1}]}, ["a", "b"], "cards a"),
        ({"floor_gib": 3.3, "cards": [{"name": "a", "free_mib": 1}]}, ["a", "a"], "two cards in rank order"),
        ({"cards": [{"name": "a", "free_mib": 1}, {"name": "b", "free_mib": 1}]}, ["a", "b"], "floor_gib None"),
        ({"floor_gib": 9, "cards": [{"name": "a", "free_mib": 1}, {"name": "b", "free_mib": 1}]}, ["a", "b"],
         "rank 0 (a) lacks more than its hot experts take"),
        ({"floor_gib": 9, "cards": []}, None, "two cards in rank order"),
    ],
)  # fmt: skip
def test_evidence_that_tells_too_little(
    bench: Bench, ask: Ask, evidence: dict[str, Any], cards: list[str] | None, words: str
) -> None:
    ask()
    path = bench.root / "headroom.json"
    save(path, evidence)
    assert words in ask(headroom=str(path), cards=cards)["msg"]


def test_a_trim_starts_from_a_placement_that_the_sibling_allows(bench: Bench, ask: Ask, run: Path) -> None:
    assert "found no such file" in ask(headroom=str(run), cards=["a", "b"])["msg"]
    ask()
    bench.edit(MANIFEST, lambda told: counted(told, "0", 29, 162_938_880))
    assert "at most 28 and 198 hot experts" in ask(headroom=str(run), cards=["a", "b"])["msg"]


def test_every_lie_is_told_in_one_error(bench: Bench, ask: Ask) -> None:
    ask()
    bench.edit(WRAPPER, changed("id", "another"))
    bench.edit(WRAPPER, changed("scope", "Qualified"))
    bench.edit(MANIFEST, changed("ranks/0/hot_bytes", 1))
    told = ask(state="verified")
    assert len(told["lies"]) == 4  # the manifest's digest is another as well


def test_a_placement_that_is_not_there(ask: Ask) -> None:
    assert "bootstrap.json; expected a JSON object; found no such file" in ask(state="verified")["msg"]
