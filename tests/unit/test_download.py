# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several files and ranges at once, and sources that fail on the way: every fetch ends right or in one clear error."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _download, _incoming, _partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._incoming import Tuning
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload_plan import PayloadSpec
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK
from fileserver import FileServer, file_server

BODY = b"GGUF" + os.urandom(6 * BLOCK + 77)
SIZE = len(BODY)
SHARDS = {f"s{number}.gguf": b"GGUF" + os.urandom(2 * BLOCK + number) for number in range(5)}
FAST = Tuning(segment=BLOCK, run=2, window=64 * BLOCK, pause_s=0.02, longest_wait_s=5.0)


def entry(urls: list[str], name: str = "m.gguf", data: bytes = BODY, **other: Any) -> dict[str, Any]:
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "urls": urls, **other}


class Place:
    """Where a payload goes."""

    def __init__(self, root: Path) -> None:
        self.root, self.dir = root, root / "p"

    def fetch(self, *files: dict[str, Any], tuning: Tuning = FAST, timeout_s: float = 5.0, **other: Any) -> Any:
        params = {"name": "p", "dir": str(self.dir), "files": list(files), "mode": "0644", "verify": "stamp"}
        spec = PayloadSpec.from_params(params | {"stamp_dir": str(self.root / "stamps")} | other)
        return ensure(replace(spec, timeout_s=timeout_s), check_mode=False, progress=Progress(None), tuning=tuning)

    @property
    def bytes(self) -> bytes:
        return (self.dir / "m.gguf").read_bytes()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.dir.iterdir() if path.name != ".payload.lock")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server(BODY) as state:
        state.bodies.update(SHARDS)
        yield state


