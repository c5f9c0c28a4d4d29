# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference pages that are not of a plugin: playbooks, env keys, gates, faults, the shim, the inventory."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from docs_markdown import COLLECTION, NOTE, table
from meanings import MEANINGS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec, _inventory_schema  # noqa: E402
from ansible_collections.dank.llm_fleet.plugins.module_utils._gates import GATES  # noqa: E402


def header(path: Path) -> tuple[list[str], list[str]]:
    """A playbook's leading comment: sentences, and the commands that it shows."""
    sentences, commands = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line == "---":
            continue
        if not line.startswith("#"):
            break
        text = line.lstrip("# ").rstrip()
        (commands if text.startswith("ansible-playbook") else sentences).append(re.sub(r"( {2,})(?=\S)", r"\1# ", text))
    return sentences, commands


def playbooks() -> list[Path]:
    """The collection's playbooks."""
    return sorted((ROOT / "playbooks").glob("*.yml"))


def playbooks_page() -> str:
    """What each playbook does, is called with and consists of."""
    parts = [NOTE, "# Playbooks\n", "Each also runs from an installed collection, as `dank.llm_fleet.NAME`."]
    parts.append("Long work tells its progress; `-e llm_progress=false` keeps that off the screen.\n")
    for path in playbooks():
        sentences, commands = header(path)
        parts += [f"## {path.stem}\n", " ".join(sentences) + "\n", "```sh\n" + "\n".join(commands) + "\n```\n"]
        rows = []
        for play in yaml.safe_load(path.read_text(encoding="utf-8")):
            if "ansible.builtin.import_playbook" in play:
                target = play["ansible.builtin.import_playbook"].rsplit(".", 1)[1]
                rows.append([play["name"], f"the playbook [{target}](#{target})", ""])
                continue
            tags = play.get("tags", [])
            rows.append([play["name"], f"hosts `{play['hosts']}`", ", ".join(f"`{tag}`" for tag in tags)])
            for task in (task for each in play["tasks"] for task in each.get("block", [each])):
                did = next((key for key in task if key.count(".") >= 2), "")
                if did.endswith(("import_role", "include_role")):
                    role = task[did]["name"].rsplit(".", 1)[1]
                    did = f"role [{role}](roles/{role}.md)"
                elif did.startswith(COLLECTION):
                    module = did.rsplit(".", 1)[1]
                    did = f"[`{module}`](modules/{module}.md)"
                else:
                    did = f"`{did}`"
                rows.append(["&emsp;" + task["name"], did, ", ".join(f"`{tag}`" for tag in task.get("tags", []))])
        parts.append(table(("Play, and its tasks", "What runs", "Tags"), rows))
    return "\n".join(parts)


def env_page() -> str:
    """The env keys of every engine."""
    parts = [
        NOTE,
        "# Env keys\n",
        "An endpoint's `env:` holds these keys. They become, one to one, the lines of its env file. A key that is not "
        "here is refused everywhere: in the inventory, in the file on the host, in the launcher.\n",
        "*Absent* and *empty* differ. An absent key leaves the choice to the engine. An empty value opts out, and is "
        "taken only where the column *Empty means* says so.\n",
    ]
    for engine in _envspec.ENGINES:
        rows = []
        for key in _envspec.keys(engine).values():
            flags = " / ".join(f"`{flag}`" for flag in (key.flag, key.off) if flag)
            meaning = key.meaning + (f" ({key.note})" if key.note else "") + "."
            if key.group:
                meaning += f" Only with {'a drafting' if key.group == 'draft' else 'an n-gram'} `SPEC_TYPE`."
            needed = (" *derived*" if key.note.startswith("derived") else " **required**") if key.required else ""
            values = re.sub(r"like (\S+)$", r"like `\1`", key.values)
            rows.append([f"`{key.name}`{needed}", values, flags or "-", key.empty or "-", meaning])
        parts += [f"## Engine {engine}\n", table(("Key", "Value", "Flag", "Empty means", "Meaning"), rows)]
    return "\n".join(parts)


