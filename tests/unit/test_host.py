# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host lacks."""

from __future__ import annotations

import grp
import io
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _host
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

OS_RELEASE = """\
# a comment
PRETTY_NAME="Debian GNU/Linux 13 (trixie)"
ID=debian
VERSION_ID="13"
HOME_URL='https://www.debian.org/?a=b'

nonsense
"""
STATUS = """\
Package: cmake
Status: install ok installed
Version: 3

Package: ninja-build
Status: deinstall ok config-files

Package: git
Status: hold ok installed
Description: x
 Package: fake

Package: gone
Status: purge ok not-installed

Package: half
Status: install ok half-configured
"""


def test_parse_os_release() -> None:
    assert _host.parse_os_release(OS_RELEASE) == {
        "PRETTY_NAME": "Debian GNU/Linux 13 (trixie)",
        "ID": "debian",
        "VERSION_ID": "13",
        "HOME_URL": "https://www.debian.org/?a=b",
    }


def test_only_packages_that_are_wholly_installed_count() -> None:
    assert _host.parse_dpkg(STATUS) == {"cmake", "git"}
    assert _host.parse_dpkg("") == set()


def test_missing_packages() -> None:
    assert _host.missing_packages(["b", "a", "cmake", "b"], {"cmake"}) == ["a", "b"]


@pytest.mark.parametrize(
    ("user", "lack"),
    [
        ("llm", {"groups": ["none"], "user": False, "memberships": ["video", "none"], "folders": ["/b"]}),
        ("new", {"groups": ["none"], "user": True, "memberships": ["render", "video", "none"], "folders": ["/b"]}),
    ],
)
def test_lacking(user: str, lack: dict[str, Any]) -> None:
    members = {"render": ["llm"], "video": ["someone"]}
    assert _host.lacking(user, ["render", "video", "none"], members, ["llm"], ["/a", "/b"], ["/a"]) == lack


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    files = {"/etc/os-release": OS_RELEASE, "/var/lib/dpkg/status": STATUS}
    monkeypatch.setattr(_host, "open", lambda path, **_kw: io.StringIO(files[path]), raising=False)
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path == "/run/systemd/system" or real(path))
    monkeypatch.setattr(pwd, "getpwall", lambda: [SimpleNamespace(pw_name="llm", pw_gid=7)])
    groups = [
        SimpleNamespace(gr_name="llm", gr_gid=7, gr_mem=[]),
        SimpleNamespace(gr_name="video", gr_gid=8, gr_mem=["llm"]),
        SimpleNamespace(gr_name="render", gr_gid=9, gr_mem=[]),
    ]
    monkeypatch.setattr(grp, "getgrall", lambda: groups)
    return files


def test_a_complete_host(machine: dict[str, str], tmp_path: Path) -> None:
    assert _host.look("llm", ["video"], ["git"], [str(tmp_path)]) == {
        "packages": [],
        "groups": [],
        "user": False,
        "memberships": [],
        "folders": [],
        "complete": True,
    }


def test_a_primary_group_is_a_membership(machine: dict[str, str]) -> None:
    assert _host.look("llm", ["llm"], [], [])["memberships"] == []


@pytest.mark.parametrize(
    ("given", "key", "lack"),
    [
        (("llm", ["render"], [], []), "memberships", ["render"]),
        (("llm", ["kvm"], [], []), "groups", ["kvm"]),
        (("root2", [], [], []), "user", True),
        (("llm", [], ["ninja-build"], []), "packages", ["ninja-build"]),
        (("llm", [], [], ["/no/such/folder"]), "folders", ["/no/such/folder"]),
    ],
)
def test_anything_missing_makes_it_incomplete(machine: dict[str, str], given: Any, key: str, lack: Any) -> None:
    told = _host.look(*given)
    assert (told[key], told["complete"]) == (lack, False)


@pytest.mark.parametrize("system", ["ID=debian\nVERSION_ID=11\n", "ID=ubuntu\nVERSION_ID=13\n", "ID=debian\n", ""])
def test_an_unsupported_system_is_refused(machine: dict[str, str], system: str) -> None:
    machine["/etc/os-release"] = system
    with pytest.raises(FleetError, match="expected Debian 12 or 13"):
        _host.look("llm", [], [], [])


def test_a_host_without_systemd_is_refused(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    with pytest.raises(FleetError, match="does not run systemd"):
        _host.look("llm", [], [], [])
