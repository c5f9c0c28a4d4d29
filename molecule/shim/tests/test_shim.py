# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docker's command line on real podman: the R9V tooling's calls and those of common use, in one session."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field

import pytest

LOOP = 'trap "exit 5" TERM; while :; do sleep 0.05; done'
HEX = "[0-9a-f]{64}"
FALLS = "(?s).*AttributeError: 'NoneType' object has no attribute 'get'"


@dataclass(frozen=True)
class Case:
    """A call, its status, and patterns that its output and errors match whole; {M} and {C} are the bundle's digests."""

    argv: list[str]
    rc: int = 0
    out: str = ""
    err: str = ".*"
    env: dict[str, str] = field(default_factory=dict)


def docker(*argv, **more):
    return Case(["docker", *argv], **more)


# What the R9V tooling calls, by the page on frank-primary: the bundle by its manifest's digest, the doctor's questions,
# the launcher's run, the serve script's wait, the unit's stop.
TOOLING = [
    docker("info", "--format", "{{.ServerVersion}}", out=r"27\.5\.1"),
    docker("info", "--format", "{{json .SecurityOptions}}", out=r'\[.*"name=seccomp,profile=builtin".*\]'),
    docker("version", "--format", "{{.Server.Version}}", out=r"27\.5\.1"),
    docker("load", "-i", "/srv/bundle.oci", out=r"Loaded image: bundle:1"),
    docker("image", "inspect", "{M}", out=r"\[.*\]"),
    docker("image", "inspect", "--format", "{{.Id}}", "{M}", out="{M}"),
    docker("image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", "{M}", out=r"linux/\w+"),
    docker("inspect", "--type", "image", "-f", "{{.Id}}", "{M}", out="{M}"),
    docker("ps", "-aq", "--filter", "name=^r9v$"),
    docker("rm", "-f", "r9v", err="Error response from daemon: No such container: r9v"),
    docker(
        "run", "-d", "--name", "r9v", "--network", "host", "--ipc", "host", "--shm-size", "64m",
        "--log-driver", "local", "--log-opt", "max-size=10m", "--log-opt", "max-file=3", "--security-opt",
        "seccomp=unconfined", "--cap-add", "SYS_PTRACE", "--device", "/dev/null:/dev/kfd", "--group-add", "video",
        "-e", "R9V_FULL_MUTABLE_CACHE=1", "-e", "R9V_FULL_MUTABLE_CACHE=0", "-v", "/srv/state/made:/state",
        "-v", "/srv/bundle.oci:/opt/r9v/share/chat-template.jinja:ro", "--entrypoint", "bash", "{M}",
        "-c", f"echo serving $R9V_FULL_MUTABLE_CACHE --enable-prefix-caching; {LOOP}", out=HEX,
    ),
    docker("ps", "-q", "--filter", "ancestor={M}", out="[0-9a-f]{12}"),
    docker("ps", "--filter", "name=r9v", "--format", "{{.Names}} {{.State}} {{.Image}}", out="r9v running [0-9a-f]+"),
    docker("inspect", "-f", "{{.State.Running}} {{.State.Status}} {{.State.ExitCode}}", "r9v", out="true running 0"),
    docker("inspect", "-f", "{{.Name}} {{.Image}} {{.Config.Image}}", "r9v", out="/r9v {M} {M}"),
    docker("inspect", "-f", "{{.State.Pid}}", "r9v", out=r"[1-9]\d*"),
    docker("inspect", "-f", '{{index .HostConfig.LogConfig.Config "max-file"}}', "r9v", out="3"),
    docker(
        "inspect", "-f", "{{json .HostConfig.LogConfig}}", "r9v",
        out=r'\{"Type":"local","Config":\{"max-file":"3","max-size":"10m"\}\}',
    ),
    docker("inspect", "-f", "{{range .Config.Env}}{{println .}}{{end}}", "r9v", out="(?s).*CACHE=0\n.*"),
    docker("inspect", "-f", "{{join .Config.Cmd \" \"}}", "r9v", out="-c echo serving .*"),
    docker("inspect", "-f", "{{json .HostConfig.DeviceRequests}} {{json .Config.Labels}}", "r9v", out="null {}"),
    docker("logs", "--tail", "all", "r9v", out="serving 0 --enable-prefix-caching"),
    docker("logs", "-n", "1", "r9v", out="serving 0 --enable-prefix-caching"),
    docker("exec", "r9v", "cat", "/proc/self/cgroup", out="(?s).*"),
    docker("stop", "-t", "10", "r9v", out="r9v"),
    docker("wait", "r9v", out="5"),
    docker("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", "r9v", out="exited 5"),
    docker("start", "r9v", out="r9v"),
    docker("restart", "-t", "5", "r9v", out="r9v"),
    docker("container", "inspect", "-f", "{{.State.Running}}", "r9v", out="true"),
    Case(["/opt/shim/doctor-stand-in", "r9v"], out="max-size 10m max-file 3"),
    docker("rm", "-f", "r9v", out="r9v"),
    docker("inspect", "r9v", rc=1, out=r"\[\]", err="Error: No such object: r9v"),
]  # fmt: skip

