# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence of a qualification: what is derived from it, and the refusal of every number that was changed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_evidence import (
    FILES,
    put,
    read,
    sha256,
    state_of,
    verify,
    write_derived,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_judge import faults
from ansible_collections.dank.llm_fleet.plugins.module_utils._qualify_runbook import TEMPLATE, fill
from qualifyevidence import TABLE, evidence

Change = Callable[[dict[str, Any]], Any]


def write(run: Path, told: dict[str, Any] | None = None) -> str:
    """A run's folder as the steps leave it; the digest that is sealed."""
    for name, value in (told or evidence()).items():
        put(str(run), name, value)
    write_derived(str(run))
    return read(str(run))[1]


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of every number in ``value``."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, (*path, key))
    elif isinstance(value, list):
        for key, one in enumerate(value):
            yield from numbers(one, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changed(told: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """``told`` with one more at ``path``."""
    *way, last = path
    at: Any = told
    for key in way:
        at = at[key]
    at[last] += 1
    return told


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole run, written once, and its digest."""
    run = tmp_path_factory.mktemp("run")
    return run, write(run)


@pytest.fixture
def run(sound: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(sound[0], tmp_path / "run"))


def test_what_a_run_saw_is_verified(sound: tuple[Path, str]) -> None:
    assert verify(str(sound[0]), sound[1]) == evidence()
    assert os.stat(sound[0] / "state.json").st_mode & 0o077 == 0


@pytest.mark.parametrize("path", list(numbers(evidence())), ids=lambda path: ".".join(map(str, path)))
def test_one_changed_number_of_the_evidence_is_refused(
    sound: tuple[Path, str], run: Path, path: tuple[Any, ...]
) -> None:
    digest = sound[1]
    name = f"{path[0]}.json"
    text = json.dumps(changed(evidence(), path)[path[0]], indent=2, sort_keys=True) + "\n"
    (run / name).write_text(text)
    with pytest.raises(FleetError, match=f"{name} is not what the run wrote"):
        verify(str(run), digest)
    # With its digest beside it the file is whole, and the seal is another's.
    digests = json.loads((run / "digests.json").read_text())
    put(str(run), path[0], changed(evidence(), path)[path[0]])
    assert json.loads((run / "digests.json").read_text()) != digests
    with pytest.raises(FleetError, match="is not what was sealed"):
        verify(str(run), digest)


@pytest.mark.parametrize("name", ["runbook.md", "state.json"])
def test_one_changed_number_of_runbook_or_state_is_refused(sound: tuple[Path, str], run: Path, name: str) -> None:
    digest = sound[1]
    text = (run / name).read_text()
    spans = [match.start() for match in re.finditer(r"\d", text)]
    assert len(spans) > 4
    for at in spans[:: max(1, len(spans) // 60)]:
        (run / name).write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")
        with pytest.raises(FleetError, match=f"{name} is not what follows from the run's evidence"):
            verify(str(run), digest)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(run: Path, name: str) -> None:
    (run / f"{name}.json").unlink()
    with pytest.raises(FleetError, match="no such file"):
        verify(str(run))


def test_a_run_that_broke_off_derives_nothing(tmp_path: Path) -> None:
    told = evidence()
    del told["headroom"]
    with pytest.raises(FleetError, match=r"expected digests.json with .*headroom.json"):
        write(tmp_path, told)
    assert not (tmp_path / "state.json").exists() and not (tmp_path / "runbook.md").exists()


def test_the_template_holds_no_figure_of_its_own() -> None:
    bare = re.sub(r"\{\{[^}]+\}\}", "", TEMPLATE).replace("sha256", "").replace("R9V", "")
    assert not re.search(r"\d", bare)


def test_every_line_of_the_runbook_comes_from_the_evidence(run: Path) -> None:
    page = (run / "runbook.md").read_text()
    for line in (
        "| chat | pass | answered 'PONG' | 0.4 |",
        "| 8 | 1,048,576 |",
        "| c0 | 3,400.0 | 32,624.0 |",
        "| `target/m.gguf` | 251 | `" + "22" * 32 + "` |",
        "did not serve for 1000.5 s.",
        "(none)",
    ):
        assert line in page
    assert "{{" not in page


def test_a_value_that_the_run_did_not_see_cannot_stand_in_a_runbook() -> None:
    with pytest.raises(FleetError, match=r"runbook: start\.tokens"):
        fill("{{start.tokens}}\n", evidence())


def test_hostile_text_stays_within_its_cell() -> None:
    told = evidence()
    told["probes"]["verdicts"][0]["evidence"] = "a | b\n| c |"
    assert r"| chat | pass | a \| b \| c \| | 0.4 |" in fill(TEMPLATE, told)


def test_the_state_is_the_forks_with_its_folder_now_the_profiles() -> None:
    told = json.loads(state_of(evidence()))
    assert told["ready"] is True and told["profile_id"] == "standin/q8"
    assert told["config"] == {
        "R9V_MAX_MODEL_LEN": "4096",
        "R9V_EXPERT_MANIFEST_PATH": "/srv/state/q8/hot.json",
    }
    assert told["artifacts"] == evidence()["setup"]["state"]["artifacts"]


def free(told: dict[str, Any], mib: float) -> None:
    told["headroom"]["cards"][0]["free_mib"] = mib


def verdict(told: dict[str, Any], number: int, word: str) -> None:
    told["probes"]["verdicts"][number]["verdict"] = word


REDS: list[tuple[Change, str, str]] = [
    (lambda told: free(told, 3379.0), "headroom: c0 has 3,379 MiB free of 3.3 GiB", "c0 by 0 MiB"),
    (lambda told: free(told, 952.0), "headroom: c0 has 952 MiB free", "hot count of c0 by 2,427 MiB"),
    (lambda told: told["headroom"].update(cards=[]), "no card told its free memory", "llm_cards"),
    (lambda told: told["pinning"].update(table_bytes=TABLE + 4096), "not pinned: VmLck 1,048,576", "memlock"),
    (lambda told: told["pinning"].update(processes=[]), "VmLck 0 of 1,048,576", "memlock"),
    (lambda told: told["truth"]["links"][0].update(found=8192), "context: expected 4096, found 8192", "Run again"),
    (lambda told: verdict(told, 0, "fail"), "probe chat: answered", "declare-probes"),
    (lambda told: verdict(told, 1, "not-declared"), "probe tools: called add", "declare-probes"),
    (lambda told: told["probes"]["verdicts"].pop(1), "probe tools was not asked", "declare-probes"),
    (lambda told: told["probes"]["verdicts"].pop(3), "probe long context was not asked", "declare-probes"),
]


@pytest.mark.parametrize(("change", "words", "remedy"), REDS)
def test_what_does_not_qualify(tmp_path: Path, change: Change, words: str, remedy: str) -> None:
    told = evidence()
    change(told)
    (fault,) = faults(told)
    assert words in fault.words and remedy in fault.remedy
    with pytest.raises(FleetError, match="does not qualify"):
        write(tmp_path, told)
    assert not (tmp_path / "state.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: None,
        lambda told: free(told, 3379.2),
        lambda told: told["headroom"].update(floor_gib=0.0, cards=[]),
        lambda told: told["pinning"].update(mode="ssd", processes=[]),
        lambda told: told["pinning"].update(table_bytes=TABLE + 4095),
    ],
)
def test_what_does(change: Change) -> None:
    told = evidence()
    change(told)
    assert faults(told) == []


def test_two_faults_are_both_told_and_headroom_comes_first(tmp_path: Path) -> None:
    told = evidence()
    verdict(told, 0, "fail")
    free(told, 952.0)
    with pytest.raises(FleetError) as caught:
        write(tmp_path, told)
    assert "headroom" in str(caught.value.found) and "probe chat" in str(caught.value.found)
    assert "trim_experts" in str(caught.value.remedy)
    assert sha256(b"") != read(str(tmp_path))[1]
