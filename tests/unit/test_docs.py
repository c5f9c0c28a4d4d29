# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation says is so: generated pages are current, links resolve, commands exist, examples are sound."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory import validate
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_probes import probe_problems
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import MEASURED, check_keys

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("molecule/**/*.md")])
WRITTEN = [page for page in PAGES if "docs/reference" not in str(page)]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("[a-z]*.py"))
TABLES = ("llm_runtimes", "llm_payloads", "llm_endpoints", "llm_cards", "llm_payload_locks")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The page's code blocks in one of these languages, without their indentation."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [re.sub(rf"^{lead}", "", body, flags=re.MULTILINE) for lead, kind, body in found if kind in languages]


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the page's shell blocks."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def ansible_env() -> dict[str, str]:
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }


def called(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, argv)], cwd=ROOT, env=ansible_env(), capture_output=True, text=True, check=False)


def test_generated_pages_are_current():
    done = called(sys.executable, "tools/docs.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    """A copy of what tools/docs.py reads, to be spoilt."""
    for name in ("README.md", "Makefile", "ansible.cfg", "galaxy.yml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in ("docs", "playbooks", "roles", "plugins", "meta", "collections", "tools"):
        subprocess.run(["cp", "-a", ROOT / name, tmp_path / name], check=True)
    data = Path("molecule", "faults", "data")
    (tmp_path / data).parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", ROOT / data, tmp_path / data], check=True)
    return tmp_path


def test_check_fails_and_shows_the_difference_and_writing_mends_it(copy):
    def docs(*args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(copy / "tools" / "docs.py"), *args]
        return subprocess.run(argv, cwd=copy, env=ansible_env(), capture_output=True, text=True, check=False)

    assert docs("--check").returncode == 0
    module = copy / "plugins" / "modules" / "endpoint_info.py"
    module.write_text(module.read_text().replace("The endpoints to look at.", "The endpoints to look into."))
    stale = copy / "docs" / "reference" / "modules" / "gone.md"
    stale.write_text((copy / "docs" / "reference" / "README.md").read_text())
    before = stale.read_text()
    done = docs("--check")
    assert done.returncode == 1
    assert "look into" in done.stdout and "gone.md" in done.stdout and "2 generated files" in done.stdout
    assert stale.read_text() == before
    assert docs().returncode == 0
    assert not stale.exists()
    assert docs("--check").returncode == 0
    readme = copy / "README.md"
    readme.write_text(readme.read_text().replace("<!-- generated: roles -->", ""))
    done = docs("--check")
    assert done.returncode == 1 and "generated: roles" in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_resolve(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{named(page)} links to {target}"


def test_every_written_page_is_reached_from_the_readme():
    linked, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in linked:
            linked.add(page)
            targets = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
            todo += [(page.parent / target).resolve() for target in targets if not target.startswith("http")]
    assert {page for page in PAGES if "docs" in page.parts} - linked <= {ROOT / "docs" / "README.md"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        command = words[0].removeprefix(".venv/bin/")
        if command == "make":
            assert set(words[1:]) <= targets, words
        elif command == "ansible-playbook":
            for word in words[1:]:
                if word.endswith(".yml"):
                    assert (ROOT / word).is_file(), words
                elif word.startswith("dank.llm_fleet."):
                    assert (ROOT / "playbooks" / f"{word.rsplit('.', 1)[1]}.yml").is_file(), words
                elif word.startswith("inventories/"):
                    assert (ROOT / word).is_dir(), words
        elif "/" in command:
            assert os.access(ROOT / command, os.X_OK), words


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_endpoints_rungs_and_tags_of_commands_exist(page):
    declared: dict[str, Any] = {}
    for file in (*ROOT.glob("inventories/production/host_vars/*.yml"), ROOT / "inventories/sandbox/group_vars/all.yml"):
        declared |= yaml.safe_load(file.read_text())["llm_endpoints"]
    site = (ROOT / "playbooks" / "site.yml").read_text() + (ROOT / "playbooks" / "validate.yml").read_text()
    for words in commands(page):
        extra = dict(word.split("=", 1) for word in words if re.fullmatch(r"(endpoint|rung)=.+", word))
        if extra.get("endpoint", "NAME") != "NAME":
            assert extra["endpoint"] in declared, words
            assert extra.get("rung", "") in ("", *declared[extra["endpoint"]].get("rungs", {})), words
        if "--tags" in words:
            assert re.search(rf"tags: \[.*\b{words[words.index('--tags') + 1]}\b.*\]", site), words


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_yaml_examples_pass_the_schema(page):
    """All inventory examples of a page are one host's; lists are tasks.

    Blocks of env keys alone are lines of a llama.cpp endpoint, those of one key of an endpoint are that key's.
    """
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    defaults = "".join(path.read_text() for path in ROOT.glob("roles/*/defaults/main.yml"))
    for block in blocks(page, "yaml"):
        told = yaml.safe_load(block)
        if isinstance(told, list):
            for task in told:
                name = next(key for key in task if key.startswith("dank.llm_fleet.")).rsplit(".", 1)[1]
                source = (ROOT / "plugins" / "modules" / f"{name}.py").read_text()
                options = yaml.safe_load(source.partition('DOCUMENTATION = r"""')[2].partition('"""')[0])["options"]
                assert set(task[f"dank.llm_fleet.{name}"]) <= set(options), name
            continue
        for key, value in told.items():
            if key == "measured":
                assert [text for entry in value for text in check_keys(key, entry, MEASURED)] == []
            elif key == "probes":
                assert probe_problems(key, value) == []
            elif key in TABLES:
                tables[key] |= value
            elif key.isupper():
                _envspec.normalise("llamacpp", {key: value})
            elif key != "llm":
                assert re.search(rf"^{key}:", defaults, re.MULTILINE), f"{key} is no variable of a role"
    verdict = validate("gpubox", *(tables[name] for name in TABLES))
    assert verdict.problems == []
    assert verdict.warnings == []


def test_links_of_truth_are_those_of_the_code():
    code = (ROOT / "plugins" / "module_utils" / "_truth.py").read_text()
    links = re.findall(r'(?:Link|_file_link|_keys_link)\(\s*"([^"]+)"', code)
    page = (ROOT / "docs" / "how-to" / "read-a-failed-gate.md").read_text()
    listed = page.partition("## Links of truth")[2]
    assert len(links) >= 14
    assert [link for link in links if link not in listed] == []


@pytest.mark.parametrize("module", MODULES)
def test_ansible_doc_shows_every_module_without_a_warning(module):
    done = called(BIN / "ansible-doc", "-t", "module", f"dank.llm_fleet.{module}")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.strip()


def test_documentation_of_plugins_and_roles_is_sound(copy):
    """antsibull-docs judges schema, markup and references of everything that is documented.

    It copies the whole folder that it judges, so it gets one without the virtual environment.
    """
    done = called(BIN / "antsibull-docs", "lint-collection-docs", "--plugin-docs", copy)
    assert done.returncode == 0, done.stdout + done.stderr


def test_changelog_fragments_are_sound():
    done = called(BIN / "antsibull-changelog", "lint")
    assert done.returncode == 0, done.stdout + done.stderr
