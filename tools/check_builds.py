# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA and the HIP runtime of the inventory, with real toolchains, as far as a machine without cards can take them.

CUDA's compiler and cuBLAS come from PyPI, ROCm from Debian sid in a tree of its own; both lie in this tool's folder of
the cache, and nothing is written elsewhere. What cannot be tried here is a row "not tried", with its reason. Ends with
1 when a row is red.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tools")]

from ansible_collections.dank.llm_fleet.plugins.module_utils._elf_device import device_archs  # noqa: E402
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_expect import Expect  # noqa: E402
from ansible_collections.dank.llm_fleet.plugins.module_utils._proof_tree import device_code_faults  # noqa: E402
from check_build_one import RED, UNTRIED, Row  # noqa: E402

# One release of CUDA, from PyPI. cuobjdump came to PyPI with 13.2 only; it reads what 13.0 wrote.
CUDA = {
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-cccl": "13.0.85",
    "nvidia-cuda-culibos": "13.0.85",
    "nvidia-cublas": "13.0.2.14",
    "nvidia-cuda-cuobjdump": "13.2.51",
}
SID = "ca-certificates python3 cmake ninja-build g++ zstd git binutils ccache".split()
ROCM = "hipcc librocblas-dev libhipblas-dev libhipblaslt-dev".split()
KERNELS = ["arange", "fill", "scale", "out-prod"]  # the last one calls the vendor's BLAS, so that it is linked
# What machines without a card need, beside what the inventory declares.
CARDLESS = {"GGML_CUDA_NO_VMM": "ON"}  # else the engine links to the driver's own library
# Debian's rocBLAS, and a library that it alone asks for.
LENT = ["librocblas.so.*", "libroctx64.so.*"]
MOUNTED = "/mnt/llm-fleet"


class Untried(Exception):
    """Why a runtime cannot be tried on this machine."""


def say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


