# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of eras: finding, comparing, pruning with a kill between any two steps, and what they still need."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _era, _era_history
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._history_table import (
    HEADINGS,
    change_lines,
    history_text,
    last_run_line,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_table import Report

Make = Callable[..., Blueprint]
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
PROBES = [{"probe": "chat", "verdict": "pass", "evidence": "hi"}]


def fit(**totals: float) -> dict[str, Any]:
    cards = [{"name": name, "total_mib": mib, "free_after_mib": 24000 - mib} for name, mib in totals.items()]
    return {"cards": cards, "host": {"name": "host", "total_mib": 9.0}, "split": [], "measured": None}


@pytest.fixture
def store(tmp_path: Path) -> EraStore:
    return EraStore(str(tmp_path / "state" / "chat"))


def staged(store: EraStore, blueprint: Blueprint, day: int = 0) -> Era:
    return store.stage(blueprint, now=NOW + timedelta(days=day))


def certified(store: EraStore, blueprint: Blueprint, day: int = 0, **certificate: Any) -> Era:
    return store.commit(staged(store, blueprint, day), {"at": f"day {day}", "probes": PROBES, **certificate})


def test_ids_are_in_the_order_of_time(store: EraStore, blueprint: Make) -> None:
    assert store.ids() == []
    made = [certified(store, blueprint(tag), day).id for day, tag in enumerate("cab")]
    for _again in range(11):
        made.append(staged(store, blueprint("d"), 3).id)
        store.fail(store.load(made[-1]), "broke")
    (Path(store.folder) / "eras" / ".half.tmp").mkdir()
    assert store.ids() == made
    assert made[-1].endswith("-11")  # by number, not by letters


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("20261130", 0), ("20261201", 1), ("2026", None), ("nope", None), ("", None)],
)
def test_find(store: EraStore, blueprint: Make, wanted: str, found: int | None) -> None:
    made = [certified(store, blueprint(tag), day) for day, tag in enumerate("ab")]
    if found is not None:
        assert store.find(wanted).id == made[found].id
        return
    with pytest.raises(FleetError, match="of chat") as caught:
        store.find(wanted)
    assert str(caught.value.expected) == f"the beginning of one of: {made[0].id}, {made[1].id}, or previous"
    assert caught.value.found == (f"{made[0].id}, {made[1].id}" if wanted == "2026" else "none of these")


def test_a_whole_id_is_found_though_another_begins_so(store: EraStore, blueprint: Make) -> None:
    one = staged(store, blueprint())
    store.fail(one, "broke")
    two = staged(store, blueprint())
    assert two.id == f"{one.id}-2"
    assert store.find(one.id).id == one.id


def test_find_where_nothing_was_deployed(store: EraStore) -> None:
    with pytest.raises(FleetError, match="none yet"):
        store.find("x")


def test_the_era_to_go_back_to(store: EraStore, blueprint: Make) -> None:
    assert store.previous_certified() is None
    one = certified(store, blueprint("one"))
    assert store.previous_certified() is None
    store.fail(staged(store, blueprint("bad"), 1), "broke")
    certified(store, blueprint("two"), 2)
    staged(store, blueprint("later"), 3)
    assert store.previous_certified() == store.find("previous") == one
    os.unlink(os.path.join(store.folder, "previous"))
    assert store.previous_certified() == one  # found without the link; the failed and the staged one are passed over


def test_history(store: EraStore, blueprint: Make) -> None:
    assert _era_history.history(store) == []
    one = certified(store, blueprint("one"), fit=fit(card0=100.0))
    two = certified(store, blueprint("two", rung="low"), 1, fit=fit(card0=150.0, card1=20.0))
    store.fail(staged(store, blueprint("three"), 2), "it broke")
    store.set_pin({"rung": "low", "era": two.id})
    rows = _era_history.history(store)
    assert [(row["state"], row["current"], row["previous"], row["pinned"]) for row in rows] == [
        ("certified", False, True, False),
        ("certified", True, False, True),
        ("failed", False, False, False),
    ]
    assert rows[0] == {
        "id": one.id,
        "created": "20261130T120000Z",
        "certified": "day 0",
        "state": "certified",
        "reason": None,
        "rung": None,
        "payload": "smol",
        "model_file": "m.gguf",
        "runtime": "cpu",
        "runtime_version": "b1",
        "shape": {"ctx_size": 4096, "parallel": 2, "ctx_per_slot": 2048},
        "probes": {"chat": "pass"},
        "ledger": [{"name": "card0", "total_mib": 100.0, "free_after_mib": 23900.0}],
        "current": False,
        "previous": True,
        "pinned": False,
        "changes": None,
    }
    assert rows[1]["rung"] == "low"
    assert rows[1]["changes"]["env"] == ["-TAG=one", "+TAG=two"]
    assert rows[1]["changes"]["ledger"] == {"card0": [100.0, 150.0], "card1": [None, 20.0]}
    assert (rows[2]["reason"], rows[2]["certified"], rows[2]["ledger"]) == ("it broke", None, [])
    assert rows[2]["changes"]["ledger"] == {}  # a failed era has no certificate to compare


