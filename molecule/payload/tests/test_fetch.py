# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetched from a real web server, killed midway, lied to: no final name ever holds an unproven byte."""

from __future__ import annotations

DIR = "/var/lib/llm-fleet/models/sharded"
LOG = "/var/log/nginx/models.log"
SHARDS = [f"toy-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def declared(fleet):
    return {file["name"]: file["sha256"] for file in fleet.variables()["llm_payloads"]["sharded"]["files"]}


def found(fleet):
    """Name: sha256 of every file that is not hidden, as the host's own program says."""
    text = fleet.run(f"cd {DIR} && sha256sum *")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def requests(fleet):
    """(file, status, range) of every request for a shard since the log was emptied, in the order of their end."""
    lines = [line.split() for line in fleet.run(f"cat {LOG}").splitlines()]
    return [(line[1][1:], line[2], line[3]) for line in lines if line[0] == "GET" and line[1][1:] in SHARDS]


def drop(fleet, *names):
    """Take files off the host, with their stamps, and empty the server's log."""
    for name in names:
        fleet.run(f"rm -f {DIR}/{name} {DIR}/.{name}.* /var/lib/llm-fleet/payloads/{name}.*.json")
    fleet.run(f": >{LOG}")


def test_the_files_are_the_declared_ones_and_came_over_several_connections(fleet):
    assert found(fleet) == declared(fleet)
    asked = requests(fleet)
    assert {name for name, _status, _range in asked} == set(SHARDS)
    assert {status for _name, status, _range in asked} <= {"200", "206"}
    assert len(asked) > len(SHARDS), asked
    assert fleet.run(f"find {DIR} -name '.*' -type f -not -name .payload.lock") == ""


def test_a_fetch_killed_midway_leaves_nothing_unproven_and_goes_on(fleet):
    """SIGKILL, by the process that the directory's lock names."""
    drop(fleet, *SHARDS)
    # The web server needs three seconds and more for them.
    fleet.when(f"ls {DIR}/.toy-0*", f"sleep 1; kill -9 $(grep -o '[0-9]*' {DIR}/.payload.lock | head -n1)")
    played = fleet.play("site.yml", "--tags", "payload")
    assert played.rc != 0, played.text
    right, left = declared(fleet), found(fleet)
    assert {name: right[name] for name in left} == left, "a final name of unproven bytes"
    assert len(left) < len(right), "it was killed too late"
    assert fleet.run(f"find {DIR} -name '.toy-0*' -size +100k"), "nothing to go on from"

    fleet.run(f": >{LOG}")
    played = fleet.play("site.yml", "--tags", "payload")
    assert played.rc == 0, played.text
    assert found(fleet) == right
    assert any(status == "206" for _name, status, _range in requests(fleet)), requests(fleet)
    assert fleet.run(f"find {DIR} -name '.toy-0*'") == ""


def test_a_file_that_is_wrong_on_the_server_is_rejected_by_name(fleet):
    drop(fleet, "toy-00002-of-00003.gguf")
    right = declared(fleet)["toy-00002-of-00003.gguf"]
    server = "/srv/models/toy-00002-of-00003.gguf"
    fleet.run(f"cp {server} /root/kept; printf X | dd of={server} bs=1 seek=1000000 conv=notrunc status=none")
    try:
        wrong = fleet.run(f"sha256sum {server}").split()[0]
        played = fleet.play("site.yml")
        assert played.rc != 0 and "toy-00002-of-00003.gguf" in played.error
        assert right in played.error and wrong in played.error
        aside = f"{DIR}/toy-00002-of-00003.gguf.rejected-{wrong[:12]}"
        assert aside in played.error
        assert fleet.run(f"ls {DIR} | grep toy-00002").split() == [aside.rpartition("/")[2]]
        assert fleet.run(f"sha256sum {aside}").split()[0] == wrong
    finally:
        fleet.run(f"cp /root/kept {server}")
    played = fleet.play("site.yml")
    assert played.rc == 0, played.text
    fleet.run(f"rm -f {DIR}/*.rejected-*")
    assert found(fleet) == declared(fleet)
