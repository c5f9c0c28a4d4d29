# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The docker shim run for real over a fake podman, and docker's shapes and templates as functions."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
import time

import pytest
from shimfile import SHIM, load

shim = load()
ALL = shim.LAW_NAMES
CONFIG, M1, M2 = "fe" * 32, "sha256:" + "1a" * 32, "sha256:" + "2b" * 32
IMAGE = {
    "Id": CONFIG,
    "Digest": M2,
    "RepoTags": ["localhost/x:1"],
    "RepoDigests": [f"localhost/x@{M1}", f"localhost/x@{M2}"],
    "Names": ["localhost/x:1"],
    "Config": {},
    "Created": 1796042870,
    "Size": 12667977,
    "Containers": 3,
    "Architecture": "amd64",
}


def container(**facts):
    """What podman 5.4.2 says of a container, as far as the shim reads it; keyword arguments replace parts."""
    data = {
        "Id": "0d" * 32, "Name": "c1", "Image": CONFIG, "ImageDigest": M2, "ImageName": "localhost/x:1",
        "State": {"Status": "stopped", "Running": False, "Pid": 0, "ExitCode": 3, "Health": {"Status": ""}},
        "Config": {
            "Image": "localhost/x:1", "Labels": {"a": "b"}, "Cmd": ["bash", "-c", "x y"], "Entrypoint": "",
            "StopSignal": 15, "Env": ["A=1"],
        },
        "HostConfig": {
            "LogConfig": {"Type": "k8s-file", "Config": None, "Path": "", "Tag": "", "Size": "10MB"},
            "RestartPolicy": {"Name": "", "MaximumRetryCount": 0}, "PidMode": "private", "CgroupMode": "host",
            "Binds": ["/srv:/data:ro,rprivate,rbind", "/a:/b:rw,rprivate,rbind"],
            "Ulimits": [{"Name": "RLIMIT_MEMLOCK", "Soft": -1, "Hard": -1}],
        },
        "NetworkSettings": {"Ports": {"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8080"}]}, "Networks": {}},
        "Mounts": [],
    }  # fmt: skip
    return {**data, **facts}


# ---------------------------------------------------------------- shapes


