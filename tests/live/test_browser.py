"""The example bot's page in a headless Chromium, whose microphone is a recording.

Waits are for what the page shows and what its connection has received, each with a deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page

from tests.live.bot_process import BotProcess, recording
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
            turn = page.locator("#turns .turn", has_text="Turn 1")
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
            await page.locator("#turns .turn", has_text="Turn 2").wait_for()
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
            assert await beyond_the_edge(page, 1280, 800) == []

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
            row = page.locator(f".bench-row[data-provider='{first}']")
            await row.locator("[data-behaviour=hang]").click()
            await row.locator("[data-behaviour=hang][aria-pressed=true]").wait_for()
            await page.click("#connect")
            turn = page.locator("#turns .turn", has_text="Turn 1")
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


async def test_failed_reconnect_keeps_the_last_call(tmp_path: Path) -> None:
    microphone = write_microphone(tmp_path / "microphone.wav", [60.0])
    async with BotProcess() as bot, browsing(microphone) as context:
        page = await opened(context, bot.url)
        await page.click("#connect")
        await page.locator("#turns .turn", has_text="Greeting").wait_for()
        await page.click("#connect")
        await page.wait_for_selector("#state[data-state=idle]")
        await page.route("**/api/offer", lambda route: route.abort())
        await page.click("#connect")
        await page.wait_for_selector("#error:not([hidden])")
        assert await page.locator("#turns .turn").count() == 1
        assert "primary" in (await page.get_attribute("#connect", "class") or "")


async def figure(page: Page, provider: str, name: str, text: str = "") -> str:
    """What the page shows of a provider, once it has this text."""
    selector = f"[data-provider='{provider}'] [data-figure={name}]"
    return await page.locator(selector, has_text=text).inner_text()


# ---- the page's own computations, without a call

WON = {
    "provider": "b",
    "outcome": "won",
    "launch_reason": "hedge",
    "launched_secs": 1.2,
    "first_token_secs": 1.6,
    "ended_secs": 2.5,
    "ttft_secs": 0.4,
    "error_category": None,
}
LOST = WON | {
    "provider": "a",
    "outcome": "superseded",
    "launch_reason": "primary",
    "launched_secs": 0.5,
    "first_token_secs": None,
    "ended_secs": 1.75,
    "ttft_secs": None,
}
RACE = {
    "turn": 2,
    "continues": False,
    "outcome": "answered",
    "winner": "b",
    "ttft_secs": 1.1,
    "voice_to_voice_secs": 2.0,
    "first_sound_secs": 1.0,
    "origin": "user_silence",
    "asked_secs": 0.5,
    "committed_secs": 1.75,
    "heard": {"sound_secs": 1.0, "filler_end_secs": 1.5, "answer_secs": 2.0, "interrupted": False},
    "filler": {"cause": "slow", "spoken_secs": 0.4, "reason": "", "was_cut": False},
    "attempts": [LOST, WON],
}


SLOS = [
    {
        "tier": "premium",
        "objective": "ttft",
        "within_secs": 0.8,
        "share": 0.95,
        "attainment": 0.9,
        "turns": 200,
        "budget_left": -1.0,
        "burns": [{"window_secs": 300.0, "burn": 14.4}, {"window_secs": 259200.0, "burn": 2.0}],
    },
    {
        "tier": "standard",
        "objective": "voice_to_voice",
        "within_secs": 1.5,
        "share": 0.999,
        "attainment": None,
        "turns": 0,
        "budget_left": 1.0,
        "burns": [{"window_secs": 300.0, "burn": None}, {"window_secs": 259200.0, "burn": None}],
    },
]


async def test_what_the_page_computes(subtests: pytest.Subtests) -> None:
    """Percentiles by nearest rank, and every bar and mark at its time on one scale."""
    async with BotProcess() as bot, browsing() as context:
        page = await opened(context, bot.url)
        with no_complaints(page):
            with subtests.test("percentiles"):
                found = await page.evaluate(
                    """async (lists) => {
                      const { percentile } = await import("/page/figures.js");
                      return lists.map((each) => [percentile(each, 0.5), percentile(each, 0.95)]);
                    }""",
                    [[0.9, 0.1, 0.5], list(range(180, 0, -1)), [0.7], []],
                )
                assert found == [[0.5, 0.9], [90, 171], [0.7, 0.7], [None, None]]

            with subtests.test("the call so far"):
                unheard = RACE | {"voice_to_voice_secs": None, "ttft_secs": 0.3}
                failed = RACE | {"outcome": "failed", "ttft_secs": None}
                after_tool = RACE | {"continues": True}
                summary = await page.evaluate(
                    """async (races) => {
                      const { CallFigures } = await import("/page/figures.js");
                      const figures = new CallFigures();
                      for (const race of races) figures.count(race);
                      return figures.summary;
                    }""",
                    [RACE, unheard, failed, *[after_tool] * 19],
                )
                assert summary == {
                    "ttft": {"count": 2, "p50_secs": 0.3, "tail": "longest", "tail_secs": 1.1},
                    "voiceToVoice": {
                        "count": 20,
                        "p50_secs": 2.0,
                        "tail": "p95",
                        "tail_secs": 2.0,
                    },
                }

            with subtests.test("the SLOs"):
                await page.evaluate(
                    """async (slos) => {
                      const { SlosView } = await import("/page/slos.js");
                      const [place, summary, cards] = ["slos", "slos-summary", "slo-cards"].map(
                        (id) => document.getElementById(id),
                      );
                      const view = new SlosView({ place, summary, cards });
                      view.show({ slos: slos.map((slo) => ({ ...slo, turns: 19 })) });
                      if (place.open) throw new Error("19 turns are too few to unfold the SLOs");
                      view.show({ slos });
                    }""",
                    SLOS,
                )
                told = await page.locator("#slos .slo").all_inner_texts()
                assert [" ".join(words.split()) for words in told] == [
                    "premium: first token within 0.80 s 90 % of 95 % 200 turns in 3 d "
                    "budget overspent 2.0× 5 min 14× 3 d 2.0×",
                    "standard: voice to voice within 1.50 s – of 99.9 % 0 turns in 3 d "
                    "budget 100 % left 5 min – 3 d –",
                ]
                kinds = await page.eval_on_selector_all(
                    "#slos .burns li", "found => found.map((one) => one.className)"
                )
                assert kinds == ["fast", "over", "unknown", "unknown"]
                for width, height in ((390, 844), (1280, 800)):
                    assert await beyond_the_edge(page, width, height) == []

            with subtests.test("the chart"):
                await page.evaluate(
                    """async (races) => {
                      const { chart, moments } = await import("/page/timeline.js");
                      const place = document.createElement("div");
                      place.id = "chart";
                      place.append(chart(races, { wasCut: false }), moments(races));
                      document.body.append(place);
                    }""",
                    [RACE],
                )
                scale = 2.5  # the winner's end, which is the last thing to happen
                for kind, secs in {
                    "commit": [1.75],
                    "asked": [0.5, 1.2],
                    "closed": [1.75],
                    "filler": [1.0],
                    "answer": [2.0],
                }.items():
                    lefts = await styles(page, f"mark.{kind}", "left")
                    assert lefts == pytest.approx([100 * each / scale for each in secs])
                for kind, left, width in (
                    ("filler", 1.0, 0.5),
                    ("spoken", 2.0, 0.5),
                    ("answering", 1.6, 0.9),
                ):
                    found = await styles(page, f"bar.{kind}", "left", "width")
                    assert found == pytest.approx([100 * left / scale, 100 * width / scale])
                moments = await page.locator("#chart .moments li").all_inner_texts()
                assert [words.replace("\u00a0", " ") for words in moments] == [
                    "LLM called 0.50 s",
                    "first sound, a filler 1.00 s",
                    "committed 1.75 s",
                    "answer heard 2.00 s",
                ]


async def styles(page: Page, kind: str, *names: str) -> list[float]:
    """Lengths of a chart's elements, in per cent of its width."""
    return await page.eval_on_selector_all(
        f"#chart .{kind}",
        "(found, names) => found.flatMap(({ style }) => names.map((n) => parseFloat(style[n])))",
        list(names),
    )
