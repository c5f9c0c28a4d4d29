# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of a partial file: what it claims, what it hands out, and what it refuses to believe."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _partial
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._partial import Partial, reserve
from ansible_collections.dank.llm_fleet.plugins.module_utils._segments import Journal, read_journal
from hypothesis import given
from hypothesis import strategies as st

SIZE, SEGMENT = 95, 10


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def journal(path: str, **sources: str | None) -> Journal:
    made = Journal(path, SIZE, "ab", SEGMENT)
    for source, validator in (sources or {"u": '"v"'}).items():
        made.name_source(source, validator)
    return made


def test_what_is_written_is_read_again(path: str) -> None:
    made = journal(path)
    assert made.wrote(0, 7) == 7
    assert made.wrote(7, 3) == 10
    assert made.wrote(90, 5) == 10
    made.close()
    found = read_journal(path, SIZE, "ab")
    assert found is not None
    assert (found.counts, found.bytes, found.sources) == ([10, 0, 0, 0, 0, 0, 0, 0, 0, 5], 15, {"u": '"v"'})
    again = Journal(path, SIZE, "ab", 999, found)
    assert (again.frontier, again.bytes, again.segment) == (10, 15, SEGMENT)
    assert again.wrote(10, 1) == 11


@pytest.mark.parametrize(
    ("size", "digest", "sources"),
    [(96, "ab", {"u": '"v"'}), (SIZE, "cd", {"u": '"v"'}), (SIZE, "ab", {"u": None}), (SIZE, "ab", {"u": 'W/"v"'})],
)
def test_another_file_is_not_continued(path: str, size: int, digest: str, sources: dict[str, str | None]) -> None:
    journal(path, **sources).close()
    assert read_journal(path, size, digest) is None


def test_no_source_no_continuing(path: str) -> None:
    Journal(path, SIZE, "ab", SEGMENT).close()
    assert read_journal(path, SIZE, "ab") is None


@given(st.integers(0, 4096 + 80))
def test_a_torn_journal_is_none(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("j") / "journal"
    journal(str(path)).close()
    data = path.read_bytes()
    assert len(data) == 4096 + 80
    path.write_bytes(data[:length])
    assert (read_journal(str(path), SIZE, "ab") is None) is (length < len(data))


@pytest.mark.parametrize(
    "head",
    [b"", b"[]", b"{", b"null", json.dumps({"bytes": SIZE, "digest": "ab", "segment": 0, "sources": {}}).encode()],
)
def test_a_damaged_head_is_no_journal(path: str, head: bytes) -> None:
    Path(path).write_bytes(head.ljust(4096) + bytes(80))
    assert read_journal(path, SIZE, "ab") is None


def test_a_counter_beyond_its_segment_is_no_journal(path: str) -> None:
    journal(path).close()
    with open(path, "r+b") as handle:
        handle.seek(4096)
        handle.write((11).to_bytes(8, "little"))
    assert read_journal(path, SIZE, "ab") is None


def test_claims_are_in_order_and_never_of_the_same_bytes(path: str) -> None:
    made = journal(path)
    assert made.claim(SIZE, 1) == (0, 10)
    assert made.claim(SIZE, 3) == (10, 40)
    made.wrote(0, 4)
    made.release(0, 10)
    assert made.claim(SIZE, 5) == (4, 10)
    assert made.claim(40, 1) is None
    assert made.claim(41, 99) == (40, 95)
    assert made.claim(SIZE, 1) is None


def test_a_claim_does_not_reach_over_what_is_there(path: str) -> None:
    made = journal(path)
    made.wrote(20, 5)
    assert made.claim(SIZE, 9) == (0, 20)
    assert made.claim(SIZE, 9) == (25, 95)


def test_the_room_ends_with_the_segment(path: str) -> None:
    made = journal(path)
    assert [made.room(position) for position in (0, 9, 10, 93)] == [10, 1, 10, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), max_size=40))
def test_the_frontier_is_the_first_byte_that_lacks(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]]
) -> None:
    made = journal(str(tmp_path_factory.mktemp("j") / "journal"))
    there = [0] * 10
    for index, count in writes:
        count = min(count, made.room(index * SEGMENT + there[index]) if there[index] < SEGMENT else 0)
        if not count or index * SEGMENT + there[index] >= SIZE:
            continue
        frontier = made.wrote(index * SEGMENT + there[index], count)
        there[index] += count
        expected = 0
        for full in there:
            expected += full
            if full < SEGMENT:
                break
        assert frontier == made.frontier == expected
    assert made.bytes == sum(there)


def test_the_order_of_writes_lets_no_kill_claim_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new beginning first takes away what the old journal claims."""
    partial = Partial(str(tmp_path), "f")
    fd, made = partial.open(SIZE, "ab", SEGMENT)
    made.name_source("u", '"v"')
    made.wrote(0, 10)
    made.close()
    os.close(fd)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_partial, "reserve", killed)
    with pytest.raises(KeyboardInterrupt):
        partial.open(SIZE, "cd", SEGMENT)
    assert partial.progressed(SIZE, "ab") is None


def test_a_partial_file_has_its_room_at_once(tmp_path: Path) -> None:
    fd, made = Partial(str(tmp_path), "f").open(1 << 20, "ab", 1 << 20)
    made.close()
    assert os.fstat(fd).st_size == 1 << 20
    os.close(fd)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_partial, "reserve", full)
    with pytest.raises(FleetError, match="no room for the whole file"):
        Partial(str(tmp_path), "f").open(SIZE, "ab", SEGMENT)
    assert os.listdir(tmp_path) == []


def test_the_kernels_refusal_is_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as handle, pytest.raises(OSError):
        reserve(handle.fileno(), 1 << 62)


def test_reserving_does_not_depend_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        @staticmethod
        def fallocate(*_: object) -> int:
            _partial.ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr(_partial.ctypes, "CDLL", lambda *_, **__: Libc)
    with open(tmp_path / "f", "wb") as handle:
        reserve(handle.fileno(), 1 << 40)
        assert os.fstat(handle.fileno()).st_size == 1 << 40
