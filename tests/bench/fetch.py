# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time to a verified file from an nginx on the loopback: ours beside what one uses otherwise, in one run.

One file and a set of shards, made of random bytes in memory (by default), are fetched in turn by each way, so that a
machine whose speed drifts slows all. ``bare download`` (curl, nothing proven) and ``bare hashing`` (hashlib, nothing
fetched) bound what is possible; nothing verified can be faster than the slower of the two by itself. Then a set of
sparse files of 175 GiB whose stamps fit is verified again, beside the time that hashing it would take. Prints tables;
asserts nothing about time, but a way that leaves a wrong file is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"nginx": "nginx-light", "aria2c": "aria2", "curl": "curl"}
HUB = "huggingface_hub==2.4.0"
PORT = 18917
BASE = f"http://127.0.0.1:{PORT}"
COMMIT = "0" * 40  # the peer wants to be told one
BLOCK = 1 << 20

OURS = """
import json, sys
from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import PayloadSpec, ensure
from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
result = ensure(PayloadSpec.from_params(json.load(sys.stdin)), check_mode=False, progress=Progress(None))
print(sorted({file["action"] for file in result["files"]}), result["failures"])
"""
HF = """
import concurrent.futures, hashlib, sys
from huggingface_hub import hf_hub_download
def one(name):
    path = hf_hub_download("bench/bench", name, local_dir=sys.argv[1])
    with open(path, "rb") as handle:
        return f"{hashlib.file_digest(handle, 'sha256').hexdigest()}  {name}"
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(*pool.map(one, sys.argv[2:]), sep="\\n")
"""
HASH = """
import concurrent.futures, hashlib, sys
def one(path):
    with open(path, "rb", buffering=0) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(*pool.map(one, sys.argv[1:]))
"""

Files = dict[str, str]  # name: sha256


def programs() -> None:
    """Install what is missing, or say what is."""
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if not missing:
        return
    if os.geteuid() or not shutil.which("apt-get"):
        sys.exit(f"this needs {', '.join(missing)}; install them, or run it as root on Debian")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", "update"], check=True, env=env)
    subprocess.run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing], check=True, env=env)


def hub_python(folder: Path) -> str:
    """An interpreter with huggingface_hub, in a virtual environment of its own."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", HUB], check=True)
    return python


def make(folder: Path, sizes: dict[str, int]) -> Files:
    """Random files; their digests."""
    folder.mkdir()
    made = {}
    for name, size in sizes.items():
        digest = hashlib.sha256()
        with (folder / name).open("wb") as handle:
            left = size
            while left:
                block = (b"GGUF" + os.urandom(BLOCK))[: min(BLOCK, left)]
                handle.write(block)
                digest.update(block)
                left -= len(block)
        made[name] = digest.hexdigest()
    return made


def nginx(folder: Path, served: Path) -> subprocess.Popen[bytes]:
    """An nginx that serves ``served`` at / and as the one repository of a hub."""
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{PORT}; root {served};\n"
        f"location ~ ^/bench/bench/resolve/[^/]+/(.*)$ {{ alias {served}/$1; add_header X-Repo-Commit {COMMIT}; }}\n"
        "} }\n"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    server = subprocess.Popen([program, "-c", str(config), "-p", str(folder), "-e", f"{folder}/error.log"])
    deadline = time.monotonic() + 10
    while subprocess.run(["curl", "-s", "-o", "/dev/null", BASE], check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("nginx does not start: " + (folder / "error.log").read_text())
        time.sleep(0.05)
    return server


def call(command: list[str], **options: object) -> str:
    """Run it; its output. A failure ends the bench."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return str(done.stdout)