COMMON = [
    docker("--version", out=r"Docker version 27\.5\.1, build podman-5\.4\.\d+"),
    docker("version", out=r"(?s)Client:\n Version: +27\.5\.1\n.*Server: podman 5\.4\..*"),
    docker("version", "-f", "json", out=r'\{"Client":\{.*"Server":\{.*\}'),
    docker("version", "-f", "{{.Server.APIVersion}} {{.Server.Arch}} {{.Server.Os}}", out=r"1\.47 \w+ linux"),
    docker("info", out=r"(?s)Client:.* Server Version: 27\.5\.1\n.* Docker Root Dir: /var/lib/containers/storage\n.*"),
    docker("info", "-f", "{{.Driver}} {{.DockerRootDir}} {{.CgroupDriver}}", out=r"\w+ /var/lib/\S+ \w+"),
    docker("system", "info", "-f", "{{.Nope}}", rc=1, err='.*no entry for key "Nope".*'),
    docker("info", "-f", "{{foo}}", rc=64, err='.*function "foo".*'),
    docker("context", "show", out="default"),
    docker("--context", "default", "ps", "-q"),
    docker("--context", "prod", "ps", rc=1, err='context "prod": context not found.*'),
    docker("-H", "unix:///var/run/docker.sock", "images", "-q", out="[0-9a-f]{12}"),
    docker("-H", "tcp://127.0.0.1:1", "ps", rc=1, err="cannot talk to the daemon.*"),
    docker("swarm", "init", rc=1, err="docker swarm is not in podman.*"),
    docker("images", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}", out="bundle:1 [0-9a-f]{12}"),
    docker("images", "-q", "--no-trunc", out="{M}"),
    docker("images", out=r"(?s)REPOSITORY +TAG +IMAGE ID +CREATED +SIZE\nbundle +1 .*"),
    docker("image", "inspect", "-f", "{{.Id}}", "sha256:{C}", out="sha256:{C}"),
    docker("image", "inspect", "-f", "{{.RepoTags}}", "bundle:1", out=r"\[bundle:1\]"),
    docker("image", "inspect", "nope", rc=1, out=r"\[\]", err="Error: No such image: nope"),
    docker("image", "inspect", "sha256:" + "0" * 64, rc=1, out=r"\[\]", err="Error: No such image: .*"),
    docker("tag", "{M}", "other:2"),
    docker("rmi", "other:2", out="Untagged: localhost/other:2"),
    docker("history", "-q", "{M}", out="(?s).*"),
    docker("tag", "nope", "x", rc=1, err="Error response from daemon: No such image: nope"),
    docker("save", "-o", "/srv/saved.tar", "{M}"),
    docker("save", "nope", rc=1),
    docker("rmi", "nope", rc=1),
    docker("run", "--rm", "bundle:1", "bash", "-c", "exit 42", rc=42),
    docker("run", "--rm", "bundle:1", "nosuch", rc=127),
    docker("run", "--rm", "bundle:1", "/etc", rc=126),
    docker("run", "--frob", "bundle:1", rc=125),
    docker("run", "--rm", "--pull", "never", "nope", rc=125),
    docker("run", rc=1, err="(?s)docker: 'docker run' requires at least 1 argument.*"),
    docker("run", "--rm", "-w", "/etc", "-u0", "bundle:1", "bash", "-c", "echo $PWD $#", "_", "a b", out="/etc 1"),
    docker("run", "--rm", "-e", "A=1", "-eB=2", "--env=C=3", "bundle:1", "bash", "-c", "echo $A$B$C", out="123"),
    docker("run", "--rm", "-v", "/srv/made/twice:/m", "bundle:1", "ls", "-d", "/m", out="/m"),
    Case(["ls", "-d", "/srv/made/twice", "/srv/state/made"], out="/srv/made/twice\n/srv/state/made"),
    docker("run", "--rm", "--mount", "type=bind,src=/srv/nope,dst=/m", "bundle:1", "ls", rc=125),
    docker("run", "--rm", "--tmpfs", "/t", "--read-only", "bundle:1", "bash", "-c", "echo x >/t/x && ! echo x >/y"),
    docker("run", "--rm", "--group-add", "video", "bundle:1", "id", "-G", out="0 44"),
    docker("run", "--rm", "--ulimit", "memlock=-1:-1", "bundle:1", "ls", rc=126, err=".*LimitMEMLOCK=infinity.*"),
    docker("run", "--rm", "--ulimit", "memlock=65536:65536", "bundle:1", "bash", "-c", "ulimit -l", out="64"),
    docker("run", "--rm", "--gpus", "all", "bundle:1", "ls", rc=126, err=r".*nvidia\.com/gpu=all.*"),
    docker("run", "--rm", "--gpus", "device=0,1", "bundle:1", "ls", rc=125, err="docker: cannot set both.*"),
    docker("run", "--rm", "--log-driver", "syslog", "bundle:1", "ls", rc=125, err="docker: log driver syslog .*"),
    docker("run", "-d", "--rm", "--name", "short", "bundle:1", "sleep", "0.5", out=HEX),
    docker("wait", "short", out="0"),
    Case(["bash", "-c", "for i in {1..50}; do podman container exists short || exit 0; sleep 0.1; done; exit 1"]),
    docker("wait", "short", rc=1, err="Error response from daemon: No such container: short"),
    docker("create", "--name", "c0", "--label", "a=b", "--restart", "no", "bundle:1", "bash", "-c", "exit 3", out=HEX),
    docker("wait", "c0", out="-1"),
    docker("ps", "-a", "--format", "{{.Names}} {{.Status}} {{.Label \"a\"}} {{.Labels}}", out="c0 Created b a=b"),
    docker("exec", "c0", "ls", rc=1, err="Error response from daemon: container c0 is not running"),
    docker("start", "-a", "c0", rc=3),
    docker("wait", "c0", out="3"),
    docker("wait", "c0", "nope", rc=1, out="3", err="Error response from daemon: No such container: nope"),
    docker("ps", "-a", "--format", "table {{.Names}}\t{{.Status}}", out=r"NAMES +STATUS\nc0 +Exited \(3\) .* ago"),
    docker("ps", "-a", "--format", "{{json .}}", out=r'\{"Command":.*"ID":"\w{12}",.*"Names":"c0",.*\}'),
    docker("ps", "-aq", "--no-trunc", out=HEX),
    docker("ps", "-a", "--format", "{{.Nope}}", rc=1),
    docker("ps", "-a", "--format", "{{", rc=1),
    docker("inspect", "-f", "{{.Config.Labels.a}}{{if .State.Health}}h{{else}}-{{end}}", "c0", out="b-"),
    docker("inspect", "-f", "{{json .HostConfig.LogConfig.Config}}", "c0", out="{}"),
    docker("inspect", "-f", "{{.Name}}", "c0", "nope", rc=1, out="/c0", err="Error: No such object: nope"),
    docker("tag", "bundle:1", "c0"),
    docker("inspect", "-f", "{{.Name}}", "c0", out="/c0"),
    docker("inspect", "--type", "image", "-f", "{{.Os}}", "c0", out="linux"),
    docker("rmi", "c0", out="Untagged: .*"),
    docker("inspect", "-f", "{{html .Name}}", "c0", rc=64, err=".*does not evaluate html.*"),
    docker("rename", "c0", "c1"),
    docker("cp", "c1:/etc/group", "/srv/group"),
    docker("cp", "nope:/etc/group", "/srv/group", rc=1),
    docker("diff", "c1", out="(?s).*"),
    docker("commit", "-q", "c1", "made:1", out=".*"),
    docker("rmi", "made:1", out="(?s).*"),
    docker("export", "-o", "/srv/c1.tar", "c1"),
    docker("port", "c1"),
    docker("rm", "c1", out="c1"),
    *(docker(*words, rc=1, err="Error response from daemon: No such container: nope") for words in (
        ("stop", "nope"), ("stop", "-t", "1", "nope"), ("kill", "nope"), ("restart", "nope"), ("start", "nope"),
        ("logs", "nope"), ("logs", "-f", "nope"), ("wait", "nope"), ("exec", "nope", "ls"), ("rm", "nope"),
        ("pause", "nope"), ("unpause", "nope"), ("top", "nope"), ("port", "nope"), ("rename", "nope", "x"),
        ("attach", "nope"), ("update", "--cpus", "1", "nope"),
    )),
    docker("container", "inspect", "nope", rc=1, out=r"\[\]", err="Error: No such container: nope"),
    docker("network", "inspect", "nope", rc=1, out=r"\[\]", err="Error: No such network: nope"),
    docker("volume", "inspect", "nope", rc=1, out=r"\[\]", err="Error: No such volume: nope"),
    docker("volume", "create", "v1", out="v1"),
    docker("volume", "inspect", "-f", "{{.Name}} {{.Driver}}", "v1", out="v1 local"),
    docker("run", "-d", "--name=c2", "-vv1:/v", "-p127.0.0.1:18080:80", "bundle:1", "bash", "-c", LOOP, out=HEX),
    docker("ps", "--format", "{{.Ports}} {{.Mounts}} {{.LocalVolumes}}", out=r"127\.0\.0\.1:18080->80/tcp v1 1"),
    docker("port", "c2", out=r"80/tcp -> 127\.0\.0\.1:18080"),
    docker("exec", "-e", "X=a b", "c2", "bash", "-c", 'echo "$X"; exit 9', rc=9, out="a b"),
    docker("exec", "-d", "c2", "sleep", "9"),
    docker("top", "c2", out="(?s).*bash.*"),
    docker("pause", "c2", out="c2"),
    docker("exec", "c2", "ls", rc=1, err=".*is paused, unpause.*"),
    docker("inspect", "-f", "{{.State.Running}} {{.State.Paused}} {{.State.Status}}", "c2", out="true true paused"),
    docker("unpause", "c2", out="c2"),
    docker("kill", "-s", "TERM", "c2", out="c2"),
    docker("wait", "c2", out="5"),
    docker("rm", "-fv", "c2", "nope", out="c2", err="Error response from daemon: No such container: nope"),
    docker("volume", "rm", "v1", out="v1"),
    docker("run", "--name", "x", "--log-opt", "max-file=2", "bundle:1", "ls", "/etc/group", out="/etc/group"),
    docker("inspect", "-f", "{{.HostConfig.LogConfig.Config}}", "x", out=r"map\[max-file:2\]"),
    # without its law, the doctor falls over podman's null; so it does on podman alone
    Case(["/opt/shim/doctor-stand-in", "x"], out="max-size None max-file 2"),
    Case(
        ["/opt/shim/doctor-stand-in", "x"], rc=1, err=FALLS,
        env={"LLM_FLEET_SHIM_OFF": "log-config"},
    ),
    Case(["mkdir", "/opt/alone"]),
    Case(["ln", "-s", "/usr/bin/podman", "/opt/alone/docker"]),
    Case(
        ["env", "PATH=/opt/alone:/usr/bin:/bin", "/opt/shim/doctor-stand-in", "x"], rc=1,
        err=FALLS,
    ),
    docker("rm", "x", out="x"),
    docker("image", "inspect", "{M}", rc=125, out=r"\[\]", err=".*", env={"LLM_FLEET_SHIM_OFF": ",".join(
        ("image-identity", "image-names", "log-config", "gpus", "inspect"))}),
    docker("shim", "--explain", "run", "{M}", "a b", out="(?s)laws: image-identity\n.*runs: podman run .* 'a b'\n.*"),
    docker("frob", rc=125),
]  # fmt: skip
TABLE = TOOLING + COMMON