def test_a_host_without_cards_has_its_memory_in_the_ledger(store: EraStore, blueprint: Make) -> None:
    certified(store, blueprint(), fit=fit())
    assert _era_history.history(store)[0]["ledger"] == [{"name": "host", "total_mib": 9.0, "free_after_mib": None}]


def test_a_damaged_era_is_a_row(store: EraStore, blueprint: Make) -> None:
    made = [certified(store, blueprint(tag), day) for day, tag in enumerate("abc")]
    (Path(made[1].path) / "env").write_text("edited")
    rows = _era_history.history(store)
    assert [row["state"] for row in rows] == ["certified", "damaged", "certified"]
    assert "is not as it was staged" in rows[1]["reason"] and rows[1]["previous"]
    assert rows[2]["changes"]["env"] == ["-TAG=a", "+TAG=c"]


UNIT = "[Service]\nEnvironment=LLM_FLEET_ERA={}\nRestartSec={}\n"
FILES = [
    {"path": "/m/b.gguf", "role": "projector", "sha256": None},
    {"path": "/m/a.gguf", "role": "model", "sha256": "a" * 64},
]


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({}, {}, {}),
        ({"unit_text": UNIT.format("one", 10)}, {"unit_text": UNIT.format("two", 10)}, {}),
        (
            {"unit_text": UNIT.format("one", 10)},
            {"unit_text": UNIT.format("two", 9)},
            {"unit": ["-RestartSec=10", "+RestartSec=9"]},
        ),
        ({"env_text": "A=1\n--x\n++y\n"}, {"env_text": "A=1\n"}, {"env": ["---x", "-++y"]}),
        ({"launcher_text": "#!/bin/sh\n"}, {}, {"launcher": True}),
    ],
)
def test_changes_of_texts(
    store: EraStore, blueprint: Make, before: dict[str, Any], after: dict[str, Any], changed: dict[str, Any]
) -> None:
    same = {"env_text": "A=1\n", "unit_text": "[Unit]\n", "launcher_text": "#!/bin/bash\n"}
    one, two = (
        staged(store, replace(blueprint(), **{**same, **texts}, digest=tag * 64))
        for tag, texts in (("a", before), ("b", after))
    )
    nothing = {"env": [], "files": [], "runtime": None, "unit": [], "launcher": False, "ledger": {}}
    assert _era_history.changes(one, two) == {**nothing, **changed}


@pytest.mark.parametrize(
    ("facts", "part", "changed"),
    [
        ({"payload": {"name": "p", "files": FILES[::-1]}}, "files", []),
        (
            {"payload": {"name": "p", "files": [FILES[0], {**FILES[1], "sha256": "b" * 64}]}},
            "files",
            ["-model /m/a.gguf aaaaaaaaaaaa", "+model /m/a.gguf bbbbbbbbbbbb"],
        ),
        ({"payload": {"name": "p", "files": FILES[1:]}}, "files", ["-projector /m/b.gguf no sha256"]),
        (
            {"runtime": {"name": "gpu", "version": "b2", "digest": "e" * 64, "path": "/opt/x"}},
            "runtime",
            "cpu b1 (dddddddd) -> gpu b2 (eeeeeeee)",
        ),
    ],
)
def test_changes_of_facts(store: EraStore, blueprint: Make, facts: dict[str, Any], part: str, changed: Any) -> None:
    whole = {"payload": {"name": "p", "files": FILES}}
    one = staged(store, blueprint("a", **whole))
    two = staged(store, blueprint("b", **{**whole, **facts}))
    assert _era_history.changes(one, two)[part] == changed


def test_prune_keeps_the_last_the_linked_and_the_pinned(store: EraStore, blueprint: Make) -> None:
    made = [certified(store, blueprint(str(day)), day).id for day in range(7)]
    store.set_pin({"rung": "low", "era": made[1]})
    two = store.load(made[2])
    store.commit(two, {"at": "again"})  # an old era serves again: it is current, the last one previous
    assert _era_history.prune(store, 1) == [made[0], *made[3:6]]
    assert store.ids() == [made[1], made[2], made[6]]
    assert (store.linked_id("current"), store.linked_id("previous")) == (made[2], made[6])
    assert _era_history.prune(store, 1) == []


