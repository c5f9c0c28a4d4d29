# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file that a fetch fills before it is proven, what may continue it, and how it gets its final name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._fetch import Stream, strong_validator
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import fsync_dir, read_optional

__all__ = ["Partial"]


class Partial:
    """The file that a fetch fills before it is proven: ``.<name>.part`` in the payload's own directory.

    Beside it lies ``.<name>.part.json`` with ``{url, validator, bytes, digest}``: only the same file of the same
    source may continue it. The caller holds the directory's lock.
    """

    def __init__(self, directory: str, name: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, f".{name}.part")
        self.note = f"{self.path}.json"

    def stat(self) -> os.stat_result | None:
        try:
            return os.lstat(self.path)
        except FileNotFoundError:
            return None

    def resume_point(self, url: str, size: int, digest: str) -> tuple[int, str | None]:
        """``(offset, validator)`` to continue ``url`` from; ``(0, None)`` where it must start over."""
        state = self.stat()
        if state is None or not stat.S_ISREG(state.st_mode) or not 0 < state.st_size <= size:
            return 0, None
        data = read_optional(self.note)
        if data is None:
            return 0, None
        try:
            note: Any = json.loads(data)
        except ValueError:
            return 0, None
        if not isinstance(note, dict) or (note.get("url"), note.get("bytes"), note.get("digest")) != (
            url,
            size,
            digest,
        ):
            return 0, None
        validator = strong_validator(note.get("validator"))
        return (state.st_size, validator) if validator else (0, None)

    @contextlib.contextmanager
    def opened(self, stream: Stream | None, url: str, size: int, digest: str) -> Iterator[int]:
        """The partial file's descriptor, ready for the stream's first byte (None: it is complete already)."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            if stream is not None and stream.offset == 0:
                os.ftruncate(fd, 0)
                os.fchmod(fd, 0o600)
                note = {"url": url, "validator": stream.validator, "bytes": size, "digest": digest}
                self._write_note(json.dumps(note).encode())
            yield fd
        finally:
            os.close(fd)

    def _write_note(self, data: bytes) -> None:
        """In place, not by a temporary file that a kill would leave behind: a torn note only means starting over."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.note, flags, 0o600), "wb") as handle:
            handle.write(data)

    def reject(self, final: str, digest: str) -> str:
        """Keep the wrong bytes for a look: ``<name>.rejected-<digest12>``, the only one. Returns its path."""
        return self._keep_one(final, "rejected", digest, lambda kept: os.replace(self.path, kept))

    def accept(self, final: str, replaces: str | None) -> str | None:
        """Give the proven bytes their final name in one step; the file of digest ``replaces`` is kept aside.

        Returns the path where the old file lies now, or None.
        """
        kept = None
        if replaces is not None:
            kept = self._keep_one(final, "replaced", replaces, lambda path: os.link(final, path))
        os.replace(self.path, final)
        self.discard()
        fsync_dir(self.directory)
        return kept

    def _keep_one(self, final: str, why: str, digest: str, place: Callable[[str], None]) -> str:
        start = f"{os.path.basename(final)}.{why}-"
        kept = os.path.join(self.directory, start + digest[:12])
        for entry in os.listdir(self.directory):
            if re.fullmatch(re.escape(start) + "[0-9a-f]{12}", entry):
                os.unlink(os.path.join(self.directory, entry))
        place(kept)
        return kept

    def discard(self) -> None:
        """Remove the partial file and its note, if they are there."""
        for path in (self.path, self.note):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
