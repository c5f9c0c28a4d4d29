# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory held against itself: schema, references, env rules, one owner for each port and card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils import _envspec
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._fit_boot import HOST, faults_of_terms
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_payload import judge_payload
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_probes import probe_problems
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_runtime import runtime_problems, unusable
from ansible_collections.dank.llm_fleet.plugins.module_utils._inventory_schema import (
    CARD,
    CLIENT,
    ENDPOINT,
    MEASURED,
    QUALIFY,
    REPLACES,
    RUNTIME,
    SETUP,
    SOURCES,
    UNKNOWN,
    check_digest,
    check_keys,
    source_fields,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._r9v_setups import faults_of_setups, key_faults

__all__ = ["Verdict", "validate"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


@dataclass
class Verdict:
    """What is wrong (the inventory is refused) and what is right but weaker than it could be."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def _check_runtime(name: str, given: Any, out: Verdict) -> None:
    where = f"llm_runtimes.{name}"
    problems = check_keys(where, given, RUNTIME)
    out.problems += problems
    source = given.get("source") if isinstance(given, Mapping) else None
    if not problems:
        out.problems += runtime_problems(where, given)
    if not isinstance(source, Mapping):
        return
    kind = source.get("kind")
    if not isinstance(kind, str) or kind not in SOURCES:
        out.problems.append(f"{where}.source.kind is {kind!r}; expected one of {', '.join(SOURCES)}.")
        return
    out.problems += check_keys(f"{where}.source", source, source_fields(kind))
    if kind in ("archive", "bundle"):
        found, warnings = check_digest(f"{where}.source", source)
        out.problems += found
        out.warnings += warnings
    if kind == "git" and len(str(source.get("commit", ""))) < 40:
        out.warnings.append(f"{where}.source: of the commit only a prefix is declared; a build needs all 40 digits")


def _check_card(name: str, given: Any, out: Verdict) -> None:
    where = f"llm_cards.{name}"
    problems = check_keys(where, given, CARD)
    out.problems += problems
    if problems:
        return
    if "pci" not in given and "uuid" not in given:
        out.problems.append(f"{where} has neither pci nor uuid: an index alone names no card. Add one of them.")
    if given.get("pci") == UNKNOWN and "uuid" not in given:
        out.warnings.append(f"{where}: its PCI address is unknown, so that it cannot be told from another card")
    if given.get("addressable_mib", 0) > given["total_mib"]:
        out.problems.append(
            f"{where}.addressable_mib {given['addressable_mib']} exceeds total_mib {given['total_mib']}. Mend one."
        )
    if given["floor_mib"] >= given.get("addressable_mib", given["total_mib"]):
        out.problems.append(f"{where}.floor_mib {given['floor_mib']} leaves nothing of the card. Lower it.")


def _normalise(engine: str, env: Mapping[str, Any]) -> tuple[dict[str, str], list[str], set[str]]:
    """(sound lines, problems, keys that are unsound), every key judged by itself."""
    sound: dict[str, str] = {}
    problems: list[str] = []
    bad: set[str] = set()
    for key, value in env.items():
        try:
            sound.update(_envspec.normalise(engine, {key: value}))
        except FleetError as exc:
            problems.append(exc.message)
            bad.add(str(key))
    return sound, problems, bad


def _env_problems(
    engine: str,
    env: Mapping[str, Any],
    payload: Mapping[str, Any] | None,
    setups: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """(everything wrong with the env, its lines with what follows from the payload)."""
    sound, problems, bad = _normalise(engine, env)
    full = sound
    if payload is not None:
        try:
            full = _envspec.derive(engine, sound, payload["dir"], payload["files"], "/llama-server")
        except FleetError as exc:
            return [*problems, exc.message], sound
        problems += key_faults(full, setups or {}) if engine == "r9v" else []
        problems += [
            text
            for text in _envspec.check(engine, full)
            if not any(text.startswith(f"{key} is missing") for key in bad)
        ]
    return problems, full


def _window(engine: str, env: Mapping[str, str]) -> int | None:
    """Tokens of one conversation, or None where the env does not say or is unsound."""
    try:
        window = _envspec.shape(engine, env)["ctx_per_slot"]
    except (KeyError, ValueError, ZeroDivisionError):  # named by the env's own problems already
        return None
    return None if window is None else int(window)


def _check_client(where: str, client: Mapping[str, Any], windows: Mapping[str, int | None]) -> Iterable[str]:
    """``windows``: rung name to window; "" is the endpoint as declared."""
    promised = client["context_window"]
    window = windows.get("")
    if window is not None and promised != window:
        yield (
            f"{where}.client.context_window is {promised}, and a slot holds {window}: the engine answers a longer "
            f"prompt with 400. Set it to {window}, or change CTX_SIZE or PARALLEL."
        )
    if client.get("max_tokens", 0) > promised:
        yield f"{where}.client.max_tokens {client['max_tokens']} exceeds context_window {promised}. Lower it."
    own = client.get("rungs") or {}
    for rung in own:
        if rung not in windows:
            yield f"{where}.client.rungs.{rung} names no rung of the endpoint. Take it out, or name it right."
    for rung, window in windows.items():
        if not rung or window is None:
            continue
        if rung in own and own[rung] != window:
            yield f"{where}.client.rungs.{rung} is {own[rung]}, and a slot holds {window} there. Set it to {window}."
        if rung not in own and window < promised:
            yield (
                f"{where}.rungs.{rung} leaves a slot {window} tokens, less than client.context_window {promised}. "
                f"Set {where}.client.rungs.{rung} to {window}, so that whoever takes the rung can tell the clients."
            )


def _check_visible(
    where: str, engine: str, env: Mapping[str, str], cards: Sequence[Mapping[str, Any]]
) -> Iterable[str]:
    """The engine sees the declared cards in their order, and no other (an iGPU counts as one to ROCm)."""
    for vendor, key in (("amd", "HIP_VISIBLE_DEVICES"), ("nvidia", "CUDA_VISIBLE_DEVICES")):
        indices = [str(card["index"]) for card in cards if card["vendor"] == vendor]
        key = "R9V_VISIBLE_DEVICES" if engine == "r9v" else key
        if engine == "r9v" and vendor == "nvidia":
            continue
        if key in env and env[key].split(",") != (indices or [""]):
            yield (
                f"{where}.env.{key} is {env[key]!r}; expected {','.join(indices)!r}, the indices of the declared cards "
                f"in their order. Mend the line, or llm_cards and {where}.cards."
            )
        if key not in env and indices and key == "HIP_VISIBLE_DEVICES":
            yield f"{where}.env.{key} is missing: an iGPU would be seen too. Set it to {','.join(indices)}."
    if engine == "r9v" and "R9V_EXPECTED_GPU_BDFS" in env:
        addresses = [str(card.get("pci")) for card in cards]
        if UNKNOWN not in addresses and env["R9V_EXPECTED_GPU_BDFS"].split(",") != addresses:
            yield (
                f"{where}.env.R9V_EXPECTED_GPU_BDFS is {env['R9V_EXPECTED_GPU_BDFS']}; expected {','.join(addresses)}, "
                f"the declared cards in their order. Mend one of the two."
            )


def _undeclared(where: str, kind: str, name: str, table: Mapping[str, Any]) -> Iterable[str]:
    if name not in table:
        guess = _envspec.closest(name, list(table))
        hint = f"Did you mean {guess}?" if guess else f"Declared: {', '.join(table) or 'none'}."
        yield f"{where}.{kind} {name!r} is not declared in llm_{kind}s. {hint}"


def _strange_cards(where: str, names: Iterable[str], cards: Mapping[str, Any]) -> Iterable[str]:
    for name in names:
        if name not in cards:
            known = ", ".join(cards) or "none"
            yield f"{where}.cards names {name!r}, which llm_cards does not declare. Declared: {known}."


def _check_measured(
    where: str,
    given: Mapping[str, Any],
    one: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    sound: set[str],
    cards: Mapping[str, Any],
    base: Sequence[str],
) -> Iterable[str]:
    """Figures of a boot; ``base`` are the problems that the endpoint's own env has already."""
    problems = check_keys(where, one, MEASURED)
    yield from problems
    if problems:
        return
    for kind, table in tables.items():
        if kind in one:
            yield from _undeclared(where, kind, one[kind], table)
    for fault in faults_of_terms(one["cards"]):
        yield f"{where}.cards: {fault.message}"
    yield from _strange_cards(where, (name for name in one["cards"] if name != HOST), cards)
    name = one.get("payload", given["payload"])
    payload = tables["payload"][name] if f"payload {name}" in sound else None
    found, _lines = _env_problems(given["engine"], {**given["env"], **one.get("env", {})}, payload)
    yield from (f"{where}.env: {text}" for text in found if text not in base)


def _sound_setups(where: str, given: Mapping[str, Any]) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """(the setups where all are sound, else none; what is wrong with them)."""
    told = given.get("setups") or {}
    if told and given["engine"] != "r9v":
        return {}, [f"{where}.setups belongs to engine r9v. Take it out."]
    problems = [text for name, one in told.items() for text in check_keys(f"{where}.setups.{name}", one, SETUP)]
    for name, one in told.items():
        if not problems and "qualify" in one:
            problems += check_keys(f"{where}.setups.{name}.qualify", one["qualify"], QUALIFY)
    problems = problems or [f"{where}.{text}" for text in faults_of_setups(told)]
    return ({} if problems else told), problems


def _rung_lines(where: str, given: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """(how a message names it, its lines) of each rung that has any."""
    for rung, lines in (given.get("rungs") or {}).items():
        if isinstance(lines, Mapping):
            yield f"{where}.rungs.{rung}", lines


def _check_endpoint(
    name: str,
    given: Any,
    runtimes: Mapping[str, Any],
    payloads: Mapping[str, Any],
    cards: Mapping[str, Any],
    sound: set[str],
    out: Verdict,
) -> str | None:
    """Judges one endpoint; its port as text where it has one. ``sound`` holds the payloads and cards to rely on."""
    where = f"llm_endpoints.{name}"
    problems = check_keys(where, given, ENDPOINT)
    if not _NAME.fullmatch(name):
        problems.append(
            f"{where}: the name is also a unit's and a file's; expected small letters, digits, dots and dashes."
        )
    out.problems += problems
    if problems:
        return None
    engine = given["engine"]
    tables = {"runtime": runtimes, "payload": payloads}
    for kind, table in tables.items():
        out.problems += _undeclared(where, kind, given[kind], table)
    runtime = runtimes.get(given["runtime"])
    if isinstance(runtime, Mapping) and runtime.get("engine") in _envspec.ENGINES and runtime["engine"] != engine:
        out.problems.append(
            f"{where}.engine is {engine}, and its runtime {given['runtime']} is {runtime['engine']}. Make them agree."
        )
    out.problems += unusable(where, given["runtime"], runtime, given["env"], given.get("rungs") or {})
    payload = payloads[given["payload"]] if f"payload {given['payload']}" in sound else None
    setups, problems = _sound_setups(where, given)
    out.problems += problems
    for here, lines in ((f"{where}.env", given["env"]), *_rung_lines(where, given)):
        if unknown := _envspec.unknown_keys(engine, lines):
            out.warnings.append(f"{here}: {', '.join(unknown)} unknown, so that nothing can be deployed with it")
    base, env = _env_problems(engine, given["env"], payload, setups)
    out.problems += [f"{where}.env: {text}" for text in base]
    windows = {"": _window(engine, env)}
    for rung, lines in (given.get("rungs") or {}).items():
        if not isinstance(lines, Mapping) or not lines:
            out.problems.append(f"{where}.rungs.{rung} is {lines!r}; expected the env lines that differ.")
            continue
        found, merged = _env_problems(engine, {**given["env"], **lines}, payload, setups)
        out.problems += [f"{where}.rungs.{rung}: {text}" for text in found if text not in base]
        windows[rung] = _window(engine, merged)
    for number, one in enumerate(given.get("measured") or []):
        here = f"{where}.measured[{one.get('name', number)}]"
        out.problems += _check_measured(here, given, one, tables, sound, cards, base)
    if "client" in given:
        problems = check_keys(f"{where}.client", given["client"], CLIENT)
        out.problems += problems or _check_client(where, given["client"], windows)
    if "replaces" in given:
        problems = check_keys(f"{where}.replaces", given["replaces"], REPLACES)
        if not problems and not any(given["replaces"].get(key) for key in ("units", "quadlets", "drop_ins", "files")):
            problems = [f"{where}.replaces names nothing; expected units, quadlets, drop_ins or files."]
        out.problems += problems
    if "probes" in given:
        out.problems += probe_problems(f"{where}.probes", given["probes"])
    wanted = given.get("cards") or []
    out.problems += _strange_cards(where, wanted, cards)
    if all(f"card {card}" in sound for card in wanted):
        out.problems += _check_visible(where, engine, env, [cards[card] for card in wanted])
    return _envspec.address_of(engine, env)[1]


def _check_owners(
    endpoints: Mapping[str, Any], cards: Mapping[str, Any], ports: Mapping[str, str | None], out: Verdict
) -> None:
    """One active endpoint for each port and for each card that is not shared."""
    sound = [name for name, given in endpoints.items() if not check_keys("", given, ENDPOINT)]
    active = [name for name in sound if endpoints[name].get("active", True)]
    by_port: dict[str, list[str]] = {}
    by_card: dict[str, list[str]] = {}
    for name in active:
        port = ports.get(name)
        if port:
            by_port.setdefault(port, []).append(name)
        for card in endpoints[name].get("cards") or []:
            by_card.setdefault(str(card), []).append(name)
    for port, names in by_port.items():
        if len(names) > 1:
            out.problems.append(
                f"llm_endpoints: {' and '.join(names)} are both active on port {port}. "
                f"Set active: false on all but one."
            )
    for card, names in by_card.items():
        shared = isinstance(cards.get(card), Mapping) and cards[card].get("shared", False)
        if len(names) > 1 and not shared:
            out.problems.append(
                f"llm_endpoints: {' and '.join(names)} are both active on card {card}. "
                f"Set active: false on all but one, or declare llm_cards.{card}.shared: true."
            )


def validate(
    host: str,
    runtimes: Mapping[str, Any],
    payloads: Mapping[str, Any],
    endpoints: Mapping[str, Any],
    cards: Mapping[str, Any],
    locks: Mapping[str, Any] | None = None,
) -> Verdict:
    """Everything that is wrong with what the inventory says of ``host``, each problem naming host, entry and key.

    ``locks`` (``llm_payload_locks``) count as declared. Warnings speak of what is declared in part: digest prefixes of
    what this host's endpoints use, and unknowns.
    """
    out = Verdict()
    tables = {"llm_runtimes": runtimes, "llm_payloads": payloads, "llm_endpoints": endpoints, "llm_cards": cards}
    for variable, table in tables.items():
        if not isinstance(table, Mapping):
            out.problems.append(f"{variable} is {type(table).__name__}; expected a dictionary of named entries.")
    if out.problems:
        return Verdict([f"{host}: {text}" for text in out.problems])
    used = {
        (kind, str(given.get(kind)))
        for given in endpoints.values()
        if isinstance(given, Mapping)
        for kind in ("runtime", "payload")
    }

    def judged(name: str, given: Any, single: Verdict) -> None:
        single.problems, single.warnings = judge_payload(name, given, locks or {}, used=("payload", name) in used)

    sound: set[str] = set()
    for kind, table, judge in (
        ("runtime", runtimes, _check_runtime),
        ("payload", payloads, judged),
        ("card", cards, _check_card),
    ):
        for name, given in table.items():
            single = Verdict()
            judge(str(name), given, single)
            if not single.problems:
                sound.add(f"{kind} {name}")
            out.problems += single.problems
            if kind in ("card", "payload") or (kind, str(name)) in used:
                out.warnings += single.warnings
    ports = {
        name: _check_endpoint(str(name), given, runtimes, payloads, cards, sound, out)
        for name, given in endpoints.items()
    }
    _check_owners(endpoints, cards, ports, out)
    return Verdict([f"{host}: {text}" for text in out.problems], [f"{host}: {text}" for text in out.warnings])
