# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runtimes, built with the real cmake and ninja from a tiny stand-in for the engine, and what goes wrong with them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _build, _cmake, _runtime
from ansible_collections.dank.llm_fleet.plugins.module_utils._build import build_options, carry_out
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import (
    Request,
    describe,
    diff_of,
    differences,
    input_digest,
    inputs_of,
    make_plan,
    parse_request,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._elf import read_elf
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_ask import ask_anew
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_flags import flags_of_schema
from ansible_collections.dank.llm_fleet.plugins.module_utils._prune import everything_of, remove
from hypothesis import given
from hypothesis import strategies as st
from toybundle import library, offload_bundle

TINY = Path(__file__).parent.parent / "fixtures" / "tiny_engine"
FLAGS = " ".join(flags_of_schema())
QUIET = Progress(None)
Make = Callable[..., Request]

needs_tools = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("cmake", "ninja", "c++")), reason="cmake, ninja, g++"
)


@pytest.fixture
def request_for(tmp_path: Path) -> Make:
    """Make a request for the tiny engine, copied to the test's folder; keyword arguments are cmake options."""
    if not (tmp_path / "engine").exists():
        shutil.copytree(TINY, tmp_path / "engine")

    def make(name: str = "tiny", version: str = "", given: dict[str, Any] | None = None, **cmake: Any) -> Request:
        whole = {
            "name": name,
            "version": version,
            "source": {"kind": "path", "path": str(tmp_path / "engine")},
            "cmake": {"GGML_NATIVE": "OFF", "TINY_FLAGS": FLAGS, **cmake},
            "prefix": str(tmp_path / "runtimes"),
            **(given or {}),
        }
        return parse_request(whole)

    return make


def build(request: Request) -> tuple[dict[str, Any], list[str]]:
    """Carry out and describe; returns the result and the warnings."""
    warnings: list[str] = []
    plan, seconds = carry_out(request, QUIET, warnings)
    return describe(request, plan, seconds), warnings


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies below ``folder``, with sizes and time stamps, the lock left out."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if ".work" not in path.parts
    }


# --- pure parts


@pytest.mark.parametrize(
    ("asked", "cpus", "gib", "jobs"), [(0, 8, 64, 8), (0, 8, 6.2, 4), (0, 8, 1, 1), (0, 1, 64, 1), (5, 2, 1, 5)]
)
def test_jobs_are_bounded_by_processors_and_memory(asked: int, cpus: int, gib: float, jobs: int) -> None:
    assert _cmake.job_count(asked, cpus, int(gib * 2**30)) == jobs


@pytest.mark.parametrize(
    ("line", "counted"),
    [("[17/222] Building CXX object x.o", (17, 222)), ("ninja: no work to do.", None), ("see [1/2]", None)],
)
def test_ninja_lines_are_counted(line: str, counted: tuple[int, int] | None) -> None:
    assert _cmake.parse_ninja(line) == counted


@pytest.mark.parametrize(
    ("said", "version", "agrees"),
    [
        ("version: 0.6.0-dev (build 11434, commit sdist)", "11434", True),
        ("version: 0.6.0-dev (build 11434, commit sdist)", "b11434", True),
        ("version: 10777 (abc1234)\nbuilt with GNU", "b10777", True),
        ("version: b10777-abc", "10777", True),
        ("version: 114340 (x)", "11434", False),
        ("version: 111434 (x)", "11434", False),
        ("version: 1.2.3", "1.2", False),
        ("version: 1.2.3", "1.2.3", True),
        ("version: 1.2.3.", "1.2.3", True),
        ("", "1", False),
    ],
)
def test_a_version_is_stated_as_a_whole_word(said: str, version: str, agrees: bool) -> None:
    assert _runtime.states_version(said, version) is agrees


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "a/b"}, "name of a runtime"),
        ({"name": "a@b"}, "name of a runtime"),
        ({"cmake": {"A B": "1"}}, "names of cmake options"),
        ({"cmake": {"CMAKE_INSTALL_RPATH": "/x"}}, "CMAKE_INSTALL_RPATH is set by runtime_build"),
        ({"cmake": {"X": ["1"]}}, "cmake.X"),
        ({"cmake": {"X": "1\n2"}}, "cmake.X"),
        ({"targets": ["-t"]}, "targets"),
        ({"jobs": -1}, "jobs"),
    ],
)
def test_bad_requests_name_the_key(change: dict[str, Any], key: str) -> None:
    whole = {"name": "x", "source": {"kind": "path", "path": "/x"}, "prefix": "/p", **change}
    with pytest.raises(FleetError, match=re.escape(key)):
        parse_request(whole)


