"""The page: whole in itself, safe whatever a log holds, readable on a laptop and a telephone."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import AsyncIterator
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.analysis.report import Figures, Log, figures_of
from pipecat_hedge.tools.analysis.report.page import page_of
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from tests.live.browser import NO_BROWSER, chromium
from tests.tools.analysis.report.made_up import BEGIN_AT, attempt, cold, heard, turn

HAIKU = PROFILES["claude-haiku-4-5"]
EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(2)>&amp;'
LONG = "a-provider-whose-name-is-as-long-as-a-name-may-be-and-has-no-blank-in-it-anywhere"

_OVERLAPS = """
() => {
  const texts = [], wrong = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.data.trim() || node.parentElement.closest("title")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1) continue;
      // What a table scrolls out of sight is not beside anything.
      const wide = node.parentElement.closest(".wide");
      if (!wide && (box.left < -0.5 || box.right > innerWidth + 0.5))
        wrong.push(`beyond the screen: ${node.data.trim()}`);
      texts.push({ box, wide, text: node.data.trim() });
    }
  }
  for (let i = 0; i < texts.length; i++)
    for (let j = i + 1; j < texts.length; j++) {
      const [a, b] = [texts[i], texts[j]];
      if (a.wide !== b.wide) continue;
      const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const up = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      // Lines of one paragraph stand closer than their letters' boxes are high.
      if (across > 1 && up > 0.35 * Math.min(a.box.height, b.box.height))
        wrong.push(`${a.text} / ${b.text}`);
    }
  if (document.documentElement.scrollWidth > innerWidth)
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
  return wrong;
}
"""
_HIDDEN = """
() => {
  for (const each of document.querySelectorAll("details")) each.open = true;
  const hidden = [];
  for (const wide of document.querySelectorAll(".wide")) {
    const right = wide.getBoundingClientRect().right + 1;
    for (const cell of wide.querySelectorAll("th, td"))
      if (cell.getBoundingClientRect().right > right)
        hidden.push(`${wide.getAttribute("aria-label")}: ${cell.textContent}`);
  }
  return hidden;
}
"""
_UNLABELLED = """
() => [...document.querySelectorAll(".wide td")]
  .filter(cell => {
    const label = getComputedStyle(cell, "::before").content;
    const head = cell.closest("table").querySelectorAll("th")[cell.cellIndex].textContent;
    return !label.includes(head) || label === "none";
  })
  .map(cell => cell.textContent)
"""
_CONTRASTS = """
() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => {
      const c = v / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const low = [];
  for (const each of document.querySelectorAll("p, td, th, span, b, h1, h2, h3, li, div.xtitle")) {
    const ink = light(getComputedStyle(each).color);
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) low.push(`${each.className} ${each.textContent.slice(0, 30)}: ${ratio}`);
  }
  return low;
}
"""


def turns(name: str = "one", count: int = 300) -> list[LoggedTurn]:
    """Two hours of turns, twenty minutes of them slow; some hedged, some failed, some cold."""
    waits = HAIKU.samples(count, 1).tolist()
    made = list[LoggedTurn]()
    for n, wait in enumerate(waits):
        at, tier = BEGIN_AT + 24.0 * n, ("premium", "standard", "economy")[n % 3]
        ttft = wait * (6 if 100 <= n < 150 else 1)
        fields: dict[str, Any] = {"at": at, "tier": tier}
        if n % 40 == 7:
            bad = attempt(name, None, ended=0.3, outcome="failed", error_category="rate_limit")
            more = attempt("two", 0.4, launched=0.3, reason="failure", usd=0.002)
            made.append(turn(bad, more, ttft=0.7, **fields))
        elif ttft > 2:
            lost = attempt(name, None, ended=1.6, outcome="superseded", usd=0.001)
            won = attempt("two", 0.6, launched=1.0, ended=2.4, reason="hedge", usd=0.002)
            made.append(turn(lost, won, ttft=1.6, **fields))
        else:
            stages = cold(0.12, new_connection=n % 5 == 0)
            made.append(turn(attempt(name, ttft, usd=0.001, stages=stages), ttft=ttft, **fields))
    return made


def figures(name: str = "one", *, replay: bool = False, **fields: Any) -> Figures:
    log = Log(("turns.jsonl",), tuple(turns(name)), **fields)
    other = Log(("other.jsonl",), tuple(turns(name, 200)))
    return figures_of(log, zone=UTC, against=other, replay=replay)


@pytest.fixture(scope="module")
def page() -> str:
    lived = tuple(heard(1.0 + n / 100, at=BEGIN_AT + n) for n in range(100))
    return page_of(figures(replay=True, heard=lived), UTC)


class _Markup(HTMLParser):
    """Collects what a page refers to, and whether its elements are closed in order."""

    VOID = ("meta", "link", "img", "br", "hr", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.refers = list[str](), set[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.refers += [f"{k}={v}" for k, v in attrs if k in ("src", "href") or k.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag


def parsed(page: str) -> _Markup:
    markup = _Markup()
    markup.feed(page)
    assert markup.open == []
    return markup


def test_the_page_needs_nothing_else(page: str) -> None:
    """No script, no other file, no address; its elements are closed in order."""
    markup = parsed(page)
    assert markup.refers == []
    assert not markup.tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page)


def test_whatever_a_provider_is_called_is_only_its_name() -> None:
    """Markup in a name, a model or a file's name stays text."""
    log = Log((EVIL,), tuple(turns(EVIL)), (), 1, (EVIL,))
    made = page_of(figures_of(log, zone=UTC, against=log, replay=True), UTC)
    markup = parsed(made)
    assert markup.refers == []
    assert not markup.tags & {"script", "img"}
    assert "<script" not in made
    assert "&lt;script&gt;" in made


