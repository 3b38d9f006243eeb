"""A connection that was lost between two turns is open again for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from loguru import logger
from pipecat.frames.frames import LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService
from pipecat.utils.http import connection_limits

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.service import ProviderStats, connection_warmth
from pipecat_hedge.service.provider_client import open_connection
from pipecat_hedge.tools.simulator import Simulator
from tests.live.one_request_server import Ending, OneRequestServer, one_request_server
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.relay import relay
from tests.support.simulated import anthropic, line_to, simulated
from tests.support.standing import standing
from tests.support.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.realtime]

QUICK = "fixed@ttft=0.05,tps=inf,answer=Good%20evening."


@asynccontextmanager
async def lost_race(**kwargs: Any) -> AsyncIterator[tuple[Line, FakeVLLM, FakeVLLM]]:
    """A line to a winner and a loser, whose connection is open."""
    async with (
        fake_vllm(silent_secs=0.05) as won,
        fake_vllm(silent_secs=5) as lost,
        line_to(service(won), service(lost), **kwargs) as line,
    ):
        await until(lambda: listings(lost) == 1, 5.0)
        yield line, won, lost


def service(fake: FakeVLLM) -> LLMService[Any]:
    return simulated("openai", None, "tiny", url=fake.url.removesuffix("/v1"))


def cold(line: Line, provider: str) -> list[bool | None]:
    """Whether each turn's request to a provider had to open a connection."""
    attempts = [a for report in line.reports for a in report.attempts if a.provider == provider]
    return [None if a.stages is None else a.stages.new_connection for a in attempts]


def listings(fake: FakeVLLM) -> int:
    """How often the models were listed, as a request that only opens a connection does."""
    return [path for path, _ in fake.requests].count("/v1/models")


async def ask(line: Line, turns: int, pause_secs: float = 0.2) -> None:
    for _ in range(turns):
        await line.ask()
        await asyncio.sleep(pause_secs)
    await line.report(turns)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_lost_race_leaves_an_open_connection(wire: str, sim: Simulator) -> None:
    members = simulated("openai", sim, QUICK), simulated(wire, sim, "fixed@ttft=5")
    async with line_to(*members) as line:
        await ask(line, 7)  # some of the losers are observed, and the next turn closes them
        assert len(sim.ledger.requests) == 14
    assert cold(line, "b")[1:] == cold(line, "a")[1:] == [False] * 6
    assert {report.attempts[1].outcome for report in line.reports} == {"superseded"}


async def test_without_warm_nothing_is_opened(sim: Simulator) -> None:
    async with relay(sim.port) as server:
        url = f"http://127.0.0.1:{server.port}"
        members = simulated("openai", sim, QUICK), simulated("openai", sim, "fixed@ttft=5", url=url)
        async with line_to(*members, warm=False) as line:
            await ask(line, 3)
            assert server.opened == 3
    assert cold(line, "b") == [True] * 3


async def test_interruption_leaves_an_open_connection(sim: Simulator) -> None:
    async with line_to(simulated("openai", sim, "fixed@ttft=0.02,tps=5")) as line:
        for turn in range(3):
            heard = len(line.text)
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "Hi"}])))
            await line.until(lambda heard=heard: len(line.text) > heard)
            await line.interrupt()
            await line.report(turn + 1)
            await asyncio.sleep(0.2)
    assert [report.outcome for report in line.reports] == ["interrupted"] * 3
    assert cold(line, "a")[1:] == [False, False]


async def test_turn_does_not_wait_for_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = asyncio.Event()

    async def hangs(service: Any) -> None:
        opening.set()
        await asyncio.sleep(30)

    async with lost_race() as (line, _, lost):
        monkeypatch.setattr(connection_warmth, "open_connection", hangs)
        await line.ask()
        await asyncio.wait_for(opening.wait(), 1)
        await line.ask()
        report = await line.report(2)
        assert len(lost.bodies) == 2
    assert (report.attempts[0].ttft_secs or 9) < 0.5


async def test_idle_connection_is_refreshed_before_its_server_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_warmth, "MIN_REFRESH_SECS", 0.25)
    headers = {"Keep-Alive": "timeout=1, max=100"}
    async with fake_vllm(keep_alive_secs=1.2, headers=headers) as fake:
        async with line_to(service(fake)) as line:
            await ask(line, 2, pause_secs=1.7)
        sent = listings(fake)
        await asyncio.sleep(1)
        assert listings(fake) == sent  # the session is over
    assert cold(line, "a")[1:] == [False]