def field_table(title: str, fields: Mapping[str, Any], *, within: bool = False) -> str:
    """The keys of one of the schema's dictionaries. ``within``: the table may hold but some of the texts' keys."""
    texts = MEANINGS[title]
    if set(fields) - set(texts) or (not within and set(texts) - set(fields)):
        raise SystemExit(f"error: MEANINGS[{title!r}] and the schema differ: {sorted(set(texts) ^ set(fields))}")
    rows = [
        [f"`{name}`{' **required**' if field.required else ''}", field.expected, texts[name] + "."]
        for name, field in fields.items()
    ]
    return table(("Key", "Value", "Meaning"), rows)


def gates_page() -> str:
    """The gates of a deploy, in their order."""
    rows = [[gate.name, gate.checks, gate.serving] for gate in GATES]
    return (
        "# Gates\n\n"
        "A deploy passes these in this order. The first that is red stops it; none can be left out. The last run's\n"
        "way through them, with seconds, is in `/var/lib/llm-fleet/NAME/last-run.json` on the host; of a red gate\n"
        "also `gate`, `error`, `went_back_to`, and `serves`, what is there now. A run that had nothing to do, or only\n"
        "looked, leaves none.\n"
        "What to do: [read a failed gate](../how-to/read-a-failed-gate.md).\n\n"
        + table(["Gate", "It is green when", "Red: what serves"], rows)
    )


_THEN = {
    "stays": "what served, untouched",
    "back": "the last certified era, started again",
    "nothing": "nothing: a first deploy, taken away again",
    "repaired": "healed by the next run of `site.yml`",
    "refused": "as found; the next run of `site.yml` is red at the gate {refused_by} until the fault is taken away",
}


def faults_page() -> str:
    """The faults that the scenario of that name injects, with the seconds that it measured last."""
    folder = ROOT / "molecule" / "faults" / "data"
    faults = yaml.safe_load((folder / "faults.yml").read_text(encoding="utf-8"))
    measured = yaml.safe_load((folder / "measured.yml").read_text(encoding="utf-8"))
    seconds = measured["seconds"]
    differing = {each["id"] for each in faults} ^ set(seconds)
    if differing:
        raise SystemExit(
            f"error: molecule/faults/data/measured.yml lacks, or has too many: {', '.join(sorted(differing))}. "
            "Run LLM_FLEET_RECORD=1 molecule test -s faults"
        )
    links = [each for each in faults if "link" in each]
    first = [each for each in faults if each.get("second") and each["then"] == "nothing"]
    before = [each for each in faults if each not in links and each["then"] == "stays"]
    after = [each for each in faults if each not in links and each["then"] == "back"]

    def rows(chosen: Sequence[Mapping[str, Any]]) -> str:
        told = []
        for each in chosen:
            gate = f"`{each['link']}`" if "link" in each else each["gate"]
            says = ", ".join(f"`{words}`" for words in each["says"])
            then = _THEN[each["then"]].format_map(each)
            took = seconds[each["id"]]
            told.append([each["fault"], gate, says, then, "not measured yet" if took is None else f"{took:.1f}"])
        column = "Link of truth" if chosen is links else "Gate"
        return table(("Fault", column, "The message has", "What serves then", "Seconds"), told)

    return "\n".join(
        [
            NOTE,
            "# Faults\n",
            f"{len(faults)} faults are injected into a real systemd host with a real `llama-server` and a small model "
            "by `molecule test -s faults`. Each must be caught where the table says, with a message that has these "
            "words, and afterwards the endpoint must be whole and its model answer.\n",
            "Seconds are those from the beginning of the module's run on the host until the fault is known, measured "
            f"on {measured['at']} on two cores that were busy otherwise; a playbook adds its own. What to do: [read a "
            "failed gate](../how-to/read-a-failed-gate.md).\n",
            "## Before the cut-over\n",
            rows(before),
            "## At the cut-over and after it\n",
            rows(after),
            "## At a first deploy\n",
            rows(first),
            "## While it serves\n",
            "Found by `verify.yml`, and by the next run of `site.yml`.\n",
            rows(links),
        ]
    )


