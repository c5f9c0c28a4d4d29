# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bench ``shapes``: how fast prompts of several lengths are read, and answers of several lengths written."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._bench import Row, attempt
from ansible_collections.dank.llm_fleet.plugins.module_utils._bench_ask import Asker, merge, require_idle, samples
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import user

__all__ = ["bench_shapes", "cells_of_shapes"]


def cells_of_shapes(prompts: Sequence[int], outputs: Sequence[int]) -> list[dict[str, Any]]:
    """Every prompt length with every output length, in tokens."""
    return [{"prompt": prompt, "output": output} for prompt, output in itertools.product(prompts, outputs)]


def _measure(asker: Asker, cell: Mapping[str, Any], repetitions: int) -> dict[str, list[float]]:
    require_idle(asker.target)
    each = []
    for number in range(repetitions):
        tag = f"{cell['prompt']}x{cell['output']}-{number}"
        reply = asker.ask(user(asker.text(cell["prompt"], tag)), cell["output"])
        each.append(samples(reply.timings, cell["output"]))
    return merge(each)


def bench_shapes(asker: Asker, cells: Sequence[Mapping[str, Any]], repetitions: int) -> Generator[Row, None, None]:
    """A row a cell; each repetition asks with a prompt that the server has not seen."""
    for cell in cells:
        yield attempt(cell, partial(_measure, asker, cell, repetitions))
