# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deploy killed with SIGKILL at every boundary, then run again: proven each time, and nothing retired is lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PORT = 8091
HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
STORE = "/var/lib/llm-fleet/toy-chat"
STAMPS = "/var/lib/llm-fleet/payloads"
LITTER = (
    "find /etc /opt/llm-fleet /var/lib/llm-fleet /root/.AGENTTRASH -name '*.tmp' -o -name '*.partial' -o -name '*.gone'"
)
LIBRARY = "/opt/walk"
FETCH = 12  # the number of the task that fetches
KNOWN: dict[str, str] = {}
REPLACES = {"user": "root", "units": ["old"]}


def begin(fleet, kill_at: int = 0, **extra):
    """ansible-playbook site.yml in a process group of its own, killed at that task; (process, where the name goes)."""
    folder = tempfile.mkdtemp()
    Path(folder, "extra.json").write_text(json.dumps(extra))
    killed = Path(folder, "killed-before")
    process = fleet.begin(
        "site.yml", "-e", f"@{folder}/extra.json",
        ANSIBLE_CALLBACK_PLUGINS=str(HERE / "callback"),
        ANSIBLE_CALLBACKS_ENABLED="dank.llm_fleet.fleet_report,kill_at",
        KILL_AT=str(kill_at),
        KILLED_BEFORE=str(killed),
    )  # fmt: skip
    return process, killed


def declared(fleet):
    """The inventory's variables, asked for once."""
    if fleet.host not in KNOWN:
        KNOWN[fleet.host] = json.dumps(fleet.variables())
    return json.loads(KNOWN[fleet.host])


def changed(fleet, number: int):
    """Variables of a deploy in which the payload, the era and the unit that it replaces are new."""
    variables = declared(fleet)
    endpoints, payloads = variables["llm_endpoints"], variables["llm_payloads"]
    endpoints[fleet.endpoint]["replaces"] = REPLACES
    endpoints[fleet.endpoint]["env"]["TEMP"] = f"0.{number:04}3"
    payloads["toy"]["dir"] += f"-{number}"
    return {"llm_endpoints": endpoints, "llm_payloads": payloads}


def old_unit(fleet, number: int) -> str:
    """A unit to be replaced, running and enabled; its sha256."""
    text = f"# {number}\n[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    fleet.run(
        f"printf %s {shlex.quote(text)} >/etc/systemd/system/old.service;"
        "systemctl daemon-reload; systemctl enable --now --quiet old"
    )
    return hashlib.sha256(text.encode()).hexdigest()


def old_digests(fleet) -> set[str]:
    told = fleet.run(
        "find /root/.AGENTTRASH /etc/systemd/system -name old.service -type f -exec sha256sum {} + 2>/dev/null || true"
    )
    return {line.split()[0] for line in told.splitlines()}


def eras(fleet) -> list[str]:
    return fleet.run(f"ls -A {STORE}/eras").split()


def assert_proven(fleet, number: int, seen: set[str], before: int) -> None:
    """What holds after each rerun."""
    told = fleet.run(
        f"grep -c '^TEMP=0.{number:04}3$' /etc/llm-fleet/{fleet.endpoint}.env; systemctl is-active old.service;"
        f"test -e {STORE}/made-way.json; echo $?; {LITTER}",
        check=False,
    )
    assert told.split() == ["1", "inactive", "1"], told
    assert fleet.chat(PORT)
    assert seen <= old_digests(fleet)
    assert len(eras(fleet)) == before + 1


def test_the_controller_killed_at_every_task_boundary(fleet):
    """The last ones, from the fetch on, where the host changes; with LLM_FLEET_WALK_ALL=1 every one, in three times as
    long."""
    seen: set[str] = set()
    number, names = 0 if os.environ.get("LLM_FLEET_WALK_ALL") else FETCH - 1, []
    while True:
        number += 1
        seen.add(old_unit(fleet, number))
        before, extra = len(eras(fleet)), changed(fleet, number)
        process, where = begin(fleet, number, **extra)
        text = process.communicate()[0]
        if not where.exists():
            break
        assert process.returncode == -signal.SIGKILL, text
        names.append(where.read_text())
        print("killed before:", names[-1], flush=True)
        played = fleet.play("site.yml", **extra)
        assert played.rc == 0, f"killed before {names[-1]}: {played.text}"
        assert_proven(fleet, number, seen, before)
    assert process.returncode == 0, text
    assert_proven(fleet, number, seen, before)
    assert names[-1] == "the end" and any("Deploy and prove" in name for name in names), names
    assert any("Fetch" in name for name in names), names  # else FETCH is too high
    played = fleet.play("site.yml", **extra)
    assert played.rc == 0 and played.recap["changed"] == 0, played.text


def holder_of(fleet, process) -> dict:
    """Who held the lock when the signal was sent."""
    end = time.monotonic() + 120
    while fleet.run("systemctl is-active when", check=False).strip() == "active":
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.2)
    return json.loads(fleet.run(f"cat {STORE}/lock"))