def test_a_container_in_dockers_shape():
    out = shim.docker_container(container(), ALL)
    assert (out["Name"], out["Image"], out["Config"]["Image"]) == ("/c1", M2, "x:1")
    assert out["State"] == {"Status": "exited", "Running": False, "Pid": 0, "ExitCode": 3}
    settings = out["HostConfig"]
    assert settings["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10MB"}}
    assert settings["DeviceRequests"] is None and settings["CgroupnsMode"] == "host" and settings["PidMode"] == ""
    assert settings["Binds"] == ["/srv:/data:ro", "/a:/b"] and settings["RestartPolicy"]["Name"] == "no"
    assert settings["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert out["Config"]["StopSignal"] == "SIGTERM" and out["Config"]["Entrypoint"] is None


def test_a_container_with_the_shims_labels():
    request = [{"Count": -1}]
    labels = {
        "a": "b",
        f"{shim.LABEL}image": M1,
        f"{shim.LABEL}log-config": shim.pack({"Type": "local", "Config": {"max-file": "3"}}),
        f"{shim.LABEL}device-requests": shim.pack(request),
    }
    given = container(Config={"Image": f"localhost/x@{M1}", "Labels": labels})
    out = shim.docker_container(given, ALL)
    assert out["Config"]["Labels"] == {"a": "b"} and out["HostConfig"]["DeviceRequests"] == request
    assert out["HostConfig"]["LogConfig"] == {"Type": "local", "Config": {"max-file": "3"}}
    assert (out["Image"], out["Config"]["Image"]) == (M1, M1)


def test_without_a_law_its_part_stays_podmans():
    given = container()
    assert shim.docker_container(given, ALL - {"log-config"})["HostConfig"]["LogConfig"]["Config"] is None
    assert "DeviceRequests" not in shim.docker_container(given, ALL - {"gpus"})["HostConfig"]
    assert shim.docker_container(given, ALL - {"image-identity"})["Image"] == CONFIG
    assert shim.docker_container(given, ALL - {"image-names"})["Config"]["Image"] == "localhost/x:1"
    assert shim.docker_container(given, ALL - {"inspect"})["Name"] == "c1"


@pytest.mark.parametrize(
    "spoilt",
    [
        None,
        [],
        {},
        {"Id": 1},
        container(State=None),
        container(HostConfig=[]),
        container(HostConfig={"LogConfig": None}),
    ],
)
def test_a_malformed_container_is_an_error(spoilt):
    with pytest.raises(shim.PodmanError, match="podman's answer to container inspect is malformed"):
        shim.docker_container(spoilt, ALL)


def paths(data, path=()):
    """The place of every value in a JSON value."""
    yield path
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        yield from paths(value, (*path, key))


def spoilt(data, path, value):
    """A copy with another value at a place; without the place where the value is ABSENT."""
    if not path:
        return None if value is ABSENT else value
    out = copy.deepcopy(data)
    holder = out
    for key in path[:-1]:
        holder = holder[key]
    if value is ABSENT:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return out


ABSENT = object()
ROW = {
    "Id": "0d" * 32, "State": "running", "Names": ["c1"], "Created": 1796042870, "StartedAt": 1796042870, "ExitedAt": 1,
    "ExitCode": 0, "Command": ["a", "b"], "Image": "localhost/x:1", "Labels": {"a": "b"}, "Networks": ["podman"],
    "Ports": [{"host_ip": "", "container_port": 80, "host_port": 8080, "range": 1, "protocol": "tcp"}],
    "Size": {"rootFsSize": 5, "rwSize": 3}, "Status": "healthy",
}  # fmt: skip
WHOLE = {"Mounts": [{"Name": "v", "Source": "/a", "Driver": "local"}], "NetworkSettings": {"Networks": {"n": {}}}}
INFO = {
    "host": {
        "security": {"apparmorEnabled": True, "rootless": True}, "cgroupVersion": "v2", "cgroupManager": "systemd",
        "distribution": {"distribution": "debian", "version": "13"}, "ociRuntime": {"name": "crun", "path": "/x"},
        "hostname": "h", "logDriver": "journald", "memTotal": 5,
    },
    "store": {
        "containerStore": {"number": 1}, "imageStore": {"number": 1}, "graphDriverName": "overlay", "graphRoot": "/x",
        "graphStatus": {"a": "b"},
    },
    "version": {"Version": "5.4.2"}, "plugins": {"volume": []},
}  # fmt: skip
VERSION = {"Client": {"Version": "5.4.2", "APIVersion": "5.4.2", "OsArch": "linux/amd64"}}
READERS = {
    "container": (container(), lambda data: shim.docker_container(data, ALL)),
    "image": (IMAGE, lambda data: shim.docker_image(data, M1, ALL)),
    "images": (IMAGE, lambda data: shim.docker_image_rows(data, True, 1796042999.0, ALL)),
    "digest": ([IMAGE], lambda data: shim.find_image(M1, data)),
    "info": (INFO, lambda data: shim.info_text(shim.docker_info(data))),
    "version": (VERSION, lambda data: shim.version_text(shim.docker_version(data))),
    "row": (ROW, lambda data: shim.docker_row(data, WHOLE, True, 1796042999.0, ALL)),
    "mounts": (WHOLE, lambda data: shim.docker_row(ROW, data, True, 1796042999.0, ALL)),
}


@pytest.mark.parametrize("reader", READERS)
def test_whatever_podman_answers_is_read_or_malformed(reader):
    """Each value of an answer, replaced by each other kind of value, or taken away: no crash."""
    data, read = READERS[reader]
    read(data)
    refused = 0
    for path in paths(data):
        for value in (None, [], {}, 1, "x", True, 1.5, [None], ["x"], {"a": None}, ABSENT):
            try:
                read(spoilt(data, path, value))
            except shim.PodmanError as error:
                refused += 1
                assert "malformed" in str(error)
            except shim.ShimError:
                pass  # two images of one beginning
    assert refused


def test_a_paused_container_runs():
    """podman says that it does not, docker that it does: a script that stops what runs must stop it."""
    state = {"Status": "paused", "Running": False, "Paused": True, "Pid": 7}
    assert shim.docker_container(container(State=state), ALL)["State"] == {**state, "Running": True}


@pytest.mark.parametrize("text", ["%", "bm90IGpzb24=", ""])
def test_a_label_that_is_not_the_shims_is_an_error(text):
    with pytest.raises(shim.PodmanError, match="not the shim's"):
        shim.unpack(text)


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        (M1, (CONFIG, f"localhost/x@{M1}")),
        (M2, (CONFIG, f"localhost/x@{M2}")),
        (M2[:20], (CONFIG, f"localhost/x@{M2}")),
        (M1[7:], (CONFIG, f"localhost/x@{M1}")),
        (f"sha256:{CONFIG}", (CONFIG, CONFIG)),
        (CONFIG[:12], (CONFIG, CONFIG)),
        ("sha256:" + "00" * 32, None),
    ],
)
def test_an_image_is_found_by_any_digest_of_its_set(ref, found):
    assert shim.find_image(ref, [IMAGE, {"Id": "77" * 32, "Digest": "sha256:" + "33" * 32}]) == found


