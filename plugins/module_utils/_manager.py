# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd's manager of the system or of a user, and the podman beside it: what runs, and the few verbs."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import DryRun, copy_without, parse_dry_run
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import Completed, run

__all__ = ["Account", "Container", "Manager", "Seen", "account", "listens", "parse_containers", "parse_seen", "pids_in"]

_GENERATORS = (
    "/usr/libexec/podman/quadlet",
    "/usr/lib/systemd/system-generators/podman-system-generator",
    "/usr/lib/podman/quadlet",
)
_PROPERTIES = (
    "LoadState ActiveState SubState UnitFileState FragmentPath DropInPaths RequiredBy BoundBy TriggeredBy ConsistsOf"
).split()
_STOPPED = ("exited", "created", "configured", "dead", "removing")


@dataclass(frozen=True)
class Account:
    """A login: whose home holds the trash, and whose manager is meant in the scope ``user``."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True)
class Seen:
    """What ``systemctl show`` says of one unit; ``hangers`` are units that stop, or start it again, with it."""

    load: str
    active: str
    sub: str
    unit_file: str
    fragment: str
    drop_ins: tuple[str, ...]
    hangers: tuple[str, ...]

    @property
    def stopped(self) -> bool:
        """Nothing of it runs, and systemd does not mean to start it again by itself."""
        return self.active in ("inactive", "failed")


@dataclass(frozen=True)
class Container:
    """One of podman's containers; ``unit`` is the service that made it, by podman's own label."""

    id: str
    name: str
    state: str
    unit: str
    pid: int

    @property
    def running(self) -> bool:
        """Whether it may hold a port or memory: in any state but a stopped one."""
        return self.state not in _STOPPED


def account(name: str) -> Account:
    """The login ``name``; a FleetError where there is none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as exc:
        raise FleetError(f"user {name} is not on this host", expected="a login", found="none") from exc
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir.rstrip("/") or "/")


def parse_seen(text: str) -> Seen:
    """Read the ``Key=value`` lines of ``systemctl show``; a missing key is a FleetError."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    missing = [key for key in _PROPERTIES if key not in values]
    if missing:
        raise FleetError("systemctl show answered in part", expected=", ".join(_PROPERTIES), found=f"no {missing[0]}")
    hangers = " ".join(values[key] for key in ("RequiredBy", "BoundBy", "TriggeredBy", "ConsistsOf")).split()
    return Seen(
        load=values["LoadState"],
        active=values["ActiveState"],
        sub=values["SubState"],
        unit_file=values["UnitFileState"],
        fragment=values["FragmentPath"],
        drop_ins=tuple(values["DropInPaths"].split()),
        hangers=tuple(sorted({name for name in hangers if not name.endswith(".target")})),
    )


def parse_containers(text: str) -> list[Container]:
    """Read ``podman ps --all --format json``."""
    listed: list[dict[str, Any]] = json.loads(text or "[]") or []
    return [
        Container(
            id=str(one["Id"]),
            name=str((one.get("Names") or [""])[0]),
            state=str(one["State"]).lower(),
            unit=str((one.get("Labels") or {}).get("PODMAN_SYSTEMD_UNIT", "")),
            pid=int(one.get("Pid") or 0),
        )
        for one in listed
    ]


def listens(path: str) -> bool:
    """Whether a Unix socket at ``path`` takes a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def pids_in(unit: str, user_manager: str | None, root: str = "/proc") -> list[int]:
    """Processes whose cgroup lies in ``unit``, however deep (a container's payload has a cgroup of its own below).

    ``user_manager`` is ``user@UID.service`` for a unit of that user's manager, None for one of the system's.
    """
    found = []
    for name in os.listdir(root):
        if not name.isdigit():
            continue
        try:
            with open(f"{root}/{name}/cgroup", encoding="utf-8", errors="replace") as handle:
                lines = handle.read().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        for line in lines:
            _number, controllers, path = line.split(":", 2)
            parts = path.split("/")
            if controllers not in ("", "name=systemd") or unit not in parts:
                continue
            above = [part for part in parts[: parts.index(unit)] if part.startswith("user@")]
            if above == ([user_manager] if user_manager else []):
                found.append(int(name))
                break
    return sorted(found)


