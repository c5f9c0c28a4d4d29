# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the inventory to an R9V era, with the real launcher and the stand-in's checkout."""

from __future__ import annotations

import getpass
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _engines
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import declare
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_blueprint import explain
from r9vhost import LAUNCHER, TABLE_BYTES, R9vHost, make_host

TEMPLATE_KEYS = ("R9V_CHAT_TEMPLATE_FILE", "R9V_CHAT_TEMPLATE_KWARGS")


@pytest.fixture
def host(tmp_path: Path) -> R9vHost:
    return make_host(tmp_path)


@pytest.fixture
def paths(host: R9vHost) -> Paths:
    tree = host.folder / "rt" / "r9v@1"
    tree.mkdir(parents=True)
    launch = host.checkout / "scripts" / "launch.sh"
    record = {"server_bin": str(launch), "digest": "d1", "version": "2d2d2d2d"}
    (tree / "build.json").write_text(json.dumps(record))
    (host.folder / "rt" / "r9v").symlink_to("r9v@1")
    return Paths("two", runtimes=str(host.folder / "rt"))


@pytest.fixture
def declared(host: R9vHost) -> Declared:
    template, other = host.folder / "sharp.jinja", host.folder / "state2" / "setup.json"
    template.write_text("{{ messages }}")
    other.parent.mkdir()
    config = {**host.state["config"], "R9V_MAX_MODEL_LEN": "196608"}
    other.write_text(json.dumps({**host.state, "profile_id": "standin/uncensored", "config": config}))
    other.chmod(0o600)
    env = {key: value for key, value in host.env.items() if key != "R9V_CHECKOUT"}
    shard = "Standin-Q8_0-00001-of-00006.gguf"
    return Declared(
        "two", "r9v",
        {**env, "R9V_CHAT_TEMPLATE_FILE": str(template), "R9V_CHAT_TEMPLATE_KWARGS": {"a": 1},
         "R9V_ENABLE_PREFIX_CACHING": 1},
        "r9v",
        {"name": "q8", "dir": f"{host.model_dir}/target",
         "files": [{"name": shard, "role": "shard", "sha256": "a1" * 32}]},
        getpass.getuser(), LAUNCHER.read_text(),
        rungs={"unc": {"R9V_STATE_FILE": str(other), **dict.fromkeys(TEMPLATE_KEYS, "")}},
        setups={
            "q8": {"file": str(host.state_file), "ple_bytes": TABLE_BYTES, "headroom_gib": 3.3,
                   "keys": list(TEMPLATE_KEYS)},
            "unc": {"file": str(other)},
        },
        cards=[{"name": "c", "vendor": "amd", "floor_mib": 1536, "free_mib": 32624}],
        client={"context_window": 131072},
    )  # fmt: skip


def test_an_era_of_the_state_and_what_lies_over_it(declared: Declared, paths: Paths, host: R9vHost) -> None:
    drawn = _engines.draw(declared, paths, None)
    facts = drawn.facts
    assert "R9V_MAX_MODEL_LEN" not in drawn.env_text and f"R9V_CHECKOUT={host.checkout}" in drawn.env_text
    assert (
        facts["effective"]["R9V_MAX_MODEL_LEN"] == "131072" and facts["effective"]["R9V_ENABLE_PREFIX_CACHING"] == "1"
    )
    assert (facts["shape"]["ctx_size"], facts["shape"]["spec_type"]) == (131072, "mtp4")
    assert {file["role"] for file in facts["payload"]["files"]} == {"shard", "mmproj", "other", "template"}
    assert facts["cards"][0]["floor_mib"] == 3.3 * 1024
    assert [Path(file["path"]).name for file in facts["declared_files"]] == ["Standin-Q8_0-00001-of-00006.gguf"]
    for line in (
        "ExecStop=",
        "ExecStopPost=",
        "LimitMEMLOCK=infinity",
        "Restart=on-failure",
        "RuntimeDirectory=llm-fleet/two",
    ):
        assert f"\n{line}" in drawn.unit_text
    assert "serve-r9v stop\n" in drawn.unit_text and "NoNewPrivileges" not in drawn.unit_text
    told = declare(facts)
    assert {"cache", "drafting", "context", "metrics"} <= told.capabilities and told.window == 131072


