# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading systemctl's words; the programs themselves are stand-ins here (the scenarios have the real ones)."""

from __future__ import annotations

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
        (("/etc/x/a-b.service.d/1.conf",), (), ("/etc/x/a-b.service.d/1.conf",)),
        ((), ("a-b.service.d/1.conf", "a-b.service.d/note.txt"), ("{root}/a-b.service.d/1.conf",)),
        ((), ("a-.service.d/1.conf", "a.service.d/2.conf", "other.service.d/3.conf"), ("{root}/a-.service.d/1.conf",)),
        (("/etc/x/a-b.service.d/1.conf",), ("a-b.service.d/1.conf",), ("/etc/x/a-b.service.d/1.conf",)),
    ],
)
def test_drop_ins_are_those_read_and_those_that_the_next_reload_reads(
    tmp_path: Path, read: tuple[str, ...], there: tuple[str, ...], found: tuple[str, ...]
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("[Service]\n")
    state = _systemd.parse_show(shown(DropInPaths=" ".join(read)))
    told = _systemd.drop_ins_of("a-b.service", state, [str(tmp_path)])
    assert told == [path.format(root=tmp_path) for path in found]


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


@pytest.mark.parametrize(
    ("invocations", "expected"),
    [
        (("ab12",), "_SYSTEMD_INVOCATION_ID=ab12 + INVOCATION_ID=ab12"),
        (("ab12", ""), "_SYSTEMD_INVOCATION_ID=ab12 + INVOCATION_ID=ab12"),
        (
            ("ab", "cd"),
            "_SYSTEMD_INVOCATION_ID=ab + INVOCATION_ID=ab + _SYSTEMD_INVOCATION_ID=cd + INVOCATION_ID=cd",
        ),
    ],
)
def test_journal_of_these_starts_only(
    stand_in: Callable[[str, str], Path], tmp_path: Path, invocations: tuple[str, ...], expected: str
) -> None:
    stand_in("journalctl", f'echo "$@" | tee -a {tmp_path}/argv')
    assert _systemd.journal("u", *invocations, lines=7) == f"--no-pager --output cat --lines 7 {expected}"
    assert (tmp_path / "argv").read_text().splitlines()[0] == "--sync"


def entry(message: Any, invocation: str | None = None) -> str:
    return json.dumps({"MESSAGE": message} | ({} if invocation is None else {"INVOCATION_ID": invocation}))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], ("", [])),
        ([entry("old", "a"), entry("one", "b"), entry("two", "b")], ("b", ["one", "two"])),
        ([entry("old", "a"), entry("bad setting"), entry("will not start")], ("", ["bad setting", "will not start"])),
        ([entry("bad setting"), entry("Started", "a")], ("a", ["Started"])),
        ([entry([104, 105], "a")], ("a", ["[104, 105]"])),
    ],
)
def test_newest_start(entries: list[str], expected: tuple[str, list[str]]) -> None:
    assert _systemd.newest_start("\n".join(entries)) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry("old", "a"), entry("gone", "b")], "--no-pager --output cat --lines 20 _SYSTEMD_INVOCATION_ID=b "),
        ([entry("old", "a"), entry("bad setting"), entry("not started")], "bad setting\nnot started"),
        ([], ""),
    ],
)
def test_journal_of_a_start_that_systemd_forgot_or_refused(
    stand_in: Callable[[str, str], Path], tmp_path: Path, entries: list[str], expected: str
) -> None:
    (tmp_path / "entries").write_text("".join(f"{each}\n" for each in entries))
    stand_in(
        "journalctl",
        f'[ "$3" = json ] || {{ echo "$@"; exit 0; }}; [ "$6" = UNIT=u ] && cat {tmp_path}/entries',
    )
    told = _systemd.journal("u", "")
    assert told.startswith(expected)
    assert "_SYSTEMD_INVOCATION_ID= " not in told  # an empty match would find the boot's own lines


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
