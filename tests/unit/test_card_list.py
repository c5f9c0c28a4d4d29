# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host, and the gate before a deploy: sysfs by a folder, nvidia-smi by a script, as no card is near."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._card_list import (
    FoundCard,
    Holder,
    as_dict,
    gfx_name,
    list_cards,
    parse_properties,
    parse_smi,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_cards import gate_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import GATES
from test_pcie import BOTH, ENDPOINT, ROOT, UP, config

MIB = 1 << 20


class Box:
    """A folder that looks like /sys and one like /dev, of a host with what is plugged in."""

    def __init__(self, root: Path) -> None:
        self.root, self.sys, self.dev = root, root / "sys", root / "dev"
        (self.sys / "bus/pci/devices").mkdir(parents=True)
        self.dev.mkdir()
        self.nodes = 0
        self.node()  # the CPU

    def device(self, way: str, vendor: str, kind: str, driver: str, space: bytes, **files: str) -> Path:
        folder = self.sys / "devices/pci0000:00" / way
        folder.mkdir(parents=True)
        for name, text in {"vendor": vendor, "class": kind, **files}.items():
            (folder / name).write_text(text + "\n")
        (folder / "config").write_bytes(space)
        if driver:
            (self.sys / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(self.sys / "drivers" / driver)
        (self.sys / "bus/pci/devices" / folder.name).symlink_to(folder)
        return folder

    def port(self, way: str, kind: int, able: int) -> None:
        self.device(way, "0x1022", "0x060400", "pcieport", config(kind, able))

    def node(self, **properties: int) -> None:
        folder = self.sys / "class/kfd/kfd/topology/nodes" / str(self.nodes)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{properties.get('gpu', 0)}\n")
        properties = {"cpu_cores_count": 0 if properties else 16, "simd_count": 0, **properties}
        (folder / "properties").write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
        self.nodes += 1

    def amd(self, way: str, version: int, gpu: int, total: int, used: int, **files: str) -> None:
        space = config(ENDPOINT)
        sizes = {"mem_info_vram_total": str(total * MIB), "mem_info_vram_used": str(used * MIB)}
        folder = self.device(way, "0x1002", "0x030000", "amdgpu", space, **sizes, **files)
        bus = int(folder.name.split(":")[1], 16)
        self.node(simd_count=128, gfx_target_version=version, location_id=bus << 8, domain=0, gpu=gpu)

    def cards(self) -> list[FoundCard]:
        return list_cards(sys=str(self.sys), dev=str(self.dev))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """The owner's first machine: two cards, one behind a chipset without atomics, and the CPU's own GPU."""
    box = Box(tmp_path)
    box.port("0000:00:01.1", ROOT, BOTH)
    box.amd("0000:00:01.1/0000:03:00.0", 120001, 1001, 32624, 300, unique_id="c0ffee", product_name="AI PRO R9700")
    box.port("0000:00:02.1", ROOT, BOTH)
    box.port("0000:00:02.1/0000:04:00.0", UP, 0)
    box.amd("0000:00:02.1/0000:04:00.0/0000:07:00.0", 120001, 1002, 32624, 20000)
    box.port("0000:00:08.1", ROOT, BOTH)
    box.amd("0000:00:08.1/0000:0e:00.0", 100306, 1003, 512, 20)
    box.device("0000:00:08.1/0000:0e:00.1", "0x1002", "0x040300", "snd_hda_intel", config(ENDPOINT))  # its sound
    return box


SMI = """#!/bin/sh
case $1 in
--query-gpu=index,pci.bus_id,uuid,name,compute_cap,memory.total,memory.reserved,memory.free)
  echo '0, 00000000:0A:00.0, GPU-5f, NVIDIA GeForce RTX 3090, 8.6, 24576, 453, 23000' ;;
--query-compute-apps=gpu_uuid,pid,used_gpu_memory)
  echo "GPU-5f, $HOLDER, 1123"; echo 'GPU-5f, [Insufficient Permissions], [N/A]' ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """The owner's second machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOLDER", str(os.getpid()))
    box = Box(tmp_path)
    (box.dev / "nvidiactl").write_text("")
    box.port("0000:00:01.1", ROOT, BOTH)
    box.device("0000:00:01.1/0000:0a:00.0", "0x10de", "0x030000", "nvidia", config(ENDPOINT))
    return box


def test_amd_cards(box: Box) -> None:
    first, second, third = box.cards()
    assert first == FoundCard(
        "0000:03:00.0", "amd", "AI PRO R9700", "gfx1201", 0, "GPU-c0ffee", False, "amdgpu", 32624.0, 32624.0, 32324.0,
        True, "0000:03:00.0 reaches root port 0000:00:01.1",
    )  # fmt: skip
    assert (second.pci, second.index, second.atomics) == ("0000:07:00.0", 1, False)
    assert second.atomics_why == "bridge 0000:04:00.0 routes no AtomicOps"
    assert (third.pci, third.arch, third.index, third.integrated) == ("0000:0e:00.0", "gfx1036", 2, True)


def test_who_holds_an_amd_card(box: Box) -> None:
    proc = box.sys / "class/kfd/kfd/proc"
    for pid, gpu, used in ((os.getpid(), 1002, 19 * MIB), (os.getpid(), 1001, 0), (4_000_000, 1002, MIB)):
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (proc / str(pid) / f"vram_{gpu}").write_text(f"{used}\n")
    first, second, _third = box.cards()
    assert first.holders == ()
    assert [(holder.pid, holder.mib) for holder in second.holders] == [(os.getpid(), 19.0), (4_000_000, 1.0)]
    assert "python" in second.holders[0].command and second.holders[1].command == ""
    assert as_dict(second)["holders"][1] == {"pid": 4_000_000, "mib": 1.0, "unit": "", "command": ""}


def test_an_amd_card_that_the_compute_driver_does_not_list(box: Box) -> None:
    (box.sys / "class/kfd/kfd/topology/nodes/1/properties").write_text("simd_count 0\n")
    first, second, _ = box.cards()
    assert "KFD" in first.problem and first.total_mib == 32624.0 and first.index is None
    assert (second.index, second.problem) == (0, "")


def test_a_card_of_another_driver(box: Box) -> None:
    link = box.sys / "bus/pci/devices/0000:03:00.0/driver"
    link.unlink()
    assert "driver none instead of amdgpu" in box.cards()[0].problem
    (box.sys / "drivers/vfio-pci").mkdir()
    link.symlink_to(box.sys / "drivers/vfio-pci")
    assert "driver vfio-pci instead of amdgpu" in box.cards()[0].problem


def test_nvidia_card(smi: Box) -> None:
    (card,) = smi.cards()
    assert card == FoundCard(
        "0000:0a:00.0", "nvidia", "NVIDIA GeForce RTX 3090", "sm_86", 0, "GPU-5f", False, "nvidia", 24576.0, 24123.0,
        23000.0, True, "0000:0a:00.0 reaches root port 0000:00:01.1", card.holders,
    )  # fmt: skip
    assert [(holder.pid, holder.mib) for holder in card.holders] == [(os.getpid(), 1123.0)]


def test_an_nvidia_card_without_its_node_gets_the_advice(smi: Box) -> None:
    (smi.dev / "nvidiactl").unlink()
    (card,) = smi.cards()
    assert "nvidia-modprobe" in card.problem and card.free_mib is None


def test_an_nvidia_card_that_the_tool_does_not_list(smi: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.device("0000:00:01.1/0000:0b:00.0", "0x10de", "0x030200", "nvidia", config(ENDPOINT))
    assert [card.problem for card in smi.cards()] == ["", "nvidia-smi does not list it; see dmesg and lspci -k"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert {card.problem for card in smi.cards()} == {"nvidia-smi is missing: install the driver's tools"}


def test_a_host_without_a_card(tmp_path: Path) -> None:
    assert Box(tmp_path).cards() == [] and list_cards(sys=str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (120001, "gfx1201"),
        (100306, "gfx1036"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (110000, "gfx1100"),
        (90402, "gfx942"),
    ],
)
def test_the_name_of_an_architecture(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_properties_with_lines_that_are_none() -> None:
    assert parse_properties("simd_count 128\n\nname x\na b c\nlocation_id 768\n") == {
        "simd_count": 128,
        "location_id": 768,
    }


def test_rows_of_another_form() -> None:
    with pytest.raises(FleetError, match="nvidia-smi; expected rows of index"):
        parse_smi("0, 00000000:0A:00.0\n")
    (row,) = parse_smi("0, 00000000:0A:00.0, GPU-5f, X, 8.6, [N/A], [N/A], [N/A]\n\n")
    assert row["memory.total"] == "[N/A]"


# --- the gate

AMD = FoundCard("0000:03:00.0", "amd", "", "gfx1201", 0, "GPU-1", total_mib=32624.0, atomics=True)
SECOND = replace(
    AMD, pci="0000:07:00.0", index=1, uuid="GPU-2", atomics=False, atomics_why="bridge 0000:04:00.0 routes none"
)
INSIDE = replace(AMD, pci="0000:0e:00.0", arch="gfx1036", index=2, uuid="", integrated=True)
SEEN = [AMD, SECOND, INSIDE]
DECLARED: list[dict[str, Any]] = [
    {"name": "r0", "vendor": "amd", "arch": "gfx1201", "index": 0, "pci": "0000:03:00.0"},
    {"name": "r1", "vendor": "amd", "arch": "gfx1201", "index": 1, "pci": "0000:07:00.0"},
]
ENV = {"HIP_VISIBLE_DEVICES": "0,1", "SPLIT_MODE": "layer"}


def test_cards_as_declared() -> None:
    mine = Holder(7, 20000.0, "chat.service", "llama-server")
    gate_cards(DECLARED, ENV, [replace(AMD, holders=(mine,)), SECOND, INSIDE], {"chat.service"})
    gate_cards([{"name": "n", "vendor": "nvidia", "pci": "unknown"}], {}, [], set())
    gate_cards(DECLARED[:1], {"HIP_VISIBLE_DEVICES": "0", "SPLIT_MODE": "tensor"}, SEEN, set())


@pytest.mark.parametrize(
    ("cards", "env", "seen", "words"),
    [
        (DECLARED, ENV, [AMD], ["card r1 is not there", "0000:07:00.0", "0000:03:00.0 gfx1201 index 0"]),
        (DECLARED, ENV, [], ["card r0 is not there", "no GPU"]),
        (DECLARED, ENV, [AMD, replace(SECOND, problem="no driver")], ["r1", "cannot be used", "no driver"]),
        (DECLARED, ENV, [replace(AMD, arch="gfx1200"), SECOND], ["r0", "gfx1201", "gfx1200", "architecture"]),
        (DECLARED, ENV, [replace(AMD, index=1), replace(SECOND, index=0)], ["r0", "index 0", "index 1"]),
        (DECLARED, {}, SEEN, ["inside the CPU", "HIP_VISIBLE_DEVICES=0,1", "no HIP_VISIBLE_DEVICES"]),
        (DECLARED, {"HIP_VISIBLE_DEVICES": "0,1,2"}, SEEN, ["0000:0e:00.0 (gfx1036)", "HIP_VISIBLE_DEVICES=0,1,2"]),
        (DECLARED, {**ENV, "SPLIT_MODE": "tensor"}, SEEN, ["card r1", "no PCIe atomics", "0000:04:00.0 routes none"]),
        (
            DECLARED,
            ENV,
            [AMD, replace(SECOND, holders=(Holder(9, 512.0, "other.service", "blender"),)), INSIDE],
            ["somebody else", "card r1: 512 MiB by pid 9 of other.service: blender", "chat.service"],
        ),
        (
            DECLARED,
            ENV,
            [replace(AMD, holders=(Holder(9, None, "", "x"),)), SECOND, INSIDE],
            ["card r0: pid 9 of no unit: x"],
        ),
    ],
)  # fmt: skip
def test_cards_that_are_not(
    cards: list[dict[str, Any]], env: dict[str, str], seen: list[FoundCard], words: list[str]
) -> None:
    with pytest.raises(FleetError) as caught:
        gate_cards(cards, env, seen, {"chat.service"})
    for word in words:
        assert word in caught.value.message


def test_the_gate_is_one() -> None:
    assert [gate.name for gate in GATES].index("cards") < [gate.name for gate in GATES].index("kinship")


def test_the_module_tells_of_this_very_host() -> None:
    """Whatever GPU this machine has, it is listed without a fault."""
    for card in list_cards():
        assert card.vendor in ("amd", "nvidia") and (card.problem or card.total_mib)
