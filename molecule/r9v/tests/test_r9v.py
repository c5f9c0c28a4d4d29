# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in of the R9V fork, deployed, proven, rolled back and forward; each red gate before anything is stopped."""

from __future__ import annotations

import json

PORT = 8095
CONTAINER = "standin-primary-r9v"
MODELS = "/srv/r9v/models"
KEYS = ("R9V_FULL_MUTABLE_CACHE", "R9V_DEV_QWEN4_EXP_ADAPTER_PY", "R9V_CHAT_TEMPLATE_FILE", "R9V_CHAT_TEMPLATE_KWARGS")


def podman(fleet, command):
    """Run podman as the endpoint's user, whose images and containers they are."""
    switch = "setpriv --reuid=owner --regid=owner --init-groups env -i HOME=/home/owner USER=owner PATH=/usr/bin:/bin"
    return fleet.run(f"cd / && {switch} podman {command}")


def container(fleet):
    return json.loads(podman(fleet, f"container inspect {CONTAINER}"))[0]


def start_of(fleet):
    return {**fleet.start(), "container": container(fleet)["Id"]}


def window(fleet):
    return json.loads(fleet.run(f"curl -sS http://127.0.0.1:{PORT}/v1/models"))["data"][0]["max_model_len"]


def roll(fleet, **extra):
    return fleet.play("playbooks/rollback.yml", endpoint=fleet.endpoint, **extra)


def test_it_serves_from_the_declared_image_with_the_state_under_the_env(fleet):
    assert fleet.chat(PORT) == "hello"
    told, made = container(fleet), json.loads(fleet.run("cat /srv/r9v/made.json"))
    images = json.loads(podman(fleet, "images --format json"))
    assert any(name.endswith(f"@sha256:{made['digest']}") for image in images for name in image["RepoDigests"])
    words = fleet.run(f"tr '\\0' '\\n' </proc/{told['State']['Pid']}/cmdline").split("\n")
    assert "--enable-prefix-caching" in words  # 0 in the state, 1 in the env: the env wins
    assert words[words.index("--max-model-len") + 1] == "4096"  # in the state alone
    assert words[words.index("--default-chat-template-kwargs") + 1] == '{"preserve_thinking":true}'
    assert int(fleet.run(f"awk '/VmLck/ {{print $2}}' /proc/{told['State']['Pid']}/status")) >= 1024


def test_what_came_first_holds_after(fleet):
    """The unit's process is the launcher; no line of the state's shape is in the env file."""
    assert fleet.start()["SubState"] == "running"
    lines = fleet.run(f"cat /etc/llm-fleet/{fleet.endpoint}.env")
    assert "R9V_MAX_MODEL_LEN" not in lines and "R9V_MTP_SPEC_TOKENS" not in lines
    unit = fleet.run(f"systemctl cat {fleet.unit}")
    for line in ("LimitMEMLOCK=infinity", "Restart=on-failure", "serve-r9v stop"):
        assert line in unit
    verdicts = fleet.probe(full=True)
    assert all(verdicts[name]["verdict"] == "pass" for name in ("cache", "drafting", "context", "chat", "reasoning"))


def test_the_old_pair_is_retired(fleet):
    """Two quadlets ran before the first deploy: no unit and no container of theirs is left, their files are kept."""
    names = ("old-vllm-a", "old-vllm-b")
    kept = fleet.run("cd /home/owner/.AGENTTRASH/*-old-vllm && find . -name '*.container'").split()
    assert sorted(kept) == [f"./etc/containers/systemd/{name}.container" for name in names]
    states = fleet.run(f"systemctl show -p LoadState --value {' '.join(names)}").split()
    assert states == ["not-found", "not-found"] and fleet.run("podman ps --all --quiet") == ""


def test_the_layers_are_told(fleet):
    played = fleet.play("site.yml", explain=True)
    assert played.rc == 0 and played.recap["changed"] == 0, played.text
    assert "R9V_ENABLE_PREFIX_CACHING" in played.text and "(over state's 0)" in played.text
    assert "state    R9V_MAX_MODEL_LEN" in played.text