def test_an_image_without_a_name_is_run_by_its_config():
    assert shim.find_image(M1, [{"Id": CONFIG, "Digest": M1, "RepoDigests": None}]) == (CONFIG, CONFIG)


def test_the_beginning_of_two_digests_is_refused():
    with pytest.raises(shim.ShimError, match="2 images"):
        shim.find_image("sha256:1", [IMAGE, {"Id": "1" * 64}])


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("x:1", M1), (M2, M2), (f"x@{M2}", M2), (f"sha256:{CONFIG}", f"sha256:{CONFIG}"), (M1[:19], M1)],
)
def test_an_images_id_is_the_digest_asked_for_else_its_first_manifest(asked, shown):
    out = shim.docker_image(IMAGE, asked, ALL)
    assert out["Id"] == shown and out["RepoTags"] == ["x:1"] and out["Config"]["Labels"] is None


INFO = {
    "host": {
        "security": {"rootless": True, "seccompEnabled": True}, "cgroupManager": "systemd", "cgroupVersion": "v2",
        "logDriver": "journald", "memTotal": 2**34, "cpus": 4, "distribution": {"distribution": "debian"},
        "ociRuntime": {"name": "crun", "path": "/usr/bin/crun"}, "os": "linux", "kernel": "6.1", "hostname": "h",
    },
    "store": {"graphDriverName": "overlay", "graphRoot": "/g", "containerStore": {"number": 3}},
    "version": {"Version": "5.4.2"},
}  # fmt: skip


def test_info_in_dockers_shape():
    out = shim.docker_info(INFO)
    assert out["SecurityOptions"] == ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]
    wanted = {"ServerVersion": "27.5.1", "Driver": "overlay", "DockerRootDir": "/g", "CgroupDriver": "systemd"}
    assert out.items() >= {**wanted, "CgroupVersion": "2", "Containers": 3}.items()
    text = shim.info_text(out)
    assert " Server Version: 27.5.1\n" in text and "  rootless\n" in text and "16GiB" in text


@pytest.mark.parametrize("without", ["host", "store", "version"])
def test_malformed_info_is_an_error(without):
    with pytest.raises(shim.PodmanError, match=f"malformed: {without} is null"):
        shim.docker_info({key: value for key, value in INFO.items() if key != without})


def row(**facts):
    base = {
        "Id": "0d" * 32, "Names": ["c1"], "Image": "localhost/x:1", "Command": ["bash", "-c", "a 'long' command line"],
        "Created": 1000, "State": "running", "Status": "", "StartedAt": 1000, "ExitedAt": 0, "ExitCode": 0,
        "Labels": {"b": "2", "a": "1", f"{shim.LABEL}log-config": "x"}, "Ports": None,
    }  # fmt: skip
    return {**base, **facts}


