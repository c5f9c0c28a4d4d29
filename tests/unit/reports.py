# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet for the report: the owner's three endpoints over golden headers, with made-up proofs and benches."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._fit import told_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger import predict
from ansible_collections.dank.llm_fleet.plugins.module_utils._ledger_shape import Card, Shape
from goldens import NINE, SWA, TWENTY_SEVEN, header

NOTHING: dict[str, Any] = {"env": [], "files": [], "runtime": None, "unit": [], "launcher": False, "ledger": {}}


@cache
def _fit(model: str, shape: Shape, cards: tuple[Card, ...], drafter: str | None) -> str:
    drafts = None if drafter is None else header(drafter)
    told = told_of(predict(header(model), shape, cards=cards, drafter=drafts), [])
    return json.dumps({key: told[key] for key in ("cards", "host", "split", "measured")})


def fit(model: str, shape: Shape, cards: tuple[Card, ...], drafter: str | None = None) -> dict[str, Any]:
    """What a certificate keeps of a golden ledger."""
    told: dict[str, Any] = json.loads(_fit(model, shape, cards, drafter))
    return told


def verdict(probe: str, evidence: str, seconds: float = 0.4, verdict: str = "pass") -> dict[str, Any]:
    """One probe of a certificate."""
    return {"probe": probe, "verdict": verdict, "evidence": evidence, "seconds": seconds, "facts": {}}


def era(created: str, state: str = "certified", **more: Any) -> dict[str, Any]:
    """One row of a history."""
    shape = {"parallel": 3, "ctx_per_slot": 200704, "cache_type_k": "f16", "cache_type_v": "q8_0"}
    told = {
        "id": f"{created}-60506406",
        "created": created,
        "state": state,
        "payload": "bonsai2-9b-mtp",
        "runtime": "prism-b10777",
        "runtime_version": "b10777",
        "shape": shape,
        "rung": "",
        "reason": None,
        "changes": NOTHING,
        "current": False,
        "previous": False,
        "pinned": False,
        "ledger": [{"name": "rtx3090", "total_mib": 21480.2, "free_after_mib": 2643.0}],
    }
    return {**told, **more}


def row(name: str, **more: Any) -> dict[str, Any]:
    """One endpoint as ``endpoint_info`` tells it."""
    told = {
        "name": name,
        "unit": "active (running)",
        "restarts": 0,
        "payload": "bonsai2-9b-mtp",
        "model_file": "Bonsai-2-9B-MTP-PQ2_0.gguf",
        "runtime": "prism-b10777",
        "shape": {
            "ctx_size": 602112,
            "parallel": 3,
            "ctx_per_slot": 200704,
            "cache_type_k": "f16",
            "cache_type_v": "q8_0",
            "spec_type": "draft-mtp",
        },
        "port": 7771,
        "alias": name,
        "health": "HTTP 200",
        "era": "20261128T191502Z-60506406",
        "pinned": None,
        "truth": "ok",
        "probes": [],
    }
    return {**told, **more}


PROBES = [
    verdict("health", "HTTP 200 after 0.01 s", 0.01),
    verdict("models", "lists frank-zealot", 0.02),
    verdict("props", "3 slots of 200704 tokens, as declared", 0.02),
    verdict("metrics", "24 series, all that are read among them", 0.03),
    verdict("chat", "answered 'The capital city of France is Paris.'", 0.9),
    verdict("stream", "41 events in order, then usage and [DONE]", 0.8),
    verdict("greedy", "the same text twice at temperature 0", 1.7),
    verdict("cache", "512 of 530 prompt tokens from the cache", 1.1),
    verdict("context", "a longer prompt gets HTTP 400 that names 200704 tokens", 6.2),
    verdict("reasoning", "thinking arrives in reasoning_content and counts against max_tokens", 2.2),
    verdict("tools", "right calls: auto, required, streamed, with a result, two tools", 5.1),
    verdict("vision", "named red, green, blue (3 at once, 258 tokens each)", 3.4),
    verdict("drafting", "drafted tokens accepted: slot 0 71 %, slot 1 69 %, slot 2 74 %", 4.0),
    verdict("slots", "3 at once, one more waited and came", 7.3),
    verdict("ngram", "no n-gram drafts on echo traffic", 1.9, "not-declared"),
    verdict("adapter", "no adapter is loaded", 0.01, "not-declared"),
]


def stat(median: float, spread: float) -> dict[str, float]:
    """One figure of a bench."""
    return {"median": median, "spread": spread, "n": 3}


