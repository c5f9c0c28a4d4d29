# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""_inventory: the shipped inventories are sound, and each way to break one is told by host, entry and key."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory import validate
from ansible_collections.dank.llm_fleet.plugins.module_utils._lock import wanted
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("llm_runtimes", "llm_payloads", "llm_endpoints", "llm_cards")
SHIPPED = [("sandbox", "sandbox"), ("production", "dankserver"), ("production", "dankclaw")]


def shipped(inventory, host):
    """The four dictionaries as Ansible reads them."""
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(ROOT / "inventories" / inventory)])
    variables = VariableManager(loader=loader, inventory=manager).get_vars(host=manager.get_host(host))
    return {name: variables[name] for name in TABLES}


def judge(tables, host="box"):
    return validate(host, *(tables[name] for name in TABLES))


@pytest.mark.parametrize(("inventory", "host"), SHIPPED)
def test_the_shipped_inventories_are_sound(inventory, host):
    verdict = judge(shipped(inventory, host), host)
    assert verdict.problems == []
    assert all(text.startswith(f"{host}: ") for text in verdict.warnings)
    assert (verdict.warnings == []) == (inventory == "sandbox")


def test_what_is_weak_in_production_is_told():
    warnings = "\n".join(judge(shipped("production", "dankclaw"), "dankclaw").warnings)
    assert "Ternary-Bonsai-2-9B-PQ2_0-MTP-Q8_0.gguf (a prefix)" in warnings and "llm_cards.rtx3090" in warnings
    warnings = "\n".join(judge(shipped("production", "dankserver"), "dankserver").warnings)
    assert "mmproj-BF16.gguf (unknown)" in warnings and "40 digits" in warnings
    assert "frank-primary.env: R9V_DEV_QWEN4_EXP_ADAPTER_PY, R9V_CHAT_TEMPLATE_FILE unknown, so that" in warnings
    assert "bonsai2-9b" not in warnings  # another host's, and known by prefixes


@pytest.mark.parametrize("host", ["dankserver", "dankclaw"])
def test_a_payload_that_is_kept_as_a_way_back_is_warned_of(host):
    warnings = [text for text in judge(shipped("production", host), host).warnings if "bonsai2-27b-ptq1" in text]
    assert warnings == [
        f"{host}: llm_payloads.bonsai2-27b-ptq1: no endpoint of this host names it, "
        "and 1 of its 1 files have an unknown size, sha256 or revision"
    ]


def test_what_the_hub_is_asked_of_production():
    wants = wanted([shipped("production", "dankserver")["llm_payloads"]])
    assert {(want.payload, want.asked.repo, want.asked.revision) for want in wants} == {
        ("swift-qwen38-27b-q8kxl", "ajgazin/Swift-Qwen3.8-27B-Uncensored-Dynamic-MTP-GGUF", "main"),
        ("qwen38-flash-next-q8", "unsloth/Qwen3.8-Flash-Next-GGUF", "main"),
    }
    assert len(wants) == 7


