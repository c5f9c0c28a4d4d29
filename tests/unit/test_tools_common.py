# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/common.sh and tools/test: which machines are taken, and which scripts are checked."""

from __future__ import annotations

import subprocess

import pytest
from checkouts import ROOT, Checkout


def ask(checkout: Checkout, release: str | None) -> subprocess.CompletedProcess[str]:
    file = checkout.base / "os-release"
    if release is not None:
        file.write_text(release)
    return checkout.run("bash", "-c", f"source tools/common.sh; need_debian {file}; echo taken")


@pytest.mark.parametrize(
    "release", ['ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n', "ID=debian\nVERSION_ID=13\n"]
)
def test_debian_12_and_13(tmp_path, release):
    done = ask(Checkout(tmp_path), release)
    assert (done.returncode, done.stdout, done.stderr) == (0, "taken\n", "")


@pytest.mark.parametrize(
    ("release", "said"),
    [('ID=debian\nVERSION_ID="14"\n', "this is 14"), ("ID=debian\n", "this is one without a number")],
)
def test_a_newer_debian_is_warned_of(tmp_path, release, said):
    done = ask(Checkout(tmp_path), release)
    assert (done.returncode, done.stdout) == (0, "taken\n")
    assert done.stderr == f"warning: tried on Debian 12 and 13 alone; {said}\n"


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ('ID=debian\nVERSION_ID="11"\n', "says debian 11"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "says ubuntu 24.04"),
        ("NAME=x\n", "says nothing"),
        (None, "cannot be read"),
    ],
)
def test_others_are_refused(tmp_path, release, said):
    done = ask(Checkout(tmp_path), release)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: this needs Debian 12 or 13; ") and line.rstrip().endswith(said)


def test_every_shell_script_is_checked(tmp_path):
    """tools/test finds scripts by their first line, be it bash or sh, and takes nothing else for one."""
    scripts = {
        "bash": "#!/usr/bin/env bash\n",
        "bin-bash": "#!/bin/bash\n",
        "sh": "#!/bin/sh\n",
        "sh-e": "#!/bin/sh -e\n",
        "part.sh": "# shellcheck shell=bash\n",
        "a folder/x": "#!/bin/sh\n",
    }
    others = {
        "page.md": "How:\n#!/bin/sh\n",
        "x.py": '#!/usr/bin/python3\n"""\n#!/bin/bash\n"""\n',
        "launcher.j2": "#!/bin/sh\n{{ x }}\n",
        "fish": "#!/usr/bin/fish\n",
        "words": "# what bash does\n",
    }
    for name, text in (scripts | others).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("a folder")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    script = (ROOT / "tools" / "test").read_text()
    function = script[script.index("shell_scripts() {") :].partition("\n}\n")[0] + "\n}\n"
    done = subprocess.run(["bash", "-c", f"set -euo pipefail; {function} shell_scripts"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert sorted(done.stdout.splitlines()) == sorted(scripts), done.stderr
