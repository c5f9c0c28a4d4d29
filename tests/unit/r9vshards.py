# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Made-up R9V payloads with the real tensors' names and sizes: headers as they are, data as holes in the file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ggufwriter import ARCH, I32, U16, Pair, T, gguf, padded

Q5_1, Q8_0, IQ4_NL, IQ3_S, IQ4_XS = 7, 8, 20, 21, 23
_BLOCKS = {Q5_1: (24, 32), Q8_0: (34, 32), IQ4_NL: (18, 32), IQ3_S: (110, 256), IQ4_XS: (136, 256)}
HIDDEN, CHANNELS, EXPERTS, LAYERS = 2560, 640, 512, 48
PLE_ROWS = 320_001_536
Layer = tuple[int, int]  # types of gate and up, and of down

Q8_LAYERS: list[Layer] = [(Q8_0, Q8_0)] * LAYERS
# Three kinds of layers that come to the published sum of the IQ4_XS package: 59,519,795,200 bytes of experts.
IQ4_LAYERS: list[Layer] = [(IQ4_XS, IQ4_NL)] * 5 + [(IQ3_S, Q5_1)] * 9 + [(IQ3_S, IQ4_NL)] * 34


def tensor(name: str, dims: Sequence[int], kind: int) -> T:
    """A tensor that knows its size."""
    size, block = _BLOCKS[kind]
    elements = 1
    for dim in dims:
        elements *= dim
    return T(name, dims, kind, nbytes=elements // block * size)


def layer(number: int, kinds: Layer) -> list[T]:
    """The expert tensors of one layer, with a plain one before them."""
    wide, narrow = (HIDDEN, CHANNELS, EXPERTS), (CHANNELS, HIDDEN, EXPERTS)
    return [
        tensor(f"blk.{number}.attn_q.weight", (HIDDEN, 64), Q8_0),
        tensor(f"blk.{number}.ffn_down_exps.weight", narrow, kinds[1]),
        tensor(f"blk.{number}.ffn_gate_exps.weight", wide, kinds[0]),
        tensor(f"blk.{number}.ffn_up_exps.weight", wide, kinds[0]),
    ]


def ple(kind: int = Q8_0, rows: int = PLE_ROWS) -> T:
    """The per-layer embedding."""
    return tensor("per_layer_token_embd.weight", (160, rows), kind)


def write(path: Path, pairs: Sequence[Pair], tensors: Sequence[T], *, more: int = 0) -> None:
    """One file; ``more`` bytes lie behind its last tensor."""
    at, placed = 0, []
    for each in tensors:
        placed.append(replace(each, offset=at))
        at = padded(at + (each.nbytes or 0), 32)
    head = gguf(pairs, placed, data=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head)
    if tensors:
        os.truncate(path, padded(len(head), 32) + at + more)


def write_set(folder: Path, stem: str, tables: Sequence[Sequence[T]], *, more: int = 0) -> list[Path]:
    """A set of shards, the metadata in the first; ``more`` bytes behind the last tensor of the last."""
    count, total = len(tables), sum(map(len, tables))
    paths = [folder / f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    for number, (path, table) in enumerate(zip(paths, tables, strict=True)):
        pairs: list[Pair] = [*([ARCH] if number == 0 else []), ("split.no", U16, number), ("split.count", U16, count)]
        pairs.append(("split.tensors.count", I32, total))
        write(path, pairs, table, more=more if number == count - 1 else 0)
    return paths


def target(folder: Path, stem: str, layers: Sequence[Layer], *, more: int = 0) -> list[Path]:
    """A whole target: no tensor in the first shard, layers in two, the embedding in the last."""
    tables = [
        [each for number in part for each in layer(number, layers[number])] for part in (range(24), range(24, 48))
    ]
    return write_set(folder, stem, [[], *tables, [ple()]], more=more)


def save(path: Path, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """JSON in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    path.chmod(mode)


def artifact(folder: Path, path: Path, role: str) -> dict[str, Any]:
    """A row of a package, its digest made up: nobody reads holes of a hundred gigabytes."""
    name = str(path.relative_to(folder))
    return {
        "role": role,
        "path": name,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(name.encode()).hexdigest(),
    }


@dataclass
class Bench:
    """A checkout with a new profile, its model folder, and a qualified sibling."""

    root: Path

    @property
    def checkout(self) -> Path:
        """The fork's."""
        return self.root / "fork"

    @property
    def model_dir(self) -> Path:
        """The new payload."""
        return self.root / "q8"

    @property
    def sibling_state(self) -> Path:
        """The setup state of the sibling."""
        return self.root / "state" / "setup.json"

    @property
    def sibling_manifest(self) -> Path:
        """The placement that the sibling serves with."""
        return self.root / "fork" / "placements" / "uncensored.json"

    @property
    def params(self) -> dict[str, Any]:
        """Options of r9v_placement."""
        return {
            "checkout": str(self.checkout),
            "profile": "profiles/q8/profile.json",
            "package": "packages/q8/package.json",
            "path": "placements/q8/bootstrap.json",
            "manifest": "placements/q8/bootstrap-manifest.json",
            "model_dir": str(self.model_dir),
            "sibling_state": str(self.sibling_state),
            "runtime": "runtimes/v3/runtime.json",
            "cache_slots": 80,
            "cache_ranks": [0],
        }

    def edit(self, path: Path | str, change: Any) -> None:
        """Have ``change`` work on the JSON of a file."""
        file = self.checkout / path
        told = json.loads(file.read_text())
        change(told)
        save(file, told, file.stat().st_mode & 0o777)


def sibling_manifest(hot: Sequence[int], costs: Sequence[int]) -> dict[str, Any]:
    """A manifest with so many hot experts in every layer; ``costs`` are the bytes of one in all layers, by rank."""
    return {
        "version": 1,
        "num_layers": LAYERS,
        "num_experts": EXPERTS,
        "top_k": 10,
        "ranks": {
            str(rank): {
                "hot_count": count,
                "hot_slots": count * LAYERS,
                "hot_bytes": count * costs[rank],
                "hot_experts_by_layer": [list(range(count)) for _ in range(LAYERS)],
            }
            for rank, count in enumerate(hot)
        },
    }


def make_bench(root: Path) -> Bench:
    """All of it, sound: an IQ4_XS sibling with 62 and 428 hot experts, and Q8_0 shards for a new profile."""
    bench = Bench(root)
    shards = target(bench.model_dir / "Q8_0", "Flash-Q8_0", Q8_LAYERS)
    rows = [artifact(bench.model_dir, path, "target") for path in shards]
    words = {"id": "flash-q8", "model": "Flash", "quant": "Q8_0", "license": "none"}
    save(bench.checkout / "packages/q8/package.json", {"schema": "r9v.model-package.v1", **words, "artifacts": rows})
    save(
        bench.checkout / "profiles/q8/profile.json",
        {
            "schema": "r9v.profile.v1",
            "model_package": "flash-q8",
            "hardware": "dual-r9700-32gb-asymmetric",
            "placement": "flash-q8-dual-r9700-bootstrap",
        },
    )
    can = {"max_cache_slots": 192, "expert_channel_partitions": [[320, 320], [416, 224]], "target_qtypes": ["Q8_0"]}
    save(bench.checkout / "runtimes/v3/runtime.json", {"schema": "r9v.runtime.v1", "capabilities": can})
    make_sibling(bench)
    return bench


def make_sibling(bench: Bench) -> None:
    """The sibling's payload, state and placement."""
    folder = bench.root / "iq4"
    first = target(folder / "target", "Flash-IQ4_XS", IQ4_LAYERS)[0]
    (folder / "vision").mkdir()
    (folder / "vision" / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (folder / "table.bin").write_bytes(b"table")
    artifacts = {}
    for path in sorted([*folder.rglob("*.gguf")]):
        info = path.stat()
        identity = [str(path), info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        artifacts[str(path.relative_to(folder))] = {"identity": identity, "sha256": "a1" * 32}
    state = {
        "ready": True,
        "profile_id": "flash/uncensored",
        "artifacts": artifacts,
        "config": {
            "R9V_IMAGE": f"sha256:{'2d' * 32}",
            "R9V_MODEL_DIR": str(folder),
            "R9V_PLE_PATH": str(folder / "table.bin"),
            "R9V_TARGET_REL": str(first.relative_to(folder)),
            "R9V_EXPERT_TP_SPLIT": "416,224",
            "R9V_EXPERT_MANIFEST_PATH": str(bench.sibling_manifest),
        },
    }
    save(bench.sibling_state, state, 0o600)
    # 116,249,600 bytes of one expert in all layers: 416 of 640 on rank 0, the rest on rank 1.
    save(bench.sibling_manifest, sibling_manifest((62, 428), (75_562_240, 40_687_360)))