def fleet():
    """A sound inventory of two cards and three endpoints, two of them active."""
    file = {"name": "m.gguf", "role": "model", "bytes": 10, "sha256": "a" * 64, "urls": ["file:///m.gguf"]}
    env = {
        "BIND_ADDR": "0.0.0.0",
        "LISTEN_PORT": 7770,
        "ALIAS": "one",
        "CTX_SIZE": 8192,
        "PARALLEL": 2,
        "HIP_VISIBLE_DEVICES": "0",
    }
    one = {
        "engine": "llamacpp",
        "active": True,
        "runtime": "built",
        "payload": "small",
        "env": env,
        "rungs": {"one_slot": {"PARALLEL": 1}},
        "cards": ["left"],
        "client": {"context_window": 4096, "max_tokens": 1024},
    }
    figures = {
        "name": "Monday",
        "env": {"UBATCH_SIZE": 256},
        "cards": {"left": {"driver_mib": 300, "compute_mib": 0.5}},
    }
    two = copy.deepcopy(one)
    two["env"].update(LISTEN_PORT=7771, HIP_VISIBLE_DEVICES="1", ALIAS="two")
    two["cards"] = ["right"]
    one["measured"] = [figures, {"runtime": "built", "payload": "small", "cards": {"left": {"total_mib": 9000}}}]
    three = {
        "engine": "r9v",
        "active": False,
        "runtime": "image",
        "payload": "small",
        "env": {
            "R9V_STATE_FILE": "/s.json",
            "R9V_HOST_BIND": "0.0.0.0",
            "R9V_HOST_PORT": 7770,
            "R9V_SERVED_MODEL_NAME": "three",
            "R9V_CONTAINER_NAME": "three",
            "R9V_EXPECTED_GPU_BDFS": "0000:03:00.0,0000:07:00.0",
        },
        "cards": ["left", "right"],
    }
    card = {
        "vendor": "amd",
        "arch": "gfx1201",
        "pci": "0000:03:00.0",
        "index": 0,
        "total_mib": 32624,
        "floor_mib": 1536,
    }
    source = {"kind": "archive", "urls": ["file:///s.tar.gz"], "sha256": "b" * 64, "subdir": "x"}
    return {
        "llm_runtimes": {
            "built": {"engine": "llamacpp", "version": "1", "source": source, "cmake": {}, "targets": ["llama-server"]},
            "image": {"engine": "r9v", "source": {"kind": "bundle", "image": "x", "sha256_prefix": "2dac17a2"}},
        },
        "llm_payloads": {"small": {"dir": "/m", "files": [file]}},
        "llm_endpoints": {"one": one, "two": two, "three": three},
        "llm_cards": {"left": card, "right": {**card, "pci": "0000:07:00.0", "index": 1}},
    }


def test_the_fleet_to_break_is_sound():
    verdict = judge(fleet())
    assert verdict.problems == []
    assert verdict.warnings == ["box: llm_runtimes.image.source: of the sha256 only a prefix is declared"]


