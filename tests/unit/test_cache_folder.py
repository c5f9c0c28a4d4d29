# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder that test hosts and commands share: shell, inventories and the scenarios' Python name the same one."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import jinja2
import pytest

ROOT = Path(__file__).resolve().parents[2]
FLEET = "molecule/shared/fleet.py"
SHELL = "tools/cache.sh"
EXPRESSION = re.compile(r"\{\{((?:(?!\}\}).)*LLM_FLEET_CACHE.*?)\}\}", re.DOTALL)
# A default of its own, or a reading of the environment that may come out empty.
OWN_IDEA = re.compile(
    r"""XDG_CACHE_HOME|\.cache/llm-fleet|"\.cache" */ *"llm-fleet"|LLM_FLEET_CACHE:?[-=]\$?[{~/$]"""
    r"""|(?:environ\.get|getenv)\(.LLM_FLEET_CACHE"""
)
# Prose, what tests say of it, and what an endpoint's unit is given on its host.
OTHER = ("changelogs/", "tests/unit/", "plugins/module_utils/_unit.py")
ENVIRONMENTS = {
    "nothing said": ({}, "/home/someone/.cache/llm-fleet"),
    "empty": ({"LLM_FLEET_CACHE": ""}, "/home/someone/.cache/llm-fleet"),
    "said": ({"LLM_FLEET_CACHE": "/disk/llm-fleet"}, "/disk/llm-fleet"),
    "XDG's": ({"XDG_CACHE_HOME": "/disk/xdg"}, "/home/someone/.cache/llm-fleet"),
    "both": ({"XDG_CACHE_HOME": "/disk/xdg", "LLM_FLEET_CACHE": "/disk/llm-fleet"}, "/disk/llm-fleet"),
}


def texts() -> dict[str, str]:
    """Every file of the repository that a machine reads, by its name."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in done.stdout.split("\0") if name and not name.startswith(OTHER)]
    paths = {name: ROOT / name for name in names if not name.endswith((".md", ".gguf", ".gz", ".png"))}
    return {name: path.read_text(errors="replace") for name, path in paths.items() if path.is_file()}


TEXTS = texts()
EXPRESSIONS = [(name, told) for name, text in TEXTS.items() for told in EXPRESSION.findall(text)]


@pytest.fixture(params=ENVIRONMENTS.values(), ids=list(ENVIRONMENTS))
def said(request):
    """(environment, the folder that is meant)."""
    environ, folder = request.param
    return {"HOME": "/home/someone", "PATH": "/usr/bin:/bin"} | environ, folder


@pytest.mark.parametrize(
    ("script", "variable"), [("tools/common.sh", "LLM_FLEET_CACHE"), ("molecule/testhost/testhost", "cache")]
)
def test_the_shells(said, script, variable):
    environ, folder = said
    told = subprocess.run(["bash", "-c", f'source {script} && echo "${variable}"'], cwd=ROOT, env=environ,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert told.stdout == f"{folder}\n"


def test_the_inventories(said):
    environ, folder = said
    for name, expression in EXPRESSIONS:
        told = jinja2.Environment().compile_expression(expression)
        assert told(lookup=lambda _plugin, key: environ.get(key, "")) == folder, name


def test_each_inventory_of_test_hosts_says_it():
    hosts = {name for name in TEXTS if re.fullmatch(r"(molecule/\w+/inventory|inventories/sandbox)/hosts\.yml", name)}
    assert "inventories/sandbox/hosts.yml" in hosts and len(hosts) > 10
    assert hosts - {name for name, _told in EXPRESSIONS} == set()


def test_the_scenarios_python(said, monkeypatch):
    environ, folder = said
    for key in ("LLM_FLEET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    told = runpy.run_path(str(ROOT / FLEET))
    assert str(told["SSH_CONFIG"]) == f"{folder}/testhosts/ssh_config"


def strays(name: str, text: str) -> list[str]:
    """What a file says of the folder by itself, beside the expressions that are tested above."""
    return [f"{name}: {found}" for found in OWN_IDEA.findall(EXPRESSION.sub("", text))]


def test_nobody_else_has_an_idea_of_their_own():
    found = [line for name, text in TEXTS.items() if name not in (FLEET, SHELL) for line in strays(name, text)]
    # testhost says the default to whoever asks for help
    assert found == ["molecule/testhost/testhost: .cache/llm-fleet"]


@pytest.mark.parametrize(
    "stray",
    [
        "cache=${LLM_FLEET_CACHE:-$HOME/.cache/fleet}",
        "cache=${LLM_FLEET_CACHE:-/var/cache}",
        "cache=${XDG_CACHE_HOME:-$HOME/.cache}/llm-fleet",
        "ssh -F ~/.cache/llm-fleet/testhosts/ssh_config",
        'Path.home() / ".cache" / "llm-fleet"',
        'os.environ.get("LLM_FLEET_CACHE", "/tmp")',
        "os.getenv('LLM_FLEET_CACHE')",
    ],
)
def test_a_stray_is_seen(stray):
    assert strays("x", f"before\n{stray}\nafter")
