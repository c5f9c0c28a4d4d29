# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a retirement takes along: from names to files, links, drop-ins and services; nothing is changed here."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._manager import Account
from ansible_collections.dank.llm_fleet.plugins.module_utils._manifest import TRASH, Item
from ansible_collections.dank.llm_fleet.plugins.module_utils._quadlet import SUFFIXES, service_name
from ansible_collections.dank.llm_fleet.plugins.module_utils._trash import Entry, walk

__all__ = ["KINDS", "Places", "RetireSpec", "collect", "places", "unit_of_drop_in"]

# Kind of item to the option that names it.
KINDS = {"unit": "units", "quadlet": "quadlets", "drop_in": "drop_ins", "file": "files"}
_UNIT_SUFFIXES = (".service", ".socket", ".timer", ".path", ".target", ".mount", ".automount", ".slice")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LINK_FOLDERS = (".wants", ".requires", ".upholds")


@dataclass(frozen=True)
class RetireSpec:
    """What is asked for. ``own`` are paths that the caller has written itself: a unit found there is not the old one.

    ``timeout_s`` is how long one unit's stop or start may take, ``wake_s`` how long a user's manager.
    """

    slug: str
    user: str
    scope: str = "system"
    units: Sequence[str] = ()
    quadlets: Sequence[str] = ()
    drop_ins: Sequence[str] = ()
    files: Sequence[str] = ()
    timeout_s: float = 120.0
    wake_s: float = 20.0
    own: Collection[str] = ()

    def __post_init__(self) -> None:
        if not _SLUG.fullmatch(self.slug):
            raise FleetError(f"slug {self.slug!r}", expected="letters, digits, _ . and -", found=repr(self.slug))
        if self.scope not in ("system", "user"):
            raise FleetError(f"scope {self.scope!r}", expected="system or user", found=repr(self.scope))

    def named(self, home: str) -> list[tuple[str, str]]:
        """(kind, name) of everything named, once each; a unit without a suffix is a service, ``~/`` is ``home``."""
        found = []
        for name in self.units:
            if not _UNIT.fullmatch(name):
                raise FleetError(f"{name!r} is no unit's name", expected="a name such as chat.service", found=name)
            found.append(("unit", name if name.endswith(_UNIT_SUFFIXES) else f"{name}.service"))
        for kind in ("quadlet", "drop_in", "file"):
            for name in getattr(self, KINDS[kind]):
                path = os.path.join(home, name[2:]) if name.startswith("~/") else name
                if "/" not in path and kind == "quadlet":
                    found.append((kind, path))
                elif not path.startswith("/"):
                    raise FleetError(f"{KINDS[kind]}: {name}", expected="an absolute path", found=name)
                else:
                    found.append((kind, os.path.normpath(path)))
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Places:
    """Where units and quadlets lie: folders of the administrator (or the user), and those of packages or everybody."""

    units: tuple[str, ...]
    units_of_others: tuple[str, ...]
    quadlets: tuple[str, ...]
    quadlets_of_others: tuple[str, ...]
    not_quadlets: tuple[str, ...] = ()


def places(scope: str, who: Account) -> Places:
    """The folders of systemd.unit(5) and podman-systemd.unit(5) that a person writes into, and the others."""
    if scope == "system":
        return Places(
            units=("/etc/systemd/system", "/usr/local/lib/systemd/system"),
            units_of_others=("/run/systemd/system", "/usr/lib/systemd/system"),
            quadlets=("/etc/containers/systemd",),
            quadlets_of_others=("/run/containers/systemd", "/usr/share/containers/systemd"),
            not_quadlets=("/etc/containers/systemd/users",),
        )
    everybody = "/etc/containers/systemd/users"
    return Places(
        units=(f"{who.home}/.config/systemd/user", f"{who.home}/.local/share/systemd/user"),
        units_of_others=(
            "/etc/systemd/user",
            "/run/systemd/user",
            "/usr/local/lib/systemd/user",
            "/usr/lib/systemd/user",
        ),
        quadlets=(f"{who.home}/.config/containers/systemd", f"{everybody}/{who.uid}"),
        quadlets_of_others=(
            f"/run/user/{who.uid}/containers/systemd",
            everybody,
            "/usr/share/containers/systemd/users",
        ),
    )


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _files_below(folder: str, not_in: Collection[str]) -> Iterator[str]:
    for here, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if os.path.join(here, name) not in not_in)
        yield from (os.path.join(here, name) for name in sorted(names))


