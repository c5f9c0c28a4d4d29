# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a boot failed, in the engine's words and, where the cause is known, in ours."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from ansible_collections.dank.llm_fleet.plugins.module_utils._bootlog_lines import Failure
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import CONTEXT_DRAFTERS

__all__ = ["Ending"]

# Lines kept of what the engine said, and characters of each.
WORDS, LENGTH = 8, 300

_LEVEL = re.compile(r"[0-9]\.[0-9]{2}\.[0-9]{3}\.[0-9]{3} ([IWED]) (.*)")
# What a dying process prints without a stamp. ggml_abort's line is the place in the source, then the message.
_ABORT = re.compile(r"\.(?:c|cc|cpp|cu|cuh|h|m):[0-9]{1,6}: \S")
_THROWN = re.compile(r"terminate called after |what\(\):  |error: invalid argument|error while handling argument")
_EXIT = "llama_server: exiting due to"

_LESS = "Take less: a smaller CTX_SIZE, quantized keys or values, no drafter"
_NO_MEMORY = ("a buffer found no memory", _LESS)
# What the engine says -> what it means, and the way out.
_READINGS = {
    "doesn't contain MTP layers": (
        "SPEC_TYPE draft-mtp, and the model's file has no MTP head",
        "Take a file that was converted with its MTP head, or set SPEC_TYPE=none",
    ),
    "has no target_layer_ids": ("the drafter's file is no DFlash drafter", "Check SPEC_TYPE against the drafter"),
    "out of memory": _NO_MEMORY,
    "failed to allocate ": _NO_MEMORY,
    "unable to allocate ": _NO_MEMORY,
    "couldn't bind HTTP server socket": ("the address is taken", "Stop what listens there, or take another port"),
}


class Ending:
    """Takes a boot's lines one by one; keeps the last errors, and the warning that stands right before one."""

    def __init__(self) -> None:
        self.words: deque[str] = deque(maxlen=WORDS)
        self.fatal = False
        self.last: str | None = None
        self.warning: str | None = None

    def read(self, line: str) -> None:
        """One line without colours."""
        warning, self.warning = self.warning, None
        stamped = _LEVEL.search(line)
        if stamped is not None:
            level, said = stamped.groups()
            ends = _EXIT in said
            self.fatal = self.fatal or ends
            if level == "E" or ends:
                if warning is not None:
                    self._keep(warning)
                self._keep(said)
            elif level == "W":
                self.warning = said
            return
        abort, thrown = _ABORT.search(line), _THROWN.search(line)
        if abort is not None:
            self._die(line[line.rfind(" ", 0, abort.start()) + 1 :])
        elif thrown is not None:
            self._die(line[thrown.start() :])
        elif _EXIT in line:
            self._die(line[line.index(_EXIT) :])

    def _die(self, words: str) -> None:
        self.fatal = True
        self.last = self._keep(words)

    def _keep(self, words: str) -> str:
        said = " ".join(words.split())[:LENGTH]
        if said not in self.words:
            self.words.append(said)
        return said

    def failure(self, speculation: Sequence[str]) -> Failure | None:
        """Why the boot ended, None where it did not; ``speculation`` are the proposers that it had set up."""
        if not self.fatal:
            return None
        words = tuple(self.words)
        first = next((name for name in speculation if name in CONTEXT_DRAFTERS), None)
        if first is not None and any("has no target_layer_ids" in said for said in words):
            # The engine hands one drafter's context to all: a second finds the first one's model in it.
            return Failure(
                f"a second drafter with a context of its own beside {first}",
                "Keep one of them in SPEC_TYPE; ngram types may ride beside it",
                words,
            )
        for said, (what, remedy) in _READINGS.items():
            if any(said in line for line in words):
                return Failure(what, remedy, words)
        # One error leads to the next, so the first is the cause, but for what a dying process says last.
        return Failure(self.last or words[0], None, words)
