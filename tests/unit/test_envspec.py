# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""_envspec: types, ranges, rules between keys, and what follows from runtime and payload."""

from __future__ import annotations

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import parse, render
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from hypothesis import given
from hypothesis import strategies as st

BASE = {
    "SERVER_BIN": "/opt/bin/llama-server",
    "MODEL_FILE": "/m/model.gguf",
    "BIND_ADDR": "127.0.0.1",
    "LISTEN_PORT": "8080",
    "ALIAS": "chat",
    "CTX_SIZE": "4096",
    "PARALLEL": "2",
}
DRAFT = {"SPEC_DRAFT_N_MAX": "2", "SPEC_DRAFT_N_MIN": "0", "SPEC_DRAFT_P_MIN": "0"}
NGRAM = {"SPEC_NGRAM_N_MIN": "48", "SPEC_NGRAM_N_MAX": "64"}
R9V = {
    "R9V_STATE_FILE": "/s/setup.json",
    "R9V_HOST_BIND": "0.0.0.0",
    "R9V_HOST_PORT": "7770",
    "R9V_SERVED_MODEL_NAME": "x",
    "R9V_CONTAINER_NAME": "x",
    "R9V_EXPECTED_GPU_BDFS": "0000:03:00.0,0000:07:00.0",
}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("CTX_SIZE", 602112, "602112"),
        ("CTX_SIZE", "602112", "602112"),
        ("METRICS", True, "1"),
        ("METRICS", 0, "0"),
        ("PRESENCE_PENALTY", 1.0, "1.0"),
        ("PRESENCE_PENALTY", -1, "-1"),
        ("PRESENCE_PENALTY", "", ""),
        ("SPEC_DRAFT_P_MIN", 1e-05, "0.000010"),
        ("NGL", "all", "all"),
        ("DEVICE", ["ROCm0", "ROCm1"], "ROCm0,ROCm1"),
        ("TENSOR_SPLIT", [36, 29], "36,29"),
        ("SPEC_TYPE", ["draft-dflash", "ngram-mod"], "draft-dflash,ngram-mod"),
        ("MMPROJ_FILE", "", ""),
        ("MODEL_FILE", "model.gguf", "model.gguf"),
        ("REASONING_BUDGET", -1, "-1"),
    ],
)
def test_values_become_the_files_text(key, value, text):
    assert _envspec.normalise("llamacpp", {key: value}) == {key: text}