def test_a_yaml_boolean_means_what_cmake_means(request_for: Make) -> None:
    told = {"GGML_NATIVE": "OFF", "TINY_FLAGS": FLAGS, "A": "ON", "B": "OFF", "C": "3"}
    assert request_for(A=True, B=False, C=3).cmake == told


HOST = {"compiler": "c++ 14", "system": "debian 13", "machine": "x86_64", "cpu_flags": "avx avx2"}


def test_cpu_flags_count_for_native_builds_alone(request_for: Make) -> None:
    for value, native in (("OFF", False), ("off", False), ("0", False), ("ON", True)):
        request = request_for(GGML_NATIVE=value)
        assert ("cpu_flags" in inputs_of(request, **HOST)) is native
    assert "cpu_flags" in inputs_of(replace(request_for(), cmake={}), **HOST)


@pytest.mark.parametrize("key", ["compiler", "system", "machine", "cpu_flags"])
def test_what_the_host_is_decides_the_digest(request_for: Make, key: str) -> None:
    request = request_for(GGML_NATIVE="ON")
    other = {**HOST, key: "other"}
    assert input_digest(inputs_of(request, **HOST)) != input_digest(inputs_of(request, **other))


@given(st.dictionaries(st.sampled_from("ABCDE"), st.text(max_size=5)), st.randoms())
def test_the_digest_does_not_depend_on_order(options: dict[str, str], random: Any) -> None:
    shuffled = list(options.items())
    random.shuffle(shuffled)
    assert input_digest({"cmake": options}) == input_digest({"cmake": dict(shuffled)})


def test_differences_name_the_leaf() -> None:
    before = {"cmake": {"A": "1", "B": "2"}, "compiler": "x", "same": 1}
    after = {"cmake": {"A": "1", "B": "3", "C": "4"}, "compiler": "y" * 100, "same": 1}
    assert differences(before, after) == [
        "cmake.B: 2 -> 3",
        "cmake.C: unset -> 4",
        f"compiler: x -> {'y' * 60}...(100 characters)",
    ]


# --- real builds


@needs_tools
def test_a_build_is_linked_movable_and_recorded(request_for: Make, tmp_path: Path) -> None:
    request = request_for(version="7", TINY_VERSION="7")
    runtime, warnings = build(request)
    assert (runtime["action"], warnings) == ("built", [])
    tree = Path(runtime["path"])
    assert Path(request.link).resolve() == tree and os.readlink(request.link) == tree.name
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()) == [
        "CMakeCache.txt",
        "bin/llama-server",
        "build-run.json",
        "build.json",
        "build.log",
        "lib/libtiny.so.1",
    ]
    record = json.loads((tree / "build.json").read_text())
    assert record["server_bin"] == runtime["server_bin"] == str(tree / "bin" / "llama-server")
    assert record["version"] == "7" and record["states"].startswith("version: 0.0.1-tiny (build 7")
    assert record["digest"] == runtime["digest"] == input_digest(record["inputs"])
    assert read_elf(str(tree / "bin" / "llama-server")).search == (_runtime.RPATH,)
    assert not Path(request.work(runtime["digest"])).exists()
    moved = tmp_path / "elsewhere"
    shutil.move(tree, moved)
    assert subprocess.run([moved / "bin" / "llama-server", "--version"], check=False).returncode == 0


