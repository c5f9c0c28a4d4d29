# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The token of a model hub: read on the host at the moment of use, and kept out of everything that is shown."""

from __future__ import annotations

import os
import re
import stat

from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._http import Token, is_loopback, origin_of

__all__ = ["read_token"]

_MOST = 4096  # bytes; no token is longer


def read_token(token_file: str | None, token_env: str | None, hub_url: str) -> Token | None:
    """The token for the origin of ``hub_url`` from a file or an environment variable of this host, None if neither.

    Raises FleetError for a file that others can read, for a malformed token, and where it would go over plain http to
    another machine. No message holds the token.
    """
    if not token_file and not token_env:
        return None
    if token_file and token_env:
        raise FleetError("token_file and token_env are both set", expected="one of the two")
    if not hub_url.startswith("https://") and not is_loopback(hub_url):
        raise FleetError(
            f"hub_url {hub_url} is no place for a token",
            expected="https://, so that nobody on the way reads it",
            found="plain http to another machine",
        )
    if token_file:
        where, text = f"token_file {token_file}", _read(token_file)
    else:
        where, text = f"environment variable {token_env}", os.environ.get(token_env or "", "")
    text = text.strip()
    if not text:
        raise FleetError(f"{where} gives no token", expected="one token", found="nothing")
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise FleetError(f"{where} holds more than a token", expected="one word of printable ASCII characters")
    return Token(origin_of(hub_url), text)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise FleetError(f"token_file {path} cannot be read", found=exc.strerror) from exc
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise FleetError(f"token_file {path} is no file", expected="a regular file", found="something else")
        if state.st_mode & 0o007:
            raise FleetError(
                f"token_file {path} is open to every user of the host",
                expected="mode 0600, or 0640",
                found=f"mode {stat.S_IMODE(state.st_mode):04o}",
                remedy=f"chmod 600 {path}, and replace the token: it may be known",
            )
        return os.read(fd, _MOST + 1).decode("ascii", "replace")
    finally:
        os.close(fd)