async def test_unavailable_provider_is_sent_nothing() -> None:
    """One with an open breaker, not even to reopen the connection that was lost last."""
    stats = ProviderStats()
    async with lost_race(stats=stats) as (line, won, lost):
        won.silent_secs = 0.3
        asking = asyncio.create_task(line.ask())
        await until(lambda: len(lost.bodies) == 1, 5.0)
        (key,) = [key for key in stats.records() if key.startswith("b")]
        now = asyncio.get_running_loop().time()
        for _ in range(10):
            stats.record(key).breaker.record("failed", now, is_recovery=False)
        assert standing(stats, key, now).breaker == "open"
        await asking
        await line.report()
        await asyncio.sleep(0.2)
        assert listings(lost) == 1


async def test_clients_own_expiry_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, sim: Simulator
) -> None:
    """The user chose it; and the server is not blamed for what the client closes."""
    limits = connection_warmth.IdleLimits()
    monkeypatch.setattr(connection_warmth, "_limits", limits)
    http_client = DefaultAsyncHttpxClient(limits=connection_limits(keepalive_expiry=1.0))
    client = AsyncAnthropic(api_key="any", base_url=sim.url, http_client=http_client)
    async with line_to(anthropic(client, QUICK)) as line:
        await ask(line, 2, 1.5)
    assert cold(line, "a")[1:] == [True]
    assert not limits._timeouts


async def test_failed_opening_is_logged_at_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the type of its error alone; the next turn is answered."""
    logged: list[tuple[str, str]] = []

    async def fails(service: Any) -> None:
        raise OSError("secret")

    sink = logger.add(lambda m: logged.append((m.record["level"].name, m.record["message"])))
    try:
        async with lost_race() as (line, _, _):
            monkeypatch.setattr(connection_warmth, "open_connection", fails)
            await line.ask()
            await until(lambda: any("no connection kept" in text for _, text in logged), 5.0)
            await line.ask()
            await line.report(2)
    finally:
        logger.remove(sink)
    levels = {level for level, text in logged if "no connection kept open: OSError" in text}
    assert levels == {"DEBUG"}
    assert not any("secret" in text for _, text in logged)
    assert line.reports[1].outcome == "answered"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("ending", ["reset", "no_byte"])
async def test_server_of_one_request_per_connection_is_not_kept_open(
    ending: Ending, wire: str
) -> None:
    """The first turn's repeat opens a connection, and so does each later turn."""
    async with (
        one_request_server(OneRequestServer(ending=ending)) as server,
        line_to(simulated(wire, None, "m", url=server.url)) as line,
    ):
        await until(lambda: server.answered("GET") == 1, 5.0)
        await ask(line, 4)
    assert line.text == 4 * "Good evening."
    assert cold(line, "a") == [False, True, True, True, True]
    assert server.lost == 2, "of the first turn, and of the test after it"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("keep_alive", ["said not", "silently not"])
async def test_server_that_closes_after_each_answer_loses_no_request(
    keep_alive: Any, wire: str
) -> None:
    async with (
        one_request_server(OneRequestServer(keep_alive=keep_alive)) as server,
        line_to(simulated(wire, None, "m", url=server.url)) as line,
    ):
        await until(lambda: server.answered("GET") == 1, 5.0)
        await ask(line, 3)
    assert [len(report.attempts) for report in line.reports] == [1, 1, 1]
    assert (line.text, server.lost) == (3 * "Good evening.", 0)


async def test_connection_that_was_lost_once_is_kept_open_again() -> None:
    """A restart loses two idle connections: the repeat uses neither, later turns reuse its own."""
    stale: set[int] = set()
    async with one_request_server(OneRequestServer(lambda n, _: n not in stale)) as server:
        member = simulated("openai", None, "m", url=server.url)
        async with line_to(member) as line:
            await until(lambda: server.answered("GET") == 1, 5.0)
            await asyncio.gather(open_connection(member), open_connection(member))
            stale.update([1, server.connections])
            await ask(line, 3)
    assert stale == {1, 2}
    assert cold(line, "a") == [False, True, False, False]
    assert (line.text, server.lost) == (3 * "Good evening.", 1)


async def test_other_provider_answers_the_turn_that_lost_its_connection() -> None:
    async with one_request_server(OneRequestServer()) as server, fake_vllm() as well:
        member = simulated("openai", None, "m", url=server.url)
        async with line_to(member, service(well), policy=HedgePolicy.fallback()) as line:
            await until(lambda: server.answered("GET") == 1, 5.0)
            await ask(line, 4)
    assert [report.winner for report in line.reports] == ["b", "a", "a", "a"]
    assert all(cold(line, "a")[1:])


async def test_inference_that_lost_its_connection_is_repeated_over_a_new_one() -> None:
    async with (
        one_request_server(OneRequestServer()) as server,
        line_to(simulated("openai", None, "m", url=server.url)) as line,
    ):
        await until(lambda: server.answered("GET") == 1, 5.0)
        assert isinstance(line.service, HedgedLLMService)
        for _ in range(2):
            assert await line.service.run_inference(LLMContext([])) == "Good evening."
