# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real systemd, real podman: retired, restored, retired again; killed midway; nothing is ever lost."""

from __future__ import annotations

import json
import time

import pytest

USER = (
    "cd / && setpriv --reuid=1500 --regid=1500 --init-groups "
    "env HOME=/home/owner USER=owner XDG_RUNTIME_DIR=/run/user/1500"
)
PLACES = (
    "/etc/systemd/system /etc/containers/systemd /opt/old /srv/repo /home/owner/.config/containers/systemd "
    "/home/owner/.config/systemd /srv/other"
)
SYSTEM = {"user": "owner", "quadlets": "rt-a.container,rt-b.container,rt-c.container,rt-data.volume"}
ROOTLESS = {
    "user": "owner",
    "scope": "user",
    "quadlets": "rl-a.container,rl-b.container,rl-c.container,rl-data.volume",
}


def retire(fleet, *args, **extra):
    return fleet.play("playbooks/retire.yml", *args, **extra)


def origins(fleet):
    """Files with digest, all else with its target; owner, mode and time of each, so long as it is not a directory."""
    return fleet.run(
        f"find {PLACES} -type f -size -9M -exec sha256sum {{}} + 2>/dev/null | sort -k2;"
        f"find {PLACES} -not -type d -printf '%p %m %u:%g %TY-%Tm-%TdT%TT %l\\n' 2>/dev/null | sort"
    )


def digests(fleet):
    """The digest of every old file, wherever it lies: nothing may ever be lost."""
    text = fleet.run(
        f"find {PLACES} /home/owner/.AGENTTRASH -type f -size -9M -not -name manifest.json -exec sha256sum {{}} + "
        "2>/dev/null || true"
    )
    return sorted({line.split()[0] for line in text.splitlines()})


def pids(fleet, scope, names):
    """(unit, active, process, enablement) of each service."""
    ctl = "systemctl" if scope == "system" else f"{USER} systemctl --user"
    shown = fleet.run(f"{ctl} show -p Id,LoadState,ActiveState,SubState,UnitFileState {' '.join(names)}")
    return [dict(line.split("=", 1) for line in block.splitlines()) for block in shown.strip().split("\n\n")]


def containers(fleet, scope):
    podman = "podman" if scope == "system" else f"{USER} podman"
    return sorted(fleet.run(f"{podman} ps -a --format '{{{{.Names}}}} {{{{.State}}}}'").splitlines())


@pytest.mark.parametrize(
    ("scope", "prefix", "given"),
    [("system", "rt", SYSTEM), ("user", "rl", ROOTLESS)],
    ids=["root", "rootless"],
)
def test_three_quadlets_retired_restored_retired_again(fleet, scope, prefix, given):
    services = [f"{prefix}-{name}.service" for name in ("a", "renamed", "c", "data-volume")]
    running = [f"{prefix}-{name} running" for name in "abc"]
    slug = f"{prefix}-swap"
    assert containers(fleet, scope) == running
    before, lost, state = origins(fleet), digests(fleet), pids(fleet, scope, services)

    predicted = retire(fleet, "--check", "--diff", slug=slug, **given)
    assert predicted.rc == 0 and predicted.recap["changed"] == 1, predicted.text
    assert f"-{prefix}-a.service active (running), generated" in predicted.text
    assert origins(fleet) == before and containers(fleet, scope) == running

    played = retire(fleet, slug=slug, **given)
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    assert containers(fleet, scope) == []
    for one in pids(fleet, scope, services):
        assert (one["LoadState"], one["ActiveState"]) == ("not-found", "inactive"), one
    assert fleet.run(f"pgrep -fa 'conmon.*{prefix}-[abc]'", check=False) == ""
    assert f"{prefix}-a.container" not in origins(fleet) and digests(fleet) == lost
    folder = fleet.run(f"ls -d /home/owner/.AGENTTRASH/*-{slug}").strip()
    manifest = json.loads(fleet.run(f"cat {folder}/manifest.json"))
    assert manifest["state"] == "retired"
    assert [item["before"]["active"] for item in manifest["items"]] == ["active"] * 4
    assert {item["service"] for item in manifest["items"]} == set(services)
    entry = manifest["items"][0]["entries"][-1]
    assert fleet.run(f"sha256sum < {entry['to']}").split()[0] == entry["sha256"]

    again = retire(fleet, slug=slug, **given)
    assert again.rc == 0 and again.recap["changed"] == 0, again.text

    back = retire(fleet, slug=slug, restore=True, **{key: given[key] for key in given if key != "quadlets"})
    assert back.rc == 0 and back.recap["changed"] == 1, back.text
    assert origins(fleet) == before
    assert containers(fleet, scope) == running and pids(fleet, scope, services) == state
    assert retire(fleet, slug=slug, restore=True, **given).recap["changed"] == 0

    last = retire(fleet, slug=slug, **given)
    assert last.rc == 0 and f"{folder}-2" in fleet.run("ls -d /home/owner/.AGENTTRASH/*"), last.text
    assert containers(fleet, scope) == [] and digests(fleet) == lost


def test_a_volume_that_another_quadlet_needs_is_refused(fleet):
    """podman fails in silence under daemon-reload; here it is asked first."""
    fleet.run(
        "printf '[Volume]\\n' >/etc/containers/systemd/x.volume;"
        "printf '[Container]\\nImage=localhost/tiny:1\\nVolume=x.volume:/x\\n' >/etc/containers/systemd/x.container;"
        "printf '[Container]\\nImage=localhost/tiny:1\\nBogus=1\\n' >/etc/containers/systemd/bad.container;"
        "systemctl daemon-reload"
    )
    before = origins(fleet)
    played = retire(fleet, slug="x", user="owner", quadlets="x.volume")
    assert played.rc != 0 and "podman would not make x.service any more" in played.error
    assert "x.volume was not found" in played.error and origins(fleet) == before
    played = retire(fleet, slug="x", user="owner", quadlets="x.volume,x.container,bad.container")
    assert played.rc == 0 and "unsupported key 'Bogus'" in played.error, played.text


