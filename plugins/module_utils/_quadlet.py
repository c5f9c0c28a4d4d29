# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quadlets: the service that podman's generator makes of a file, and what the generator says it would make."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

__all__ = ["SUFFIXES", "DryRun", "copy_without", "parse_dry_run", "service_name"]

# Suffix of the file to (its section, what the service's name has beside the file's): podman-systemd.unit(5).
SUFFIXES: Mapping[str, tuple[str, str]] = {
    ".container": ("Container", ""),
    ".pod": ("Pod", "-pod"),
    ".network": ("Network", "-network"),
    ".volume": ("Volume", "-volume"),
    ".kube": ("Kube", ""),
    ".image": ("Image", "-image"),
    ".build": ("Build", "-build"),
}
_SECTION = re.compile(r"\[([^\]]+)\]\s*")
_SERVICE_NAME = re.compile(r"ServiceName\s*=\s*(.*?)\s*")
_BEGIN = re.compile(r"---(\S+\.service)---")
_CHATTER = ("Loading source unit file", "Warning: ", "No files parsed")


@dataclass(frozen=True)
class DryRun:
    """What the generator would make: service to the quadlet it comes from; and what it said of those it cannot."""

    services: Mapping[str, str]
    complaints: tuple[str, ...]

    def of(self, quadlet: str) -> str | None:
        """The complaint that names this quadlet file, if there is one."""
        name = os.path.basename(quadlet)
        return next((line for line in self.complaints if f'"{name}"' in line or quadlet in line), None)


def service_name(name: str, texts: Sequence[str] = ()) -> str:
    """The service of the quadlet file ``name``; ``texts`` are its own and its drop-ins', in the order they are read.

    A ``ServiceName=`` in the file's own section wins over the file's name; the last one counts.
    """
    stem, suffix = os.path.splitext(name)
    if suffix not in SUFFIXES or not stem:
        raise FleetError(f"{name} is no quadlet", expected="a name that ends in " + ", ".join(SUFFIXES), found=name)
    section, ending = SUFFIXES[suffix]
    named = ""
    for text in texts:
        here = ""
        for line in text.splitlines():
            heading = _SECTION.fullmatch(line.strip())
            if heading:
                here = heading.group(1)
            given = _SERVICE_NAME.fullmatch(line.strip())
            if given and here == section:
                named = given.group(1)
    return f"{named or stem + ending}.service"


def parse_dry_run(stdout: str, stderr: str) -> DryRun:
    """Read ``quadlet -dryrun``: units on stdout, each under ``---NAME.service---``; words on stderr."""
    services: dict[str, str] = {}
    here = ""
    for line in stdout.splitlines():
        begin = _BEGIN.fullmatch(line)
        if begin:
            here = begin.group(1)
            services[here] = ""
        elif here and line.startswith("SourcePath=") and not services[here]:
            services[here] = line.partition("=")[2]
    words = (re.sub(r"^quadlet-generator\[\d+\]: ", "", line).strip() for line in stderr.splitlines())
    return DryRun(services, tuple(line for line in words if line and not line.startswith(_CHATTER)))


def copy_without(folders: Sequence[str], left_out: Collection[str], destination: str) -> list[str]:
    """Copy the quadlets of ``folders`` but those ``left_out`` (files, folders); returns the copies' folders in order.

    The generator, pointed at the copies, tells what it would make once ``left_out`` is gone.
    """
    copies = []
    for number, folder in enumerate(folders):
        copy = os.path.join(destination, str(number))
        os.mkdir(copy, 0o755)
        copies.append(copy)
        for here, inside, names in os.walk(folder):
            inside[:] = [name for name in inside if os.path.join(here, name) not in left_out]
            below = os.path.join(copy, os.path.relpath(here, folder))
            os.makedirs(below, 0o755, exist_ok=True)
            for name in names:
                source = os.path.join(here, name)
                if source not in left_out and os.path.isfile(source):
                    shutil.copyfile(source, os.path.join(below, name))
                    os.chmod(os.path.join(below, name), 0o644)
    return copies