@pytest.mark.parametrize(
    ("facts", "state", "status"),
    [
        ({}, "running", "Up 2 hours"),
        ({"Status": "healthy"}, "running", "Up 2 hours (healthy)"),
        ({"Status": "Up 2 hours (unhealthy)"}, "running", "Up 2 hours (unhealthy)"),
        ({"State": "paused"}, "paused", "Up 2 hours (Paused)"),
        ({"State": "exited", "ExitedAt": 8170, "ExitCode": 7}, "exited", "Exited (7) 30 seconds ago"),
        ({"State": "stopped", "ExitedAt": 8199}, "exited", "Exited (0) 1 second ago"),
        ({"State": "configured"}, "created", "Created"),
    ],
)
def test_a_row_of_ps(facts, state, status):
    out = shim.docker_row(row(**facts), None, True, 8200.0, ALL)
    assert (out["State"], out["Status"], out["ID"], out["Names"]) == (state, status, "0d" * 6, "c1")
    assert (out["Labels"], out["Image"], out["Command"]) == ("a=1,b=2", "x:1", "\"bash -c a 'long' co…\"")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "Less than a second"), (1, "1 second"), (59, "59 seconds"), (60, "About a minute"), (120, "2 minutes"),
        (3600, "About an hour"), (7200, "2 hours"), (172800, "2 days"), (86400 * 14, "2 weeks"),
        (86400 * 61, "2 months"), (86400 * 731, "2 years"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert shim.human_duration(seconds) == text


@pytest.mark.parametrize(
    ("ports", "text"),
    [
        (None, ""),
        ([{"host_ip": "", "container_port": 80, "host_port": 81, "range": 1, "protocol": "tcp"}], "0.0.0.0:81->80/tcp"),
        ([{"host_ip": "::", "container_port": 1, "host_port": 5, "range": 3, "protocol": "udp"}], "[::]:5-7->1-3/udp"),
        ([{"container_port": 80, "host_port": 0}], "80/tcp"),
    ],
)  # fmt: skip
def test_ports(ports, text):
    assert shim.docker_ports(ports) == text


def test_what_load_says():
    told = "Loaded image: localhost/x:1\nLoaded image: sha256:ab\nLoaded image(s): a:1,docker.io/library/b:2\nother\n"
    assert shim.load_words(told, ALL).splitlines() == [
        "Loaded image: x:1", "Loaded image ID: sha256:ab", "Loaded image: a:1", "Loaded image: b:2", "other",
    ]  # fmt: skip


# ---------------------------------------------------------------- templates (what docker 28 printed of such an object)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.Name}}", "/c1"),
        ("{{.Id}}{{.ID}}", "0d" * 64),
        ("{{.State.Running}} {{.State.Pid}}", "false 0"),
        ("{{json .Config.Labels}}", '{"a":"b"}'),
        ('{{index .Config.Labels "a"}}|{{index .Config.Labels "zz"}}|{{.Config.Labels.zz}}', "b||<no value>"),
        ("{{range $k, $v := .Config.Labels}}{{$k}}={{$v}};{{end}}", "a=b;"),
        ("{{range $v := .Config.Cmd}}<{{$v}}>{{end}}", "<bash><-c><x y>"),
        ("{{.Config.Labels}} {{.Config.Cmd}}", "map[a:b] [bash -c x y]"),
        ('{{len .Config.Cmd}} {{index .Config.Cmd 0}} {{join .Config.Cmd "_"}}', "3 bash bash_-c_x y"),
        ('{{println .Name}}{{print 1 2 "a" 3}}', "/c1\n1 2a3"),
        ('{{printf "%s-%d-%v-%q|%5s" .Name 3 true "x" "r"}}', '/c1-3-true-"x"|    r'),
        ('{{if and .Name (eq .State.Status "exited" "dead")}}A{{else}}B{{end}}', "A"),
        ("{{if .State.Running}}A{{else if .Name}}B{{else}}C{{end}}", "B"),
        ("{{with .State.Health}}x{{else}}y{{end}}{{with .Config}}{{.User}}{{end}}", "y"),
        ("{{- .Name -}}   x {{- /* c */ -}}  y", "/c1xy"),
        ("{{slice .Id 0 4}} {{.Id | printf `%.2s`}}", "0d0d 0d"),
        ('{{upper .Name}} {{title "ab cd"}} {{split "a,b" ","}} {{truncate "abc" 2}}', "/C1 Ab Cd [a b] ab"),
        ("{{$x := .Name}}{{if true}}{{$x = `n`}}{{end}}{{$x}}{{$.Name}}", "n/c1"),
        ("{{(index .Config.Cmd 0)}}{{(.State).Status}}", "bashexited"),
        ("{{not .State.Running}} {{ne 1 2}} {{lt 1 2}} {{ge 2 2}}", "true true true true"),
        ("{{range $p, $c := .NetworkSettings.Ports}}{{$p}}->{{(index $c 0).HostPort}}{{end}}", "80/tcp->8080"),
        ("{{.NetworkSettings.Ports}}", "map[80/tcp:[{0.0.0.0 8080}]]"),
        ("{{.Config.Entrypoint}}{{json .Config.Entrypoint}} {{.Config.Volumes}}", "[]null map[]"),
        ("{{json .HostConfig.DeviceRequests}}{{.HostConfig.DeviceRequests}}", "null[]"),
        ("{{range .Mounts}}x{{else}}none{{end}}", "none"),
        ('\\t{{"a\\tb"}}', "\\ta\tb"),
        ('{{or .Config.Domainname "d"}}{{and 1 0}}', "d0"),
        ('{{json .HostConfig.LogConfig.Config}}{{.HostConfig.LogConfig.Config.nope}}', '{"max-size":"10MB"}<no value>'),
    ],
)  # fmt: skip
def test_templates(template, text):
    data = shim.for_template("container", shim.docker_container(container(), ALL))
    assert shim.Template(template).render(data) == text