GONE = object()
ONE = "llm_endpoints.one"
CUSTOM = {"name": "a", "body": {"messages": [{"role": "user", "content": "?"}]}, "expect": "choices[0]"}
BREAKAGES = [
    (f"{ONE}.colour", "red", "llm_endpoints.one.colour is no key"),
    (f"{ONE}.runtimes", "built", "Did you mean runtime?"),
    (f"{ONE}.engine", "ollama", "llm_endpoints.one.engine is 'ollama'; expected one of llamacpp, r9v"),
    (f"{ONE}.env", GONE, "llm_endpoints.one.env is missing"),
    (f"{ONE}.active", "yes", "llm_endpoints.one.active is 'yes'; expected true or false"),
    (f"{ONE}.runtime", "bilt", "runtime 'bilt' is not declared in llm_runtimes. Did you mean built?"),
    (f"{ONE}.payload", "large", "payload 'large' is not declared"),
    (f"{ONE}.runtime", "image", "llm_endpoints.one.engine is llamacpp, and its runtime image is r9v"),
    (f"{ONE}.cards", ["middle"], "llm_endpoints.one.cards names 'middle'"),
    (f"{ONE}.env.KV_CACHE_TYPE", "f16", "llm_endpoints.one.env: KV_CACHE_TYPE is no key"),
    (f"{ONE}.env.CTX_SIZE", "8k", "llm_endpoints.one.env: CTX_SIZE is '8k'"),
    (f"{ONE}.env.PARALLEL", 3, "llm_endpoints.one.env: CTX_SIZE 8192 is not divisible by PARALLEL 3"),
    (
        f"{ONE}.env.CHAT_TEMPLATE_FILE",
        "unknwon",
        "CHAT_TEMPLATE_FILE is 'unknwon'; expected an absolute path, or unknown",
    ),
    (f"{ONE}.env.SERVER_BIN", "unknown", "SERVER_BIN is 'unknown'; expected an absolute path"),
    (f"{ONE}.env.CTX_SIZE", "unknown", "llm_endpoints.one.env: CTX_SIZE is 'unknown'"),
    (f"{ONE}.env.ALIAS", GONE, "llm_endpoints.one.env: ALIAS is missing"),
    (f"{ONE}.env.LORA_FILE", "l.gguf", "LORA_FILE names a file that is no lora of the payload"),
    (f"{ONE}.env.SPEC_TYPE", "draft-dflash", "SPEC_TYPE draft-dflash"),
    (f"{ONE}.env.LISTEN_PORT", 7771, "one and two are both active on port 7771"),
    (f"{ONE}.env.HIP_VISIBLE_DEVICES", "0,1", "HIP_VISIBLE_DEVICES is '0,1'; expected '0'"),
    (f"{ONE}.env.HIP_VISIBLE_DEVICES", GONE, "HIP_VISIBLE_DEVICES is missing: an iGPU"),
    (f"{ONE}.env.CUDA_VISIBLE_DEVICES", "0", "CUDA_VISIBLE_DEVICES is '0'; expected ''"),
    (f"{ONE}.cards", ["right"], "one and two are both active on card right"),
    (f"{ONE}.rungs.one_slot", {"PARALEL": 1}, "llm_endpoints.one.rungs.one_slot: PARALEL is no key"),
    (f"{ONE}.rungs.one_slot", {"PARALLEL": 5}, "llm_endpoints.one.rungs.one_slot: CTX_SIZE 8192 is not divisible"),
    (f"{ONE}.rungs.one_slot", {}, "llm_endpoints.one.rungs.one_slot is {}"),
    (f"{ONE}.rungs.short", {"CTX_SIZE": 4096}, "llm_endpoints.one.rungs.short leaves a slot 2048 tokens"),
    (f"{ONE}.client.context_window", 8192, "llm_endpoints.one.client.context_window is 8192, and a slot holds 4096"),
    (f"{ONE}.client.context_window", GONE, "llm_endpoints.one.client.context_window is missing"),
    (f"{ONE}.client.max_tokens", 5000, "max_tokens 5000 exceeds context_window 4096"),
    (f"{ONE}.client.rungs", {"one_slot": 4096}, "client.rungs.one_slot is 4096, and a slot holds 8192"),
    (f"{ONE}.client.rungs", {"none": 4096}, "client.rungs.none names no rung"),
    (f"{ONE}.measured", [], "llm_endpoints.one.measured is []; expected a list of dictionaries"),
    (f"{ONE}.measured.0.figures", {}, "llm_endpoints.one.measured[Monday].figures is no key"),
    (f"{ONE}.measured.0.cards", GONE, "llm_endpoints.one.measured[Monday].cards is missing"),
    (f"{ONE}.measured.0.runtime", "bilt", "measured[Monday].runtime 'bilt' is not declared in llm_runtimes. Did you"),
    (f"{ONE}.measured.0.payload", "large", "measured[Monday].payload 'large' is not declared in llm_payloads"),
    (f"{ONE}.measured.0.cards", {}, "measured[Monday].cards: cards; expected figures of at least one card"),
    (f"{ONE}.measured.0.cards.left", {}, "measured[Monday].cards: card left; expected at least one of compute_mib"),
    (f"{ONE}.measured.0.cards.left", {"driver": 1}, "measured[Monday].cards: card left; expected compute_mib, draft"),
    (f"{ONE}.measured.0.cards.left.driver_mib", "1", "card left: driver_mib; expected a number of MiB; found '1'"),
    (f"{ONE}.measured.0.cards.left.driver_mib", -1, "card left: driver_mib; expected a number of MiB; found -1"),
    (f"{ONE}.measured.0.cards.middle", {"driver_mib": 1}, "measured[Monday].cards names 'middle', which llm_cards"),
    (f"{ONE}.measured.0.env", {"NLG": 1}, "llm_endpoints.one.measured[Monday].env: NLG is no key"),
    (f"{ONE}.measured.0.env", {"PARALLEL": 3}, "measured[Monday].env: CTX_SIZE 8192 is not divisible by PARALLEL 3"),
    (f"{ONE}.measured.0.env", {"LORA_FILE": "l.gguf"}, "measured[Monday].env: LORA_FILE names a file that is no"),
    ("llm_runtimes.built.ggml_types", [141, "142"], "built.ggml_types is [141, '142']; expected a list of whole"),
    ("llm_runtimes.built.ggml_types", [True], "llm_runtimes.built.ggml_types is [True]"),
    (
        "llm_runtimes.built.can",
        {"adapter_versions": {"x": 2}},
        "a dictionary, whose adapter_versions has a list of whole",
    ),
    ("llm_runtimes.built.can", {"adapter_versions": [2]}, "llm_runtimes.built.can is {'adapter_versions': [2]}"),
    ("llm_runtimes.built.arch", "sm86", "llm_runtimes.built.arch is 'sm86'; expected one card's architecture"),
    ("llm_runtimes.built.state", "absent", "llm_endpoints.one.runtime built is absent in llm_runtimes"),
    ("llm_runtimes.built.toolkit", {"pth": "/x"}, "llm_runtimes.built.toolkit.pth is no key"),
    ("llm_runtimes.built.proof", {"rpat": "x"}, "llm_runtimes.built.proof.rpat is no key"),
    ("llm_runtimes.built.proof", {"without_keys": ["NO"]}, "llm_runtimes.built.proof.without_keys; expected keys of"),
    ("llm_runtimes.built.proof", {"without_keys": ["PARALLEL"]}, "one.env.PARALLEL: runtime built has no flag for it"),
    (f"{ONE}.replaces", {"user": "dank", "unit": ["a"]}, "llm_endpoints.one.replaces.unit is no key"),
    (f"{ONE}.replaces", {"units": ["a"]}, "llm_endpoints.one.replaces.user is missing"),
    (f"{ONE}.replaces", {"user": "dank", "units": []}, "llm_endpoints.one.replaces names nothing"),
    (f"{ONE}.replaces", {"user": "dank", "units": ["a"], "slug": "../x"}, "replaces.slug is '../x'; expected letters"),
    (f"{ONE}.replaces", {"user": "dank", "units": ["a"], "scope": "both"}, "replaces.scope is 'both'; expected one of"),
    (f"{ONE}.probes", {"max_token": 1}, "llm_endpoints.one.probes.max_token is no key"),
    (f"{ONE}.probes", [], "llm_endpoints.one.probes is []; expected a dictionary"),
    (f"{ONE}.probes", {"capabilities": ["tool"]}, "probes.capabilities is ['tool']; expected a list of health"),
    (f"{ONE}.probes", {"without": ["chat"]}, "probes.without is ['chat']"),
    (f"{ONE}.probes", {"capabilities": ["tools"], "without": ["tools"]}, "tools in capabilities and in without"),
    (f"{ONE}.probes", {"acceptance": {"drafting": 2}}, "acceptance.drafting is 2; expected a number from 0 to 1"),
    (f"{ONE}.probes", {"adapter": {"prompt": "Do you?"}}, "probes.adapter.marker is missing"),
    (f"{ONE}.probes", {"larger_max_tokens": 8}, "larger_max_tokens 8 is below max_tokens 64"),
    (f"{ONE}.probes", {"custom": [{"name": "a", "body": {}}]}, "probes.custom[a].expect is missing"),
    (f"{ONE}.probes", {"custom": [CUSTOM | {"body": {}}]}, "probes.custom[a].body.messages is None"),
    (f"{ONE}.probes", {"custom": [CUSTOM | {"expect": "a[["}]}, "probes.custom[a].expect is no JMESPath expression"),
    (f"{ONE}.probes", {"custom": [CUSTOM | {"expect": []}]}, "probes.custom[a].expect is []"),
    (f"{ONE}.probes", {"custom": [CUSTOM, CUSTOM]}, "probes.custom names a twice"),
    ("llm_endpoints.Big One", {}, "llm_endpoints.Big One: the name is also a unit's"),
    ("llm_endpoints.three.active", True, "one and three are both active on port 7770"),
    ("llm_endpoints.three.cards", ["right", "left"], "R9V_EXPECTED_GPU_BDFS is 0000:03:00.0,0000:07:00.0; expected"),
    ("llm_endpoints.three.env.R9V_VISIBLE_DEVICES", "1,0", "R9V_VISIBLE_DEVICES is '1,0'; expected '0,1'"),
    ("llm_endpoints", [], "llm_endpoints is list; expected a dictionary"),
    ("llm_endpoints.one", "x", "llm_endpoints.one is str"),
    ("llm_payloads.small.files", [], "llm_payloads.small.files is []"),
    ("llm_payloads.small.dir", "models", "llm_payloads.small.dir is 'models'; expected an absolute path"),
    ("llm_payloads.small.files.0.sha256", "abc", "llm_payloads.small.files[m.gguf].sha256 is 'abc'; expected 64"),
    ("llm_payloads.small.files.0.sha256", GONE, "llm_payloads.small.files[m.gguf] has no digest"),
    ("llm_payloads.small.files.0.sha256_prefix", "c" * 16, "sha256 and sha256_prefix"),
    ("llm_payloads.small.files.0.bytes", 0, "llm_payloads.small.files[m.gguf].bytes is 0"),
    ("llm_payloads.small.files.0.name", "../m.gguf", "expected a plain file name"),
    ("llm_payloads.small.files.0.role", "weights", "role is 'weights'"),
    ("llm_runtimes.built.source.kind", "zip", "llm_runtimes.built.source.kind is 'zip'"),
    ("llm_runtimes.built.source.sha265", "b" * 64, "Did you mean sha256?"),
    ("llm_runtimes.built.source.urls", GONE, "llm_runtimes.built.source.urls is missing"),
    ("llm_runtimes.built.source", GONE, "llm_runtimes.built.source is missing"),
    ("llm_runtimes.built.target", ["x"], "Did you mean targets?"),
    ("llm_cards.left.pci", "03:00.0", "llm_cards.left.pci is '03:00.0'"),
    ("llm_cards.left.pci", GONE, "llm_cards.left has neither pci nor uuid"),
    ("llm_cards.left.addressable_mib", 40000, "addressable_mib 40000 exceeds total_mib 32624"),
    ("llm_cards.left.floor_mib", 32624, "leaves nothing of the card"),
    ("llm_cards.left.vendor", "intel", "llm_cards.left.vendor is 'intel'"),
]


