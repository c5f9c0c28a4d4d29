# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AtomicOps on the way from a card to the root port, from configuration spaces written as specified."""

from __future__ import annotations

import struct

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._pcie import Express, atomics, express
from hypothesis import given
from hypothesis import strategies as st

ENDPOINT, ROOT, UP, DOWN = 0, 4, 5, 6
ROUTES, BOTH = 1 << 6, 3 << 7


def config(kind: int, able: int = 0, control: int = 0, *, before: bytes = b"\x01", at: int = 0x58) -> bytes:
    """256 bytes: a capability list with ``before`` (ids) first, PCI Express at ``at``."""
    space = bytearray(320)
    space[0x06] = 0x10
    place = 0x34
    for number, one in enumerate(before):
        where = 0x40 + 8 * number
        space[place], space[where], place = where, one, where + 1
    space[place], space[at] = at, 0x10
    struct.pack_into("<H", space, at + 2, 2 | kind << 4)
    struct.pack_into("<I", space, at + 0x24, able)
    struct.pack_into("<H", space, at + 0x28, control)
    return bytes(space[:256])


CARD = ("0000:07:00.0", config(ENDPOINT))
# The address of each device, as lspci -t shows a card behind a chipset.
ROOT_PORT, CHIPSET_UP, CHIPSET_DOWN = "0000:00:02.1", "0000:04:00.0", "0000:05:08.0"


def way(*ports: tuple[str, bytes]) -> list[tuple[str, bytes]]:
    return [*ports, CARD]


GOOD = way((ROOT_PORT, config(ROOT, BOTH)), (CHIPSET_UP, config(UP, ROUTES)), (CHIPSET_DOWN, config(DOWN, ROUTES)))


@pytest.mark.parametrize(
    ("devices", "ok", "why"),
    [
        (way((ROOT_PORT, config(ROOT, BOTH))), True, "0000:07:00.0 reaches root port 0000:00:02.1"),
        (GOOD, True, "reaches root port 0000:00:02.1"),
        ([GOOD[0], (CHIPSET_UP, config(UP)), *GOOD[2:]], False, f"bridge {CHIPSET_UP} routes no AtomicOps"),
        ([*GOOD[:2], (CHIPSET_DOWN, config(DOWN)), CARD], False, f"bridge {CHIPSET_DOWN} routes no AtomicOps"),
        ([GOOD[0], (CHIPSET_UP, config(UP, ROUTES, 1 << 7)), *GOOD[2:]], False, f"bridge {CHIPSET_UP} blocks"),
        (way((ROOT_PORT, config(ROOT, 1 << 7))), False, f"root port {ROOT_PORT} completes no"),
        (way((ROOT_PORT, config(ROOT, BOTH)[:64])), None, f"of {ROOT_PORT} cannot be read"),
        ([CARD], None, "behind no root port"),
        ([], None, "behind no root port"),
    ],
)
def test_the_way_to_the_root(devices: list[tuple[str, bytes]], ok: bool | None, why: str) -> None:
    found = atomics(devices)
    assert found.ok is ok and why in found.why


def test_the_capability_is_found_behind_others() -> None:
    assert express(config(UP, ROUTES | BOTH, 1 << 7, before=b"\x01\x05\x0d")) == Express(UP, True, True, True)


@pytest.mark.parametrize(
    "space",
    [
        b"",
        bytes(64),  # no list
        config(ENDPOINT)[:64],
        config(ENDPOINT)[: 0x58 + 0x29],  # cut within it
        config(ENDPOINT, at=0xF8),  # it would stand beyond the end
    ],
)
def test_without_it(space: bytes) -> None:
    assert express(space) is None


def test_a_list_in_a_circle_ends() -> None:
    space = bytearray(256)
    space[0x06], space[0x34], space[0x40], space[0x41] = 0x10, 0x40, 0x01, 0x40
    assert express(bytes(space)) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_a_fault(space: bytes) -> None:
    found = express(space)
    assert found is None or 0 <= found.kind <= 15
