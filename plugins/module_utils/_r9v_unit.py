# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of an R9V endpoint, as text."""

from __future__ import annotations

from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import UnitSpec, frame

__all__ = ["render"]


def render(spec: UnitSpec, era_digest: str) -> str:
    """The unit's text: a root unit that runs the launcher as ``spec.user``, whose podman has the container.

    The container is no process of the unit: ``ExecStop`` stops it through the launcher, and ``ExecStopPost`` does so
    again where the launcher died without it. A launcher that ends before that fails, whatever the container said.
    What ``_unit`` closes would close rootless podman: it needs set-uid helpers, mounts and namespaces.
    """
    stop = f"""\
ExecStop={spec.launcher} stop
ExecStopPost={spec.launcher} stop
RuntimeDirectory=llm-fleet/{spec.endpoint}
"""
    return frame(spec, era_digest, stop=stop, rest="UMask=0077")
