# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The docker shim's translation: docker's arguments in, podman's out, nothing run."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shimfile import load

shim = load()
ALL = shim.LAW_NAMES
M = "sha256:" + "ab" * 32
GROUPS = {"video": 44, "render": 105}


def host(**facts):
    """A host on which /there exists, as root."""
    return shim.Host(**{"exists": {"/there"}.__contains__, "gid_of": GROUPS.get, **facts})


def plan(text, on=ALL, **facts):
    return shim.translate(shlex.split(text), on, host(**facts))


def argv(text, on=ALL, **facts):
    return shlex.join(plan(text, on, **facts).argv)


def refusal(text, **facts):
    with pytest.raises(shim.ShimError) as caught:
        plan(text, **facts)
    return caught.value.status, str(caught.value)


# ---------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    ("text", "operands", "options"),
    [
        ("img", ["img"], {}),
        ("-dit img", ["img"], {"detach": None, "interactive": None, "tty": None}),
        ("-ditv /a:/b img", ["img"], {"detach": None, "interactive": None, "tty": None, "volume": "/a:/b"}),
        ("-v/a:/b img", ["img"], {"volume": "/a:/b"}),
        ("-e=A=1 img", ["img"], {"env": "A=1"}),
        ("-eA=1 img", ["img"], {"env": "A=1"}),
        ("-e A=-x img", ["img"], {"env": "A=-x"}),
        ("--env A=1 img", ["img"], {"env": "A=1"}),
        ("--env=A=1 img", ["img"], {"env": "A=1"}),
        ("--env= img", ["img"], {"env": ""}),
        ("--name --rm img", ["img"], {"name": "--rm"}),
        ("--rm=false img", ["img"], {"rm": "false"}),
        ("-d=true img", ["img"], {"detach": "true"}),
        ("img -d --rm", ["img", "-d", "--rm"], {}),
        ("--rm -- img -d", ["img", "-d"], {"rm": None}),
        ("-- --rm", ["--rm"], {}),
        ("- x", ["-", "x"], {}),
        ("", [], {}),
        ("--entrypoint '' img", ["img"], {"entrypoint": ""}),
        ("-p 1:1 -p 2:2 img", ["img"], {"publish": "2:2"}),
    ],
)
def test_a_run_line_is_read_as_docker_reads_it(text, operands, options):
    line = shim.parse(shlex.split(text), shim.SPECS["run"])
    assert line.unknown == ""
    assert list(line.operands) == operands
    assert {option.name: option.value for option in line.options} == options


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("--frob img", "--frob"),
        ("-dZ img", "-Z"),
        ("--name", "--name without its value"),
        ("-dv", "-v without its value"),
    ],
)
def test_what_docker_does_not_know_is_told(text, unknown):
    assert shim.parse(shlex.split(text), shim.SPECS["run"]).unknown == unknown


def test_other_commands_take_options_after_names():
    line = shim.parse(["c1", "-t", "5", "c2", "--", "-c3"], shim.SPECS["stop"])
    assert line.operands == ("c1", "c2", "-c3") and line.last("timeout") == "5"


def test_a_switch_is_on_by_itself_and_off_by_its_value():
    line = shim.parse(["--rm", "--tty=false", "-d=1", "img"], shim.SPECS["run"])
    assert (line.flag("rm"), line.flag("tty"), line.flag("detach"), line.flag("init")) == (True, False, True, False)


# ---------------------------------------------------------------- nothing to translate

_WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
_BYTES = st.binary(max_size=8).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
_VERBS = st.sampled_from(
    ["build", "network", "volume", "events", "stats", "login", "search", "system", "image", "container", "manifest"]
)


@given(_VERBS, st.lists(_WORDS | _BYTES, max_size=6))
def test_commands_without_a_law_pass_byte_for_byte(verb, rest):
    words = [verb, *rest]
    if tuple(words[:2]) in shim.ALIASES:
        return
    done = shim.translate(words, ALL, host())
    assert list(done.argv) == words and not done.laws and not done.answer


_PLAIN = st.sampled_from(
    [
        ["-d"],
        ["-it"],
        ["--rm"],
        ["-e", "A=b c"],
        ["-eX=;'\""],
        ["--name=x"],
        ["-v", "data:/d"],
        ["-v", "/there:/d:ro"],
        ["--network", "host"],
        ["-p8080:80"],
        ["--label", "a=b"],
        ["--device=/dev/kfd"],
        ["--shm-size", "16g"],
        ["--mount", "type=bind,src=/missing,dst=/m"],
        ["--ulimit", "nofile=1:2"],
        ["--init"],
        ["--ipc=private"],
    ]
)


