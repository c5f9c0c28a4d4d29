# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading systemctl's words; the programs themselves are stand-ins here (the scenarios have the real ones)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _systemd
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError

SHOWN = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "MainPID": "4242",
    "NRestarts": "3",
    "FragmentPath": "/etc/systemd/system/chat.service",
    "DropInPaths": "/a/one.conf /b/two.conf",
    "NeedDaemonReload": "no",
    "UnitFileState": "enabled",
    "InvocationID": "ab" * 16,
    "ActiveEnterTimestampMonotonic": "123456789",
    "ExecMainCode": "0",
    "ExecMainStatus": "0",
    "ControlGroup": "/system.slice/chat.service",
}


def shown(**changes: str) -> str:
    return "".join(f"{key}={value}\n" for key, value in {**SHOWN, **changes}.items())


def test_parse_show() -> None:
    assert _systemd.parse_show(shown()) == _systemd.UnitState(
        load_state="loaded",
        active_state="active",
        sub_state="running",
        result="success",
        main_pid=4242,
        n_restarts=3,
        fragment_path="/etc/systemd/system/chat.service",
        drop_in_paths=("/a/one.conf", "/b/two.conf"),
        need_daemon_reload=False,
        unit_file_state="enabled",
        invocation_id="ab" * 16,
        active_since_us=123456789,
        exit_code="0",
        exit_status="0",
        control_group="/system.slice/chat.service",
    )


def test_empty_values_and_values_with_an_equals_sign() -> None:
    state = _systemd.parse_show(
        shown(
            MainPID="",
            NRestarts="",
            ActiveEnterTimestampMonotonic="",
            DropInPaths="",
            ControlGroup="/a=b",
            NeedDaemonReload="yes",
        )
    )
    assert (state.main_pid, state.n_restarts, state.active_since_us, state.drop_in_paths) == (0, 0, 0, ())
    assert state.control_group == "/a=b"
    assert state.need_daemon_reload is True


@pytest.mark.parametrize(
    ("read", "there", "found"),
    [
        ((), (), ()),
        (("/gone/a-b-c.service.d/1.conf",), (), ("/gone/a-b-c.service.d/1.conf",)),
        ((), ("etc/a-b-c.service.d/1.conf", "etc/a-b-c.service.d/note.txt"), ("etc/a-b-c.service.d/1.conf",)),
        ((), ("run/service.d/1.conf",), ("run/service.d/1.conf",)),
        ((), ("etc/socket.d/1.conf", "etc/other.service.d/1.conf", "etc/a-b.service.d/1.conf"), ()),
        (
            (),
            ("etc/a-.service.d/1.conf", "lib/a-b-.service.d/2.conf", "run/service.d/3.conf"),
            ("etc/a-.service.d/1.conf", "lib/a-b-.service.d/2.conf", "run/service.d/3.conf"),
        ),
        # of one name, the folder that comes first has it
        ((), ("lib/service.d/1.conf", "run/service.d/1.conf", "etc/service.d/1.conf"), ("etc/service.d/1.conf",)),
        ((), ("run/a-b-c.service.d/1.conf", "lib/a-b-c.service.d/1.conf"), ("run/a-b-c.service.d/1.conf",)),
        ((), ("etc/a-.service.d/1.conf", "run/a-b-c.service.d/1.conf"), ("etc/a-.service.d/1.conf",)),
        ((), ("etc/a-.service.d/1.conf", "etc/a-b-.service.d/1.conf"), ("etc/a-b-.service.d/1.conf",)),
        ((), ("etc/service.d/1.conf", "lib/a-.service.d/1.conf"), ("lib/a-.service.d/1.conf",)),
        # what was read stays one, though another hides it from the next reload on
        (
            ("{root}/run/a-b-c.service.d/1.conf",),
            ("run/a-b-c.service.d/1.conf", "etc/a-b-c.service.d/1.conf"),
            ("etc/a-b-c.service.d/1.conf", "run/a-b-c.service.d/1.conf"),
        ),
        (
            ("{root}/etc/a-b-c.service.d/1.conf",),
            ("run/a-b-c.service.d/1.conf", "etc/a-b-c.service.d/1.conf"),
            ("etc/a-b-c.service.d/1.conf",),
        ),
    ],
)
def test_drop_ins_are_those_read_and_those_that_the_next_reload_reads(
    tmp_path: Path, read: tuple[str, ...], there: tuple[str, ...], found: tuple[str, ...]
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[Service]\n")
    state = _systemd.parse_show(shown(DropInPaths=" ".join(path.format(root=tmp_path) for path in read)))
    told = _systemd.drop_ins_of("a-b-c.service", state, [f"{tmp_path}/{name}" for name in ("etc", "run", "lib")])
    assert told == [path if path.startswith("/") else f"{tmp_path}/{path}" for path in found]


def test_digests_of_texts(tmp_path: Path) -> None:
    (tmp_path / "1.conf").write_bytes(b"")
    (tmp_path / "masked.conf").symlink_to("/dev/null")
    told = _systemd.text_digests([f"{tmp_path}/{name}" for name in ("1.conf", "masked.conf", "2.conf")])
    assert list(told.values()) == [hashlib.sha256(b"").hexdigest()] * 2 + ["no such file"]


def test_a_folder_of_drop_ins_that_is_a_link_is_named_as_systemd_names_it(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/service.d").mkdir(parents=True)
    (tmp_path / "usr/lib/service.d/1.conf").write_text("[Service]\n")
    (tmp_path / "lib").symlink_to("usr/lib")
    state = _systemd.parse_show(shown(DropInPaths=f"{tmp_path}/usr/lib/service.d/1.conf"))
    assert _systemd.drop_ins_of("a.service", state, [f"{tmp_path}/lib"]) == list(state.drop_in_paths)


def test_the_folders_are_in_systemds_order() -> None:
    places = [_systemd.UNIT_DIRS.index(path) for path in ("/etc/systemd/system", "/run/systemd/system")]
    lib = [_systemd.UNIT_DIRS.index(path) for path in ("/usr/local/lib/systemd/system", "/usr/lib/systemd/system")]
    assert [*places, *lib] == sorted([*places, *lib])


@pytest.mark.parametrize("key", list(SHOWN))
def test_a_missing_property_is_refused_by_name(key: str) -> None:
    text = "".join(line + "\n" for line in shown().splitlines() if not line.startswith(f"{key}="))
    with pytest.raises(FleetError, match=f"found no {key}"):
        _systemd.parse_show(text)


@pytest.mark.parametrize(
    ("changes", "running", "words"),
    [
        ({}, True, "active (running)"),
        ({"MainPID": "0"}, False, "active (running)"),
        ({"SubState": "exited"}, False, "active (exited)"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, False, "activating (auto-restart)"),
        ({"ActiveState": "activating", "SubState": "running"}, False, "activating (running)"),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}, False, "failed (exit-code)"),
        ({"ActiveState": "inactive", "SubState": "dead"}, False, "inactive (dead)"),
        ({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}, False, "not found"),
    ],
)
def test_words(changes: dict[str, str], running: bool, words: str) -> None:
    state = _systemd.parse_show(shown(**changes))
    assert (state.running, state.words) == (running, words)


