"""The example bot's page in a headless Chromium, whose microphone is a recording.

Waits are for what the page shows and what its connection has received, each with a deadline.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import BrowserContext, Page

from tests.live.bot_process import ROOT, BotProcess, recording
from tests.live.browser import NO_BROWSER, browsing, chromium, write_microphone

pytestmark = [
    pytest.mark.live,
    pytest.mark.realtime,
    pytest.mark.timeout(120),
    pytest.mark.skipif(chromium() is None, reason=NO_BROWSER),
]

WAIT_MS = 30_000  # generous: the machine may be busy with something else
BEFORE_SECS, LATER_SECS = 12.0, 12.0  # to connect and be greeted; to be answered at length
LONG = "Yes, we are. " + " ".join(
    f"On day {number} of this month, the kitchen opens at noon, and closes at nine."
    for number in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
)
"""Lasts for as long as any wait here, so that the caller can only interrupt it."""

PAGE = ROOT / "examples/voice_bot/page"
FIRST, SECOND = "openai:fixed", "anthropic:fixed"


@contextmanager
def no_complaints(page: Page) -> Iterator[None]:
    """Errors of the page, in its console or not caught, fail the test."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    yield
    assert complaints == []


async def opened(context: BrowserContext, url: str) -> Page:
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    await page.goto(url)
    return page


async def energy(page: Page) -> float:
    """The audio energy that has been received so far."""
    return await page.evaluate("heard.at(-1)?.energy ?? 0")


async def heard_more(page: Page, since: float) -> None:
    """Wait until speech has come in: a quarter of a second of it has some 0.001 of energy."""
    await page.wait_for_function("since => heard.at(-1)?.energy > since + 0.001", arg=since)


async def fell_silent(page: Page) -> None:
    """Wait until the latest turn is shown as interrupted, and 0.4 s without a sound after that."""
    await page.wait_for_function(
        """() => {
          const turn = document.querySelector("#turns .turn");
          if (turn?.dataset.outcome === "interrupted") window.since ??= performance.now();
          const after = heard.filter(({ at }) => at > window.since);
          const isQuiet = (one, other) =>
            other.at - one.at >= 400 && other.energy - one.energy < 1e-6;
          return after.some((one) => after.some((other) => isQuiet(one, other)));
        }"""
    )


async def beyond_the_edge(page: Page, width: int, height: int) -> list[str]:
    """What sticks out of a screen of that size on the right."""
    await page.set_viewport_size({"width": width, "height": height})
    return await page.eval_on_selector_all(
        "main *",
        """found => found
          .filter((one) => !one.closest(".phrases")) // which can be scrolled
          .filter((one) => one.getBoundingClientRect().right > innerWidth)
          .map((one) => `${one.className}: ${one.textContent}`)""",
    )


LAST_LINES = [f"#transcript li:nth-last-child({number}) .text" for number in (1, 2)]


async def provider_rows(page: Page) -> list[str]:
    names = await page.eval_on_selector_all(
        "#providers tbody", "found => found.map((one) => one.dataset.provider)"
    )
    return [f"#providers [data-provider='{name}'] .provider-figures" for name in names]


async def is_cut(page: Page, selector: str) -> bool:
    """Whether part of an element cannot be seen without scrolling."""
    return await page.locator(selector).evaluate(
        """async (one) => {
          const seen = new Promise((resolve) => {
            const observer = new IntersectionObserver(([entry]) => {
              observer.disconnect();
              resolve(entry.intersectionRatio);
            });
            observer.observe(one);
          });
          return (await seen) < 0.99;
        }"""
    )


