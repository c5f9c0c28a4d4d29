# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which series a query names, and the lint that turns red on one that nobody exposes."""

from __future__ import annotations

import contextlib

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._errors import FleetError
from ansible_collections.dank.llm_fleet.plugins.module_utils._promql import exposed, series_of, unknown_series
from hypothesis import given
from hypothesis import strategies as st

QUERIES = {
    "up": {"up"},
    'up{job="a{b}", x=~"up|down"} == 0': {"up"},
    "rate(llamacpp:tokens_predicted_total[5m])": {"llamacpp:tokens_predicted_total"},
    "sum by (host, endpoint) (rate(a_total[1h30m])) / sum without (le) (b)": {"a_total", "b"},
    "sum(a) by (host)": {"a"},
    "a / on (host) group_left (alias, era) b": {"a", "b"},
    "a >= on (host) group_left () b or c unless d and ignoring (x) e": {"a", "b", "c", "d", "e"},
    "histogram_quantile(0.95, sum by (le) (rate(x_bucket[$__rate_interval])))": {"x_bucket"},
    "a offset 5m > bool 1e3": {"a"},
    "max_over_time(deriv(a[5m])[10m:1m])": {"a"},
    "time() - a @ end() < 0x1F": {"a"},
    "a # up\n+ b": {"a", "b"},
    "label_replace(a, \"x\", '$1', `y`, \"(.*)\")": {"a"},
    "-a ^ Inf + NaN": {"a"},
    "count(ALERTS{alertstate=\"firing\"}) or vector(0)": {"ALERTS"},
    "by_host + on_card": {"by_host", "on_card"},
    "a{host=~\"$host\"}[${__range:raw}]": {"a"},
    "": set(),
    "1 + 2": set(),
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_series_of_a_query(query: str) -> None:
    assert series_of(query) == QUERIES[query]


@pytest.mark.parametrize(
    "query, words",
    [
        ('{__name__=~"a.*"}', "a selector without a name"),
        ('sum by (x) ({__name__="a"})', "a selector without a name"),
        ('a unless {x="y"}', "a selector without a name"),
        ('a{x="y"', "as many } as {"),
        ("a }", "as many } as {"),
        ('a{x="y}', "is no PromQL"),
        ("a; b", "is no PromQL"),
    ],
)
def test_what_cannot_be_told_is_refused(query: str, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        series_of(query)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FleetError):
        assert all(name in text for name in series_of(text))


def test_names_of_a_scrape() -> None:
    text = '# HELP a b\n# TYPE a counter\na 1\nb:c{x="a 1"} 2 1700000000\n\nd_bucket{le="+Inf"} 3\n'
    assert exposed(text) == {"a", "b:c", "d_bucket"}
    assert exposed("") == set()


def test_a_series_that_nobody_exposes_is_named_with_its_place() -> None:
    queries = {"Panel": "rate(a[5m]) / b", "Alert": "c > 0"}
    assert unknown_series(queries, ["a", "b", "c"]) == []
    assert unknown_series(queries, ["a"]) == ["Panel: nobody exposes b", "Alert: nobody exposes c"]
