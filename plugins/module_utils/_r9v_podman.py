# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""podman as an endpoint's user has it: his images by their digests, his containers by name."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run

__all__ = ["Container", "Image", "Podman", "container_of", "image_of", "processes"]

# The name of a volume that nobody named: an image asks for it, and no argument does.
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """An image: its id (the config's digest) and every manifest digest by which it is known, bare hex."""

    id: str
    digests: frozenset[str]
    names: tuple[str, ...]

    def is_of(self, digest: str) -> bool:
        """Whether ``digest`` (hex, or its beginning) is one of its identities."""
        return any(known.startswith(digest) for known in {self.id, *self.digests})


@dataclass(frozen=True)
class Container:
    """A container as podman tells of it; ``mounts`` is destination to source, ``pid`` 0 when it does not run."""

    id: str
    status: str
    pid: int
    conmon_pid: int
    exit_code: int
    image_id: str
    image_digest: str
    mounts: Mapping[str, str]
    netns: str


def _hex(text: Any) -> str:
    return str(text or "").rpartition("sha256:")[2]


def image_of(row: Mapping[str, Any]) -> Image:
    """From a row of ``podman images --format json``; RepoDigests hold the digests under which it was loaded."""
    digests = {_hex(text) for text in [row.get("Digest"), *(row.get("RepoDigests") or ())]} - {""}
    return Image(_hex(row["Id"]) or str(row["Id"]), frozenset(digests), tuple(row.get("Names") or ()))


def container_of(row: Mapping[str, Any]) -> Container:
    """From ``podman container inspect``."""
    state = row["State"]
    return Container(
        id=str(row["Id"]),
        status=str(state["Status"]),
        pid=int(state.get("Pid") or 0),
        conmon_pid=int(state.get("ConmonPid") or 0),
        exit_code=int(state.get("ExitCode") or 0),
        image_id=_hex(row.get("Image")) or str(row.get("Image")),
        image_digest=_hex(row.get("ImageDigest")),
        mounts={
            str(mount["Destination"]): str(mount.get("Source", ""))
            for mount in row.get("Mounts") or ()
            if not _ANONYMOUS.fullmatch(str(mount.get("Name") or ""))
        },
        netns=str((row.get("NetworkSettings") or {}).get("SandboxKey") or ""),
    )


class Podman:
    """podman with one user's images and containers. The module that asks runs as root, or as that very user."""

    def __init__(self, user: str) -> None:
        try:
            self._entry = pwd.getpwnam(user)
        except KeyError as exc:
            raise FleetError(
                f"user {user}", expected="a user of this host", found="none", remedy="Run site.yml"
            ) from exc
        self.user = user

    def _run(self, args: Sequence[str], *, timeout_s: float = 60, check: bool = True) -> Completed:
        entry = self._entry
        # As in the unit, which has no session: the same folders are found by the same rules.
        env = {"HOME": entry.pw_dir, "USER": self.user, "LOGNAME": self.user, "PATH": _PATH, "LC_ALL": "C.UTF-8"}
        ids = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
        switch = [] if entry.pw_uid == os.geteuid() else ["setpriv", *ids]
        return run([*switch, "podman", *args], env=env, cwd="/", timeout_s=timeout_s, check=check)

    def _json(self, args: Sequence[str]) -> Any:
        text = self._run(args).stdout
        try:
            return json.loads(text)
        except ValueError as exc:
            raise FleetError(
                f"podman {' '.join(args)}", expected="JSON", found=text[:120], remedy="See podman info"
            ) from exc

    def images(self) -> list[Image]:
        """All images of the user."""
        return [image_of(row) for row in self._json(["images", "--format", "json"])]

    def image(self, digest: str) -> Image | None:
        """The image of a digest (hex, or its beginning), by any of its identities; None where there is none."""
        return next((image for image in self.images() if image.is_of(digest)), None)

    def load(self, archive: str) -> str:
        """Load an archive; what podman says of it."""
        return self._run(["load", "--input", archive], timeout_s=3600).stdout.strip()

    def container(self, name: str) -> Container | None:
        """The container of that name; None where there is none (a fault of podman's is raised)."""
        done = self._run(["container", "inspect", name], check=False)
        if done.rc != 0:
            if "no such container" in done.stderr.lower():
                return None
            raise FleetError(
                f"podman container inspect {name}", expected="exit status 0", found=f"{done.rc}: {done.tail}"
            )
        return container_of(json.loads(done.stdout)[0])

    def running_with(self, source: str) -> list[str]:
        """The names of running containers that have the file or folder ``source`` mounted."""
        ids = self._run(["ps", "--quiet", "--no-trunc"]).stdout.split()
        rows = self._json(["container", "inspect", *ids]) if ids else []
        return [str(row["Name"]).lstrip("/") for row in rows if source in container_of(row).mounts.values()]


def processes(pid: int) -> list[int]:
    """A process and those that descend from it, by their parents; [] when it has ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _proc.parent_of(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found = [pid] if pid and os.path.exists(f"/proc/{pid}") else []
    for each in found:  # grows while it is walked
        found += children.get(each, [])
    return found
