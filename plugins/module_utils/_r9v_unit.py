# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of an R9V endpoint, as text."""

from __future__ import annotations

from ansible_collections.dank.llm_fleet.plugins.module_utils._unit import ERA_VARIABLE, UnitSpec, refuse_unsound

__all__ = ["render"]


def render(spec: UnitSpec, era_digest: str) -> str:
    """The unit's text: a root unit that runs the launcher as ``spec.user``, whose podman has the container.

    The container is no process of the unit: ``ExecStop`` stops it through the launcher, and ``ExecStopPost`` does so
    again where the launcher died without it. A launcher that ends before that fails, whatever the container said.
    What ``_unit`` closes would close rootless podman: it needs set-uid helpers, mounts and namespaces.
    """
    refuse_unsound(spec)
    return f"""\
# Written by dank.llm_fleet; change the inventory, not this file.
[Unit]
Description=LLM endpoint {spec.endpoint}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
Type=exec
User={spec.user}
EnvironmentFile={spec.env_file}
Environment=LLM_FLEET_ENV_FILE={spec.env_file}
Environment={ERA_VARIABLE}={era_digest}
ExecStart={spec.launcher}
ExecStop={spec.launcher} stop
ExecStopPost={spec.launcher} stop
RuntimeDirectory=llm-fleet/{spec.endpoint}
Restart=on-failure
RestartPreventExitStatus=64 66 78
RestartSec={spec.restart_sec}
TimeoutStartSec={spec.timeout_start_s}
TimeoutStopSec={spec.timeout_stop_s}
LimitMEMLOCK=infinity
UMask=0077

[Install]
WantedBy=multi-user.target
"""