def broken(path, value):
    tables = fleet()
    here = tables
    *way, last = path.split(".")
    for step in way:
        here = here.setdefault(step, {}) if isinstance(here, dict) else here[int(step)]
    if value is GONE:
        del here[last]
    else:
        here[last] = value
    return tables


@pytest.mark.parametrize(("path", "value", "words"), BREAKAGES)
def test_each_breakage_is_told(path, value, words):
    problems = judge(broken(path, value)).problems
    assert any(words in text for text in problems), problems
    assert all(text.startswith("box: llm_") for text in problems)
    assert all(text.endswith((".", "?")) for text in problems), problems


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{ONE}.measured.0.name", GONE),
        (f"{ONE}.measured.0.env", GONE),
        (f"{ONE}.measured.0.env", {"UBATCH_SIZE": 128}),
        (f"{ONE}.measured.0.cards.host", {"compute_mib": 9}),
        ("llm_runtimes.built.ggml_types", [141, 142]),
        ("llm_runtimes.built.ggml_types", []),
        ("llm_runtimes.built.can", {"adapter_versions": {"x": [1, 2]}, "more": 1}),
        ("llm_runtimes.built.arch", "gfx1201"),
        ("llm_runtimes.built.state", "present"),
        ("llm_runtimes.built.proof", {"system_libs": ["libx.so.*"], "without_keys": ["METRICS"]}),
        ("llm_runtimes.built.can", {"adapters": ["lora"]}),
    ],
)
def test_what_may_be_left_out_or_given(path, value):
    assert judge(broken(path, value)).problems == []


