# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which modules a program takes along to a host."""

from __future__ import annotations

import ast
import inspect

from ansible_collections.dank.llm_fleet.plugins.module_utils import _facts, _rest
from ansible_collections.dank.llm_fleet.plugins.module_utils._timed_program import closure


def names(*roots: object) -> list[str]:
    return [module.__name__.rpartition(".")[2] for module in closure(*roots)]  # type: ignore[arg-type]


def test_what_is_imported_directly_or_not_comes_along_once() -> None:
    assert names(_rest) == ["_errors", "_io", "_rest", "_verify"]
    found = names(_facts, _rest)
    assert found == sorted(set(found)) and {"_facts", "_rest", "_envkey", "_run"} <= set(found)


def test_a_program_on_a_host_takes_no_ansible_along_and_not_the_deploy() -> None:
    assert {"_module", "_endpoint", "_deploy", "_probe"} & set(names(_facts)) == set()
    for module in closure(_facts):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("ansible."), module