@pytest.fixture(scope="session")
def results(fleet):
    """What every case of the table gave, from one session."""
    lines = base64.b64encode(json.dumps([{"argv": case.argv, "env": case.env} for case in TABLE]).encode()).decode()
    fleet.run(
        "podman rm -fa -t 0 >/dev/null; podman volume rm -fa >/dev/null; "
        "rm -rf /opt/alone /srv/made /srv/state /srv/*.tar"
    )
    return json.loads(fleet.run(f"/opt/shim/run-table <<'END'\n{lines}\nEND"))


@pytest.mark.parametrize(
    "at", range(len(TABLE)), ids=[f"{at}-{' '.join(case.argv)[:60]}" for at, case in enumerate(TABLE)]
)
def test_the_table(results, at):
    case = TABLE[at]
    rc, out, err = results["results"][at]
    wanted = case.out
    for key, value in results["values"].items():
        wanted = wanted.replace(f"{{{key}}}", value)
    told = f"{case.argv}: {rc}\n{out}\n{err}"
    assert rc == case.rc, told
    assert re.fullmatch(wanted, out.strip(), 0 if "(?s)" in wanted else re.DOTALL), told
    assert re.fullmatch(case.err, err.strip(), re.DOTALL), told
    assert "Traceback" not in err or "stand-in" in case.argv[0] or "stand-in" in " ".join(case.argv), told