@given(st.sampled_from(["run", "create"]), st.lists(_PLAIN, max_size=5), st.lists(_WORDS | _BYTES, max_size=4))
def test_run_without_a_law_passes_byte_for_byte(verb, options, command):
    words = [verb, *(word for option in options for word in option), "img:1", *command]
    if verb == "create":
        words = [word for word in words if word != "-d"]
    done = shim.translate(words, ALL, host())
    assert list(done.argv) == words and not done.laws and not done.answer


@given(st.lists(_WORDS, max_size=4))
def test_a_command_in_the_container_is_never_read(command):
    words = ["run", "--log-opt", "max-size=1m", "img", "--log-opt", "-v", "/missing:/m", *command]
    done = shim.translate(words, ALL, host())
    assert list(done.argv[-len(words) + 3 :]) == words[3:] and not done.make


@given(st.lists(_WORDS, max_size=6))
def test_any_words_end_in_a_plan_or_a_refusal(words):
    try:
        shim.translate(words, ALL, host())
    except shim.ShimError as error:
        assert error.status in (1, 125, 126)


def test_without_laws_every_line_passes():
    for text in (
        "run --gpus all --log-opt a=b -v /no:/m sha256:ab x", "inspect x", "ps --format x", "info", "version",
        "--context c ps", "wait x", "logs -n 5 x", "swarm init", "context show", "load", "images", "run", "--version",
    ):  # fmt: skip
        done = plan(text, frozenset())
        assert list(done.argv) == shlex.split(text) and not done.answer and not done.containers, text


def test_an_option_that_docker_lacks_leaves_the_line_alone():
    done = plan("run --userns keep-id --pod p --gpus all img")
    assert shlex.join(done.argv) == "run --userns keep-id --pod p --gpus all img" and "--pod" in done.note


# ---------------------------------------------------------------- laws of run


def test_log_options_go_to_podman_as_far_as_it_has_them_and_all_into_a_label():
    done = plan("run -d --log-driver local --log-opt max-size=10m --log-opt max-file=3 img cmd --log-opt x")
    words = list(done.argv)
    assert words[:5] == ["run", "-d", "--log-opt", "max-size=10m", "--log-driver=k8s-file"]
    label, value = words[6].split("=", 1)
    assert (words[5], label) == ("--label", "dank.llm_fleet.shim.log-config")
    assert shim.unpack(value) == {"Type": "local", "Config": {"max-size": "10m", "max-file": "3"}}
    assert words[7:] == ["img", "cmd", "--log-opt", "x"] and done.laws == ("log-config",)


@pytest.mark.parametrize(
    ("options", "driver", "config"),
    [
        ("--log-driver=json-file", "k8s-file", {"Type": "json-file", "Config": {}}),
        ("--log-opt max-size=1m", "k8s-file", {"Type": "json-file", "Config": {"max-size": "1m"}}),
        ("--log-driver none", "none", {"Type": "none", "Config": {}}),
        ("--log-driver journald --log-opt tag=a=b", "journald", {"Type": "journald", "Config": {"tag": "a=b"}}),
        ("--log-opt a=1 --log-opt a=2", "k8s-file", {"Type": "json-file", "Config": {"a": "2"}}),
    ],
)
def test_log_drivers(options, driver, config):
    words = list(plan(f"run {options} img").argv)
    assert f"--log-driver={driver}" in words
    value = next(word for word in words if word.startswith("dank.llm_fleet.shim.log-config=")).split("=", 1)[1]
    assert shim.unpack(value) == config


def test_log_drivers_that_podman_lacks_are_refused():
    assert refusal("run --log-driver syslog img")[0] == 125
    assert "syslog" in refusal("run --log-driver syslog img")[1]
    assert "invalid logging opt" in refusal("run --log-opt nonsense img")[1]


