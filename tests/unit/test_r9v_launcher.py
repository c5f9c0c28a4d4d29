# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""serve-r9v under a real bash: the layers' resulting environment, and the container's life with a scripted docker."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_layers import effective, layered
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_profile_env import settings_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from r9vhost import STANDIN, R9vHost, make_host


@pytest.fixture
def host(tmp_path: Path) -> R9vHost:
    return make_host(tmp_path)


def shown(host: R9vHost, env: dict[str, str]) -> dict[str, str]:
    done = host.launch(env)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == f"{host.checkout}/scripts/launch.sh"
    return dict(line.split("=", 1) for line in lines)


def test_env_over_state_over_profile(host: R9vHost) -> None:
    found = shown(host, {**host.env, "R9V_ENABLE_PREFIX_CACHING": "1"})
    assert found["R9V_ENABLE_PREFIX_CACHING"] == "1"  # the state says 0
    assert found["R9V_MAX_MODEL_LEN"] == "131072"  # the state; the profile says 4096
    assert found["R9V_MTP_SPEC_TOKENS"] == "4"  # the profile alone
    assert found["R9V_PROFILE"] == f"{host.checkout}/profiles/standin/q8/profile.env"
    assert "R9V_CONFIG_FILE" not in found


def test_an_empty_line_does_not_survive_and_hides_nothing(host: R9vHost) -> None:
    host.state["config"]["R9V_CHAT_TEMPLATE_FILE"] = ""
    host.save()
    env = {**host.env, "R9V_MAX_MODEL_LEN": "", "R9V_MTP_SPEC_TOKENS": "", "R9V_FULL_MUTABLE_CACHE": ""}
    found = shown(host, {**env, "R9V_CONFIG_FILE": "/nonexistent"})
    assert found["R9V_MAX_MODEL_LEN"] == "131072" and found["R9V_MTP_SPEC_TOKENS"] == "4"
    assert not {"R9V_FULL_MUTABLE_CACHE", "R9V_CHAT_TEMPLATE_FILE", "R9V_CONFIG_FILE"} & set(found)


KEYS = ("R9V_MAX_MODEL_LEN", "R9V_MTP_SPEC_TOKENS", "R9V_FULL_MUTABLE_CACHE", "R9V_CHAT_TEMPLATE_KWARGS")
PROFILE = settings_of(str(STANDIN / "profiles/standin/q8/profile.env"), str(STANDIN))
VALUES = st.sampled_from(["", "0", "1", '{"a": "b c"}', "$HOME", "it's", "a=b", " x ", "#"])
LAYER = st.dictionaries(st.sampled_from(KEYS), VALUES)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(env=LAYER, state=LAYER)
def test_the_law_and_the_launcher_are_twins(host: R9vHost, env: dict[str, str], state: dict[str, str]) -> None:
    """What bash comes to is what the layers say, key by key, whatever stands in the values."""
    base = {key: value for key, value in host.state["config"].items() if key not in KEYS}
    host.state["config"] = {**base, **state}
    host.save()
    found = shown(host, {**host.env, **env})
    own = {key for key in found if key.startswith("R9V_PROFILE")}
    expected = effective({**host.env, **env}, host.state["config"], PROFILE)
    assert {key: value for key, value in found.items() if key not in own} == expected


