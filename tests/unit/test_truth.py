# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chain of truth: each link broken alone is the one that is named."""

from __future__ import annotations

import mmap
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _proc, _truth, _truth_files
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._build_id import build_id
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._systemd import UnitState
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link, Observed, chain, first_broken, pad256
from ansible_collections.dank.llm_fleet.plugins.module_utils._verify import Identity, write_stamp
from conftest import Served
from hypothesis import given
from hypothesis import strategies as st

UNIT, UNIT_PATH = "chat.service", "/etc/systemd/system/chat.service"
STATE = UnitState(
    load_state="loaded",
    active_state="active",
    sub_state="running",
    result="success",
    main_pid=42,
    n_restarts=0,
    fragment_path=UNIT_PATH,
    drop_in_paths=("/d/ours.conf",),
    need_daemon_reload=False,
    unit_file_state="enabled",
    invocation_id="i" * 32,
    active_since_us=1,
    exit_code="0",
    exit_status="0",
    control_group="/system.slice/chat.service",
)
FILES = [
    {"path": "/models/m.gguf", "role": "model", "sha256": "ab" * 6},
    {"path": "/models/unproven.gguf", "role": "mmproj", "sha256": "cd" * 32},
    {"path": "/models/other.gguf", "role": "lora", "sha256": None},
]
PROPS = {"model_path": "/models/m.gguf", "total_slots": 2, "default_generation_settings": {"n_ctx": 2048}}


@pytest.fixture
def era(blueprint: Callable[..., Blueprint]) -> Era:
    plan = blueprint(payload={"name": "smol", "files": FILES})
    return Era("e1", "/eras/e1", plan, {"state": "certified", "digest": plan.digest})


def healthy(era: Era) -> Observed:
    facts = era.blueprint.facts
    return Observed(
        unit=STATE,
        unit_text=era.blueprint.unit_text,
        env_text=era.blueprint.env_text,
        exe="/opt/rt/bin/llama-server",
        argv=tuple(facts["argv"]),
        environ={**facts["env"], "LLM_FLEET_ERA": era.blueprint.digest, "INVOCATION_ID": "i", "HOME": "/"},
        owners=((42, UNIT, "llama-server"), (43, UNIT, "its child")),
        health="HTTP 200",
        props=PROPS,
        drop_ins=("/d/ours.conf",),
        digests={"/models/m.gguf": "ab" * 32, "/models/other.gguf": "ff" * 32},
    )


def in_state(**changes: Any) -> Callable[[Observed], Observed]:
    return lambda seen: replace(seen, unit=replace(seen.unit, **changes))


def seen_with(**changes: Any) -> Callable[[Observed], Observed]:
    return lambda seen: replace(seen, **changes)


def environ_with(**changes: str | None) -> Callable[[Observed], Observed]:
    def change(seen: Observed) -> Observed:
        merged = {**seen.environ, **changes}
        return replace(seen, environ={key: value for key, value in merged.items() if value is not None})

    return change


def props_with(**changes: Any) -> Callable[[Observed], Observed]:
    return lambda seen: replace(seen, props={**seen.props, **changes})


def declared_text(blueprint: Callable[..., Blueprint], **digests: str) -> Era:
    plan = blueprint(drop_ins=["/d/ours.conf"], drop_in_digests={"/d/ours.conf": "a" * 64, **digests})
    return Era("e1", "/eras/e1", plan, {"state": "certified", "digest": plan.digest})


@pytest.mark.parametrize("found", ["b" * 64, "no such file", None])
def test_the_text_of_a_declared_drop_in_is_the_one_that_was_proven(
    blueprint: Callable[..., Blueprint], found: str | None
) -> None:
    era = declared_text(blueprint)
    seen = replace(healthy(era), drop_in_digests={"/d/ours.conf": "a" * 64, "/d/other.conf": "c" * 64})
    assert all(link.ok for link in chain(era, UNIT, UNIT_PATH, seen, ["/d/ours.conf"]))
    broken = first_broken(
        chain(
            era,
            UNIT,
            UNIT_PATH,
            replace(seen, drop_in_digests={"/d/ours.conf": found} if found else {}),
            ["/d/ours.conf"],
        )
    )
    assert broken is not None
    assert (broken.name, broken.expected) == ("drop-in texts", {"/d/ours.conf": "a" * 64})
    assert broken.found == {"/d/ours.conf": found or "no such file"}