def _unit_files(unit: str, folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """(links and drop-in folders, fragments) of ``unit`` in ``folders``.

    Links: its name in ``*.wants`` and the like, and other names (Alias=) that lead to it. A fragment that is a link
    (a linked or masked unit) is a fragment.
    """
    around: list[str] = []
    fragments: list[str] = []
    for folder in folders:
        for name in _listed(folder):
            path = os.path.join(folder, name)
            if name == unit:
                fragments.append(path)
            elif name == f"{unit}.d":
                around.append(path)
            elif name.endswith(_LINK_FOLDERS) and os.path.isdir(path):
                within = (os.path.join(path, each) for each in _listed(path))
                around += [link for link in within if os.path.islink(link) and _leads(link, unit)]
            elif os.path.islink(path) and os.path.basename(os.readlink(path)) == unit:
                around.append(path)
    return around, fragments


def _leads(link: str, unit: str) -> bool:
    return unit in (os.path.basename(link), os.path.basename(os.readlink(link)))


def _plain(path: str) -> str:
    """The path with the links in its parents resolved; the last part stays what it is."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def unit_of_drop_in(path: str) -> str | None:
    """The unit, or the quadlet, that a drop-in changes: ``x.service`` of ``.../x.service.d/a.conf``."""
    for part in (os.path.basename(path), os.path.basename(os.path.dirname(path))):
        if part.endswith(".d"):
            return part[:-2]
    return None


def _near(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, sorted(set(known)), 3, 0.5)
    return "Near: " + ", ".join(close) if close else "Nothing of a like name is there"


def _unit(name: str, there: Places) -> Item | None:
    if "@" in name:
        raise FleetError(
            f"unit {name} belongs to a template",
            expected="a unit with a file of its own",
            found=name,
            remedy="Stop and disable the instances, then retire the template's file under files",
        )
    around, fragments = _unit_files(name, there.units)
    _more, foreign = _unit_files(name, there.units_of_others)
    if foreign:
        raise FleetError(
            f"unit {name} has a file that is not yours to move",
            expected="files below " + " or ".join(there.units),
            found=", ".join(foreign),
            remedy="Disable or mask it instead, or remove the package that brought it",
        )
    paths = [*around, *fragments]
    return Item("unit", name, name, {}, _entries(paths)) if paths else None


def _quadlet(name: str, there: Places) -> Item | None:
    suffix = os.path.splitext(name)[1]
    if suffix not in SUFFIXES:
        raise FleetError(f"{name} is no quadlet", expected="a name that ends in " + ", ".join(SUFFIXES), found=name)
    below = [path for folder in there.quadlets for path in _files_below(folder, there.not_quadlets)]
    found = [path for path in below if path == name or os.path.basename(path) == name]
    if len(found) > 1:
        raise FleetError(
            f"quadlet {name} is there more than once",
            expected="one file of that name",
            found=", ".join(found),
            remedy="Name it by its path",
        )
    if not found:
        others = [path for folder in there.quadlets_of_others for path in _files_below(folder, there.quadlets)]
        foreign = [path for path in others if path == name or os.path.basename(path) == name]
        if foreign:
            raise FleetError(
                f"quadlet {name} is not yours to move",
                expected="a file below " + " or ".join(there.quadlets),
                found=", ".join(foreign),
            )
        return None
    path = found[0]
    drop_ins = f"{path}.d"
    texts = [_text(path)]
    if os.path.isdir(drop_ins):
        texts += [_text(os.path.join(drop_ins, each)) for each in _listed(drop_ins) if each.endswith(".conf")]
    service = service_name(os.path.basename(path), texts)
    around, _fragments = _unit_files(service, there.units)
    folders = [drop_ins] if os.path.isdir(drop_ins) else []
    return Item(
        "quadlet", os.path.basename(path) if "/" not in name else name, service, {}, _entries([*around, *folders, path])
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""  # a dead link: nothing is generated of it, and it can be retired


def _file(kind: str, path: str, home: str) -> Item | None:
    if not os.path.lexists(path):
        return None
    if kind == "drop_in" and unit_of_drop_in(path) is None:
        raise FleetError(f"{path} is no drop-in", expected="a path such as /etc/systemd/system/x.service.d/a.conf")
    real = _plain(path)
    trash = os.path.join(home, TRASH)
    if real.count("/") < 2 or trash == real or trash.startswith(f"{real}/") or real.startswith(f"{trash}/"):
        raise FleetError(f"{path} cannot be retired", expected="a file or folder beside the trash", found=real)
    return Item(kind, path, None, {}, _entries([real]))


def _entries(paths: Sequence[str]) -> tuple[Entry, ...]:
    return tuple({entry.path: entry for path in paths for entry in walk(_plain(path))}.values())


def collect(
    spec: RetireSpec, who: Account, there: Places, held: Mapping[tuple[str, str], str]
) -> tuple[list[Item], list[str]]:
    """(what is there to retire, names of what was retired under this slug before).

    ``held`` maps (kind, name) to the folder that holds it. A name that is neither here nor there is a FleetError with
    near names. Files that two items share belong to the first.
    """
    items: list[Item] = []
    gone: list[str] = []
    taken: set[str] = set()
    for kind, name in spec.named(who.home):
        if kind == "unit":
            item = _unit(name, there)
        elif kind == "quadlet":
            item = _quadlet(name, there)
        else:
            item = _file(kind, name, who.home)
        if item is not None and any(entry.path in spec.own for entry in item.entries):
            item = None
            if (kind, name) not in held:
                continue  # the caller's own file has the name, and no older one had
        if item is None:
            if (kind, name) not in held:
                raise _nowhere(kind, name, there)
            gone.append(name)
            continue
        entries = tuple(entry for entry in item.entries if entry.path not in taken)
        taken |= {entry.path for entry in entries}
        items.append(Item(kind, name, item.service, {}, entries))
    return items, gone


def _nowhere(kind: str, name: str, there: Places) -> FleetError:
    known: list[Any] = []
    if kind == "unit":
        known = [each for folder in (*there.units, *there.units_of_others) for each in _listed(folder)]
        known = [each for each in known if each.endswith(_UNIT_SUFFIXES)]
        looked = ", ".join(there.units)
    elif kind == "quadlet":
        known = [path for folder in there.quadlets for path in _files_below(folder, there.not_quadlets)]
        known = known if "/" in name else [os.path.basename(path) for path in known]
        looked = ", ".join(there.quadlets)
    else:
        known = [os.path.join(os.path.dirname(name), each) for each in _listed(os.path.dirname(name))]
        looked = os.path.dirname(name)
    return FleetError(
        f"{kind.replace('_', '-')} {name} is not there, and was not retired under this slug before",
        expected=f"a file of that name in {looked}",
        found="none",
        remedy=_near(name, known),
    )
