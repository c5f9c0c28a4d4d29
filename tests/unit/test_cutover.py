# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates with real sockets, and waiting for health with a stand-in for systemctl."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _cutover, _proc
from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._blueprint import Paths
from ansible_collections.dank.llm_fleet.plugins.module_utils._era import Blueprint, Era, sha256_text
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import Gates
from ansible_collections.dank.llm_fleet.plugins.module_utils._truth import Link
from conftest import Served
from test_systemd import shown
from test_truth import STATE

Make = Callable[..., Blueprint]
RUNNING = shown(NRestarts="0", DropInPaths="")


def quiet(*_told: Any) -> None:
    """Say nothing."""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths("chat", etc=str(tmp_path / "etc"), launchers=str(tmp_path / "l"), units=str(tmp_path / "units"))


def journal_says(*lines: str, start: str = "ab" * 16) -> str:
    """A stand-in for journalctl: what the process of that start of chat.service wrote."""
    known = {"_SYSTEMD_UNIT": "chat.service", "_SYSTEMD_INVOCATION_ID": start, "__REALTIME_TIMESTAMP": "0"}
    entries = "\n".join(json.dumps({"MESSAGE": line, **known}) for line in lines)
    return f"[ \"$1\" = --sync ] || cat <<'END'\n{entries}\nEND"