def test_a_row_tells_what_it_hides() -> None:
    rows = layered({"R9V_A": "1", "R9V_B": ""}, {"R9V_A": "0", "R9V_B": "2"}, {"R9V_A": "1", "R9V_C": "3"})
    assert [(row.key, row.value, row.source, row.hides) for row in rows] == [
        ("R9V_A", "1", "env", (("state", "0"),)),
        ("R9V_B", "2", "state", ()),
        ("R9V_C", "3", "profile", ()),
    ]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"ready": False}, 78, "is not ready; expected ready: true; found false"),
        ({"profile_id": "no/such"}, 78, "profile no/such"),
        ({"config": {"R9V_X": "a\nb"}}, 78, "R9V_X"),
        ({"config": {"PATH": "/tmp"}}, 78, "PATH"),
        ({"config": {"R9V_X[$(touch here)]": "1"}}, 78, "R9V_X[$(touch here)]; expected keys R9V_..."),
        ({"config": {"R9V_X": 7}}, 78, "R9V_X; expected keys R9V_... with one line each; found 7"),
        ({"config": ["R9V_X"]}, 78, "config; expected a dictionary; found list"),
        ({"config": None}, 78, "config; expected a dictionary; found NoneType"),
    ],
)
def test_a_state_that_is_unsound_starts_nothing(host: R9vHost, change: dict, status: int, words: str) -> None:
    host.state.update(change)
    host.save()
    for dry in (True, False):
        done = host.launch(host.env, dry=dry)
        assert done.returncode == status and words in done.stderr
    assert host.calls() == []


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_profile_that_is_no_json_is_named(host: R9vHost, text: str) -> None:
    (host.checkout / "profiles" / "a").mkdir()
    (host.checkout / "profiles" / "a" / "profile.json").write_text(text)
    done = host.launch(host.env)
    assert done.returncode == 78 and "profiles/a/profile.json; expected a JSON object" in done.stderr


def test_what_is_missing_is_named(host: R9vHost) -> None:
    assert host.launch({**host.env, "R9V_STATE_FILE": "/nonexistent"}).returncode == 66
    assert "R9V_CONTAINER_NAME is missing" in host.launch({**host.env, "R9V_CONTAINER_NAME": ""}).stderr
    assert host.launch(host.env, "start").returncode == 64
    (host.checkout / "scripts" / "launch.sh").unlink()
    assert host.launch(host.env).returncode == 66


@pytest.mark.parametrize("code", ["0", "137"])
def test_a_container_that_ends_by_itself_is_a_failure(host: R9vHost, code: str) -> None:
    (host.folder / "code").write_text(code)
    done = host.launch(host.env, dry=False)
    assert done.returncode == 70 and f"exit status {code}" in done.stderr and "last words" in done.stderr
    assert host.calls()[1:3] == ["launch.sh two 131072", "wait two-r9v"]


def test_a_container_that_was_stopped_ends_well(host: R9vHost) -> None:
    (host.folder / "code").write_text("143")
    (host.folder / "stop-meanwhile").touch()
    assert host.launch(host.env, dry=False).returncode == 0


def test_the_mark_of_an_earlier_stop_excuses_nothing(host: R9vHost) -> None:
    (host.folder / "code").write_text("0")
    (host.folder / "stopping").touch()
    assert host.launch(host.env, dry=False).returncode == 70


def test_an_ended_container_makes_way_and_a_running_one_does_not(host: R9vHost) -> None:
    (host.folder / "code").write_text("0")
    (host.folder / "box").write_text("false\n")
    host.launch(host.env, dry=False)
    assert "rm two-r9v" in host.calls()
    (host.folder / "calls").unlink()
    (host.folder / "box").write_text("true\n")
    done = host.launch(host.env, dry=False)
    assert done.returncode == 69 and not any(call.startswith(("launch.sh", "rm")) for call in host.calls())


def test_stop(host: R9vHost) -> None:
    (host.folder / "box").write_text("true\n")
    assert host.launch(host.env, "stop", dry=False).returncode == 0
    assert host.calls()[-1] == "stop -t 120 two-r9v" and (host.folder / "stopping").exists()
    (host.folder / "box").unlink()
    assert host.launch(host.env, "stop", dry=False).returncode == 0
    assert [call for call in host.calls() if call.startswith("stop")] == ["stop -t 120 two-r9v"]


def test_a_docker_that_does_not_answer_is_no_absent_container(host: R9vHost) -> None:
    """Taken for absent, a container that runs would be left behind by a stop, and its unit be called stopped."""
    (host.folder / "box").write_text("true\n")
    (host.folder / "trouble").touch()
    for args in ((), ("stop",)):
        done = host.launch(host.env, *args, dry=False)
        assert done.returncode == 71 and "two-r9v cannot be asked after" in done.stderr and "125" in done.stderr
    assert not any(call.startswith(("launch.sh", "stop", "rm")) for call in host.calls())
