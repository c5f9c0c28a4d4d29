# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the models on the host, starts a real llama-server there for each case, and reads what its log says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog import parse_boot_log
from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import BootLog
from ansible_collections.dank.llm_fleet.plugins.module_utils._gguf import Gguf, read_gguf
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import Ledger, predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import MIB, Shape
from cases import Case
from fleet import CACHE, ROOT, Fleet
from tinymodels import MODELS, build

RUNTIME = "/opt/llm-fleet/runtimes/cpu/bin"
FOLDER = "/var/tmp/fit"
TOY = ROOT / "tests" / "fixtures" / "probe_model"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
RUNNER = Path(__file__).with_name("boot_on_host.py")


def sources() -> Path:
    """The cache that every test host has as /var/cache/llm-fleet/sources."""
    return CACHE / "sources"


def on_host(model: str) -> str:
    """A model's path on the host."""
    return f"/var/cache/llm-fleet/sources/{SMOLLM2}" if model == "smollm2" else f"{FOLDER}/{model}.gguf"


def _content(model: str) -> bytes:
    return build(model) if model in MODELS else (TOY / f"{model}.gguf").read_bytes()


@cache
def header(model: str) -> Gguf:
    """A model's header, read here."""
    if model == "smollm2":
        return read_gguf(str(sources() / SMOLLM2))
    if model not in MODELS:
        return read_gguf(str(TOY / f"{model}.gguf"))
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"llm-fleet-{model}-{os.getpid()}.gguf"
    path.write_bytes(build(model))
    try:
        return read_gguf(str(path))
    finally:
        path.unlink()


def ledger_of(case: Case) -> Ledger:
    """What we predict, on the controller, from the headers alone."""
    drafter, mmproj, lora = (name and header(name) for name in (case.drafter, case.mmproj, case.lora))
    return predict(header(case.model), case.shape, drafter=drafter, mmproj=mmproj, lora=lora, cards=[])


def flags(shape: Shape) -> list[str]:
    """A shape as arguments."""
    told = ["--ctx-size", shape.ctx_size, "--ubatch-size", shape.ubatch_size, "--batch-size", shape.batch_size]
    told += ["--cache-type-k", shape.cache_type_k, "--cache-type-v", shape.cache_type_v]
    told += ["--flash-attn", shape.flash_attn]
    if shape.parallel is not None:
        told += ["--parallel", shape.parallel]
    if shape.kv_unified is not None:
        told += ["--kv-unified" if shape.kv_unified else "--no-kv-unified"]
    if shape.swa_full:
        told += ["--swa-full"]
    if shape.spec_type is not None:
        told += ["--spec-type", shape.spec_type, "--spec-draft-n-max", shape.spec_draft_n_max]
        told += ["--spec-draft-type-k", shape.draft_type_k, "--spec-draft-type-v", shape.draft_type_v]
    return [str(word) for word in told]


def arguments(case: Case) -> list[str]:
    """The server's, the program first."""
    told = [f"{RUNTIME}/llama-server", "--model", on_host(case.model), *flags(case.shape)]
    for flag, name in (("--spec-draft-model", case.drafter), ("--mmproj", case.mmproj), ("--lora", case.lora)):
        if name:
            told += [flag, on_host(name)]
    # Weights in the layout that this very processor likes would lie in a buffer of their own.
    return [*told, "--threads", "1", "--fit", "off", "--no-warmup", "--no-repack", "--log-verbosity", "4"]


def send(fleet: Fleet, command: str, content: bytes) -> str:
    """Run a command on the host with ``content`` as its input."""
    config = sources().parent / "testhosts" / "ssh_config"
    done = subprocess.run(["ssh", "-F", str(config), fleet.host, command], input=content, capture_output=True)
    assert done.returncode == 0, f"{command}: {done.returncode} {done.stderr.decode()}"
    return done.stdout.decode()


def put(fleet: Fleet, files: Mapping[str, bytes]) -> None:
    """Write files into the folder on the host, in one go."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    send(fleet, f"mkdir -p {FOLDER} && tar -x -C {FOLDER}", packed.getvalue())


def put_models(fleet: Fleet) -> None:
    """Have all models on the host."""
    names = [*MODELS, *(path.stem for path in TOY.glob("*.gguf"))]
    put(fleet, {f"{name}.gguf": _content(name) for name in names})


@dataclass(frozen=True)
class Boot:
    """How a start ended, its log, and what the collection reads there."""

    listening: bool
    rc: int
    log: str

    @cached_property
    def read(self) -> BootLog:
        """The log, read."""
        return parse_boot_log(self.log)


def boot_all(fleet: Fleet, cases: Sequence[Case]) -> dict[str, Boot]:
    """Start the server for each case until it listens, then stop it."""
    put(fleet, {"boot_on_host.py": RUNNER.read_bytes()})
    told = json.dumps({case.id: arguments(case) for case in cases}).encode()
    ends = json.loads(send(fleet, f"python3 {FOLDER}/boot_on_host.py", told))
    return {name: Boot(**end) for name, end in ends.items()}


def measured(boot: BootLog) -> list[dict[str, str]]:
    """Each context of a boot: n_ctx, n_ctx_seq and MiB of every kind of cache, to the log's two places."""
    contexts = []
    for context in (boot.target, boot.draft):
        if context is None:
            continue
        sizes: dict[str, float] = {}
        for held in context.caches:
            kind = {"full": "kv", "window": "kv_window"}[held.kind]
            sizes |= {f"{kind}_k": held.k_mib, f"{kind}_v": held.v_mib}
        if context.states is not None:
            sizes |= {"recurrent_r": context.states.r_mib, "recurrent_s": context.states.s_mib}
        # A cache for no layer at all is printed as 0.00.
        told = {name: f"{mib:.2f}" for name, mib in sizes.items() if mib}
        contexts.append({"n_ctx": str(context.n_ctx), "n_ctx_seq": str(context.n_ctx_seq), **told})
    return contexts


def predicted(ledger: Ledger, drafts: bool) -> list[dict[str, str]]:
    """The same of a ledger, to the log's two places."""
    contexts = []
    for prefix in ("", "draft_") if drafts else ("",):
        lines = [line for line in ledger.lines if line.term in (f"{prefix}kv", f"{prefix}recurrent")]
        sizes = {line.name.removeprefix(prefix): f"{line.bytes / MIB:.2f}" for line in lines}
        contexts.append({"n_ctx": str(ledger.n_ctx), "n_ctx_seq": str(ledger.n_ctx_seq), **sizes})
    return contexts