def test_each_measured_entry_has_one_problem_for_one_fault():
    faults = [path for path in BREAKAGES if ".measured" in path[0]]
    assert [len(judge(broken(path, value)).problems) for path, value, _words in faults] == [1] * len(faults)


FILE_OF_NO_NAME = {"name": "unknown", "role": "mmproj", "bytes": "unknown", "sha256": "unknown"}
HUB_FILE = {"name": "m.gguf", "role": "model", "repo": "me/chat"}
FILE_LOCK = {"bytes": 10, "sha256": "a" * 64, "revision": "1" * 40, "of": "me/chat@main:m.gguf"}


def locked(file, locks=None):
    """The verdict on a fleet whose one file is ``file``, without what it says of the runtimes."""
    tables = broken("llm_payloads.small.files", [file])
    locks = {"small": {"m.gguf": FILE_LOCK}} if locks is None else locks
    verdict = validate("box", *(tables[name] for name in TABLES), locks)
    return verdict.problems, [text for text in verdict.warnings if "llm_runtimes" not in text]


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"bytes": "unknown", "sha256": "unknown", "revision": "unknown"},
        {"sha256_prefix": "a" * 8, "revision": "main"},
    ],
)
def test_what_a_lock_supplies_need_not_be_declared(declared):
    assert locked(HUB_FILE | declared) == ([], [])