def test_files_that_are_not_whole_stop_nothing(fleet):
    """A shard and the projector missing, the table one byte short: all three are named, by the endpoint's own gate."""
    shard, projector = "q8/target/Standin-Q8_0-00003-of-00006.gguf", "q8/vision/mmproj-Standin-F16.gguf"
    table, before = "q8/r9v-data/table.bin", start_of(fleet)
    fleet.run(f"cd {MODELS} && mkdir -p /root/kept && mv {shard} {projector} /root/kept && cp -a {table} /root/kept")
    fleet.run(f"truncate -s -1 {MODELS}/{table}")
    try:
        played = fleet.play("site.yml", "--tags", "endpoint")
    finally:
        fleet.run(f"cd {MODELS} && for f in {shard} {projector} {table}; do mv /root/kept/${{f##*/}} $f; done")
    assert played.rc != 0 and "what setup state" in played.error, played.text
    for words in (f"{MODELS}/{shard} is missing", f"{MODELS}/{projector} is missing", "1,048,575 bytes, and 1,048,576"):
        assert words in played.error
    assert start_of(fleet) == before and fleet.chat(PORT) == "hello"


def test_a_state_that_is_not_ready_stops_nothing(fleet):
    state, before = "/srv/r9v/state/q8/setup.json", start_of(fleet)
    fleet.run(f'cp -a {state} /root/state && sed -i \'s/"ready": true/"ready": false/\' {state}')
    try:
        played = fleet.play("site.yml")
    finally:
        fleet.run(f"mv /root/state {state}")
    assert played.rc != 0 and "is not ready" in played.error, played.text
    assert start_of(fleet) == before and fleet.chat(PORT) == "hello"


def test_another_image_stops_nothing(fleet):
    before, runtimes = start_of(fleet), fleet.variables()["llm_runtimes"]
    runtimes["r9v-standin"]["source"]["sha256"] = "ab" * 32
    played = fleet.play("site.yml", llm_runtimes=runtimes)
    assert played.rc != 0 and "holds another image" in played.error and "ab" * 32 in played.error, played.text
    assert start_of(fleet) == before and fleet.chat(PORT) == "hello"


def test_a_probe_on_the_port_turns_the_deploy_red(fleet):
    """It answers /health with 200; the endpoint is down meanwhile and is not started beside it."""
    fleet.run(f"systemctl stop {fleet.unit}")
    assert container(fleet)["State"]["Status"] == "exited"
    fleet.run("touch /srv/health")
    fleet.run("systemd-run --unit stranger --collect python3 -m http.server 8095 --bind 127.0.0.1 --directory /srv")
    try:
        played = fleet.play("site.yml")
    finally:
        fleet.run("systemctl stop stranger")
    assert played.rc != 0 and "port 8095 is taken" in played.error and "stranger.service" in played.error, played.text
    fleet.run("rm /srv/health")
    assert fleet.play("site.yml", "--tags", "endpoint").rc == 0
    assert fleet.chat(PORT) == "hello"


def test_a_container_that_ends_by_itself_is_a_failure_and_comes_back(fleet):
    before = start_of(fleet)
    podman(fleet, f"kill --signal TERM {CONTAINER}")  # the stand-in's server then ends with 0, as the fork's did
    again = f"[ $(systemctl show -p NRestarts --value {fleet.unit}) = 1 ] && curl -sf http://127.0.0.1:{PORT}/health"
    fleet.run(f"for n in $(seq 300); do {again} && exit; sleep 0.2; done; exit 1")
    assert start_of(fleet)["container"] != before["container"]
    assert "ended by itself" in fleet.run(f"journalctl -u {fleet.unit} -o cat")


def test_rollback_drops_the_keys_of_the_payload_and_back_restores_them(fleet):
    files = f"find {MODELS} -type f -not -name .payload.lock -printf '%p %i %s %T@\\n' | sort"
    images, made = podman(fleet, "images -q"), fleet.run(files)
    fleet.run(f"mv {MODELS}/uncensored/target/Standin-Q8_0-00002-of-00006.gguf /root/shard")
    before = start_of(fleet)
    played = roll(fleet, rung="uncensored")
    fleet.run(f"mv /root/shard {MODELS}/uncensored/target/Standin-Q8_0-00002-of-00006.gguf")
    assert played.rc != 0 and "Standin-Q8_0-00002-of-00006.gguf is missing" in played.error, played.text
    assert start_of(fleet) == before

    played = roll(fleet, rung="uncensored")
    assert played.rc == 0, played.text
    lines = fleet.run(f"cat /etc/llm-fleet/{fleet.endpoint}.env")
    assert "/srv/r9v/state/uncensored/setup.json" in lines and not any(key in lines for key in KEYS)
    assert window(fleet) == 6144
    assert podman(fleet, "images -q") == images
    assert fleet.run(files) == made

    played = roll(fleet, unpin=True)
    assert played.rc == 0, played.text
    lines = fleet.run(f"cat /etc/llm-fleet/{fleet.endpoint}.env")
    assert all(key in lines for key in KEYS) and window(fleet) == 4096
    assert fleet.play("site.yml").recap["changed"] == 0
