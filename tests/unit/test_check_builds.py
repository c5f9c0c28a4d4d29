# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks with real toolchains never tell a pass of what was not seen; the toolchains themselves are not here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from toybundle import EXPECT, needs_compiler, toy_bundle

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one() -> Iterator[Any]:
    before = list(sys.path)
    yield loaded("check_build_one")
    sys.path[:] = before


@pytest.fixture(scope="module")
def builds(one: Any) -> Any:
    return loaded("check_builds")


CUOBJDUMP = """\
Member bin/libggml-cuda.so:
ELF file    1: libggml-cuda.1.sm_86.cubin
ELF file    2: libggml-cuda.2.sm_120a.cubin
PTX file    1: libggml-cuda.1.sm_86.ptx
"""
OBJDUMP = """\
libggml-hip.so:\tfile format elf64-x86-64

Extracting offload bundle: libggml-hip.so.0.host-x86_64-unknown-linux-gnu-
Extracting offload bundle: libggml-hip.so.0.hipv4-amdgcn-amd-amdhsa--gfx1201
"""


def test_listings_of_the_vendors_are_read(one: Any) -> None:
    assert one.parse_listing(CUOBJDUMP) == {"sm_86", "sm_120", "compute_86"}
    assert one.parse_listing(OBJDUMP) == {"gfx1201"}
    assert one.parse_listing("cuobjdump info    : no device code\n") == set()


def test_what_raises_is_red_and_never_a_pass(one: Any) -> None:
    checks = one.Checks()

    def refused() -> str:
        raise FleetError("a thing", expected=1, found=2)

    assert checks.ask("sound", lambda: "seen")
    assert not checks.ask("refused", refused)
    assert not checks.ask("tool", lambda: str(subprocess.run(["false"], check=True)))
    assert [(row.check, row.result) for row in checks.rows] == [("sound", "pass"), ("refused", "RED"), ("tool", "RED")]
    assert "expected 1; found 2" in checks.rows[1].found


@needs_compiler
def test_a_break_that_no_proof_refuses_is_red(one: Any, tmp_path: Path) -> None:
    tree = toy_bundle(tmp_path / "tree", tmp_path / "work")
    built = one.Built(str(tmp_path), str(tree), str(tree / "bin" / "llama-server"), ("lib/libtoyblas.so.4",), "x", ())
    breaks = one.Breaks(built, SimpleNamespace(expect=EXPECT))
    with pytest.raises(FleetError, match=r"the proof device code of a broken tree.*red, with rocblas"):
        breaks.refused(breaks.tree(), "device code", "rocblas")
    (Path(breaks.tree()) / "lib" / "libtoyblas.so.4").unlink()
    with pytest.raises(FleetError, match="red, with another fact"):
        breaks.refused(breaks.work, "closure", "another fact")
    for asked in (
        breaks.lost_library,
        breaks.other_value,
        lambda: breaks.lost_folder("rocblas/library"),
        lambda: breaks.flattened("hipblaslt/library/gfx1201"),
        lambda: breaks.sister_files("rocblas/library"),
    ):
        assert asked().startswith("refused: ")
    assert (tree / "lib" / "libtoyblas.so.4").is_file()  # the sound one is left alone


def test_a_job_that_ends_without_rows_is_red(builds: Any, tmp_path: Path) -> None:
    for argv in (["false"], ["true"]):
        (row,) = builds.run_job(argv, {}, tmp_path / "rows.json", {"PATH": "/usr/bin:/bin"})
        assert row.result == "RED"
    write = f'echo \'[{{"check": "a", "result": "pass", "found": "b"}}]\' > {tmp_path}/rows.json'
    (row,) = builds.run_job(["sh", "-c", write], {}, tmp_path / "rows.json", {"PATH": "/usr/bin:/bin"})
    assert (row.check, row.result) == ("a", "pass")


def test_the_status_tells_of_red_rows_and_not_of_untried_ones(
    builds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def untried(*_given: Any) -> Any:
        raise builds.Untried("no such compiler")

    monkeypatch.setenv("LLM_FLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["check_builds"])
    for told, status in (([], 0), ([builds.Row("b", "RED", "x|y")], 1)):
        monkeypatch.setattr(builds, "TRIED", {"a": ("A", untried), "b": ("B", lambda *_given, told=told: ("c", told))})
        with pytest.raises(SystemExit) as ended:
            builds.main()
        assert ended.value.code == status
    assert "| all of it | not tried | 0 | no such compiler |" in capsys.readouterr().out
    assert "x\\|y" in (tmp_path / "check-builds" / "result.md").read_text()


def test_what_is_tried_is_what_the_inventory_declares(builds: Any, tmp_path: Path) -> None:
    asked = builds.request_of("cuda-sm86", tmp_path, tmp_path, tmp_path / "kit", {"X": "1"})
    assert asked["arch"] == "sm_86" and asked["cmake"]["X"] == "1" and asked["version"] == "11434"
    assert asked["proof"] == {"cmake": {"GGML_CUDA_FA_QUANTS": "q4_0-q4_0;q8_0-q8_0;f16-f16;bf16-bf16"}}
    asked = builds.request_of("rdna4-rocm714", tmp_path, tmp_path, tmp_path / "kit", {})
    assert asked["cmake"]["AMDGPU_TARGETS"] == "gfx1201" and json.dumps(asked)
