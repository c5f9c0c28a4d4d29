# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/lock.yml and module hf_lock, as an operator runs them, against a hub on 127.0.0.1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.modules import hf_lock
from hubserver import NEW, OLD, HubServer, chat_hub, digest_of, lfs, serve

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"name": "chat.gguf", "role": "model", "repo": "me/chat"}
SECRET = "hf_secret"


class Place:
    """An inventory of two hosts that nobody can reach; the second declares a payload of its own."""

    def __init__(self, folder: Path, hub: HubServer) -> None:
        self.folder, self.hub = folder, hub
        self.lock = folder / "group_vars" / "all" / "payloads.lock.yml"
        self.write("hosts.yml", {"llm": {"hosts": {"a": {"ansible_host": "192.0.2.1"}, "b": {}}}})
        self.declare(MODEL)
        other = {"name": "m.gguf", "role": "mmproj", "repo": "me/chat", "revision": "v1", "file": "vision/mmproj.gguf"}
        payloads = {"sight": {"dir": "/m", "files": [other]}}
        self.write("host_vars/b.yml", {"llm_payloads": payloads})

    def write(self, name: str, value: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(value))

    def declare(self, file: dict[str, Any]) -> None:
        self.write("host_vars/a.yml", {"llm_payloads": {"chat": {"dir": "/m", "files": [file]}}})
        self.write("group_vars/all/fleet.yml", {"llm_runtimes": {}, "llm_endpoints": {}})

    def play(self, name: str, *args: str) -> tuple[int, str]:
        """(exit status, all output) of a playbook."""
        env = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
            "HUB_TOKEN": SECRET,
        }
        program = Path(sys.executable).parent / "ansible-playbook"
        argv = [str(program), "-i", str(self.folder), f"playbooks/{name}.yml", *args]
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def pin(self, *args: str) -> tuple[int, str]:
        return self.play("lock", "-e", f"lock_hub_url={self.hub.base}", *args)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with serve(chat_hub()) as hub:
        yield Place(tmp_path, hub)


def test_the_lock_is_shown_written_and_then_left_alone(place: Place) -> None:
    place.hub.token = SECRET
    token = ("-e", "lock_token_env=HUB_TOKEN")
    status, told = place.pin("--check", *token)
    assert status == 0 and "changed=1" in told and not place.lock.exists(), told
    status, told = place.pin("-l", "a", *token)  # all hosts' payloads are locked, whichever are named
    assert status == 0 and "changed=1" in told, told
    assert f'+      sha256: "{digest_of("the new model")}"' in told
    assert yaml.safe_load(place.lock.read_text())["llm_payload_locks"] == {
        "chat": {
            "chat.gguf": {
                "bytes": 13,
                "of": "me/chat@main:chat.gguf",
                "revision": NEW,
                "sha256": digest_of("the new model"),
            }
        },
        "sight": {
            "m.gguf": {
                "bytes": 9,
                "of": "me/chat@v1:vision/mmproj.gguf",
                "revision": OLD,
                "sha256": digest_of("projector"),
            }
        },
    }
    before = place.lock.stat()
    status, again = place.pin(*token)
    assert status == 0 and "changed=0" in again and "sha256" not in again, again
    assert place.lock.stat() == before
    assert SECRET not in told + again
    # What was locked is what validation goes by.
    status, told = place.play("validate")
    assert status == 0, told
    place.declare(MODEL | {"bytes": 5})
    said = "payload chat: file 'chat.gguf': bytes; expected 5, as declared; found 13"
    for refusal in (place.play("validate"), place.pin(*token)):
        assert refusal[0] != 0 and said in " ".join(refusal[1].split()), refusal
    assert place.lock.stat() == before


class Options:
    """An AnsibleModule as far as ``work`` looks at it."""

    def __init__(self, place: Place, file: dict[str, Any], check_mode: bool = False) -> None:
        self.check_mode = check_mode
        payloads = [{"chat": {"dir": "/m", "files": [file]}}]
        self.params = {"path": str(place.lock), "payloads": payloads, "hub_url": place.hub.base}
        self.params |= {"token_file": None, "token_env": None}


def work(place: Place, file: dict[str, Any], **options: Any) -> dict[str, Any]:
    return hf_lock.work(cast(AnsibleModule, Options(place, file, **options)))


def test_a_branch_that_moved_is_a_change(place: Place) -> None:
    assert work(place, MODEL)["changed"] and not work(place, MODEL)["changed"]
    moved = "2" * 39 + "3"
    place.hub.trees["me/chat"][moved] = [lfs("chat.gguf", "the third model")]
    place.hub.branches["me/chat"]["main"] = moved
    before = place.lock.read_text()
    told = work(place, MODEL, check_mode=True)
    assert told["changed"] and place.lock.read_text() == before == told["diff"]["before"]
    assert work(place, MODEL)["diff"] == told["diff"]
    assert place.lock.read_text() == told["diff"]["after"] and moved in place.lock.read_text()
    assert told["locks"]["chat"]["chat.gguf"]["revision"] == moved
    assert not work(place, MODEL)["changed"]


def test_after_a_disagreement_the_old_lock_stays(place: Place) -> None:
    work(place, MODEL)
    before = place.lock.read_bytes()
    said = f"expected {'a' * 16}..., as declared; found {digest_of('old model')}"
    with pytest.raises(FleetError, match=f"^payload chat: file 'chat.gguf': sha256; {said}"):
        work(place, MODEL | {"sha256_prefix": "a" * 16, "revision": "v1"})
    assert place.lock.read_bytes() == before


def test_a_path_that_cannot_be_written_stops_it_before_the_hub_is_asked(place: Place) -> None:
    place.lock.write_text("llm_payloads: {}\n")
    with pytest.raises(FleetError, match="is no lock file"):
        work(place, MODEL)
    assert place.hub.requests == []
