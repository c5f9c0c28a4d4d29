# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser, on a phone and a desktop, light and dark; the pictures stay in .cache/report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.dank.llm_fleet.plugins.module_utils._report import page
from ansible_collections.dank.llm_fleet.plugins.module_utils._report_style import STYLE
from browser import Browser
from reports import fleet, spoilt

SHOTS = Path(__file__).resolve().parents[2] / ".cache" / "report"
WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
# What sticks out at the right, but for what is there for screen readers alone.
OVERHANG = """[...document.querySelectorAll('main *')].filter(
    one => one.getBoundingClientRect().right > WIDTH + 0.5 && !one.closest('caption, thead')
).map(one => one.outerHTML.slice(0, 120))"""
_COLOUR = r"--{}:(#[0-9a-f]+)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


def overhang(browser: Browser, width: int) -> list[str]:
    """The elements that stick out."""
    found: list[str] = browser.value(OVERHANG.replace("WIDTH", str(width)))
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_fits_and_asks_for_nothing(browser: Browser, width: int, scheme: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    file = SHOTS / "fleet-report.html"
    file.write_text(page(fleet()))
    browser.requests.clear()
    browser.show(file, width, scheme)
    browser.shoot(SHOTS / f"{width}-{scheme}.png")
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.shoot(SHOTS / f"{width}-{scheme}-unfolded.png")
    assert browser.value("document.documentElement.scrollWidth") == width
    assert overhang(browser, width) == []
    assert browser.requests == [file.as_uri()]
    dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [320, 700, 1000, 1210, 1280])
def test_words_without_end_fit_too(browser: Browser, tmp_path: Path, width: int) -> None:
    file = tmp_path / "long.html"
    file.write_text(page(spoilt(fleet(), "x" * 120)))
    browser.show(file, width, "light")
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert overhang(browser, width) == []


def test_what_sticks_out_is_seen(browser: Browser, tmp_path: Path) -> None:
    wide = tmp_path / "wide.html"
    wide.write_text(page(fleet()).replace("<footer>", f"<footer><pre><span>{'x' * 200}</span></pre>"))
    browser.show(wide, 390, "light")
    assert browser.value("document.documentElement.scrollWidth") > 390 and overhang(browser, 390)


def test_no_script_of_the_page_runs(browser: Browser, tmp_path: Path) -> None:
    """Even one that had found its way in: the page's policy forbids it."""
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(page(fleet()).replace("<footer>", "<script>window.ran = 1</script><footer>"))
    browser.show(spoilt, 390, "light")
    assert browser.value("typeof window.ran") == "undefined"


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of ``#rgb`` or ``#rrggbb``."""
    digits = colour.lstrip("#")
    pairs = [digit * 2 for digit in digits] if len(digits) == 3 else [digits[at : at + 2] for at in (0, 2, 4)]
    parts = [int(pair, 16) / 255 for pair in pairs]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [0, 1], ids=SCHEMES)
@pytest.mark.parametrize("ground", ["paper", "sheet"])
def test_text_and_parts_stand_out(palette: int, ground: str) -> None:
    """4.5 to 1 for text, as WCAG 2 asks at level AA; 2.6 to 1 for parts of bars, which their list names beside."""
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    colours = {name: re.findall(_COLOUR.format(name), STYLE)[palette] for name in re.findall(r"--([a-z]+):", STYLE)}
    text = {name: contrast(colours[name], colours[ground]) for name in "ink soft link good warn bad idle".split()}
    assert {name: round(value, 1) for name, value in text.items() if value < 4.5} == {}
    parts = "weights recurrent draft projector adapter compute".split()
    drawn = {name: contrast(colours[name], colours[ground]) for name in parts}
    assert {name: round(value, 1) for name, value in drawn.items() if value < 2.6} == {}