@pytest.mark.parametrize(
    ("gpus", "devices", "request_"),
    [
        ("all", ["all"], {"Count": -1, "DeviceIDs": None}),
        ("2", ["0", "1"], {"Count": 2, "DeviceIDs": None}),
        ("count=1", ["0"], {"Count": 1, "DeviceIDs": None}),
        ("device=1", ["1"], {"Count": 0, "DeviceIDs": ["1"]}),
        ('"device=0,1"', ["0", "1"], {"Count": 0, "DeviceIDs": ["0", "1"]}),
        ("device=GPU-3a", ["GPU-3a"], {"Count": 0, "DeviceIDs": ["GPU-3a"]}),
        ('all,"capabilities=compute,utility"', ["all"], {"Count": -1, "Capabilities": [["compute", "utility", "gpu"]]}),
    ],
)
def test_gpus_become_cdi_devices(gpus, devices, request_):
    words = shim.translate(["run", "--gpus", gpus, "--runtime=nvidia", "img"], ALL, host()).argv
    assert [word for word in words if word.startswith("--device=")] == [f"--device=nvidia.com/gpu={d}" for d in devices]
    assert not any("runtime" in word or word == "--gpus" for word in words)
    kept = shim.unpack(next(word for word in words if "device-requests=" in word).split("=", 1)[1])
    assert len(kept) == 1 and kept[0].items() >= request_.items()


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ("device=0,1", "cannot set both Count and DeviceIDs"),
        ("some", "invalid count (some)"),
        ("all,count=1", "only once"),
        ("frob=1", "unexpected key 'frob'"),
        ("driver=amd,count=1", 'could not select device driver "amd"'),
    ],
)
def test_gpus_that_docker_refuses(gpus, text):
    status, told = refusal(f"run --gpus {gpus} img")
    assert status == 125 and text in told


def test_bind_sources_that_are_missing_are_made_and_no_other():
    done = plan("run -v /missing/x:/m -v /there:/t:ro -v named:/n -v /anonymous --volume=./rel:/r img")
    assert done.make[0] == "/missing/x" and done.make[1].endswith("/rel") and len(done.make) == 2
    assert done.laws == ("bind-source",)
    assert not plan("run --mount type=bind,source=/missing,target=/m img").make


def test_groups_get_the_hosts_numbers():
    text = "run --group-add video --group-add render --group-add 7 --group-add nosuch img"
    assert argv(text) == "run --group-add=44 --group-add=105 --group-add 7 --group-add nosuch img"
    assert argv("run --group-add 7 img") == "run --group-add 7 img"


def test_groups_without_root_are_the_users_own_if_it_has_them():
    facts = {"rootless": True, "groups": frozenset({44, 105})}
    assert argv("run --group-add video --group-add 105 -d img", **facts) == "run -d --group-add=keep-groups img"
    assert argv("run --group-add video --group-add 9 img", **facts) == "run --group-add=44 --group-add 9 img"


@pytest.mark.parametrize("value", ["memlock=-1:-1", "memlock=-1", "memlock=0:9000000"])
def test_locked_memory_above_the_limit_is_refused_with_the_remedy(value):
    status, told = refusal(f"run --ulimit {value} img", memlock=8388608)
    assert status == 126 and "8388608" in told and "LimitMEMLOCK=infinity" in told
    assert argv(f"run --ulimit {value} img") == f"run --ulimit {value} img"


def test_locked_memory_below_the_limit_and_other_limits_pass():
    assert plan("run --ulimit memlock=1024:2048 --ulimit nofile=-1 img", memlock=8388608).laws == ()


@pytest.mark.parametrize("ref", [M, M[:19], "ab" * 32, "ab" * 6])
def test_an_image_by_digest_is_looked_up_and_remembered(ref):
    done = plan(f"run -d {ref} serve {ref}")
    assert done.images == (-3,) and done.argv[-3:] == (ref, "serve", ref)
    assert f"dank.llm_fleet.shim.image={ref}" in done.argv and done.laws == ("image-identity",)


@pytest.mark.parametrize("ref", ["img", "img:1", f"img@{M}", "ab" * 5, "registry/deadbeef", "sha256:xyz"])
def test_an_image_by_name_is_not(ref):
    assert plan(f"run -d {ref}").images == ()


def test_laws_can_be_left_out_one_by_one():
    text = f"run --log-opt max-file=1 --gpus all -v /no:/m --group-add video --ipc host --shm-size 1g {M}"
    for law in ("log-config", "gpus", "bind-source", "group-add", "shm-size", "image-identity"):
        assert set(plan(text).laws) - set(plan(text, ALL - {law}).laws) == {law}