def test_an_era_of_before_knows_no_text_of_its_drop_ins(era: Era) -> None:
    links = chain(era, UNIT, UNIT_PATH, healthy(era), ["/d/ours.conf"])
    assert "drop-in texts" not in [link.name for link in links]


BROKEN: list[tuple[str, Callable[[Observed], Observed], Any]] = [
    ("unit file", seen_with(unit_text=None), "no such file"),
    ("env file", seen_with(env_text="CTX_SIZE=1\n"), ["CTX_SIZE=1"]),
    ("fragment path", in_state(fragment_path="/run/systemd/system/chat.service"), "/run/systemd/system/chat.service"),
    ("launcher", seen_with(launcher_fault="/l/serve was edited"), "/l/serve was edited"),
    ("drop-ins", seen_with(drop_ins=("/d/ours.conf", "/d/override.conf")), ["/d/ours.conf", "/d/override.conf"]),
    ("drop-ins", seen_with(drop_ins=()), []),
    ("pending reload", in_state(need_daemon_reload=True), True),
    ("enabled", in_state(unit_file_state="disabled"), "disabled"),
    ("unit state", in_state(active_state="activating", sub_state="auto-restart"), "activating (auto-restart)"),
    ("unit state", in_state(sub_state="exited"), "active (exited)"),
    ("program", seen_with(exe="/opt/rt/bin/llama-server (deleted)"), "/opt/rt/bin/llama-server (deleted)"),
    ("program", seen_with(exe="/usr/bin/bash"), "/usr/bin/bash"),
    ("arguments", seen_with(argv=("/opt/rt/bin/llama-server",)), ["/opt/rt/bin/llama-server"]),
    ("environment", environ_with(LLM_FLEET_ERA="older"), None),
    ("environment", environ_with(CTX_SIZE="1024"), None),
    ("environment", environ_with(ALIAS=None), None),
    ("environment from elsewhere", environ_with(LD_PRELOAD="/x.so", OMP_NUM_THREADS="1"), None),
    ("environment from elsewhere", environ_with(GGML_CUDA_FORCE_MMQ="1"), ["GGML_CUDA_FORCE_MMQ"]),
    ("environment from elsewhere", environ_with(LLM_FLEET_DRY_RUN="0"), ["LLM_FLEET_DRY_RUN"]),
    (
        "strangers on the port",
        seen_with(owners=((42, UNIT, "llama-server"), (77, "", "nc -l"))),
        ["pid 77 of no unit: nc -l"],
    ),
    (
        "strangers on the port",
        seen_with(owners=((42, UNIT, "s"), (77, "other.service", "t"))),
        ["pid 77 of other.service: t"],
    ),
    ("strangers on the port", seen_with(owners=((42, UNIT, "s"), (0, "", "unseen"))), ["pid 0 of no unit: unseen"]),
    ("main process listens", seen_with(owners=()), False),
    ("main process listens", seen_with(owners=((43, UNIT, "its child"),)), False),
    ("health", seen_with(health="HTTP 503 loading"), "HTTP 503 loading"),
    ("payload digests", seen_with(digests={"/models/m.gguf": "abb" + "ab" * 30}), {"/models/m.gguf": "abbababababa"}),
    ("payload files", seen_with(strange_files=("/m.gguf is gone",)), ["/m.gguf is gone"]),
    ("served file", props_with(model_path="/models/other.gguf"), "/models/other.gguf"),
    ("served file", seen_with(props={}), "(not told)"),
    ("served file", seen_with(props={"error": "HTTP 404"}), "HTTP 404"),
    ("slots", props_with(total_slots=1), 1),
    ("context per slot", props_with(default_generation_settings={"n_ctx": 4096}), 4096),
    ("context per slot", props_with(default_generation_settings=None), "(not told)"),
    ("context per slot", props_with(default_generation_settings=[1]), "(not told)"),
    ("context per slot", props_with(default_generation_settings={}), "(not told)"),
]


def links_of(era: Era, seen: Observed) -> list[Link]:
    return chain(era, UNIT, UNIT_PATH, seen, ["/d/ours.conf"])


def test_nothing_is_broken_when_all_is_well(era: Era) -> None:
    links = links_of(era, healthy(era))
    assert [link.name for link in links if not link.ok] == []
    assert first_broken(links) is None