def test_json_and_lists_of_r9v():
    env = {"R9V_CHAT_TEMPLATE_KWARGS": {"preserve_thinking": True}, "R9V_EXPECTED_GPU_BDFS": ["0000:03:00.0"]}
    assert _envspec.normalise("r9v", env) == {
        "R9V_EXPECTED_GPU_BDFS": "0000:03:00.0",
        "R9V_CHAT_TEMPLATE_KWARGS": '{"preserve_thinking":true}',
    }


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("CTX_SIZE", "", "no opt-out"),
        ("CTX_SIZE", None, "has no value"),
        ("MMPROJ_FILE", None, "opt out"),
        ("CTX_SIZE", True, "wrong type"),
        ("CTX_SIZE", [1], "wrong type"),
        ("CTX_SIZE", 4096.5, "whole number"),
        ("CTX_SIZE", "4k", "whole number"),
        ("CTX_SIZE", 0, "at least 256"),
        ("LISTEN_PORT", 65536, "from 1 to 65535"),
        ("METRICS", "yes", "0 or 1"),
        ("METRICS", 2, "0 or 1"),
        ("CACHE_TYPE_V", "fp8", "q8_0"),
        ("CACHE_TYPE_V", "Q8_0", "q8_0"),
        ("FLASH_ATTN", True, "wrong type"),
        ("FLASH_ATTN", "yes", "on, off, auto"),
        ("TOP_P", 1.5, "from 0 to 1"),
        ("TOP_P", "nan", "a number"),
        ("SPEC_TYPE", "draft-mtp,mtp", "draft-mtp"),
        ("SPEC_TYPE", "draft-mtp,draft-mtp", "list"),
        ("DEVICE", "ROCm0, ROCm1", "list"),
        ("TENSOR_SPLIT", "36/29", "list"),
        ("BIND_ADDR", "all", "text like"),
        ("ALIAS", "a b", "text like"),
        ("SERVER_BIN", "llama-server", "absolute"),
        ("CHAT_TEMPLATE_FILE", "x.jinja", "absolute"),
        ("MODEL_FILE", "sub/model.gguf", "payload"),
        ("CHAT_TEMPLATE_FILE", "/it's", "single quote"),
        ("REASONING_BUDGET", -2, "at least -1"),
        ("VERBOSITY", 6, "from 0 to 5"),
    ],
)
def test_an_unsound_value_is_named(key, value, words):
    with pytest.raises(FleetError, match=words) as caught:
        _envspec.normalise("llamacpp", {key: value})
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("engine", "key", "guess"),
    [
        ("llamacpp", "KV_CACHE_TYPE", "CACHE_TYPE_K"),
        ("llamacpp", "CTX_SIZ", "CTX_SIZE"),
        ("llamacpp", "ctx_size", "CTX_SIZE"),
        ("llamacpp", "DRAFT_SPEC_MODEL", "SPEC_DRAFT_MODEL"),
        ("llamacpp", "METRIC", "METRICS"),
        ("r9v", "R9V_PORT", "R9V_HOST_PORT"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(engine, key, guess):
    with pytest.raises(FleetError, match=f"Did you mean {guess}"):
        _envspec.normalise(engine, {key: "1"})
    assert any(f"Did you mean {guess}" in text for text in _envspec.check(engine, {**BASE, key: "1"}))


def test_a_key_like_none_is_answered_with_all():
    with pytest.raises(FleetError, match="use one of: SERVER_BIN"):
        _envspec.normalise("llamacpp", {"ZZZ": 1})


def test_engines():
    with pytest.raises(FleetError, match="ollama"):
        _envspec.keys("ollama")
    assert _envspec.address_of("r9v", R9V) == ("0.0.0.0", "7770")
    assert _envspec.address_of("llamacpp", {}) == (None, None)


@pytest.mark.parametrize("engine", _envspec.ENGINES)
def test_every_key_explains_itself(engine):
    for name, key in _envspec.keys(engine).items():
        assert key.name == name and key.meaning and key.values
        assert (key.form in ("value", "switch", "file", "lora", "scale", "spec")) == bool(key.flag)
        assert key.kind != "choice" or key.choices


SOUND = [
    {},
    {"PARALLEL": "1", "FIT": "on"},
    {"CACHE_TYPE_V": "q8_0", "FLASH_ATTN": "on"},
    {"CACHE_TYPE_K": "q8_0"},
    {"SPEC_TYPE": "none", **DRAFT, "SPEC_DRAFT_MODEL": "/m/d.gguf"},
    {"SPEC_TYPE": "draft-mtp", **DRAFT},
    {"SPEC_TYPE": "draft-mtp,ngram-mod", **DRAFT, **NGRAM},
    {"SPEC_TYPE": "draft-dflash", **DRAFT, "SPEC_DRAFT_MODEL": "/m/d.gguf"},
    {"SPEC_TYPE": "ngram-simple"},
    {"LORA_FILE": "", "LORA_SCALE": "1"},
    {"DEVICE": "ROCm0,ROCm1", "TENSOR_SPLIT": "36,29", "SPEC_TYPE": "ngram-cache", "SPEC_DRAFT_DEVICE": "ROCm7"},
    {"UBATCH_SIZE": "2048"},
]


@pytest.mark.parametrize("lines", SOUND)
def test_sound(lines):
    assert _envspec.check("llamacpp", {**BASE, **lines}) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ({"PARALLEL": "3"}, ["CTX_SIZE 4096 is not divisible by PARALLEL 3", "4095 or 4098"]),
        ({"CTX_SIZE": "1000"}, ["windows of 500", "512 or 1024"]),
        ({"FIT": "on"}, ["FIT is on with PARALLEL 2"]),
        ({"CACHE_TYPE_V": "q8_0"}, ["CACHE_TYPE_V q8_0", "FLASH_ATTN to on"]),
        ({"CACHE_TYPE_V": "q8_0", "FLASH_ATTN": "auto"}, ["FLASH_ATTN to on"]),
        ({"SPEC_TYPE": "draft-mtp", **DRAFT, "SPEC_DRAFT_TYPE_V": "q4_0"}, ["SPEC_DRAFT_TYPE_V"]),
        ({"UBATCH_SIZE": "4096"}, ["UBATCH_SIZE 4096 exceeds BATCH_SIZE 2048"]),
        ({"BATCH_SIZE": "256"}, ["UBATCH_SIZE 512 exceeds BATCH_SIZE 256"]),
        ({"DEVICE": "ROCm0,ROCm0"}, ["twice"]),
        ({"DEVICE": "ROCm0,none"}, ["none beside devices"]),
        ({"DEVICE": "ROCm0", "TENSOR_SPLIT": "36,29"}, ["2 shares for 1 devices"]),
        ({"TENSOR_SPLIT": "0,0"}, ["no device a share"]),
        ({"TENSOR_SPLIT": "1,1", "SPLIT_MODE": "none"}, ["no effect"]),
        ({"DEVICE": "ROCm0", "SPEC_TYPE": "draft-mtp", **DRAFT, "SPEC_DRAFT_DEVICE": "ROCm1"}, ["not among DEVICE"]),
        ({"LORA_SCALE": "1"}, ["LORA_SCALE is set without LORA_FILE"]),
        ({"LORA_FILE": "/m/a:b.gguf"}, ["colon"]),
        ({"SPEC_DRAFT_N_MAX": "2"}, ["half a set"]),
        ({"SPEC_TYPE": "none,draft-mtp", **DRAFT}, ["none beside others"]),
        ({"SPEC_TYPE": "draft-mtp"}, ["SPEC_DRAFT_N_MAX, SPEC_DRAFT_N_MIN, SPEC_DRAFT_P_MIN"]),
        ({"SPEC_TYPE": "draft-mtp", **DRAFT, "SPEC_DRAFT_N_MIN": "3"}, ["nothing would be drafted"]),
        ({"SPEC_TYPE": "draft-dflash", **DRAFT}, ["a file of its own"]),
        ({"SPEC_TYPE": "draft-mtp", **DRAFT, "SPEC_DRAFT_MODEL": "/m/d.gguf"}, ["load it twice"]),
        ({"SPEC_TYPE": "draft-mtp,draft-dflash", **DRAFT}, ["one draft context", "a file of its own"]),
        ({"SPEC_TYPE": "ngram-mod"}, ["SPEC_NGRAM_N_MIN, SPEC_NGRAM_N_MAX"]),
        ({"SPEC_TYPE": "ngram-mod", "SPEC_NGRAM_N_MIN": "64", "SPEC_NGRAM_N_MAX": "48"}, ["exceeds SPEC_NGRAM_N_MAX"]),
        ({"MMPROJ_FILE": "p.gguf"}, ["no absolute path"]),
        ({"PARALLEL": "x", "UBATCH_SIZE": "9999"}, ["PARALLEL is 'x'", "UBATCH_SIZE 9999"]),
        ({"KV_CACHE_TYPE": "f16", "PARALLEL": "3"}, ["Did you mean CACHE_TYPE_K", "not divisible"]),
    ],
)
def test_rules_between_keys_tell_everything_at_once(lines, words):
    problems = _envspec.check("llamacpp", {**BASE, **lines})
    assert len(problems) == (2 if len(words) > 1 and words[1] not in problems[0] else 1), problems
    for word in words:
        assert any(word in text for text in problems), (word, problems)
    assert all(text.endswith((".", "?")) for text in problems)