def collection() -> dict[str, str]:
    """The environment in which Python finds the collection, and Ansible this checkout."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "collections"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "no_proxy": "*",
    }


def params(target: Path, served: Path, files: Files, connections: int) -> dict[str, object]:
    """The options of our module."""
    return {
        "name": "bench",
        "dir": str(target),
        "stamp_dir": str(target / "stamps"),
        "mode": "0644",
        "verify": "stamp",
        "connections": connections,
        "files": [
            {"name": name, "bytes": (served / name).stat().st_size, "sha256": digest, "urls": [f"{BASE}/{name}"]}
            for name, digest in files.items()
        ],
    }


def adhoc(module: str, args: dict[str, object]) -> None:
    command = [sys.executable, "-m", "ansible", "adhoc", "localhost", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", module, "-a", json.dumps(args)]
    call(command, env=collection(), cwd=ROOT)


def ways(served: Path, python: str) -> dict[str, Callable[[Path, Files], None]]:
    """Each way of getting the files into a folder; all but ``bare download`` verify them."""

    def curl(target: Path, files: Files) -> None:
        arguments = [part for name in files for part in ("-o", str(target / name), f"{BASE}/{name}")]
        call(["curl", "-sf", "-Z", "--parallel-max", "4", *arguments])

    def curl_then_sum(target: Path, files: Files) -> None:
        curl(target, files)
        lines = "".join(f"{digest}  {name}\n" for name, digest in files.items())
        call(["sha256sum", "--quiet", "-c"], input=lines, cwd=target)

    def aria2(target: Path, files: Files) -> None:
        lines = "".join(f"{BASE}/{name}\n  out={name}\n  checksum=sha-256={files[name]}\n" for name in files)
        options = ["-q", "-x8", "-s8", "-j4", "-k1M", "--allow-overwrite=true", f"-d{target}"]
        call(["aria2c", *options, "-i-"], input=lines)

    def hub(target: Path, files: Files) -> None:
        env = {**os.environ, "HF_ENDPOINT": BASE, "HF_HOME": str(target / "home"), "no_proxy": "*"}
        env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
        told = call([python, "-c", HF, str(target), *files], env=env)
        if {tuple(line.split()) for line in told.splitlines()} != {(digest, name) for name, digest in files.items()}:
            sys.exit(f"huggingface_hub brought other bytes:\n{told}")

    def get_url(target: Path, files: Files) -> None:
        for name, digest in files.items():
            url = {"url": f"{BASE}/{name}", "dest": str(target / name), "checksum": f"sha256:{digest}", "timeout": 60}
            adhoc("ansible.builtin.get_url", {**url, "use_proxy": False})

    def ours(target: Path, files: Files) -> None:
        told = call([sys.executable, "-c", OURS], input=json.dumps(params(target, served, files, 4)), env=collection())
        if told.strip() != "['fetched'] []":
            sys.exit(f"ours: {told}")

    def ours_by_ansible(target: Path, files: Files) -> None:
        adhoc("dank.llm_fleet.payload", params(target, served, files, 4))

    return {
        "ours": ours,
        "bare download": curl,
        "bare hashing": lambda _, files: void(
            call([sys.executable, "-c", HASH, *(str(served / name) for name in files)])
        ),
        "curl, sha256sum": curl_then_sum,
        "aria2c -x8": aria2,
        "huggingface_hub": hub,
        "ours, by ansible": ours_by_ansible,
        "get_url": get_url,
    }


def void(_: object) -> None:
    """What a way returns is of no interest."""


def cpu_s() -> float:
    """Processor seconds of all programs that were waited for: those of a way, without the server's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def right(target: Path, served: Path, files: Files) -> bool:
    """Whether all files came, byte for byte."""
    same = ["cmp", "-s"]
    return all(
        subprocess.run([*same, str(target / name), str(served / name)], check=False).returncode == 0 for name in files
    )


