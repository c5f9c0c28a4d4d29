# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host still lacks before it can build and serve: packages, groups, users, folders. Looking only."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = ["lacking", "look", "missing_packages", "parse_dpkg", "parse_os_release"]

_SUPPORTED = {"debian": ("12", "13")}


def parse_os_release(text: str) -> dict[str, str]:
    """``/etc/os-release`` as a dictionary, quotes removed."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key: value.strip().strip("\"'") for key, value in pairs}


def parse_dpkg(status: str) -> set[str]:
    """Names of the packages that are wholly installed, from the text of dpkg's status file."""
    installed = set()
    name = ""
    for line in status.splitlines():
        if line.startswith("Package: "):
            name = line[9:]
        elif line == "Status: install ok installed" or line == "Status: hold ok installed":
            installed.add(name)
    return installed


def missing_packages(wanted: Iterable[str], installed: set[str]) -> list[str]:
    """The packages of ``wanted`` that are not installed, sorted."""
    return sorted(set(wanted) - installed)


def lacking(
    user: str,
    groups: Sequence[str],
    group_members: Mapping[str, Sequence[str]],
    users: Iterable[str],
    folders: Sequence[str],
    existing: Iterable[str],
) -> dict[str, Any]:
    """Compare what is wanted with what was read: missing groups, the user's missing memberships, folders."""
    present = set(existing)
    return {
        "groups": [group for group in groups if group not in group_members],
        "user": user not in set(users),
        "memberships": [group for group in groups if user not in group_members.get(group, ())],
        "folders": [folder for folder in folders if folder not in present],
    }


def look(user: str, groups: Sequence[str], packages: Sequence[str], folders: Sequence[str]) -> dict[str, Any]:
    """Read the host and return what it lacks; a system that is not supported is a FleetError.

    The result has ``packages``, ``groups``, ``user``, ``memberships``, ``folders``, and ``complete`` (nothing lacks).
    """
    with open("/etc/os-release", encoding="utf-8") as handle:
        system = parse_os_release(handle.read())
    release = (system.get("ID", "unknown"), system.get("VERSION_ID", "unknown"))
    if release[1] not in _SUPPORTED.get(release[0], ()):
        raise FleetError(
            "this host's system is not supported",
            expected="Debian 12 or 13",
            found=" ".join(release),
            remedy="Use a Debian 12 or 13 host",
        )
    if not os.path.isdir("/run/systemd/system"):
        raise FleetError(
            "this host does not run systemd",
            expected="systemd as process 1",
            found=run(["cat", "/proc/1/comm"]).stdout.strip(),
        )
    with open("/var/lib/dpkg/status", encoding="utf-8", errors="replace") as handle:
        installed = parse_dpkg(handle.read())
    users = pwd.getpwall()
    members = {  # a primary group does not list its users
        group.gr_name: [*group.gr_mem, *(entry.pw_name for entry in users if entry.pw_gid == group.gr_gid)]
        for group in grp.getgrall()
    }
    lack = lacking(
        user,
        groups,
        members,
        [entry.pw_name for entry in users],
        folders,
        [folder for folder in folders if os.path.isdir(folder)],
    )
    lack["packages"] = missing_packages(packages, installed)
    return {**lack, "complete": not any(lack.values())}
