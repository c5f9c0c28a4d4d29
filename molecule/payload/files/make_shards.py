# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a split GGUF into the folder argv[1]: three files, a tensor of 48 MiB in each. The same bytes every time."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

COUNT, FLOATS = 3, 12 << 20
U16, I32, STRING = 2, 5, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def shard(index: int) -> bytes:
    """Header and data of one file."""
    pairs = [
        pair("general.architecture", STRING, text("llama")),
        pair("split.no", U16, struct.pack("<H", index)),
        pair("split.count", U16, struct.pack("<H", COUNT)),
        pair("split.tensors.count", I32, struct.pack("<i", COUNT)),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs)
    head += text(f"blk.{index}.ffn_up.weight") + struct.pack("<IQIQ", 1, FLOATS, 0, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<If", index, 1.5) * (FLOATS // 2)


for number in range(COUNT):
    Path(sys.argv[1], f"toy-{number + 1:05d}-of-{COUNT:05d}.gguf").write_bytes(shard(number))