def race(
    title: str, folder: Path, served: Path, files: Files, chosen: dict[str, Callable[[Path, Files], None]], runs: int
) -> float:
    """Time the ways in turn and print their table; the bytes a second of bare hashing."""
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for _run in range(runs):
        for name, way in chosen.items():
            target = folder / "target"
            target.mkdir()
            before, begin = cpu_s(), time.monotonic()
            way(target, files)
            seconds.setdefault(name, []).append(time.monotonic() - begin)
            cpu.setdefault(name, []).append(cpu_s() - before)
            if name != "bare hashing" and not right(target, served, files):
                sys.exit(f"{name} left a wrong file")
            shutil.rmtree(target)
    total = sum((served / name).stat().st_size for name in files)
    middle = {name: statistics.median(took) for name, took in seconds.items()}
    bound = max(middle["bare download"], middle["bare hashing"])
    print(f"\n{title}; {runs} runs in turn; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'way':<18}{'min s':>8}{'median s':>10}{'MB/s':>8}{'x ours':>8}{'x bound':>9}{'CPU s':>8}")
    for name, took in middle.items():
        print(
            f"{name:<18}{min(seconds[name]):>8.2f}{took:>10.2f}{total / took / 1e6:>8.0f}"
            f"{took / middle['ours']:>8.2f}{took / bound:>9.2f}"
            f"{statistics.median(cpu[name]):>8.2f}"
        )
    return total / middle["bare hashing"]


def stamped(folder: Path, rate: float) -> None:
    """Verify a stamped set of sparse files again."""
    sys.path.insert(0, str(ROOT / "collections"))
    from ansible_collections.dank.llm_fleet.plugins.module_utils._payload import PayloadSpec, ensure
    from ansible_collections.dank.llm_fleet.plugins.module_utils._progress import Progress
    from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, Split, write_stamp

    place, size = folder / "sparse", (175 << 30) // 6
    place.mkdir()
    names = [f"m-0000{number}-of-00006.gguf" for number in range(1, 7)]
    digest = "5" * 64
    for number, name in enumerate(names):
        with (place / name).open("wb") as handle:
            os.truncate(handle.fileno(), size)
        (place / name).chmod(0o644)
        identity, split = Identity.of((place / name).stat()), Split(number, 6, 600, 100)
        write_stamp(str(place / "stamps"), str(place / name), digest, identity, split=split)
    files = [{"name": name, "bytes": size, "sha256": digest} for name in names]
    given = {"name": "sparse", "dir": str(place), "stamp_dir": str(place / "stamps"), "mode": "0644"}
    took = []
    for _run in range(20):
        begin = time.monotonic()
        spec = PayloadSpec.from_params({**given, "files": files, "verify": "stamp"})
        result = ensure(spec, check_mode=False, progress=Progress(None))
        took.append(time.monotonic() - begin)
        if result["changed"] or result["work"]:
            sys.exit("the stamped set is not converged")
    total = 6 * size
    print(f"\nstamped set of {total / 2**30:.0f} GiB verified again: {statistics.median(took) * 1e3:.1f} ms", end="")
    print(f" (slowest of 20: {max(took) * 1e3:.1f} ms); hashing it at {rate / 1e6:.0f} MB/s: {total / rate:.0f} s")


def main() -> None:
    """Set up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--where", default="/dev/shm", help="a folder on the file system to use")
    parser.add_argument("--mib", type=int, default=1024, help="of the one file; a shard has half of it")
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=[], help="these ways, beside ours and the two bounds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing is left behind
    programs()
    need = given.mib * (1 + given.shards) << 20
    if shutil.disk_usage(given.where).free < need * 5 // 4:
        sys.exit(f"{given.where} has no room for {need >> 20} MiB; set --where or --mib")
    sizes = {"one.bin": given.mib << 20}
    sizes |= {f"shard{number}.bin": given.mib << 19 for number in range(1, given.shards + 1)}
    with tempfile.TemporaryDirectory(dir=given.where) as scratch, tempfile.TemporaryDirectory() as tools:
        folder, served = Path(scratch), Path(scratch) / "served"
        wanted = {"ours", "bare download", "bare hashing", *given.only}
        python = hub_python(Path(tools)) if not given.only or "huggingface_hub" in wanted else sys.executable
        chosen = {name: way for name, way in ways(served, python).items() if not given.only or name in wanted}
        made = make(served, sizes)
        folder.chmod(0o755)
        server = nginx(Path(tools), served)
        Path(tools).chmod(0o755)
        try:
            one = {"one.bin": made.pop("one.bin")}
            rate = race(f"one file of {given.mib} MiB", folder, served, one, chosen, given.runs)
            if made:
                race(f"{given.shards} shards of {given.mib // 2} MiB", folder, served, made, chosen, given.runs)
            stamped(Path(tools), rate)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
