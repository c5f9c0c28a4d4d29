# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of sight: solid colours, one image in each slot at once, and two at least."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Reply,
    Target,
    Verdict,
    at_once,
    failed,
    found,
    passed,
    user,
)

__all__ = ["COLOURS", "PIXELS", "image_part", "judge_vision", "look_vision", "png", "probe_vision"]

# Pure ones, which every model names alike.
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 128, 0), "yellow": (255, 255, 0)}
PIXELS = 256  # of a side; models take much smaller images for something else
_QUESTION = "What colour is this image? Answer with one word."


def png(colour: tuple[int, int, int], side: int = PIXELS) -> bytes:
    """A PNG of one colour, ``side`` pixels square: 8 bits a channel, RGB (ISO/IEC 15948)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def image_part(colour: str) -> dict[str, Any]:
    """The content part of a solid image; ``image_url`` is the one form that reaches the model."""
    data = base64.b64encode(png(COLOURS[colour])).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _question(colour: str) -> list[dict[str, Any]]:
    return user([{"type": "text", "text": _QUESTION}, image_part(colour)])


def judge_vision(shown: Sequence[str], replies: Sequence[Reply], bare: Reply) -> Verdict:
    """Each answer names the colour that was shown and no other, and its image cost tokens over ``bare``, without one.

    ``replies`` belong to ``shown`` in order.
    """
    seconds = max(reply.seconds for reply in replies)
    for reply in (bare, *replies):
        if reply.fault:
            return failed("vision", reply.fault, seconds)
    for colour, reply in zip(shown, replies, strict=True):
        named = [name for name in COLOURS if re.search(rf"\b{name}\b", reply.content, re.IGNORECASE)]
        if named != [colour]:
            words = f"showed {colour}, found {reply.content[:80]!r}"
            if not reply.content and reply.finish == "length":
                words = f"thinking budget too small for an image of {colour}; raise larger_max_tokens"
            return failed("vision", words, seconds, **reply.facts)
    told = [reply.usage.get("prompt_tokens") for reply in (bare, *replies)]
    counts = [count for count in told if isinstance(count, int) and not isinstance(count, bool)]
    if len(counts) < len(told):
        return failed("vision", "expected prompt_tokens in usage, by which an image's cost is told", seconds)
    costs = [count - counts[0] for count in counts[1:]]
    if min(costs) <= 0:
        words = f"expected an image to cost prompt tokens, found {min(costs)} more than without"
        return failed("vision", words, seconds)
    many = f"{len(shown)} asked at once, " if len(shown) > 1 else ""
    return passed("vision", f"named {', '.join(shown)} ({many}{costs[0]} tokens each)", seconds, image_tokens=costs[0])


def probe_vision(target: Target) -> Verdict:
    """A solid colour in every slot at once, each to be named; two at least, since one may be named by luck."""
    count = max(target.declared.slots or 1, 2)
    shown = [list(COLOURS)[number % len(COLOURS)] for number in range(count)]
    budget = target.declared.larger_max_tokens
    bare = target.ask(user([{"type": "text", "text": _QUESTION}]), max_tokens=1)
    replies = at_once([partial(target.ask, _question(colour), max_tokens=budget) for colour in shown])
    return judge_vision(shown, replies, bare)


def look_vision(target: Target) -> Verdict:
    """A text-only endpoint must refuse an image in its engine's words, which is its pass; one that sees is found."""
    status, words = target.dialect.no_image
    reply = target.ask(_question("red"), max_tokens=target.declared.max_tokens)
    if reply.status == status and words in reply.fault:
        return passed("vision", f"text only: refuses an image with HTTP {status}", reply.seconds)
    if reply.fault:
        told = reply.fault.partition("found ")[2]
        return failed("vision", f"expected HTTP {status} {words} of a text-only endpoint, found {told}", reply.seconds)
    return found("vision", f"takes an image and answers {reply.content[:40]!r}", reply.seconds, **reply.facts)
