# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The setup state of the R9V fork: what its setup qualified and wrote down, and whether what it names is whole.

The file is the fork's own (``setup.json``, written by its ``setup`` with mode 0600): ``ready``, ``profile_id``,
``config`` (``R9V_*`` keys, all text) and ``artifacts``, the receipts of the payload files that it hashed: ``sha256``
and ``identity`` (path, device, inode, size, mtime and ctime in ns) at that time. It is read here and never written.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import read_json

__all__ = ["Artifact", "State", "faults_of", "in_use", "read_state", "role_of"]

_SETUP = "Finish r9v setup for that folder, or set R9V_STATE_FILE to a state that is whole"
_NEEDED = ("R9V_IMAGE", "R9V_MODEL_DIR", "R9V_PLE_PATH")
_PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")


@dataclass(frozen=True)
class Artifact:
    """A payload file that setup hashed; ``path`` is absolute, sizes in bytes, times in ns."""

    path: str
    sha256: str
    inode: int
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class State:
    """A setup state that is ready, as far as it matters to a deploy."""

    path: str
    profile_id: str
    config: Mapping[str, str]
    artifacts: tuple[Artifact, ...]

    @property
    def image(self) -> str:
        """The image that it was qualified with: ``sha256:<manifest>``, or a name."""
        return self.config["R9V_IMAGE"]


def _refuse(what: str, expected: str, found: Any, remedy: str = _SETUP) -> FleetError:
    return FleetError(what, expected=expected, found=found, remedy=remedy, gate="setup")


def _artifact(path: str, name: str, given: Any, model_dir: str) -> Artifact:
    identity = given.get("identity") if isinstance(given, Mapping) else None
    sound = (
        isinstance(identity, list)
        and len(identity) == 6
        and isinstance(identity[0], str)
        and all(isinstance(number, int) for number in identity[1:])
        and isinstance(given.get("sha256"), str)
    )
    if not sound or identity is None:
        raise _refuse(f"setup state {path}: artifacts.{name}", "identity (six values) and sha256", repr(given)[:120])
    file = os.path.normpath(os.path.join(model_dir, name))
    if os.path.isabs(name) or not file.startswith(f"{model_dir.rstrip('/')}/"):
        raise _refuse(f"setup state {path}: artifacts.{name}", f"a path below {model_dir}", name)
    return Artifact(file, given["sha256"], identity[2], identity[3], identity[4])


def read_state(path: str) -> State:
    """The state at ``path``; a FleetError of gate ``setup`` where it is missing, open to others, or not ready."""
    told = read_json(path)
    if told is None:
        raise _refuse(f"R9V_STATE_FILE {path}", "the setup state that r9v setup writes", "no such file")
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise _refuse(f"setup state {path}", "mode 0600", f"mode {mode:04o}", f"chmod 0600 {path}")
    if not isinstance(told, dict):
        raise _refuse(f"setup state {path}", "a JSON object", type(told).__name__)
    if told.get("ready") is not True:
        raise _refuse(f"setup state {path} is not ready", "ready: true", f"ready: {told.get('ready', '(no such key)')}")
    config, artifacts = told.get("config"), told.get("artifacts")
    if not isinstance(config, dict) or not isinstance(artifacts, dict) or not artifacts:
        raise _refuse(f"setup state {path}", "config and artifacts, both dictionaries", sorted(told))
    for key, value in config.items():
        if not key.startswith("R9V_") or not isinstance(value, str):
            raise _refuse(f"setup state {path}: config.{key}", "keys R9V_... with text", repr(value))
    missing = [key for key in _NEEDED if not config.get(key)]
    if missing:
        raise _refuse(f"setup state {path}: config", ", ".join(_NEEDED), f"no {', '.join(missing)}")
    model_dir = config["R9V_MODEL_DIR"]
    return State(
        path,
        str(told.get("profile_id") or ""),
        dict(config),
        tuple(_artifact(path, str(name), artifacts[name], model_dir) for name in sorted(artifacts)),
    )


def in_use(path: str) -> bool:
    """Whether a setup or a start of the fork's works in the state's folder now: each holds ``setup.lock`` meanwhile."""
    try:
        descriptor = os.open(os.path.join(os.path.dirname(path), "setup.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def role_of(path: str) -> str:
    """What a file of the model folder is to the engine, by its name: shard, model, mmproj or other."""
    name = os.path.basename(path)
    if not name.endswith(".gguf"):
        return "other"
    if "mmproj" in name:
        return "mmproj"
    return "shard" if _PART.fullmatch(name) else "model"


def _lacking_parts(state: State) -> list[str]:
    """Parts of a split model that setup never saw, by file name."""
    names = {os.path.basename(artifact.path) for artifact in state.artifacts}
    found = []
    for match in filter(None, map(_PART.fullmatch, sorted(names))):
        stem, parts = match["stem"], match["parts"]
        found += [f"{stem}-{number:05d}-of-{parts}.gguf" for number in range(1, int(parts) + 1)]
    return sorted({name for name in found if name not in names})


def _file_fault(artifact: Artifact) -> str:
    try:
        info = os.stat(artifact.path)
    except FileNotFoundError:
        return f"{artifact.path} is missing"
    if info.st_size != artifact.bytes:
        return f"{artifact.path} has {info.st_size:,} bytes, and setup verified {artifact.bytes:,}"
    if (info.st_ino, info.st_mtime_ns) != (artifact.inode, artifact.mtime_ns):
        return f"{artifact.path} was changed or replaced since setup verified it"
    return ""


def _ple_fault(state: State, ple_bytes: int | None) -> str:
    path = state.config["R9V_PLE_PATH"]
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return f"the embedding table {path} is missing"
    if ple_bytes is not None and size != ple_bytes:
        return f"the embedding table {path} has {size:,} bytes, and {ple_bytes:,} are declared"
    return ""


def faults_of(state: State, ple_bytes: int | None, declared: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """What is not whole of the files that ``state`` names, each in words; [] when all are there as setup verified them.

    ``ple_bytes`` is the declared size of the embedding table, ``declared`` the files of the endpoint's payload
    (``{path, sha256}``) that must be among the state's. Nothing is hashed: setup's receipts tell of each file's size,
    inode and time of change. A changed mode or owner (ctime) is no change of a file.
    """
    faults = [f"{name} is no file of the state, though its other parts are" for name in _lacking_parts(state)]
    if not any(role_of(artifact.path) == "mmproj" for artifact in state.artifacts):
        faults.append("the state names no projector (a .gguf with mmproj in its name)")
    faults += filter(None, map(_file_fault, state.artifacts))
    known = {artifact.path: artifact.sha256 for artifact in state.artifacts}
    for file in declared:
        digest = known.get(file["path"])
        if digest is None:
            faults.append(f"{file['path']} is declared, and setup did not verify it")
        elif file.get("sha256") and not digest.startswith(file["sha256"]):
            faults.append(f"{file['path']} has sha256 {digest} by setup, and {file['sha256']} is declared")
    ple = _ple_fault(state, ple_bytes)
    return [*faults, ple] if ple else faults