async def test_a_call(tmp_path: Path) -> None:
    """The page connects, lets the answer be heard, shows its race, and is interrupted."""
    asking, interrupting = recording("open-sunday"), recording("cancel-that")
    microphone = write_microphone(
        tmp_path / "microphone.wav", [BEFORE_SECS, asking, LATER_SECS, interrupting, 1.0]
    )
    answer = LONG.replace(" ", "%20")
    models = f"fixed?ttft=0.9&answer={answer} fixed?ttft=0.2&tps=inf&answer={answer}"
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="after:0.3", TURN_DETECTION="0.2") as bot,
        browsing(microphone) as context,
    ):
        page = await opened(context, bot.url)
        with no_complaints(page):
            await page.click("#connect")
            await page.wait_for_selector("#state[data-state=connected]")
            await heard_more(page, 0.0)  # the greeting, which the question interrupts
            greeting = page.locator("#turns .turn", has_text="Greeting")
            await greeting.wait_for()
            await page.wait_for_selector("#turns .turn.interrupted")

            # The question is answered.
            turn = page.locator("#turns .turn", has_text="Turn 2")
            await turn.wait_for()
            await heard_more(page, await energy(page))
            assert await turn.get_attribute("data-outcome") == "answered"
            assert await turn.locator(".turn-winner").inner_text() == SECOND
            assert await turn.locator(".attempt .row-name").all_inner_texts() == [FIRST, SECOND]
            lost, won = turn.locator(".attempt.superseded"), turn.locator(".attempt.won")
            assert await lost.locator(".bar.waiting, .mark.closed").count() == 2
            assert await won.locator(".bar.waiting, .bar.answering, .mark.commit").count() == 3
            assert await turn.locator(".heard .bar.spoken, .heard .mark.answer").count() == 2
            told = await turn.locator(".moments li").all_inner_texts()
            assert [words.rsplit(" ", 1)[0] for words in told] == [
                "LLM called",
                "committed",
                "answer heard",
            ]
            assert await turn.locator(".figure dd").all_inner_texts() != ["–", "–"]

            # The caller speaks over it.
            await fell_silent(page)
            assert "interrupted: you spoke" in await turn.inner_text()
            assert await page.locator("#transcript .cut").count() == 2

            # And is answered again.
            silent_at = await energy(page)
            await page.locator("#turns .turn", has_text="Turn 3").wait_for()
            await heard_more(page, silent_at)
            await figure(page, FIRST, "superseded", "3")
            await figure(page, SECOND, "won", "3")
            p50, p95 = [await figure(page, SECOND, name) for name in ("p50", "p95")]
            assert 0 < float(p50) < float(p95)
            basis = page.locator(f"#providers [data-provider='{SECOND}'] .basis")
            assert (await basis.inner_text()).endswith("% assumed")
            so_far = await page.locator("#so-far dd").all_inner_texts()
            assert so_far[2::3] == ["3\u00a0answers", "2\u00a0answers"]

            assert await beyond_the_edge(page, 390, 844) == []
            assert await page.evaluate("document.documentElement.scrollHeight") < 1400
            assert await beyond_the_edge(page, 1280, 720) == []
            last = "#turns .turn:first-child .chart"
            shown = [last, "#legend li:last-child", *await provider_rows(page), *LAST_LINES]
            assert [one for one in shown if await is_cut(page, one)] == []

            lines = [re.search(r" - (turn \d+): ", line) for line in bot.lines]
            numbers = [found[1].capitalize() for found in lines if found]
            names = await page.locator("#turns .turn-number").all_inner_texts()
            assert names[::-1] == [f"{numbers[0]}, greeting", *numbers[1:]]

            await page.click("#connect")
            await page.wait_for_selector("#state[data-state=idle]")


