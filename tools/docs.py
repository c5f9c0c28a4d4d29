# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/reference/ and the README's tables from the sources, or tell (--check) what is out of date.

Markdown from ``ansible-doc --metadata-dump`` rather than antsibull-docs' reStructuredText: that puts its tables into
raw HTML, which forges do not show in reStructuredText, and tells readers to install from Galaxy, where this
collection is not. antsibull-docs still judges the documentation (tests/unit/test_docs.py).
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_markdown import COLLECTION, NOTE, markdown, plugin_page, role_page, table
from docs_pages import (
    env_page,
    faults_page,
    gates_page,
    header,
    inventory_page,
    playbooks,
    playbooks_page,
    shim_page,
)

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "docs/reference"


def make_rows() -> list[list[str]]:
    """The Makefile's targets with their texts."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [[f"`make {name}`", says] for name, says in re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.MULTILINE)]


def dump() -> dict[str, Any]:
    """Everything that ansible-doc knows of the collection."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-doc"), "--metadata-dump", COLLECTION],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"error: ansible-doc fails: {done.stderr.strip()}")
    known: dict[str, Any] = json.loads(done.stdout)["all"]
    own = {
        kind: {name: doc for name, doc in plugins.items() if name.startswith(COLLECTION + ".")}
        for kind, plugins in known.items()
    }
    return {kind: plugins for kind, plugins in own.items() if plugins}


def linked(kind: str, names: Mapping[str, Any], folder: str) -> list[list[str]]:
    """Rows of ``[name](page)`` and short description."""
    rows = []
    for name in sorted(names):
        short = name.rsplit(".", 1)[1]
        doc = names[name]["entry_points"]["main"] if kind == "role" else names[name]["doc"]
        rows.append([f"[{short}]({folder}/{short}.md)", markdown(doc["short_description"])])
    return rows


def generated() -> tuple[dict[str, str], dict[str, str]]:
    """Whole pages by path, and the README's blocks by name."""
    known = dump()
    pages = {
        f"{REFERENCE}/env-keys.md": env_page(),
        f"{REFERENCE}/faults.md": faults_page(),
        f"{REFERENCE}/gates.md": gates_page(),
        f"{REFERENCE}/inventory.md": inventory_page(),
        f"{REFERENCE}/playbooks.md": playbooks_page(),
        f"{REFERENCE}/shim.md": shim_page(),
    }
    folders = {"module": "modules", "role": "roles", "filter": "plugins", "callback": "plugins"}
    for kind, folder in folders.items():
        for name, doc in known.get(kind, {}).items():
            short = name.rsplit(".", 1)[1]
            page = role_page(short, doc) if kind == "role" else plugin_page(name, doc)
            pages[f"{REFERENCE}/{folder}/{short}.md"] = page
    other = [row for kind in ("filter", "callback") for row in linked(kind, known.get(kind, {}), "plugins")]
    books = [[f"[{path.stem}](playbooks.md#{path.stem})", " ".join(header(path)[0])] for path in playbooks()]
    index = [
        NOTE,
        "# Reference\n",
        "- [Inventory](inventory.md): the four dictionaries\n"
        "- [Gates](gates.md): what a deploy has to pass\n"
        "- [Faults](faults.md): which are injected in the tests, and where each is caught\n"
        "- [Env keys](env-keys.md): what an endpoint's `env:` may hold\n"
        "- [Docker shim](shim.md): what it makes of docker's calls\n",
        "## Playbooks\n",
        table(("Playbook", "What it does"), books),
        "## Roles\n",
        table(("Role", "What it does"), linked("role", known["role"], "roles")),
        "## Modules\n",
        table(("Module", "What it does"), linked("module", known["module"], "modules")),
        "## Filters and callbacks\n",
        table(("Plugin", "What it does"), other),
    ]
    pages[f"{REFERENCE}/README.md"] = "\n".join(index)
    blocks = {
        "commands": table(("Command", "What it does"), make_rows()),
        "playbooks": table(
            ("Playbook", "What it does"), [[row[0].replace("(", f"({REFERENCE}/"), row[1]] for row in books]
        ),
        "roles": table(("Role", "What it does"), linked("role", known["role"], f"{REFERENCE}/roles")),
        "modules": table(("Module", "What it does"), linked("module", known["module"], f"{REFERENCE}/modules")),
    }
    return pages, blocks


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """The README with its generated blocks renewed; each must be there."""
    for name, block in blocks.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"error: README.md has no block <!-- generated: {name} --> ... <!-- end -->")
        text = pattern.sub(lambda match, block=block: match.group(1) + block + match.group(2), text)
    return text


def wanted() -> dict[Path, str | None]:
    """What every generated file must hold; None for one that must go."""
    pages, blocks = generated()
    files: dict[Path, str | None] = {
        path: None for path in (ROOT / REFERENCE).rglob("*.md") if NOTE in path.read_text(encoding="utf-8")
    }
    files |= {ROOT / path: text.rstrip("\n") + "\n" for path, text in pages.items()}
    readme = ROOT / "README.md"
    files[readme] = filled(readme.read_text(encoding="utf-8"), blocks)
    return files


def main() -> int:
    """Write, or compare and exit 1 where a file is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; print the difference and exit 1")
    check = parser.parse_args().check
    stale = 0
    for path, text in sorted(wanted().items()):
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == text:
            continue
        stale += 1
        name = str(path.relative_to(ROOT))
        if check:
            old, new = (before or "").splitlines(), (text or "").splitlines()
            print("\n".join(difflib.unified_diff(old, new, name, f"{name} (from the sources)", lineterm="")))
        elif text is None:
            path.unlink()
            print(f"removed {name}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if check and stale:
        print(f"{stale} generated files are out of date; run tools/docs and commit what it writes")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