SHAPES = {
    "at": "2026-11-29T02:14:09+00:00",
    "kind": "shapes",
    "era": "20261128T191502Z-60506406",
    "cells": [
        {
            "cell": {"prompt": prompt, "output": output},
            "ok": True,
            "error": None,
            "figures": {
                "prefill_tps": stat(3100 - prompt / 40 + output / 4, 60),
                "decode_tps": stat(118 - prompt / 900 - output / 80, 2.5),
                "acceptance": stat(0.71 + output / 20000, 0.02),
            },
        }
        for output in (64, 512)
        for prompt in (512, 2048, 8192, 32768)
    ],
}
SPEC = {
    "at": "2026-11-29T03:40:51+00:00",
    "kind": "spec_ab",
    "era": "20261128T191502Z-60506406",
    "cells": [
        {
            "cell": {"text": text, "drafters": drafters},
            "ok": not (text == "identity" and drafters == "on"),
            "error": "the greedy text differs at token 112" if text == "identity" and drafters == "on" else None,
            "figures": {} if text == "identity" and drafters == "on" else {"decode_tps": stat(tps, spread)},
            "compared": {"decode_tps": {"verdict": "better"}} if text == "echo" and drafters == "on" else {},
        }
        for text, drafters, tps, spread in (
            ("prose", "off", 71.2, 0.8),
            ("prose", "on", 109.4, 3.1),
            ("echo", "off", 70.9, 0.6),
            ("echo", "on", 171.0, 5.5),
            ("structured", "off", 71.4, 0.9),
            ("structured", "on", 138.2, 4.0),
            ("identity", "on", 0, 0),
        )
    ],
}

ZEALOT_CARD = (Card("rtx3090", 24123 + 4600, 1024),)
ZEALOT_SHAPE = Shape(
    ctx_size=602112,
    parallel=3,
    cache_type_v="q8_0",
    ubatch_size=1024,
    batch_size=6144,
    spec_type="draft-mtp",
    spec_draft_n_max=2,
)
MEDIUM_CARDS = (Card("r9700-0", 32624, 1536), Card("r9700-1", 32624, 1536))
MEDIUM_SHAPE = Shape(
    ctx_size=196608,
    parallel=2,
    ubatch_size=512,
    tensor_split=(36, 29),
    spec_type="draft-dflash",
    spec_draft_n_max=7,
    draft_cards=("r9700-1",),
    backend="hip",
)


def certificate(at: str, told: dict[str, Any] | None, ledger: dict[str, Any], probes: Any = PROBES) -> dict[str, Any]:
    """A proof."""
    more = {} if told is None else {"fit": told}
    return {"at": at, "truth": [], "probes": probes, "ledger": ledger, "gap_s": 41.3, "digest": "0" * 64, **more}


def zealot() -> dict[str, Any]:
    """frank-zealot's host: one card whose address nobody declared."""
    eras = [
        era("20261004T081200Z", changes=None),
        era("20261019T173301Z", changes={**NOTHING, "env": ["-CACHE_TYPE_V=f16", "+CACHE_TYPE_V=q8_0"]}),
        era(
            "20261019T181510Z",
            "failed",
            reason="card rtx3090 is too full with frank-zealot.service up: expected 1,024 MiB free, found 655",
            changes={**NOTHING, "env": ["-UBATCH_SIZE=1024", "+UBATCH_SIZE=2048"]},
        ),
        era(
            "20261102T060000Z",
            changes={**NOTHING, "runtime": "prism b10650 (1a2b3c4d) -> prism-b10777 b10777 (5e6f7a8b)"},
        ),
        era(
            "20261120T211907Z",
            previous=True,
            changes={**NOTHING, "files": ["+lora /srv/models/bonsai2/wit-r32.gguf 9c1f27d0aa3e"]},
        ),
        era(
            "20261128T191502Z",
            current=True,
            changes={
                **NOTHING,
                "env": ["-CTX_SIZE=524288", "+CTX_SIZE=602112", "-SPEC_TYPE=none", "+SPEC_TYPE=draft-mtp"],
                "ledger": {"rtx3090": [20110.4, 21480.2]},
            },
        ),
    ]
    booted = {"free_mib": {}, "measured": {"rtx3090": {"compute_mib": 480.0, "draft_compute_mib": 120.0}}, "note": ""}
    proof = certificate(
        "2026-11-28T19:19:40+00:00",
        fit(NINE, ZEALOT_SHAPE, ZEALOT_CARD),
        {**booted, "differences": ["compute on rtx3090: predicted at most 702.00 MiB, the boot took 480.00"]},
    )
    return {
        "host": "dankclaw",
        "declared": {"frank-zealot": True},
        "llm_cards": {"rtx3090": {"vendor": "nvidia", "pci": "unknown", "index": 0}},
        "endpoints": [row("frank-zealot")],
        "histories": [{"name": "frank-zealot", "pin": None, "eras": eras}],
        "evidence": [
            {
                "name": "frank-zealot",
                "cards": [{"name": "rtx3090", "vendor": "nvidia", "free_mib": 24123, "floor_mib": 1024}],
                "certificate": proof,
                "benches": [SHAPES, SPEC],
                "unread": [],
            }
        ],
        "cards": [{"vendor": "nvidia", "index": 0, "pci": "0000:01:00.0", "total_mib": 24576, "free_mib": 1655.0}],
    }


