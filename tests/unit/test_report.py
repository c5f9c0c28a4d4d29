# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: nothing that hosts say becomes markup, nothing is asked for from elsewhere, and the figures are right."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.dank.llm_fleet.plugins.filter.fleet import FilterModule
from ansible_collections.dank.llm_fleet.plugins.module_utils._report import page
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_bench import axis_of, bench_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_data import Seen, gather
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_eras import eras_section, places
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_fleet import free_memory, headline, state_of
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_html import (
    figure,
    memory,
    moment,
    number,
    shape_words,
    slug,
    when,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_ledger import (
    card_views,
    ledger_section,
    measured_parts,
    parts_of,
)
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_probes import probes_section
from ansible_collections.dank.llm_fleet.plugins.module_utils._svg import (
    Dot,
    Mark,
    Part,
    Series,
    bar,
    chart,
    esc,
    spread_out,
    stack,
    strip,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import PROBES, SHAPES, SPEC, era, fleet, row, server, spoilt, verdict, zealot

VOID = {"meta", "br"}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=y>&{{ 7*7 }}\x00\u202e"
NBSP = "\N{NO-BREAK SPACE}"


class Parsed(HTMLParser):
    """Balanced tags, or an AssertionError; ``ids``, ``attributes`` and the words of the page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data

    def values(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [value for _tag, found, value in self.attributes if found == name]


def sound(text: str) -> Parsed:
    """Hold a page against everything that must be so whatever hosts said."""
    parsed = Parsed(text)
    ids = parsed.values("id")
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in parsed.values("href")} <= set(ids)
    assert set(parsed.values("aria-labelledby")) <= set(ids)
    names = {name for _tag, name, _value in parsed.attributes}
    assert not names & {"src", "srcset", "style", "action", "data", "poster"}
    assert not [name for name in names if name.startswith("on")]
    assert set(parsed.tags) <= {
        *"html head meta title style body main header footer section h1 h2 h3 h4 p a span code time b br div".split(),
        *"table caption thead tbody tr th td ul ol li details summary figure figcaption".split(),
        *"svg rect line circle text".split(),
    }
    sheet = text.partition("<style>")[2].partition("</style>")[0]
    assert sheet and "url(" not in sheet and "@import" not in sheet and "://" not in sheet
    allowed = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{allowed}'" in parsed.values("content")[0]
    assert all(value for tag, name, value in parsed.attributes if (tag, name) == ("svg", "aria-label"))
    assert parsed.tags.count("svg") == len([1 for tag, name, _v in parsed.attributes if (tag, name) == ("svg", "role")])
    return parsed


def one_of(host: dict[str, Any], name: str) -> Seen:
    """An endpoint of a host."""
    (found,) = [seen for seen in gather([host]) if seen.name == name]
    return found


def test_the_owners_fleet_is_one_sound_page() -> None:
    parsed = sound(page(fleet()))
    for words in (
        "1 of 3 endpoints serve what was declared.",
        "As of 29 Nov 2026, 03:40",
        "3 slots, f16/q8_0, draft-mtp",
        "200,704",
        "20261128T191502Z-60506406",
        "14 of 14",
        "rung no_prefix_cache",
        "No route to host",
        "answered 'The capital city of France is Paris.'",
        "no tool call: finish_reason stop",
        "+SPEC_TYPE=draft-mtp",
        "expected 1,024 MiB free, found 655",
        "the greedy text differs at token 112",
    ):
        assert words in parsed.words.replace(NBSP, " "), words
    assert parsed.values("id") == [
        "dankclaw-frank-zealot",
        "dankclaw-frank-zealot-name",
        "dankserver-frank-primary",
        "dankserver-frank-primary-name",
        "dankserver-frank-medium",
        "dankserver-frank-medium-name",
    ]


def test_equal_data_give_an_equal_page() -> None:
    assert page(fleet()) == page(json.loads(json.dumps(fleet())))
    other = fleet()
    other[0]["endpoints"][0]["restarts"] = 1
    assert page(other) != page(fleet())


@pytest.mark.parametrize("hosts", [[], [{"host": "bare"}], [{"host": "bare", "declared": {}, "endpoints": []}]])
def test_an_empty_fleet_is_a_page_that_says_so(hosts: list[dict[str, Any]]) -> None:
    words = sound(page(hosts)).words
    assert (
        "declares no endpoint" in words
        and "No endpoint is declared as active." in words
        and "No record is dated" in words
    )


def test_one_endpoint_well() -> None:
    words = sound(page([zealot()])).words
    assert "The endpoint serves what was declared, proven." in words


def test_a_host_without_an_answer_is_there_with_its_endpoints() -> None:
    gone = {"host": "h", "unreachable": "timed out", "declared": {"a": True, "b": False}}
    assert [(one.name, state_of(one)) for one in gather([gone])] == [
        ("a", ("bad", "unreachable", "timed out")),
        ("b", ("bad", "unreachable", "timed out")),
    ]
    words = sound(page([{**gone, "declared": {}}])).words
    assert "unreachable" in words and "timed out" in words


def test_what_could_not_be_read_is_told_beside_what_could() -> None:
    words = sound(page([{**zealot(), "cards": [], "fault": "Look at the cards: nvidia-smi hangs"}])).words
    assert "dankclaw could not be read: Look at the cards: nvidia-smi hangs" in words and "frank-zealot" in words
    nothing = {"host": "h", "declared": {"a": True}, "fault": "Look: era.json is damaged"}
    assert state_of(gather([nothing])[0]) == ("bad", "not read", "Look: era.json is damaged")


@pytest.mark.parametrize("text", [HOSTILE, "</style><h1>", "<!--", "]]>", "&lt;script&gt;"])
def test_hostile_text_stays_text(text: str) -> None:
    told = spoilt(fleet(), text)
    parsed = sound(page(told))
    assert "script" not in parsed.tags and "img" not in parsed.tags
    whole = page(told)
    assert text not in whole or "<" not in text
    assert " ".join(text.split()).replace("\x00", "\ufffd").replace("\u202e", "\ufffd") in parsed.words


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=15)
def test_any_text_anywhere_leaves_the_page_sound(text: str) -> None:
    sound(page(spoilt([zealot()], text)))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**7) | st.floats() | st.text(max_size=8),
    lambda deeper: st.lists(deeper, max_size=2),
    max_leaves=3,
)


@given(JUNK, st.sampled_from(["total_mib", "free_mib", "floor_mib", "weights_mib", "free_after_mib"]))
@settings(max_examples=25)
def test_a_size_that_is_no_number_is_left_out(junk: Any, key: str) -> None:
    host = zealot()
    host["evidence"][0]["certificate"]["fit"]["cards"][0][key] = junk
    sound(page([host]))


def test_a_page_with_markup_would_be_seen() -> None:
    """The check itself turns red."""
    good = page([zealot()])
    for wrong in (
        good.replace("</section>", "", 1),
        good.replace("<footer>", '<footer><img src="x">'),
        good.replace("<footer>", '<footer id="dankclaw-frank-zealot">'),
        good.replace(":root{", ":root{background:url(x);", 1),
        good.replace('href="#dankclaw', 'href="elsewhere#dankclaw', 1),
        good.replace("<footer>", "<footer onclick=x>"),
    ):
        assert wrong != good
        with pytest.raises(AssertionError):
            sound(wrong)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "\N{EN DASH}"), (0, f"0{NBSP}MiB"), (317.4, f"317{NBSP}MiB"), (1024, f"1.0{NBSP}GiB"),
     (-2048, f"-2.0{NBSP}GiB"), (float("nan"), "\N{EN DASH}"), (float("inf"), "\N{EN DASH}"), ("9", "\N{EN DASH}"),
     (True, "\N{EN DASH}"), (1 << 21, f"2,048.0{NBSP}GiB")],
)  # fmt: skip
def test_memory_in_words(value: Any, words: str) -> None:
    assert memory(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(3245.4, "3,245"), (118.2, "118"), (71.23, "71.2"), (0.7461, "0.746"), (3, "3"), ("x", "\N{EN DASH}")],
)
def test_figures_in_words(value: Any, words: str) -> None:
    assert figure(value) == words


def test_numbers_are_finite_numbers_alone() -> None:
    assert [number(value) for value in (1, 1.5, True, "1", None, float("nan"), [], -0.0)] == [1, 1.5, *[None] * 5, 0]


def test_times() -> None:
    assert str(moment("20261130T075218Z")) == str(moment("2026-11-30T08:52:18+01:00")) == "2026-11-30 07:52:18+00:00"
    assert [moment(value) for value in ("", None, "2026", "20261330T000000Z", "<b>")] == [None] * 5
    assert when("x") == "\N{EN DASH}"
    assert Parsed(when("20261130T075218Z")).words == f"30{NBSP}Nov{NBSP}2026, 07:52"


def test_anchors_are_unique_and_plain() -> None:
    hosts = [{"host": "a b", "declared": {"c": True}}, {"host": "a", "declared": {"b-c": True, "<>": True}}]
    assert [one.anchor for one in gather(hosts)] == ["a-b-c", "a-b-c-2", "a"]
    assert slug("<>", "") == "x"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({}, []),
        ({"parallel": 1, "cache_type_k": None, "cache_type_v": None, "spec_type": "none"}, ["1 slot", "f16/f16"]),
        ({"parallel": 3, "cache_type_v": "q8_0", "spec_type": "draft-mtp"}, ["3 slots", "f16/q8_0", "draft-mtp"]),
        ({"parallel": None, "spec_type": "mtp2", "state_file": "/x"}, ["mtp2", "as its state file says"]),
    ],
)
def test_shapes_in_words(shape: dict[str, Any], words: list[str]) -> None:
    assert shape_words(shape) == words


@pytest.mark.parametrize(
    ("active", "told", "probes", "state"),
    [
        (True, {}, PROBES, ("good", "serves, proven")),
        (True, {"era": None, "truth": None}, [], ("warn", "never deployed")),
        (False, {"era": None, "truth": None}, [], ("idle", "never deployed")),
        (True, {"truth": "env file: expected a, found b"}, PROBES, ("bad", "not as deployed")),
        (
            False,
            {"truth": "main process: expected one, found none", "unit": "inactive (dead)"},
            [],
            ("idle", "stands by"),
        ),
        (False, {"truth": "env file: expected a, found b"}, [], ("bad", "not as deployed")),
        (True, {}, [verdict("tools", "no", verdict="fail")], ("warn", "serves, probes fail")),
    ],
)
def test_states(active: bool, told: dict[str, Any], probes: list[Any], state: tuple[str, str]) -> None:
    one = Seen("h", "e", active=active, row=row("e", **told), proof={"probes": probes})
    assert state_of(one)[:2] == state


def test_the_headline_counts_what_is_meant_to_serve() -> None:
    well, idle = Seen("h", "a", row=row("a")), Seen("h", "b", active=False, row=row("b", era=None))
    bad = Seen("h", "c", row=row("c", truth="unit: expected x, found y"))
    assert headline([well, idle]) == ("good", "The endpoint serves what was declared, proven.")
    assert headline([well, well, idle]) == ("good", "All 2 endpoints serve what was declared, proven.")
    assert headline([well, bad]) == ("bad", "1 of 2 endpoints serve what was declared.")
    assert headline([bad]) == ("bad", "0 of 1 endpoint serves what was declared.")


def test_free_memory_is_the_drivers_now_then_the_proofs_then_the_forecast() -> None:
    primary, medium = one_of(server(), "frank-primary"), one_of(server(), "frank-medium")
    assert free_memory(primary) == [("r9700-0", 4402.0, "now"), ("r9700-1", 3118.0, "now")]
    # it stands by: what is free now is free beside another
    assert free_memory(medium) == [("r9700-0", 4410.0, "at the proof"), ("r9700-1", 3120.0, "at the proof")]
    ((name, size, whence),) = free_memory(one_of({**zealot(), "cards": []}, "frank-zealot"))
    assert (name, whence) == ("rtx3090", "foretold") and 0 < size < 28723
    assert free_memory(Seen("h", "e", proof={"fit": {"cards": [], "host": {"free_after_mib": 512.0}}})) == [
        ("host", 512.0, "foretold")
    ]


def test_a_card_is_found_by_its_address_and_without_one_by_its_place() -> None:
    found = [{"vendor": "amd", "pci": "0000:03:00.0", "index": 1, "free_mib": 1.0}, {"vendor": "nvidia", "index": 0}]
    host = {"host": "h", "declared": {"e": True}, "endpoints": [row("e")], "cards": found}
    cards = {
        "a": {"vendor": "amd", "pci": "0000:03:00.0", "index": 0},
        "b": {"vendor": "amd", "pci": "0000:07:00.0", "index": 1},
        "c": {"vendor": "nvidia", "pci": "unknown", "index": 0},
    }
    (one,) = gather([{**host, "llm_cards": cards}])
    assert one.live == {"a": found[0], "c": found[1]}


def test_parts_add_up_to_the_ledgers_total() -> None:
    for name, host in (("frank-zealot", zealot()), ("frank-medium", server())):
        views = card_views(one_of(host, name))
        assert views
        for view in views:
            sizes = [size for _kind, _name, size in parts_of(view.foretold)]
            assert sum(sizes) == pytest.approx(view.foretold["total_mib"])
            assert view.foretold_free == pytest.approx(view.capacity - view.foretold["total_mib"])


def test_measured_parts_add_up_to_what_the_driver_says_is_in_use() -> None:
    (view,) = card_views(one_of(zealot(), "frank-zealot"))
    assert (view.free, view.whence, view.floor) == (1655.0, "now", 1024)
    parts = {kind: size for kind, _name, size in measured_parts(view)}
    assert sum(parts.values()) == pytest.approx(view.capacity - 1655.0)
    assert parts["compute"] == pytest.approx(480.0) and parts["other"] > 0
    full = copy.deepcopy(zealot())
    full["cards"][0]["free_mib"] = 20000.0  # less in use than the forecast's parts: they tell nothing
    (view,) = card_views(one_of(full, "frank-zealot"))
    assert measured_parts(view) == [("used", "in use", view.capacity - 20000.0)]
    (view,) = card_views(one_of({**zealot(), "cards": []}, "frank-zealot"))
    assert measured_parts(view) == [] and view.free is None


def test_a_floor_that_is_not_left_is_said() -> None:
    host = zealot()
    assert "is not left free" not in ledger_section(one_of(host, "frank-zealot"))
    host["cards"][0]["free_mib"] = 655.0
    assert "floor 1.0" in ledger_section(one_of(host, "frank-zealot"))
    assert "is not left free" in ledger_section(one_of(host, "frank-zealot"))


def test_a_forecast_over_the_card_is_drawn_with_the_cards_edge() -> None:
    host = zealot()
    card = host["evidence"][0]["certificate"]["fit"]["cards"][0]
    card |= {"free_mib": card["total_mib"] - 512, "free_after_mib": -512.0}
    host["cards"] = []
    text = ledger_section(one_of(host, "frank-zealot"))
    assert 'class="edge"' in text and f"-512{NBSP}MiB free" in text


def test_a_host_without_cards_has_its_own_bar() -> None:
    fit = {"cards": [], "host": {"name": "host", "weights_mib": 90.0, "free_mib": 4096.0, "floor_mib": 0.0,
                                 "free_after_mib": 4006.0}}  # fmt: skip
    (view,) = card_views(Seen("h", "e", proof={"fit": fit}))
    assert (view.name, view.capacity, parts_of(view.foretold)) == ("host", 4096.0, [("weights", "weights", 90.0)])
    assert "No ledger" in ledger_section(Seen("h", "e"))


def test_eras_lie_by_their_time() -> None:
    eras = [era("20261101T000000Z"), era("20261102T000000Z"), era("20261111T000000Z")]
    assert places(eras) == pytest.approx([0, 0.1, 1])
    assert places([eras[0], {**eras[1], "created": None}, eras[2]]) == [0, 0.5, 1]
    assert places(eras[:1]) == [0] and places([eras[0], eras[0]]) == [0, 1] and places([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40).map(sorted), st.floats(0.001, 0.2))
def test_dots_keep_apart_and_on_the_strip(marks: list[float], gap: float) -> None:
    out = spread_out(marks, gap)
    near = min(gap, 1 / max(len(marks) - 1, 1))
    assert all(later - earlier >= near - 1e-9 for earlier, later in itertools.pairwise(out))
    assert out[-1] <= 1 + 1e-9 and out[0] >= -1e-9


def test_eras_tell_what_changed_and_why_one_failed() -> None:
    text = eras_section(one_of(zealot(), "frank-zealot"))
    words = Parsed(f"<div>{text}</div>").words
    assert "-CACHE_TYPE_V=f16" in words and "memory on rtx3090 20,110 -> 21,480 MiB" in words
    assert "2 older" in words and words.index("28" + NBSP) < words.rindex(f"4{NBSP}Oct")
    assert 'aria-label="Eras of frank-zealot by time: 5 certified, 1 failed"' in text
    damaged = Seen("h", "e", eras=[{"id": "x", "state": "damaged", "reason": "era.json is damaged", "changes": None}])
    assert "era.json is damaged" in eras_section(damaged)
    assert "nothing was deployed yet" in eras_section(Seen("h", "e"))


def test_evidence_is_unfolded_where_a_probe_failed() -> None:
    assert "<details>" in probes_section(one_of(zealot(), "frank-zealot"))
    assert "<details open>" in probes_section(one_of(server(), "frank-primary"))
    assert "No proof" in probes_section(Seen("h", "e"))


@pytest.mark.parametrize(
    ("cells", "axis"),
    [
        (SHAPES["cells"], "prompt"),
        (SPEC["cells"], None),
        ([], None),
        ([{"cell": {"prompt": size}} for size in (1, 2)], None),
        ([{"cell": {"prompt": size}} for size in (1, 2, "x")], None),
        ([{"cell": {"prompt": size, "way": way}} for size in (1, 2, 3) for way in range(2)], "prompt"),
        ([{"cell": {"prompt": size, "way": f"w{way}"}} for size in (1, 2, 3) for way in range(7)], None),
    ],
)
def test_a_size_that_was_varied_is_an_axis(cells: list[dict[str, Any]], axis: str | None) -> None:
    assert axis_of(cells) == axis


def test_benches_are_drawn() -> None:
    text = bench_section(one_of(zealot(), "frank-zealot"))
    words = Parsed(f"<div>{text}</div>").words
    assert text.count('class="chart"') == 3 and text.count('class="figure"') == 6
    assert "171 better" in words and "failed" in words and "drafted tokens accepted" in words
    assert bench_section(Seen("h", "e")) == ""
    odd = {"kind": "own", "at": "x", "era": None, "cells": [{"cell": {}, "figures": {"x": {"median": "7"}}}, "junk"]}
    assert "No cell gave a figure." in bench_section(Seen("h", "e", benches=[odd], unread=["/x is no result"]))


def test_a_stack_is_as_wide_as_its_parts() -> None:
    text = stack([Part("a", 25, "a<"), Part("b", 0, "none"), Part("c", 75, "c")], 100, "it", [Mark("floor", 90)])
    assert re.findall(r'<rect class="(\w)" x="([\d.]+)%" y="4" width="([\d.]+)%"', text) == [
        ("a", "0.00", "25.00"),
        ("c", "25.00", "75.00"),
    ]
    assert 'x1="90.00%"' in text and "<title>a&lt;</title>" in text
    assert "<rect" not in stack([Part("a", 5, "a")], 0, "it")


def test_drawings_keep_within_their_frame() -> None:
    assert 'x1="0.00%"' in bar(1, 5, 2, "it") and 'width="100.00%"' in bar(9, 0, 2, "it")
    assert "<rect" not in bar(1, 0, 0, "it")
    assert re.findall(r'cx="([\d.]+)%"', strip([Dot("a", -3, ""), Dot("b", 7, "")], "it")) == ["1.50", "98.50"]
    text = chart(["1", "2"], [Series(0, [(0, 10.0, 0.0, "x"), (1, 0.0, 0.0, "y")])], "it", "10")
    assert re.findall(r'cx="([\d.]+)%" cy="([\d.]+)"', text) == [("2.00", "22.0"), ("97.00", "150.0")]
    assert "NaN" not in chart(["1"], [Series(0, [(0, 0.0, 0.0, "x")])], "it", "0")
    assert chart([], [], "it", "").count("<circle") == 0


def test_text_is_escaped_and_on_one_line() -> None:
    assert esc(' <a href="x">\n\t\'&') == "&lt;a href=&quot;x&quot;&gt; &#x27;&amp;"
    # what a page cannot hold, or turns the text around it about
    assert esc("a\x00b\x1b[31m\ud800\u202eé✓") == "a\ufffdb\ufffd[31m\ufffd\ufffdé✓"


def test_the_filter_takes_what_the_playbook_registered() -> None:
    told = zealot()
    hostvars = {
        "dankclaw": {
            "llm_endpoints": {"frank-zealot": {"active": True}},
            "llm_cards": told["llm_cards"],
            **{f"report_{key}": {key: told[key]} for key in ("endpoints", "histories", "evidence", "cards")},
        },
        "gone": {"llm_endpoints": {"b": {}}, "report_endpoints": {"unreachable": True, "msg": "timed out"}},
        "half": {
            "llm_endpoints": {"c": {"active": True}},
            "report_endpoints": {"failed": True},
            "report_fault": "Look: no",
        },
        "left out": {},
    }
    text = FilterModule().filters()["fleet_page"](hostvars, ["dankclaw", "gone", "half"])
    half = {"host": "half", "declared": {"c": True}, "fault": "Look: no"}
    gone = {"host": "gone", "declared": {"b": False}, "unreachable": "timed out"}
    assert text == page([{**told, "declared": {"frank-zealot": True}}, gone, half])
    assert "left out" not in text
