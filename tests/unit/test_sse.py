# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server-sent events, cut wherever the network likes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._sse import SseParser
from hypothesis import example, given
from hypothesis import strategies as st


def events(*pieces: bytes) -> list[str]:
    parser = SseParser()
    return [data for piece in pieces for data in parser.feed(piece)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": a comment\n\ndata: a\n\n", ["a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"\n\n\n", []),
        (b"", []),
        (b"data: [DONE]\n\n", ["[DONE]"]),
    ],
)
def test_events(text: bytes, told: list[str]) -> None:
    assert events(text) == told


_LINES = st.sampled_from(["data: ü", "data: {}", "data:", ": ping", "event: x", "", "", "data: [DONE]"])


@given(st.lists(_LINES, max_size=12), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200), max_size=8))
@example(["data: a", "", "data: b", ""], "\r\n", [8, 9, 10, 11])
@example(["data: ü", ""], "\n", [7])
def test_cuts_change_nothing(lines: list[str], end: str, cuts: list[int]) -> None:
    text = "".join(line + end for line in lines).encode()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    assert events(*pieces) == events(text)
    assert events(*(bytes([byte]) for byte in text)) == events(text)


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    assert all(isinstance(data, str) for data in events(*pieces))