def server() -> dict[str, Any]:
    """The host of frank-primary, whose engine nobody forecasts, and of frank-medium, which stands by."""
    shape = {
        "ctx_size": None,
        "parallel": None,
        "ctx_per_slot": None,
        "state_file": "/home/dank/r9v-state/q8xl/setup.json",
    }
    primary = row(
        "frank-primary",
        payload="qwen38-flash-next-q8",
        model_file="Qwen3.8-Flash-Next-Q8_K_XL.gguf",
        runtime="r9v-2dac17a2",
        shape=shape,
        port=7770,
        era="20261110T090000Z-aa506406",
        pinned="rung no_prefix_cache",
        restarts=2,
    )
    medium = row(
        "frank-medium",
        unit="inactive (dead)",
        truth="main process: expected one, found none",
        health="connection refused",
        payload="swift-qwen38-27b-q8kxl",
        model_file="Swift-Qwen3.8-27B-UD-Q8_K_XL.gguf",
        shape={
            "ctx_size": 196608,
            "parallel": 2,
            "ctx_per_slot": 98304,
            "cache_type_k": "f16",
            "cache_type_v": "f16",
            "spec_type": "draft-dflash,ngram-mod",
        },
        port=7770,
        era="20260911T101500Z-bb506406",
    )
    cards = [
        {"name": name, "vendor": "amd", "pci": pci, "floor_mib": 1536, "free_mib": 32624}
        for name, pci in (("r9700-0", "0000:03:00.0"), ("r9700-1", "0000:07:00.0"))
    ]
    free = {"free_mib": {"r9700-0": 4410.0, "r9700-1": 3120.0}, "measured": {}, "differences": [], "note": ""}
    told = fit(TWENTY_SEVEN, MEDIUM_SHAPE, MEDIUM_CARDS, drafter=SWA)
    chat = [verdict("health", "HTTP 200 after 0.02 s", 0.02), verdict("chat", "answered 'Paris.'", 1.3)]
    wrong = [*chat, verdict("tools", "no tool call: finish_reason stop instead of tool_calls", 2.0, "fail")]
    return {
        "host": "dankserver",
        "declared": {"frank-medium": False, "frank-primary": True},
        "llm_cards": {card["name"]: card for card in cards},
        "endpoints": [medium, primary],
        "histories": [
            {
                "name": "frank-medium",
                "pin": None,
                "eras": [
                    era("20260911T101500Z", current=True, changes=None, payload="swift-qwen38-27b-q8kxl", ledger=[]),
                ],
            },
            {
                "name": "frank-primary",
                "pin": {"rung": "no_prefix_cache"},
                "eras": [
                    era("20261027T120000Z", previous=True, changes=None, ledger=[], payload="qwen38-flash-next-q8"),
                    era(
                        "20261110T090000Z",
                        current=True,
                        pinned=True,
                        rung="no_prefix_cache",
                        ledger=[],
                        payload="qwen38-flash-next-q8",
                        changes={**NOTHING, "env": ["-R9V_ENABLE_PREFIX_CACHING=1", "+R9V_ENABLE_PREFIX_CACHING=0"]},
                    ),
                ],
            },
        ],
        "evidence": [
            {
                "name": "frank-medium",
                "cards": cards,
                "certificate": certificate("2026-09-11T10:21:33+00:00", told, free, chat),
                "benches": [],
                "unread": [],
            },
            {
                "name": "frank-primary",
                "cards": cards,
                "certificate": certificate("2026-11-10T09:12:00+00:00", None, free, wrong),
                "benches": [],
                "unread": [],
            },
        ],
        "cards": [
            {"vendor": "amd", "pci": "0000:03:00.0", "total_mib": 32624, "free_mib": 4402.0},
            {"vendor": "amd", "pci": "0000:07:00.0", "total_mib": 32624, "free_mib": 3118.0},
        ],
    }


def fleet() -> list[dict[str, Any]]:
    """Both hosts, and one that does not answer."""
    gone = {
        "host": "danklab",
        "unreachable": "Failed to connect to the host via ssh: ssh: connect to host danklab port 22: No route to host",
        "declared": {"lab-chat": True},
    }
    return [zealot(), server(), gone]


def spoilt(value: Any, text: str) -> Any:
    """The same data with every text of it followed by ``text``."""
    if isinstance(value, dict):
        return {key: spoilt(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [spoilt(item, text) for item in value]
    return value + text if isinstance(value, str) else value
