# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that misbehaves (a stand-in for the hubs and proxies that do), by the module as a play runs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BYTES = 3 << 20

# In the end the file is there. What the first answers do is in tests/unit/fileserver.py.
ENDS_WELL = {
    "trickle": {"cut_at": 400_000},
    "recovers": {"times": 2},
    "busy": {"times": 1, "wait_s": "1"},
    "unavailable": {"times": 1, "wait_s": "1"},
    "norange": {},
    "changes": {},
    "noetag": {},
    "redirect": {},
    "nolength": {},
}
# One clear error, with these words in it, and nothing that has the file's name.
ENDS_RED = {
    "cut": (["ended early"], {"cut_at": 100_000}),
    "html": (["HTML page"], {}),
    "lfs": (["git LFS pointer"], {}),
    "magic": (["no GGUF file"], {}),
    "forbidden": (["403"], {}),
    "wronglength": (["another length", str(BYTES + 1)], {}),
    "flip": (["other bytes than declared", ".rejected-"], {}),
}


def test_a_server_that_misbehaves_gets_nothing_wrong_onto_the_host(fleet):
    work, settings = "/srv/faults", ENDS_WELL | {fault: given for fault, (_, given) in ENDS_RED.items()}
    fleet.run(f"mkdir -p {work}; printf GGUF >{work}/body; head -c {BYTES - 4} /dev/urandom >>{work}/body")
    for path in (ROOT / "tests/unit/fileserver.py", ROOT / "molecule/payload/files/fault_servers.py"):
        fleet.run(f"cat >{work}/{path.name} <<'__END__'\n{path.read_text()}\n__END__")
    command = ["python3", f"{work}/fault_servers.py", f"{work}/body", json.dumps(settings), f"{work}/urls"]
    fleet.run(f"systemd-run --quiet --unit=faults {shlex.join(command)}")
    try:
        urls = json.loads(
            fleet.run(f"timeout 20 bash -c 'until test -s {work}/urls; do sleep 0.1; done'; cat {work}/urls")
        )
        digest = fleet.run(f"sha256sum {work}/body").split()[0]

        def file(name, *faults):
            return {"name": name, "bytes": BYTES, "sha256": digest, "urls": [urls[fault] for fault in faults]}

        well = [file(f"{fault}.gguf", fault) for fault in ENDS_WELL]
        mirrored = file("mirrored.gguf", "html", "forbidden", "good")
        cases = [{"name": "well", "files": [*well, mirrored]}]
        cases += [{"name": fault, "files": [file(f"{fault}.gguf", fault)]} for fault in ENDS_RED]
        played = fleet.play("molecule/payload/faults.yml", cases=cases)
        results = dict(
            zip((case["name"] for case in cases), json.loads(fleet.run("cat /root/faults.json")), strict=True)
        )
    finally:
        fleet.run("systemctl stop faults")

    assert not results["well"].get("failed"), played.text
    named = fleet.run(f"cd {work}/well && sha256sum *").splitlines()
    assert {line.split()[1] for line in named} == {f"{fault}.gguf" for fault in [*ENDS_WELL, "mirrored"]}
    assert {line.split()[0] for line in named} == {digest}
    assert fleet.run(f"find {work}/well -name '.*.part*'") == ""
    told = [note["error"] for note in results["well"]["failures"] if note["file"] == "mirrored.gguf"]
    assert len(told) == 2 and "HTML" in told[0] and "403" in told[1], told

    for fault, (words, _) in ENDS_RED.items():
        assert results[fault].get("failed"), fault
        for word in words:
            assert word in results[fault]["msg"], (fault, results[fault]["msg"])
        names = fleet.run(f"ls {work}/{fault}").split()
        assert f"{fault}.gguf" not in names, fault
        assert all(name.startswith(f"{fault}.gguf.rejected-") for name in names) and len(names) <= 1, names


def test_verify_payload_lists_every_lie_and_changes_nothing(fleet):
    folder, lies = "/var/lib/llm-fleet/models/sharded", ["toy-00001-of-00003.gguf", "toy-00003-of-00003.gguf"]
    assert fleet.play("site.yml", "--tags", "verify_payload").rc == 0
    fleet.run(
        f"cp -a {folder} /root/sharded; printf X | dd of={folder}/{lies[0]} bs=1 seek=9999 conv=notrunc status=none"
    )
    fleet.run(f"truncate -s -1 {folder}/{lies[1]}")
    try:
        before = fleet.snapshot()
        played = fleet.play("site.yml", "--tags", "verify_payload")
        assert played.rc != 0 and played.recap["changed"] == 0, played.text
        assert "2 of 4 files are not the declared ones" in played.error
        for name in lies:
            assert f"{folder}/{name}" in played.error
        assert fleet.snapshot() == before
    finally:
        fleet.run(f"cp -a /root/sharded/. {folder}")
    assert fleet.play("site.yml").rc == 0


def test_a_payload_that_an_era_needs_is_not_removed(fleet):
    declared = fleet.variables()["llm_payloads"]["sharded"]
    told = fleet.module("dank.llm_fleet.payload", check=False, name="sharded", state="absent", **declared)
    assert "an era on this host still needs" in told
    assert len(fleet.run(f"ls {declared['dir']}").split()) >= 4
