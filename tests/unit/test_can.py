# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine can do, read from the tables of its source, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._can import capabilities, kv_pairs, merged
from ansible_collections.dank.llm_fleet.plugins.module_utils._gate_fit import known_to

# As build 11434 has them, cut short.
TREE = {
    "src/llama-arch.cpp": """
static const std::map<llm_arch, const char *> LLM_ARCH_NAMES = {
    { LLM_ARCH_CLIP,    "clip"     }, // dummy, only used by llama-quantize
    { LLM_ARCH_LLAMA,   "llama"    },
    // { LLM_ARCH_GONE, "gone"     },
    { LLM_ARCH_QWEN35,  "qwen35"   },
    { LLM_ARCH_UNKNOWN, "(unknown)" },
};
static const std::map<llm_kv, const char *> LLM_KV_NAMES = {
    { LLM_ARCH_NOT, "not" },
};
""",
    "ggml/include/ggml.h": """
    enum ggml_type {
        GGML_TYPE_F32     = 0,
        // GGML_TYPE_Q4_2 = 4, support has been removed
        GGML_TYPE_Q8_0    = 8,
        GGML_TYPE_PQ2_0   = 142, // of a fork
        GGML_TYPE_COUNT   = 143,
    };
    enum ggml_prec { GGML_TYPE_NOT = 7, };
""",
    "common/speculative.cpp": """
const std::map<std::string, common_speculative_type> common_speculative_type_from_name_map = {
    {"none",      COMMON_SPECULATIVE_TYPE_NONE},
    {"draft-mtp", COMMON_SPECULATIVE_TYPE_DRAFT_MTP},
    {"ngram-mod", COMMON_SPECULATIVE_TYPE_NGRAM_MOD}
};
""",
    "common/arg.cpp": """
const std::vector<ggml_type> kv_cache_types = {
    GGML_TYPE_F16,
    GGML_TYPE_Q8_0,
};
""",
    "src/llama-adapter.cpp": 'if (adapter_type != "lora") {',
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_tables_are_read(project: Path) -> None:
    assert capabilities(str(project), {}) == {
        "architectures": ["llama", "qwen35"],
        "ggml_types": {"f32": 0, "q8_0": 8, "pq2_0": 142},
        "spec_types": ["draft-mtp", "ngram-mod"],
        "adapters": ["lora"],
        "kv_types": ["f16", "q8_0"],
        "kv_pairs": None,
    }


def test_another_tree_tells_nothing(tmp_path: Path) -> None:
    assert capabilities(str(tmp_path), {"GGML_CUDA": "ON"}) == {}


@pytest.mark.parametrize(
    ("cache", "pairs"),
    [
        ({}, None),
        ({"GGML_CUDA": "OFF", "GGML_CUDA_FA_QUANTS": "f16-f16"}, None),
        ({"GGML_CUDA": "ON", "GGML_CUDA_FA_QUANTS": "f16-f16;Q8_0-q8_0"}, ["f16-f16", "q8_0-q8_0"]),
        ({"GGML_HIP": "ON", "GGML_CUDA_FA_QUANTS": "all"}, ["f16-f16", "f16-q8_0", "q8_0-f16", "q8_0-q8_0"]),
        # The retired option says nothing.
        ({"GGML_CUDA": "ON", "GGML_CUDA_FA_ALL_QUANTS": "ON"}, None),
    ],
)
def test_pairs_of_cache_types_are_those_that_were_compiled(cache: dict[str, str], pairs: list[str] | None) -> None:
    assert kv_pairs(cache, ["f16", "q8_0"]) == pairs


def test_what_is_declared_is_merged_in() -> None:
    told = {"ggml_types": {"f32": 0}, "spec_types": ["a"], "adapters": ["lora"]}
    declared = {"ggml_types": {"pq2_0": 142}, "spec_types": ["a", "b"], "adapter_versions": {"x": [2]}}
    assert merged(told, declared) == {
        "ggml_types": {"f32": 0, "pq2_0": 142},
        "spec_types": ["a", "b"],
        "adapters": ["lora"],
        "adapter_versions": {"x": [2]},
    }
    assert merged(told, {}) == told


def test_kinship_knows_the_types_of_the_runtimes_own_source(tmp_path: Path) -> None:
    versions = {"prism.hadamard": [2]}
    can = {"ggml_types": {"f32": 0, "pq2_0": 142}, "adapter_versions": versions}
    (tmp_path / "build.json").write_text(json.dumps({"can": can}))
    assert known_to([150], {"path": str(tmp_path)}) == ({0, 142, 150}, versions)
    assert known_to([150], {"path": str(tmp_path / "none")}) == ({150}, {}) == known_to([150], {})
