# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for a probe server that was forgotten: it holds a port of an address, and says it is well."""

from __future__ import annotations

import http.server
import json
import socket
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """Healthy, and called like the endpoint, whatever it is asked."""

    def do_GET(self) -> None:
        """Answer 200."""
        body = json.dumps({"status": "ok", "data": [{"id": "drill"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.HTTPServer):
    """On an address of either kind."""

    address_family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET


Server((sys.argv[2], int(sys.argv[1])), Handler).serve_forever()
