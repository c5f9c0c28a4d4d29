# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/clean: what the commands made goes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkouts import Checkout

OURS = [
    *(f".cache/llm-fleet/{name}/made" for name in ("sources", "builds", "ccache/0", "check-builds", "probe-model")),
    ".cache/llm-fleet/testhost/0123.tar.zst",
    ".cache/llm-fleet/testhosts/hosts/sandbox.ssh",
]
OURS_HERE = [
    *(
        f"{name}/made"
        for name in (".venv/bin", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ansible")
    ),
    ".cache/report/made.png",
    "plugins/modules/__pycache__/made.pyc",
]
THEIRS = [
    ".cache/ccache/0/foreign",
    ".cache/sources/foreign",
    ".cache/builds/foreign",
    ".ansible/tmp/ansible-local-1/foreign",
    ".ansible/collections/foreign",
    ".ansible/tmp/molecule.abcd.unfinished/state.yml",
    "foreign",
]


def put(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def molecule(checkout: Checkout, name: str, of: str) -> str:
    """Put a folder as molecule leaves it for the scenario ``default`` of the checkout ``of``; its name below home."""
    config = f".ansible/tmp/molecule.{name}.default/ansible.cfg"
    put(checkout.home, [config])
    text = f"[defaults]\nretry_files_enabled = False\ninventory = {of}/molecule/default/inventory\n[ssh_connection]\n"
    (checkout.home / config).write_text(text)
    return config


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def checkout(tmp_path):
    here = Checkout(tmp_path)
    put(here.home, OURS + THEIRS)
    put(here.folder, [*OURS_HERE, ".git/foreign", "dist/__pycache__/foreign", "plugins/x.py", "tests/x.py"])
    return here


def test_what_is_ours_goes_and_the_rest_stays(checkout):
    podman = checkout.podman(hosts=["c1", "c2"], images=["sha256:i1"], networks=["llm-fleet"])
    molecule(checkout, "abcd", str(checkout.folder))
    others = [
        molecule(checkout, "efgh", f"{checkout.folder}-2"),
        molecule(checkout, "ijkl", f"/check{checkout.folder}"),
        molecule(checkout, "mnop", "/elsewhere"),
    ]
    here = files(checkout.folder)
    done = checkout.run("tools/clean")
    assert done.returncode == 0, done.stderr
    assert files(checkout.home) == {*THEIRS, *others}
    assert files(checkout.folder) == here - set(OURS_HERE)
    assert not (checkout.home / ".cache/llm-fleet").exists() and not (checkout.folder / ".venv").exists()
    removed = [line for line in (podman / "asked").read_text().splitlines() if "--filter" not in line]
    label = "--filter label=io.llm-fleet=testhost"
    assert (podman / "asked").read_text().count(label) == 3, "asked for what bears our label alone"
    assert removed == [
        "rm -f -v -t 0 c1 c2",
        "rmi -f sha256:i1",
        "network rm llm-fleet",
        "container exists llm-fleet-sandbox",
    ]

    # The second time there is nothing to do.
    (podman / "asked").write_text("")
    again = checkout.run("tools/clean")
    assert again.returncode == 0, again.stderr
    assert files(checkout.home) == {*THEIRS, *others}
    assert files(checkout.folder) == here - set(OURS_HERE)
    assert {line.split()[0] for line in (podman / "asked").read_text().splitlines()} == {"ps", "images"}


def test_no_podman_at_all(checkout):
    for _time in range(2):
        done = checkout.run("tools/clean")
        assert done.returncode == 0, done.stderr
        assert files(checkout.home) == set(THEIRS)
        assert not (checkout.folder / ".venv").exists()


def test_a_podman_that_fails_where_nothing_of_ours_is(checkout):
    put(checkout.home, [".cache/llm-fleet/sources/made"])
    for path in sorted((checkout.home / ".cache/llm-fleet/testhosts").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (checkout.home / ".cache/llm-fleet/testhosts").rmdir()
    checkout.stand_in("podman", "echo no storage here >&2; exit 125")
    done = checkout.run("tools/clean")
    assert done.returncode == 0, done.stderr
    assert files(checkout.home) == set(THEIRS)


def test_a_podman_that_fails_where_hosts_were_made(checkout):
    checkout.stand_in("podman", "echo no storage here >&2; exit 125")
    before = files(checkout.home)
    done = checkout.run("tools/clean")
    assert done.returncode != 0
    assert "no storage here" in done.stderr and "FAILED" in done.stderr
    assert files(checkout.home) - {".cache/llm-fleet/testhosts/containers.conf"} == before


@pytest.mark.parametrize("left", ["hosts", "images"])
def test_the_cache_was_removed_by_hand(checkout, left):
    podman = checkout.podman(**{left: ["one"]})
    for path in sorted((checkout.home / ".cache/llm-fleet").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    done = checkout.run("tools/clean")
    assert done.returncode == 0, done.stderr
    assert (podman / left).read_text() == ""
    assert files(checkout.home) == set(THEIRS)


def test_what_someone_keeps_in_the_cache_stays(checkout):
    put(checkout.home, [".cache/llm-fleet/notes"])
    assert checkout.run("tools/clean").returncode == 0
    assert files(checkout.home) == {*THEIRS, ".cache/llm-fleet/notes"}


def test_a_cache_of_another_place(checkout):
    put(checkout.base, ["disk/llm-fleet-cache/ccache/made", "disk/ccache/foreign"])
    before = files(checkout.home)
    done = checkout.run("tools/clean", LLM_FLEET_CACHE=f"{checkout.base}/disk/llm-fleet-cache/")
    assert done.returncode == 0, done.stderr
    assert files(checkout.base / "disk") == {"ccache/foreign"}
    assert files(checkout.home) == before


# All of these lie in the test's own folder: were the check gone, nothing else would be.
@pytest.mark.parametrize("cache", ["{home}/.cache", "{home}/.cache/", "{home}", ".cache", "llm-fleet",
                                   "~/.cache/llm-fleet", "{home}/.cache/llm-fleet/.."])  # fmt: skip
@pytest.mark.parametrize("command", ["tools/clean", "molecule/testhost/testhost purge"])
def test_a_cache_that_may_be_somebody_elses(checkout, cache, command):
    podman = checkout.podman(hosts=["c1"])
    told = cache.format(home=checkout.home)
    before = files(checkout.base)
    done = checkout.run(*command.split(), LLM_FLEET_CACHE=told)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: LLM_FLEET_CACHE is {told}: expected the absolute path of a folder of its own")
    assert files(checkout.base) == before and (podman / "asked").read_text() == ""