@pytest.mark.parametrize(
    ("template", "status", "told"),
    [
        ("{{", 64, "unclosed action"),
        ("{{end}}", 64, "unexpected"),
        ("{{if .Name}}", 64, "EOF"),
        ("{{foo .X}}", 64, 'function "foo"'),
        ("{{html .Name}}", 64, "the shim does not evaluate html"),
        ("{{define `x`}}{{end}}", 64, "the shim does not evaluate define"),
        ("{{.Name ;}}", 64, 'unexpected ";"'),
        ("{{(.Name}}", 64, "paren"),
        ("{{.Name |}}", 64, "missing value"),
        ("{{.Nope}}", 1, 'no entry for key "Nope"'),
        ("{{.State.Health.Status}}", 1, "Status"),
        ("{{.Name.Foo}}", 1, "Foo"),
        ("{{.State}}", 1, "use {{json ...}}"),
        ("{{index .Config.Cmd 99}}", 1, "index out of range"),
        ("{{eq .State.Status 1}}", 1, "incompatible types"),
        ("{{len 3}}", 1, "len"),
        ("{{range .Name}}x{{end}}", 1, "range can't iterate"),
        ("{{join .Name `,`}}", 1, "expected []string"),
        ("{{.Name 1}}", 1, "can't give argument"),
        ("{{upper 1}}", 1, "expected string"),
        ("{{len}}", 1, "error calling len"),
    ],
)
def test_templates_that_fail(template, status, told):
    data = shim.for_template("container", shim.docker_container(container(), ALL))
    with pytest.raises(shim.TemplateError) as caught:
        shim.Template(template).render(data)
    assert caught.value.status == status and told in str(caught.value)