def shim_page() -> str:
    """The laws of the docker shim, from itself."""
    path = ROOT / "roles/r9v/files/docker"  # a program, and no module that could be imported
    shim = types.ModuleType("docker_shim")
    sys.modules["docker_shim"] = shim
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), shim.__dict__)
    return "\n".join(
        [
            NOTE,
            "# The docker shim's laws\n",
            "What docker does, what podman 5.4 does, and what the shim does. `docker shim --laws` prints this, "
            f"`{shim.OFF_VARIABLE}=law,law` leaves laws out. "
            "How to: [use the docker shim](../how-to/use-the-docker-shim.md).\n",
            table(("Law", "docker", "podman", "The shim"), shim.laws_table()),
        ]
    )


def inventory_page() -> str:
    """The four dictionaries, from the schema."""
    schema = _inventory_schema
    parts = [
        NOTE,
        "# Inventory\n",
        "Four dictionaries say everything. `llm_runtimes` and `llm_payloads` (with `llm_payload_locks`) are usually "
        "shared by all hosts (`group_vars/all`), `llm_endpoints` and `llm_cards` belong to one host (`host_vars`). "
        "Hosts with endpoints are in the group `llm`. An unknown key is an error.\n",
        f"A size or digest that nobody knows yet may be `{schema.UNKNOWN}`: that validates with a warning, and cannot "
        "be deployed.\n",
        "## llm_runtimes\n",
        "Name of the runtime to:\n",
        field_table("RUNTIME", schema.RUNTIME),
        "### toolkit\n",
        field_table("TOOLKIT", schema.TOOLKIT),
        "### proof\n",
        field_table("PROOF", schema.PROOF),
        "### source\n",
        "Has a `kind`, and the keys of that kind:\n",
    ]
    for kind in schema.SOURCES:
        parts += [f"#### kind: {kind}\n", field_table("SOURCES", schema.SOURCES[kind], within=True)]
    parts += ["## llm_payloads\n", "Name of the payload to:\n", field_table("PAYLOAD", schema.PAYLOAD)]
    parts += ["### files\n", field_table("FILE", schema.FILE)]
    parts += [
        "## llm_payload_locks\n",
        "Written by `playbooks/lock.yml` ([pin models](../how-to/pin-models.md)). Name of the payload, then name of "
        "the file, to:\n",
        field_table("LOCK", schema.LOCK),
        "## llm_endpoints\n",
        "Name of the endpoint, which is also its unit's, to:\n",
        field_table("ENDPOINT", schema.ENDPOINT),
        "### client\n",
        field_table("CLIENT", schema.CLIENT),
        "### probes\n",
        "How to declare them: [declare probes](../how-to/declare-probes.md).\n",
        field_table("PROBES", schema.PROBES),
        "#### probes.acceptance\n",
        field_table("ACCEPTANCE", schema.ACCEPTANCE),
        "#### probes.adapter\n",
        field_table("ADAPTER", schema.ADAPTER),
        "#### probes.custom\n",
        field_table("CUSTOM", schema.CUSTOM),
        "### setups\n",
        "Of an R9V endpoint ([deploy one](../how-to/deploy-r9v.md)). Name of the setup to:\n",
        field_table("SETUP", schema.SETUP),
        "#### setups.qualify\n",
        "How to: [qualify a profile](../how-to/qualify-a-profile.md).\n",
        field_table("QUALIFY", schema.QUALIFY),
        "### replaces\n",
        "How retiring goes: [retire old units](../how-to/retire-old-units.md). A deploy does not act on it yet.\n",
        field_table("REPLACES", schema.REPLACES),
        "### measured\n",
        field_table("MEASURED", schema.MEASURED),
        "## llm_cards\n",
        "Name of the card to:\n",
        field_table("CARD", schema.CARD),
    ]
    return "\n".join(parts)