@pytest.mark.parametrize(
    ("declared", "locks", "problem"),
    [
        ({"bytes": 11}, None, "payload small: file 'm.gguf': bytes; expected 11, as declared; found 10"),
        ({"sha256_prefix": "b" * 8}, None, "sha256; expected bbbbbbbb..., as declared; found aaaa"),
        ({"repo": "you/chat"}, None, "is locked as another file"),
        ({}, {"small": {"m.gguf": {}}}, "llm_payload_locks.small.m.gguf.bytes is missing"),
        ({}, ["x"], "llm_payload_locks; expected a dictionary; found list"),
        (
            {},
            {},
            "files[m.gguf].bytes is missing; expected a whole number of at least 1, or unknown. Run playbooks/lock",
        ),
        ({}, {}, "files[m.gguf].revision is missing; expected a commit, a tag or a branch. Run playbooks/lock.yml"),
        ({}, {}, "files[m.gguf] has no digest"),
        ({"repo": "https://hub/me/chat"}, {}, ".repo is 'https://hub/me/chat'; expected a repository of the hub"),
        ({"repo": "me/.."}, {}, "repo, revision or file is malformed"),
        ({"revision": 1234567}, {}, ".revision is 1234567; expected text"),
    ],
)
def test_locks_and_what_they_would_have_supplied_are_judged(declared, locks, problem):
    found, _warnings = locked(HUB_FILE | declared, locks)
    assert [text for text in found if problem in text], found


def test_an_unknown_that_is_not_locked_is_weak():
    file = HUB_FILE | {"bytes": 10, "sha256": "a" * 64, "revision": "unknown"}
    assert locked(file, {}) == ([], ["box: llm_payloads.small: no full size, sha256 and revision for m.gguf (unknown)"])


@pytest.mark.parametrize(
    ("path", "where"), [(f"{ONE}.env.CHAT_TEMPLATE_FILE", "env"), (f"{ONE}.rungs.sharp", "rungs.sharp")]
)
def test_an_unknown_path_of_the_env_is_weak(path, where):
    value = "unknown" if where == "env" else {"CHAT_TEMPLATE_FILE": "unknown"}
    verdict = judge(broken(path, value))
    assert verdict.problems == []
    words = f"box: {ONE}.{where}: CHAT_TEMPLATE_FILE unknown, so that nothing can be deployed with it"
    assert [text for text in verdict.warnings if ONE in text] == [words]


def test_a_name_that_is_text_may_be_unknown():
    assert judge(broken(f"{ONE}.env.ALIAS", "unknown")).warnings == judge(fleet()).warnings


@pytest.mark.parametrize(
    ("file", "warned"),
    [
        ({"sha256": "unknown"}, "1 of its 2 files have an unknown size, sha256 or revision"),
        ({"name": "unknown", "bytes": "unknown"}, "1 of its 2 files have an unknown size, sha256 or revision"),
        ({}, ""),
    ],
)
def test_of_a_payload_that_nobody_uses_the_unknown_is_weak_and_a_prefix_is_not(file, warned):
    tables = fleet()
    known = tables["llm_payloads"]["small"]["files"][0]
    part = {key: value for key, value in known.items() if key != "sha256"} | {"sha256_prefix": "a" * 8}
    files = [part, known | {"name": "n.gguf"} | file]
    tables["llm_payloads"]["spare"] = {"dir": "/s", "files": files}
    verdict = judge(tables)
    assert verdict.problems == []
    found = [text for text in verdict.warnings if "spare" in text]
    assert found == ([f"box: llm_payloads.spare: no endpoint of this host names it, and {warned}"] if warned else [])


def test_a_file_whose_name_is_unknown_is_told_by_its_role():
    files = fleet()["llm_payloads"]["small"]["files"]
    verdict = judge(broken("llm_payloads.small.files", [*files, FILE_OF_NO_NAME]))
    assert "box: llm_payloads.small: no full size, sha256 and revision for the mmproj (unknown)" in verdict.warnings


def test_all_problems_come_at_once():
    tables = fleet()
    tables["llm_endpoints"]["one"]["env"].update(PARALLEL=3, METRIC=1, TOP_P=7)
    tables["llm_endpoints"]["two"]["runtime"] = "nowhere"
    tables["llm_cards"]["left"]["pci"] = "x"
    problems = "\n".join(judge(tables).problems)
    for word in ("not divisible", "METRIC is no key", "TOP_P is '7'", "'nowhere'", "llm_cards.left.pci"):
        assert word in problems