def declared(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the runtime of the production inventory, the source that this machine has: the sandbox's)."""
    runtimes = yaml.safe_load((ROOT / "inventories/production/group_vars/all/runtimes.yml").read_text())
    sandbox = yaml.safe_load((ROOT / "inventories/sandbox/group_vars/all.yml").read_text())["llm_runtimes"]["cpu"]
    return runtimes["llm_runtimes"][name], sandbox


def request_of(name: str, folder: Path, sources: Path, toolkit: Path, cmake: dict[str, str]) -> dict[str, Any]:
    """What runtime_build would be given, with the cached source in place of the declared one and a bundled toolkit."""
    runtime, sandbox = declared(name)
    archive = sources / Path(sandbox["source"]["urls"][0]).name
    proof = {key: value for key, value in runtime.get("proof", {}).items() if key != "system_libs"}
    return {
        "name": name,
        "version": sandbox["version"],
        "source": {**sandbox["source"], "urls": [archive.as_uri()]},
        "arch": runtime["arch"],
        "cmake": {**sandbox["cmake"], **runtime.get("cmake", {}), **cmake},
        "proof": proof,
        "toolkit": {"path": str(toolkit)},
        "targets": ["llama-server"],
        "prefix": str(folder / "runtimes"),
        "ccache_dir": str(folder / "ccache"),
    }


def cuda_toolkit(folder: Path) -> Path:
    """CUDA from PyPI, laid out as cmake looks for it; made once for these versions."""
    wanted = "\n".join(f"{name}=={version}" for name, version in CUDA.items())
    home, stamp = folder / "cuda-13.0", folder / "cuda-13.0" / "requirements.txt"
    top = home / "nvidia" / "cu13"
    if stamp.is_file() and stamp.read_text() == wanted:
        return top
    shutil.rmtree(home, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(home), *wanted.split()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
        raise Untried(f"CUDA's packages do not install from PyPI ({', '.join(wanted.split())}): {tail[0]}")
    (top / "lib64").symlink_to("lib")
    target = top / "targets" / "x86_64-linux"
    target.mkdir(parents=True)
    for name in ("lib", "include"):
        (target / name).symlink_to(f"../../{name}")
    for name in ("cudart", "cublas", "cublasLt"):
        (top / "lib" / f"lib{name}.so").symlink_to(f"lib{name}.so.13")
    (top / "version.json").write_text(json.dumps(CUDA))
    stamp.write_text(wanted)
    return top


def cuda(folder: Path, sources: Path, job: dict[str, Any]) -> tuple[str, list[Row]]:
    """(what it was tried with, rows) of the runtime for sm_86."""
    if platform.machine() != "x86_64":
        raise Untried(f"CUDA's packages are pinned for x86_64, this is {platform.machine()}")
    top = cuda_toolkit(folder)
    runtime, _sandbox = declared("cuda-sm86")
    cmake = {
        "GGML_CUDA": "ON",
        "CMAKE_CUDA_ARCHITECTURES": runtime["arch"].removeprefix("sm_"),
        "CMAKE_CUDA_COMPILER": str(top / "bin" / "nvcc"),
        **CARDLESS,
    }
    job |= {
        "request": request_of("cuda-sm86", folder, sources, top, cmake),
        "library": "libggml-cuda.so",
        "lister": [str(top / "bin" / "cuobjdump"), "-lelf", "-lptx"],
        "result": str(folder / "cuda.json"),
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    rows = run_job([sys.executable, str(ROOT / "tools" / "check_build_one.py")], job, folder / "cuda.json", env)
    return f"nvcc {CUDA['nvidia-cuda-nvcc']}, cuBLAS {CUDA['nvidia-cublas']}, {os_name(Path('/'))}", rows


def run_job(argv: list[str], job: dict[str, Any], result: Path, env: dict[str, str]) -> list[Row]:
    """Run a job; a job that ends without rows is itself a red one."""
    result.unlink(missing_ok=True)
    done = subprocess.run(["nice", "-n", "10", *argv], input=json.dumps(job), env=env, text=True, check=False)
    if done.returncode or not result.is_file():
        return [Row("the checks themselves", RED, f"they ended with status {done.returncode}; see above")]
    return [Row(**row) for row in json.loads(result.read_text())]


def os_name(root: Path) -> str:
    """A system's own name, with its compiler's host."""
    release = (root / "etc" / "os-release").read_text()
    told = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    return told["PRETTY_NAME"].strip('"')


def sid_tree(folder: Path) -> Path:
    """Debian sid with its ROCm; made once, whole or not at all."""
    tree = folder / "sid-tree"
    wanted = " ".join([*SID, *ROCM])
    if (tree / "packages").is_file() and (tree / "packages").read_text() == wanted:
        return tree
    if not shutil.which("debootstrap"):
        raise Untried("debootstrap is not installed: apt-get install debootstrap")
    draft = folder / "sid.part"
    remove_tree(draft)
    command = ["debootstrap", "--variant=minbase", f"--include={wanted.replace(' ', ',')}", "sid", str(draft)]
    if mirror := os.environ.get("LLM_FLEET_DEBIAN_MIRROR"):
        command.append(mirror)
    with (folder / "sid.log").open("w") as log:
        done = subprocess.run([*alone(), *command], stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = (folder / "sid.log").read_text().strip().splitlines()[-1:]
        raise Untried(f"Debian sid with {', '.join(ROCM)} does not install: {' '.join(said)} (log: {folder}/sid.log)")
    subprocess.run(["chroot", str(draft), "apt-get", "clean"], check=True)
    for name in ("repository", "work", "sources"):
        (draft / MOUNTED[1:] / name).mkdir(parents=True)
    (draft / "packages").write_text(wanted)
    remove_tree(tree)
    draft.rename(tree)
    return tree


def alone() -> list[str]:
    """Namespaces that end with the command, and with us: no mount and no process stays."""
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def remove_tree(tree: Path) -> None:
    """Refuse to go through a mount."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(tree)], check=True)


def debian_toolkit(tree: Path, lib: Path) -> Path:
    """A toolkit's folder out of Debian's libraries and device code, without its cmake files: those know their place."""
    home = tree / "opt" / "rocm-of-debian"
    shutil.rmtree(home, ignore_errors=True)
    (home / "lib").mkdir(parents=True)
    for path in [*lib.glob("*.so*"), lib / "rocblas", lib / "hipblaslt"]:
        (home / "lib" / path.name).symlink_to(f"/{path.relative_to(tree)}")
    return Path("/") / home.relative_to(tree)


def hip(arch: str, folder: Path, sources: Path, job: dict[str, Any]) -> tuple[str, list[Row]]:
    """(what it was tried with, rows) of the runtime for ``arch``, with the ROCm of Debian sid bundled.

    Where Debian's rocBLAS has no code for the card, the bundle is proven without it, and its row says so.
    """
    tree, work = sid_tree(folder), folder / "hip"
    work.mkdir(exist_ok=True)
    lib = next((tree / "usr" / "lib").glob("*-linux-gnu"))
    toolkit = debian_toolkit(tree, lib)
    (blas,) = lib.glob("rocblas/*/library")
    lent = not any(arch in file.name for file in blas.iterdir())
    runtime, _sandbox = declared("rdna4-rocm714")
    cmake = {option: value.replace(runtime["arch"], arch) for option, value in runtime["cmake"].items()}
    there = Path(MOUNTED)
    request = request_of(
        "rdna4-rocm714",
        there / "work",
        there / "sources",
        toolkit,
        {**cmake, "CMAKE_HIP_COMPILER": newest(tree, "clang++")},
    )
    folders = [] if lent else [str(blas.relative_to(lib))]
    request |= {"name": f"hip-{arch}", "arch": arch}
    request["toolkit"]["libs"] = ["libhipblaslt.so.?", "libamd_comgr.so.?"]
    request["proof"] = {"device_code": [*folders, "hipblaslt/library"]}
    if lent:
        request["proof"]["system_libs"] = LENT
    job |= {
        "request": request,
        "library": "libggml-hip.so",
        "lister": [newest(tree, "llvm-objdump"), "--offloading"],
        "result": f"{MOUNTED}/work/{arch}.json",
    }
    mounts = {"repository": ROOT, "work": work, "sources": sources}
    steps = [f"mount --bind {shlex.quote(str(path))} {tree}{MOUNTED}/{name}" for name, path in mounts.items()]
    steps += [f"mount -t proc proc {tree}/proc", f"mount --bind /dev {tree}/dev"]
    python = f"env -i PATH=/usr/bin:/bin HOME=/root PYTHONPATH={MOUNTED}/repository/collections python3"
    steps += [f"exec chroot {tree} {python} {MOUNTED}/repository/tools/check_build_one.py"]
    rows = run_job([*alone(), "sh", "-ec", "; ".join(steps)], job, work / f"{arch}.json", dict(os.environ))
    if lent:
        rows.append(without_rocblas(lib, blas, arch))
    return f"{versions(tree, 'hipcc', 'librocblas4', 'libhipblaslt1')}, {os_name(tree)}", rows


def newest(tree: Path, program: str) -> str:
    """The path, within ``tree``, of a program that Debian keeps with its version in its name."""
    found = sorted((tree / "usr" / "bin").glob(f"{program}-[0-9]*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    if not found:
        raise Untried(f"Debian's hipcc brought no {program}")
    return f"/usr/bin/{found[-1].name}"


def without_rocblas(lib: Path, blas: Path, arch: str) -> Row:
    """Why rocBLAS is not in the bundle; our proof, asked of the real folder all the same, must say so too."""
    check = "device code of rocBLAS"
    faults = device_code_faults(str(lib), Expect(arch=arch, device_code=(str(blas.relative_to(lib)),)))
    held = device_archs(str(next(lib.glob("librocblas.so.*.*"))))
    if not faults or arch in held:
        return Row(check, RED, f"files for {arch}: {faults or 'none missed'}; the library holds {sorted(held)}")
    told = faults[0].replace(str(lib), "lib")
    return Row(
        check,
        UNTRIED,
        f"Debian's rocBLAS has none for {arch}. Asked all the same, the proof refuses its folder: {told}; the library "
        f"itself holds {', '.join(sorted(held))}",
    )


def versions(tree: Path, *packages: str) -> str:
    """What dpkg says of these packages in another system's tree."""
    query = ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n", *packages]
    return ", ".join(subprocess.run(query, check=False, capture_output=True, text=True).stdout.splitlines())


def table(title: str, told: str, rows: list[Row]) -> str:
    """Markdown, to read and to keep."""
    lines = [f"{title}: {told}.", "", "| Check | Result | Seconds | Found |", "| --- | --- | --- | --- |"]
    for row in rows:
        found = " ".join(row.found.split()).replace("|", "\\|")
        lines.append(f"| {row.check} | {row.result} | {row.seconds:g} | {found} |")
    return "\n".join(lines)


TRIED: dict[str, tuple[str, Callable[[Path, Path, dict[str, Any]], tuple[str, list[Row]]]]] = {
    "cuda-sm86": ("CUDA, sm_86", cuda),
    "hip-gfx1201": ("HIP, gfx1201", functools.partial(hip, "gfx1201")),
    "hip-gfx1100": ("HIP, gfx1100 (Debian's rocBLAS has code for it)", functools.partial(hip, "gfx1100")),
}


def main() -> None:
    """All of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(TRIED)}; all unless named")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at once")
    asked = parser.parse_args()
    if strange := sorted(set(asked.names) - set(TRIED)):
        parser.error(f"{strange[0]}: expected {', '.join(TRIED)}")
    cache = Path(os.environ["LLM_FLEET_CACHE"])
    folder, sources = cache / "check-builds", cache / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "kernels": KERNELS,
        "jobs": asked.jobs,
        "all": os.environ.get("LLM_FLEET_CHECK_ALL") == "1",
    }
    tables, red = [], 0
    for name in asked.names or TRIED:
        title, tried = TRIED[name]
        say(f"--> {title}")
        try:
            told, rows = tried(folder, sources, dict(job))
        except Untried as exc:
            told, rows = "nothing", [Row("all of it", UNTRIED, str(exc))]
        red += sum(row.result == RED for row in rows)
        tables.append(table(title, told, rows))
    today = datetime.datetime.now(datetime.UTC).date()
    # Where the cache lies is this machine's own affair.
    text = "\n\n".join([f"make check-builds, {today}", *tables]).replace(str(folder), "CACHE") + "\n"
    (folder / "result.md").write_text(text)
    say(f"\n{text}")
    say(f"{red} red; kept in {folder / 'result.md'}")
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    main()
