# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The digest of a file that others still write to."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _hasher
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._hasher import Hasher
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import BLOCK
from hypothesis import given, settings
from hypothesis import strategies as st


class Target:
    """A file with a hasher on it."""

    def __init__(self, path: Path, size: int, start: int = 0, **options: int) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.data = os.urandom(size)
        os.ftruncate(self.fd, size)
        os.pwrite(self.fd, self.data[:start], 0)
        self.ended = threading.Event()
        self.hasher = Hasher(self.fd, size, start, self.ended.set, **options)

    def write(self, position: int, end: int, frontier: int, *, by_hand: bool = True) -> bool:
        """Write and tell; whether the hasher kept the buffer."""
        count = end - position
        buffer = memoryview(bytearray(BLOCK))
        buffer[:count] = self.data[position:end]
        os.pwrite(self.fd, buffer[:count], position)
        back = self.hasher.written(buffer if by_hand else None, position, count, frontier)
        return back is not buffer

    def digest(self) -> str | None:
        assert self.ended.wait(10)
        return self.hasher.digest

    @property
    def right(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


Make = Callable[..., Target]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Make]:
    made = []

    def make(size: int, start: int = 0, **options: int) -> Target:
        made.append(Target(tmp_path / f"f{len(made)}", size, start, **options))
        return made[-1]

    yield make
    for one in made:
        one.hasher.cancel()
        assert not one.hasher._thread.is_alive()
        os.close(one.fd)


@settings(max_examples=20, deadline=None)
@given(blocks=st.integers(1, 6), rest=st.integers(0, BLOCK - 1), start=st.integers(0, 2 * BLOCK), seed=st.randoms())
def test_blocks_in_any_order_give_the_digest_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, blocks: int, rest: int, start: int, seed: object
) -> None:
    size = start + blocks * BLOCK + rest
    file = Target(tmp_path_factory.mktemp("h") / "f", size, start)
    try:
        edges = [start, *range((start // BLOCK + 1) * BLOCK, size, BLOCK), size]
        spans = [(one, other) for one, other in itertools.pairwise(edges) if other > one]
        seed.shuffle(spans)  # type: ignore[attr-defined]
        there = set()
        for one, other in spans:
            there.add(one)
            missing = [position for position, _ in sorted(spans) if position not in there]
            file.write(one, other, missing[0] if missing else size)
        assert file.digest() == file.right
    finally:
        file.hasher.cancel()
        os.close(file.fd)


def test_what_comes_in_order_is_hashed_from_the_writers_hand(target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    file = target(3 * BLOCK + 5)

    def never(*_: object) -> int:
        raise AssertionError("read back")

    monkeypatch.setattr(_hasher.os, "preadv", never)
    for position in range(0, file.hasher.size, BLOCK):
        end = min(position + BLOCK, file.hasher.size)
        assert file.write(position, end, end)
    assert file.digest() == file.right


def test_what_comes_out_of_order_is_read_from_the_file(target: Make) -> None:
    file = target(2 * BLOCK)
    assert not file.write(BLOCK, 2 * BLOCK, 0)
    assert file.write(0, BLOCK, 2 * BLOCK)
    assert file.digest() == file.right


def test_a_writer_waits_for_a_digest_that_is_too_far_behind(target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    file = target(8 * BLOCK, max_lag=2 * BLOCK)
    gate, reads = threading.Event(), os.preadv

    def slow(*given: object) -> int:
        gate.wait(10)
        return reads(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(_hasher.os, "preadv", slow)
    done: list[int] = []

    def writer() -> None:
        for position in range(0, 8 * BLOCK, BLOCK):
            file.write(position, position + BLOCK, position + BLOCK, by_hand=False)
            done.append(position)

    thread = threading.Thread(target=writer)
    thread.start()
    time.sleep(0.2)
    assert len(done) == 2
    gate.set()
    thread.join(10)
    assert len(done) == 8
    assert file.digest() == file.right


def test_a_cut_file_is_the_writers_fault(target: Make) -> None:
    file = target(2 * BLOCK)
    os.ftruncate(file.fd, 10)
    file.hasher.written(None, 0, BLOCK, BLOCK)
    assert file.digest() is None
    assert isinstance(file.hasher.fault, FleetError)
    with pytest.raises(FleetError, match="was cut"):
        file.hasher.written(None, BLOCK, BLOCK, 2 * BLOCK)


def test_a_cancelled_hasher_frees_its_writer_and_gives_no_digest(target: Make) -> None:
    file = target(20 * BLOCK, max_lag=BLOCK)
    thread = threading.Thread(target=lambda: file.hasher.written(None, 0, BLOCK, 0))
    thread.start()
    file.hasher.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert file.digest() is None


def test_whether_the_digest_keeps_up(target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    file = target(4 * BLOCK)
    assert file.hasher.keeps_up() is None  # nothing has come yet
    file.write(0, BLOCK, BLOCK)
    now = time.monotonic()
    monkeypatch.setattr(_hasher.time, "monotonic", lambda: now + 60)
    assert file.hasher.keeps_up() is True
    file.hasher._busy_s = 40.0
    assert file.hasher.keeps_up() is False
