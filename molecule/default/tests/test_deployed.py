# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a full deploy leaves on the host, read without our own code."""

from __future__ import annotations

import json

PORT = 8080


def test_host_runs_and_unit_serves(fleet):
    assert fleet.run("systemctl is-system-running").strip() == "running"
    start = fleet.start()
    assert (start["ActiveState"], start["SubState"], start["NRestarts"]) == ("active", "running", "0")
    assert fleet.run(f"systemctl is-enabled {fleet.unit}").strip() == "enabled"
    assert fleet.run(f"ps -o user= -p {start['MainPID']}").strip() == "llm"


def test_program_is_the_built_runtime(fleet):
    program = fleet.run(f"readlink /proc/{fleet.start()['MainPID']}/exe").strip()
    assert program == fleet.run("readlink -f /opt/llm-fleet/runtimes/cpu/bin/llama-server").strip()
    assert "11434" in fleet.run(f"{program} --version 2>&1")
    build = json.loads(fleet.run("cat /opt/llm-fleet/runtimes/cpu/build.json"))
    assert build["server_bin"] == program


def test_main_process_alone_listens(fleet):
    owner = fleet.run(f"ss -Hltnp 'sport = :{PORT}'")
    assert owner.count("pid=") == 1
    assert f"pid={fleet.start()['MainPID']}," in owner


def test_it_answers_with_the_declared_payload(fleet):
    assert "hello" in fleet.chat(PORT).lower()
    props = json.loads(fleet.run(f"curl -sS http://127.0.0.1:{PORT}/props"))
    declared = fleet.variables()["llm_payloads"]["smollm2"]
    assert props["model_path"] == f"{declared['dir']}/{declared['files'][0]['name']}"
    assert props["total_slots"] == 2
    digest = fleet.run(f"sha256sum {props['model_path']}").split()[0]
    assert digest == declared["files"][0]["sha256"]


def test_environment_is_what_bash_reads_from_the_env_file(fleet):
    """systemd and bash read the written file alike, key by key."""
    file = f"/etc/llm-fleet/{fleet.endpoint}.env"
    read = dict(
        line.split("=", 1)
        for line in fleet.run(f"env -i bash --noprofile --norc -c 'set -a; . {file}; env'").splitlines()
        if not line.startswith(("PWD=", "SHLVL=", "_="))
    )
    raw = fleet.run(f"tr '\\0' '\\n' </proc/{fleet.start()['MainPID']}/environ").splitlines()
    process = dict(line.split("=", 1) for line in raw)
    assert read
    assert {key: process.get(key) for key in read} == read


def test_era_is_recorded_with_its_certificate(fleet):
    era = json.loads(fleet.run(f"cat /var/lib/llm-fleet/{fleet.endpoint}/current/era.json"))
    assert era["state"] == "certified"
    verdicts = {probe["probe"]: probe["verdict"] for probe in era["certificate"]["probes"]}
    declared = "health models props metrics chat stream greedy cache context vision slots".split()
    assert {name for name, verdict in verdicts.items() if verdict == "pass"} == set(declared)
    assert {verdicts[name] for name in ("tools", "drafting", "adapter", "auth")} == {"not-declared"}
    assert all(link["ok"] for link in era["certificate"]["truth"])
    assert len(era["certificate"]["truth"]) >= 14


def test_the_boot_took_what_was_foretold(fleet):
    certificate = json.loads(fleet.run(f"cat /var/lib/llm-fleet/{fleet.endpoint}/current/era.json"))["certificate"]
    assert certificate["ledger"]["differences"] == []
    assert certificate["ledger"]["note"] == ""
    assert 0 < certificate["ledger"]["measured"]["host"]["compute_mib"] <= certificate["fit"]["host"]["compute_mib"]
    assert 0 < certificate["gap_s"] < 60


def test_the_unit_is_closed(fleet):
    """systemd's own judgement, from 0 to 10 (times ten here): at most 4.0."""
    fleet.run(f"systemd-analyze security --no-pager --threshold=40 {fleet.unit} >/dev/null")


TRICKY = {
    "PLAIN": "a/b:c,d=e+f%g@h",
    "BLANKS": " two  words\tand a tab ",
    "DOLLAR": "x$5 $HOME ${HOME} $(id) `id`",
    "JSON": '{"preserve_thinking": true}',
    "HASH": "a #b",
    "BACKSLASH": "a\\b\\",
    "TILDE": "~",
    "SEMICOLON": ";x",
    "EMPTY": "",
    "WIDE": "é€",
}


def test_written_lines_are_read_alike_by_real_systemd_and_bash(fleet):
    """What env_file writes reaches a unit's process, and a shell that sources the file, to the letter."""
    fleet.module("dank.llm_fleet.env_file", path="/run/tricky.env", set=TRICKY, create=True)
    unit = fleet.run("systemd-run --quiet --wait --pipe -p EnvironmentFile=/run/tricky.env /usr/bin/env -0")
    shell = fleet.run("env -i /bin/bash --norc -c 'set -a; . /run/tricky.env; /usr/bin/env -0'")
    for told in (unit, shell):
        read = dict(item.split("=", 1) for item in told.split("\0") if item)
        assert {key: read.get(key) for key in TRICKY} == TRICKY