def test_a_listing_as_table_as_lines_and_as_json():
    rows = [shim.docker_row(row(Names=[name]), None, True, 8200.0, ALL) for name in ("a", "a-long-name")]
    table = shim.listing("table {{.Names}}\\t{{.Label `a`}}\\t{{upper .State}}", rows, "CONTAINER ID")
    assert table == "NAMES         a         STATE\na             1         RUNNING\na-long-name   1         RUNNING\n"
    assert shim.listing("{{.Names}}", rows, "") == "a\na-long-name\n"
    told = [json.loads(line) for line in shim.listing("json", rows, "").splitlines()]
    assert [each["Names"] for each in told] == ["a", "a-long-name"] and set(told[0]) >= {"ID", "Status", "Image"}
    for form in ("{{", "{{.Nope}}"):
        with pytest.raises(shim.TemplateError) as caught:
            shim.listing(form, rows, "")
        assert caught.value.status == 1


# ---------------------------------------------------------------- over a fake podman


def docker(*args, **more):
    return subprocess.run([sys.executable, "-I", SHIM, *args], capture_output=True, check=False, timeout=60, **more)


def inside(capfdbinary, *args):
    """(status, output, errors) of the shim in this process, for what does not end in exec: quicker."""
    before = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT)}
    try:
        status = shim.main(args)
    except SystemExit as ended:
        status = ended.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    told = capfdbinary.readouterr()
    return status, told.out, told.err


def fake(stand_in, tmp_path, **cases):
    """A fake podman: prints its arguments NUL separated, or what a case for its first two words says."""
    lines = []
    for words, (status, text) in cases.items():
        (tmp_path / words).write_text(text)
        lines.append(f"'{words.replace('_', ' ')}') cat '{tmp_path}/{words}'; exit {status};;")
    stand_in("podman", f'case "$1 $2" in {" ".join(lines)} esac\nprintf "%s\\0" "$@"; exit 42')


def test_arguments_reach_podman_byte_for_byte_with_its_status(stand_in, tmp_path):
    fake(stand_in, tmp_path)
    hostile = [b"run", b"-e", b"A=\xff\xfe", b"img", b"", b"a b", b"$(id)", b"'\"\\", b"\n", b"--", b"*", b"\xe2\x82"]
    done = docker(*hostile)
    assert done.returncode == 42 and done.stdout.split(b"\0")[:-1] == hostile