async def test_hang_button_shows_a_hedge_that_wins(tmp_path: Path) -> None:
    """The bench needs no call; the last turn is on a telephone's first screen."""
    said = [BEFORE_SECS, recording("open-sunday"), LATER_SECS]
    microphone = write_microphone(tmp_path / "microphone.wav", said)
    models = "fixed?ttft=0.2 claude-haiku-4-5?ttft=0.3"
    first, second = "openai:fixed", "anthropic:claude-haiku-4-5"
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="after:0.5", TURN_DETECTION="0.2") as bot,
        browsing(microphone, viewport={"width": 390, "height": 844}) as context,
    ):
        page = await opened(context, bot.url)
        with no_complaints(page):
            await page.get_by_text(
                "It understands only what callers of a restaurant ask"
            ).wait_for()
            for phrase in await page.locator("#phrases li").all():
                box = await phrase.bounding_box()
                assert box is not None
                assert 0 <= box["x"] <= 390 - box["width"]
            row = page.locator(f".bench-row[data-provider='{first}']")
            await row.locator("[data-behaviour=hang]").click()
            await row.locator("[data-behaviour=hang][aria-pressed=true]").wait_for()
            await page.click("#connect")
            turn = page.locator("#turns .turn", has_text="Turn 2")
            await turn.wait_for()
            assert await turn.locator(".turn-winner").inner_text() == second
            assert await turn.locator(".attempt.superseded").inner_text() != ""
            assert "hedge" in await turn.locator(".attempt.won").inner_text()
            chart = await turn.locator(".chart").bounding_box()
            assert chart is not None
            assert chart["y"] + chart["height"] < 844
            await row.locator("[data-behaviour=well]").click()
            await row.locator("[data-behaviour=well][aria-pressed=true]").wait_for()
        ledger = await bot.ledger()
    assert {request["fault"] for request in ledger["requests"]} == {"hang", None}


async def figure(page: Page, provider: str, name: str, text: str = "") -> str:
    """What the page shows of a provider, once it has this text."""
    selector = f"[data-provider='{provider}'] [data-figure={name}]"
    return await page.locator(selector, has_text=text).inner_text()


# ---- the page's own drawings, without a call

TURN = {
    "turn": 2,
    "outcome": "answered",
    "winner": "a",
    "ttft_secs": 0.4,
    "continues": False,
    "voice_to_voice_secs": 1.5,
    "origin": "user_silence",
    "asked_secs": 0.5,
    "committed_secs": 0.9,
    "attempts": [],
    "filler": None,
    "heard": {"sound_secs": 1.5, "filler_end_secs": None, "answer_secs": 1.5},
    "transcripts": [],
}
TRANSCRIPT = {"transcript_secs": 0.3, "is_rescued": False, "was_replaced": False}
SPEECH = {"turn": 2, "sentences": 3, "rescued": 0, "left_out": 0, "first_sound_secs": 0.6}
DRAW = """async (messages) => {
  const { TurnsView } = await import("/page/turns.js");
  const names = { list: "turns", empty: "no-turns", soFar: "so-far", legend: "legend" };
  const parts = { ...names, underWay: "under-way" };
  for (const name in parts) parts[name] = document.getElementById(parts[name]);
  const turns = new TurnsView(parts);
  for (const [kind, message] of messages) turns[kind](message);
  return [...document.querySelectorAll("#turns .turn:first-child .row")].map((row) => ({
    note: row.querySelector(".row-note").innerText.replace(/\\s+/g, " "),
    caption: row.querySelector(".caption")?.innerText.replace(/\\s+/g, " "),
    bars: [...row.querySelectorAll(".bar")].map(({ className }) => className.slice(4)),
  }));
}"""


SAY = """async (lines) => {
  const { TranscriptView } = await import("/page/transcript.js");
  const byId = (id) => document.getElementById(id);
  const transcript = new TranscriptView(byId("transcript"), byId("hint"));
  lines.forEach(([speaker, text], n) =>
    speaker === "you" ? transcript.user(text) : transcript.bot(n, text),
  );
}"""