def test_it_is_large_enough():
    assert len([case for case in COMMON if case.argv[0] == "docker"]) >= 40 and len(TOOLING) >= 20


@pytest.fixture(scope="session")
def seen(fleet, results):
    """Signals and streams, after the table."""
    assert results
    return json.loads(fleet.run("/opt/shim/signals-and-streams"))


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("wait-term", [1, "true"]),  # podman's own end at TERM
        ("wait-end", ["5", 0, 0]),
        ("run-term", 5),
        ("run-bytes", [0, True]),
        ("exec-bytes", [0, True, "err\n"]),
        ("hostile", [0, True]),
        ("hostile-env", True),
        ("tty", 9),
        ("pipe", ["ok", ""]),
    ],
)
def test_signals_and_streams(seen, what, wanted):
    assert seen[what] == wanted


def test_a_user_without_root(fleet):
    """As the unit's user runs it: rootless is told, groups are the user's own, the rest is the same."""
    as_user = (
        "cd / && setpriv --reuid=1500 --regid=1500 --init-groups "
        "env HOME=/home/owner USER=owner XDG_RUNTIME_DIR=/run/user/1500 PATH=/opt/shim:/usr/bin:/bin"
    )

    def told(command):
        return fleet.run(f"{as_user} {command}").strip()

    assert told("docker load -q -i /srv/bundle.oci") == "Loaded image: bundle:1"
    assert "name=rootless" in told("docker info -f '{{.SecurityOptions}}'")
    bundle = told("docker images -q --no-trunc")
    run = "docker run --network host --log-driver local --log-opt max-file=2"
    # the group of the host is kept; it has no name and no number of its own inside
    assert told(f"{run} --rm --group-add video {bundle} id -G") == "0 65534"
    told(f"{run} -d --name r9v -v /home/owner/made:/m {bundle} bash -c 'sleep 1; exit 4'")
    shown = told("docker inspect -f '{{.Image}} {{json .HostConfig.LogConfig}}' r9v")
    assert shown == bundle + ' {"Type":"local","Config":{"max-file":"2"}}'
    assert told("docker wait r9v") == "4" and told("docker rm r9v") == "r9v"
    assert "above this process's own hard limit" in fleet.run(
        f"{as_user} bash -c 'ulimit -l 64; docker run --rm --ulimit memlock=-1 {bundle} ls 2>&1'", check=False
    )
