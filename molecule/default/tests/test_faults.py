# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fault is one clear error that says what to do, and the endpoint goes on serving."""

from __future__ import annotations

import time

import pytest

PORT = 8080


@pytest.fixture
def unharmed(fleet):
    """The same start serves after the fault as before it."""
    before = fleet.start()
    yield
    assert fleet.start() == before
    assert fleet.chat(PORT)


def changed(fleet, **env):
    """The host's endpoints with these env lines over the endpoint's own."""
    endpoints = fleet.variables()["llm_endpoints"]
    endpoints[fleet.endpoint]["env"].update(env)
    return endpoints


def test_second_run_changes_nothing_and_restarts_nothing(fleet, unharmed):
    before = fleet.snapshot()
    played = fleet.play("site.yml")
    assert played.rc == 0, played.text
    assert played.recap["changed"] == 0
    assert "ENDPOINTS" in played.text
    assert fleet.snapshot() == before


def test_check_mode_of_a_change_tells_it_and_writes_nothing(fleet, unharmed):
    before = fleet.snapshot()
    played = fleet.play("site.yml", "--check", "--diff", llm_endpoints=changed(fleet, TEMP="0.5"))
    assert played.rc == 0, played.text
    assert played.recap["changed"] == 1
    assert "+TEMP=0.5" in played.text
    assert fleet.snapshot() == before


def test_wrong_sha256_touches_no_service(fleet, unharmed):
    payloads = fleet.variables()["llm_payloads"]
    right = payloads["smollm2"]["files"][0]["sha256"]
    payloads["smollm2"]["files"][0]["sha256"] = "0" * 64
    played = fleet.play("site.yml", llm_payloads=payloads)
    assert played.rc != 0
    assert played.recap["failed"] == 1
    assert right in played.error and "0" * 64 in played.error
    assert fleet.play("playbooks/verify.yml").rc == 0


def test_a_build_that_fails_leaves_the_runtime_that_serves(fleet, unharmed):
    runtimes = fleet.variables()["llm_runtimes"]
    runtimes["cpu"]["cmake"]["CMAKE_CXX_FLAGS"] = "--no-such-flag"
    built = "cd /opt/llm-fleet/runtimes && readlink cpu && find cpu/ -type f -exec sha256sum {} + | sort"
    before = fleet.run(built)
    played = fleet.play("site.yml", llm_runtimes=runtimes)
    assert played.rc != 0 and played.recap["failed"] == 1, played.text
    assert "--no-such-flag" in played.error, played.text
    assert fleet.run(built) == before


def test_unknown_env_key_is_refused_before_the_host_is_touched(fleet, unharmed):
    played = fleet.play("site.yml", llm_endpoints=changed(fleet, KV_CACHE_TYPE="q8_0"))
    assert played.rc != 0
    assert "KV_CACHE_TYPE" in played.error and "CACHE_TYPE_K" in played.error
    assert "Look at what the host lacks" not in played.text


def test_context_that_does_not_divide_is_refused(fleet, unharmed):
    played = fleet.play("site.yml", llm_endpoints=changed(fleet, PARALLEL=3))
    assert played.rc != 0
    assert "CTX_SIZE" in played.error and "PARALLEL" in played.error
    assert "Look at what the host lacks" not in played.text


def test_missing_model_file_is_named(fleet):
    declared = fleet.variables()["llm_payloads"]["smollm2"]
    path = f"{declared['dir']}/{declared['files'][0]['name']}"
    fleet.run(f"mv {path} {path}.away")
    try:
        played = fleet.play("site.yml", "--tags", "endpoint")
        assert played.rc != 0
        assert path in played.error and "MODEL_FILE" in played.error
    finally:
        fleet.run(f"mv {path}.away {path}")
    assert fleet.chat(PORT)


def test_occupied_port_names_who_holds_it(fleet, unharmed):
    fleet.run("systemd-run --unit=stranger python3 -m http.server 8099 --bind 127.0.0.1")
    try:
        fleet.run(
            "for i in $(seq 300); do curl -s http://127.0.0.1:8099/ >/dev/null && exit 0; sleep 0.1; done; exit 1"
        )
        played = fleet.play("site.yml", llm_endpoints=changed(fleet, LISTEN_PORT=8099))
        assert played.rc != 0
        assert "port 8099 is taken" in played.error and "stranger.service" in played.error
    finally:
        fleet.run("systemctl stop stranger.service")


def test_undeclared_drop_in_is_red_in_verify_and_in_site(fleet):
    folder = f"/etc/systemd/system/{fleet.unit}.d"
    before = fleet.start()
    fleet.run(f"mkdir -p {folder}; printf '[Service]\\nEnvironment=X=1\\n' >{folder}/arm.conf; systemctl daemon-reload")
    try:
        played = fleet.play("playbooks/verify.yml")
        assert played.rc != 0 and f"{folder}/arm.conf" in played.error
        assert fleet.play("site.yml").rc != 0
    finally:
        fleet.run(f"rm -r {folder}; systemctl daemon-reload")
    assert fleet.start() == before
    assert fleet.play("playbooks/verify.yml").rc == 0


def test_env_file_edited_by_hand_is_put_back(fleet):
    file = f"/etc/llm-fleet/{fleet.endpoint}.env"
    before = fleet.run(f"cat {file}")
    fleet.run(f"sed -i s/^CTX_SIZE=.*/CTX_SIZE=2048/ {file}; systemctl restart {fleet.unit}")
    fleet.run(f"for i in $(seq 300); do curl -sf http://127.0.0.1:{PORT}/health && exit 0; sleep 0.1; done; exit 1")
    assert fleet.play("playbooks/verify.yml").rc != 0
    played = fleet.play("site.yml")
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    assert fleet.run(f"cat {file}") == before
    assert fleet.play("playbooks/verify.yml").rc == 0