@pytest.mark.parametrize(("name", "change", "found"), BROKEN, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(BROKEN)])
def test_a_link_broken_alone_is_named(era: Era, name: str, change: Callable[[Observed], Observed], found: Any) -> None:
    broken = first_broken(links_of(era, change(healthy(era))))
    assert broken is not None
    assert broken.name == name
    assert broken.remedy
    if found is not None:
        assert broken.found == found


def test_another_build_at_the_same_path_is_broken(era: Era) -> None:
    assert "build id" not in {link.name for link in links_of(era, healthy(era))}  # of a version that did not know
    facts = era.blueprint.facts
    known = replace(
        era, blueprint=replace(era.blueprint, facts={**facts, "runtime": {**facts["runtime"], "build_id": "aa11"}})
    )
    assert first_broken(links_of(known, replace(healthy(era), build_id="aa11"))) is None
    for found in ("bb22", None):
        broken = first_broken(links_of(known, replace(healthy(era), build_id=found)))
        assert broken is not None
        assert (broken.name, broken.expected, broken.found) == ("build id", "aa11", found)


def test_every_link_has_a_case(era: Era) -> None:
    assert {name for name, _change, _found in BROKEN} == {link.name for link in links_of(era, healthy(era))}


def test_the_environment_may_have_what_was_declared(era: Era) -> None:
    unit = era.blueprint.unit_text + "Environment=CUDA_CACHE_PATH=/var/cache\n"
    plan = replace(era.blueprint, unit_text=unit)
    change = environ_with(CUDA_CACHE_PATH="/var/cache", HSA_OVERRIDE_GFX_VERSION="12.0.1", LLM_FLEET_ENV_FILE="/e")
    seen = replace(change(healthy(era)), unit_text=unit)
    broken = first_broken(links_of(replace(era, blueprint=plan), seen))
    assert broken is not None
    assert (broken.name, broken.found) == ("environment from elsewhere", ["HSA_OVERRIDE_GFX_VERSION"])
    seen = replace(seen, drop_in_keys=frozenset({"HSA_OVERRIDE_GFX_VERSION"}))
    assert first_broken(links_of(replace(era, blueprint=plan), seen)) is None


