# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What drivers tell of cards (simulated by a folder for sysfs and a script for nvidia-smi), and waiting for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys as python
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _drain
from ansible_collections.dank.llm_fleet.plugins.module_utils._cards import CardState, holders, read_cards
from ansible_collections.dank.llm_fleet.plugins.module_utils._drain import drain, still_held
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

AMD: dict[str, Any] = {"name": "r0", "vendor": "amd", "pci": "0000:03:00.0", "free_mib": 32624}
NVIDIA: dict[str, Any] = {"name": "n0", "vendor": "nvidia", "pci": "0000:0a:00.0", "free_mib": 24123}


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    folder = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:03:00.0"
    folder.mkdir(parents=True)
    (folder / "mem_info_vram_total").write_text(f"{32624 * 2**20}\n")
    (folder / "mem_info_vram_used").write_text(f"{300 * 2**20}\n")
    return tmp_path / "sys"


def use(sys: Path, mib: int) -> None:
    (sys / "bus" / "pci" / "devices" / "0000:03:00.0" / "mem_info_vram_used").write_text(f"{mib * 2**20}\n")


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(
        f"""#!/bin/sh
case $1 in
--query-gpu=*) echo '00000000:0A:00.0, GPU-1, 24576, 23900' ;;
--query-compute-apps=*) echo {os.getpid()}; echo '[Insufficient Permissions]' ;;
esac
"""
    )
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_memory_by_pci_address_and_uuid(sys: Path, smi: None) -> None:
    by_uuid = {**NVIDIA, "name": "n1", "pci": "unknown", "uuid": "GPU-1"}
    assert read_cards([AMD, NVIDIA, by_uuid], sys=str(sys)) == {
        "r0": CardState("r0", 32624.0, 32324.0),
        "n0": CardState("n0", 24576.0, 23900.0),
        "n1": CardState("n1", 24576.0, 23900.0),
    }


def test_a_card_that_is_not_there(sys: Path, smi: None) -> None:
    with pytest.raises(FleetError, match=r"card r0 is not there; expected amd card 0000:07:00\.0; found no mem_info"):
        read_cards([{**AMD, "pci": "0000:07:00.0"}], sys=str(sys))
    with pytest.raises(FleetError, match=r"card n0 is not there; .*found nvidia-smi lists 0000:0a:00\.0 GPU-1"):
        read_cards([{**NVIDIA, "pci": "0000:0b:00.0"}])


def test_who_holds_a_card(sys: Path, smi: None) -> None:
    assert holders([AMD], sys=str(sys)) == []
    (sys / "class" / "kfd" / "kfd" / "proc" / "77").mkdir(parents=True)
    assert holders([AMD], sys=str(sys)) == [77]
    assert holders([NVIDIA], sys=str(sys)) == [os.getpid()]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_nothing_is_held(sys: Path) -> None:
    assert still_held([2**22 + 1], free_port(), [AMD], sys=str(sys)) == []
    assert drain("chat", [], free_port(), [AMD], deadline_s=0, say=lambda *_: None, sys=str(sys)) < 1


def test_everything_is_held_and_each_is_named(sys: Path) -> None:
    use(sys, 32000)
    (sys / "class" / "kfd" / "kfd" / "proc" / str(os.getpid())).mkdir(parents=True)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = still_held([os.getpid()], port, [AMD], sys=str(sys))
    assert len(found) == 3
    assert found[0].startswith(f"pid {os.getpid()} of ") and found[0].endswith("has not ended")
    assert found[1].startswith(f"port {port} is held by pid {os.getpid()} of ")
    assert found[2].startswith(f"card r0 has 624 of 32,624 MiB free, held by pid {os.getpid()} of ")


def test_what_a_driver_keeps_for_itself_is_no_holder(sys: Path) -> None:
    use(sys, int(_drain.SLACK_MIB))
    assert still_held([], free_port(), [AMD], sys=str(sys)) == []
    use(sys, int(_drain.SLACK_MIB) + 1)
    assert "held by nobody that the driver names" in still_held([], free_port(), [AMD], sys=str(sys))[0]


def test_a_card_without_an_address_is_passed_over() -> None:
    assert still_held([], free_port(), [{**AMD, "pci": "unknown"}, {"name": "x", "vendor": "amd"}]) == []


def test_it_waits_for_the_old_process_and_not_for_ever() -> None:
    told: list[str] = []
    with subprocess.Popen([python.executable, "-c", "import time; time.sleep(0.5)"]) as old:
        reaper = threading.Thread(target=old.wait)
        reaper.start()
        waited = drain("chat", [old.pid], free_port(), [], deadline_s=20, say=lambda step, _s: told.append(step))
        reaper.join()
    assert 0.2 < waited < 15
    assert told[0].startswith(f"drain: pid {old.pid} of ")
    started = time.monotonic()
    with pytest.raises(FleetError, match=r"what endpoint chat needs is not free; .*within 0\.3 s; found pid") as caught:
        drain("chat", [os.getpid()], free_port(), [], deadline_s=0.3, say=lambda *_: None)
    assert caught.value.facts["gate"] == "drain"
    assert time.monotonic() - started < 5