def test_an_unknown_law_in_the_environment_is_refused():
    assert shim.laws_on("gpus, log-config") == ALL - {"gpus", "log-config"}
    with pytest.raises(shim.ShimError, match="names no law: logs"):
        shim.laws_on("logs")


# ---------------------------------------------------------------- other commands


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("logs -n 5 c", "logs --tail=5 c"),
        ("logs -fn 5 c", "logs -f --tail=5 c"),
        ("logs --tail all c", "logs --tail=-1 c"),
        ("logs --tail 5 c", "logs --tail 5 c"),
        ("logs c --tail=all -f", "logs --tail=-1 -f c"),
        ("stop --timeout 5 c", "stop --time=5 c"),
        ("stop --timeout=5 c d", "stop --time=5 c d"),
        ("stop -t 120 c", "stop -t 120 c"),
        ("container stop --timeout 5 c", "container stop --time=5 c"),
        ("restart --timeout 5 c", "restart --time=5 c"),
        ("rm -fv c", "rm -f -v --time=0 c"),
        ("container rm --force c d", "container rm --force --time=0 c d"),
        ("run --ipc=host --shm-size 16g img", "run --ipc=host img"),
        ("run --ipc=private --shm-size 16g img", "run --ipc=private --shm-size 16g img"),
        ("-D logs --tail all c", "--log-level=debug logs --tail=-1 c"),
        ("-l error ps", "--log-level=error ps"),
        ("--context default ps -q", "ps -q"),
        ("--context=default ps", "ps"),
        ("-H unix:///var/run/docker.sock ps", "ps"),
        ("-c default run img -c x", "run img -c x"),
    ],
)
def test_what_podman_spells_otherwise(text, wanted):
    assert argv(text) == wanted


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("rm --link c", 1, "rm --link"),
        ("rm -l c", 1, "latest"),
        ("--context prod ps", 1, 'context "prod": context not found'),
        ("-H tcp://1.2.3.4:2375 ps", 1, "tcp://1.2.3.4:2375"),
        ("-H ssh://x ps", 1, "ssh://x"),
        ("--tlsverify ps", 1, "TLS"),
        ("--frob ps", 125, "unknown flag: --frob"),
        ("swarm init", 1, "docker swarm is not in podman"),
        ("service ls", 1, "docker service"),
        ("stack deploy x", 1, "docker stack"),
        ("plugin ls", 1, "docker plugin"),
        ("trust inspect x", 1, "docker trust"),
        ("buildx create", 1, "docker buildx create"),
        ("context create x", 1, "there is one context"),
        ("context use prod", 1, "there is one context"),
        ("inspect --type task x", 1, 'unknown type: "task"'),
        ("wait", 1, "'docker wait' requires at least 1 argument"),
        ("run", 1, "'docker run' requires at least 1 argument"),
        ("exec c", 1, "requires at least 2 arguments"),
        ("tag a", 1, "requires at least 2 arguments"),
    ],
)
def test_refusals(text, status, told):
    assert refusal(text)[0] == status and told in refusal(text)[1]


@pytest.mark.parametrize("name", ["DOCKER_HOST", "DOCKER_CONTEXT"])
def test_another_daemon_in_the_environment_is_refused(name):
    assert refusal("ps", environ={name: "tcp://far"})[0] == 1
    local = {"DOCKER_HOST": "unix:///run/user/1000/podman/podman.sock", "DOCKER_CONTEXT": "default"}
    assert argv("ps", environ=local) == "ps"


def test_a_detached_exec_prints_nothing():
    assert plan("exec -d c ls").mute and not plan("exec c ls -d").mute and not plan("exec -d c ls", frozenset()).mute


def test_the_configuration_folder_of_docker_is_handed_on():
    assert plan("--config /etc/d pull img").environ == (("DOCKER_CONFIG", "/etc/d"),)