def with_model(fleet, path):
    """The host's payloads with this file of the host's as the model."""
    payloads = fleet.variables()["llm_payloads"]
    name = path.rsplit("/", 1)[1]
    size, digest = fleet.run(f"stat -c %s {path}; sha256sum {path}").split()[:2]
    payloads["smollm2"]["files"] = [
        {"name": name, "role": "model", "bytes": int(size), "sha256": digest, "urls": [f"file://{path}"]}
    ]
    return payloads


def test_an_adapter_is_no_model(fleet, unharmed):
    payloads = with_model(fleet, "/var/cache/llm-fleet/sources/toy-lora-yes.gguf")
    played = fleet.play("site.yml", llm_payloads=payloads)
    assert played.rc != 0
    assert "toy-lora-yes.gguf" in played.error and "adapter" in played.error
    assert not fleet.run(f"ls {payloads['smollm2']['dir']}/toy-lora-yes.gguf 2>/dev/null || true")


def test_a_shape_that_does_not_fit_is_refused_with_what_would(fleet, unharmed):
    endpoints = changed(fleet, CTX_SIZE=8388608)
    del endpoints[fleet.endpoint]["client"]  # its promise is another
    played = fleet.play("site.yml", llm_endpoints=endpoints)
    assert played.rc != 0
    assert f"endpoint {fleet.endpoint} does not fit the host" in played.error
    assert "is enough: frees" in played.error


def test_what_the_engine_itself_refuses_is_refused_before_the_cut_over(fleet, unharmed):
    """A model that passes every rule of ours: its vocabulary has no kind."""
    path = "/tmp/no-vocabulary.gguf"
    fleet.run(f"sed 's/tokenizer[.]ggml[.]model/tokenizer.ggml.nodel/' /var/cache/llm-fleet/sources/toy.gguf >{path}")
    played = fleet.play("site.yml", llm_payloads=with_model(fleet, path))
    assert played.rc != 0
    assert "llama-fit-params" in played.error and "tokenizer" in played.error


def test_a_deploy_that_cannot_serve_goes_back_to_the_last_era(fleet):
    """A chat template that only the server reads, and cannot."""
    era = fleet.run(f"readlink /var/lib/llm-fleet/{fleet.endpoint}/current")
    fleet.run("echo '{% for %}' >/etc/llm-fleet/broken.jinja")
    endpoints = changed(fleet, CHAT_TEMPLATE_FILE="/etc/llm-fleet/broken.jinja")
    played = fleet.play("site.yml", llm_endpoints=endpoints)
    assert played.rc != 0
    assert "does not stay up" in played.error
    assert "serves again" in played.error
    assert fleet.run(f"readlink /var/lib/llm-fleet/{fleet.endpoint}/current") == era
    assert fleet.chat(PORT)
    assert fleet.play("playbooks/verify.yml").rc == 0
    assert fleet.play("site.yml").recap["changed"] == 0


def test_a_unit_of_the_same_name_that_is_not_ours_is_left_alone(fleet, unharmed):
    """A second endpoint whose name somebody's own unit already has."""
    unit = "/etc/systemd/system/second-chat.service"
    fleet.run(f"printf '[Service]\\nExecStart=/usr/bin/sleep 1000\\n' >{unit}; systemctl daemon-reload")
    mine = fleet.run(f"cat {unit}")
    endpoints = fleet.variables()["llm_endpoints"]
    second = {**endpoints[fleet.endpoint], "rungs": {}}
    del second["client"]  # it speaks of the rungs
    second["env"] = {**second["env"], "ALIAS": "second-chat", "LISTEN_PORT": 8081}
    endpoints["second-chat"] = second
    try:
        played = fleet.play("site.yml", llm_endpoints=endpoints)
        assert played.rc != 0 and unit in played.error and "did not write" in played.error
        assert fleet.run(f"cat {unit}") == mine
    finally:
        fleet.run(f"rm {unit}; systemctl daemon-reload")


def test_a_deploy_killed_midway_says_so_and_is_run_again(fleet):
    """The module dies on the host while the server starts: no endless wait, and the next run finishes the work."""
    before = fleet.start()["InvocationID"]
    started = f"! systemctl show -P InvocationID {fleet.unit} | grep -qx {before}"
    fleet.when(f"{fleet.locked()} && {started}", 'kill -KILL "$pid"')
    endpoints = changed(fleet, TEMP="0.7")
    played = fleet.play("site.yml", llm_endpoints=endpoints)
    assert played.rc != 0
    assert "left no result" in played.error
    played = fleet.play("site.yml", llm_endpoints=endpoints)
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    assert fleet.play("site.yml", llm_endpoints=endpoints).recap["changed"] == 0
    assert fleet.chat(PORT)


def test_kill_9_comes_back_and_verify_tells(fleet):
    played = fleet.play("site.yml")
    assert played.rc == 0, played.text
    before = fleet.start()
    fleet.run(f"kill -9 {before['MainPID']}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        after = fleet.start()
        if after["SubState"] == "running" and fleet.run(
            f"curl -sf http://127.0.0.1:{PORT}/health || true", check=False
        ):
            break
        time.sleep(1)
    assert after["MainPID"] != before["MainPID"] and after["NRestarts"] == "1"
    played = fleet.play("playbooks/verify.yml")
    assert played.rc == 0, played.text
    assert "restarted 1x by systemd" in played.error
    assert fleet.play("site.yml").recap["changed"] == 0