def test_the_keys_that_a_unit_sets(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("# no\nHSA_A=1\n LD_B = x\n")
    text = f"""\
[Service]
Environment=A=1 "B=two words" 'C=x'
Environment=
#Environment=NO=1
PassEnvironment=D E
EnvironmentFile={tmp_path}/env
EnvironmentFile=-{tmp_path}/none
ExecStart=/usr/bin/env F=1
"""
    assert _truth.keys_set_by(text) - {"words", ""} == {"A", "B", "C", "D", "E", "HSA_A", "LD_B"}


def test_the_keys_of_drop_ins_are_seen(
    looked: Callable[..., Observed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu.conf").write_text("[Service]\nEnvironment=HSA_X=1\n")
    monkeypatch.setattr(_truth, "drop_ins_of", lambda _unit, _state: [str(tmp_path / "gpu.conf"), "/none.conf"])
    assert looked().drop_in_keys == {"HSA_X"}


def test_the_environment_shows_what_differs(era: Era) -> None:
    broken = first_broken(links_of(era, environ_with(ALIAS=None, CTX_SIZE="1")(healthy(era))))
    assert broken is not None
    differing = {key for key in broken.expected if broken.expected[key] != broken.found[key]}
    assert differing == {"ALIAS", "CTX_SIZE"}
    assert broken.found["ALIAS"] == "(not set)"
    assert "HOME" not in broken.found


def test_a_program_that_is_a_link_is_followed(era: Era, tmp_path: Path) -> None:
    real = tmp_path / "cpu@abc" / "llama-server"
    real.parent.mkdir()
    real.write_text("")
    (tmp_path / "cpu").symlink_to("cpu@abc")
    era.blueprint.facts["env"]["SERVER_BIN"] = str(tmp_path / "cpu" / "llama-server")
    seen = environ_with(SERVER_BIN=era.blueprint.facts["env"]["SERVER_BIN"])(replace(healthy(era), exe=str(real)))
    broken = first_broken(links_of(era, seen))
    assert broken is None


@pytest.mark.parametrize(("expected", "found", "ok"), [(1, 1, True), (1, 2, False), ([], (), False), ("", None, False)])
def test_a_link_is_ok_when_its_sides_are_equal(expected: Any, found: Any, ok: bool) -> None:
    link = Link("x", expected, found, "mend")
    assert link.ok is ok
    row = {"name": "x", "expected": expected, "found": found, "ok": ok}
    assert link.as_dict() == (row if ok else {**row, "remedy": "mend"})


def test_the_first_broken_link_is_the_fault() -> None:
    links = [Link("a", 1, 1), Link("b", 1, 2), Link("c", 1, 3)]
    assert first_broken(links) == links[1]
    assert first_broken([]) is None


@given(st.integers(min_value=0, max_value=10**9))
def test_pad256(n: int) -> None:
    assert pad256(n) % 256 == 0
    assert n <= pad256(n) < n + 256


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: Served) -> Callable[[], Observed]:
    """Observe this very process as if it were the unit's main process."""
    (tmp_path / "unit").write_text("u")
    (tmp_path / "env").write_text("e")

    def look(pid: int = os.getpid(), files: Sequence[str] = ()) -> Observed:
        monkeypatch.setattr(_truth, "show", lambda _unit: replace(STATE, main_pid=pid))
        api = Api("127.0.0.1", served.port)
        return _truth.observe(UNIT, str(tmp_path / "unit"), str(tmp_path / "env"), api, files)

    return look


def test_observe(looked: Callable[[], Observed], served: Served) -> None:
    served.answer("/health", {"status": "ok"})
    served.answer("/props", PROPS)
    seen = looked()
    assert (seen.unit_text, seen.env_text) == ("u", "e")
    assert seen.exe == os.path.realpath("/proc/self/exe")
    assert seen.build_id == build_id(seen.exe)
    assert list(seen.argv) == Path("/proc/self/cmdline").read_text().split("\0")[:-1]
    assert seen.environ["PATH"]
    assert [pid for pid, _unit, _command in seen.owners] == [os.getpid()]
    assert (seen.health, seen.props) == ("HTTP 200", PROPS)


def test_a_program_that_cannot_be_read_is_told_and_never_raised(
    looked: Callable[[], Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: str) -> str:
        raise FleetError(f"{path} is damaged")

    monkeypatch.setattr(_truth, "build_id", damaged)
    assert looked().build_id == f"/proc/{os.getpid()}/exe is damaged."


def test_observe_without_files(looked: Callable[[], Observed], tmp_path: Path) -> None:
    (tmp_path / "unit").unlink()
    seen = looked()
    assert seen.unit_text is None
    assert seen.health.startswith("HTTP 404")
    assert seen.props == {}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [(200, b"<html>", "answered no JSON"), (200, b"[1]", "/props answered [1]"), (501, b"off", "HTTP 501 off")],
)
def test_props_that_are_none_are_reported_and_never_raised(
    looked: Callable[[], Observed], served: Served, status: int, body: bytes, words: str
) -> None:
    served.answer("/health", {})
    served.answers["/props"] = (status, body)
    assert words in looked().props["error"]


def test_a_link_in_place_of_a_file_is_told_and_not_followed(looked: Callable[[], Observed], tmp_path: Path) -> None:
    (tmp_path / "unit").rename(tmp_path / "elsewhere")
    (tmp_path / "unit").symlink_to(tmp_path / "elsewhere")
    assert looked().unit_text == f"a link to {tmp_path}/elsewhere\n"


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        ("#!/bin/sh\nserve\n", 0o755, ""),
        (None, 0o755, ": no such file"),
        ("#!/bin/sh\r\nserve\r\n", 0o755, " was edited (Windows line ends)"),
        ("serve\n", 0o755, " was edited (no #! line)"),
        ("#!/bin/sh\nserve --fast\n", 0o755, " was edited"),
        ("#!/bin/sh\nserve\n", 0o644, " is not executable for all"),
        ("#!/bin/sh\nserve\n", 0o700, " is not executable for all"),
    ],
)
def test_launcher_fault(tmp_path: Path, content: str | None, mode: int, fault: str) -> None:
    path = tmp_path / "serve"
    if content is not None:
        path.write_bytes(content.encode())
        path.chmod(mode)
    assert _truth.launcher_fault(str(path), "#!/bin/sh\nserve\n") == (f"{path}{fault}" if fault else "")


