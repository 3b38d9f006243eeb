"""A connection that was lost between two turns is open again when the next one asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from loguru import logger
from pipecat.frames.frames import LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.service import ProviderStats, connection_warmth
from pipecat_hedge.tools.simulator import Simulator
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.relay import Relay, relay
from tests.support.simulated import close, simulated

pytestmark = [pytest.mark.live, pytest.mark.realtime]

QUICK = "fixed@ttft=0.05,tps=inf,answer=Good%20evening."
SLOW = "fixed@ttft=5"


def hedged(*members: LLMService[Any], **kwargs: Any) -> HedgedLLMService:
    named = [Provider(name, member) for name, member in zip("ab", members, strict=False)]
    return HedgedLLMService(named, policy=HedgePolicy.race(len(members)), **kwargs)


def asks(fake: FakeVLLM) -> OpenAILLMService:
    settings = OpenAILLMService.Settings(model="tiny")
    return OpenAILLMService(api_key="any", base_url=fake.url, settings=settings)


def cold(reports: list[TurnReport], provider: str) -> list[bool | None]:
    """Whether each turn's request to a provider had to open a connection."""
    attempts = [a for report in reports for a in report.attempts if a.provider == provider]
    return [None if a.stages is None else a.stages.new_connection for a in attempts]


def listings(fake: FakeVLLM) -> int:
    return [path for path, _ in fake.requests].count("/v1/models")


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def says_more(line: Line) -> Callable[[], bool]:
    heard = len(line.text)
    return lambda: len(line.text) > heard


@asynccontextmanager
async def losing(wire: str, **kwargs: Any) -> AsyncIterator[tuple[Line, Relay, Simulator]]:
    """A session in which provider ``b`` loses every turn, and what its requests pass through."""
    async with Simulator() as sim, relay(sim.port) as server:
        winner = simulated("openai", sim, QUICK)
        loser = simulated(wire, sim, SLOW, url=f"http://127.0.0.1:{server.port}")
        async with Line(hedged(winner, loser, **kwargs)) as line:
            yield line, server, sim
        await close(winner, loser)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_who_always_loses_is_asked_over_an_open_connection(wire: str) -> None:
    """The connection that a lost race closes is opened again before the next turn."""
    async with losing(wire) as (line, _, sim):
        for _ in range(7):  # of those some are let run on, and closed by the next turn
            await line.ask()
            await asyncio.sleep(0.2)
        await line.report(7)
        assert len(sim.ledger.requests) == 14
    assert cold(line.reports, "b")[1:] == [False] * 6
    assert cold(line.reports, "a")[1:] == [False] * 6
    assert {report.attempts[1].outcome for report in line.reports} == {"superseded"}


async def test_without_warm_nothing_is_opened() -> None:
    """``warm=False`` sends requests for answers, and nothing else."""
    async with losing("openai", warm=False) as (line, server, _):
        for _ in range(3):
            await line.ask()
            await asyncio.sleep(0.2)
        await line.report(3)
        assert server.opened == 3
    assert cold(line.reports, "b") == [True] * 3


async def test_after_an_interruption_the_connection_is_opened_again() -> None:
    """Who was cut off by the caller is asked over an open connection, too."""
    async with Simulator() as sim:
        member = simulated("openai", sim, "fixed@ttft=0.02,tps=5")
        async with Line(hedged(member)) as line:
            for turn in range(3):
                await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "Hi"}])))
                await line.until(says_more(line))
                await line.interrupt()
                await line.report(turn + 1)
                await asyncio.sleep(0.2)
        await close(member)
    assert [report.outcome for report in line.reports] == ["interrupted"] * 3
    assert cold(line.reports, "a")[1:] == [False, False]


async def test_a_turn_does_not_wait_for_the_opening() -> None:
    """The next request is sent while the list of models is still awaited."""
    async with fake_vllm(silent_secs=0.05) as won, fake_vllm(silent_secs=5) as lost:
        listed = asyncio.Event()
        winner, loser = asks(won), asks(lost)
        async with Line(hedged(winner, loser)) as line:
            await eventually(lambda: listings(lost) == 1)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(connection_warmth, "open_connection", _hanging(listed))
                await line.ask()
                await asyncio.wait_for(listed.wait(), 1)
                for _ in range(2):
                    await line.ask()
                await line.report(3)
        assert len(lost.bodies) == 3
        await close(winner, loser)
    waits = [report.attempts[0].ttft_secs for report in line.reports]
    assert all(wait is not None and wait < 0.5 for wait in waits), waits


def _hanging(called: asyncio.Event) -> Any:
    async def hangs(service: Any) -> None:
        called.set()
        await asyncio.sleep(30)

    return hangs


