# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of a qualification that passes, for the tests; the figures are made up."""

from __future__ import annotations

from typing import Any

TABLE = 1048576


def evidence() -> dict[str, Any]:
    """A run's evidence by name, fresh at each call."""
    return {
        "asked": {
            "endpoint": "two", "setup": "q8", "file": "/srv/state/q8/setup.json", "profile": "q8",
            "model_dir": "/srv/model", "ple_path": "/srv/model/table.bin", "ple_bytes": TABLE, "headroom_gib": 3.3,
            "lines": {"R9V_HOST_PORT": 7770}, "scratch_dir": "/srv/state/q8.qualify", "port": 7773,
            "container": "two-qualify", "arguments": [], "battery": ["chat", "tools"],
            "checkout": "/srv/fork", "commit": "ab" * 20, "image": "2d" * 32, "profile_id": "standin/q8",
            "profile_folder": "/srv/fork/profiles/q8",
            "profile_files": [{"name": "profiles/q8/profile.env", "bytes": 512, "sha256": "11" * 32}],
            "run": "20261130T120000Z", "at": "2026-11-30T12:00:00+00:00",
        },
        "setup": {
            "argv": ["r9v", "setup"], "seconds": 12.5, "tail": ["PASS doctor"],
            "files": [{"name": "target/m.gguf", "bytes": 251, "sha256": "22" * 32}],
            "state": {
                "ready": True, "profile_id": "standin/q8", "artifacts": {"target/m.gguf": {"sha256": "22" * 32}},
                "config": {"R9V_MAX_MODEL_LEN": "4096", "R9V_EXPERT_MANIFEST_PATH": "/srv/state/q8.qualify/hot.json"},
            },
        },
        "start": {"seconds": 3.2, "unit": "u.service", "env": {}, "effective": {}},
        "truth": {"links": [{"name": "context", "expected": 4096, "found": 4096, "remedy": ""}], "argv": [],
                  "images": []},
        "probes": {
            "verdicts": [
                {"probe": "chat", "verdict": "pass", "evidence": "answered 'PONG'", "seconds": 0.4, "facts": {}},
                {"probe": "tools", "verdict": "pass", "evidence": "called add", "seconds": 0.5, "facts": {}},
                {"probe": "vision", "verdict": "not-declared", "evidence": "absent", "seconds": 0.1, "facts": {}},
                {"probe": "long context", "verdict": "pass", "evidence": "3072 tokens", "seconds": 2.0, "facts": {}},
            ],
            "window": 4096,
        },
        "pinning": {"mode": "pinned", "table_bytes": TABLE, "processes": [{"pid": 7, "bytes": 0},
                                                                         {"pid": 8, "bytes": TABLE}]},
        "headroom": {"floor_gib": 3.3, "cards": [{"name": "c0", "free_mib": 3400.0, "total_mib": 32624.0}]},
        "window": {"gap_s": 1000.5, "served_before": [{"endpoint": "two"}], "warnings": []},
    }  # fmt: skip