def test_a_fault_is_told_once_and_not_again_by_every_rung():
    tables = fleet()
    tables["llm_endpoints"]["one"]["env"]["METRIC"] = 1
    assert len(judge(tables).problems) == 1


def test_a_shared_card_may_serve_two():
    tables = broken(f"{ONE}.cards", ["right"])
    tables["llm_endpoints"]["one"]["env"]["HIP_VISIBLE_DEVICES"] = "1"
    assert len(judge(tables).problems) == 1
    tables["llm_cards"]["right"]["shared"] = True
    assert judge(tables).problems == []


def test_a_rung_that_tells_the_clients_is_sound():
    tables = broken(f"{ONE}.rungs.short", {"CTX_SIZE": 4096})
    tables["llm_endpoints"]["one"]["client"]["rungs"] = {"short": 2048}
    assert judge(tables).problems == []


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
PATHS = sorted({path for path, _value, _words in BREAKAGES})


@given(JUNK | st.fixed_dictionaries({"small": JUNK | st.fixed_dictionaries({"m.gguf": JUNK})}))
def test_no_junk_for_locks_breaks_the_judge(locks):
    problems, warnings = locked(HUB_FILE, {} if locks is None else locks)
    assert all(isinstance(text, str) for text in problems + warnings) and problems


@given(st.sampled_from(PATHS), JUNK)
@settings(max_examples=300, deadline=None)
def test_no_junk_breaks_the_judge(path, junk):
    assert all(text.startswith("box: ") for text in judge(broken(path, junk)).problems)


def contacting_nobody(program, inventory, tmp_path, *args):
    """A run of Ansible's ``program`` whose ssh leaves a mark when it is called."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/contacted\nexit 255\n")
    ssh.chmod(0o755)
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "HOME": str(tmp_path)}
    command = [ROOT / ".venv/bin" / program, "-i", ROOT / "inventories" / inventory]
    command += ["-e", f"ansible_ssh_executable={ssh}", *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert not (tmp_path / "contacted").exists()
    return done


def ansible(inventory, tmp_path, *args):
    return contacting_nobody("ansible", inventory, tmp_path, "all", "-m", "dank.llm_fleet.inventory_validate", *args)


def test_a_contact_would_be_seen(tmp_path):
    with pytest.raises(AssertionError, match="contacted"):
        contacting_nobody("ansible", "production", tmp_path, "dankclaw", "-m", "ansible.builtin.ping")


@pytest.mark.parametrize(("inventory", "hosts"), [("sandbox", ["sandbox"]), ("production", ["dankclaw", "dankserver"])])
def test_the_command_of_the_readme_is_content_and_contacts_nobody(inventory, hosts, tmp_path):
    done = contacting_nobody("ansible-playbook", inventory, tmp_path, "site.yml", "--tags", "validate")
    assert done.returncode == 0, done.stdout + done.stderr
    recap = done.stdout.partition("PLAY RECAP")[2]
    told = re.findall(r"(?m)^(\S+)\s*: ok=(\d+) .*unreachable=(\d+) +failed=(\d+) ", recap)
    assert sorted(told) == [(host, "1", "0", "0") for host in hosts]


def test_the_command_stops_before_any_host_where_the_inventory_is_unsound(tmp_path):
    args = ("site.yml", "-e", '{"llm_cards": {"c": {}}}')
    done = contacting_nobody("ansible-playbook", "production", tmp_path, *args)
    assert done.returncode == 2
    assert "llm_cards.c.vendor is missing" in done.stdout
    assert "PLAY [Bring hosts" not in done.stdout


@pytest.mark.parametrize("inventory", ["sandbox", "production"])
def test_the_action_is_content_and_contacts_nobody(inventory, tmp_path):
    done = ansible(inventory, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound" in done.stdout and "FAILED" not in done.stdout
    assert ("a prefix" in done.stdout + done.stderr) == (inventory == "production")


def test_the_action_fails_once_with_all_problems(tmp_path):
    extra = '{"llm_endpoints": {"x": {"engine": "llamacpp"}}, "llm_cards": {"c": {}}}'
    done = ansible("sandbox", tmp_path, "-e", extra)
    assert done.returncode == 2
    assert "sandbox: llm_endpoints.x.runtime is missing" in done.stdout
    assert "sandbox: llm_cards.c.vendor is missing" in done.stdout
