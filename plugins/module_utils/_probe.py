# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes of an endpoint: which there are, which have to run, running them, and the error of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.dank.llm_fleet.plugins.module_utils._api import Api
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_adapter import look_adapter, probe_adapter
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_ask import Target, Verdict, absent, found, user
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_basic import (
    look_auth,
    probe_auth,
    probe_health,
    probe_metrics,
    probe_models,
    probe_props,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_chat import (
    CHAT_PROMPT,
    look_reasoning,
    probe_chat,
    probe_greedy,
    probe_reasoning,
    probe_stream,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_context import (
    probe_cache,
    probe_context,
    probe_slots,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_custom import custom_name, probe_custom
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_declare import CAPABILITIES, Declaration, declare
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_draft import (
    look_drafting,
    look_ngram,
    probe_drafting,
    probe_ngram,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_tools import look_tools, probe_tools
from ansible_collections.dank.llm_fleet.plugins.module_utils._probe_vision import look_vision, probe_vision

__all__ = ["ALWAYS", "Probe", "Verdict", "declare", "only", "probes_of", "require_probes", "run", "select"]

Ask = Callable[[Target], Verdict]
# Whatever was proven before, these are asked anew.
ALWAYS = ("health", "chat")


@dataclass(frozen=True)
class Probe:
    """``ask`` proves what is declared; ``look`` tells whether what is not declared is there."""

    name: str
    ask: Ask
    look: Ask
    declared: bool


def _look_by(ask: Ask) -> Ask:
    """The look of a probe that is as cheap as one: what would pass is found."""

    def look(target: Target) -> Verdict:
        verdict = ask(target)
        tell = found if verdict.ok else absent
        return tell(verdict.probe, verdict.evidence, verdict.seconds)

    return look


_ASK: Mapping[str, Ask] = {
    "health": probe_health,
    "models": probe_models,
    "props": probe_props,
    "metrics": probe_metrics,
    "auth": probe_auth,
    "chat": probe_chat,
    "stream": probe_stream,
    "greedy": probe_greedy,
    "cache": probe_cache,
    "context": probe_context,
    "reasoning": probe_reasoning,
    "tools": probe_tools,
    "vision": probe_vision,
    "adapter": probe_adapter,
    "drafting": probe_drafting,
    "ngram": probe_ngram,
    "slots": probe_slots,
}
_LOOK: Mapping[str, Ask] = {
    "auth": look_auth,
    "reasoning": look_reasoning,
    "tools": look_tools,
    "vision": look_vision,
    "adapter": look_adapter,
    "drafting": look_drafting,
    "ngram": look_ngram,
}


def probes_of(declared: Declaration) -> list[Probe]:
    """Every probe in the order in which it runs, cheap ones first, the inventory's own last."""
    own = [Probe(name, _ASK[name], _LOOK.get(name) or _look_by(_ASK[name]), name in declared.capabilities)
           for name in CAPABILITIES]  # fmt: skip
    for entry in declared.custom:

        def ask(target: Target, entry: Mapping[str, Any] = entry) -> Verdict:
            return probe_custom(target, entry)

        own.append(Probe(custom_name(entry), ask, ask, True))
    return own


def select(probes: Sequence[Probe], expired: Collection[str] | None) -> list[Probe]:
    """Those that have to run when ``expired`` lost their proof: these and :data:`ALWAYS`; None for all there are."""
    return [probe for probe in probes if expired is None or probe.name in expired or probe.name in ALWAYS]


def only(probes: Sequence[Probe], names: Sequence[str]) -> list[Probe]:
    """Those that were asked for by name; a FleetError that lists the known ones for any other."""
    known = [probe.name for probe in probes]
    strange = [name for name in names if name not in known]
    if strange:
        raise FleetError(
            f"there is no probe {', '.join(strange)}",
            expected=f"of: {', '.join(known)}",
            found=", ".join(strange),
            remedy="Name one of these, or declare it under probes.custom",
        )
    return [probe for probe in probes if probe.name in names]


def run(
    api: Api,
    declared: Declaration,
    probes: Sequence[Probe],
    *,
    stop: bool = False,
    say: Callable[[str], Any] = lambda _step: None,
) -> list[Verdict]:
    """The verdicts of ``probes`` in their order, up to a failed ``health`` or, with ``stop``, to any failed one.

    One request is sent before the first that generates: after a boot it is a warm-up, and no measurement.
    """
    target = Target(api, declared)
    verdicts: list[Verdict] = []
    warm = False
    for probe in probes:
        say(f"probe: {probe.name}")
        if not warm and probe.name not in ("health", "models", "props", "metrics", "auth"):
            target.ask(user(CHAT_PROMPT), max_tokens=1)  # whatever is wrong with it the probes say
            warm = True
        verdict = probe.ask(target) if probe.declared else probe.look(target)
        verdicts.append(verdict)
        if not verdict.ok and (stop or probe.name == "health"):
            break
    return verdicts


def require_probes(verdicts: Sequence[Verdict], of: str) -> None:
    """Raise the failed verdicts as one FleetError that carries all of them."""
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if wrong:
        raise FleetError(
            f"probe{'s' if len(wrong) > 1 else ''} {', '.join(verdict.probe for verdict in wrong)} of {of}",
            expected="what the endpoint declares that it can do",
            found="; ".join(f"{verdict.probe}: {verdict.evidence}" if len(wrong) > 1 else verdict.evidence
                            for verdict in wrong),
            remedy="See docs/how-to/declare-probes.md: mend the endpoint, or what it declares",
            gate="probes",
            probes=[verdict.as_dict() for verdict in verdicts],
        )  # fmt: skip
