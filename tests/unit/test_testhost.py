# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""molecule/testhost/testhost: what it chooses for a machine, and what it says of hosts; no host is started."""

from __future__ import annotations

import tomllib

import pytest
from checkouts import Checkout

LISTED = """
case "$1 $2" in
    "ps -a") printf '%s\\n' 'llm-fleet-molecule-monitoring|2 minutes ago' 'llm-fleet-old|3 days ago' ;;
    "container inspect")
        case "$*" in
            *State*old) echo exited ;;
            *State*) echo running ;;
            *Networks*old) exit 125 ;;
            *) echo 10.89.0.12 ;;
        esac ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def call(checkout: Checkout, commands: str) -> str:
    """What functions of testhost print; PATH is only what the test put there."""
    given = f"source molecule/testhost/testhost; PATH={checkout.bin}; {commands}"
    done = checkout.run("bash", "-c", given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stand_in_leaves_the_machines_own_program_alone(checkout):
    """Before all others of this file: they put one in the place of stat."""
    own = checkout.base / "own"
    own.write_text("the machine's")
    (checkout.bin / "tool").symlink_to(own)
    checkout.stand_in("tool", "exit 0")
    assert own.read_text() == "the machine's" and not (checkout.bin / "tool").is_symlink()


def machine(checkout: Checkout, filesystem: str, runtimes: list[str], *, systemd: bool) -> str:
    """Stand-ins for a machine; the shell command that points testhost at it."""
    checkout.stand_in("stat", f'[ "$*" = "-fc %T /sys/fs/cgroup" ] && echo {filesystem}')
    for name in runtimes:
        checkout.stand_in(name, "exit 1")
    booted = checkout.base / "booted"
    if systemd:
        booted.mkdir()
    return f"booted={booted}"


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize(
    ("filesystem", "there", "runtime"),
    [
        ("tmpfs", ["runc"], "runc"),
        ("tmpfs", ["crun", "runc"], "runc"),  # crun refuses the hybrid hierarchy
        ("cgroup2fs", ["crun"], "crun"),
        ("cgroup2fs", ["crun", "runc"], "crun"),
        ("cgroup2fs", ["runc"], "runc"),
    ],
    ids=["v1", "v1, crun there", "v2", "v2, runc there", "v2 without crun"],
)
def test_podmans_settings(checkout, filesystem, there, runtime, systemd):
    here = machine(checkout, filesystem, there, systemd=systemd)
    told = call(checkout, f"{here}; limit() {{ echo 10$1; }}; folders; cat $CONTAINERS_CONF")
    hosts = checkout.home / ".cache/llm-fleet/testhosts"
    assert tomllib.loads(told) == {
        "containers": {
            "default_ulimits": ["nofile=10n:10n", "nproc=10u:10u"],
            "pids_limit": 0,
            "log_driver": "k8s-file",
        },
        "engine": {
            "runtime": runtime,
            "cgroup_manager": "systemd" if systemd and filesystem == "cgroup2fs" else "cgroupfs",
            "events_logger": "file",
        },
        "network": {"network_backend": "netavark", "network_config_dir": str(hosts / "networks")},
    }
    assert (hosts / "containers.conf").read_text() == told
    assert not list(hosts.glob(".draft*"))


@pytest.mark.parametrize(
    ("filesystem", "there", "missing"),
    [("tmpfs", "crun", "runc"), ("tmpfs", "runc", ""), ("cgroup2fs", "crun", ""), ("cgroup2fs", "podman", "runc")],
)
def test_the_runtime_that_is_chosen_is_the_one_that_must_be_there(checkout, filesystem, there, missing):
    here = machine(checkout, filesystem, [there], systemd=True)
    told = call(checkout, f"{here}; missing_packages | grep -x 'runc\\|crun' || true")
    assert told.split() == missing.split()


@pytest.mark.parametrize(
    ("hard", "limited"), [("unlimited", "20000"), ("524288", "20000"), ("20000", "20000"), ("1024", "1024")]
)
def test_a_limit_is_never_above_the_machines(checkout, hard, limited):
    assert call(checkout, f"ulimit() {{ echo {hard}; }}; limit n 20000") == f"{limited}\n"


def test_the_list_of_hosts(checkout):
    checkout.stand_in("podman", LISTED)
    assert call(checkout, "list") == (
        "NAME                 ADDRESS          STATE    AGE\n"
        "molecule-monitoring  10.89.0.12       running  2 minutes\n"
        "old                  -                exited   3 days\n"
    )


def test_the_list_of_no_hosts(checkout):
    checkout.stand_in("podman", "exit 0")
    assert call(checkout, "list") == "NAME  ADDRESS          STATE    AGE\n"


def test_a_list_that_podman_refuses(checkout):
    checkout.stand_in("podman", "echo no storage here >&2; exit 125")
    done = checkout.run("bash", "-c", "source molecule/testhost/testhost; list")
    assert done.returncode == 125 and "no storage here" in done.stderr


def test_it_does_nothing_when_it_is_read(checkout):
    checkout.stand_in("podman", f"touch {checkout.base}/asked")
    assert call(checkout, "true") == ""
    assert not (checkout.base / "asked").exists() and not (checkout.home / ".cache").exists()


def test_a_command_that_is_unknown(checkout):
    done = checkout.run("molecule/testhost/testhost", "fly")
    assert done.returncode == 1 and done.stderr.endswith("testhost: error: unknown command: fly\n")