@asynccontextmanager
async def no_bot() -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    """Opens the page where nothing answers, to draw on."""

    async def index(_: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html")

    app = web.Application()
    app.add_routes([web.get("/", index), web.static("/page", PAGE)])
    async with TestServer(app) as server, browsing() as context:
        yield partial(opened, context, str(server.make_url("/")))


async def test_turns_and_transcripts_are_drawn(subtests: pytest.Subtests) -> None:
    async with no_bot() as drawing_page:
        for check in (
            a_turn_that_called_a_tool_has_the_numbers_of_both_its_races,
            a_telephone_shows_a_hedge_and_two_lines_of_the_transcript,
            waits_for_transcript_and_voice_are_drawn_where_they_are_known,
        ):
            with subtests.test(check.__name__):
                await check(await drawing_page())


async def a_turn_that_called_a_tool_has_the_numbers_of_both_its_races(page: Page) -> None:
    call = {**TURN, "outcome": "answered_with_tools", "heard": None}
    answer = {**TURN, "turn": 3, "continues": True}
    await page.evaluate(DRAW, [("add", call), ("add", answer)])
    assert await page.locator("#turns .turn-number").all_inner_texts() == ["Turn 2 + 3"]


async def a_telephone_shows_a_hedge_and_two_lines_of_the_transcript(page: Page) -> None:
    """No part of them is beyond an edge that would have to be scrolled."""
    slow, fast = "openai:gpt-5.4-mini-2026-03-17", "anthropic:claude-haiku-4-5"
    times = {"launched_secs": 0.5, "first_token_secs": None, "ended_secs": 1.3, "ttft_secs": None}
    lost = {"provider": slow, "outcome": "superseded", "launch_reason": "primary", **times}
    won = {**lost, "provider": fast, "outcome": "won", "launch_reason": "hedge"}
    won |= {"launched_secs": 0.7, "first_token_secs": 0.9, "ttft_secs": 0.2}
    answer = "Yes, we do. Try our mushroom risotto, or the vegetable tart. Both are very popular."
    said = [("bot", answer), ("you", "Do you have anything vegetarian?"), ("bot", answer)]
    await page.evaluate(DRAW, [("add", {**TURN, "winner": fast, "attempts": [lost, won]})])
    await page.evaluate(SAY, said)
    await page.set_viewport_size({"width": 390, "height": 1400})
    shown = ["#turns .chart", "#turns .moments", *LAST_LINES]
    assert [one for one in shown if await is_cut(page, one)] == []
    scrolls = "one => one.scrollWidth > one.clientWidth"
    assert not await page.locator(".turns-scroll").evaluate(scrolls)


async def waits_for_transcript_and_voice_are_drawn_where_they_are_known(page: Page) -> None:
    """Within the rows that there are; what was rescued is marked."""
    rescued = {**TRANSCRIPT, "transcript_secs": 0.45, "is_rescued": True, "was_replaced": True}

    async def drawn(*messages: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
        you, *others, hear, _ = await page.evaluate(DRAW, messages)
        return you, hear, len(others)

    you, hear, others = await drawn(("add", TURN), ("speak", {**SPEECH, "turn": None}))
    assert (you["bars"], hear["bars"]) == (["pause"], ["spoken"])
    assert (you["note"], hear["caption"]) == ("silent", "answer after 1.50 s")

    calm = {**TURN, "transcripts": [TRANSCRIPT]}
    you, hear, same = await drawn(("add", calm), ("speak", SPEECH))
    assert (you["bars"], hear["bars"]) == (["pause", "waiting"], ["spoken", "waiting"])
    assert (you["note"], hear["note"]) == ("transcript 0.30 s", "the answer")
    assert hear["caption"] == "answer after 1.50 s, voice 0.60 s"
    assert same == others

    late = {**TURN, "transcripts": [rescued, TRANSCRIPT]}
    speech = {**SPEECH, "rescued": 1, "left_out": 1}
    you, hear, _ = await drawn(("speak", speech), ("add", late))  # the caller interrupted
    marked = "waiting rescued"
    assert (you["bars"], hear["bars"]) == (["pause", marked], ["spoken", marked])
    assert you["note"] == "transcript 0.30 s, rescued, replaced"
    assert hear["note"] == "1 of 3 rescued, 1 left out"
    assert hear["caption"].endswith("voice 0.60 s")