def test_a_rung_flips_the_state_and_drops_the_keys_as_a_set(declared: Declared, paths: Paths) -> None:
    drawn, plain = _engines.draw(declared, paths, "unc"), _engines.draw(declared, paths, None)
    assert not any(key in drawn.env_text or key in drawn.facts["effective"] for key in TEMPLATE_KEYS)
    assert drawn.facts["effective"]["R9V_MAX_MODEL_LEN"] == "196608" and drawn.facts["setup"]["name"] == "unc"
    assert drawn.digest != plain.digest and _engines.draw(declared, paths, None).digest == plain.digest
    half = replace(declared, rungs={"unc": {"R9V_STATE_FILE": declared.rungs["unc"]["R9V_STATE_FILE"]}})
    with pytest.raises(FleetError, match="R9V_CHAT_TEMPLATE_FILE is set, and belongs to another setup than unc"):
        _engines.draw(half, paths, "unc")


def test_what_the_state_or_a_mounted_file_says_is_part_of_the_era(
    declared: Declared, paths: Paths, host: R9vHost
) -> None:
    before = _engines.draw(declared, paths, None).digest
    (host.folder / "sharp.jinja").write_text("{{ messages}}")
    changed = _engines.draw(declared, paths, None).digest
    host.state["config"]["R9V_MTP_SPEC_TOKENS"] = "6"
    host.save()
    assert len({before, changed, _engines.draw(declared, paths, None).digest}) == 3
    (host.folder / "sharp.jinja").unlink()
    with pytest.raises(FleetError, match=r"R9V_CHAT_TEMPLATE_FILE .*sharp.jinja; expected a file"):
        _engines.draw(declared, paths, None)


def test_a_profile_that_overrides_is_caught_by_the_environment_that_it_makes(
    declared: Declared, paths: Paths, host: R9vHost
) -> None:
    profile = host.checkout / "profiles" / "standin" / "q8" / "profile.env"
    profile.write_text(profile.read_text() + "R9V_MAX_MODEL_LEN=4096\n")
    with pytest.raises(FleetError, match=r"lays R9V_MAX_MODEL_LEN otherwise.*'131072' from state; found '4096'"):
        _engines.draw(declared, paths, None)


def test_what_a_profile_prints_is_no_line_and_a_value_has_but_one(
    declared: Declared, paths: Paths, host: R9vHost
) -> None:
    profile = host.checkout / "profiles" / "standin" / "q8" / "profile.env"
    before, text = _engines.draw(declared, paths, None), profile.read_text()
    profile.write_text(f"echo hello\n{text}")
    assert _engines.draw(declared, paths, None).digest == before.digest
    profile.write_text(f"{text}R9V_NOTE=$'two\\nlines'\n")
    with pytest.raises(FleetError, match=r"dry run; expected KEY=value.*found 'lines'.*profile"):
        _engines.draw(declared, paths, None)


def test_explain(declared: Declared, paths: Paths, host: R9vHost) -> None:
    told = explain(declared, paths, None)
    sources = {row["key"]: row["source"] for row in told["layers"]}
    assert (sources["R9V_HOST_PORT"], sources["R9V_MAX_MODEL_LEN"], sources["R9V_MTP_SPEC_TOKENS"]) == (
        "env",
        "state",
        "profile",
    )
    assert any("R9V_ENABLE_PREFIX_CACHING" in line and "(over state's 0)" in line for line in told["table"])
    assert told["state"]["whole"]
    host.table.unlink()
    assert not explain(declared, paths, None)["state"]["whole"]


def era(declared: Declared, paths: Paths, **meta: Any) -> Era:
    return Era("e", "/e", _engines.draw(declared, paths, None), {"state": "certified", **meta})


def test_an_era_comes_back_as_it_was_or_not_at_all(declared: Declared, paths: Paths, host: R9vHost) -> None:
    proven = era(declared, paths)
    assert _engines.redraw(proven, "/stamps") == proven.blueprint
    with pytest.raises(FleetError, match="expected an era that was proven"):
        _engines.redraw(era(declared, paths, state="failed"), "/stamps")
    (host.folder / "sharp.jinja").write_text("other")
    with pytest.raises(FleetError, match=r"sharp\.jinja is another file now"):
        _engines.redraw(proven, "/stamps")
    host.state["config"]["R9V_MAX_MODEL_LEN"] = "4096"
    host.save()
    with pytest.raises(FleetError, match="expected the arguments"):
        _engines.redraw(proven, "/stamps")
    host.state["ready"] = False
    host.save()
    with pytest.raises(FleetError, match="is not ready"):
        _engines.redraw(proven, "/stamps")
