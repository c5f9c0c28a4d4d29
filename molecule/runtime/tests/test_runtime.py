# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two real builds of the engine, side by side: proven before they had a name, and proven again on request."""

from __future__ import annotations

import json
import time

PREFIX = "/opt/llm-fleet/runtimes"
RUNTIMES = ("cpu", "cpu-git")
CHECKS = ["closure", "rpath", "cmake", "version", "flags", "smoke"]


def record(fleet, name):
    return json.loads(fleet.run(f"cat {PREFIX}/{name}/build.json"))


def result(told):
    return json.JSONDecoder().raw_decode(told[told.index(" => {") + 4 :])[0]


def info(fleet, **options):
    return result(fleet.module("dank.llm_fleet.runtime_info", check=False, **options))


def declared(fleet, name):
    told = result(fleet.module("ansible.builtin.debug", var="runtime_list"))["runtime_list"]
    return next(one for one in told if one["name"] == name)


def build(fleet, name, **changes):
    entry = {key: value for key, value in declared(fleet, name).items() if key != "engine"}
    options = {**entry, "ccache_dir": "/var/cache/llm-fleet/ccache", **changes}
    return result(fleet.module("dank.llm_fleet.runtime_build", check=False, **options))


def test_both_have_their_proofs_and_say_what_they_can_do(fleet):
    for name in RUNTIMES:
        told = record(fleet, name)
        assert [row["check"] for row in told["proofs"]] == CHECKS
        assert all(row["ok"] for row in told["proofs"])
        notes = fleet.run(f"readelf -n {told['server_bin']}")
        assert len(told["build_id"]) == 40 and told["build_id"] in notes
        can = told["can"]
        assert {"llama", "qwen35", "gemma3"} <= set(can["architectures"])
        assert can["ggml_types"]["q8_0"] == 8 and "draft-mtp" in can["spec_types"]
        assert can["adapters"] == ["lora"] and "q8_0" in can["kv_types"] and can["kv_pairs"] is None


def test_they_are_different_builds(fleet):
    one, two = (record(fleet, name) for name in RUNTIMES)
    assert one["digest"] != two["digest"] and one["build_id"] and "commit git" in two["states"]
    needed = [fleet.run(f"readelf -d {PREFIX}/{name}/lib/libggml-cpu.so.0") for name in RUNTIMES]
    assert ["libgomp" in text for text in needed] == [True, False]


def test_a_second_run_changes_nothing_and_takes_no_time(fleet):
    began = time.monotonic()
    told = build(fleet, "cpu")
    assert told["changed"] is False and told["runtime"]["action"] == "none"
    assert told["runtime"]["seconds"] < 2
    assert time.monotonic() - began < 60  # two connections and the module, on a busy machine


def test_they_are_proven_anew(fleet):
    told = info(fleet, name="cpu")
    assert [row["check"] for row in told["proofs"]] == CHECKS
    assert next(row["found"] for row in told["proofs"] if row["check"] == "smoke") == "8 tokens"


def test_a_damaged_runtime_is_told_with_file_and_remedy(fleet):
    lib = fleet.run(f"readlink -f {PREFIX}/cpu/lib").strip()
    fleet.run(f"mv {lib}/libmtmd.so.0 /srv/libmtmd.so.0 && ln -s /srv/libmtmd.so.0 {lib}/libmtmd.so.0")
    try:
        told = info(fleet, name="cpu")
        assert "libmtmd.so.0 comes from /srv/libmtmd.so.0" in told["msg"]
        assert "system_libs" in told["remedy"]
    finally:
        fleet.run(f"mv -f /srv/libmtmd.so.0 {lib}/libmtmd.so.0")
    assert "msg" not in info(fleet, name="cpu")


def test_a_build_that_is_not_what_was_declared_gets_no_name(fleet):
    before = fleet.run(f"ls -l {PREFIX}")
    told = build(fleet, "cpu", proof={"cmake": {"GGML_CUDA_FA_QUANTS": "all"}})
    assert "not proven: cmake" in told["msg"] and "GGML_CUDA_FA_QUANTS is q4_0-q4_0;" in told["msg"]
    assert fleet.run(f"ls -l {PREFIX}") == before


def test_a_tag_that_moved_stops_the_build(fleet):
    fleet.run("git -C /srv/llama.cpp.git tag -f b1 b11434^{tree}")
    source = declared(fleet, "cpu-git")["source"]
    told = build(fleet, "cpu-git", source={**source, "tag": "b1"}, cmake={"GGML_NATIVE": "OFF"})
    assert "tag b1" in told["msg"] and source["commit"] in told["msg"]


def test_absent_removes_one_and_leaves_the_other(fleet):
    told = result(fleet.module("dank.llm_fleet.runtime_build", name="cpu-git", state="absent"))
    assert told["changed"] and f"{PREFIX}/cpu-git" in told["removed"]
    assert fleet.run(f"ls {PREFIX}").split() == sorted(["cpu", f"cpu@{record(fleet, 'cpu')['digest'][:12]}"])
    assert result(fleet.module("dank.llm_fleet.runtime_build", name="cpu-git", state="absent"))["changed"] is False