@pytest.fixture
def systemctl(stand_in: Callable[[str, str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A stand-in for systemctl that shows the given states one after the other and then the last for ever."""

    def script(*states: str) -> Path:
        for number, state in enumerate(states, 1):
            (tmp_path / f"state{number}").write_text(state)
        log = tmp_path / "systemctl.log"
        log.unlink(missing_ok=True)
        stand_in(
            "systemctl",
            f'echo "$@" >> {log}\n[ "$1" = show ] || exit 0\n'
            f"n=$(grep -c '^show' {log}); [ $n -gt {len(states)} ] && n={len(states)}; cat {tmp_path}/state$n",
        )
        stand_in("journalctl", journal_says("the first", start="cd" * 16) + "\n" + journal_says("its words"))
        return log

    return script


@pytest.mark.parametrize(
    ("env", "host"),
    [
        ({}, "127.0.0.1"),
        ({"BIND_ADDR": "0.0.0.0"}, "127.0.0.1"),
        ({"BIND_ADDR": "::"}, "127.0.0.1"),
        ({"BIND_ADDR": "192.0.2.7"}, "192.0.2.7"),
    ],
)
def test_an_endpoint_is_reached_where_it_binds(env: dict[str, str], host: str) -> None:
    api = _cutover.api_of({**env, "LISTEN_PORT": "8080"})
    assert (api.host, api.port) == (host, 8080)


def test_the_key_comes_from_its_file(tmp_path: Path, served: Served) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\nother\n")
    _cutover.api_of({"LISTEN_PORT": str(served.port), "API_KEY_FILE": str(key)}).get("/")
    assert served.seen[-1][2]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_key_file_without_a_key(tmp_path: Path, content: str | None) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content)
    with pytest.raises(FleetError, match="expected a file with a key"):
        _cutover.api_of({"LISTEN_PORT": "1", "API_KEY_FILE": str(key)})
    assert not _cutover.api_of({"LISTEN_PORT": "1", "API_KEY_FILE": str(key)}, key_needed=False).has_key


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", "schl\u00fcssel".encode(), b"a\x00b"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(tmp_path: Path, data: bytes) -> None:
    key = tmp_path / "key"
    key.write_bytes(data)
    with pytest.raises(FleetError, match=r"expected one word of printable ASCII; found other characters") as caught:
        _cutover.api_of({"LISTEN_PORT": "1", "API_KEY_FILE": str(key)})
    assert "schl" not in caught.value.message


def test_a_free_port_and_ones_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        for unit in ("chat.service", "rival.service"):
            monkeypatch.setattr(_proc, "unit_of", lambda _pid, unit=unit: unit)
            _cutover.gate_port(["chat.service", "rival.service"], port)
    _cutover.gate_port(["chat.service"], port)


def test_what_will_be_retired_may_hold_the_port_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        for unit in ("old.service", "old.service of user@1000.service"):
            monkeypatch.setattr(_proc, "unit_of", lambda _pid, unit=unit: unit)
            _cutover.gate_port(["chat.service"], port, leaving={"old.service"})
            with pytest.raises(FleetError, match="is taken"):
                _cutover.gate_port(["chat.service", "old"], port)


@pytest.mark.parametrize("unit", ["", "other.service", "chat.service of user@1000.service"])
def test_a_port_in_other_hands_is_refused(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    monkeypatch.setattr(_proc, "unit_of", lambda _pid: unit)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(FleetError, match=f"port {port} is taken") as caught:
            _cutover.gate_port(["chat.service"], port)
    assert f"pid {os.getpid()} of {unit or 'no unit'}: " in str(caught.value.found)
    assert caught.value.facts["gate"] == "port"


@pytest.mark.parametrize(
    ("there", "declared", "strange"),
    [
        ((), [], None),
        (("/a",), ["/a"], None),
        ((), ["/a"], None),
        (("/a",), [], "/a"),
        (("/c", "/b", "/a"), ["/b"], "/a, /c"),
    ],
)
def test_drop_ins(there: tuple[str, ...], declared: list[str], strange: str | None) -> None:
    state = replace(STATE, drop_in_paths=there)
    if strange is None:
        _cutover.gate_drop_ins("chat.service", state, declared)
        return
    with pytest.raises(FleetError) as caught:
        _cutover.gate_drop_ins("chat.service", state, declared)
    assert caught.value.found == strange
    assert f"llm_endpoints.chat.drop_ins: [{strange}]" in str(caught.value.remedy)


@pytest.mark.parametrize(("text", "refused"), [("a", False), ("b", True), (None, True)])
def test_a_drop_in_that_is_not_the_one_that_was_proven(tmp_path: Path, text: str | None, refused: bool) -> None:
    path = tmp_path / "limit.conf"
    if text is not None:
        path.write_text(text)
    state = replace(STATE, drop_in_paths=(str(path),))
    proven = {str(path): hashlib.sha256(b"a").hexdigest()}
    if not refused:
        _cutover.gate_drop_ins("chat.service", state, [str(path)], proven)
        return
    with pytest.raises(FleetError, match="is not the text that the era was proven with") as caught:
        _cutover.gate_drop_ins("chat.service", state, [str(path)], proven)
    assert (caught.value.expected, caught.value.facts["gate"]) == (f"sha256 {proven[str(path)]}", "drop-ins")


@pytest.mark.parametrize(
    ("fragment", "leaving", "refused"),
    [
        ("", (), False),
        ("{own}", (), False),
        ("/run/systemd/generator/chat.service", (), True),
        ("/run/systemd/generator/chat.service", ("chat.service",), False),
        ("/etc/systemd/system.control/chat.service", ("other.service",), True),
    ],
)
def test_a_unit_of_the_name_from_another_file(
    paths: Paths, fragment: str, leaving: tuple[str, ...], refused: bool
) -> None:
    state = replace(STATE, fragment_path=fragment.format(own=paths.unit_file))
    if not refused:
        _cutover.gate_shadow(paths, state, leaving)
        return
    with pytest.raises(FleetError) as caught:
        _cutover.gate_shadow(paths, state, leaving)
    assert caught.value.found == fragment
    assert caught.value.facts["gate"] == "foreign files"


def test_files_are_put_and_systemd_reads_them(paths: Paths, systemctl: Callable[..., Path], blueprint: Make) -> None:
    log = systemctl(RUNNING)
    plan = blueprint()
    _cutover.put_files(plan, paths)
    assert Path(paths.env_file).read_text() == plan.env_text
    assert Path(paths.unit_file).read_text() == plan.unit_text
    launcher = Path(paths.launcher(plan.launcher_text))
    assert launcher.read_text() == plan.launcher_text
    assert os.access(launcher, os.X_OK)
    assert log.read_text() == "daemon-reload\nenable --quiet chat.service\n"


def test_files_that_are_right_are_not_written_again(
    paths: Paths, tmp_path: Path, systemctl: Callable[..., Path], blueprint: Make
) -> None:
    systemctl(RUNNING)
    _cutover.put_files(blueprint(), paths)
    before = [os.stat(path).st_ino for path in (paths.env_file, paths.unit_file)]
    _cutover.put_files(blueprint(), paths)
    assert [os.stat(path).st_ino for path in (paths.env_file, paths.unit_file)] == before
    Path(paths.env_file).write_text("edited")
    launcher = Path(paths.launcher(blueprint().launcher_text))
    launcher.chmod(0o644)
    Path(paths.unit_file).rename(tmp_path / "elsewhere")
    Path(paths.unit_file).symlink_to(tmp_path / "elsewhere")
    _cutover.put_files(blueprint(), paths)
    assert Path(paths.env_file).read_text() == blueprint().env_text
    assert launcher.stat().st_mode & 0o777 == 0o755
    assert not Path(paths.unit_file).is_symlink()


def test_a_first_deploy_is_taken_away_whole(paths: Paths, systemctl: Callable[..., Path], blueprint: Make) -> None:
    log = systemctl(RUNNING)
    _cutover.put_files(blueprint(), paths)
    _cutover.remove_files(paths, timeout_s=5)
    assert not os.path.exists(paths.env_file) and not os.path.exists(paths.unit_file)
    assert "disable --now --quiet chat.service" in log.read_text()
    log.unlink()
    _cutover.remove_files(paths, timeout_s=5)  # no unit was written: nothing to stop
    assert log.read_text() == "daemon-reload\n"


def test_health_is_awaited(systemctl: Callable[..., Path], served: Served) -> None:
    starting = shown(NRestarts="0", ActiveState="activating", SubState="start", MainPID="0")
    systemctl(starting, RUNNING)
    served.answer("/health", {"error": "loading"}, status=503)
    said: list[str] = []

    def say(text: str, *_rest: Any) -> None:
        said.append(text)
        if "503" in text:
            served.answer("/health", {"status": "ok"})

    state = _cutover.await_health("chat.service", Api("127.0.0.1", served.port), 20, say)
    assert state.running
    assert "nothing yet" in said[0] and "HTTP 503" in said[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "3"},
            "failed (exit-code)",
        ),
        ({"ActiveState": "inactive", "SubState": "dead"}, "inactive (dead)"),
        ({"NRestarts": "1"}, "1 restarts"),
        ({"ActiveState": "activating", "SubState": "auto-restart", "MainPID": "0"}, "activating (auto-restart)"),
    ],
)
def test_a_start_that_ends_or_repeats_fails_at_once(
    systemctl: Callable[..., Path], served: Served, changes: dict[str, str], words: str
) -> None:
    served.answer("/health", {})
    systemctl(shown(**{"NRestarts": "0", **changes}))
    with pytest.raises(FleetError, match="does not stay up") as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", served.port), 600, quiet)
    assert words in str(caught.value.found)
    assert str(caught.value.remedy).endswith("Its last words:\nits words")
    assert caught.value.facts["gate"] == "health"


def test_a_start_that_dies_is_diagnosed(
    systemctl: Callable[..., Path], stand_in: Callable[[str, str], Path], served: Served
) -> None:
    systemctl(shown(NRestarts="0", ActiveState="activating", SubState="auto-restart", ExecMainCode="1"))
    stand_in("journalctl", journal_says("error: invalid argument: --x", *map(str, range(1, 31))))
    with pytest.raises(FleetError) as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", served.port), 600, quiet)
    assert str(caught.value.found).startswith("crash loop (unknown-argument): ")
    first, *rest = str(caught.value.remedy).splitlines()
    assert first.startswith("Take the key out")
    assert rest[:3] == ["What told:", "  error: invalid argument: --x", "Its last words:"]
    assert rest[3:] == [str(number) for number in range(11, 31)]
    assert caught.value.facts["diagnosis"]["causes"][0]["name"] == "unknown-argument"


def test_the_log_of_every_start_since_is_read(systemctl: Callable[..., Path], served: Served) -> None:
    first = shown(NRestarts="0", ActiveState="activating", SubState="start", InvocationID="cd" * 16)
    systemctl(first, shown(NRestarts="1"))
    with pytest.raises(FleetError) as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", served.port), 600, quiet)
    assert str(caught.value.remedy).endswith("Its last words:\nthe first\nits words")


def test_a_refused_start_is_diagnosed(stand_in: Callable[[str, str], Path], tmp_path: Path) -> None:
    (tmp_path / "state").write_text(
        shown(
            NRestarts="0",
            ActiveState="failed",
            SubState="failed",
            Result="exit-code",
            ExecMainCode="1",
            ExecMainStatus="203",
        )
    )
    stand_in("systemctl", f'[ "$1" != start ] || {{ echo Job failed >&2; exit 1; }}; cat {tmp_path}/state')
    stand_in("journalctl", journal_says("chat.service: Failed at step EXEC spawning /x: No such file or directory"))
    with pytest.raises(FleetError, match=r"chat\.service does not start") as caught:
        _cutover._start("chat.service", timeout_s=5, engine="llamacpp")
    assert str(caught.value.found).startswith("203/EXEC: ")
    assert "Job failed" in str(caught.value.found)
    assert "Failed at step EXEC" in str(caught.value.remedy)
    assert caught.value.facts["gate"] == "start"


def test_a_start_that_works_says_nothing(systemctl: Callable[..., Path]) -> None:
    log = systemctl(RUNNING)
    _cutover._start("chat.service", timeout_s=5, engine="llamacpp")
    assert log.read_text().splitlines()[-1] == "start chat.service"


@pytest.mark.parametrize("running", [True, False])
def test_health_has_a_deadline(systemctl: Callable[..., Path], served: Served, running: bool) -> None:
    served.answer("/health", {"error": "loading"}, status=503)
    systemctl(RUNNING if running else shown(NRestarts="0", ActiveState="activating", SubState="start"))
    with pytest.raises(FleetError, match=r"within 0\.3 s") as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", served.port), 0.3, quiet)
    assert ("(HTTP 503" if running else "(nothing yet)") in str(caught.value.found)
    assert str(caught.value.found).startswith("not ready: ")


@pytest.fixture
def proving(
    monkeypatch: pytest.MonkeyPatch,
    systemctl: Callable[..., Path],
    stand_in: Callable[[str, str], Path],
    served: Served,
    blueprint: Make,
    paths: Paths,
) -> Callable[..., Any]:
    """Prove an era that a real HTTP server answers for; the chain of truth is given."""
    served.answer("/health", {})
    served.answer("/v1/chat/completions", {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})

    def prove(links: list[Link], *states: str, fresh: bool = True, expired: Any = (), journal: str = "nothing") -> Any:
        systemctl(*(states or (RUNNING,)))
        stand_in("journalctl", journal_says(journal))
        plan = blueprint()
        plan.facts["env"]["LISTEN_PORT"] = str(served.port)
        monkeypatch.setattr(_cutover, "_MOMENT_S", 0.0)
        monkeypatch.setattr(_cutover, "observe", lambda *_args: None)
        monkeypatch.setattr(_cutover, "chain", lambda *_args: links)
        return _cutover.prove(
            Era("e", "/e", plan, {"state": "staged"}), paths, quiet, Gates(), fresh=fresh, expired=expired
        )

    return prove


def test_prove(proving: Callable[..., Any]) -> None:
    proof = proving([Link("a", 1, 1)])
    assert proof.healthy_at <= time.monotonic()
    links, verdicts = proof.links, proof.verdicts
    assert links == [Link("a", 1, 1)]
    assert [(verdict.probe, verdict.verdict) for verdict in verdicts] == [("health", "pass"), ("chat", "pass")]


@pytest.mark.parametrize("expired", [None, ("models", "slots")])
def test_what_lost_its_proof_is_probed_and_the_first_failure_stops(proving: Callable[..., Any], expired: Any) -> None:
    with pytest.raises(
        FleetError, match=r"probe models of chat\.service; .*found expected HTTP 200, found HTTP 404"
    ) as caught:
        proving([], expired=expired)
    assert [told["probe"] for told in caught.value.facts["probes"]] == ["health", "models"]


def test_prove_stops_at_a_broken_link(proving: Callable[..., Any], served: Served) -> None:
    with pytest.raises(FleetError, match=r"truth of endpoint chat: b; expected 1; found 2") as caught:
        proving([Link("a", 1, 1), Link("b", 1, 2)])
    assert caught.value.facts["gate"] == "truth"
    assert [link["name"] for link in caught.value.facts["links"]] == ["b"]
    assert all(path == "/health" for _method, path, _headers, _body in served.seen)


def test_prove_stops_at_a_failed_probe(proving: Callable[..., Any], served: Served) -> None:
    served.answer("/v1/chat/completions", {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]})
    with pytest.raises(FleetError, match="probe chat of") as caught:
        proving([])
    assert caught.value.facts["gate"] == "probes"


DRAFTER = "srv load_model: failed to load draft model, '/models/d.gguf'"


@pytest.mark.parametrize(("links", "gate"), [([Link("slots", 2, 1)], "truth"), ([], "probes")])
def test_what_a_live_servers_log_knows_is_told_with_the_red_gate(
    proving: Callable[..., Any], served: Served, links: list[Link], gate: str
) -> None:
    served.answer("/v1/chat/completions", {}, status=500)
    with pytest.raises(FleetError) as caught:
        proving(links, journal=DRAFTER)
    assert caught.value.facts["gate"] == gate
    assert [told["name"] for told in caught.value.facts["signatures"]] == ["drafter-not-loaded"]
    assert "drafter-not-loaded: the drafter could not be set up" in caught.value.message
    assert DRAFTER in caught.value.message
    assert caught.value.message.startswith("truth of endpoint chat: slots" if links else "probe chat of chat.service")
    assert bool(caught.value.facts.get("links")) == bool(links)  # what it carried, it still carries


def test_a_live_servers_log_that_tells_nothing_adds_nothing(proving: Callable[..., Any]) -> None:
    with pytest.raises(FleetError) as caught:
        proving([Link("slots", 2, 1)], journal="all slots are idle")
    assert "signatures" not in caught.value.facts
    assert "log" not in caught.value.message


@pytest.mark.parametrize("running", [True, False])
def test_the_log_tells_of_a_red_ledger_too(
    systemctl: Callable[..., Path], stand_in: Callable[[str, str], Path], running: bool
) -> None:
    systemctl(RUNNING if running else shown(ActiveState="failed", SubState="failed", NRestarts="0"))
    stand_in("journalctl", journal_says(DRAFTER))
    fault = FleetError(
        "card rtx is too full", expected="1 MiB free", found="0", remedy="Take a smaller shape", gate="floor"
    )
    with pytest.raises(FleetError) as caught, _cutover.alive("chat.service", None, engine="llamacpp", gate="ledger"):
        raise fault
    assert "drafter-not-loaded" in caught.value.message
    assert ("signatures" in caught.value.facts) == running
    assert ("diagnosis" in caught.value.facts) != running


@pytest.mark.parametrize("port_is", ["held", "free again", "its own"])
def test_who_holds_the_port_that_a_start_could_not_have_is_named(
    systemctl: Callable[..., Path],
    stand_in: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    port_is: str,
) -> None:
    owner = _proc.SocketOwner(7, 1, "chat.service" if port_is == "its own" else "other.service", "nc -l 8080")
    monkeypatch.setattr(_proc, "listeners", lambda _port: [] if port_is == "free again" else [owner])
    systemctl(shown(NRestarts="1", ActiveState="activating", SubState="auto-restart", ExecMainCode="1"))
    stand_in("journalctl", journal_says("srv start: couldn't bind HTTP server socket, hostname: 0.0.0.0, port: 8080"))
    with pytest.raises(FleetError) as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", 8080), 600, quiet)
    assert caught.value.facts["diagnosis"]["causes"][0]["name"] == "port-taken"
    held = "port 8080 is held by pid 7 of other.service: nc -l 8080"
    assert (held if port_is == "held" else "nobody else holds port 8080 now") in str(caught.value.found)
    assert ("other.service" in str(caught.value.found)) == (port_is == "held")


def test_nothing_is_said_of_the_port_where_another_fault_stopped_it(systemctl: Callable[..., Path]) -> None:
    systemctl(shown(NRestarts="1"))
    with pytest.raises(FleetError) as caught:
        _cutover.await_health("chat.service", Api("127.0.0.1", 8080), 600, quiet)
    assert "8080" not in str(caught.value.found)


@pytest.mark.parametrize(
    "after",
    [
        {"ActiveState": "failed", "SubState": "failed", "Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "6"},
        {"InvocationID": "cd" * 16, "NRestarts": "1"},
    ],
)
def test_a_server_that_dies_while_it_is_probed_is_diagnosed(
    proving: Callable[..., Any], served: Served, after: dict[str, str]
) -> None:
    served.answer("/v1/chat/completions", {}, status=500)
    ended = shown(**{"NRestarts": "0", "DropInPaths": "", **after})
    words = "rocBLAS error: Cannot read /opt/rt/lib/rocblas/library/TensileLibrary.dat: No such file"
    with pytest.raises(FleetError, match=r"chat\.service ended at: probe chat") as caught:
        proving([], RUNNING, ended, journal=words)
    assert caught.value.facts["gate"] == "probes"
    assert caught.value.facts["diagnosis"]["causes"][0]["name"] == "tensile-unreadable"


@pytest.mark.parametrize(
    "changes",
    [
        {"MainPID": "4343"},
        {"InvocationID": "cd" * 16},
        {"NRestarts": "1"},
        {"SubState": "stop-sigterm"},
    ],
)
def test_the_start_that_was_proven_must_hold(proving: Callable[..., Any], changes: dict[str, str]) -> None:
    after = shown(**{"NRestarts": "0", "DropInPaths": "", **changes})
    with pytest.raises(FleetError, match="did not hold") as caught:
        proving([], RUNNING, after)
    assert caught.value.facts["gate"] == "hold"
    proving([], RUNNING, after, fresh=False)


@pytest.fixture
def plan(blueprint: Callable[..., Blueprint]) -> Blueprint:
    made = blueprint("one")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    return replace(made, facts={**made.facts, "env": {**made.facts["env"], "LISTEN_PORT": str(port)}, "cards": []})


def verbs(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if not line.startswith(("show", "reset-failed"))]


def test_the_files_come_first_then_the_stop_then_the_start(
    systemctl: Callable[..., Path], paths: Paths, plan: Blueprint
) -> None:
    log = systemctl(shown(MainPID="0"))
    told: list[str] = []
    before = time.monotonic()
    rivals = [replace(paths, endpoint="other")]
    stopped = _cutover.cut_over(plan, paths, lambda step, *_s: told.append(step), Gates(), timeout_s=5, rivals=rivals)
    assert before <= stopped <= time.monotonic()
    assert verbs(log) == [
        "daemon-reload",
        "enable --quiet chat.service",
        "disable --now --quiet other.service",
        "stop chat.service",
        "start chat.service",
    ]
    assert Path(paths.env_file).read_text() == plan.env_text
    assert told == ["stop what serves", "start"]


def test_nothing_is_started_while_the_old_process_lives(
    systemctl: Callable[..., Path], paths: Paths, plan: Blueprint
) -> None:
    log = systemctl(shown(MainPID=str(os.getpid())))
    with pytest.raises(FleetError, match=rf"what endpoint chat needs is not free; .*found pid {os.getpid()} of"):
        _cutover.cut_over(plan, paths, quiet, Gates(), timeout_s=1)
    assert verbs(log)[-1] == "stop chat.service"


@pytest.mark.parametrize(
    ("changes", "stands"),
    [
        ({"MainPID": "0", "UnitFileState": "disabled"}, False),
        ({"MainPID": "0", "UnitFileState": ""}, False),
        ({"MainPID": "7", "UnitFileState": "disabled"}, True),
        ({"MainPID": "0", "UnitFileState": "enabled"}, True),
    ],
)
def test_a_rival_stands_if_it_runs_or_would(
    systemctl: Callable[..., Path], paths: Paths, changes: dict[str, str], stands: bool
) -> None:
    systemctl(shown(**changes))
    assert _cutover.standing([paths]) == ([paths] if stands else [])


@pytest.mark.parametrize(
    ("file", "content", "refused"),
    [
        ("units/chat.service", "[Service]\nExecStart=/mine\n", "a unit that this collection did not write"),
        ("units/chat.service", "staged unit", ""),
        ("units/chat.service", "staged env", "a unit that"),
        ("units/chat.service", "-> /home/me/chat.service", "a link to /home/me/chat.service"),
        ("etc/chat.env", "CTX_SIZE=1\n", "an env file that this collection did not write"),
        ("etc/chat.env", "staged env", ""),
        ("etc/chat.env", "-> /home/me/chat.env", "a link to"),
        ("etc/other.env", "CTX_SIZE=1\n", ""),
    ],
)
def test_a_first_deploy_overwrites_nothing_of_somebody_elses(
    paths: Paths, tmp_path: Path, file: str, content: str, refused: str
) -> None:
    staged = {"unit": {sha256_text("staged unit")}, "env": {sha256_text("staged env")}}
    target = tmp_path / file
    target.parent.mkdir(exist_ok=True)
    if content.startswith("-> "):
        target.symlink_to(content[3:])
    else:
        target.write_text(content)
    if not refused:
        _cutover.gate_foreign(paths, staged)
        return
    with pytest.raises(FleetError) as caught:
        _cutover.gate_foreign(paths, staged)
    assert str(target) in caught.value.what
    assert refused in str(caught.value.found)
    assert "llm_endpoints.chat.replaces, which retires it" in str(caught.value.remedy)