def test_prune_keeps_what_a_pin_restored(store: EraStore, blueprint: Make) -> None:
    made = [certified(store, blueprint(str(day)), day).id for day in range(5)]
    store.set_pin({"rung": None, "restored": made[0], "era": made[1]})
    assert _era_history.prune(store, 1) == [made[2]]
    assert store.ids() == [made[0], made[1], made[3], made[4]]


def test_prune_keeps_every_certified_era_of_a_declared_rung(store: EraStore, blueprint: Make) -> None:
    rungs = ["low", None, "gone", "low", "low", None, None]
    plans = [blueprint(str(day), rung=rung) for day, rung in enumerate(rungs)]
    made = [(staged if day == 3 else certified)(store, plan, day).id for day, plan in enumerate(plans)]
    damaged = certified(store, blueprint("d", rung="low"), 7)
    certified(store, blueprint("e"), 8)
    (Path(store.folder) / "eras" / damaged.id / "env").write_text("edited")
    certified(store, blueprint("f"), 9)
    certified(store, blueprint("g"), 10)
    gone = _era_history.prune(store, 1, rungs=["low"])
    assert {made[0], made[4]} <= set(store.ids())
    assert {made[1], made[2], made[3], damaged.id} <= set(gone)  # never proven, or what nobody can restore


def test_prune_needs_no_pin_nor_links(store: EraStore, blueprint: Make) -> None:
    made = [staged(store, blueprint(str(day)), day).id for day in range(3)]
    assert _era_history.prune(store, 2) == made[:1]
    assert _era_history.prune(EraStore(f"{store.folder}-none"), 2) == []


@pytest.mark.parametrize("keep", [0, -1])
def test_prune_keeps_at_least_one(store: EraStore, keep: int) -> None:
    with pytest.raises(FleetError, match="expected 1 or more"):
        _era_history.prune(store, keep)


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("step", ["before the rename", "before the files go"])
def test_a_kill_while_pruning_leaves_whole_eras_and_the_next_run_finishes(
    store: EraStore, blueprint: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = [certified(store, blueprint(str(day)), day).id for day in range(4)]

    def die(*_args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(
            _era.os if step == "before the rename" else _era.shutil, "rename" if "rename" in step else "rmtree", die
        )
        with pytest.raises(Killed):
            _era_history.prune(store, 1)
    assert [store.load(era_id).id for era_id in store.ids()] == store.ids()  # each one that is left is whole
    _era_history.prune(store, 1)
    assert sorted(os.listdir(os.path.join(store.folder, "eras"))) == made[2:]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), count=st.integers(0, 5), keep=st.integers(1, 6))
def test_what_must_stay_stays(tmp_path: Path, blueprint: Make, data: Any, count: int, keep: int) -> None:
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    store = EraStore(str(tmp_path / "s"))
    made = [certified(store, blueprint(str(day)), day).id for day in range(count)]
    pinned = data.draw(st.sampled_from(made)) if made else None
    if pinned:
        store.set_pin({"rung": "r", "era": pinned})
    gone = _era_history.prune(store, keep)
    assert sorted([*gone, *store.ids()]) == sorted(made)
    assert not set(gone) & {*made[-keep:], *made[-2:], pinned}
    assert set(store.ids()) <= {*made[-keep:], *made[-2:], pinned}


def test_what_eras_refer_to(tmp_path: Path, blueprint: Make) -> None:
    state = tmp_path / "state"
    assert _era_history.referenced_files(str(state)) == set()
    one, two = EraStore(str(state / "chat")), EraStore(str(state / "code"))
    certified(one, blueprint("a", payload={"name": "p", "files": FILES}))
    failed = staged(two, blueprint("b", runtime={"name": "x", "digest": "e", "version": "1", "path": "/opt/x"}))
    two.fail(failed, "broke")
    (state / "payloads").mkdir()
    (state / "lock").write_text("")
    assert _era_history.referenced_files(str(state)) == {
        "/m/a.gguf",
        "/m/b.gguf",
        "/models/m.gguf",
        "/opt/rt/bin/llama-server",
    }
    assert _era_history.referenced_runtimes(str(state)) == {"/opt/rt", "/opt/x"}
    told = _era_history.referenced_digests(str(state))
    assert told == {
        "/m/a.gguf": {"a" * 64},
        "/m/b.gguf": {""},
        "/models/m.gguf": {""},
        "/opt/rt/bin/llama-server": {""},
    }


def test_what_a_damaged_era_needs_is_not_guessed(store: EraStore, blueprint: Make) -> None:
    era = certified(store, blueprint())
    path = Path(era.path) / "era.json"
    meta = json.loads(path.read_text())
    meta["facts"]["payload"]["files"] = FILES
    path.write_text(json.dumps(meta))
    for question in (_era_history.referenced_files, _era_history.referenced_digests, _era_history.referenced_runtimes):
        with pytest.raises(FleetError, match="is not as it was staged"):
            question(os.path.dirname(store.folder))


