"""Reading feeds: invalid answers, what adds up over several bots, polling and reconnecting."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipecat_hedge.policy import BudgetState
from pipecat_hedge.race import AttemptReport, ProviderState, Tier, TurnReport
from pipecat_hedge.telemetry.slo_tracker import WINDOWS_SECS, SloStatus, WindowCount
from pipecat_hedge.tools.top import feed
from pipecat_hedge.tools.top.feed import Bot, FeedError, Fleet, Turn, feed_url, poll

PATH = "/hedge/live"


def provider(name: str = "a", **fields: Any) -> dict[str, Any]:
    state = ProviderState(name, "m", 0.4, 1.1, 0.2, False, 0.0, in_flight=1, limit=20)
    counts = {"requests": 10, "won": 9, "superseded": 1, "failed": 0}
    return {**dataclasses.asdict(state), **counts, **fields}


def attempt(name: str = "a", **fields: Any) -> dict[str, Any]:
    report = AttemptReport(name, "m", 0.0, "primary", 0.4, 1.5, "won")
    return {**dataclasses.asdict(report), **fields}


def turn(number: int = 1, session: int = 1, **fields: Any) -> dict[str, Any]:
    report = TurnReport(number, "a", "answered", 0.4, 0.6, 1.5, ())
    return {
        **dataclasses.asdict(report),
        "attempts": [attempt()],
        "at": 1000.0 + number,
        "session": session,
        "voice_to_voice_secs": 1.2,
        **fields,
    }


def slo(turns: int, bad: int, tier: Tier = "standard", **fields: Any) -> dict[str, Any]:
    windows = tuple(WindowCount(secs, turns, bad) for secs in WINDOWS_SECS)
    return {**dataclasses.asdict(SloStatus(tier, "ttft", 0.8, 0.95, windows)), **fields}


def answer(process: str = "p", **fields: Any) -> str:
    value = {
        "version": 1,
        "process": process,
        "name": "here",
        "at": 1000.0,
        "next": 1,
        "sessions": 1,
        "turns_since": None,
        "turns": [turn()],
        "providers": [provider()],
        "budgets": [dataclasses.asdict(BudgetState(0.1, 1.0, 4.0, 0.1))],
        "slos": [slo(100, 2)],
        **fields,
    }
    return json.dumps(value)


def fleet_of(*answers: str) -> Fleet:
    fleet = Fleet([f"http://bot{n}" for n in range(1, len(answers) + 1)])
    for bot, body in zip(fleet.bots, answers, strict=True):
        bot.take(body)
    return fleet


def test_counts_of_several_bots_add_up() -> None:
    broken = provider(breaker="open", p95_secs=8.0)
    slos = [slo(300, 30), slo(5, 0, "premium")]
    for order in (1, -1):
        fleet = fleet_of(*(answer("p"), answer("q", slos=slos, providers=[broken]))[::order])
        (state,) = fleet.providers()
        assert (state.requests, state.in_flight, state.limit) == (20, 2, 40)
        assert (state.breaker, state.p95_secs) == ("open", 8.0)  # of states the worst
        assert fleet.budgets()[0].balance == 2.0
        standard, premium = sorted(fleet.slos(), key=lambda each: each.tier, reverse=True)
        assert (standard.windows[0].turns, standard.windows[0].bad) == (400, 32)
        assert (premium.tier, premium.windows[-1].turns) == ("premium", 5)
        assert standard.burns[0] == pytest.approx(32 / 400 / 0.05)
        assert standard.budget_left == pytest.approx(1 - 32 / 400 / 0.05)
        assert len(fleet.turns()) == 2


def test_a_restarted_bot_begins_anew() -> None:
    """The turns of the process before are dropped, and the whole feed is read."""
    (bot,) = fleet_of(answer(next=7, turns=[turn(6), turn(7)])).bots
    assert bot.after == 7
    bot.take(answer("another", next=9, turns=[]))
    assert (bot.after, bot.turns) == (0, {})
    bot.take(answer("another", next=9, turns=[turn(8), turn(9)]))
    assert ([turn.turn for turn in bot.turns.values()], bot.after) == ([8, 9], 9)


def test_a_bot_that_is_away_keeps_its_turns_only() -> None:
    fleet = fleet_of(answer("p"), answer("q"))
    bot = fleet.bots[1]
    reports = [bot.lose(*each) for each in (("refused", 1000), ("refused", 1001), ("late", 1002))]
    assert reports == [True, False, True]
    assert (len(fleet.snapshots), len(fleet.turns()), bot.away_since) == (1, 2, 1000)
    assert bot.after == 0
    assert bot.take(answer("q")) == []  # its turn is known
    assert len(fleet.snapshots) == 2


def test_a_changed_turn_is_not_new() -> None:
    bot = Bot("http://bot")
    assert len(bot.take(answer(turns=[turn(voice_to_voice_secs=None)]))) == 1
    assert bot.take(answer(turns=[turn()])) == []
    assert [each.voice_to_voice_secs for each in bot.turns.values()] == [1.2]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        *[("null", "body"), ("[]", "body"), ("no", "body"), ("[" * 100_000, "body")],
        ("{}", "version"),
        (answer(next="7"), "next"),
        (answer(sessions=True), "sessions"),
        (answer(turns={}), "turns"),
        (answer(turns=[turn(), turn(2, at=float("nan"))]), "turns.1.at"),
        (answer(turns=[turn(at=1e300)]), "turns.0.at"),
        (answer(turns=[turn(attempts=[attempt(), None])]), "turns.0.attempts.1"),
        (answer(providers=[provider(breaker="ajar")]), "providers.0.breaker"),
        (answer(providers=[provider(server={"waiting": 1})]), "providers.0.server.is_up"),
        (answer(turns=[turn(ttft_secs=float("inf"))]), "turns.0.ttft_secs"),
        (answer(slos=[slo(1, 0, share=1.0)]), "slos.0.share"),
        (answer(slos=[slo(1, 0, windows=[])]), "slos.0.windows"),
        (answer(slos=[slo(10**400, 0)]), "slos.0.windows.0.turns"),
    ],
    ids=lambda value: value if len(value) < 30 else "",
)
def test_a_bad_answer_is_rejected_whole(body: str, where: str) -> None:
    (bot,) = fleet_of(answer()).bots
    with pytest.raises(FeedError, match=rf"no feed of turns \({where}: .*see docs/top.md"):
        bot.take(body)
    with pytest.raises(FeedError, match="use the same release"):
        bot.take(answer(version=2))
    assert (bot.after, len(bot.turns)) == (1, 1)


def test_dropped_turns_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the feed between two answers, or here."""
    monkeypatch.setattr(feed, "KEPT_TURNS", 3)
    bot = Bot("http://bot")
    bot.take(answer(turns=[turn(n) for n in (1, 2, 3)]))
    assert bot.complete_since == 0.0
    bot.take(answer(turns=[turn(4)]))
    assert bot.complete_since == 1001.0
    bot.take(answer(turns=[], turns_since=1003.0))  # seen before it was dropped there
    assert bot.complete_since == 1001.0
    bot.take(answer(turns=[], turns_since=1009.0))
    assert bot.complete_since == 1009.0


