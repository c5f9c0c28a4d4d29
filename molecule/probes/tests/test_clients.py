# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A harness is told of the endpoints, and a real client library gets along with what it was told."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time

import openai
import pytest
import yaml
from fleet import SSH_CONFIG


@contextlib.contextmanager
def tunnel(host, port):
    """A port of this machine's loopback that leads to one of the host's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        here = free.getsockname()[1]
    command = ["ssh", "-F", str(SSH_CONFIG), "-N", "-L", f"127.0.0.1:{here}:127.0.0.1:{port}", host]
    with subprocess.Popen(command) as process:
        try:
            end = time.monotonic() + 20
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", here), timeout=1):
                    break
                assert process.poll() is None and time.monotonic() < end, "no tunnel"
                time.sleep(0.1)
            yield here
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def told(whole, tmp_path_factory):
    """The harness's file after the playbook has run; a second run leaves it alone."""
    path = tmp_path_factory.mktemp("harness") / "models.yml"
    given = {"llm_address": "127.0.0.1", "clients_path": str(path)}
    played = whole.play("playbooks/clients.yml", **given)
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    again = whole.play("playbooks/clients.yml", **given)
    assert again.rc == 0 and again.recap["changed"] == 0, again.text
    return yaml.safe_load(path.read_text())["providers"]


@pytest.fixture(scope="module")
def client(told, whole):
    provider = told["toy-whole"]
    assert provider["apiKey"] == "TOY_WHOLE_API_KEY" and "context_window" not in json.dumps(told)
    address = provider["baseUrl"]
    port = int(address.rpartition(":")[2].removesuffix("/v1"))
    with tunnel(whole.host, port) as here:
        key = whole.run("cat /etc/llm-fleet-keys/toy").strip()
        yield openai.OpenAI(base_url=address.replace(str(port), str(here)), api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def model(told):
    return told["toy-whole"]["models"][0]


def test_the_window_that_it_is_told_is_the_slots(told, whole):
    model = told["toy-whole"]["models"][0]
    assert (model["contextWindow"], model["input"]) == (2048, ["text", "image"])
    wrong = whole.probe(only=["props"], client={"context_window": 4096, "input": ["text", "image"]})["props"]
    assert wrong["verdict"] == "fail" and "4096" in wrong["evidence"], wrong
    assert whole.probe(only=["props"])["props"]["verdict"] == "pass"
    slots = json.loads(
        whole.run('curl -sS -H "Authorization: Bearer $(cat /etc/llm-fleet-keys/toy)" http://127.0.0.1:8095/slots')
    )
    assert {slot["n_ctx"] for slot in slots} == {model["contextWindow"]}


def test_the_model_is_listed_and_answers(client, model):
    assert model["id"] in [one.id for one in client.models.list()]
    answer = client.chat.completions.create(
        model=model["id"],
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=min(128, model["maxTokens"]),
        temperature=0,
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens < model["contextWindow"]


def test_it_streams(client, model):
    parts = list(
        client.chat.completions.create(
            model=model["id"],
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=128,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert "Paris" in text and parts[-1].usage.completion_tokens > 0


def test_a_wrong_key_is_refused(client, model):
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(
            model=model["id"], messages=[{"role": "user", "content": "Hello"}], max_tokens=8
        )
