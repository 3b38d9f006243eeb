"""Processes that share a Redis, over real sockets: outages of a provider, and of the Redis."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pipecat.frames.frames import LLMTextFrame
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, ProviderStats
from pipecat_hedge.fleet import RedisStore
from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.counts import counts_of
from pipecat_hedge.providers import SIMULATED_HEADER
from pipecat_hedge.providers.latency import ALL
from pipecat_hedge.providers.shared_store import Delta, StoreRefused
from tests.live.scripted_provider import HANGS, Reply, ScriptedProvider, scripted_providers
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.redis_server import RedisServer, needs_redis
from tests.support.simulated import close
from tests.support.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120), needs_redis]

ADAPTIVE = HedgePolicy.adaptive()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def unmarked(provider: ScriptedProvider) -> LLMService[Any]:
    """A service of a provider whose responses do not say that they are simulated."""
    service: Any = provider.service()

    async def unmark(response: Any) -> None:
        response.headers.pop(SIMULATED_HEADER, None)

    service._client._client.event_hooks["response"].insert(0, unmark)
    return service


@asynccontextmanager
async def call(
    server: RedisServer,
    *providers: ScriptedProvider,
    policy: HedgePolicy = ADAPTIVE,
    marked: bool = False,
    store: RedisStore | None = None,
) -> AsyncIterator[tuple[Line, HedgedLLMService]]:
    """A process's call: statistics, connections and a pipeline of its own."""
    services = [p.service() if marked else unmarked(p) for p in providers]
    stats = ProviderStats(store or RedisStore(server.url))
    llm = racing(*services, policy=policy, stats=stats)
    try:
        async with Line(llm) as line:
            yield line, llm
    finally:
        await close(*services)


def breaker(llm: HedgedLLMService) -> str:
    return llm.provider_states()[0].breaker


async def wait_of_turn(line: Line, number: int = 1) -> float:
    """Ask, and return the time to the first token."""
    await line.ask()
    secs = (await line.report(number)).ttft_secs
    assert secs is not None
    return secs


# ---- a provider hangs


async def test_first_turn_of_a_process_avoids_a_provider_that_hangs(server: RedisServer) -> None:
    a, b = ScriptedProvider("a", "openai", HANGS), ScriptedProvider("b", "openai")

    async def meets_it() -> None:
        async with call(server, a, b, policy=HedgePolicy.adaptive(order="given")) as (line, _):
            for number in (1, 2):
                assert await wait_of_turn(line, number) > 1.0
            await until(lambda: server.names("*:suspect:*"))

    async with scripted_providers(a, b):
        await asyncio.gather(meets_it(), meets_it())
        await until(lambda: server.names("*:down:*"))
        asked = len(a.requests)
        for _ in range(3):
            async with call(server, a, b) as (line, llm):
                await until(lambda llm=llm: breaker(llm) == "open")
                assert await wait_of_turn(line) < 1.0
                assert [each.provider for each in line.reports[0].attempts] == ["b"]
        assert len(a.requests) == asked


async def test_marked_traffic_of_a_simulator_is_not_shared(server: RedisServer) -> None:
    a, b = ScriptedProvider("a", "openai", HANGS), ScriptedProvider("b", "openai")
    async with scripted_providers(a, b):
        for _ in range(2):
            async with call(server, a, b, marked=True) as (line, _):
                for number in (1, 2, 3):
                    await wait_of_turn(line, number)
    assert not server.names("*:latency:b*"), "no response of it was without the mark"


# ---- the Redis is in trouble


@dataclass(frozen=True)
class Trouble:
    """What happens to a Redis.

    Parameters:
        name: What it is called here.
        begin: Brings it about.
        end: Mends it.
        loses: Whether the Redis loses what it had counted.
    """

    name: str
    begin: Callable[[RedisServer], object]
    end: Callable[[RedisServer], object]
    loses: bool = False


def commanded(*commands: str) -> Callable[[RedisServer], object]:
    return lambda server: [server.control.execute_command(*shlex.split(c)) for c in commands]


KILLED = Trouble("killed", RedisServer.kill, RedisServer.start, loses=True)
STOPPED = Trouble("stopped", RedisServer.hang, RedisServer.go_on)
ANOTHER_PASSWORD = Trouble(
    "another password",
    commanded("CONFIG SET requirepass another", "CLIENT KILL TYPE normal SKIPME yes"),
    commanded("CONFIG SET requirepass ''"),
)
TURNS = 7
"""Turns before, during and after the trouble."""
NOISE_SECS = 0.25
"""Less than what a Redis is waited for in the background, 0.5 s."""
ANSWERS_SECS = (0.05, 0.4)
"""So far apart that no ten of twelve are below the model's p20, which would be a change of speed:
what is not shared before one is not counted."""


class Unsure(RedisStore):
    """Knows how many answers it was to add without learning whether it did.

    Attributes:
        unsure: Their number.
    """

    unsure = 0

    async def add(self, delta: Delta) -> None:
        try:
            await super().add(delta)
        except StoreRefused:
            raise
        except BaseException:
            self.unsure += sum(int(counts_of(s)[ALL].sum()) for s in delta.latencies.values())
            raise


@pytest.mark.parametrize(
    "trouble", [STOPPED, KILLED, ANOTHER_PASSWORD], ids=lambda trouble: trouble.name
)
async def test_no_turn_waits_for_a_redis_in_trouble(
    trouble: Trouble,
    server: RedisServer,
    logged: list[str],
    monkeypatch: pytest.MonkeyPatch,
    uncollected: None,
) -> None:
    """Longer than the bare service at the same time. It is said once, each answer counts once."""
    for name, secs in (("EVERY_SECS", 0.2), ("TICK_SECS", 0.1), ("CAP_SECS", 0.5)):
        monkeypatch.setattr(fleet_sync, name, secs)
    a, store = ScriptedProvider("a", "openai"), Unsure(server.url)

    async def turns(hedged: Line, bare: Line) -> list[tuple[float, float]]:
        async def timed(line: Line) -> float:
            began, before = asyncio.get_running_loop().time(), len(line.times(LLMTextFrame))
            await line.ask()
            return line.times(LLMTextFrame)[before] - began

        found: list[tuple[float, float]] = []
        for number in range(TURNS):
            a.reply = Reply(first_secs=ANSWERS_SECS[number % 2])
            found.append(await asyncio.gather(timed(hedged), timed(bare)))
        return found

    async with scripted_providers(a):
        bare = a.service()
        async with Line(bare) as beside, call(server, a, store=store) as (line, _):
            waits = await turns(line, beside)
            await asyncio.to_thread(trouble.begin, server)
            waits += await turns(line, beside)
            await asyncio.to_thread(trouble.end, server)
            waits += await turns(line, beside)
            await until(lambda: len(logged) > 1)
        await close(bare)
    worst = max(hedged - bare for hedged, bare in waits)
    (counted,) = server.counted().values()
    answers = len(a.requests) - len(waits)
    print(f"{trouble.name}: {worst:.3f} s, {counted} of {answers}, {store.unsure} unsure")
    assert worst < NOISE_SECS, waits
    said = [line.partition(":")[0] for line in logged]
    assert said == ["WARNING", "INFO"]
    lost = TURNS if trouble.loses else 0
    assert answers - lost - store.unsure <= counted <= answers
