# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where llama-server and vLLM differ on the wire: one row each, and nothing else knows of it.

llama-server as read off build 11434 (tools/server); vLLM by its documented OpenAI server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LLAMA_SERVER", "VLLM", "Dialect", "dialect_of"]


@dataclass(frozen=True)
class Dialect:
    """One server's ways. Expressions are JMESPath on its answers; ``None`` where it has nothing of the kind."""

    name: str
    props: str | None  # path of what it says of itself
    slots: str | None  # path of the list of its slots
    adapters: str | None  # path of the list of its adapters
    pins_slots: bool  # whether a request may choose its slot (id_slot)
    reasoning_field: str  # of a message, where the endpoint declares no other
    window: str  # the window of one conversation, in the answer of ``window_path``
    window_path: str
    drafted: str | None  # tokens drafted for one request, in its answer
    accepted: str | None
    draft_counters: tuple[str, str]  # series: drafted, accepted
    families: tuple[str, ...]  # series that dashboards and alerts read
    no_metrics: tuple[int, ...]  # statuses of /metrics where it is off
    no_image: tuple[int, str]  # status, and words in it, of a text-only model's refusal
    exact: Mapping[str, Any]  # what a request adds so that a repetition is computed anew
    cache_rounds: int  # the same prompt so often, and the last of them must come from the cache
    cache_repeats: int  # of the sentence that such a prompt is made of: longer than a block of its cache


LLAMA_SERVER = Dialect(
    name="llama-server",
    props="/props",
    slots="/slots",
    adapters="/lora-adapters",
    pins_slots=True,
    reasoning_field="reasoning_content",
    window="default_generation_settings.n_ctx",
    window_path="/props",
    drafted="timings.draft_n",
    accepted="timings.draft_n_accepted",
    draft_counters=(
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    ),
    families=(
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_tokens_seconds",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:n_decode_total",
        "llamacpp:n_busy_slots_per_decode",
    ),
    no_metrics=(501,),
    no_image=(500, "image input is not supported"),
    exact={"cache_prompt": False},
    cache_rounds=2,
    cache_repeats=24,
)
VLLM = Dialect(
    name="vLLM",
    props=None,
    slots=None,
    adapters=None,
    pins_slots=False,
    reasoning_field="reasoning",
    window="data[0].max_model_len",
    window_path="/v1/models",
    drafted=None,
    accepted=None,
    draft_counters=("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
    families=(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ),
    no_metrics=(404,),
    no_image=(400, ""),
    exact={},
    # The R9V fork's recurrent layers keep a checkpoint every 1616 tokens, and the third round is the first to find one.
    cache_rounds=3,
    cache_repeats=450,
)
_ENGINES = {"llamacpp": LLAMA_SERVER, "r9v": VLLM}


def dialect_of(engine: str) -> Dialect:
    """The dialect of an engine of the env schema."""
    return _ENGINES[engine]