def test_missing_keys_are_all_named():
    problems = _envspec.check("llamacpp", {})
    assert [text.split()[0] for text in problems] == list(BASE)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ({}, None),
        ({"R9V_EXPECTED_GPU_BDFS": "0000:03:00.0,0000:03:00.0"}, "twice"),
        ({"R9V_VISIBLE_DEVICES": "0"}, "differ in number"),
        ({"R9V_CHAT_TEMPLATE_KWARGS": "{}"}, "without R9V_CHAT_TEMPLATE_FILE"),
        ({"R9V_CHAT_TEMPLATE_KWARGS": "[]", "R9V_CHAT_TEMPLATE_FILE": "/t"}, "JSON object"),
        ({"R9V_EXPECTED_GPU_BDFS": "03:00.0"}, "R9V_EXPECTED_GPU_BDFS"),
        ({"R9V_FULL_MUTABLE_CACHE": ""}, None),
    ],
)
def test_r9v_rules(lines, word):
    problems = _envspec.check("r9v", {**R9V, "R9V_CHECKOUT": "/fork", **lines})
    assert (word is None and problems == []) or (len(problems) == 1 and word in problems[0])


FILES = [
    {"name": "m.gguf", "role": "model"},
    {"name": "p.gguf", "role": "mmproj"},
    {"name": "l.gguf", "role": "lora"},
    {"name": "d.gguf", "role": "drafter"},
]


