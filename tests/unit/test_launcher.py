# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher, run for real under bash: env in, argv out; every refusal before the engine starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._envfile import render

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "roles" / "endpoint" / "files" / "serve-llamacpp"
ENGINE = (
    '#!/bin/sh\nprintf "%s\\n" "$0" "$@"\necho "pid $$" >&2\n'  # stands in for the engine: prints what it was given
)
DRAFT = {"SPEC_DRAFT_N_MAX": "2", "SPEC_DRAFT_N_MIN": "0", "SPEC_DRAFT_P_MIN": "0"}


@pytest.fixture
def base(tmp_path):
    """A sound environment, and the files that it names."""
    server = tmp_path / "llama-server"
    server.write_text(ENGINE)
    server.chmod(0o755)
    for name in ("model", "mmproj", "lora", "draft", "template", "keys"):
        (tmp_path / name).touch()
    return {
        "SERVER_BIN": str(server),
        "MODEL_FILE": f"{tmp_path}/model",
        "BIND_ADDR": "127.0.0.1",
        "LISTEN_PORT": "8080",
        "ALIAS": "chat",
        "CTX_SIZE": "4096",
        "PARALLEL": "2",
    }


def launch(env, *args, dry=True):
    """Run the launcher in exactly this environment."""
    bare = {"PATH": "/usr/bin:/bin", **({"LLM_FLEET_DRY_RUN": "1"} if dry else {})}
    return subprocess.run(
        [LAUNCHER, *args], env={**bare, **env}, capture_output=True, text=True, check=False, timeout=30
    )