async def test_an_idle_connection_is_refreshed_before_its_server_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a turn has shown that it closes them, the later ones find one that is open."""
    monkeypatch.setattr(connection_warmth, "MIN_REFRESH_SECS", 0.25)
    async with fake_vllm(keep_alive_secs=1.2) as fake:
        member = asks(fake)
        async with Line(hedged(member)) as line:
            for pause_secs in (3.0, 3.4, 3.4, 3.4):
                await line.ask()
                # The first pause shows that an idle connection is closed; it is refreshed after a
                # half of that, then after a quarter. The later turns come between refreshes: one
                # that comes during a refresh finds the connection taken, and opens a second.
                await asyncio.sleep(pause_secs)
            await line.report(4)
        sent = listings(fake)
        await asyncio.sleep(1)
        assert listings(fake) == sent  # the session is over
        await close(member)
    print(f"cold: {cold(line.reports, 'a')}, {sent} listings in 13 s")
    assert cold(line.reports, "a")[2:] == [False, False]


async def test_a_server_tells_when_it_closes_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a header, so that not even one turn has to find it out."""
    monkeypatch.setattr(connection_warmth, "MIN_REFRESH_SECS", 0.25)
    headers = {"Keep-Alive": "timeout=1, max=100"}
    async with fake_vllm(keep_alive_secs=1.1, headers=headers) as fake:
        member = asks(fake)
        async with Line(hedged(member)) as line:
            for _ in range(3):
                await line.ask()
                await asyncio.sleep(1.7)
            await line.report(3)
        await close(member)
    assert cold(line.reports, "a")[1:] == [False, False]


async def test_a_provider_that_is_left_alone_is_sent_nothing() -> None:
    """Its breaker is open, or it has asked for rest, or it is struck out for the session."""
    stats = ProviderStats()
    async with fake_vllm() as won, fake_vllm(silent_secs=5) as lost:
        winner, loser = asks(won), asks(lost)
        llm = hedged(winner, loser, stats=stats)
        async with Line(llm):
            await eventually(lambda: listings(lost) == 1)
            connection = llm._members.adapters[1].connection
            now = asyncio.get_running_loop().time()
            for leave_alone in (
                lambda: llm._members.exclude("b"),
                lambda: stats.health.set_retry_after(llm._members.entries[1].key, now + 60),
            ):
                leave_alone()
                connection._on_alarm()
                await asyncio.sleep(0.1)
                assert listings(lost) == 1
        await close(winner, loser)


async def test_a_provider_that_falls_is_not_opened_again() -> None:
    """With its breaker open not even the connection that was lost last is opened."""
    stats = ProviderStats()
    async with fake_vllm() as won, fake_vllm(silent_secs=5) as lost:
        winner, loser = asks(won), asks(lost)
        llm = hedged(winner, loser, stats=stats)
        async with Line(llm) as line:
            await eventually(lambda: listings(lost) == 1)
            context = LLMContext([{"role": "user", "content": "Hello?"}])
            won.silent_secs = 0.3
            await line.send(LLMContextFrame(context))
            await eventually(lambda: len(lost.bodies) == 1)
            key, now = llm._members.entries[1].key, asyncio.get_running_loop().time()
            for _ in range(10):
                stats.health.entry(key).breaker.record("failed", now, probe=False)
            assert stats.health.state(key, now) == "open"
            await line.report()
            await asyncio.sleep(0.2)
            assert listings(lost) == 1
        await close(winner, loser)


async def test_a_client_that_lets_go_by_itself_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody chose it; and its server is not blamed for what it closes."""
    limits = connection_warmth.IdleLimits()
    monkeypatch.setattr(connection_warmth, "_limits", limits)
    async with Simulator() as sim, relay(sim.port) as server:
        client = AsyncAnthropic(
            api_key="any",
            base_url=f"http://127.0.0.1:{server.port}",
            http_client=DefaultAsyncHttpxClient(limits=connection_limits(keepalive_expiry=1.0)),
        )
        settings = AnthropicLLMService.Settings(model=QUICK)
        member = AnthropicLLMService(api_key="any", client=client, settings=settings)
        async with Line(hedged(member)) as line:
            for _ in range(2):
                await line.ask()
                await asyncio.sleep(1.5)
            await line.report(2)
        assert cold(line.reports, "a")[1:] == [True]
        assert not limits._timeouts
        await close(member)


async def test_an_opening_that_fails_is_said_at_debug() -> None:
    """By the name of its error alone; the turn that comes next is as it was."""
    said: list[tuple[str, str]] = []
    sink = logger.add(lambda m: said.append((m.record["level"].name, m.record["message"])))
    try:
        async with fake_vllm() as won, fake_vllm(silent_secs=5) as lost:
            winner, loser = asks(won), asks(lost)
            async with Line(hedged(winner, loser)) as line:
                await eventually(lambda: listings(lost) == 1)
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(connection_warmth, "open_connection", _failing)
                    await line.ask()
                    await eventually(lambda: any("no connection kept" in text for _, text in said))
                await line.ask()
                await line.report(2)
            await close(winner, loser)
    finally:
        logger.remove(sink)
    levels = {level for level, text in said if "no connection kept open: OSError" in text}
    assert levels == {"DEBUG"}
    assert not any("secret" in text for _, text in said)
    assert line.reports[1].outcome == "answered"


async def _failing(service: Any) -> None:
    raise OSError("secret")
