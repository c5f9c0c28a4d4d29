# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Benches of a real llama-server: the figures are there, production is as before, and what must be refused is."""

from __future__ import annotations

import json
import shlex
import time
import xml.etree.ElementTree as ElementTree

import pytest

PORT = 8095


def kept(fleet, kind):
    """The newest result of ``kind`` (JSON, lines, drawing)."""
    stem = fleet.run(f"ls /var/lib/llm-fleet/{fleet.endpoint}/bench/*-{kind}.json").split()[-1].removesuffix(".json")
    texts = [fleet.run(f"cat {stem}.{suffix}") for suffix in ("json", "tsv", "svg")]
    return json.loads(texts[0]), [line.split("\t") for line in texts[1].splitlines()], ElementTree.fromstring(texts[2])


def bench(fleet, kind, **settings):
    """Run the playbook; the newest result."""
    played = fleet.play("playbooks/bench.yml", endpoint=fleet.endpoint, kind=kind, **settings)
    assert played.rc == 0, played.text
    told, lines, _drawing = kept(fleet, kind)
    assert len(lines) == 1 + len(told["cells"]) and f"{fleet.endpoint} on {fleet.host}: {kind}" in played.text
    era = fleet.run(f"readlink /var/lib/llm-fleet/{fleet.endpoint}/current").strip()
    assert told["era"] == era.rpartition("/")[2]
    return told


def failed_words(fleet, **options):
    """What the module says where it refuses."""
    told = fleet.module("dank.llm_fleet.endpoint_bench", check=False, name=fleet.endpoint, **options)
    assert "FAILED!" in told, told
    return " ".join(told.split())


def serves_as_before(fleet):
    """The unit runs, nothing of the bench does, and the truth holds."""
    assert (
        fleet.run("systemctl list-units --plain --no-legend --state=active,activating,failed 'llm-fleet-bench-*'") == ""
    )
    assert fleet.start()["ActiveState"] == "active"
    fleet.module("dank.llm_fleet.endpoint_truth", name=fleet.endpoint)


def test_shapes_and_a_prompt_over_the_window(whole):
    told = bench(whole, "shapes", prompts=[200, 4000, 600], outputs=[16, 32], repetitions=3)
    assert [cell["cell"] for cell in told["cells"]] == [
        {"prompt": prompt, "output": output} for prompt in (200, 4000, 600) for output in (16, 32)
    ]
    for cell in told["cells"]:
        if cell["cell"]["prompt"] == 4000:
            assert not cell["ok"] and "HTTP 400" in cell["error"] and "2048" in cell["error"], cell
            continue
        assert cell["ok"], cell
        figures = cell["figures"]
        assert {"prefill_tps", "decode_tps", "acceptance"} <= set(figures)
        assert all(figure["n"] == 3 for figure in figures.values())
        assert figures["prompt_tokens"]["median"] == pytest.approx(cell["cell"]["prompt"], rel=0.15)
        assert figures["decode_tps"]["median"] > 0 and 0 <= figures["acceptance"]["median"] <= 1


def test_turns_find_their_document_in_the_cache(whole):
    told = bench(whole, "turn_latency", families=2, turns=2, document=900, outputs=[16], repetitions=2)
    turns = {(cell["cell"]["family"], cell["cell"]["turn"]): cell for cell in told["cells"]}
    assert len(turns) == 4 and all(cell["ok"] for cell in turns.values()), told
    for family in (0, 1):
        first, second = (turns[family, turn]["figures"] for turn in (1, 2))
        assert first["cached_share"]["median"] < 0.5 < second["cached_share"]["median"]
        assert 0 < second["ttft_s"]["median"] < first["ttft_s"]["median"]


def test_drafters_on_and_off(whole):
    before = whole.start()
    told = bench(whole, "spec_ab", prompts=[200], outputs=[48], repetitions=2, stop=True)
    assert told["note"] == "on: draft-simple, off: rung spec_off (SPEC_TYPE=none)"
    assert [cell["cell"]["workload"] for cell in told["cells"]] == ["prose", "echo", "structured", "identity"]
    alike = 0
    for cell in told["cells"]:
        figures = cell["figures"]
        same = figures["identical"] == {"median": 1.0, "spread": 0.0, "n": 2}
        alike += same
        # Batches of other shapes round otherwise, and no prompt here is one that the toy model was trained on: where
        # two tokens are nearly as likely, the text may differ, and the cell has to say so.
        assert cell["ok"] is same and (same or "the greedy text differs" in cell["error"]), cell
        assert figures["drafted_tokens"]["median"] > 0 and figures["off_decode_tps"]["median"] > 0
    assert alike >= 2, told
    assert whole.start()["InvocationID"] != before["InvocationID"]
    serves_as_before(whole)


def test_llama_bench(whole):
    told = bench(
        whole, "batch_ubatch", prompts=[64], outputs=[8], ubatches=[32, 64], batches=[64], repetitions=2, stop=True
    )
    for cell in told["cells"]:
        assert cell["ok"], cell
        assert cell["figures"]["prefill_tps"]["n"] == cell["figures"]["decode_tps"]["n"] == 2
    serves_as_before(whole)


def test_nothing_is_stopped_without_leave(whole):
    before = whole.start()
    assert "endpoint toy-whole runs" in failed_words(whole, kind="batch_ubatch")
    assert whole.start() == before


def test_an_endpoint_at_work_is_refused(whole):
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1500, "ignore_eos": True}
    ask = (
        "curl -s -H 'Content-Type: application/json' -H 'Authorization: Bearer molecule-key' "
        f"-d {shlex.quote(json.dumps(body))} http://127.0.0.1:{PORT}/v1/chat/completions >/dev/null"
    )
    pid = whole.start()["MainPID"]
    # It is at work all the time and runs a tenth of it, so that the host has time for us.
    loops = {
        "slowly": f"while :; do kill -STOP {pid}; sleep 0.2; kill -CONT {pid}; sleep 0.02; done",
        "chatter0": f"while :; do {ask}; done",
        "chatter1": f"while :; do {ask}; done",
    }
    try:
        for unit, loop in loops.items():
            whole.run(f"systemd-run --quiet --unit={unit} sh -c {shlex.quote(loop)}")
        time.sleep(1)
        assert "endpoint toy-whole is at work" in failed_words(whole)
    finally:
        whole.run(f"systemctl stop chatter0 chatter1 slowly; kill -CONT {pid}")
