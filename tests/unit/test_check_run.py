# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/check-run: red unless the README's first command answers; whatever happens, its host and no other goes away."""

from __future__ import annotations

import shutil

import pytest
from checkouts import ROOT, Checkout

ANSWERED = "echo '    you:   Name it.'; echo '    model: The capital city of France is Paris.'"
DOWN = "testhost down readme\n"
RUN = "make run on readme\n"


@pytest.fixture
def checkout(tmp_path):
    here = Checkout(tmp_path)
    shutil.copy(ROOT / "README.md", here.folder)
    (here.bin / "tee").symlink_to(shutil.which("tee"))
    return here


def tell(checkout: Checkout, make: str, testhost: str = "exit 0"):
    """(how check-run ended where ``make`` and ``testhost`` are these, what they were asked in turn)."""
    asked = checkout.base / "asked"
    checkout.stand_in("make", f'echo "make $* on $LLM_FLEET_SANDBOX" >>{asked}\n{make}')
    script = checkout.folder / "molecule/testhost/testhost"
    script.write_text(f'#!/bin/sh\necho "testhost $*" >>{asked}\n{testhost}\n')
    return checkout.run("tools/check-run"), asked.read_text() if asked.exists() else ""


def test_an_answer(checkout):
    done, asked = tell(checkout, ANSWERED)
    assert done.returncode == 0 and "is Paris." in done.stdout, done.stderr
    assert asked == DOWN + RUN + DOWN


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("echo '==> FAILED' >&2; exit 2", "==> FAILED"),
        (f"{ANSWERED}; exit 2", ""),
        ("exit 0", "make run ended well without the answer to its question: no line with one"),
        ("echo '    model: !!!!!!!!'", "without the answer to its question: !!!!!!!!"),
        ("echo Paris", "no line with one"),
    ],
    ids=["failed", "failed after it", "silent", "gibberish", "elsewhere"],
)
def test_no_answer(checkout, make, said):
    done, asked = tell(checkout, make)
    assert done.returncode != 0 and said in done.stderr
    assert asked == DOWN + RUN + DOWN


def test_a_host_that_stays(checkout):
    done, asked = tell(checkout, ANSWERED, f"[ $(grep -c down {checkout.base}/asked) = 1 ]")
    assert done.returncode != 0
    assert asked == DOWN + RUN + DOWN


@pytest.mark.parametrize("text", ["make test\nmake run\n", "no command\n"])
def test_another_first_command(checkout, text):
    (checkout.folder / "README.md").write_text(text)
    done, asked = tell(checkout, ANSWERED)
    assert done.returncode == 1 and "expected make run as its first command" in done.stderr
    assert asked == ""
