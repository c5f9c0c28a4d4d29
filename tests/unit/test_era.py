# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store of eras: each step of staging, committing, failing and pinning, and a kill between any two of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _era
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, EraStore, blueprint_digest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._io import atomic_write
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Blueprint]
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> EraStore:
    return EraStore(str(tmp_path / "chat"))


def certified(store: EraStore, blueprint: Blueprint, seconds: int = 0) -> Era:
    return store.commit(store.stage(blueprint, now=NOW + timedelta(seconds=seconds)), {"at": "then"})


def test_a_new_store_is_empty(store: EraStore) -> None:
    assert (store.current(), store.previous(), store.pin()) == (None, None, None)


def test_stage_writes_the_whole_era(store: EraStore, blueprint: Make) -> None:
    plan = blueprint()
    era = store.stage(plan, now=NOW)
    assert era.id == f"20261130T120000Z-{plan.digest[:8]}"
    assert (era.blueprint, era.state) == (plan, "staged")
    folder = Path(era.path)
    assert sorted(os.listdir(folder)) == ["env", "era.json", "launcher", "unit"]
    assert (folder / "env").read_text() == plan.env_text
    assert (folder / "unit").read_text() == plan.unit_text
    assert (folder / "launcher").read_text() == plan.launcher_text
    assert os.access(folder / "launcher", os.X_OK) and not (folder / "env").stat().st_mode & 0o111
    assert store.current() is None
    assert store.load(era.id) == era


def test_commit_makes_current_and_keeps_the_proof(store: EraStore, blueprint: Make) -> None:
    one = certified(store, blueprint("one"))
    assert (one.state, one.meta["certificate"]) == ("certified", {"at": "then"})
    assert (store.current(), store.previous()) == (one, None)
    two = certified(store, blueprint("two"), 1)
    assert (store.current(), store.previous()) == (two, one)
    assert os.readlink(os.path.join(store.folder, "current")) == f"eras/{two.id}"


def test_committing_the_current_era_again_leaves_previous(store: EraStore, blueprint: Make) -> None:
    one, two = certified(store, blueprint("one")), certified(store, blueprint("two"), 1)
    again = store.commit(two, {"at": "now"})
    assert store.previous() == one
    assert store.current() == again
    assert again.meta["certificate"] == {"at": "now"}


def test_fail_records_the_reason_and_leaves_current(store: EraStore, blueprint: Make) -> None:
    one = certified(store, blueprint("one"))
    two = store.stage(blueprint("two"), now=NOW)
    store.fail(two, "it broke")
    failed = store.load(two.id)
    assert (failed.state, failed.meta["reason"]) == ("failed", "it broke")
    assert store.current() == one


def test_an_era_whose_commit_was_killed_is_taken_up_again(store: EraStore, blueprint: Make) -> None:
    def torn(tag: str, seconds: int) -> Era:  # certified, and the links are still the old ones
        era = store.stage(blueprint(tag), now=NOW + timedelta(seconds=seconds))
        atomic_write(os.path.join(era.path, "era.json"), json.dumps({**era.meta, "state": "certified"}).encode())
        return era

    first = certified(store, blueprint("one"))
    assert store.stage(blueprint("one"), now=NOW + timedelta(seconds=2)).id != first.id  # it is the current one
    second = torn("two", 3)
    assert store.stage(blueprint("two"), now=NOW + timedelta(seconds=4)).id == second.id
    certified(store, blueprint("three"), 5)
    assert store.stage(blueprint("two"), now=NOW + timedelta(seconds=6)).id != second.id  # older than the current


def test_a_staged_era_is_taken_up_again_and_only_that(store: EraStore, blueprint: Make) -> None:
    one = store.stage(blueprint(), now=NOW)
    assert store.stage(blueprint(), now=NOW + timedelta(days=1)) == one
    assert store.stage(blueprint("other"), now=NOW).id != one.id
    store.fail(one, "broke")
    two = store.stage(blueprint(), now=NOW + timedelta(seconds=2))
    assert two.id != one.id
    store.commit(two, {})
    three = store.stage(blueprint(), now=NOW + timedelta(seconds=3))
    assert three.id not in (one.id, two.id)


def test_other_terms_of_proof_are_another_era(store: EraStore, blueprint: Make) -> None:
    one = store.stage(blueprint(), now=NOW)
    two = store.stage(blueprint(probes={"max_tokens": 999, "timeout_s": 5}), now=NOW)
    assert two.id != one.id
    assert two.blueprint.facts["probes"]["max_tokens"] == 999


def test_two_eras_of_one_second_do_not_collide(store: EraStore, blueprint: Make) -> None:
    one = store.stage(blueprint(), now=NOW)
    store.fail(one, "broke")
    two = store.stage(blueprint(), now=NOW)
    store.fail(two, "broke")
    three = store.stage(blueprint(), now=NOW)
    assert [two.id, three.id] == [f"{one.id}-2", f"{one.id}-3"]
    assert store.load(one.id).state == "failed"