def test_every_part_is_there(page: str) -> None:
    """In the order in which an operator asks."""
    parts = re.findall(r'<h[23] id="([a-z]+)"', page)
    assert parts == [
        "compared",
        "callers",
        "promises",
        "providers",
        "spells",
        "hedging",
        "slowest",
        "cost",
        "changes",
    ]
    assert "no difference that this much data can show" in page
    assert page.count('<div class="turn">') == 10


def test_no_chart_is_without_units(page: str) -> None:
    """Each says what is across and what is up."""
    charts = page.count('role="img"')
    assert charts >= 9
    assert page.count('class="xtitle"') == page.count('class="ytitle"') == charts
    for title in re.findall(r'class="(?:x|y)title">([^<]*)<', page):
        assert "second" in title or "share" in title or title in ("time of day", "day")


def test_lines_that_were_skipped_are_told() -> None:
    """How many, and the first of them."""
    made = page_of(figures(skipped=3, named_skips=("turns.jsonl:9: no duration_secs in it",)), UTC)
    assert "3 lines could not be used." in made
    assert "turns.jsonl:9: no duration_secs in it" in made


def test_a_log_of_one_turn_makes_a_page() -> None:
    """And one in which nobody was ever asked."""
    gone = attempt(ttft=None, ended=0.0, outcome="failed", error_category="shed", sent_secs=None)
    for made in (turn(), turn(gone, ttft=None, outcome="failed", degraded_reason="no room")):
        parsed(page_of(figures_of(Log(("x",), (made,)), zone=UTC), UTC))


# ---- in a browser

SCREENS = [(w, s) for w in (1280, 390) for s in ("light", "dark")]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if chromium() is None:
        pytest.fail(NO_BROWSER)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield started
        await started.close()


@pytest.mark.live
async def test_no_text_overlaps_and_none_is_off_the_screen(
    browser: Browser, page: str, tmp_path: Path
) -> None:
    """On a laptop and a telephone, light and dark; with names as long as can be, too."""
    pages = {"usual": page, "long": page_of(figures(LONG), UTC)}
    for name, made in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(made)
        for width, scheme in SCREENS:
            tab = await browser.new_page(
                viewport={"width": width, "height": 844},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            await tab.goto(path.as_uri())
            assert await tab.evaluate(_OVERLAPS) == [], (name, width, scheme)
            assert await tab.evaluate(_CONTRASTS) == [], (name, width, scheme)
            paper = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
            await tab.close()


@pytest.mark.live
async def test_no_column_is_hidden(browser: Browser, page: str, tmp_path: Path) -> None:
    """The verdict, the cost: neither on a laptop nor on a telephone has anybody to look for them.

    On a telephone a row is a card, on which every figure stands under what it is.
    """
    for name, made in {"usual": page, "long": page_of(figures(LONG, replay=True), UTC)}.items():
        path = tmp_path / f"{name}.html"
        path.write_text(made)
        for width in (1280, 390, 320):
            tab = await browser.new_page(viewport={"width": width, "height": 844})
            await tab.goto(path.as_uri())
            assert await tab.evaluate(_HIDDEN) == [], (name, width)
            unlabelled = await tab.evaluate(_UNLABELLED)
            assert unlabelled == [] if width < 576 else unlabelled
            await tab.close()


@pytest.mark.live
async def test_the_first_column_stays_where_a_table_scrolls(
    browser: Browser, page: str, tmp_path: Path
) -> None:
    """On a screen between the two: whose the figures are is read beside the last of them."""
    path = tmp_path / "page.html"
    path.write_text(page)
    tab = await browser.new_page(viewport={"width": 640, "height": 844})
    await tab.goto(path.as_uri())
    lefts = await tab.evaluate(
        """() => [...document.querySelectorAll(".wide")]
          .filter(wide => wide.scrollWidth > wide.clientWidth)
          .map(wide => {
            wide.scrollLeft = 1000;
            const first = wide.querySelector("td").getBoundingClientRect();
            return first.left - wide.getBoundingClientRect().left;
          })"""
    )
    assert lefts
    assert set(lefts) == {0}
    await tab.close()


MARGIN = "10mm"
PAPER = 718
"""So many pixels of CSS are between these margins of a sheet of A4."""


@pytest.mark.live
async def test_it_can_be_printed(browser: Browser, page: str, tmp_path: Path) -> None:
    """On paper it is light, whatever the screen is; no table is cut off, and no letter is tiny.

    What is wider than the paper makes Chromium draw the whole page smaller.
    """
    path = tmp_path / "page.html"
    path.write_text(page)
    tab = await browser.new_page(viewport={"width": PAPER, "height": 1000}, color_scheme="dark")
    await tab.goto(path.as_uri())
    await tab.emulate_media(media="print", color_scheme="dark")
    assert await tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    sides = dict.fromkeys(("top", "bottom", "left", "right"), MARGIN)
    printed = await tab.pdf(format="A4", margin=sides)  # type: ignore[arg-type]
    scale = scale_of(printed)
    assert scale == pytest.approx(0.75, abs=0.001)  # a pixel of CSS is so many points
    least = await tab.evaluate(
        """() => Math.min(...[...document.querySelectorAll("td, th, p, li, span, div.xtitle")]
          .map(each => parseFloat(getComputedStyle(each).fontSize)))"""
    )
    assert least * scale >= 8
    assert await tab.evaluate(_HIDDEN) == []
    await tab.close()


def scale_of(pdf: bytes) -> float:
    """How many points a pixel of CSS is on the first page: the product of its first scales."""
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):
            found = re.findall(rb"^(\S+) 0 0 \S+ \S+ \S+ cm", zlib.decompress(stream), re.MULTILINE)
            if len(found) >= 2:
                return float(found[0]) * float(found[1])
    raise AssertionError("no page in it")
