# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the inventory to the blueprint of an era, with a real bash and a small launcher."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _blueprint
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import (
    Declared,
    Paths,
    draw,
    dry_run,
    effective_env,
    find_runtime,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._build_id import build_id
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

LAUNCHER = 'printf "%s\\n" "$SERVER_BIN" --alias "$ALIAS" "--dry=$LLM_FLEET_DRY_RUN"\n'
ENV = {"ALIAS": "chat", "BIND_ADDR": "127.0.0.1", "LISTEN_PORT": 18080, "CTX_SIZE": 4096, "PARALLEL": 2}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    tree = tmp_path / "rt" / "cpu@abc"
    tree.mkdir(parents=True)
    (tree / "build.json").write_text(
        json.dumps({"server_bin": f"{tree}/bin/llama-server", "digest": "d1", "version": "1"})
    )
    (tree / "bin").mkdir()
    (tree / "bin" / "llama-server").write_text("")
    (tmp_path / "rt" / "cpu").symlink_to("cpu@abc")
    return Paths("chat", runtimes=str(tmp_path / "rt"), launchers=str(tmp_path / "launchers"))


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    (tmp_path / "m.gguf").write_text("")
    payload = {
        "name": "smol",
        "dir": str(tmp_path),
        "files": [{"name": "m.gguf", "role": "model", "sha256": "a" * 64}],
    }
    return Declared("chat", "llamacpp", dict(ENV), "cpu", payload, "llm", LAUNCHER, rungs={"one_slot": {"PARALLEL": 1}})


def test_paths() -> None:
    paths = Paths("chat")
    assert (paths.unit, paths.unit_file, paths.env_file, paths.store) == (
        "chat.service",
        "/etc/systemd/system/chat.service",
        "/etc/llm-fleet/chat.env",
        "/var/lib/llm-fleet/chat",
    )
    assert paths.launcher("x") != paths.launcher("y")
    assert paths.launcher("x").startswith("/opt/llm-fleet/launchers/")


def test_a_rung_lies_over_the_inventory_and_changes_nothing_of_it(declared: Declared) -> None:
    assert effective_env(declared, None) == ENV
    assert effective_env(declared, "one_slot") == {**ENV, "PARALLEL": 1}
    assert declared.env == ENV


@pytest.mark.parametrize(("rungs", "known"), [({}, "none declared"), ({"b": {}, "a": {}}, "a, b")])
def test_an_unknown_rung_lists_the_known(declared: Declared, rungs: dict[str, Any], known: str) -> None:
    with pytest.raises(FleetError, match=f"no rung 'x'; expected one of: {known}"):
        effective_env(replace(declared, rungs=rungs), "x")


def test_find_runtime(paths: Paths) -> None:
    found = find_runtime(paths.runtimes, "cpu")
    assert found is not None
    assert (found["name"], found["path"], found["digest"]) == ("cpu", os.path.join(paths.runtimes, "cpu@abc"), "d1")
    assert find_runtime(paths.runtimes, "rocm") is None


def test_a_tree_without_build_json_was_never_finished(paths: Paths) -> None:
    os.unlink(os.path.join(paths.runtimes, "cpu@abc", "build.json"))
    with pytest.raises(FleetError, match=r"runtime cpu at .* has no build\.json"):
        find_runtime(paths.runtimes, "cpu")


def test_draw(declared: Declared, paths: Paths, tmp_path: Path) -> None:
    plan = draw(declared, paths, None)
    server = os.path.join(paths.runtimes, "cpu@abc", "bin", "llama-server")
    assert plan.facts["argv"] == [server, "--alias", "chat", "--dry=1"]
    assert plan.facts["env"]["MODEL_FILE"] == str(tmp_path / "m.gguf")
    assert plan.facts["env"]["SERVER_BIN"] == server
    assert f"MODEL_FILE={tmp_path}/m.gguf\n" in plan.env_text
    assert f"LLM_FLEET_ERA={plan.digest}\n" in plan.unit_text
    assert f"ExecStart={paths.launcher(LAUNCHER)}\n" in plan.unit_text
    assert plan.launcher_text == LAUNCHER
    assert plan.facts["shape"]["ctx_per_slot"] == 2048
    json.dumps(plan.facts)
    assert draw(declared, paths, None) == plan


def test_an_era_keeps_the_build_id_of_its_server(declared: Declared, paths: Paths) -> None:
    plan = draw(declared, paths, None)
    assert plan.facts["runtime"]["build_id"] is None  # a script has none
    program = Path(plan.facts["env"]["SERVER_BIN"])
    shutil.copy(os.path.realpath(sys.executable), program)
    again = draw(declared, paths, None)
    assert again.facts["runtime"]["build_id"] == build_id(str(program))
    assert again.digest == plan.digest  # an era of before stays the one that is asked for
    program.unlink()
    assert draw(declared, paths, None).facts["runtime"]["build_id"] is None


def other_payload(declared: Declared) -> Declared:
    file = {**declared.payload["files"][0], "sha256": "b" * 64}
    return replace(declared, payload={**declared.payload, "files": [file]})


@pytest.mark.parametrize(
    "change",
    [
        lambda d: replace(d, env={**d.env, "CTX_SIZE": 8192}),
        lambda d: replace(d, launcher=d.launcher + "# new\n"),
        lambda d: replace(d, user="other"),
        lambda d: replace(d, deadline_s=1),
        lambda d: replace(d, restart_sec=99),
        lambda d: replace(d, timeout_stop_s=99),
        lambda d: replace(d, drop_ins=["/a.conf"]),
        other_payload,
    ],
)
def test_whatever_decides_what_is_served_changes_the_digest(
    declared: Declared, paths: Paths, change: Callable[[Declared], Declared]
) -> None:
    assert draw(change(declared), paths, None).digest != draw(declared, paths, None).digest


def test_the_text_of_a_declared_drop_in_changes_the_digest(declared: Declared, paths: Paths, tmp_path: Path) -> None:
    path = tmp_path / "limit.conf"
    given = replace(declared, drop_ins=[str(path)])
    drawn = [draw(given, paths, None)]
    for text in ("[Service]\nLimitNOFILE=64\n", "[Service]\nLimitNOFILE=32\n"):
        path.write_text(text)
        drawn.append(draw(given, paths, None))
    assert len({each.digest for each in drawn}) == 3
    assert drawn[0].facts["drop_in_digests"] == {str(path): "no such file"}
    assert drawn[2].facts["drop_in_digests"] == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert draw(declared, paths, None).facts["drop_in_digests"] == {}


def test_a_rebuilt_runtime_changes_the_digest_and_a_probe_does_not(declared: Declared, paths: Paths) -> None:
    before = draw(declared, paths, None).digest
    assert (
        draw(replace(declared, probes={"max_tokens": 9}, client={"input": []}, settle_s=9), paths, None).digest
        == before
    )
    build = Path(paths.runtimes, "cpu@abc", "build.json")
    build.write_text(build.read_text().replace("d1", "d2"))
    assert draw(declared, paths, None).digest != before


def test_a_rung_equal_to_the_inventory_is_the_same_state(declared: Declared, paths: Paths) -> None:
    rung = draw(declared, paths, "one_slot")
    rolled = draw(replace(declared, env={**ENV, "PARALLEL": 1}), paths, None)
    assert rung.digest == rolled.digest
    assert (rung.facts["rung"], rolled.facts["rung"]) == ("one_slot", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: replace(d, runtime="rocm"), "runtime rocm of endpoint chat is not on this host"),
        (lambda d: replace(d, env={**d.env, "CTX_SIZ": 1}), "CTX_SIZ"),
        (lambda d: replace(d, env={**d.env, "CTX_SIZE": 4097}), "CTX_SIZE"),
        (
            lambda d: replace(d, launcher="echo no such file >&2; exit 66"),
            "the launcher refuses this env: no such file",
        ),
        (lambda d: replace(d, launcher="exit 3"), "the launcher refuses this env: exit 3"),
        (lambda d: replace(d, name="a b"), "cannot name a unit"),
        (lambda d: replace(d, user="a b"), "expected a login name"),
        (lambda d: replace(d, env={**d.env, "ALIAS": "it's"}), "ALIAS"),
        (lambda d: replace(d, env={**d.env, "ALIAS": "a\0b"}), "ALIAS"),
    ],
)
def test_refusals(declared: Declared, paths: Paths, change: Callable[[Declared], Declared], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        draw(change(declared), paths, None)


def test_the_dry_run_sees_only_the_env_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "yes")
    assert dry_run('printf "%s\\n" "[$LEAKED]" "$A"', {"A": "a  b"}) == ["[]", "a  b"]


@pytest.mark.parametrize("value", ["", "a b", "ü🦙", "a\u2028b\x1cc\x85d"])
def test_an_argument_comes_out_as_it_went_in(value: str) -> None:
    assert dry_run('printf "%s\\n" first "$A" last', {"A": value}) == ["first", value, "last"]


def test_a_launcher_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _blueprint.subprocess.run
    monkeypatch.setattr(_blueprint.subprocess, "run", lambda *args, **kw: real(*args, **{**kw, "timeout": 0.2}))
    with pytest.raises(FleetError, match="dry run did not end"):
        dry_run("exec sleep 20", {})