def test_a_name_that_is_nowhere_gets_near_names(fleet):
    played = retire(fleet, slug="typo", user="owner", units="old-chta")
    assert played.rc != 0 and "Near: old-chat.service" in played.error


def test_a_plain_unit_with_its_drop_in_link_and_launcher(fleet):
    given = {"user": "owner", "slug": "chat", "units": "old-chat,old-linked", "files": "/opt/old"}
    before, lost = origins(fleet), digests(fleet)
    played = retire(fleet, **given)
    assert played.rc == 0, played.text
    left = origins(fleet)
    assert "old-chat" not in left and "/opt/old" not in left and "/srv/repo/old-linked.service" in left
    assert (
        fleet.run("systemctl show -p LoadState --value old-chat.service old-linked.service").split()
        == ["not-found"] * 2
    )
    assert digests(fleet) == lost
    assert retire(fleet, slug="chat", user="owner", restore=True).rc == 0
    assert origins(fleet) == before and fleet.start()["SubState"] == "running"
    assert fleet.run("systemctl is-enabled old-chat.service old-linked.service").split() == ["enabled", "linked"]
    taken = retire(fleet, **given)
    assert taken.rc == 0
    fleet.run("echo new >/etc/systemd/system/old-chat.service")
    played = retire(fleet, slug="chat", user="owner", restore=True)
    assert played.rc != 0 and "old-chat.service is there again" in played.error
    fleet.run("rm /etc/systemd/system/old-chat.service")
    assert retire(fleet, slug="chat", user="owner", restore=True).rc == 0


def test_a_unit_that_does_not_stop_in_time_is_named_and_comes_back(fleet):
    given = {"user": "owner", "slug": "slow", "units": "old-linked,old-stubborn,old-chat"}
    before = origins(fleet)
    played = retire(fleet, timeout=1, **given)
    assert played.rc != 0 and "old-stubborn.service did not stop" in played.error, played.text
    assert "stop-sigterm" in played.error and "pid " in played.error and "old-linked.service" in played.error
    assert "old-stubborn.service" in origins(fleet) and fleet.start()["SubState"] == "running"
    assert retire(fleet, slug="slow", user="owner", restore=True).rc == 0
    assert origins(fleet) == before
    fleet.run("timeout 15 bash -c 'until [ $(systemctl is-active old-stubborn) = active ]; do sleep 0.1; done'")


def test_a_user_manager_that_does_not_come_up_is_shown(fleet):
    fleet.run(
        "mkdir -p /etc/systemd/system/user@1600.service.d; useradd --create-home --uid 1600 broken;"
        "printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\n' >/etc/systemd/system/user@1600.service.d/20.conf;"
        "systemctl daemon-reload; loginctl enable-linger broken"  # answers 0, whatever becomes of it
    )
    played = retire(fleet, slug="x", user="broken", scope="user", units="nothing")
    assert played.rc != 0 and "manager of user broken does not answer" in played.error, played.text
    assert "user@1600.service" in played.error and "status=1/FAILURE" in played.error


def test_a_run_killed_in_the_middle_of_a_copy_is_finished_by_the_next(fleet):
    given = {"user": "owner", "slug": "crash", "units": "old-chat", "files": "/srv/other/payload"}
    shard, lost = "/srv/other/payload/shard.gguf", digests(fleet)
    digest = fleet.run(f"sha256sum {shard}").split()[0]
    meta = fleet.run(f"stat -c '%a %U:%G %y' {shard}")

    def kill_midway(restore):
        folder = "/home/owner/.AGENTTRASH" if not restore else "/srv/other"
        # The lock tells which process it is; no other has that file open for long.
        fleet.when(
            f"find {folder} -name '.llm-fleet-shard.gguf.partial' -size +20M 2>/dev/null | grep -q .",
            "kill -9 $(grep -o '[0-9]*' /run/llm-fleet-retire-owner.lock | head -n1)",
        )
        played = retire(fleet, restore=restore, **given)
        assert played.rc != 0, played.text
        assert fleet.run(f"find {folder} -name '.llm-fleet-shard.gguf.partial'").strip(), played.text

    kill_midway(False)
    assert fleet.run(f"sha256sum {shard}").split()[0] == digest and digests(fleet) == lost
    played = retire(fleet, **given)
    assert played.rc == 0 and played.recap["changed"] == 1, played.text
    moved = fleet.run("ls -d /home/owner/.AGENTTRASH/*-crash").strip() + shard
    assert fleet.run(f"sha256sum {moved}").split()[0] == digest
    assert fleet.run(f"stat -c '%a %U:%G %y' {moved}") == meta and digests(fleet) == lost
    assert (
        fleet.run("test -e /srv/other/payload || echo gone; find /home/owner/.AGENTTRASH -name '*.partial'") == "gone\n"
    )

    kill_midway(True)
    assert fleet.run(f"sha256sum {moved}").split()[0] == digest and digests(fleet) == lost
    started = time.monotonic()
    played = retire(fleet, restore=True, **given)
    assert played.rc == 0, played.text
    print(f"finishing the restore took {time.monotonic() - started:.1f} s")
    assert fleet.run(f"sha256sum {shard}").split()[0] == digest
    assert fleet.run(f"stat -c '%a %U:%G %y' {shard}") == meta and digests(fleet) == lost
    assert fleet.start()["SubState"] == "running" and fleet.run("find /srv/other -name '*.partial'") == ""
