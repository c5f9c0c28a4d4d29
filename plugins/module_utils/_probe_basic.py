# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes that generate nothing: health, models, props, metrics, auth."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._expect import find
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import (
    Target,
    Verdict,
    absent,
    failed,
    found,
    parsed,
    passed,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import Declaration

__all__ = [
    "judge_promise",
    "judge_props",
    "look_auth",
    "probe_auth",
    "probe_health",
    "probe_metrics",
    "probe_models",
    "probe_props",
    "series",
]

_HEALTH_S = 30
_SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})? +(\S+)", re.MULTILINE)
_SAMPLERS = {
    "TEMP": "temperature",
    "TOP_P": "top_p",
    "TOP_K": "top_k",
    "MIN_P": "min_p",
    "PRESENCE_PENALTY": "presence_penalty",
}


def probe_health(target: Target) -> Verdict:
    """200 from ``/health`` before a deadline. One that is busy or loading is asked again, one that is gone is not."""
    started = time.monotonic()
    limit = min(_HEALTH_S, target.declared.timeout_s)
    asked = 0
    while True:
        asked += 1
        answer = target.api.get("/health", timeout_s=min(5, limit))
        waited = time.monotonic() - started
        if answer.status == 200:
            late = f" at the {asked}th asking" if asked > 1 else ""
            return passed("health", f"HTTP 200 after {waited:.2f} s{late}", waited, asked=asked)
        busy = answer.status == 503 or "timed out" in answer.error
        if not busy or waited >= limit:
            return failed("health", f"expected HTTP 200 within {limit:g} s, found {answer.words}", waited, asked=asked)
        time.sleep(min(0.5, limit - waited))


def probe_models(target: Target) -> Verdict:
    """``/v1/models`` lists the declared alias."""
    answer = target.api.get("/v1/models")
    alias = target.declared.alias
    if answer.status != 200:
        return failed("models", f"expected HTTP 200, found {answer.words}", answer.seconds)
    names = find("data[].id", parsed(answer)) or []
    if alias in names:
        return passed("models", f"lists {alias}", answer.seconds, models=names)
    return failed("models", f"expected {alias}, found {', '.join(map(str, names)) or 'no model'}", answer.seconds)


def judge_props(told: Any, listed: Any, env: Mapping[str, str], slots: int, window: int, vision: bool) -> list[str]:
    """What llama-server's ``/props`` and ``/slots`` say otherwise than ``env``; ``listed`` is None where it is off."""
    wanted = [
        ("total_slots", slots),
        ("default_generation_settings.n_ctx", -(-window // 256) * 256),
        ("modalities.vision", vision),
        ("model_path", env["MODEL_FILE"]),
        ("model_alias", env["ALIAS"]),
    ]
    sides = [(name, expected, find(name, told)) for name, expected in wanted]
    if listed is not None:
        sizes = find("[].n_ctx", listed) or []
        sides.append(("the slots' n_ctx", [wanted[1][1]] * slots, sizes))
    problems = [f"{name}: expected {expected}, found {value}" for name, expected, value in sides if value != expected]
    for key, name in _SAMPLERS.items():
        if env.get(key):
            value = find(f"default_generation_settings.params.{name}", told)
            same = isinstance(value, (int, float)) and abs(value - float(env[key])) < 1e-4
            if not same:
                problems.append(f"{name}: expected {env[key]} by {key}, found {value}")
    return problems


def judge_promise(declared: Declaration, window: Any, sees: Any) -> list[str]:
    """What clients are told and the engine does not hold: a longer ``window``, or sight where ``sees`` is False.

    A client that is told less than there is gets no 400, and is no fault. ``sees`` is None where nobody says.
    """
    problems = []
    if declared.promised is not None and isinstance(window, int) and declared.promised > window:
        problems.append(f"clients are told {declared.promised} tokens, and a conversation holds {window}")
    if declared.shows and sees is False:
        problems.append("clients are told that images go in, and none do")
    return problems


def probe_props(target: Target) -> Verdict:
    """What the engine says of itself: window and number of slots, modalities, sampler defaults, payload, alias; and
    that clients are told no more than that."""
    declared, dialect = target.declared, target.dialect
    answer = target.api.get(dialect.window_path)
    if answer.status != 200:
        return failed("props", f"expected HTTP 200, found {answer.words}", answer.seconds)
    told = parsed(answer)
    window = find(dialect.window, told)
    broken = judge_promise(declared, window, find("modalities.vision", told))
    if dialect.slots is None or declared.slots is None or declared.window is None:
        if window != declared.window:
            broken.insert(0, f"window: expected {declared.window}, found {window}")
        if broken:
            return failed("props", "; ".join(broken), answer.seconds)
        return passed("props", f"a window of {window} tokens", answer.seconds, window=window)
    listed = target.api.get(dialect.slots)
    problems = judge_props(
        told,
        parsed(listed) if listed.status == 200 else None,
        declared.env,
        declared.slots,
        declared.window,
        bool(declared.env.get("MMPROJ_FILE")),
    )
    if listed.status not in (200, 501):
        problems.insert(0, f"{dialect.slots}: expected HTTP 200, found {listed.words}")
    problems += broken
    seconds = answer.seconds + listed.seconds
    if problems:
        return failed("props", "; ".join(problems), seconds)
    return passed("props", f"{declared.slots} slots of {window} tokens, as declared", seconds, window=window)


def series(text: str) -> dict[str, float]:
    """Every series of a Prometheus text; those of one name that differ in labels are summed."""
    sums: dict[str, float] = {}
    for name, value in _SERIES.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue  # no number: not a sample of ours
    return sums


def probe_metrics(target: Target) -> Verdict:
    """``/metrics`` answers 200 with the series that dashboards and alerts read."""
    answer = target.api.get("/metrics")
    if answer.status in target.dialect.no_metrics:
        return failed(
            "metrics", f"/metrics is off: {answer.words}; Prometheus takes that for a server down", answer.seconds
        )
    if answer.status != 200:
        return failed("metrics", f"expected HTTP 200, found {answer.words}", answer.seconds)
    names = series(answer.body.decode("utf-8", "replace"))
    missing = [name for name in target.dialect.families if name not in names]
    if missing:
        return failed("metrics", f"expected {', '.join(missing)}, found {len(names)} other series", answer.seconds)
    return passed("metrics", f"{len(names)} series, all that are read among them", answer.seconds, series=sorted(names))


def look_auth(target: Target) -> Verdict:
    """Whether an endpoint that declares no key asks for one."""
    answer = target.api.with_key(None).get("/v1/models")
    if answer.status == 401:
        return found("auth", "it asks for a key", answer.seconds)
    return absent("auth", "a request without a key is answered", answer.seconds)


def probe_auth(target: Target) -> Verdict:
    """401 to a request without the key and to one with another key, and none with it."""
    seconds = 0.0
    for who, api in (("without a key", target.api.with_key(None)), ("with a wrong key", target.api.with_key("wrong"))):
        answer = api.get("/v1/models")
        seconds += answer.seconds
        if answer.status != 401:
            return failed("auth", f"expected HTTP 401 {who}, found {answer.words[:100]}", seconds)
    right = target.api.get("/v1/models")
    seconds += right.seconds
    if right.status != 200:
        return failed("auth", f"expected HTTP 200 with the key, found {right.words}", seconds)
    return passed("auth", "HTTP 401 without the key and with another, 200 with it", seconds)