def test_show_asks_for_every_property(stand_in: Callable[[str, str], Path], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    answer.write_text(shown())
    stand_in("systemctl", f'echo "$@" > {tmp_path}/argv; cat {answer}')
    assert _systemd.show("chat.service").main_pid == 4242
    assert (tmp_path / "argv").read_text() == f"show --property {','.join(SHOWN)} chat.service\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: _systemd.daemon_reload(), ["daemon-reload"]),
        (lambda: _systemd.enable("u"), ["enable --quiet u"]),
        (lambda: _systemd.start("u", timeout_s=5), ["reset-failed u", "start u"]),
        (lambda: _systemd.stop("u", timeout_s=5), ["stop u"]),
        (lambda: _systemd.stop_and_disable("u", timeout_s=5), ["disable --now --quiet u", "reset-failed u"]),
    ],
)
def test_verbs(
    stand_in: Callable[[str, str], Path], tmp_path: Path, call: Callable[[], Any], expected: list[str]
) -> None:
    # reset-failed has nothing to reset here, which must not matter
    stand_in("systemctl", f'echo "$@" >> {tmp_path}/argv; [ "$1" != reset-failed ]')
    call()
    assert (tmp_path / "argv").read_text().splitlines() == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: _systemd.show("u"),
        lambda: _systemd.daemon_reload(),
        lambda: _systemd.enable("u"),
        lambda: _systemd.start("u", timeout_s=5),
        lambda: _systemd.stop("u", timeout_s=5),
        lambda: _systemd.stop_and_disable("u", timeout_s=5),
    ],
)
def test_a_verb_that_fails_is_not_passed_over(stand_in: Callable[[str, str], Path], call: Callable[[], Any]) -> None:
    stand_in("systemctl", "echo no bus >&2; exit 1")
    with pytest.raises(FleetError, match="no bus"):
        call()


