# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Declared, Paths, unit_spec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_unit import render as render_r9v
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import verify_unit
from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, render
from hypothesis import given
from hypothesis import strategies as st

SPEC = UnitSpec("frank-zealot", "llm", "/opt/llm-fleet/launchers/ab/serve-llamacpp", "/etc/llm-fleet/frank-zealot.env")


def lines_of(spec: UnitSpec) -> list[str]:
    return [line for line in render(spec, "d1ge57").splitlines() if line and line[0] not in "#["]


def test_every_line_but_those_that_close_it() -> None:
    spec = replace(SPEC, restart_sec=11, timeout_start_s=222, timeout_stop_s=33)
    lines = lines_of(spec)
    closed = lines[lines.index("UMask=0077") : -1]
    assert [line for line in lines if line not in closed] == [
        "Description=LLM endpoint frank-zealot",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=1330",
        "StartLimitBurst=5",
        "Type=exec",
        "User=llm",
        "EnvironmentFile=/etc/llm-fleet/frank-zealot.env",
        "Environment=LLM_FLEET_ENV_FILE=/etc/llm-fleet/frank-zealot.env",
        "Environment=LLM_FLEET_ERA=d1ge57",
        "ExecStart=/opt/llm-fleet/launchers/ab/serve-llamacpp",
        "Restart=on-failure",
        "RestartPreventExitStatus=64 66 78",
        "RestartSec=11",
        "TimeoutStartSec=222",
        "TimeoutStopSec=33",
        "LimitMEMLOCK=infinity",
        "WantedBy=multi-user.target",
    ]


def starts_until_it_is_given_up(text: str, lives_s: float) -> int | None:
    """How often systemd starts a unit that ends ``lives_s`` seconds after each start (ratelimit.c); None: for ever."""
    said = dict(line.split("=", 1) for line in text.splitlines() if line.startswith(("StartLimit", "RestartSec")))
    window, burst, pause = (int(said[key]) for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec"))
    began, count, now = 0.0, 0, 0.0
    for start in range(1, 1000):
        if now - began > window:
            began, count = now, 0
        if count >= burst:
            return start - 1
        count += 1
        now += lives_s + pause
    return None


@given(
    deadline_s=st.integers(1, 7200),
    restart_sec=st.integers(0, 600),
    timeout_stop_s=st.integers(1, 1800),
    part=st.floats(0, 1),
)
def test_what_never_loads_is_given_up_however_long_it_takes_to_die(
    deadline_s: int, restart_sec: int, timeout_stop_s: int, part: float
) -> None:
    spec = replace(SPEC, timeout_start_s=deadline_s, restart_sec=restart_sec, timeout_stop_s=timeout_stop_s)
    assert starts_until_it_is_given_up(render(spec, "d"), part * (deadline_s + timeout_stop_s)) == 5


def shipped() -> list[dict[str, Any]]:
    """Every endpoint of inventories/production, whatever its host."""
    files = sorted(Path(__file__).parents[2].glob("inventories/production/**/*.yml"))
    told = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in files]
    found = [{"name": name, **entry} for each in told for name, entry in (each.get("llm_endpoints") or {}).items()]
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: str(entry["name"]))
def test_no_endpoint_of_the_shipped_inventory_can_loop_for_ever(entry: dict[str, Any]) -> None:
    given_ = {"env": {}, "payload": {}, **entry, "cards": []}
    spec = unit_spec(Declared.from_entry(given_, "#!/bin/sh\n"), Paths(entry["name"]))
    for make in (render, render_r9v):
        text = make(spec, "d")
        assert starts_until_it_is_given_up(text, spec.timeout_start_s + spec.timeout_stop_s) == 5
        assert starts_until_it_is_given_up(text, 1) == 5


def test_what_a_vendors_driver_needs_is_opened_and_nothing_else() -> None:
    plain, amd, nvidia = (set(lines_of(replace(SPEC, vendor=vendor))) for vendor in ("", "amd", "nvidia"))
    assert plain - amd == plain - nvidia == {"PrivateDevices=yes", "MemoryDenyWriteExecute=yes"}
    cache = {
        "CacheDirectory=llm-fleet/frank-zealot",
        "Environment=XDG_CACHE_HOME=/var/cache/llm-fleet/frank-zealot",
        "Environment=CUDA_CACHE_PATH=/var/cache/llm-fleet/frank-zealot/cuda",
    }
    assert amd - plain - cache == {
        "DevicePolicy=closed",
        "DeviceAllow=char-drm rw",
        "DeviceAllow=char-kfd rw",
        "SupplementaryGroups=render video",
    }
    assert "DeviceAllow=char-nvidia-uvm rw" in nvidia
    assert not any("nvidia" in line for line in amd) and not any("kfd" in line for line in nvidia)


def test_an_api_key_is_handed_over_by_systemd() -> None:
    spec = replace(SPEC, api_key_file="/etc/llm-fleet/keys/zealot")
    assert "LoadCredential=api-key:/etc/llm-fleet/keys/zealot" in lines_of(spec)
    assert spec.credential == "/run/credentials/frank-zealot.service/api-key"
    assert not any("LoadCredential" in line for line in lines_of(SPEC))


@pytest.mark.parametrize("field", ["launcher", "env_file", "api_key_file"])
@pytest.mark.parametrize("path", ["relative", "/a b", "/a%b", "/a$b", "/a\nb", "/a\n", "/a;b", "/a*b", '/a"b'])
def test_paths_that_systemd_would_read_otherwise(field: str, path: str) -> None:
    changes: dict[str, Any] = {field: path}
    with pytest.raises(FleetError, match="cannot stand in a unit"):
        render(replace(SPEC, **changes), "d")


def test_no_path_at_all() -> None:
    for field in ("launcher", "env_file"):
        with pytest.raises(FleetError, match="cannot stand in a unit"):
            render(replace(SPEC, **{field: ""}), "d")  # type: ignore[arg-type]


@pytest.mark.parametrize("user", ["", "Root", "0", "a b", "a\nGroup=root", "a\n", "%u"])
def test_users_that_are_no_login_name(user: str) -> None:
    with pytest.raises(FleetError, match="expected a login name"):
        render(replace(SPEC, user=user), "d")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "a%i", "a@b", "-a", ".a", "a\nb", "a\n", "ü"])
def test_names_that_cannot_be_a_unit(name: str) -> None:
    with pytest.raises(FleetError, match="cannot name a unit"):
        render(replace(SPEC, endpoint=name), "d")


def test_the_real_systemd_analyze_finds_nothing_to_say(stand_in: Callable[[str, str], Any]) -> None:
    if run(["sh", "-c", "command -v systemd-analyze"], check=False).rc != 0:
        pytest.skip("no systemd-analyze on this machine")
    launcher = stand_in("serve-llamacpp", "exit 0")
    verify_unit("llm-fleet-test.service", render(replace(SPEC, launcher=str(launcher)), "d" * 64))