def shards(server: FileServer) -> list[dict[str, Any]]:
    return [entry([server.url("good", name)], name, data) for name, data in SHARDS.items()]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources were open, each time that one was opened."""
    seen: list[int] = []
    lock, now = threading.Lock(), [0]
    real = _download.open_source

    @contextlib.contextmanager
    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        with lock:
            now[0] += 1
            seen.append(now[0])
        try:
            with real(*given, **named) as stream:
                yield stream
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(_download, "open_source", counted)
    return seen


def ranges(server: FileServer) -> list[tuple[int, int]]:
    """The asked ranges, their ends exclusive."""
    asked = [headers["Range"].removeprefix("bytes=").split("-") for _, headers in server.requests if "Range" in headers]
    return [(int(start), int(last) + 1) for start, last in asked]


# --- at once ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", [1, 3])
def test_files_come_at_once_and_no_more_than_allowed(
    place: Place, server: FileServer, at_once: list[int], connections: int
) -> None:
    server.delay_s = 0.01
    result = place.fetch(*shards(server), connections=connections)
    assert max(at_once) == connections
    assert result["failures"] == []
    assert server.sent == result["fetch_bytes"] == sum(map(len, SHARDS.values()))
    for name, data in SHARDS.items():
        assert (place.dir / name).read_bytes() == data
    assert place.names() == sorted(SHARDS)


def test_left_over_connections_fetch_ranges_of_one_file(place: Place, server: FileServer, at_once: list[int]) -> None:
    server.delay_s = 0.05
    result = place.fetch(entry([server.url("good")]), connections=4)
    assert max(at_once) == 4
    assert sorted(ranges(server)) == [(start, min(start + BLOCK, SIZE)) for start in range(0, SIZE, BLOCK)]
    assert result["fetch_bytes"] == server.sent == SIZE
    # the first finds out which file it is; all others are bound to it
    assert [headers.get("If-Range") for _, headers in server.requests] == [None, *['"v1"'] * (len(server.requests) - 1)]
    assert place.bytes == BODY


def test_one_connection_asks_for_long_runs(place: Place, server: FileServer) -> None:
    place.fetch(entry([server.url("good")]), connections=1)
    assert ranges(server) == [(start, min(start + 2 * BLOCK, SIZE)) for start in range(0, SIZE, 2 * BLOCK)]


def test_no_range_begins_too_far_ahead_of_the_digest(
    place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[int, int]] = []
    admit = _download.Incoming.admit

    def spy(self: Any, part: Any, want: Any, stream: Any) -> bool:
        began.append((part.start, self.hasher.position))
        return admit(self, part, want, stream)

    monkeypatch.setattr(_download.Incoming, "admit", spy)
    server.delay_s = 0.03
    place.fetch(entry([server.url("good")]), connections=4, tuning=replace(FAST, window=2 * BLOCK))
    assert max(start for start, _ in began) > 2 * BLOCK
    assert all(start < hashed + 2 * BLOCK for start, hashed in began)


@pytest.mark.parametrize("kind", ["norange", "noetag"])
def test_without_ranges_or_a_strong_etag_one_stream_brings_all(
    place: Place, server: FileServer, at_once: list[int], kind: str
) -> None:
    server.delay_s = 0.01
    result = place.fetch(entry([server.url(kind)]), connections=4)
    assert max(at_once) == 1 and result["failures"] == []
    assert place.bytes == BODY


def test_all_files_have_their_room_before_the_first_request(
    place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []

    def full(fd: int, size: int) -> None:
        reserved.append(size)
        if len(reserved) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_partial, "reserve", full)
    with pytest.raises(FleetError, match=r"s2\.gguf.*no room"):
        place.fetch(*shards(server))
    assert server.requests == [] and place.names() == []


def test_a_failing_file_ends_the_download_and_keeps_what_is_there_of_the_others(
    place: Place, server: FileServer
) -> None:
    server.delay_s, server.times = 0.01, 10**9
    late = entry([server.url("recovers")], "s0.gguf", SHARDS["s0.gguf"])
    good = entry([server.url("good")])
    with pytest.raises(FleetError, match=r"payload p: s0\.gguf could not be fetched from 1 source"):
        place.fetch(late, good, connections=2)
    assert place.names() == [".m.gguf.part", ".m.gguf.part.journal"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("connection", "hasher"))]
    result = place.fetch(good)
    assert 0 < result["fetch_bytes"] < SIZE
    assert place.bytes == BODY


def test_files_keep_their_sources_apart(place: Place, server: FileServer) -> None:
    files = [
        entry([server.url("missing", name), server.url("good", name)], name, data) for name, data in SHARDS.items()
    ]
    result = place.fetch(*files)
    assert sorted(note["file"] for note in result["failures"]) == sorted(SHARDS)
    assert {file["source"] for file in result["files"]} == {server.url("good", name) for name in SHARDS}


# --- trouble that passes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["recovers", "busy", "unavailable"])
def test_trouble_that_passes_is_told_and_got_over(place: Place, server: FileServer, kind: str) -> None:
    server.times = 2
    result = place.fetch(entry([server.url(kind)]), connections=1)
    assert len(result["failures"]) == 2
    assert all(note["url"] == server.url(kind) and "status" in note["error"] for note in result["failures"])
    assert place.bytes == BODY


def test_trouble_that_stays_is_given_up(place: Place, server: FileServer) -> None:
    server.times = 10**9
    with pytest.raises(FleetError, match="status 500") as refusal:
        place.fetch(entry([server.url("recovers")]))
    assert len(refusal.value.facts["failures"]) == len(server.requests) == FAST.attempts + 1
    assert place.names() == []


def test_the_asked_wait_is_kept_and_told(place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: set[tuple[str, str]] = set()
    phase = _download.Incoming.phase

    def spy(self: Any, now: float) -> str:
        notes.add((phase(self, now), self.note))
        return phase(self, now)

    monkeypatch.setattr(_download.Incoming, "phase", spy)
    server.times, server.wait_s = 1, "1"
    begin = time.monotonic()
    place.fetch(entry([server.url("busy")]))
    assert time.monotonic() - begin >= 1
    assert ("waiting", "status 429 Too Many Requests, try again after 1 s, again in 1 s") in notes


def test_a_wait_that_is_too_long_means_the_next_source(place: Place, server: FileServer) -> None:
    server.times, server.wait_s = 1, "3600"
    result = place.fetch(entry([server.url("busy"), server.url("good")]))
    assert "try again after 3600 s" in result["failures"][0]["error"]
    assert result["files"][0]["source"] == server.url("good")


def test_a_busy_source_gets_one_connection(place: Place, server: FileServer, at_once: list[int]) -> None:
    server.times, server.wait_s, server.delay_s = 1, "0", 0.03
    place.fetch(entry([server.url("busy")]), connections=4)
    assert max(at_once) == 1


@pytest.mark.parametrize("at", [BLOCK + 4321, 3 * BLOCK])
def test_answers_that_break_off_are_gone_on_with(place: Place, server: FileServer, at: int) -> None:
    server.cut_at = at
    result = place.fetch(entry([server.url("trickle")]), connections=1, tuning=replace(FAST, segment=64 * BLOCK))
    assert place.bytes == BODY
    assert server.sent == result["fetch_bytes"] == SIZE
    assert len(result["failures"]) == len(server.requests) - 1
    assert all("ended early" in note["error"] for note in result["failures"])


def test_a_stall_is_ended_and_gone_on_with(place: Place, server: FileServer) -> None:
    server.times, server.cut_at = 1, 2 * BLOCK
    whole = replace(FAST, segment=64 * BLOCK)
    result = place.fetch(entry([server.url("stalls")]), tuning=whole, timeout_s=0.3)
    assert ["time allowed" in note["error"] for note in result["failures"]] == [True]
    assert ranges(server) == [(2 * BLOCK, SIZE)]
    assert place.bytes == BODY


def test_a_source_that_brings_nothing_more_is_given_up(place: Place, server: FileServer) -> None:
    server.cut_at = 1000  # less than a block each time
    result = place.fetch(entry([server.url("trickle"), server.url("good")]), tuning=replace(FAST, segment=64 * BLOCK))
    assert [note["url"] for note in result["failures"]] == [server.url("trickle")] * (FAST.attempts + 1)
    assert place.bytes == BODY


def test_a_source_that_breaks_off_at_the_same_place_each_time_is_given_up(place: Place, server: FileServer) -> None:
    """Without a validator each try begins anew: what it brings again is no progress."""
    server.etag, server.cut_at = None, 2 * BLOCK
    result = place.fetch(entry([server.url("trickle"), server.url("good")]), tuning=replace(FAST, segment=64 * BLOCK))
    assert [note["url"] for note in result["failures"]] == [server.url("trickle")] * (FAST.attempts + 1)
    assert place.bytes == BODY


# --- another file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", [1, 4])
def test_a_file_that_changes_on_the_way_is_begun_anew(place: Place, server: FileServer, connections: int) -> None:
    server.delay_s = 0.01
    result = place.fetch(entry([server.url("changes")]), connections=connections)
    assert place.bytes == BODY
    assert all("another file by now" in note["error"] for note in result["failures"])
    assert result["failures"]


def test_a_mirror_goes_on_where_the_first_source_failed(place: Place, server: FileServer) -> None:
    with file_server(BODY) as mirror:
        mirror.etag = '"other naming"'
        server.cut_at = 3 * BLOCK
        whole = replace(FAST, segment=64 * BLOCK, attempts=0)
        result = place.fetch(entry([server.url("trickle"), mirror.url("good")]), tuning=whole)
        assert mirror.sent == SIZE - 3 * BLOCK
        assert result["fetch_bytes"] == SIZE
        assert [note["url"] for note in result["failures"]] == [server.url("trickle")]
    assert place.bytes == BODY


def test_a_mixture_that_is_wrong_is_begun_anew_from_one_source(place: Place, server: FileServer) -> None:
    other = BODY[:4] + os.urandom(SIZE - 4)
    with file_server(BODY) as mirror:
        server.bodies["m.gguf"], server.cut_at = other, 3 * BLOCK
        whole = replace(FAST, segment=64 * BLOCK, attempts=0)
        result = place.fetch(entry([server.url("trickle"), mirror.url("good")]), tuning=whole)
        assert mirror.sent == SIZE - 3 * BLOCK + SIZE
    assert "from 2 sources together" in result["failures"][1]["error"]
    assert "Started over" in result["failures"][1]["error"]
    assert place.bytes == BODY and place.names() == ["m.gguf"]


def test_wrong_bytes_are_kept_once_and_the_next_source_begins_anew(place: Place, server: FileServer) -> None:
    result = place.fetch(entry([server.url("flip"), server.url("good")]))
    bad = hashlib.sha256(BODY[:-1] + bytes([BODY[-1] ^ 1])).hexdigest()
    kept = place.dir / f"m.gguf.rejected-{bad[:12]}"
    (note,) = result["failures"]
    for text in (bad, hashlib.sha256(BODY).hexdigest(), str(kept)):
        assert text in note["error"]
    assert kept.exists() and place.bytes == BODY
    assert result["fetch_bytes"] == 2 * SIZE


@pytest.mark.parametrize("kind", ["html", "longhtml", "lfs", "magic", "wronglength", "forbidden"])
def test_refused_at_once(place: Place, server: FileServer, kind: str) -> None:
    with pytest.raises(FleetError):
        place.fetch(entry([server.url(kind)]))
    assert len(server.requests) == 1 and place.names() == []


# --- hub and token ----------------------------------------------------------------------------------------------------


def test_a_private_hub_file_comes_with_the_token_and_nobody_else_sees_it(
    place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "sesame")
    hub = {"repo": "private/model", "revision": "abc/def", "file": "sub/m.gguf"}
    with file_server(BODY) as store:
        server.elsewhere = store.url("good")
        result = place.fetch(entry([], **hub), hub_url=server.base, token_env="HUB_TOKEN")
        assert {path for path, _ in server.requests} == {"/private/model/resolve/abc%2Fdef/sub/m.gguf"}
        assert all(headers["Authorization"] == "Bearer sesame" for _, headers in server.requests)
        assert store.requests and not any("Authorization" in headers for _, headers in store.requests)
    assert place.bytes == BODY
    assert "sesame" not in repr(result)


def test_a_refused_token_is_in_no_message_and_no_file(
    place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "wrong-token")
    with pytest.raises(FleetError, match="status 401") as refusal:
        place.fetch(entry([server.url("private")]), hub_url=server.base, token_env="HUB_TOKEN")
    assert "wrong-token" not in repr(refusal.value.as_result())
    assert not any(b"wrong-token" in path.read_bytes() for path in place.root.rglob("*") if path.is_file())


def test_no_room_for_a_new_beginning_is_told_and_closes_nothing_twice(
    place: Place, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source without a strong ETag makes the file begin anew; by then the disk is full."""
    reserved: list[int] = []

    def reserve(fd: int, size: int) -> None:
        reserved.append(fd)
        if len(reserved) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(fd, size)

    monkeypatch.setattr(_partial, "reserve", reserve)
    with pytest.raises(FleetError, match="no room for the whole file"):
        place.fetch(entry([server.url("noetag")]))
    assert len(reserved) == 2
    assert place.names() == []


def test_a_closed_file_is_not_closed_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of its descriptors may be other files' by then."""
    place.dir.mkdir()
    (spec,) = PayloadSpec.from_params(
        {"name": "p", "dir": str(place.dir), "files": [entry([])], "mode": "0644", "verify": "stamp", "stamp_dir": "/s"}
    ).files
    file = _incoming.Incoming("p", spec, _partial.Partial(str(place.dir), "m.gguf"), ["u"], FAST, 1, lambda: None)
    file.open()

    def full(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_partial, "reserve", full)
    file.start_over()
    with pytest.raises(FleetError, match="no room"):
        file.next_part(0.0, alone=True)
    others = [os.open(place.root, os.O_RDONLY) for _ in range(4)]
    file.close()
    for other in others:
        os.fstat(other)
        os.close(other)
