# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every file of the collection must have: its place, its licence, its documentation."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.doc_fragments.attributes import ModuleDocFragment
from ansible_collections.dank.llm_fleet.plugins.module_utils import _module

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / "collections" / "ansible_collections" / "dank" / "llm_fleet"
HEADER = [
    "# Copyright (c) 2026 The llm_fleet engineers",
    "# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)",
    "# SPDX-License-Identifier: GPL-3.0-or-later",
]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__")
# One in a class, so that this file does not name what it looks for.
BUILD_MACHINE = re.compile(r"/wor[k]/(main|shared|steering|\.library)")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    return [ROOT / os.fsdecode(name) for name in names if name]


def test_the_collections_folder_is_a_real_one() -> None:
    for folder in (LINKS, *LINKS.parents):
        assert folder.is_dir() and not folder.is_symlink(), folder
        if folder == ROOT:
            break


def test_its_entries_are_the_roots() -> None:
    assert {path.name for path in LINKS.iterdir()} == {
        "plugins",
        "roles",
        "playbooks",
        "meta",
        "galaxy.yml",
        "README.md",
        "LICENSE",
        "changelogs",
    }


@pytest.mark.parametrize("link", sorted(LINKS.iterdir()), ids=lambda path: path.name)
def test_an_entry_is_a_relative_link_to_the_root(link: Path) -> None:
    assert link.is_symlink()
    assert os.readlink(link) == f"../../../../{link.name}"
    assert link.exists(), f"{link.name} leads nowhere"
    assert link.resolve() == ROOT / link.name


def test_there_are_roles_and_modules() -> None:
    assert set(ROLES) >= {"host", "runtime", "payload", "endpoint"}
    assert set(MODULES) >= {"endpoint", "endpoint_info", "endpoint_probe", "endpoint_truth"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_whole(role: str) -> None:
    for name in ("tasks/main.yml", "defaults/main.yml", "meta/main.yml", "meta/argument_specs.yml"):
        assert (ROOT / "roles" / role / name).is_file(), name


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_variables_are_its_specs(role: str) -> None:
    defaults = load(ROOT / "roles" / role / "defaults" / "main.yml") or {}
    options = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"].get("options", {})
    assert set(defaults) == set(options)
    assert [name for name in defaults if not name.startswith(f"{role}_")] == []
    for name, option in options.items():
        assert option.get("description"), name
        if isinstance(defaults[name], str) and "{{" in defaults[name]:
            continue  # the spec says in words what is computed
        assert option.get("default") == defaults[name], name


def licensed() -> list[Path]:
    python = [path for path in (ROOT / "plugins").rglob("*.py") if path.stat().st_size]
    roles = [
        path for path in (ROOT / "roles").rglob("*") if path.is_file() and path.suffix in (".yml", ".py", ".sh", "")
    ]
    return sorted([*python, *roles, *(ROOT / "tests" / "unit").glob("*.py")])


@pytest.mark.parametrize("path", licensed(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_begins_with_its_licence(path: Path) -> None:
    head = [line for line in path.read_text().splitlines()[:5] if line != "---" and not line.startswith("#!")]
    assert head[:3] == HEADER


class _Recorded(Exception):
    """Ends a module once its argument spec is known."""


def is_documentation(name: str) -> bool:
    """Whether the work of module ``name`` is done on the controller, by the action of its name."""
    only = "run_module(" not in (ROOT / "plugins" / "modules" / f"{name}.py").read_text()
    assert not only or (ROOT / "plugins" / "action" / f"{name}.py").is_file(), f"{name} does nothing"
    return only


def spec_of(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the module's names, what it hands to AnsibleModule when it is run)."""
    seen: dict[str, Any] = {}

    def record(**given: Any) -> None:
        seen.update(given)
        raise _Recorded

    monkeypatch.setattr(_module, "AnsibleModule", record)
    module = str(ROOT / "plugins" / "modules" / f"{name}.py")
    with pytest.raises(_Recorded):
        runpy.run_path(module, run_name="__main__")
    return runpy.run_path(module), seen


def plain(spec: dict[str, Any], documented: bool) -> dict[str, Any]:
    """A spec or documented options, reduced to what both must say alike."""
    out = {}
    for name, option in spec.items():
        entry = {key: option.get(key) for key in ("choices", "elements", "default", "aliases")}
        entry["type"] = option.get("type", "str")
        entry["required"] = bool(option.get("required", False))
        below = option.get("suboptions" if documented else "options")
        entry["below"] = plain(below, documented) if below else None
        out[name] = entry
    return out


@pytest.mark.parametrize("name", [name for name in MODULES if not is_documentation(name)])
def test_a_modules_documentation_is_its_argument_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = spec_of(name, monkeypatch)
    told = yaml.safe_load(module["DOCUMENTATION"])
    assert told["module"] == name
    assert plain(told.get("options") or {}, True) == plain(given["argument_spec"], False)
    undescribed = [option for option, value in (told.get("options") or {}).items() if not value.get("description")]
    assert undescribed == []


@pytest.mark.parametrize("name", [name for name in MODULES if not is_documentation(name)])
def test_a_module_says_what_check_mode_does_and_gives_an_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = spec_of(name, monkeypatch)
    told = yaml.safe_load(module["DOCUMENTATION"])
    attributes: dict[str, Any] = {}
    for fragment in told["extends_documentation_fragment"]:
        assert fragment.startswith("dank.llm_fleet.attributes"), fragment
        suffix = fragment.removeprefix("dank.llm_fleet.attributes").lstrip(".") or "documentation"
        for key, value in yaml.safe_load(getattr(ModuleDocFragment, suffix.upper()))["attributes"].items():
            attributes[key] = {**attributes.get(key, {}), **value}
    for key, value in (told.get("attributes") or {}).items():
        attributes[key] = {**attributes.get(key, {}), **value}
    assert {key: value.get("support") for key, value in attributes.items() if not value.get("support")} == {}
    assert (attributes["check_mode"]["support"] != "none") == given["supports_check_mode"]
    examples = yaml.safe_load(module["EXAMPLES"])
    assert any(f"dank.llm_fleet.{name}" in task for task in examples)
    assert isinstance(yaml.safe_load(module["RETURN"]), dict)


def test_no_tracked_file_names_a_build_machine() -> None:
    found = []
    for path in tracked():
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes().decode("utf-8", "ignore")
            found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in BUILD_MACHINE.finditer(text)]
    assert found == []


def test_the_search_for_build_machines_finds_one() -> None:
    assert BUILD_MACHINE.search("cp " + "/".join(["", "work", "shared", "x"]))
