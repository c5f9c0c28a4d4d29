# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The token of a hub: where it may be read, and that no message shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._auth import read_token
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

HUB = "https://hub.example"
SECRET = "hf_verysecret"


def token_file(folder: Path, text: str = f"{SECRET}\n", mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_from_a_file(tmp_path: Path, mode: int) -> None:
    token = read_token(token_file(tmp_path, mode=mode), None, HUB)
    assert token is not None
    assert token.header_for("https://hub.example/a/resolve/b") == {"Authorization": f"Bearer {SECRET}"}
    assert token.header_for("https://cdn.hub.example/a") == token.header_for("http://hub.example/a") == {}
    assert SECRET not in repr(token)


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", SECRET)
    token = read_token(None, "T", "http://127.0.0.1:8000")
    assert token is not None and token.value == SECRET


def test_none_is_asked_for() -> None:
    assert read_token(None, None, "http://plain.example") is None


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (SECRET, 0o604, "open to every user"),
        (SECRET, 0o601, "open to every user"),
        (SECRET, 0o666, "open to every user"),
        ("", 0o600, "gives no token"),
        (" \n", 0o600, "gives no token"),
        (f"{SECRET}\nX-Evil: 1", 0o600, "more than a token"),
        (f"{SECRET} two", 0o600, "more than a token"),
        (f"{SECRET}\u00e9", 0o600, "more than a token"),
    ],
)
def test_what_is_no_token_is_refused_unseen(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(FleetError, match=says) as refusal:
        read_token(token_file(tmp_path, text, mode), None, HUB)
    assert SECRET not in repr(refusal.value.as_result())


@pytest.mark.parametrize(
    ("file", "variable", "hub", "says"),
    [
        ("/nowhere/token", None, HUB, "cannot be read"),
        ("/dev/null", None, HUB, "is no file"),
        (None, "NOT_SET", HUB, "gives no token"),
        ("/a", "B", HUB, "both set"),
        (None, "T", "http://hub.example", "no place for a token"),
        (None, "T", "http://127.0.0.1.example", "no place for a token"),
    ],
)
def test_a_token_that_cannot_be_had_or_sent(
    monkeypatch: pytest.MonkeyPatch, file: str | None, variable: str | None, hub: str, says: str
) -> None:
    monkeypatch.setenv("T", SECRET)
    with pytest.raises(FleetError, match=says):
        read_token(file, variable, hub)