def test_fields_of_another_release_are_ignored_or_have_defaults() -> None:
    newer = turn(attempts=[attempt(mood="calm")], color="blue")
    older = {name: value for name, value in turn(2).items() if name != "degraded_reason"}
    state = {name: value for name, value in provider(mood="calm").items() if name != "limit"}
    fleet = fleet_of(answer(turns=[newer, older], providers=[state], weather="fine"))
    assert [shown.degraded_reason for _, shown in fleet.turns()] == [None, None]
    assert fleet.providers()[0].limit == 0


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:7860", f"http://127.0.0.1:7860{PATH}"),
        ("http://bot/", f"http://bot{PATH}"),
        ("https://bot:8443/mine?key=1", "https://bot:8443/mine?key=1"),
        ("[::1]:7860", f"http://[::1]:7860{PATH}"),
    ],
)
def test_feed_url_completes_an_address(address: str, url: str) -> None:
    assert feed_url(address) == url


@asynccontextmanager
async def serving(**bodies: bytes) -> AsyncIterator[str]:
    """Bots that answer with these bodies, each under its name, in chunks; their server's URL."""

    async def live(request: web.Request) -> web.StreamResponse:
        body = bodies[request.match_info["bot"]]
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        for begin in range(0, len(body), 1448):
            await response.write(body[begin : begin + 1448])
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    app = web.Application()
    app.add_routes([web.get("/{bot}", live)])
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


@pytest.mark.live
async def test_a_bad_answer_concerns_one_bot_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one is read to its end, again and again; what is no feed is named, once."""
    monkeypatch.setattr(feed, "MAX_BYTES", 300_000)
    long = answer(turns=[turn(number) for number in range(1, 201)], next=200).encode()
    errors, done, count = dict[str, str](), asyncio.Event(), 0

    def on_turns(bot: Bot, turns: list[Turn]) -> None:
        nonlocal count
        count += 1
        if count >= 5 and len(errors) == 3:
            done.set()

    def on_away(bot: Bot) -> None:
        assert bot.url not in errors
        errors[bot.url] = bot.error.split(" (")[0]

    bodies = {"good": long, "bad": answer(next=None).encode(), "endless": b"a" * 400_000}
    async with serving(**bodies) as url, asyncio.timeout(30), asyncio.TaskGroup() as group:
        fleet = Fleet([url + name for name in (*bodies, "no/feed")])
        task = group.create_task(poll(fleet, 0.01, on_turns=on_turns, on_away=on_away))
        await done.wait()
        task.cancel()
    assert len(long) > 40_000
    assert [bot.is_answering for bot in fleet.bots] == [True, False, False, False]
    assert (len(fleet.turns()), fleet.bots[0].after) == (200, 200)
    assert errors == {
        f"{url}bad": "no feed of turns",
        f"{url}endless": "its answer is larger than 300,000 bytes: see docs/top.md",
        f"{url}no/feed": "status 404, no feed at this path: see docs/top.md",
    }