def test_a_payload_file_that_is_not_the_verified_one_is_told(tmp_path: Path) -> None:
    model, stamps = tmp_path / "m.gguf", str(tmp_path / "stamps")
    model.write_bytes(b"right")
    assert _truth_files.unproven_files([str(model)], stamps) == ()  # never verified
    write_stamp(stamps, str(model), "a" * 64, Identity.of(model.stat()))
    model.chmod(0o600)
    assert _truth_files.unproven_files([str(model), str(tmp_path / "gone")], stamps) == ()
    before = model.stat()
    (tmp_path / "new").write_bytes(b"wrong")
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").rename(model)
    assert _truth_files.unproven_files([str(model)], stamps) == (f"{model} is not the file that was verified",)


def test_a_device_with_another_number_after_a_boot_is_no_other_file(tmp_path: Path) -> None:
    model, stamps = tmp_path / "m.gguf", str(tmp_path / "stamps")
    model.write_bytes(b"right")
    now = Identity.of(model.stat())
    moved = replace(now, device=now.device + 1)
    write_stamp(stamps, str(model), "a" * 64, moved)
    assert _truth_files.unproven_files([str(model)], stamps) == ()
    for other in ({"ctime_ns": 1}, {"inode": 1}, {"bytes": 1}, {"mtime_ns": 1}):
        write_stamp(stamps, str(model), "a" * 64, replace(moved, **other))
        assert _truth_files.unproven_files([str(model)], stamps) != (), other


def test_without_a_main_process_nobody_is_asked(looked: Callable[[int], Observed], served: Served) -> None:
    served.answer("/health", {})
    seen = looked(0)
    assert (seen.exe, seen.argv, seen.environ, seen.props) == ("", (), {}, {})
    assert seen.health == "not asked: no main process"
    assert served.seen == []


def test_a_main_process_that_ends_midway(looked: Callable[[int], Observed]) -> None:
    seen = looked(2**22 + 1)  # above pid_max
    assert seen.exe == "the main process ended while it was looked at"
    assert seen.argv == ()


def test_a_stranger_in_the_endpoints_place_is_seen(looked: Callable[[], Observed], era: Era, served: Served) -> None:
    served.answer("/health", {})
    with socket.create_server(("127.0.0.1", 0)):
        links = links_of(era, looked())
    assert not {link.name: link.ok for link in links}["strangers on the port"]


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [
        (lambda text: text + "EXTRA=1\n", [], ["EXTRA=1"]),
        (lambda text: "".join(reversed(text.splitlines(keepends=True))), "digest", "digest"),
        (lambda text: text.replace("\n", "\r\n"), "digest", "digest"),
        (lambda text: text + text, "digest", "digest"),
        (lambda text: text.removesuffix("\n"), "digest", "digest"),
    ],
)
def test_texts_that_differ_are_never_equal(era: Era, change: Any, expected: Any, found: Any) -> None:
    text = "A=1\nB=2\n"
    plan = replace(era.blueprint, env_text=text)
    seen = replace(healthy(era), env_text=change(text))
    link = next(link for link in chain(replace(era, blueprint=plan), UNIT, UNIT_PATH, seen) if link.name == "env file")
    assert not link.ok
    sides = [["digest" if re.fullmatch("[0-9a-f]{64}", str(side)) else side][0] for side in (link.expected, link.found)]
    assert sides == [expected, found]


def test_an_environment_that_differs_shows_only_where(era: Era) -> None:
    seen = environ_with(PARALLEL="7")(healthy(era))
    link = next(link for link in chain(era, UNIT, UNIT_PATH, seen) if link.name == "environment")
    assert (link.expected, link.found) == ({"PARALLEL": "2"}, {"PARALLEL": "7"})


def test_files_that_the_process_has_not_read(tmp_path: Path) -> None:
    old, new, away, mapped = (str(tmp_path / name) for name in ("old", "new", "away", "mapped"))
    for path in (old, new, mapped):
        Path(path).write_text("x")
    os.utime(old, (100, 100))
    os.utime(new, (300, 300))
    os.utime(mapped, (100, 100))
    assert _truth_files.strange_files([old, new, away, mapped], {mapped}, 200) == (
        f"{new} was changed since",
        f"{away} is gone",
        f"{mapped} was replaced since",
    )


def swap(one: Path, other: Path) -> None:
    """Two files change their names."""
    one.rename(one.with_suffix(".aside"))
    other.rename(one)
    one.with_suffix(".aside").rename(other)


