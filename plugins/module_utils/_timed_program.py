# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program of this collection on a host that a timer runs: its files are there as declared, or gone."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write, make_dirs, read_optional
from ansible_collections.dank.llm_fleet.plugins.module_utils._run import run

__all__ = ["TimedProgram", "closure", "converge"]

_PACKAGE = "ansible_collections.dank.llm_fleet.plugins.module_utils"


@dataclass(frozen=True)
class TimedProgram:
    """``program`` is the text of the file ``home/name``, beside which ``modules`` of this collection lie as a library.

    ``service`` and ``timer`` are unit texts. ``extra`` maps further paths to texts; ``written`` are files that the
    program writes and that go with it; ``folders`` must be there before it runs.
    """

    name: str
    present: bool
    program: str
    modules: Sequence[ModuleType]
    service: str
    timer: str
    home: str
    units: str = _systemd.UNIT_DIR
    extra: Mapping[str, str] = field(default_factory=dict)
    written: Sequence[str] = ()
    folders: Sequence[str] = ()

    @property
    def service_path(self) -> str:
        """The service's file."""
        return os.path.join(self.units, f"{self.name}.service")

    @property
    def timer_path(self) -> str:
        """The timer's file."""
        return os.path.join(self.units, f"{self.name}.timer")


def closure(*roots: ModuleType) -> list[ModuleType]:
    """``roots`` and every module of this collection that they import, directly or not, by name."""
    found: dict[str, ModuleType] = {}
    todo: list[ModuleType] = [*roots]
    while todo:
        module = todo.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            todo += [importlib.import_module(name) for name in _imported(inspect.getsource(module))]
    return [found[name] for name in sorted(found)]


def _imported(source: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (f"{_PACKAGE}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{_PACKAGE}."):
            yield node.module


def _wanted(wish: TimedProgram) -> dict[str, tuple[str, int]]:
    """Path: (text, mode). The modules that the program needs are copied, so that both judge alike."""
    library = os.path.join(wish.home, "lib", *_PACKAGE.split("."))
    sources = {
        os.path.join(library, f"{module.__name__.rpartition('.')[2]}.py"): inspect.getsource(module)
        for module in wish.modules
    }
    # Without it an ansible package of the host's would come first.
    package = {os.path.join(wish.home, "lib", "ansible_collections", "__init__.py"): ""}
    units = {wish.service_path: wish.service, wish.timer_path: wish.timer}
    files = {path: (text, 0o644) for path, text in {**package, **sources, **wish.extra, **units}.items()}
    return {**files, os.path.join(wish.home, wish.name): (wish.program, 0o755)}


def _text(path: str) -> str | None:
    data = read_optional(path)
    return None if data is None else data.decode("utf-8", "replace")


def _differs(path: str, text: str, mode: int) -> bool:
    return _text(path) != text or stat.S_IMODE(os.stat(path).st_mode) != mode


def _timer_runs(timer: str) -> bool:
    """Whether the timer is enabled and waits, as systemd read it last."""
    wanted = {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}
    told = run(["systemctl", "show", "--property", ",".join(wanted), timer]).stdout
    return dict(line.split("=", 1) for line in told.splitlines()) == wanted


def _install(wish: TimedProgram, different: Mapping[str, tuple[str, int]]) -> None:
    for folder in wish.folders:  # systemd refuses to open what is not there
        make_dirs(folder)
    for path, (text, mode) in different.items():
        make_dirs(os.path.dirname(path))
        atomic_write(path, text.encode(), mode)
    _systemd.daemon_reload()
    _systemd.enable(f"{wish.name}.timer")
    run(["systemctl", "restart", f"{wish.name}.timer"])  # a start would keep the times of an older file


def _remove(wish: TimedProgram) -> None:
    """Each step leaves what the next run needs to see that it has to go on."""
    if os.path.lexists(wish.timer_path):
        _systemd.stop_and_disable(f"{wish.name}.timer", timeout_s=60)
    if os.path.lexists(wish.service_path):
        _systemd.stop(f"{wish.name}.service", timeout_s=120)
        run(["systemctl", "reset-failed", f"{wish.name}.service"], check=False)  # it need not have failed
    for path in (wish.timer_path, wish.service_path, *wish.written):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    _systemd.daemon_reload()
    if os.path.lexists(wish.home):
        shutil.rmtree(wish.home)


def converge(wish: TimedProgram, *, dry: bool) -> dict[str, Any]:
    """``changed``, ``files`` (those that change) and ``diff``; ``dry`` only tells."""
    wanted = _wanted(wish)
    if wish.present:
        different = {path: given for path, given in wanted.items() if _differs(path, *given)}
        changed = bool(different) or not _timer_runs(f"{wish.name}.timer")
        told = _told(changed, list(different), {path: text for path, (text, _mode) in different.items()})
    else:
        different = {}
        ours = [path for path in (*wanted, *wish.written) if os.path.lexists(path)]
        changed = bool(ours) or os.path.lexists(wish.home)
        told = _told(changed, ours, {})
    if changed and not dry:
        if wish.present:
            _install(wish, different)
        else:
            _remove(wish)
    return told


def _told(changed: bool, paths: Sequence[str], after: Mapping[str, str]) -> dict[str, Any]:
    """A result; the library's texts are named, not shown: they are this collection's own."""
    before = {path: text for path in paths if (text := _text(path)) is not None}

    def shown(texts: Mapping[str, str]) -> dict[str, str]:
        return {path: "(library)" if "/lib/" in path and path.endswith(".py") else text for path, text in texts.items()}

    return {"changed": changed, "files": sorted(paths), "diff": {"before": shown(before), "after": shown(after)}}
