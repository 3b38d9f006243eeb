"""The feed of a process: what is told, when, and what is not."""

from __future__ import annotations

import gc
import json

import aiohttp
import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, Slo
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed
from pipecat_hedge.telemetry.live_server import LiveServer
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from tests.support.line import Line
from tests.voice.test_turn_latency import Phone

SECRET = "My number is 555 0199."


def hedged(slo: Slo | None = None) -> HedgedLLMService:
    return HedgedLLMService(
        [
            Provider("slow", ScriptedLLMService([Wait(30)], [Error("y")], model="slow")),
            Provider("quick", ScriptedLLMService([Wait(0.2), Say(f"Yes. {SECRET}")], [Error("x")])),
        ],
        policy=HedgePolicy.after(0.5, fallback_text="Sorry."),
        tier="premium",
        slo=slo,
    )


@pytest.mark.virtual_time
class TestFeed:
    async def test_turns_and_how_things_stand(self) -> None:
        """A race, with whom it asked, its providers and its promise; all of it plain JSON."""
        llm, feed = hedged(Slo()), LiveFeed("here", clock=lambda: 1000.0)
        feed.watch(llm)
        async with Line(llm) as line:
            assert feed.snapshot()["sessions"] == 1
            await line.ask(SECRET)
            await line.report()
            told = json.loads(json.dumps(feed.snapshot(), allow_nan=False))
        turn = told["turns"][0]
        assert (told["name"], told["at"], told["next"]) == ("here", 1000.0, 1)
        assert (turn["session"], turn["turn"], turn["tier"]) == (1, 1, "premium")
        assert (turn["outcome"], turn["winner"]) == ("answered", "quick")
        assert turn["ttft_secs"] == pytest.approx(0.7)
        assert [a["provider"] for a in turn["attempts"]] == ["slow", "quick"]
        assert turn["attempts"][1]["launch_reason"] == "hedge"
        quick = next(p for p in told["providers"] if p["provider"] == "quick")
        assert (quick["requests"], quick["won"], quick["breaker"]) == (1, 1, "closed")
        assert {slo["objective"] for slo in told["slos"]} == {"ttft", "ttfs", "voice_to_voice"}
        ttft = next(slo for slo in told["slos"] if slo["objective"] == "ttft")
        assert (ttft["tier"], ttft["windows"][0]["turns"], ttft["windows"][0]["bad"]) == (
            "premium",
            1,
            0,
        )

    async def test_only_what_is_new_is_told_again(self) -> None:
        """By the number of the answer before."""
        llm, feed = hedged(), LiveFeed()
        feed.watch(llm)
        async with Line(llm) as line:
            await line.ask()
            await line.report()
            first = feed.snapshot()
            assert feed.snapshot(first["next"])["turns"] == []
            await line.ask()
            await line.report(2)
        second = feed.snapshot(first["next"])
        assert [turn["turn"] for turn in second["turns"]] == [2]
        assert second["turns"][0]["outcome"] == "failed"
        assert second["sessions"] == 0

    async def test_a_turn_is_told_again_when_it_was_heard(self) -> None:
        """Its answer sounds after its race is over; and the promise counts it then."""
        llm, feed = hedged(Slo()), LiveFeed()
        async with Phone(llm) as phone:
            feed.watch(llm, phone.observer)
            await phone.speak()
            heard = (await phone.answered()).voice_to_voice_secs
        turns = feed.snapshot()["turns"]
        assert len(turns) == 1
        assert turns[0]["voice_to_voice_secs"] == heard
        assert heard == pytest.approx(0.3 + 0.7 + 0.1, abs=0.02)
        assert {s.objective: s.windows[0].turns for s in llm.slo_status()} == {
            "ttft": 1,
            "ttfs": 1,
            "voice_to_voice": 1,
        }
        assert all(s.attainment == 1.0 for s in llm.slo_status())

    async def test_nothing_that_was_said_is_in_it(self) -> None:
        """Neither question, answer, fallback nor error text."""
        llm, feed = hedged(Slo()), LiveFeed()
        feed.watch(llm)
        async with Line(llm) as line:
            await line.ask(SECRET)
            await line.ask(SECRET)
            await line.report(2)
            told = json.dumps(feed.snapshot())
        assert "555" not in told
        assert "Sorry" not in told

    async def test_it_keeps_no_session_alive_and_does_not_grow(self) -> None:
        """The latest turns are kept, and of who is gone only figures."""
        now = 1000.0
        feed = LiveFeed(turns=3, clock=lambda: now)
        for _ in range(5):
            now += 1
            llm = hedged()
            feed.watch(llm)
            async with Line(llm) as line:
                await line.ask()
                await line.report()
                feed.snapshot()
            del llm, line
        gc.collect()
        told = feed.snapshot()
        assert [turn["session"] for turn in told["turns"]] == [3, 4, 5]
        assert told["turns_since"] == 1002.0
        assert len(feed._watched) <= 1  # the loop itself may hold the latest yet
        requests = {p["provider"]: p["requests"] for p in told["providers"]}
        assert requests == {"slow": 5, "quick": 5}


class TestServer:
    async def test_it_is_served(self) -> None:
        """Over HTTP, with only what is new if it is asked so."""
        feed = LiveFeed("here")
        async with LiveServer(feed) as server, aiohttp.ClientSession() as session:
            async with session.get(server.url + LIVE_PATH) as response:
                assert response.status == 200
                assert response.headers["Cache-Control"] == "no-store"
                assert (await response.json())["name"] == "here"
            async with session.get(server.url + LIVE_PATH, params={"after": "x"}) as response:
                assert response.status == 400
            with pytest.raises(ConfigurationError, match=r"cannot be had .*: choose another, or 0"):
                async with LiveServer(feed, port=int(server.url.rpartition(":")[2])):
                    pass

    def test_a_port_that_is_none(self) -> None:
        """Refused where it is written."""
        with pytest.raises(ConfigurationError, match="port must be a number from 0 to 65535"):
            LiveServer(LiveFeed(), port=70000)
