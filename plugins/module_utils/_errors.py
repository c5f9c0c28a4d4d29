# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception of this collection: what was wrong, expected, found, and the way out."""

from __future__ import annotations

from typing import Any

__all__ = ["FleetError"]


class FleetError(Exception):
    """A refusal that a person can act on.

    ``what`` names the file, key or host; ``expected`` and ``found`` are the two sides of the
    comparison; ``remedy`` is the next thing to do. Extra keyword facts travel in the result.
    """

    def __init__(
        self,
        what: str,
        *,
        expected: Any = None,
        found: Any = None,
        remedy: str | None = None,
        **facts: Any,
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.facts = facts
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """One line: what, expected, found, remedy; parts that are unknown are left out."""
        parts = [self.what.rstrip(".")]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        text = "; ".join(parts) + "."
        if self.remedy:
            text += f" {self.remedy.rstrip('.')}."
        return text

    def as_result(self) -> dict[str, Any]:
        """The keyword arguments of ``fail_json``."""
        result: dict[str, Any] = {"msg": self.message, "what": self.what}
        for name in ("expected", "found", "remedy"):
            value = getattr(self, name)
            if value is not None:
                result[name] = value
        result.update(self.facts)
        return result