def argv(env):
    done = launch(env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def refused(env, status, *words, args=()):
    for dry in (True, False):
        done = launch(env, *args, dry=dry)
        assert done.returncode == status, (done.returncode, done.stderr)
        assert done.stdout == "", "the engine was started, or arguments were printed"
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("serve-llamacpp: ")
        assert "; expected " in done.stderr and "; found " in done.stderr
        for word in words:
            assert word in done.stderr, done.stderr


def test_its_table_is_the_schema():
    text = LAUNCHER.read_text()
    rows = [line.split() for line in text.split("<<'TABLE'\n")[1].split("\nTABLE\n")[0].splitlines()]
    schema = [
        [
            key.name,
            key.form,
            key.flag or "-",
            key.off or "-",
            key.group or "-",
            "opt-out" if key.empty else "refuse",
            "required" if key.required else "optional",
        ]
        for key in _envspec.keys("llamacpp").values()
    ]
    assert rows == schema


def test_it_is_executable_and_shellcheck_is_content():
    assert os.access(LAUNCHER, os.X_OK) and LAUNCHER.read_bytes().startswith(b"#!/usr/bin/env bash\n")
    assert b"\r" not in LAUNCHER.read_bytes()
    shellcheck = ROOT / ".venv" / "bin" / "shellcheck"
    done = subprocess.run([shellcheck, LAUNCHER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def production(host, endpoint, tmp_path, server):
    """The endpoint's argv as the shipped inventory has it, its files put into ``tmp_path``."""
    declared = yaml.safe_load((ROOT / "inventories/production/host_vars" / f"{host}.yml").read_text())
    payloads = yaml.safe_load((ROOT / "inventories/production/group_vars/all/payloads.yml").read_text())
    given = declared["llm_endpoints"][endpoint]
    files = payloads["llm_payloads"][given["payload"]]["files"]
    for file in files:
        (tmp_path / file["name"]).touch()
    env = _envspec.normalise("llamacpp", given["env"])
    return argv(_envspec.derive("llamacpp", env, str(tmp_path), files, server))


def test_frank_zealot(base, tmp_path):
    found = production("dankclaw", "frank-zealot", tmp_path, base["SERVER_BIN"])
    flags = f"""
        --model {tmp_path}/Ternary-Bonsai-2-9B-PQ2_0-MTP-Q8_0.gguf --host 0.0.0.0 --port 7771 --alias frank-zealot
        --ctx-size 602112 --parallel 3 --cache-type-k f16 --cache-type-v q8_0 --flash-attn on --batch-size 6144
        --ubatch-size 1024 --n-gpu-layers 99 --jinja --reasoning auto --reasoning-format deepseek --metrics
        --mmproj {tmp_path}/Ternary-Bonsai-2-9B-mmproj-Q8_0.gguf
        --lora-scaled {tmp_path}/Ternary-Bonsai-2-9B-Uncensored-LoRA.gguf:1 --log-verbosity 4 --presence-penalty 1.0
        --spec-type draft-mtp --spec-draft-n-max 2 --spec-draft-n-min 0 --spec-draft-p-min 0
    """
    assert found == [base["SERVER_BIN"], *flags.split()]


def test_frank_medium(base, tmp_path):
    found = production("dankserver", "frank-medium", tmp_path, base["SERVER_BIN"])
    flags = f"""
        --model {tmp_path}/Swift-Qwen3.8-27B-Uncensored-Dynamic-MTP-UD-Q8_K_XL.gguf --host 0.0.0.0 --port 7770
        --alias frank-medium --ctx-size 327680 --parallel 2 --cache-type-k f16 --cache-type-v f16 --flash-attn on
        --batch-size 6144 --ubatch-size 512 --n-gpu-layers 999 --split-mode layer --device ROCm0,ROCm1
        --tensor-split 36,29 --fit off --ctx-checkpoints 0 --cache-ram 8192 --reasoning-format deepseek
        --reasoning-budget -1 --metrics --mmproj {tmp_path}/mmproj-BF16.gguf --temp 0.7 --top-p 0.95 --top-k 20
        --spec-type draft-dflash,ngram-mod --spec-draft-n-max 7 --spec-draft-n-min 0 --spec-draft-p-min 0
        --spec-draft-model {tmp_path}/Qwen3.8-27B-DFlash2-Q8_0.gguf --spec-draft-device ROCm1
        --spec-ngram-mod-n-min 48 --spec-ngram-mod-n-max 64
    """
    assert found == [base["SERVER_BIN"], *flags.split()]


def test_absent_keys_leave_the_engines_own(base):
    assert argv(base)[1:] == [
        *("--model", base["MODEL_FILE"], "--host", "127.0.0.1", "--port", "8080", "--alias", "chat"),
        *("--ctx-size", "4096", "--parallel", "2"),
    ]


@pytest.mark.parametrize(
    ("lines", "added"),
    [
        ({"MMPROJ_FILE": ""}, ["--no-mmproj"]),
        ({"MMPROJ_FILE": "{}/mmproj"}, ["--mmproj", "{}/mmproj"]),
        ({"LORA_FILE": "", "LORA_SCALE": "1"}, []),
        ({"LORA_FILE": "{}/lora"}, ["--lora", "{}/lora"]),
        ({"LORA_FILE": "{}/lora", "LORA_SCALE": "0"}, ["--lora-scaled", "{}/lora:0"]),
        ({"PRESENCE_PENALTY": ""}, []),
        ({"PRESENCE_PENALTY": "1.0"}, ["--presence-penalty", "1.0"]),
        ({"JINJA": "1", "METRICS": "1"}, ["--jinja", "--metrics"]),
        ({"JINJA": "0", "METRICS": "0"}, ["--no-jinja"]),
        ({"API_KEY_FILE": "{}/keys"}, ["--api-key-file", "{}/keys"]),
        ({"API_KEY_FILE": ""}, []),
        ({"CHAT_TEMPLATE_FILE": "{}/template"}, ["--chat-template-file", "{}/template"]),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": ""}, []),
        ({"SPEC_TYPE": "none", **DRAFT, "SPEC_DRAFT_MODEL": "/gone", "SPEC_NGRAM_N_MIN": "1"}, []),
        (
            {"SPEC_TYPE": "ngram-mod", **DRAFT, "SPEC_NGRAM_N_MIN": "48", "SPEC_NGRAM_N_MAX": "64"},
            ["--spec-type", "ngram-mod", "--spec-ngram-mod-n-min", "48", "--spec-ngram-mod-n-max", "64"],
        ),
        (
            {"SPEC_TYPE": "draft-simple", **DRAFT, "SPEC_DRAFT_MODEL": "{}/draft", "SPEC_NGRAM_N_MIN": "1"},
            [
                *("--spec-type", "draft-simple", "--spec-draft-n-max", "2", "--spec-draft-n-min", "0"),
                *("--spec-draft-p-min", "0", "--spec-draft-model", "{}/draft"),
            ],
        ),
    ],
)
def test_what_each_line_becomes(base, tmp_path, lines, added):
    lines = {key: value.format(tmp_path) for key, value in lines.items()}
    assert argv({**base, **lines}) == [*argv(base), *(word.format(tmp_path) for word in added)]


def test_every_flag_of_the_schema_can_be_reached(base, tmp_path):
    env = {
        **base,
        "LORA_FILE": f"{tmp_path}/lora",
        "SPEC_TYPE": "draft-simple,ngram-mod",
    }
    for name, key in _envspec.keys("llamacpp").items():
        value = {"file": f"{tmp_path}/draft", "path": f"{tmp_path}/keys"}.get(key.kind, (*key.choices, "1")[0])
        env.setdefault(name, value)
    with_scale = argv(env)
    del env["LORA_SCALE"]
    for key in _envspec.keys("llamacpp").values():
        assert not key.flag or key.flag in with_scale + argv(env), key.name


def test_it_becomes_the_engine(base):
    started = subprocess.Popen([LAUNCHER], env={"PATH": "/usr/bin:/bin", **base}, stdout=-1, stderr=-1, text=True)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 0
    assert out.splitlines() == argv(base)
    assert f"pid {started.pid}" in err, "exec keeps the process, which systemd takes for the main one"


def test_it_reads_from_a_pipe_too(base):
    """As the endpoint module does for its dry run."""
    env = {"PATH": "/usr/bin:/bin", **base, "LLM_FLEET_DRY_RUN": "1"}
    done = subprocess.run(
        ["bash", "-s"], input=LAUNCHER.read_text(), env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == argv(base)


def test_a_value_is_one_argument_whatever_it_holds(base, tmp_path):
    odd = tmp_path / "a model; $(touch x) *"
    odd.touch()
    assert argv({**base, "MODEL_FILE": str(odd)})[2] == str(odd)


@pytest.mark.parametrize("key", [name for name, key in _envspec.keys("llamacpp").items() if key.required])
def test_a_missing_key_is_named(base, key):
    del base[key]
    refused(base, 78, f"{key} is missing")


@pytest.mark.parametrize("key", [name for name, key in _envspec.keys("llamacpp").items() if not key.empty])
def test_an_empty_value_without_an_opt_out_is_named(base, key):
    refused({**base, key: ""}, 78, f"{key} is empty")


@pytest.mark.parametrize(
    "key", ["SERVER_BIN", "MODEL_FILE", "MMPROJ_FILE", "LORA_FILE", "CHAT_TEMPLATE_FILE", "API_KEY_FILE"]
)
def test_a_missing_file_is_named(base, key):
    refused({**base, key: "/no/such/file"}, 66, key, "/no/such/file")


def test_a_missing_drafter_is_named_and_a_folder_is_no_file(base, tmp_path):
    refused(
        {**base, "SPEC_TYPE": "draft-simple", **DRAFT, "SPEC_DRAFT_MODEL": "/none"}, 66, "SPEC_DRAFT_MODEL", "/none"
    )
    refused({**base, "MODEL_FILE": str(tmp_path)}, 66, "MODEL_FILE")
    refused({**base, "SERVER_BIN": f"{tmp_path}/model"}, 66, "SERVER_BIN")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ({"KV_CACHE_TYPE": "f16"}, ["KV_CACHE_TYPE", "Did you mean CACHE_TYPE_K"]),
        ({"SPEC_DRAFT_MAX": "3"}, ["SPEC_DRAFT_MAX", "Did you mean SPEC_DRAFT_N_MAX"]),
        ({"CTX_LEN": "3"}, ["CTX_LEN", "Did you mean CTX_SIZE"]),
        ({"LORA_WEIGHT": "3"}, ["LORA_WEIGHT"]),
        ({"MMPROJ_PATH": "3"}, ["MMPROJ_PATH", "Did you mean MMPROJ_FILE"]),
        ({"CACHE_TYPES": "f16"}, ["CACHE_TYPES"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["ROCR_VISIBLE_DEVICES"]),
        ({"LLAMA_ARG_CTX_SIZE": "1"}, ["LLAMA_ARG_CTX_SIZE"]),
        ({"PARALLEL": "3"}, ["4096 is not divisible by PARALLEL 3"]),
        ({"PARALLEL": "0"}, ["PARALLEL is no size"]),
        ({"CTX_SIZE": "4k"}, ["CTX_SIZE is no size"]),
        ({"CTX_SIZE": "a[$(id)]"}, ["CTX_SIZE is no size"]),
        ({"METRICS": "yes"}, ["METRICS is no switch"]),
        ({"ALIAS": "a\nb"}, ["ALIAS holds a line end"]),
        ({"LORA_SCALE": "1"}, ["LORA_SCALE is set without LORA_FILE"]),
        ({"LORA_FILE": "/a:b"}, ["LORA_FILE holds a comma or a colon"]),
        ({"SPEC_DRAFT_N_MAX": "2"}, ["SPEC_DRAFT_N_MAX without SPEC_TYPE"]),
        ({"SPEC_TYPE": "draft-mtp"}, ["without SPEC_DRAFT_N_MAX"]),
        ({"SPEC_TYPE": "draft-mtp", **DRAFT, "SPEC_DRAFT_MODEL": "/x"}, ["load the model twice"]),
        ({"SPEC_TYPE": "draft-dflash", **DRAFT}, ["without SPEC_DRAFT_MODEL"]),
        ({"SPEC_TYPE": "draft-mtp,draft-dflash", **DRAFT}, ["chains 2 drafters"]),
        ({"SPEC_TYPE": "none,draft-mtp", **DRAFT}, ["none beside others"]),
        ({"SPEC_TYPE": "ngram-mod"}, ["without SPEC_NGRAM_N_MIN"]),
    ],
)
def test_refusals(base, lines, words):
    refused({**base, **lines}, 78, *words)


def test_a_secret_is_not_shown(base):
    refused({**base, "LLAMA_API_KEY": "hunter2"}, 78, "LLAMA_API_KEY")
    assert "hunter2" not in launch({**base, "LLAMA_API_KEY": "hunter2"}).stderr


def test_arguments_are_refused(base):
    refused(base, 64, "takes no arguments", args=("--port", "1"))


def test_a_dry_run_is_asked_for_plainly(base):
    done = launch({**base, "LLM_FLEET_DRY_RUN": "yes"}, dry=False)
    assert done.returncode == 78 and done.stdout == ""


def test_strangers_in_the_environment_do_no_harm(base):
    strangers = {"HOME": "/", "LANG": "C.UTF-8", "INVOCATION_ID": "x", "MEMORY_PRESSURE_WATCH": "/x", "form": "x"}
    assert argv({**base, **strangers, "LLM_FLEET_ERA": "x", "key": "y", "IFS": "x"}) == argv(base)


def with_file(base, tmp_path, text=None):
    file = tmp_path / "endpoint.env"
    file.write_text(render(base) if text is None else text)
    return {**base, "LLM_FLEET_ENV_FILE": str(file)}


def test_the_env_file_agrees(base, tmp_path):
    assert argv(with_file(base, tmp_path)) == argv(base)
    assert argv(with_file({**base, "MMPROJ_FILE": ""}, tmp_path))[-1] == "--no-mmproj"
    spaced = {**base, "MODEL_FILE": f"{tmp_path}/a b"}
    (tmp_path / "a b").touch()
    assert argv(with_file(spaced, tmp_path, "# a comment\n\n" + render(spaced).rstrip("\n"))) == argv(spaced)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (None, 66, ["LLM_FLEET_ENV_FILE"]),
        ("{}KV_CACHE_TYPE=f16\n", 78, ["KV_CACHE_TYPE", "line 8", "Did you mean CACHE_TYPE_K"]),
        ("{}LD_PRELOAD=/x\n", 78, ["LD_PRELOAD", "line 8"]),
        ("{}VERBOSITY=4\n", 78, ["VERBOSITY", "it is not there"]),
        ("{}PARALLEL=2\n", 78, ["PARALLEL", "one line for a key"]),
        ("{}export NGL=9\n", 78, ["line 8"]),
        ("{}NGL=9\r\n", 78, ["line 8", "LF line ends"]),
        ("{}NGL = 9\n", 78, ["line 8"]),
    ],
)
def test_the_env_file_is_held_to_the_schema(base, tmp_path, text, status, words):
    env = with_file(base, tmp_path, (text or "").format(render(base)))
    if text is None:
        env["LLM_FLEET_ENV_FILE"] = "/no/such.env"
    refused(env, status, *words)


def test_a_drop_in_is_found_out(base, tmp_path):
    env = with_file(base, tmp_path)
    refused({**env, "CTX_SIZE": "2048"}, 78, "CTX_SIZE is overridden", "4096", "2048", "drop-in")
    refused({**env, "HIP_VISIBLE_DEVICES": "1"}, 78, "HIP_VISIBLE_DEVICES is in the environment and not in", "drop-in")