def test_the_table(store: EraStore, blueprint: Make) -> None:
    certified(store, blueprint("one"), fit=fit(card0=1100.0))
    certified(store, blueprint("two", rung="low"), 1, fit=fit(card0=1200.0))
    store.fail(staged(store, blueprint("three"), 2), "truth of endpoint chat: slots\nmore")
    lines = history_text("chat on box", _era_history.history(store)).splitlines()
    assert lines[0] == "chat on box"
    assert lines[1].split() == list(HEADINGS)
    assert "failed" in lines[2] and lines[2].endswith("failed: truth of endpoint chat: slots")
    assert [line.strip() for line in lines[3:7]] == [
        "-TAG=two",
        "+TAG=three",
        "-unit Description=two",
        "+unit Description=three",
    ]
    assert "certified, current" in lines[7] and "2026-12-01 12:00:00" in lines[7] and "  low  " in lines[7]
    assert "2 x 2048 f16/f16" in lines[7] and "cpu b1" in lines[7] and "chat: pass" in lines[7]
    assert "card0 1,200 MiB" in lines[7]
    assert "memory on card0 1,100 -> 1,200 MiB" in lines[11]
    assert "certified, previous" in lines[12] and lines[12].endswith("  -")
    assert len(lines) == 13


def test_the_table_of_an_endpoint_without_eras() -> None:
    assert history_text("chat on box", []) == "chat on box\nno era: nothing was deployed yet"


GREEN = {"at": "2026-12-01T12:00:00+00:00", "kind": "deploy", "served": True, "era": "e", "gates": []}
RED = {**GREEN, "served": False, "gate": "port", "error": {"what": "port 8080 is taken\nmore"}, "went_back_to": None}


@pytest.mark.parametrize(
    ("last_run", "line"),
    [
        (None, ""),
        (GREEN, "last run 2026-12-01 12:00:00: deploy, green"),
        (RED, "last run 2026-12-01 12:00:00: deploy, red at gate port: port 8080 is taken"),
        (
            {**RED, "gate": None, "went_back_to": "era e, which serves again"},
            "last run 2026-12-01 12:00:00: deploy, red before the gates: port 8080 is taken; serving after it: era e, "
            "which serves again",
        ),
    ],
)
def test_how_the_last_run_ended(last_run: dict[str, Any] | None, line: str) -> None:
    assert last_run_line(last_run) == line
    text = history_text("chat on box", [], last_run)
    assert text.splitlines()[:-1] == ["chat on box", line][: 2 if line else 1]


def test_the_record_of_a_red_gate_is_read_back(store: EraStore) -> None:
    assert store.last_run() is None
    os.makedirs(store.folder, exist_ok=True)
    Gates().write(store.last_run_path, **{key: RED[key] for key in ("kind", "served", "gate", "error", "went_back_to")})
    told = store.last_run()
    assert told is not None and last_run_line(told).endswith(": deploy, red at gate port: port 8080 is taken")


def test_a_damaged_era_in_the_table() -> None:
    row = {"id": "e", "state": "damaged", "reason": "/x/env is not as it was staged", "current": True, "changes": None}
    line = history_text("chat", [row]).splitlines()[2]
    assert line.split()[:3] == ["e", "damaged,", "current"]
    assert line.endswith("damaged: /x/env is not as it was staged")


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, []),
        ({"files": ["-model /m/a aaa"]}, ["-file model /m/a aaa"]),
        ({"runtime": "a -> b", "launcher": True}, ["runtime a -> b", "another launcher"]),
        ({"unit": ["-", "+User=x"]}, ["+unit User=x"]),
        ({"ledger": {"card1": [None, 1234.4]}}, ["memory on card1 - -> 1,234 MiB"]),
        ({"env": [f"+A={'x' * 200}"]}, [f"+A={'x' * 94}..."]),
    ],
)
def test_changes_as_lines(changed: dict[str, Any], lines: list[str]) -> None:
    nothing = {"env": [], "files": [], "runtime": None, "unit": [], "launcher": False, "ledger": {}}
    assert change_lines({**nothing, **changed}) == lines
    assert change_lines(None) == []


def test_the_report_has_a_history(store: EraStore, blueprint: Make) -> None:
    certified(store, blueprint("one"))
    report = Report()
    told = {"name": "chat", "pin": None, "last_run": GREEN, "eras": _era_history.history(store)}
    report.saw("box", {"histories": [told]})
    report.saw("box", {"histories": "somebody else's"})
    report.saw("box", {"histories": [None, {"name": "x"}]})
    report.v2_playbook_on_stats(None)
    assert report.printed == ["HISTORY", history_text("chat on box", told["eras"], GREEN)]