@pytest.mark.parametrize("name", ["wrong.gguf", "wrong.bin", "elsewhere/wrong.gguf"])
@pytest.mark.parametrize("keep", ["mapped", "open"])
def test_what_a_process_holds_is_known_by_its_inode_and_not_by_its_name(tmp_path: Path, name: str, keep: str) -> None:
    model, drafter, wrong = tmp_path / "m.gguf", tmp_path / "d.gguf", tmp_path / name
    wrong.parent.mkdir(exist_ok=True)
    for path in (model, drafter, wrong):
        path.write_bytes(path.name.encode() * 1000)

    def told() -> tuple[frozenset[str], tuple[str, ...]]:
        return _truth_files.held_otherwise(
            _proc.held_files(os.getpid()), [str(model), str(drafter), str(tmp_path / "gone")]
        )

    def hold(stack: ExitStack) -> None:
        handle = stack.enter_context(model.open("rb"))
        if keep == "mapped":
            stack.enter_context(mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ))

    assert told() == (frozenset(), ())
    with ExitStack() as stack:
        hold(stack)
        os.link(model, tmp_path / "second-name.gguf")
        assert told() == (frozenset(), ())
        (tmp_path / "second-name.gguf").rename(model)  # the same file: nothing happens
        swap(model, wrong)
        assert told() == (frozenset(), (f"{wrong} is in use, and is none of the era's files",))
        swap(model, wrong)
        assert told() == (frozenset(), ())
    swap(model, wrong)
    with ExitStack() as stack:
        hold(stack)
        assert told() == (frozenset(), ())  # whether it is the verified one its stamp tells
        swap(model, wrong)  # as if nothing had been
        assert told() == (frozenset(), (f"{wrong} is in use, and is none of the era's files",))


def test_a_held_file_that_lost_its_name_and_got_it_back(tmp_path: Path) -> None:
    model, aside = tmp_path / "m.gguf", tmp_path / "m.gguf.replaced-aa"
    model.write_bytes(b"old")
    with model.open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ):
        os.link(model, aside)
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").rename(model)
        files = _proc.held_files(os.getpid())
        assert _truth_files.held_otherwise(files, [str(model)]) == (frozenset({str(model)}), ())
        aside.rename(model)
        assert _truth_files.held_otherwise(_proc.held_files(os.getpid()), [str(model)]) == (frozenset(), ())


def test_a_file_that_may_not_be_read_is_known_by_its_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")

    def denied(_path: str) -> None:
        raise PermissionError

    monkeypatch.setattr(_proc, "mapped_as", denied)
    state = model.stat()
    ours = _proc.HeldFile(str(model), state.st_dev, state.st_ino, True)
    assert _truth_files.held_otherwise([ours], [str(model)]) == (frozenset(), ())
    assert _truth_files.held_otherwise([replace(ours, inode=1)], [str(model)]) == (frozenset({str(model)}), ())


def test_what_the_main_process_holds_is_looked_at(
    looked: Callable[..., Observed], tmp_path: Path, served: Served
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    os.utime(model, (100, 100))
    assert looked(files=[str(model)]).strange_files == ()
    with (tmp_path / "n.gguf").open("wb"):
        assert looked(files=[str(model)]).strange_files == (
            f"{tmp_path}/n.gguf is in use, and is none of the era's files",
        )


def test_the_payload_files_that_an_era_loads() -> None:
    files = [
        {"path": "/m/m-00001-of-00002.gguf", "role": "shard"},
        {"path": "/m/m-00002-of-00002.gguf", "role": "shard"},
        {"path": "/m/projector.gguf", "role": "mmproj"},
        {"path": "/m/unused.gguf", "role": "lora"},
    ]
    env = {"MODEL_FILE": files[0]["path"], "MMPROJ_FILE": files[2]["path"], "LORA_FILE": ""}
    told = _truth_files.payload_paths({"env": env, "payload": {"files": files}})
    assert told == [file["path"] for file in files[:3]]
    env |= {"SPEC_DRAFT_MODEL": "/d/d-00001-of-00002.gguf", "LORA_FILE": "/l/a.gguf", "ALIAS": "m.gguf"}
    told = _truth_files.payload_paths({"env": env, "payload": {"files": files}})
    assert told[3:] == ["/d/d-00001-of-00002.gguf", "/d/d-00002-of-00002.gguf", "/l/a.gguf"]
