"""The live feed of a process, and its server."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from pydantic import TypeAdapter

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, Slo, TurnReport
from pipecat_hedge.race import ConfigurationError, SpeechReport
from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed, LiveServer
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from tests.support.call import PhoneCall
from tests.support.line import Line

SECRET = "My number is five-five-five."


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


async def snapshot_of(llm: HedgedLLMService, feed: LiveFeed, turns: int = 1) -> Any:
    """The feed while a session is there that has asked so many times."""
    feed.watch(llm)
    async with Line(llm) as line:
        for number in range(turns):
            await line.ask(SECRET)
            await line.report(number + 1)
        return json.loads(json.dumps(feed.snapshot(), allow_nan=False))


@pytest.mark.virtual_time
class TestFeed:
    async def test_snapshot_has_turns_providers_and_slos(self) -> None:
        feed = LiveFeed("here", clock=lambda: 1000.0)
        found = await snapshot_of(hedged(Slo()), feed)
        turn = found["turns"][0]
        assert [found[name] for name in ("name", "at", "next", "sessions")] == ["here", 1000, 1, 1]
        assert (turn["session"], turn["turn"], turn["tier"]) == (1, 1, "premium")
        assert (turn["outcome"], turn["winner"]) == ("answered", "quick")
        assert turn["ttft_secs"] == pytest.approx(0.7)
        reasons = [(a["provider"], a["launch_reason"]) for a in turn["attempts"]]
        assert reasons == [("slow", "primary"), ("quick", "hedge")]
        quick = next(p for p in found["providers"] if p["provider"] == "quick")
        assert (quick["requests"], quick["won"], quick["breaker"]) == (1, 1, "closed")
        slos = {slo["objective"]: slo for slo in found["slos"]}
        assert slos.keys() == {"ttft", "ttfs", "voice_to_voice"}
        window = slos["ttft"]["windows"][0]
        assert (slos["ttft"]["tier"], window["turns"], window["bad"]) == ("premium", 1, 0)

    async def test_turns_are_read_as_their_reports(self) -> None:
        llm, reports = hedged(), list[TurnReport]()
        llm.events.subscribe(TurnReport, reports.append)
        found = await snapshot_of(llm, LiveFeed(), turns=2)
        read = TypeAdapter(list[TurnReport]).validate_json(json.dumps(found["turns"]), strict=True)
        assert (read, len(read)) == (reports, 2)

    async def test_snapshot_has_only_new_turns_and_no_text(self) -> None:
        feed = LiveFeed()
        text = json.dumps(await snapshot_of(hedged(Slo()), feed, turns=2))
        assert "five-five" not in text
        assert "Sorry" not in text
        new = feed.snapshot(1)["turns"]
        assert [(turn["turn"], turn["outcome"]) for turn in new] == [(2, "failed")]
        assert (feed.snapshot(2)["turns"], feed.snapshot()["sessions"]) == ([], 0)

    async def test_turn_is_updated_when_its_answer_is_heard(self) -> None:
        llm, feed = hedged(Slo()), LiveFeed()
        async with PhoneCall(llm) as call:
            feed.watch(llm, call.observer)
            await call.speak()
        (turn,) = feed.snapshot()["turns"]
        assert turn["voice_to_voice_secs"] == pytest.approx(0.3 + 0.7 + 0.1, abs=0.02)

    async def test_turn_is_updated_when_its_answer_was_spoken(self) -> None:
        """Before its report, or behind it; a line of the bot's own is no answer."""
        llm, feed = hedged(), LiveFeed()
        feed.watch(llm)
        spoken = SpeechReport("cartesia", 2, 0, 0, 0.2, 0.0, 60, 0)
        first, second = (replace(spoken, turn=number) for number in (1, 2))
        llm.events.publish(TurnReport(1, "a", "answered", 0.4, 0.6, 1.5, ()))
        llm.events.publish(first)
        llm.events.publish(spoken)
        late = TurnReport(2, "a", "answered", 0.4, 0.6, 9.0, (), speech=(first, spoken, second))
        llm.events.publish(late)
        assert [turn["spoken"]["turn"] for turn in feed.snapshot()["turns"]] == [1, 2]

    async def test_it_is_bounded_and_keeps_no_session_alive(self) -> None:
        now = 1000.0
        feed = LiveFeed(turns=3, clock=lambda: now)
        sessions: list[weakref.ref[HedgedLLMService]] = []
        for _ in range(5):
            now += 1
            llm = hedged()
            sessions.append(weakref.ref(llm))
            await snapshot_of(llm, feed)
            del llm
        gc.collect()
        found = feed.snapshot()
        assert [turn["session"] for turn in found["turns"]] == [3, 4, 5]
        assert found["turns_since"] == 1002.0
        assert [session() for session in sessions[:4]] == [None] * 4  # the loop may hold the last
        requests = {p["provider"]: p["requests"] for p in found["providers"]}
        assert requests == {"slow": 5, "quick": 5}

    async def test_providers_unseen_for_an_hour_are_forgotten(self) -> None:
        now = 1000.0
        feed = LiveFeed(clock=lambda: now)

        def shown() -> dict[str, int]:
            return {each["provider"]: each["requests"] for each in feed.snapshot()["providers"]}

        gone, stays = (
            hedged(),
            HedgedLLMService([Provider("new", ScriptedLLMService([Say("Yes.")]))]),
        )
        await snapshot_of(gone, feed)
        feed.watch(stays)
        async with Line(stays) as line:
            await line.ask()
            await line.report(1)
            now += 3600
            assert shown() == {"slow": 1, "quick": 1, "new": 1}
            now += 1
            assert shown() == {"new": 1}
        now += 3600
        assert shown() == {"new": 1}, "the last states are shown for an hour"
        now += 1
        assert shown() == {}
        feed.watch(gone)
        assert shown() == {"slow": 0, "quick": 0}


class TestServer:
    async def test_it_serves_the_feed(self) -> None:
        feed = LiveFeed("here")
        async with LiveServer(feed) as server, aiohttp.ClientSession() as session:
            async with session.get(server.url + LIVE_PATH) as response:
                assert response.status == 200
                assert response.headers["Cache-Control"] == "no-store"
                assert (await response.json())["name"] == "here"
            async with session.get(server.url + LIVE_PATH, params={"after": "x"}) as response:
                assert response.status == 400
            with pytest.raises(ConfigurationError, match=r"cannot be used .*: choose another"):
                async with LiveServer(feed, port=int(server.url.rpartition(":")[2])):
                    pass

    @pytest.mark.parametrize(
        ("headers", "host", "status"),
        [
            ({"Host": "bots.internal"}, "127.0.0.1", 403),
            ({"Host": "bots.internal"}, "0.0.0.0", 200),
            ({"Origin": "https://evil.example.com"}, "0.0.0.0", 403),
            ({"Origin": "http://localhost:3000"}, "0.0.0.0", 200),
        ],
    )
    async def test_foreign_pages_are_forbidden(
        self, headers: dict[str, str], host: str, status: int
    ) -> None:
        """The Host is checked only where the server is bound to loopback."""
        async with LiveServer(LiveFeed(), host=host) as server, aiohttp.ClientSession() as session:
            url = server.url.replace("0.0.0.0", "127.0.0.1") + LIVE_PATH
            async with session.get(url, headers=headers) as response:
                assert response.status == status
