# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fork's checkout with a real git, the image with a scripted podman, and the record of both."""

from __future__ import annotations

import getpass
import hashlib
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _r9v_runtime
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import find_runtime
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_runtime import (
    SHIM,
    Request,
    carry_out,
    parse_request,
    plan,
)

DIGEST = "2d" * 32


class FakePodman:
    """A user's podman; an archive holds the image of ``inside``."""

    def __init__(self, inside: str = DIGEST, *there: str) -> None:
        self.inside, self.there, self.user = inside, list(there), getpass.getuser()

    def __call__(self, _user: str) -> FakePodman:
        return self

    def image(self, digest: str) -> str | None:
        return next((each for each in self.there if each.startswith(digest)), None)

    def load(self, _archive: str) -> str:
        self.there.append(self.inside)
        return "Loaded image: localhost/x:1"


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.invalid", *argv],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    (folder / "scripts").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for text in ("first", "second"):
        (folder / "scripts" / "launch.sh").write_text(f"#!/bin/sh\n# {text}\n")
        (folder / "scripts" / "launch.sh").chmod(0o755)
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", text)
    return folder


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakePodman]:
    def have(*args: str) -> FakePodman:
        fake = FakePodman(*args)
        monkeypatch.setattr(_r9v_runtime, "Podman", fake)
        return fake

    return have


@pytest.fixture
def request_of(tmp_path: Path, origin: Path) -> Callable[..., Request]:
    (tmp_path / "bundle.tar").write_bytes(b"an archive")

    def make(**changes: Any) -> Request:
        source = {
            "kind": "bundle", "image": "x", "sha256": DIGEST, "checkout": str(tmp_path / "fork"), "url": str(origin),
            "commit": git(origin, "rev-parse", "HEAD"), "includes": [git(origin, "rev-parse", "HEAD~1")[:7]],
            "archive": str(tmp_path / "bundle.tar"), "archive_sha256": hashlib.sha256(b"an archive").hexdigest(),
        } | changes  # fmt: skip
        source = {key: value for key, value in source.items() if value is not None}
        params = {"name": "r9v", "user": getpass.getuser(), "shim": "#!/bin/sh\n", "prefix": str(tmp_path / "rt")}
        return parse_request({**params, "source": source})

    return make


def run(request: Request) -> list[str]:
    return carry_out(request, Progress(None))


def test_from_nothing_to_a_runtime_that_endpoints_find(
    request_of: Callable[..., Request], podman: Callable[..., FakePodman], tmp_path: Path
) -> None:
    podman()
    request = request_of()
    assert [text.partition(" is to")[0] for text in run(request)] == [
        request.checkout, "the shim", f"image sha256:{DIGEST}",
    ]  # fmt: skip
    assert (plan(request), run(request)) == ([], [])
    found = find_runtime(request.prefix, "r9v")
    assert found is not None and (found["server_bin"], found["version"]) == (request.launch, DIGEST)
    shim = tmp_path / "fork" / SHIM
    assert shim.read_text() == "#!/bin/sh\n" and shim.stat().st_mode & 0o777 == 0o755
    changed = replace(request, shim="#!/bin/bash\n")
    assert run(changed) == ["the shim is to be installed"]
    again = find_runtime(request.prefix, "r9v")
    assert again is not None and again["digest"] != found["digest"]


def test_a_clean_checkout_moves_and_a_changed_one_does_not(
    request_of: Callable[..., Request], podman: Callable[..., FakePodman], origin: Path, tmp_path: Path
) -> None:
    podman(DIGEST, DIGEST)
    old = git(origin, "rev-parse", "HEAD~1")
    run(request_of(commit=old, includes=[]))
    launch = tmp_path / "fork" / "scripts" / "launch.sh"
    launch.write_text("#!/bin/sh\n# mine\n")
    with pytest.raises(FleetError, match="was changed by hand"):
        run(request_of())
    assert "mine" in launch.read_text()
    git(tmp_path / "fork", "checkout", "--", ".")
    run(request_of())
    assert "second" in launch.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commit": "ab" * 20}, "a commit that is there"),
        ({"url": None}, "no .git in it|no such folder"),
        ({"includes": ["ab" * 20]}, "lacks patch"),
        ({"archive_sha256": "ab" * 32}, "Fetch it again; nothing was loaded"),
        ({"archive": None}, "loaded before, or an archive"),
        ({"archive": "/nonexistent"}, "a file on this host"),
    ],
)
def test_what_cannot_be_had_is_named_and_nothing_is_linked(
    request_of: Callable[..., Request], podman: Callable[..., FakePodman], changes: dict[str, Any], words: str
) -> None:
    fake, request = podman(), request_of(**changes)
    with pytest.raises(FleetError, match=words):
        run(request)
    assert fake.there == [] and find_runtime(request.prefix, "r9v") is None


def test_an_archive_of_another_image(request_of: Callable[..., Request], podman: Callable[..., FakePodman]) -> None:
    podman("ee" * 32)
    with pytest.raises(FleetError, match=f"holds another image; expected manifest sha256:{DIGEST}"):
        run(request_of())


def test_a_checkout_is_taken_as_it_is(
    request_of: Callable[..., Request], podman: Callable[..., FakePodman], origin: Path
) -> None:
    """As on the owner's host: no url, no commit, the image loaded long ago."""
    podman(DIGEST, DIGEST)
    request = request_of(checkout=str(origin), url=None, commit=None, archive=None, archive_sha256=None)
    assert run(request) == ["the shim is to be installed"]
    record = json.loads((Path(request.prefix) / "r9v" / "build.json").read_text())
    assert record["commit"] == git(origin, "rev-parse", "HEAD") and plan(request) == []
    (origin / "more").touch()
    git(origin, "add", "-A")
    git(origin, "commit", "--quiet", "-m", "third")
    assert plan(request) == ["its record is to be written"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "git"}, "source.kind; expected bundle"),
        ({"kind": "bundle", "image": "x", "checkout": "/c"}, "llm_runtimes.r.source declares no digest"),
        ({"kind": "bundle", "image": "x", "sha256": "unknown", "checkout": "/c"}, r"runtime r: source \(sha256\)"),
        ({"kind": "bundle", "image": "x", "sha256_prefix": "2dac17"}, "source: sha256_prefix is malformed"),
        ({"kind": "bundle", "image": "x", "sha256_prefix": 12345678}, "source: sha256_prefix is no text"),
        ({"kind": "bundle", "image": "x", "sha256_prefix": "2d2d2d2d"}, "source.checkout"),
        ({"kind": "bundle", "image": "x", "sha256": DIGEST, "checkout": "/c", "archive": "/a"}, "archive_sha256"),
        (
            {"kind": "bundle", "image": "x", "sha256": DIGEST, "checkout": "/c", "archive": "/a"}
            | {"archive_sha256": "unknown"},
            r"runtime r: source \(archive_sha256\)",
        ),
    ],
)
def test_a_declaration_that_is_not_enough(source: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        parse_request({"name": "r", "user": "u", "shim": "", "source": source})