def entry(message: Any, start: str | None = None, *, at: int = 0, by: str = "systemd") -> str:
    """One of journalctl's lines: what systemd says of unit u, or what its process writes."""
    fields: dict[str, Any] = {"MESSAGE": message, "__REALTIME_TIMESTAMP": str(at)}
    if by == "process":
        fields |= {"_SYSTEMD_UNIT": "u"} | ({} if start is None else {"_SYSTEMD_INVOCATION_ID": start})
    else:
        fields |= {"UNIT": "u", "_SYSTEMD_UNIT": "init.scope", "_SYSTEMD_INVOCATION_ID": "of the manager"}
        fields |= {} if start is None else {"INVOCATION_ID": start}
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], []),
        ([entry("Started", "a"), entry("hi", "a", by="process")], [("a", "Started"), ("a", "hi")]),
        ([entry("Started", "a"), entry("dying", by="process")], [("a", "Started"), ("a", "dying")]),
        (
            [entry("Started", "a"), entry("bad setting"), entry("Started", "b"), entry("dying", by="process")],
            [("a", "Started"), ("", "bad setting"), ("b", "Started"), ("b", "dying")],
        ),
        ([entry([104, 255], "a"), entry(None, "a"), entry("a\x85b\u2028c", "a")],
         [("a", "h\ufffd"), ("a", ""), ("a", "a\x85b\u2028c")]),
    ],
)  # fmt: skip
def test_each_line_is_of_its_start(entries: list[str], expected: list[tuple[str, str]]) -> None:
    assert _systemd.by_start("u", "\n".join(entries)) == expected


def test_a_line_that_the_journal_took_first_is_of_the_start_that_was_before_it() -> None:
    """systemd's "Started" waited in another socket; it carries the time when it was said."""
    late = json.dumps({**json.loads(entry("Started", "b", at=9)), "_SOURCE_REALTIME_TIMESTAMP": "5"})
    told = _systemd.by_start("u", "\n".join([entry("Stopped", "a", at=3), entry("dying", at=7, by="process"), late]))
    assert told == [("a", "Stopped"), ("b", "Started"), ("b", "dying")]


ENTRIES = [
    entry("Started", "old"), entry("error", "old", by="process"),
    entry("Started", "one"), entry("no such file", by="process"), entry("Failed", "one"),
    entry("Started", "two"), entry("hi", "two", by="process"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("invocations", "expected"),
    [
        (("one",), "Started\nno such file\nFailed"),
        (("one", ""), "Started\nno such file\nFailed"),
        (("one", "two"), "Started\nno such file\nFailed\nStarted\nhi"),
        ((), "Started\nhi"),  # systemd forgot the start
        (("",), "Started\nhi"),
        (("none",), ""),
    ],
)
def test_journal_of_these_starts_only(
    stand_in: Callable[[str, str], Path], tmp_path: Path, invocations: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "entries").write_text("".join(f"{each}\n" for each in ENTRIES))
    stand_in("journalctl", f'echo "$@" >> {tmp_path}/argv; [ "$1" = --sync ] || cat {tmp_path}/entries')
    assert _systemd.journal("u", *invocations, lines=7) == expected
    sync, read = (tmp_path / "argv").read_text().splitlines()
    assert sync == "--sync" and read.endswith(" --lines 7 _SYSTEMD_UNIT=u + UNIT=u")


def test_journal_of_a_start_that_systemd_refused(stand_in: Callable[[str, str], Path], tmp_path: Path) -> None:
    refused = [entry("Started", "old"), entry("bad setting"), entry("not started")]
    (tmp_path / "entries").write_text("".join(f"{each}\n" for each in refused))
    stand_in("journalctl", f'[ "$1" = --sync ] || cat {tmp_path}/entries')
    assert _systemd.journal("u", "") == "bad setting\nnot started"
    stand_in("journalctl", "true")
    assert _systemd.journal("u", "") == ""


def test_a_sound_unit_passes(stand_in: Callable[[str, str], Path], tmp_path: Path) -> None:
    stand_in(
        "systemd-analyze",
        f'for f; do :; done; cp "$f" {tmp_path}/verified; echo "$1" "$(basename "$f")" > {tmp_path}/argv',
    )
    _systemd.verify_unit("chat.service", "[Service]\nUser=ü\n")
    assert (tmp_path / "verified").read_text() == "[Service]\nUser=ü\n"
    assert (tmp_path / "argv").read_text() == "verify chat.service\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('for f; do :; done; echo "$f:3: Unknown key name" >&2; exit 0', "chat.service:3: Unknown key name"),
        ("echo to stdout; exit 0", "to stdout"),
        ("exit 1", "exit status 1"),
    ],
)
def test_any_word_or_status_of_verify_is_a_refusal(stand_in: Callable[[str, str], Path], body: str, found: str) -> None:
    stand_in("systemd-analyze", body)
    with pytest.raises(FleetError, match=r"unit chat\.service is not sound") as caught:
        _systemd.verify_unit("chat.service", "x")
    assert caught.value.found == found