@pytest.mark.parametrize(
    ("text", "containers"),
    [
        ("stop a b", ("a", "b")),
        ("stop -t 5 a", ("a",)),
        ("container rm -v a", ("a",)),
        ("wait a", ("a",)),
        ("logs -f a", ("a",)),
        ("exec -it -e X=1 -u 0 a sh -c 'b c'", ("a",)),
        ("cp a:/x /tmp", ("a",)),
        ("cp ./a:b c:/x", ("c",)),
        ("cp - c:/x", ("c",)),
        ("top a aux", ("a",)),
        ("rename a b", ("a",)),
        ("port a 80", ("a",)),
        ("start -ai a", ("a",)),
        ("update --cpus 2 a", ("a",)),
    ],
)
def test_containers_that_must_exist(text, containers):
    done = plan(text)
    assert done.containers == containers and "missing-object" in done.laws and not done.answer
    assert shlex.join(done.argv) == shlex.join(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "places", "by_name"),
    [
        (f"rmi {M} x", (-2,), False),
        (f"image rm -f x {M}", (-1,), False),
        (f"tag {M} x:1", (-2,), False),
        (f"save -o f {M} y {M}", (-3, -1), False),
        (f"save {M} -o f", (-1,), False),
        (f"pull -q {M}", (-1,), True),
        (f"push {M}", (-1,), True),
    ],
)
def test_digests_of_other_commands(text, places, by_name):
    done = plan(text)
    assert (done.images, done.by_name) == (places, by_name)
    assert all(done.argv[at] == M for at in places) and sorted(done.argv) == sorted(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "wanted", "places"),
    [
        (f"ps -q --filter ancestor={M} -f name=x", f"ps -q -f name=x --filter ancestor={M}", (-1,)),
        (f"container ls --filter=ancestor={M[7:20]}", f"container ls --filter ancestor={M[7:20]}", (-1,)),
        (f"ps -fancestor={M} -f ancestor=img", f"ps -f ancestor=img --filter ancestor={M}", (-1,)),
        (f"ps -f ancestor={M} -f ancestor={M[:9]}", f"ps --filter ancestor={M} --filter ancestor={M[:9]}", (-3, -1)),
        (f"ps --format x -f ancestor={M}", f"ps --format json --filter ancestor={M}", (-1,)),
        ("ps -f ancestor=img", "ps -f ancestor=img", ()),
    ],
)
def test_containers_of_an_image_by_digest(text, wanted, places):
    done = plan(text)
    assert (shlex.join(done.argv), done.images, done.by_name) == (wanted, places, not places)
    assert plan(text, on=ALL - {"image-identity"}).images == ()


def test_second_names_of_commands():
    assert plan("container ls --format x").answer == plan("ps --format x").answer == "ps"
    assert plan("image ls").answer == plan("images").answer == "images"
    assert plan("system info").answer == "info" and plan("container wait a").containers == ("a",)
    assert plan("ps -a").answer == "" and plan("volume inspect v").answer == "inspect"


# ---------------------------------------------------------------- docker shim


def test_explain_says_all_and_runs_nothing(capfdbinary, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    words = ["--explain", "run", "--log-opt", "max-file=3", "-v", "/missing:/m", M, "sh", "-c", "a 'b'; c"]
    assert shim.shim(words, ALL, host()) == 0
    told = capfdbinary.readouterr().out.decode()
    assert "laws: log-config, bind-source, image-identity\n" in told
    assert f"which image is {M}" in told and "makes: /missing\n" in told
    assert "runs: podman run -v /missing:/m --log-driver=k8s-file --label" in told
    assert told.splitlines()[3].endswith(f"{M} sh -c {shlex.quote(words[-1])}")
    assert "podman's own, no process between" in told


def test_explain_of_an_answer_and_of_nothing(capfdbinary):
    shim.shim(["--explain", "inspect", "-f", "{{.Id}}", "c"], ALL, host())
    shim.shim(["--explain", "build", "."], ALL, host())
    told = capfdbinary.readouterr().out.decode()
    assert "put into docker's shape (inspect), then the template '{{.Id}}'" in told
    assert "laws: none: podman gets it as it is\nruns: podman build .\n" in told


def test_laws_are_listed_with_their_state(capfdbinary):
    assert shim.shim(["--list"], ALL - {"gpus"}, host()) == 0
    lines = dict(line.split() for line in capfdbinary.readouterr().out.decode().splitlines())
    assert set(lines) == ALL and {name for name, state in lines.items() if state == "off"} == {"gpus"}
    assert shim.shim(["--laws"], ALL, host()) == 0
    assert len(capfdbinary.readouterr().out.decode().splitlines()) == len(ALL) + 2
    assert shim.shim(["--frob"], ALL, host()) == 125
