# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proofs of a build, on a real toy bundle with everything broken once: each break turns its own check red."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proof_smoke
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof import build_id_of, prove, red, require_proofs
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_ask import ask_anew, find_server
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Check, Expect, parse_expect
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_flags import (
    contract_faults,
    flags_of_schema,
    parse_help,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_model import tiny_model
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_tree import (
    cache_faults,
    closure_faults,
    closure_of,
    loader_of,
    parse_cache,
    parse_ldd,
)
from toybundle import (
    ARCH,
    EXPECT,
    FA_QUANTS,
    library,
    needs_compiler,
    offload_bundle,
    packed_bundle,
    toy_bundle,
    toy_library,
    toy_server,
)

FOREIGN = ("lib/libtoyblas.so.4",)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the tests copy."""
    return toy_bundle(tmp_path_factory.mktemp("toy") / "toy", tmp_path_factory.mktemp("work"))


@pytest.fixture
def toy(sound: Path, tmp_path: Path) -> Path:
    """One to break."""
    shutil.copytree(sound, tmp_path / "toy", symlinks=True)
    return tmp_path / "toy"


def proofs(root: Path, expect: Expect = EXPECT) -> dict[str, Check]:
    checks = prove(str(root), str(root / "bin" / "llama-server"), expect, foreign=FOREIGN)
    return {check.check: check for check in checks}


@needs_compiler
def test_a_sound_bundle_passes_every_proof(toy: Path) -> None:
    told = proofs(toy)
    assert list(told) == ["closure", "rpath", "device code", "code objects", "cmake", "version", "flags", "smoke"]
    assert red(list(told.values())) == []
    assert told["code objects"].found == ARCH and told["smoke"].found == "8 tokens"
    assert len(build_id_of(str(toy / "bin" / "llama-server"))) == 40


def flatten(root: Path, _work: Path) -> None:
    """As cp -r SRC DST/ does where DST is missing."""
    folder = root / "lib" / "rocblas"
    for file in list((folder / "library").iterdir()):
        file.rename(folder / file.name)
    (folder / "library").rmdir()


def deepen(root: Path, _work: Path) -> None:
    folder = root / "lib" / "rocblas" / "library"
    (folder / "library").mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        file.rename(folder / "library" / file.name)


def lose_second(root: Path, _work: Path) -> None:
    shutil.rmtree(root / "lib" / "hipblaslt")


def empty_folder(root: Path, _work: Path) -> None:
    for file in (root / "lib" / "rocblas" / "library").iterdir():
        file.unlink()


def sister_folder(root: Path, _work: Path) -> None:
    (root / "lib" / "hipblaslt" / "library" / ARCH).rename(root / "lib" / "hipblaslt" / "library" / "gfx1200")


def sister_files(root: Path, _work: Path) -> None:
    folder = root / "lib" / "rocblas" / "library"
    (folder / f"TensileLibrary_lazy_{ARCH}.dat").rename(folder / "TensileLibrary_lazy_gfx1200.dat")


def sister_objects(root: Path, _work: Path) -> None:
    """Files of the right name in the right folder, and another card's code in them."""
    folder = root / "lib" / "hipblaslt" / "library" / ARCH
    (folder / f"TensileLibrary_{ARCH}.co").write_bytes(packed_bundle(offload_bundle(["gfx1200"])))


def lose_library(root: Path, _work: Path) -> None:
    (root / "lib" / "libtoyblas.so.4").unlink()


def host_library(root: Path, work: Path) -> None:
    """The bundle has but a link to what the host has."""
    work.mkdir()
    library = (root / "lib" / "libtoyblas.so.4").rename(work / "libtoyblas.so.4")
    os.symlink(library, root / "lib" / "libtoyblas.so.4")


def absolute_rpath(root: Path, work: Path) -> None:
    toy_library(root / "lib", work, rpath=f"-Wl,-rpath,{root}/lib")


def sister_code(root: Path, work: Path) -> None:
    toy_library(root / "lib", work, archs=("gfx1200",))


def both_codes(root: Path, work: Path) -> None:
    toy_library(root / "lib", work, archs=(ARCH, "gfx1200"))


def no_code(root: Path, work: Path) -> None:
    toy_library(root / "lib", work, archs=())


def stale_cache(root: Path, _work: Path) -> None:
    cache = root / "CMakeCache.txt"
    cache.write_text(cache.read_text().replace(FA_QUANTS, "q4_0-q4_0"))


def no_cache(root: Path, _work: Path) -> None:
    (root / "CMakeCache.txt").unlink()


def renamed_flag(root: Path, _work: Path) -> None:
    toy_server(root, ["--draft-max" if flag == "--spec-draft-n-max" else flag for flag in flags_of_schema()])


def dies_on_request(root: Path, _work: Path) -> None:
    """Well, and dead on its first request, as with device code at the wrong depth."""
    toy_server(root, device_code="../lib/rocblas/library/NoSuch.dat")


BREAKS: list[tuple[Callable[[Path, Path], None], str, str, str]] = [
    (
        flatten,
        "device code",
        r"lib/rocblas/library is missing: its files lie one level up, as .*/rocblas/T",
        "cp -r SRC",
    ),
    (deepen, "device code", r"rocblas/library holds no files, .*/rocblas/library/library may, one level down", "depth"),
    (lose_second, "device code", r"lib/hipblaslt/library/gfx1201 is missing", "Copy the contents"),
    (empty_folder, "device code", r"lib/rocblas/library holds no files", "Copy the contents"),
    (sister_folder, "device code", r"hipblaslt/library/gfx1201 is missing: .*library has gfx1200", "gfx1201"),
    (sister_files, "device code", r"rocblas/library has no file for gfx1201, but for gfx1200", "gfx1201"),
    (sister_objects, "device code", r"TensileLibrary_gfx1201\.co holds code for gfx1200", "gfx1201"),
    (lose_library, "closure", r"libtoyblas\.so\.4 is not found", "toolkit"),
    (host_library, "closure", r"libtoyblas\.so\.4 comes from .*/work/libtoyblas\.so\.4, outside", "system_libs"),
    (absolute_rpath, "rpath", r"lib/libtiny\.so\.1: /.*/toy/lib", "runtime_build sets it"),
    (sister_code, "code objects", r"lib/libtiny\.so\.1 holds gfx1200", "AMDGPU_TARGETS"),
    (both_codes, "code objects", r"lib/libtiny\.so\.1 holds gfx1200, gfx1201", "AMDGPU_TARGETS"),
    (no_code, "code objects", r"no code for the card at all", "AMDGPU_TARGETS"),
    (
        stale_cache,
        "cmake",
        r"CMakeCache\.txt: GGML_CUDA_FA_QUANTS is q4_0-q4_0, declared q4_0-q4_0;",
        "empty build folder",
    ),
    (no_cache, "cmake", r"no CMakeCache\.txt", "Build anew"),
    (
        renamed_flag,
        "flags",
        r"--spec-draft-n-max \(SPEC_DRAFT_N_MAX\) is not there, here it is --draft-max",
        "without_keys",
    ),
    (
        dies_on_request,
        "smoke",
        r"ended by signal 6 on its first request: rocBLAS error: Cannot read .*NoSuch\.dat",
        "last",
    ),
]


@needs_compiler
@pytest.mark.parametrize(("damage", "check", "found", "remedy"), BREAKS, ids=lambda one: getattr(one, "__name__", None))
def test_a_break_turns_its_own_check_red(
    toy: Path, tmp_path: Path, damage: Callable[[Path, Path], None], check: str, found: str, remedy: str
) -> None:
    damage(toy, tmp_path / "work")
    told = list(proofs(toy).values())
    broken = red(told)
    assert [one.check for one in broken] == [check]
    assert re.search(found, broken[0].found, re.DOTALL), broken[0].found
    assert remedy in broken[0].remedy
    with pytest.raises(FleetError, match=f"toy is not proven: {check}") as fault:
        require_proofs("toy", told)
    assert fault.value.remedy == broken[0].remedy
    assert [one["check"] for one in fault.value.facts["proofs"] if not one["ok"]] == [check]


@needs_compiler
def test_a_forbidden_folder_is_named_whatever_the_library(toy: Path, tmp_path: Path) -> None:
    host_library(toy, tmp_path / "rocm-7.1")
    lenient = replace(EXPECT, system=(*EXPECT.system, "libtoyblas.so.*"))
    assert proofs(toy, lenient)["closure"].ok
    told = proofs(toy, replace(lenient, forbidden=(f"{tmp_path}/rocm*",)))["closure"]
    assert not told.ok and "rocm-7.1/libtoyblas.so.4, which is forbidden" in told.found


@needs_compiler
def test_a_drivers_library_may_be_missing_where_there_is_no_card(toy: Path) -> None:
    lose_library(toy, toy)
    assert proofs(toy, replace(EXPECT, driver=("libtoyblas.so.*",)))["closure"].ok


@needs_compiler
def test_a_toolkits_library_may_search_inside_alone(toy: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for rpath, ok in (("$ORIGIN", True), ("$ORIGIN/../../..", False), ("/opt/rocm/lib", False)):
        made = library(work, "libtoyblas.so.4", 'const char * toy_blas() { return "x"; }\n', f"-Wl,-rpath,{rpath}")
        shutil.copy2(made, toy / "lib" / "libtoyblas.so.4")
        assert proofs(toy)["rpath"].ok is ok, rpath


@needs_compiler
def test_another_version_is_told(toy: Path) -> None:
    told = proofs(toy, replace(EXPECT, version="8"))
    assert [check.check for check in red(list(told.values()))] == ["version"]
    assert list(told)[-1] == "version"  # what is not what it should be is not asked further
    assert "build 7" in told["version"].found


@needs_compiler
def test_what_is_not_declared_is_not_asked(toy: Path) -> None:
    told = proofs(toy, Expect(rpath=""))
    assert list(told) == ["closure", "version", "flags", "smoke"]


@needs_compiler
def test_a_folder_is_asked_without_a_record(toy: Path, tmp_path: Path) -> None:
    given = {"path": str(toy), "arch": ARCH, "version": "7", "proof": {}, "device": "none"}
    told = ask_anew(given)
    assert told["runtime"]["server_bin"] == str(toy / "bin" / "llama-server")
    assert ask_anew({**given, "path": str(toy / "bin" / "llama-server")})["runtime"]["path"] == str(toy)
    flatten(toy, tmp_path)
    with pytest.raises(FleetError, match="device code"):
        ask_anew(given)
    with pytest.raises(FleetError, match="not on this host"):
        ask_anew({"name": "none", "prefix": str(tmp_path), "device": "none"})
    with pytest.raises(FleetError, match="no runtime"):
        find_server(str(tmp_path / "nowhere"))


# --- parts


def test_ldd_is_read() -> None:
    listing = """\
/p/llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /p/llama-server)
\tlinux-vdso.so.1 (0x00007)
\tlibtiny.so.1 => /p/bin/../lib/libtiny.so.1 (0x00007)
\tlibgone.so => not found
\t/opt/rocm/lib/libleak.so (0x00007)
\t/lib64/ld-linux-x86-64.so.2 (0x00007)
"""
    libraries, wrong = parse_ldd(listing)
    assert libraries == {
        "libtiny.so.1": "/p/bin/../lib/libtiny.so.1",
        "libgone.so": "",
        "libleak.so": "/opt/rocm/lib/libleak.so",
    }
    assert wrong == ["/lib/libc.so.6: version `GLIBC_2.38' not found (required by /p/llama-server)"]
    assert loader_of(listing) == "/lib64/ld-linux-x86-64.so.2"
    assert loader_of("\tnot a dynamic executable\n") == ""


@needs_compiler
def test_a_library_that_is_linked_by_its_whole_path_is_no_less_the_hosts(tmp_path: Path) -> None:
    """The linker keeps the path of one without a soname, and the loader tells it without an arrow."""
    (tmp_path / "rt" / "bin").mkdir(parents=True)
    (tmp_path / "l.cpp").write_text("int leak() { return 0; }\n")
    (tmp_path / "m.cpp").write_text("int leak(); int main() { return leak(); }\n")
    leak, program = tmp_path / "libleak.so", tmp_path / "rt" / "bin" / "llama-server"
    for argv in (["-shared", "-fPIC", tmp_path / "l.cpp", "-o", leak], [tmp_path / "m.cpp", leak, "-o", program]):
        subprocess.run(["g++", *argv], check=True)
    closure = closure_of(str(tmp_path / "rt"), str(program))
    faults = closure_faults(closure, str(tmp_path / "rt"), Expect())
    assert faults == [f"libleak.so comes from {leak}, outside of the runtime"]


@needs_compiler
def test_an_opened_library_is_asked_for_as_it_will_be_opened(toy: Path, tmp_path: Path) -> None:
    """One without a search path of its own inherits the program's; beside a program with DT_RUNPATH it would not."""
    work = tmp_path / "work"
    work.mkdir()
    deep = library(work, "libdeep.so.1", "int deep() { return 1; }\n")
    opened = library(work, "libopened.so.1", "int deep();\nint opened() { return deep(); }\n", str(deep))
    for made in (deep, opened):
        shutil.copy2(made, toy / "lib")
    toy_server(toy, options=("-Wl,--enable-new-dtags",))
    assert "libdeep.so.1 is not found" in proofs(toy)["closure"].found
    toy_server(toy, options=("-Wl,--disable-new-dtags",))
    assert proofs(toy)["closure"].ok
    (toy / "lib" / "libdeep.so.1").unlink()
    assert "libdeep.so.1 is not found" in proofs(toy)["closure"].found


HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads (default: -1)
                                        (env: LLAMA_ARG_THREADS)
--spec-draft-n-max N                    number of tokens to draft; see --no-such-flag
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
-a,    --alias STRING                   alias
--temp, --temperature N                 temperature
--jinja, --no-jinja                     whether to use the template
"""


def test_help_tells_what_is_offered_and_what_was_removed() -> None:
    told = parse_help(HELP)
    assert {"-t", "--threads", "--usage", "--no-jinja", "--temperature"} <= told.offered
    assert "--no-such-flag" not in told.offered
    assert told.removed == dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "--spec-draft-n-max")


@pytest.mark.parametrize("text", ["", "error: unknown argument --help\n", "-a x\n-b y\n"])
def test_what_lists_no_flags_is_no_server(text: str) -> None:
    with pytest.raises(FleetError, match="lists no flags"):
        parse_help(text)


def test_every_flag_of_the_schema_is_asked_for() -> None:
    told = parse_help(HELP + "".join(f"{flag} X  made up\n" for flag in flags_of_schema()))
    assert contract_faults(told) == []
    faults = contract_faults(parse_help(HELP))
    assert len(faults) == len(set(flags_of_schema()) - parse_help(HELP).offered)
    assert "--metrics (METRICS) is not there" in faults
    assert not any("METRICS" in fault for fault in contract_faults(parse_help(HELP), ["METRICS"]))
    removed = HELP.replace("--alias STRING                   alias", "--alias STRING    the argument has been removed")
    assert "--alias (ALIAS) was removed" in contract_faults(parse_help(removed))
    renamed = HELP.replace("   alias\n", "   the argument has been removed. use --served-name\n")
    assert "--alias (ALIAS) was removed, its successor is --served-name" in contract_faults(parse_help(renamed))


@pytest.mark.parametrize(
    ("declared", "faults"),
    [
        ({"A": "ON", "B": "0", "C": "g++", "D": "x;y"}, []),
        ({"A": "OFF"}, ["A is 1, declared OFF"]),
        ({"C": "clang++"}, ["C is /usr/bin/g++, declared clang++"]),
        ({"E": "1"}, ["E is not in it, declared 1"]),
        ({"D": "x"}, ["D is x;y, declared x"]),
        ({"AMDGPU_TARGETS": "gfx1201", "GGML_BUILD_NUMBER": "7"}, []),  # read without being declared
        (
            {"GGML_CUDA_FA_QUANT": "q8_0-q8_0"},
            [
                "GGML_CUDA_FA_QUANT is no option of this source: cmake keeps what it was given, and nothing reads it; "
                "declared q8_0-q8_0"
            ],
        ),
        (
            {"GGML_CUDA_FA_ALL_QUANTS": "ON"},
            ["GGML_CUDA_FA_ALL_QUANTS is retired and does nothing, its successor is GGML_CUDA_FA_QUANTS"],
        ),
        ({"GGML_CUDA_FA_ALL_QUANTS": "OFF"}, []),
    ],
)
def test_the_cache_is_held_against_the_declaration(declared: dict[str, str], faults: list[str]) -> None:
    cache = "# x\nA:BOOL=1\nB:BOOL=OFF\nC:FILEPATH=/usr/bin/g++\nD:STRING=x;y\nGGML_CUDA_FA_ALL_QUANTS:BOOL=OFF\n"
    cache += "AMDGPU_TARGETS:UNINITIALIZED=gfx1201\nGGML_CUDA_FA_QUANT:UNINITIALIZED=q8_0-q8_0\n"
    cache += "GGML_BUILD_NUMBER:UNINITIALIZED=7\n"
    assert cache_faults(parse_cache(cache), declared) == faults


@pytest.mark.parametrize(
    ("arch", "proof", "found"),
    [
        ("gfx", {}, "x.arch"),
        ("sm86", {}, "x.arch"),
        ("", {"system_lib": []}, "Did you mean system_libs"),
        ("", {"without_keys": ["NO_KEY"]}, "x.proof.without_keys"),
    ],
)
def test_unsound_expectations_name_the_key(arch: str, proof: dict[str, object], found: str) -> None:
    with pytest.raises(FleetError, match=found):
        parse_expect("x", arch, proof, built=True)


def test_expectations_follow_from_the_card() -> None:
    amd = parse_expect("x", ARCH, {}, built=True)
    assert amd.device_code == ("rocblas/library", "hipblaslt/library/gfx1201") and amd.driver == ()
    nvidia = parse_expect("x", "sm_86", {"driver_libs": ["libx.so.1"]}, built=False)
    assert nvidia.device_code == () and nvidia.rpath == ""
    assert nvidia.driver == ("libcuda.so.1", "libnvidia-ml.so.1", "libx.so.1")
    assert parse_expect("x", ARCH, {"device_code": []}, built=True).device_code == ()


# --- the smoke request


def test_the_tiny_model_is_sound_small_and_the_same_each_time(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(tiny_model())
    read = read_gguf(str(file))
    assert read.architecture == "llama" and len(read.tensors) == 11
    assert file.stat().st_size < 80_000 and tiny_model() == file.read_bytes()


SERVER = """#!/usr/bin/env python3
import http.server, json, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200, b'{}')
    def do_POST(self):
        BODY
    def log_message(self, *a): pass
START
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("body", "start", "found"),
    [
        ("self.answer(500, b'only Content')", "", "refused the request.*500: only Content"),
        ("self.answer(200, b'{\"choices\": []}')", "", "the answer is none"),
        ('self.answer(200, b\'{"usage": {"completion_tokens": 0}}\')', "", "the answer is empty"),
        ("time.sleep(60)", "", "did not answer|broke off"),
        ("pass", "print('unknown model architecture'); sys.exit(3)", "with status 3 while it started.*unknown model"),
        ("pass", "time.sleep(60)", "did not become healthy"),
    ],
)
def test_a_server_that_does_not_answer(tmp_path: Path, body: str, start: str, found: str) -> None:
    server = tmp_path / "llama-server"
    server.write_text(SERVER.replace("BODY", body).replace("START", start))
    server.chmod(0o755)
    with pytest.raises(FleetError) as fault:
        _proof_smoke.one_answer(str(server), timeout_s=3)
    assert re.search(found, fault.value.message, re.DOTALL), fault.value.message