def test_it_is_podman_itself_that_runs(stand_in):
    stand_in("podman", "echo $$; exec sleep 60")
    with subprocess.Popen([sys.executable, "-I", SHIM, "run", "img"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_signals_are_not_left_ignored_for_podman(stand_in):
    stand_in("podman", "grep SigIgn /proc/self/status")
    assert int(docker("run", "img").stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_a_child_gets_the_signals_and_its_end_is_the_shims(stand_in, tmp_path):
    """``load`` is one of the few that run podman as a child."""
    stand_in("podman", f"trap 'echo got; exit 7' USR1; touch '{tmp_path}/up'; while :; do sleep 0.05; done")
    with subprocess.Popen([sys.executable, "-I", SHIM, "load"], stdout=subprocess.PIPE) as process:
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        assert process.communicate(timeout=20)[0] == b"got\n" and process.returncode == 7
    stand_in("podman", "kill -KILL $$")
    assert docker("load").returncode == -signal.SIGKILL


def test_an_interrupt_ends_it_without_a_trace(stand_in, tmp_path):
    stand_in("podman", f"touch '{tmp_path}/up'; exec sleep 5")
    with subprocess.Popen([sys.executable, "-I", SHIM, "info"], stderr=subprocess.PIPE) as process:
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
        assert process.stderr is not None and process.stderr.read1() == b""


def test_no_podman_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for args in (["run", "img"], ["inspect", "x"], ["info"]):
        done = docker(*args)
        assert done.returncode == 127 and b"podman is not installed" in done.stderr, args


@pytest.mark.parametrize("text", ["", "<html>busy</html>", "{}", "[]", "[1]", '[{"Id": "x"}]', "[{}, {}]", '{"a":'])
@pytest.mark.parametrize("args", [["inspect", "x"], ["info"], ["version"], ["images"], ["ps", "--format", "json"]])
def test_a_malformed_answer_is_one_clear_error(stand_in, tmp_path, capfdbinary, args, text):
    cases = {"container_inspect": (0, text), "info_--format": (0, text), "version_--format": (0, text)}
    fake(stand_in, tmp_path, **cases, **{"images_--format": (0, text), "ps_--format": (0, text)})
    status, _, told = inside(capfdbinary, *args)
    if args[0] in ("images", "ps") and text == "[]":
        assert status == 0
        return
    assert status == 125 and told.count(b"\n") == 1, told
    assert b"podman" in told and (b"malformed" in told or b"did not answer in JSON" in told)


def test_a_state_that_is_none_is_malformed(stand_in, tmp_path):
    fake(stand_in, tmp_path, container_inspect=(0, "<html>"))
    done = docker("wait", "x")
    assert done.returncode == 125 and b"malformed: a state '<html>'" in done.stderr


def test_a_failing_podman_is_not_a_missing_object(stand_in, capfdbinary):
    stand_in("podman", "echo 'Error: cannot lock storage' >&2; exit 125")
    for args in (["inspect", "x"], ["stop", "x"], ["wait", "x"], ["info"]):
        status, _, told = inside(capfdbinary, *args)
        assert status == 125 and b"cannot lock storage" in told, args


def test_an_ancestor_by_manifest_digest_is_podmans_image(stand_in, tmp_path):
    fake(stand_in, tmp_path, **{"images_--all": (0, json.dumps([IMAGE]))})
    told = docker("ps", "-q", "--filter", f"ancestor={M1}").stdout.split(b"\0")[:-1]
    assert told == [b"ps", b"-q", b"--filter", b"ancestor=" + CONFIG.encode()]
    assert docker("ps", "--filter", f"ancestor=sha256:{'00' * 32}").stdout.endswith(b"=sha256:" + b"00" * 32 + b"\0")


def test_nothing_of_the_streams_is_touched(stand_in):
    stand_in("podman", 'if [ "$1" = container ]; then echo running; else cat; echo err >&2; fi')
    raw = bytes(range(256)) * 64
    done = docker("exec", "-i", "c", "cat", input=raw)
    assert (done.returncode, done.stdout, done.stderr) == (0, raw, b"err\n")


def test_inspect_prints_as_docker(stand_in, tmp_path):
    fake(stand_in, tmp_path, container_inspect=(0, json.dumps([container()])))
    assert docker("inspect", "-f", "{{.Name}}", "a", "b").stdout == b"/c1\n/c1\n"
    assert json.loads(docker("inspect", "a").stdout)[0]["Name"] == "/c1"
    assert docker("inspect", "--format", "json", "a").stdout.count(b"\n") == 1
    assert docker("inspect", "-f", "{{foo}}", "a").returncode == 64


def test_disabled_laws_reach_the_answer(stand_in, tmp_path, monkeypatch):
    fake(stand_in, tmp_path, container_inspect=(0, json.dumps([container()])))
    args = ["inspect", "-f", "{{json .HostConfig.LogConfig.Config}}", "a"]
    assert docker(*args).stdout == b'{"max-size":"10MB"}\n'
    monkeypatch.setenv(shim.OFF_VARIABLE, "log-config")
    assert docker(*args).stdout == b"null\n"
    monkeypatch.setenv(shim.OFF_VARIABLE, "nope")
    assert docker(*args).returncode == 125


def test_a_folder_that_cannot_be_made_is_told(stand_in, tmp_path):
    fake(stand_in, tmp_path)
    (tmp_path / "file").touch()
    done = docker("run", "-v", f"{tmp_path}/file/x:/m", "img")
    assert done.returncode == 125 and b"cannot make the source of a bind mount" in done.stderr
    assert docker("run", "-v", f"{tmp_path}/new/x:/m", "img").returncode == 42 and (tmp_path / "new" / "x").is_dir()