class Manager:
    """The manager of the system (``scope`` system) or of ``who`` (scope user), reached as root or as that user."""

    def __init__(self, scope: str, who: Account) -> None:
        self.scope = scope
        self.who = who
        self.runtime_dir = f"/run/user/{who.uid}"
        self.unit = f"user@{who.uid}.service" if scope == "user" else None
        if os.geteuid() not in ((0,) if scope == "system" else (0, who.uid)):
            raise FleetError(
                "the system's units cannot be touched"
                if scope == "system"
                else f"units of {who.name} cannot be touched",
                expected="to run as root" if scope == "system" else f"to run as root or as {who.name}",
                found=f"user id {os.geteuid()}",
                remedy="Run with become: true",
            )

    def run(self, argv: Sequence[str], *, check: bool = True, timeout_s: float = 60.0, **env: str) -> Completed:
        """Run a command where this manager's units run: as root, or as the user with a session's environment."""
        if self.scope == "system":
            return run(argv, env={**os.environ, "LC_ALL": "C.UTF-8", **env}, cwd="/", check=check, timeout_s=timeout_s)
        who = self.who
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "HOME": who.home,
            "USER": who.name,
            "LOGNAME": who.name,
            "XDG_RUNTIME_DIR": self.runtime_dir,
            **env,
        }
        prefix = [] if os.geteuid() == who.uid else ["setpriv", f"--reuid={who.uid}", f"--regid={who.gid}"]
        prefix += ["--init-groups", "--"] if prefix else []
        return run([*prefix, *argv], env=environ, cwd="/", check=check, timeout_s=timeout_s)

    def _systemctl(self, *argv: str, check: bool = True, timeout_s: float = 60.0) -> Completed:
        scope = ["--user"] if self.scope == "user" else []
        return self.run(["systemctl", *scope, *argv], check=check, timeout_s=timeout_s)

    @property
    def lock_path(self) -> str:
        """The lock between two runs, where no other user can put a link."""
        folder = "/run" if os.geteuid() == 0 else self.runtime_dir
        return f"{folder}/llm-fleet-retire-{self.who.name}.lock"

    @property
    def lingers(self) -> bool:
        """Whether the user's manager starts at boot, without a login."""
        return self.scope == "user" and os.path.exists(f"/var/lib/systemd/linger/{self.who.name}")

    @property
    def answers(self) -> bool:
        """Whether somebody listens on the manager's socket (a manager that died leaves the file); the system's does."""
        return self.scope == "system" or listens(f"{self.runtime_dir}/systemd/private")

    def wake(self, deadline_s: float) -> None:
        """Have the user's manager run and its socket there; past the deadline a FleetError with its status.

        ``loginctl enable-linger`` answers 0 even where ``user@UID.service`` fails, so the socket alone counts.
        """
        if self.answers:
            return
        failed = False
        if self.unit and os.geteuid() == 0:
            failed = run(["systemctl", "start", self.unit], check=False, timeout_s=deadline_s).rc != 0
        started = time.monotonic()
        while not self.answers:
            if failed or time.monotonic() - started > deadline_s:
                status = run(["systemctl", "status", "--no-pager", "--lines=8", str(self.unit)], check=False)
                raise FleetError(
                    f"the systemd manager of user {self.who.name} does not answer",
                    expected=f"its socket {self.runtime_dir}/systemd/private within {deadline_s:g} s",
                    found=(status.stdout + status.stderr).strip() or f"no word of {self.unit}",
                    remedy=f"Mend {self.unit} (loginctl enable-linger {self.who.name} has it at boot), and run again",
                )
            time.sleep(0.1)

    def show(self, unit: str) -> Seen:
        """The unit's state now. A user's manager that does not run has nothing loaded."""
        if not self.answers:
            return Seen("not-found", "inactive", "dead", "", "", (), ())
        return parse_seen(self._systemctl("show", "--property", ",".join(_PROPERTIES), "--", unit).stdout)

    def begin_stop(self, unit: str) -> None:
        """Ask for the unit's stop, and do not wait for it."""
        self._systemctl("stop", "--no-block", "--", unit)

    def begin_start(self, unit: str) -> None:
        """Ask for the unit's start, and do not wait for it."""
        self._systemctl("start", "--no-block", "--", unit)

    def start(self, unit: str, timeout_s: float) -> None:
        """Start the unit and wait for it."""
        self._systemctl("start", "--", unit, timeout_s=timeout_s)

    def reload(self) -> None:
        """Have the manager read its unit files, and run its generators, anew."""
        self._systemctl("daemon-reload", timeout_s=120)

    def forget_failure(self, unit: str) -> None:
        """Clear a failed state; a unit that has none, or that is not loaded any more, has nothing to clear."""
        self._systemctl("reset-failed", "--", unit, check=False)

    def pids(self, unit: str) -> list[int]:
        """Processes in the unit's cgroup."""
        return pids_in(unit, self.unit)

    def words_of(self, pids: Collection[int]) -> str:
        """``pid 12: command`` for each, as far as it still runs."""
        told = []
        for pid in pids:
            try:
                told.append(f"pid {pid}: {' '.join(_proc.cmdline(pid))[:120]}")
            except (FileNotFoundError, ProcessLookupError):
                continue
        return "; ".join(told)

    def has_podman(self) -> bool:
        """Whether podman is installed at all."""
        return any(os.path.exists(os.path.join(folder, "podman")) for folder in ("/usr/bin", "/usr/local/bin", "/bin"))

    def containers(self) -> list[Container]:
        """Every container of this podman's storage (root's, or the user's); none where podman is not installed."""
        if not self.has_podman() or (self.scope == "user" and not os.path.isdir(self.runtime_dir)):
            return []
        return parse_containers(self.run(["podman", "ps", "--all", "--format", "json"], timeout_s=120).stdout)

    def dry_run(self, folders: Sequence[str] = (), left_out: Collection[str] = ()) -> DryRun | None:
        """What podman's generator would make, now or once ``left_out`` is gone from ``folders``; None without podman.

        The generator fails in silence under daemon-reload; here its words are heard.
        """
        generator = next((path for path in _GENERATORS if os.access(path, os.X_OK)), None)
        if generator is None:
            return None
        argv = [generator, "-dryrun", *(["-user"] if self.scope == "user" else [])]
        if not left_out:
            done = self.run(argv, check=False)
            return parse_dry_run(done.stdout, done.stderr)
        with tempfile.TemporaryDirectory(prefix="llm-fleet-quadlets-") as scratch:
            os.chmod(scratch, 0o755)
            copies = copy_without([folder for folder in folders if os.path.isdir(folder)], left_out, scratch)
            done = self.run(argv, check=False, QUADLET_UNIT_DIRS=":".join(copies))
        return parse_dry_run(done.stdout, done.stderr)