@needs_tools
def test_a_second_run_starts_no_cmake_and_reads_no_source(
    request_for: Make, stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(TINY, "tiny-1")
    sha256 = subprocess.run(["sha256sum", archive], check=True, capture_output=True, text=True).stdout.split()[0]
    source = {"kind": "archive", "urls": [archive.as_uri()], "sha256": sha256}
    request = request_for(given={"source": source})
    build(request)
    before = snapshot(tmp_path / "runtimes")
    archive.unlink()
    for tool in ("cmake", "ninja", "ldd"):
        stand_in(tool, f"echo {tool} >> {tmp_path}/called; exit 1")
    plan = make_plan(request)
    assert (plan.action, plan.work, plan.reasons) == ("none", False, ())
    assert build(request)[0]["action"] == "none"
    assert diff_of(request, plan)["before"] == diff_of(request, plan)["after"]
    assert snapshot(tmp_path / "runtimes") == before and not (tmp_path / "called").exists()


@needs_tools
def test_a_changed_option_builds_beside_and_swaps_the_link(request_for: Make) -> None:
    old, _ = build(request_for(TINY_VERSION="1"))
    kept = snapshot(Path(old["path"]))
    request = request_for(TINY_VERSION="2")
    plan = make_plan(request)
    assert (plan.action, plan.reasons) == ("built", ("cmake.TINY_VERSION: 1 -> 2",))
    new, _ = build(request)
    assert new["path"] != old["path"] and Path(request.link).resolve() == Path(new["path"])
    assert snapshot(Path(old["path"])) == kept
    # and back: the old tree is still proven, only the link moves
    back = make_plan(request_for(TINY_VERSION="1"))
    assert (back.action, back.work) == ("linked", False)
    assert build(request_for(TINY_VERSION="1"))[0]["action"] == "linked"
    assert Path(request.link).resolve() == Path(old["path"])


@needs_tools
def test_planning_writes_nothing(request_for: Make, tmp_path: Path) -> None:
    plan = make_plan(request_for())
    assert plan.work and not (tmp_path / "runtimes").exists()
    assert "no runtime of this name yet" in diff_of(request_for(), plan)["after"]["action"]


@needs_tools
def test_a_compile_error_keeps_the_old_runtime_and_shows_the_log(request_for: Make, tmp_path: Path) -> None:
    old, _ = build(request_for())
    kept = snapshot(tmp_path / "runtimes")
    broken = request_for(TINY_BROKEN="ON")
    with pytest.raises(FleetError, match="broken on purpose") as fault:
        build(broken)
    log = fault.value.facts["log"]
    assert log in fault.value.message and "broken on purpose" in Path(log).read_text()
    assert snapshot(tmp_path / "runtimes") == kept and Path(broken.link).resolve() == Path(old["path"])


@needs_tools
def test_a_configure_error_says_so(request_for: Make, tmp_path: Path) -> None:
    (tmp_path / "engine" / "CMakeLists.txt").write_text("message(FATAL_ERROR no-such-card)")
    with pytest.raises(FleetError, match=r"(?s)configure failed.*no-such-card"):
        build(request_for())


@needs_tools
def test_another_version_than_declared_is_never_linked(request_for: Make, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="another version") as fault:
        build(request_for(version="2", TINY_VERSION="1"))
    assert fault.value.expected == "2" and "build 1" in str(fault.value.found)
    assert snapshot(tmp_path / "runtimes") == {}
    # the inventory is mended: the objects are still there
    runtime, _ = build(request_for(version="1", TINY_VERSION="1"))
    assert "ninja: no work to do." in Path(runtime["path"], "build.log").read_text()
    # and a version declared wrongly for what is built already is found without a build
    with pytest.raises(FleetError, match="another version"):
        make_plan(request_for(version="2", TINY_VERSION="1"))


@needs_tools
def test_a_version_declared_later_is_recorded(request_for: Make) -> None:
    build(request_for(TINY_VERSION="1"))
    runtime, _ = build(request_for(version="1", TINY_VERSION="1"))
    assert (runtime["action"], runtime["version"]) == ("linked", "1")
    assert make_plan(request_for(version="1", TINY_VERSION="1")).action == "none"


@needs_tools
def test_a_program_that_does_not_run_is_never_linked(request_for: Make, tmp_path: Path) -> None:
    main = tmp_path / "engine" / "main.cpp"
    main.write_text("int main() { return 139; }")
    with pytest.raises(FleetError, match="--version failed"):
        build(request_for())
    assert snapshot(tmp_path / "runtimes") == {}


@needs_tools
def test_a_library_outside_the_tree_is_refused(request_for: Make, tmp_path: Path) -> None:
    cmake = tmp_path / "engine" / "CMakeLists.txt"
    cmake.write_text(
        f"{cmake.read_text()}\nset_target_properties(llama-server PROPERTIES INSTALL_RPATH ${{CMAKE_BINARY_DIR}}/bin)\n"
    )
    with pytest.raises(FleetError, match=r"not proven: closure.*libtiny\.so\.1 comes from .*/build/bin/.*outside"):
        build(request_for())
    assert snapshot(tmp_path / "runtimes") == {}


@needs_tools
def test_a_target_that_does_not_exist_is_named(request_for: Make) -> None:
    with pytest.raises(FleetError, match="llama-nothing"):
        build(request_for(given={"targets": ["llama-server", "llama-nothing"]}))


@needs_tools
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_lies_in_the_links_place_is_found_before_a_build(request_for: Make, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "runtimes" / "tiny"
    place.parent.mkdir()
    place.mkdir() if kind == "folder" else place.write_text("mine")
    with pytest.raises(FleetError, match=f"in the way.*found a {kind}"):
        make_plan(request_for())
    with pytest.raises(FleetError, match="in the way"):
        build(request_for())
    assert place.exists() and not list(tmp_path.glob("runtimes/tiny@*"))


@needs_tools
def test_a_dead_link_is_replaced(request_for: Make, tmp_path: Path) -> None:
    request = request_for()
    Path(request.prefix).mkdir()
    os.symlink("tiny@gone", request.link)
    assert "holds no finished build" in make_plan(request).reasons[0]
    runtime, _ = build(request)
    assert Path(request.link).resolve() == Path(runtime["path"])


@needs_tools
@pytest.mark.parametrize("damage", ["library gone", "program cut", "build.json cut"])
def test_a_damaged_tree_is_built_anew(request_for: Make, damage: str) -> None:
    request = request_for()
    runtime, _ = build(request)
    tree = Path(runtime["path"])
    if damage == "library gone":
        (tree / "lib" / "libtiny.so.1").unlink()
    elif damage == "program cut":
        os.truncate(tree / "bin" / "llama-server", 100)
    else:
        os.truncate(tree / "build.json", 100)
    assert make_plan(request).action == "built"
    assert build(request)[0]["action"] == "built"
    assert make_plan(request).action == "none"


# --- kills and locks

WORKER = """
import json, sys
from ansible_collections.dank.llm_fleet.plugins.module_utils._build import carry_out
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import parse_request
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
carry_out(parse_request(json.loads(sys.argv[1])), Progress(sys.argv[2], interval_s=0.0), [])
"""


def start_worker(request: Request, progress: Path) -> subprocess.Popen[bytes]:
    """A build in a process of its own."""
    whole = {
        "name": request.name,
        "source": {"kind": "path", "path": request.source.path},
        "cmake": dict(request.cmake),
        "prefix": request.prefix,
        "jobs": 1,
    }
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", WORKER, json.dumps(whole), str(progress)], env=env)


def wait_for(holds: Callable[[], bool], seconds: float = 300.0) -> None:
    """Return when ``holds()``; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


@needs_tools
def test_a_killed_build_leaves_the_old_runtime_and_a_rerun_goes_on(request_for: Make, tmp_path: Path) -> None:
    old, _ = build(request_for())
    request = replace(request_for(TINY_UNITS=3), jobs=1)
    progress = tmp_path / "progress"

    def compiled() -> int:
        state = json.loads(progress.read_text()) if progress.exists() else {}
        return int(state.get("done", 0)) if state.get("step") == "compile" else 0

    worker = start_worker(request, progress)
    wait_for(lambda: compiled() >= 1)

    # meanwhile another run meets the lock, and says who holds it
    with pytest.raises(FleetError, match=rf"locked.*held for runtime_build of tiny, begun .*process {worker.pid}\)"):
        carry_out(request, QUIET, [])
    wait_for(lambda: compiled() >= 2)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert Path(request.link).resolve() == Path(old["path"])
    assert not Path(make_plan(request).tree).exists()

    runtime, _ = build(request)
    assert Path(request.link).resolve() == Path(runtime["path"])
    log = Path(runtime["path"], "build.log").read_text()
    first, _, second = log.partition("--- ")[2].partition("--- ")
    totals = [int(re.findall(r"\[\d+/(\d+)\]", part)[0]) for part in (first, second)]
    assert totals[1] < totals[0], "finished steps were compiled again"


@needs_tools
def test_ninja_dies_with_its_parent(request_for: Make, tmp_path: Path) -> None:
    request = replace(request_for(TINY_UNITS=3), jobs=1)
    worker = start_worker(request, tmp_path / "progress")
    work = Path(request.work(make_plan(request).digest))

    def ninjas() -> list[str]:
        found = subprocess.run(["pgrep", "-f", f"ninja -C {work}"], check=False, capture_output=True, text=True)
        return found.stdout.split()

    wait_for(lambda: bool(ninjas()))
    worker.kill()
    worker.wait()
    wait_for(lambda: not ninjas(), 5)


# --- kept builds


@needs_tools
def test_another_host_unpacks_instead_of_compiling(request_for: Make, tmp_path: Path, stand_in: Any) -> None:
    cache = {"cache_dir": str(tmp_path / "cache")}
    first, _ = build(request_for(given=cache))
    kept = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert [name.split(".", 1)[0] for name in kept] == [first["digest"]] * 2
    for tool in ("cmake", "ninja"):
        stand_in(tool, "exit 1")
    other = request_for(given={**cache, "prefix": str(tmp_path / "other")})
    assert make_plan(other).action == "unpacked"
    runtime, warnings = build(other)
    assert (runtime["action"], warnings) == ("unpacked", [])
    assert runtime["server_bin"].startswith(str(tmp_path / "other")) and runtime["digest"] == first["digest"]
    assert make_plan(other).action == "none"


def damage_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_forged(path: Path) -> None:
    """Another build under this digest, its sha256 in order."""
    path.write_bytes(gzip.compress(b"x" * 2000))
    sha256 = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout
    Path(f"{path}.sha256").write_text(sha256)


@needs_tools
@pytest.mark.parametrize("damage", [damage_bytes, damage_cut, damage_forged])
@pytest.mark.parametrize("zstd", [True, False])
def test_a_damaged_archive_is_a_warning_and_a_build(
    request_for: Make, tmp_path: Path, damage: Callable[[Path], None], zstd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if zstd and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    if not zstd:
        which = shutil.which
        monkeypatch.setattr(_runtime.shutil, "which", lambda name: None if name == "zstd" else which(name))
    cache = {"cache_dir": str(tmp_path / "cache")}
    first, _ = build(request_for(given=cache))
    archive = next(path for path in (tmp_path / "cache").iterdir() if path.suffix in (".zst", ".gz"))
    assert archive.suffix == (".zst" if zstd else ".gz")
    damage(archive)
    other = request_for(given={**cache, "prefix": str(tmp_path / "other")})
    runtime, warnings = build(other)
    assert runtime["action"] == "built" and runtime["digest"] == first["digest"]
    assert len(warnings) == 1 and "kept build ignored" in warnings[0] and str(archive) in warnings[0]
    # the damaged one was replaced
    assert build(request_for(given={**cache, "prefix": str(tmp_path / "third")}))[0]["action"] == "unpacked"


@needs_tools
def test_a_cache_that_cannot_be_written_is_a_warning(request_for: Make, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    runtime, warnings = build(request_for(given={"cache_dir": str(tmp_path / "cache")}))
    assert runtime["action"] == "built" and "not kept" in warnings[0]


@needs_tools
@pytest.mark.skipif(not shutil.which("ccache"), reason="ccache")
def test_ccache_is_used_where_it_is(request_for: Make, tmp_path: Path) -> None:
    ccache = {"ccache_dir": str(tmp_path / "ccache")}
    build(request_for(given=ccache, TINY_VERSION="1"))
    build(request_for(given=ccache, TINY_VERSION="2"))
    env = {**os.environ, "CCACHE_DIR": str(tmp_path / "ccache")}
    stats = subprocess.run(["ccache", "--print-stats"], env=env, check=True, capture_output=True, text=True).stdout
    counts = dict(line.split("\t") for line in stats.splitlines())
    assert int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"]) == 1  # main.cpp did not change


# --- installed runtimes


@needs_tools
def test_an_installed_runtime_is_proven_and_named(request_for: Make, tmp_path: Path) -> None:
    built, _ = build(request_for(TINY_VERSION="9"))
    for path in (tmp_path / "by-hand", tmp_path / "by-hand" / "bin" / "llama-server"):
        shutil.rmtree(tmp_path / "by-hand", ignore_errors=True)
        shutil.copytree(built["path"], tmp_path / "by-hand")
        before = snapshot(tmp_path / "by-hand")
        source = {"kind": "installed", "path": str(path)}
        request = request_for(name="prism", version="b9", given={"source": source})
        assert (make_plan(request).action, make_plan(request).work) == ("linked", False)
        runtime, _ = build(request)
        assert runtime["server_bin"] == str(tmp_path / "by-hand" / "bin" / "llama-server")
        assert json.loads(Path(request.link, "build.json").read_text())["server_bin"] == runtime["server_bin"]
        assert make_plan(request).action == "none"
        assert snapshot(tmp_path / "by-hand") == before
        with pytest.raises(FleetError, match="another version"):
            make_plan(replace(request, version="b8"))


@pytest.mark.parametrize("there", [True, False])
def test_an_installed_runtime_that_is_not_there(request_for: Make, tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "by-hand").mkdir()
    request = request_for(given={"source": {"kind": "installed", "path": str(tmp_path / "by-hand")}})
    with pytest.raises(FleetError, match="by-hand"):
        make_plan(request)
    assert not (tmp_path / "runtimes").exists()


def test_a_host_without_a_compiler_can_be_planned(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    request = request_for()
    assert make_plan(request).action == "built"
    with pytest.raises(FleetError, match=r"is not installed.*ninja-build"):
        carry_out(request, QUIET, [])


@needs_tools
def test_a_tree_that_changes_under_the_build_is_refused(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _build.logged

    def edit_then_run(*args: Any) -> None:
        (tmp_path / "engine" / "new.h").write_text("")
        real(*args)

    monkeypatch.setattr(_build, "logged", edit_then_run)
    with pytest.raises(FleetError, match="changed while it was built"):
        build(request_for())
    assert snapshot(tmp_path / "runtimes") == {}


# --- proofs before the name


@needs_tools
def test_a_build_with_a_red_proof_gets_no_name_and_the_old_one_stays(request_for: Make, tmp_path: Path) -> None:
    old, _ = build(request_for())
    kept = snapshot(tmp_path / "runtimes")
    broken = {
        "flags": {"TINY_FLAGS": FLAGS.replace("--metrics", "--metric")},
        "smoke": {"TINY_DEVICE_CODE": "../lib/rocblas/library/TensileLibrary.dat"},
    }
    for check, options in broken.items():
        with pytest.raises(FleetError, match=f"tiny in .* is not proven: {check}") as fault:
            build(request_for(**options))
        assert fault.value.remedy and [row["ok"] for row in fault.value.facts["proofs"]].count(False) == 1
    stale = {"proof": {"cmake": {"TINY_UNITS": "4"}}}
    with pytest.raises(FleetError, match=r"not proven: cmake.*CMakeCache.txt: TINY_UNITS is 0, declared 4"):
        build(request_for(given=stale, TINY_VERSION="2"))
    with pytest.raises(FleetError, match="not proven: code objects"):
        build(request_for(given={"arch": "sm_86"}, TINY_VERSION="2"))
    assert snapshot(tmp_path / "runtimes") == kept and Path(request_for().link).resolve() == Path(old["path"])


@needs_tools
def test_build_json_keeps_the_proofs_and_is_the_same_each_time(request_for: Make, tmp_path: Path) -> None:
    first, _ = build(request_for(version="3", TINY_VERSION="3"))
    tree = Path(first["path"])
    record = json.loads((tree / "build.json").read_text())
    assert [row["check"] for row in record["proofs"]] == ["closure", "rpath", "cmake", "version", "flags", "smoke"]
    assert all(row["ok"] for row in record["proofs"]) and first["proofs"] == record["proofs"]
    assert record["build_id"] == first["build_id"] == read_elf(first["server_bin"]).build_id != ""
    assert ".work" not in json.dumps(record["proofs"])
    assert json.loads((tree / "build-run.json").read_text())["jobs"] >= 1
    kept = (tree / "build.json").read_bytes()
    shutil.rmtree(tmp_path / "runtimes")
    build(request_for(version="3", TINY_VERSION="3"))
    assert (tree / "build.json").read_bytes() == kept


@needs_tools
def test_a_second_run_is_quick_and_starts_no_program(request_for: Make, stand_in: Any, tmp_path: Path) -> None:
    request = request_for()
    build(request)
    stand_in("ldd", f"echo ldd >> {tmp_path}/called; exit 1")
    started = time.process_time()
    assert build(request)[0]["action"] == "none"
    assert time.process_time() - started < 1 and not (tmp_path / "called").exists()


@needs_tools
def test_what_is_declared_later_is_proven_then(request_for: Make) -> None:
    build(request_for())
    later = request_for(given={"proof": {"cmake": {"TINY_UNITS": "0"}}, "can": {"adapters": ["x"]}})
    plan = make_plan(later)
    assert plan.action == "linked" and "proof.cmake.TINY_UNITS: unset -> 0" in plan.reasons
    runtime, _ = build(later)
    assert runtime["can"] == {"adapters": ["x"]} and make_plan(later).action == "none"
    wrong = request_for(given={"proof": {"cmake": {"TINY_UNITS": "1"}}})
    with pytest.raises(FleetError, match="not proven: cmake"):
        build(wrong)
    assert Path(later.link).resolve() == Path(runtime["path"])


@needs_tools
def test_a_runtime_by_name_is_proven_anew(request_for: Make, tmp_path: Path) -> None:
    runtime, _ = build(request_for(version="3", TINY_VERSION="3"))
    given = {"name": "tiny", "prefix": str(tmp_path / "runtimes"), "device": "none"}
    told = ask_anew(given)
    assert told["proofs"] == runtime["proofs"] and told["runtime"]["build_id"] == runtime["build_id"]
    (Path(runtime["path"]) / "lib" / "libtiny.so.1").unlink()
    with pytest.raises(FleetError, match=r"closure.*libtiny\.so\.1 is not found"):
        ask_anew(given)


# What a kill may fall into, and whether before it or after.
STAGES = [
    ("_build.bundle", "after"),
    ("_build.prove", "before"),
    ("_build.prove", "after"),
    ("_build.write_record", "after"),
    ("os.rename", "before"),
    ("os.rename", "after"),
    ("_build.atomic_link", "before"),
    ("_build.atomic_link", "after"),
]
KILLER = """
import json, os, signal, sys
from ansible_collections.dank.llm_fleet.plugins.module_utils import _build
from ansible_collections.dank.llm_fleet.plugins.module_utils._buildplan import parse_request
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
holder, name = sys.argv[2].split(".")
owner = {"_build": _build, "os": os}[holder]
real = getattr(owner, name)
def killed(*args, **options):
    if name == "rename" and "@" not in os.path.basename(args[1]):
        return real(*args, **options)
    if sys.argv[3] == "after":
        real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, killed)
_build.carry_out(parse_request(json.loads(sys.argv[1])), Progress(None), [])
"""


@needs_tools
@pytest.mark.parametrize(("stage", "when"), STAGES)
def test_a_kill_at_any_stage_links_nothing_half(
    request_for: Make, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, stage: str, when: str
) -> None:
    ccache = {"ccache_dir": str(tmp_path_factory.getbasetemp() / "ccache")}
    old, _ = build(request_for(given=ccache, TINY_VERSION="1"))
    request = request_for(given=ccache, TINY_VERSION="2")
    whole = {
        **ccache,
        "name": "tiny",
        "source": {"kind": "path", "path": request.source.path},
        "cmake": dict(request.cmake),
        "prefix": request.prefix,
    }
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", KILLER, json.dumps(whole), stage, when]
    assert subprocess.run(argv, env=env, check=False).returncode == -signal.SIGKILL
    named = Path(request.link).resolve()
    if (stage, when) == ("_build.atomic_link", "after"):
        assert named == Path(make_plan(request).tree)
    else:
        assert named == Path(old["path"])
    for tree in (tmp_path / "runtimes").glob("tiny@*"):  # whatever has a name is whole and proven
        record = json.loads((tree / "build.json").read_text())
        assert _runtime.intact(str(tree), record["digest"]) and all(row["ok"] for row in record["proofs"])
    runtime, _ = build(request)
    assert Path(request.link).resolve() == Path(runtime["path"])
    assert ask_anew({"name": "tiny", "prefix": request.prefix, "device": "none"})["proofs"]


@needs_tools
@pytest.mark.parametrize("place", ["shutil.copy2", "_build.write_run", "_build.write_record", "os.rename"])
def test_a_full_disk_links_nothing_half(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    old, _ = build(request_for(TINY_VERSION="1"))
    kept = snapshot(tmp_path / "runtimes")

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    holder, _, name = place.rpartition(".")
    modules = {"_build": _build, "shutil": shutil, "os": os}
    with monkeypatch.context() as patch:
        patch.setattr(modules[holder], name, full)
        with pytest.raises(OSError, match="No space left"):
            build(request_for(TINY_VERSION="2"))
    assert snapshot(tmp_path / "runtimes") == kept and Path(request_for().link).resolve() == Path(old["path"])
    assert build(request_for(TINY_VERSION="2"))[0]["action"] == "built"


# --- pruning and removal


def name_in_an_era(state: Path, tree: str, blueprint: Any) -> None:
    store = EraStore(str(state / "chat"))
    drawn = blueprint("a", runtime={"name": "tiny", "digest": "d", "version": "1", "path": tree})
    store.stage(drawn)


@needs_tools
def test_pruning_never_takes_what_is_linked_or_named_by_an_era(
    request_for: Make, tmp_path: Path, blueprint: Any
) -> None:
    built = [build(request_for(TINY_VERSION=str(number)))[0]["path"] for number in range(4)]
    for number, path in enumerate(built):
        os.utime(path, (number, number))
    state = tmp_path / "state"
    name_in_an_era(state, built[0], blueprint)
    (tmp_path / "runtimes" / ".work" / f"tiny@{'0' * 12}").mkdir()
    (tmp_path / "runtimes" / f"other@{'1' * 12}").mkdir()
    request = request_for(TINY_VERSION="3")
    plan = make_plan(request)
    assert _build.prune(request, plan, None, str(state), dry=False) == []
    told = _build.prune(request, plan, 1, str(state), dry=True)
    assert told == [built[1], str(tmp_path / "runtimes" / ".work" / f"tiny@{'0' * 12}")]
    assert all(Path(path).exists() for path in told)
    assert _build.prune(request, plan, 1, str(state), dry=False) == told
    assert [Path(path).exists() for path in built] == [True, False, True, True]
    assert (tmp_path / "runtimes" / f"other@{'1' * 12}").exists()
    assert _build.prune(request, plan, 0, str(state), dry=False) == [built[2]]
    assert Path(request.link).resolve() == Path(built[3])
    with pytest.raises(FleetError, match="0 or more"):
        _build.prune(request, plan, -1, str(state), dry=False)


@needs_tools
def test_a_runtime_is_removed_whole_unless_an_era_names_it(request_for: Make, tmp_path: Path, blueprint: Any) -> None:
    prefix, state = str(tmp_path / "runtimes"), tmp_path / "state"
    paths = [build(request_for(TINY_VERSION=str(number)))[0]["path"] for number in range(2)]
    other = build(request_for(name="tiny-2"))[0]["path"]
    name_in_an_era(state, paths[0], blueprint)
    with pytest.raises(FleetError, match=f"cannot be removed.*{re.escape(paths[0])}"):
        remove(prefix, "tiny", str(state))
    assert all(Path(path).exists() for path in paths)
    shutil.rmtree(state)
    assert everything_of(prefix, "tiny", str(state)) == remove(prefix, "tiny", str(state))
    assert not any(Path(path).exists() for path in (*paths, f"{prefix}/tiny"))
    assert Path(other).exists() and Path(prefix, "tiny-2").resolve() == Path(other)
    assert remove(prefix, "tiny", str(state)) == [] == remove(str(tmp_path / "nowhere"), "tiny", str(state))


def test_a_removal_that_was_killed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "rt" / f"x@{'a' * 12}"
    tree.mkdir(parents=True)
    (tmp_path / "rt" / ".work").mkdir()
    os.symlink(tree.name, tmp_path / "rt" / "x")

    def killed(path: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(str(tmp_path / "rt"), "x", str(tmp_path / "state"))
    assert not tree.exists() and not (tmp_path / "rt" / "x").is_symlink()
    assert remove(str(tmp_path / "rt"), "x", str(tmp_path / "state")) == [f"{tmp_path}/rt/.work/x@{'a' * 12}.gone"]
    assert list((tmp_path / "rt" / ".work").glob("x@*")) == []


# --- a toolkit


@needs_tools
def test_a_toolkits_libraries_and_device_code_are_bundled(request_for: Make, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    for folder in ("rocblas/library", "hipblaslt/library/gfx1201", "hipblaslt/library/gfx1200"):
        (kit / "lib" / folder).mkdir(parents=True)
    (kit / ".info").mkdir()
    (kit / ".info" / "version").write_text("7.14.0\n")
    deep = library(kit / "lib", "libtoydeep.so.1", 'const char * toy_deep() { return "x"; }\n')
    source = "const char * toy_deep();\nconst char * toy_blas() { return toy_deep(); }\n"
    blas = library(tmp_path, "libtoyblas.so.4", source, str(deep))  # with no search path of its own, as Debian's
    shutil.copy2(blas, kit / "lib")
    source = "const char * toy_deep();\nconst char * opened() { return toy_deep(); }\n"
    library(kit / "lib", "libopened.so.2", source, str(deep))
    for name in ("rocblas/library/T_gfx1201.dat", "rocblas/library/T_gfx1200.dat", "rocblas/library/T.dat",
                 "hipblaslt/library/gfx1201/T_gfx1201.co", "hipblaslt/library/gfx1200/T_gfx1200.co"):  # fmt: skip
        (kit / "lib" / name).write_bytes(b"made up")
    (tmp_path / "bundle.bin").write_bytes(offload_bundle(["gfx1201"]))
    engine = tmp_path / "engine"
    (engine / "tiny.cpp").write_text(
        'const char * toy_blas();\nconst char * tiny_version() { return *toy_blas() ? "1" : ""; }\n'
        f'asm(".section .hip_fatbin,\\"a\\"\\n.incbin \\"{tmp_path}/bundle.bin\\"\\n.previous");\n'
    )
    cmake = engine / "CMakeLists.txt"
    linked = f"\ntarget_link_libraries(tiny PRIVATE {kit}/lib/libtoyblas.so.4)\n"
    cmake.write_text(cmake.read_text() + linked)
    given = {"arch": "gfx1201", "toolkit": {"path": str(kit), "libs": ["libopened.so.*"]}}
    request = request_for(given=given, version="1")
    runtime, _ = build(request)
    lib = Path(runtime["path"]) / "lib"
    assert sorted(str(path.relative_to(lib)) for path in lib.rglob("*") if path.is_file()) == [
        "hipblaslt/library/gfx1201/T_gfx1201.co",
        "libopened.so.2",
        "libtiny.so.1",
        "libtoyblas.so.4",
        "libtoydeep.so.1",
        "rocblas/library/T.dat",
        "rocblas/library/T_gfx1201.dat",
    ]
    assert json.loads((lib.parent / "build.json").read_text())["from_toolkit"] == [
        "lib/libopened.so.2",
        "lib/libtoyblas.so.4",
        "lib/libtoydeep.so.1",
    ]
    assert read_elf(str(lib / "libtiny.so.1")).rpath == ("$ORIGIN/../lib",)
    for kind in ("EXE", "SHARED", "MODULE"):  # what linkers do unless told differs between systems
        assert "-Wl,--disable-new-dtags" in build_options(request)[f"CMAKE_{kind}_LINKER_FLAGS"].split()
    (kit / ".info" / "version").write_text("7.15.0\n")
    assert make_plan(request).reasons == ("toolkit.version: 7.14.0 -> 7.15.0",)
    with pytest.raises(FleetError, match=r"the toolkit has no library libnone"):
        build(request_for(given={**given, "toolkit": {"path": str(kit), "libs": ["libnone.*"]}}))
    shutil.rmtree(kit / "lib" / "hipblaslt")
    with pytest.raises(FleetError, match=r"no device code in .*/hipblaslt/library/gfx1201"):
        build(request)
    assert Path(request.link).resolve() == Path(runtime["path"])
