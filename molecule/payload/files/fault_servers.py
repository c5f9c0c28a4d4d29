# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve argv[1] on the loopback once per fault of argv[2] (JSON: {fault: settings}); argv[3] gets their URLs."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from fileserver import file_server

body = Path(sys.argv[1]).read_bytes()
with contextlib.ExitStack() as stack:
    good = stack.enter_context(file_server(body))
    urls = {"good": good.url("good")}
    for fault, settings in json.loads(sys.argv[2]).items():
        server = stack.enter_context(file_server(body))
        for key, value in settings.items():
            setattr(server, key, value)
        # Another port is another origin: what was meant for the first must not reach it.
        server.elsewhere = good.url("good")
        urls[fault] = server.url(fault)
    Path(sys.argv[3]).write_text(json.dumps(urls))
    time.sleep(600)