@pytest.mark.parametrize(
    ("env", "files", "derived"),
    [
        ({}, FILES, {"MODEL_FILE": "/m/m.gguf", "MMPROJ_FILE": "/m/p.gguf", "LORA_FILE": "/m/l.gguf"}),
        ({}, FILES[:1], {"MODEL_FILE": "/m/m.gguf"}),
        ({"MMPROJ_FILE": "", "LORA_FILE": ""}, FILES, {"MODEL_FILE": "/m/m.gguf", "MMPROJ_FILE": "", "LORA_FILE": ""}),
        ({"MODEL_FILE": "m.gguf"}, FILES[:1], {"MODEL_FILE": "/m/m.gguf"}),
        ({"MODEL_FILE": "/m/m.gguf"}, FILES[:1], {"MODEL_FILE": "/m/m.gguf"}),
        ({"SPEC_TYPE": "draft-mtp"}, [FILES[0], FILES[3]], {"MODEL_FILE": "/m/m.gguf", "SPEC_TYPE": "draft-mtp"}),
        (
            {"SPEC_TYPE": "draft-dflash"},
            [FILES[0], FILES[3]],
            {"MODEL_FILE": "/m/m.gguf", "SPEC_TYPE": "draft-dflash", "SPEC_DRAFT_MODEL": "/m/d.gguf"},
        ),
        (
            {},
            [{"name": f"m-0000{n}-of-00003.gguf", "role": "shard"} for n in (2, 1, 3)],
            {"MODEL_FILE": "/m/m-00001-of-00003.gguf"},
        ),
        (
            {"MODEL_FILE": "b.gguf"},
            [{"name": "a.gguf", "role": "model"}, {"name": "b.gguf", "role": "model"}],
            {"MODEL_FILE": "/m/b.gguf"},
        ),
        ({}, [], {}),
    ],
)
def test_derive(env, files, derived):
    full = _envspec.derive("llamacpp", env, "/m", files, "/bin/server")
    assert full == {"SERVER_BIN": "/bin/server", **derived}
    assert list(full) == [name for name in _envspec.keys("llamacpp") if name in full]


@pytest.mark.parametrize(
    ("env", "files", "words"),
    [
        ({}, [{"name": "a.gguf", "role": "model"}, {"name": "b.gguf", "role": "model"}], "2 files of role model"),
        ({"MODEL_FILE": "/elsewhere/m.gguf"}, FILES, "no model of the payload"),
        ({"MODEL_FILE": "p.gguf"}, FILES, "no model of the payload"),
        ({"LORA_FILE": "x.gguf"}, FILES[:1], "no lora of the payload"),
        ({"MODEL_FILE": "/m/../m.gguf"}, FILES, "no model of the payload"),
    ],
)
def test_derive_refuses_what_the_payload_does_not_hold(env, files, words):
    with pytest.raises(FleetError, match=words):
        _envspec.derive("llamacpp", env, "/m", files, "/bin/server")


def test_r9v_derives_its_checkout_and_loses_its_empty_lines():
    """An empty line would not survive the profile; the payload's files are the state's."""
    empty = {**R9V, "R9V_CHAT_TEMPLATE_FILE": "", "R9V_FULL_MUTABLE_CACHE": "0"}
    found = _envspec.derive("r9v", empty, "/m", FILES, "/fork/scripts/launch.sh")
    assert found == {"R9V_CHECKOUT": "/fork", **R9V, "R9V_FULL_MUTABLE_CACHE": "0"}
    assert _envspec.engine_of(found) == "r9v" and _envspec.port_of(found) == 7770


def test_shape():
    env = {**BASE, "CTX_SIZE": "602112", "PARALLEL": "3", "CACHE_TYPE_V": "q8_0", "SPEC_TYPE": "draft-mtp"}
    shape = _envspec.shape("llamacpp", env)
    assert (shape["ctx_size"], shape["parallel"], shape["ctx_per_slot"]) == (602112, 3, 200704)
    assert (shape["cache_type_k"], shape["cache_type_v"], shape["spec_type"]) == ("f16", "q8_0", "draft-mtp")
    assert _envspec.shape("llamacpp", {**BASE, "SPEC_TYPE": "none"})["spec_type"] is None
    assert _envspec.shape("r9v", {**R9V, "R9V_MAX_MODEL_LEN": "131072"})["ctx_per_slot"] == 131072
    assert _envspec.shape("r9v", R9V)["ctx_per_slot"] is None


def _values(key):
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    return st.one_of(
        text, st.integers(-3, 70000), st.floats(), st.booleans(), st.none(), st.sampled_from([*key.choices, ""])
    )


@given(st.data())
def test_whatever_the_inventory_holds_is_text_or_a_clear_refusal(data):
    engine = data.draw(st.sampled_from(_envspec.ENGINES))
    table = _envspec.keys(engine)
    names = data.draw(st.lists(st.sampled_from(list(table)), unique=True, max_size=8))
    env = {name: data.draw(_values(table[name])) for name in names}
    try:
        text = _envspec.normalise(engine, env)
    except FleetError as exc:
        assert any(name in exc.message for name in names)
        return
    assert parse(render(text), "f") == text
    assert all(isinstance(problem, str) for problem in _envspec.check(engine, {**BASE, **text}))
    assert _envspec.normalise(engine, text) == text
