# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server-sent events (WHATWG HTML, section 9.2.6), fed in whatever pieces the network makes."""

from __future__ import annotations

__all__ = ["SseParser"]


class SseParser:
    """Collects bytes and tells the data of each event that is whole; an event cut off by the end is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that this piece completes."""
        if self._after_cr and piece:  # a CRLF may be cut in two
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or piece.endswith(b"\r")
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append("\n".join(self._data))
                self._data = []
                continue
            name, _colon, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        return events