@pytest.mark.parametrize("file", ["env", "unit", "launcher"])
@pytest.mark.parametrize("change", [b"", b"edited\n", None])
def test_a_changed_text_is_refused_with_a_way_out(
    store: EraStore, blueprint: Make, file: str, change: bytes | None
) -> None:
    era = certified(store, blueprint())
    path = Path(era.path) / file
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change)
    with pytest.raises(FleetError, match=f"{path} is not as it was staged") as caught:
        store.current()
    assert str(caught.value.expected) == f"sha256 {era.meta['sha256'][file]}"
    assert ("no such file" in str(caught.value.found)) == (change is None)
    assert f"{store.folder}/current" in str(caught.value.remedy)


def test_the_way_out_of_a_damaged_current_era_is_one(store: EraStore, blueprint: Make) -> None:
    era = certified(store, blueprint())
    (Path(era.path) / "env").unlink()
    os.unlink(os.path.join(store.folder, "current"))
    assert store.current() is None
    again = certified(store, blueprint(), 1)
    assert store.current() == again


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b"7", b'{"digest": "d", "state": "staged", "sha256": {}, "facts": {}}']
)
def test_a_damaged_record_is_refused_with_a_way_out(store: EraStore, blueprint: Make, text: bytes) -> None:
    era = certified(store, blueprint())
    (Path(era.path) / "era.json").write_bytes(text)
    with pytest.raises(FleetError, match=r"era\.json is damaged") as caught:
        store.current()
    assert f"{store.folder}/current" in str(caught.value.remedy)


def test_an_era_that_is_gone_is_named(store: EraStore, blueprint: Make) -> None:
    certified(store, blueprint())
    with pytest.raises(FleetError, match="era nope is not on this host"):
        store.load("nope")


class Killed(BaseException):
    """Stands for kill -9: nothing that handles errors sees it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, work: Callable[[], Any]) -> bool:
    """Run ``work`` and die before its ``step``-th write to the disk; False when it has fewer."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kw: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kw)

        return call

    with monkeypatch.context() as patch:
        for name in ("atomic_write", "atomic_link", "make_dirs"):
            patch.setattr(_era, name, counted(getattr(_era, name)))
        patch.setattr(os, "rename", counted(os.rename))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("step", range(6))
def test_a_kill_while_staging_leaves_no_half_era(
    store: EraStore, blueprint: Make, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    one = certified(store, blueprint("one"))
    assert killed_at(monkeypatch, step, lambda: store.stage(blueprint("two"), now=NOW + timedelta(seconds=1)))
    assert store.current() == one
    eras = [name for name in os.listdir(os.path.join(store.folder, "eras")) if not name.startswith(".")]
    assert eras == [one.id]
    two = certified(store, blueprint("two"), 1)
    assert (store.current(), store.previous()) == (two, one)
    assert sorted(os.listdir(os.path.join(store.folder, "eras"))) == sorted([one.id, two.id])


@pytest.mark.parametrize("step", range(3))
def test_a_kill_while_committing_is_mended_by_the_next_run(
    store: EraStore, blueprint: Make, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    one = certified(store, blueprint("one"))
    two = store.stage(blueprint("two"), now=NOW + timedelta(seconds=1))
    assert killed_at(monkeypatch, step, lambda: store.commit(two, {"at": "then"}))
    assert store.current() == one
    again = certified(store, blueprint("two"), 2)
    assert store.current() == again
    assert store.previous() == one


def test_the_kills_above_cover_every_step(store: EraStore, blueprint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    certified(store, blueprint("one"))
    assert not killed_at(monkeypatch, 6, lambda: store.stage(blueprint("two"), now=NOW + timedelta(seconds=1)))
    two = store.stage(blueprint("two"))
    assert not killed_at(monkeypatch, 3, lambda: store.commit(two, {}))


def test_pin(store: EraStore, blueprint: Make) -> None:
    store.stage(blueprint())
    store.set_pin({"rung": "spec_off", "lines": {"SPEC_TYPE": "none"}})
    assert store.pin() == {"rung": "spec_off", "lines": {"SPEC_TYPE": "none"}}
    store.set_pin(None)
    store.set_pin(None)
    assert store.pin() is None
    assert "pin.json" not in os.listdir(store.folder)


words = st.text(max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(words, json_values, max_size=4), words, json_values)
def test_the_digest_depends_on_content_and_not_on_order(parts: dict[str, Any], key: str, value: Any) -> None:
    digest = blueprint_digest(parts)
    assert digest == blueprint_digest(dict(reversed(parts.items())))
    changed = {**parts, key: value}
    same = json.dumps(changed, sort_keys=True) == json.dumps(parts, sort_keys=True)
    assert (blueprint_digest(changed) == digest) == same


def test_texts_of_any_language_survive(store: EraStore, blueprint: Make) -> None:
    plan = replace(blueprint(), env_text="ALIAS='größe 🦙'\n")
    assert store.stage(plan).blueprint.env_text == "ALIAS='größe 🦙'\n"


def test_edited_facts_are_refused(store: EraStore, blueprint: Make) -> None:
    """The arguments and the env that truth compares with are part of the record too."""
    era = certified(store, blueprint())
    path = Path(era.path) / "era.json"
    meta = json.loads(path.read_text())
    meta["facts"]["argv"].append("--slots")
    path.write_text(json.dumps(meta))
    with pytest.raises(FleetError, match=r"is not as it was staged.*expected facts of sha256"):
        store.current()