def test_a_second_controller_is_told_who_is_at_work(fleet):
    """The first is killed while its module works: the host goes on alone, and the lock names who began."""
    number = 900
    seen, before, extra = {old_unit(fleet, number)}, len(eras(fleet)), changed(fleet, number)
    fleet.when(fleet.locked(), 'kill -STOP "$pid"')  # so that it is still there when the second comes
    process, _where = begin(fleet, **extra)
    holder = holder_of(fleet, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    try:
        played = fleet.play("site.yml", **extra)
        assert played.rc != 0
        who = (
            f"held for deploy of endpoint toy-chat, begun {holder['since']} by {holder['by']} (process {holder['pid']})"
        )
        assert who in played.error and "@" in holder["by"]
    finally:
        fleet.run(f"kill -CONT {holder['pid']}")
    end = time.monotonic() + 60
    while fleet.run(f"cat {STORE}/lock"):
        assert time.monotonic() < end
        time.sleep(0.5)
    assert_proven(fleet, number, seen, before)
    assert fleet.play("site.yml", **extra).recap["changed"] == 0


def test_a_killed_module_is_told_by_the_next_run(fleet):
    number = 901
    seen, before, extra = {old_unit(fleet, number)}, len(eras(fleet)), changed(fleet, number)
    fleet.when(fleet.locked(), 'kill -KILL "$pid"')
    process, _where = begin(fleet, **extra)
    holder = holder_of(fleet, process)
    text = " ".join(process.communicate()[0].split())
    assert process.returncode != 0 and "it was killed, or the host restarted. Run again" in text, text
    played = fleet.play("site.yml", **extra)
    assert played.rc == 0, played.text
    assert f"the last run was killed midway (deploy of endpoint toy-chat, begun {holder['since']} by" in played.error
    assert_proven(fleet, number, seen, before)


def test_a_power_cut_during_a_deploy_and_one_after_it(fleet):
    """The first while the new era's server starts. After the second the host itself starts the proven endpoint.

    The file system's device may have another number after a boot. Whether it has here is chance, so it is made so."""
    number = 902
    seen, before, extra = {old_unit(fleet, number)}, len(eras(fleet)), changed(fleet, number)
    started = f"! systemctl show -P InvocationID {fleet.unit} | grep -qx {fleet.start()['InvocationID']}"
    fleet.when(f"{fleet.locked()} && {started}", 'kill -STOP "$pid"')
    process, _where = begin(fleet, **extra)
    holder_of(fleet, process)
    fleet.cut_power()
    text = " ".join(process.communicate()[0].split())
    assert process.returncode != 0 and "left no result" in text, text
    played = fleet.play("site.yml", **extra)
    assert played.rc == 0, played.text
    assert_proven(fleet, number, seen, before)

    fleet.cut_power()
    fleet.run(f"for i in $(seq 300); do curl -sf http://127.0.0.1:{PORT}/health && exit 0; sleep 0.1; done; exit 1")
    fleet.run(f'sed -i -E \'s/"device": [0-9]+/"device": 1/\' {STAMPS}/*.json')
    renumbered = f"cat {STAMPS}/toy.gguf.*.json | grep -c '\"device\": 1,' || true"
    before = int(fleet.run(renumbered))
    assert before >= 2
    played = fleet.play("playbooks/verify.yml", **extra)
    assert played.rc == 0, played.text
    played = fleet.play("site.yml", **extra)
    assert played.rc == 0 and played.recap["changed"] == 0, played.text
    assert int(fleet.run(renumbered)) == before - 1  # site.yml has read its own file again


@pytest.fixture(scope="module")
def library(fleet):
    """The collection's module_utils, the declaration and the walker on the host."""
    base = f"{LIBRARY}/ansible_collections/dank/llm_fleet/plugins"
    variables = declared(fleet)
    entry = {
        **variables["llm_endpoints"][fleet.endpoint],
        "name": fleet.endpoint,
        "settle_s": 0.2,
        "replaces": REPLACES,
    }
    entry["payload"] = {**variables["llm_payloads"]["toy"], "name": "toy"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "declared.json").write_text(json.dumps(entry))
        fleet.run(f"mkdir -p {base}")
        tar = ["tar", "-c", "--exclude=__pycache__"]
        tar += [
            "-C",
            folder,
            "declared.json",
            "-C",
            str(ROOT / "plugins"),
            "module_utils",
            "-C",
            str(HERE / "files"),
            "walk",
        ]
        tar += ["-C", str(ROOT / "roles" / "endpoint" / "files"), "serve-llamacpp"]
        packed = subprocess.run(tar, capture_output=True, check=True).stdout
        subprocess.run([*fleet.ssh(), f"tar -x -C {base}"], input=packed, check=True)
    yield base
    with contextlib.suppress(AssertionError):
        fleet.run(f"rm -r {LIBRARY}")


def walked(fleet, base: str, way: str, stride: int):
    """Every step is walked with LLM_FLEET_WALK_ALL=1, which takes three times as long."""
    stride = 1 if os.environ.get("LLM_FLEET_WALK_ALL") else stride
    told = fleet.run(f"python3 {base}/walk {LIBRARY} {base}/declared.json {way} 1 {stride}")
    rows = [json.loads(line) for line in told.splitlines()]
    print("\n".join(f"{row['step']:3} {row['seconds']:5} s  {row['at']}" for row in rows[:-1]))
    return rows[:-1], rows[-1]


def common(row) -> None:
    assert row["lost"] == 0 and row["litter"] == [] and row["owed"] is None, row
    assert row["current"] and row["answers"], row


def test_the_module_killed_at_each_of_its_steps(fleet, library):
    rows, end = walked(fleet, library, "serves", 3)
    for row in rows:
        common(row)
        assert row["again"] == 0 and row["whole"] and row["eras"] == 1 and row["old"] == "inactive", row
    steps = [row["at"] for row in rows]
    for part in ("/eras/", "/root/.AGENTTRASH/", "systemctl ", "gate: "):
        assert any(part in step for step in steps), steps
    assert len(rows) > 15 and end["status"] == 0, end


def test_a_red_deploy_killed_on_its_way_back(fleet, library):
    rows, end = walked(fleet, library, "red", 7)
    for row in rows:
        common(row)
        assert row["again"] == 256 and "probe" in row["report"] and row["old"] == "active" and row["temp"], row
        assert row["eras"] <= 2, row  # killed after the first was recorded as failed, there are two
    assert len(rows) > 7 and end["status"] == 256, end
