"""The simulator itself: timing, aborts, repeatability, start and stop."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import AsyncExitStack

import aiohttp
import anthropic
import openai
import pytest

from pipecat_hedge.tools.simulator import Simulator

from .sdk import SDKS, Sdk

pytestmark = pytest.mark.live

MESSAGES = [{"role": "user", "content": "do you deliver"}]


async def ask(session: aiohttp.ClientSession, sim: Simulator, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
        return await response.text()


async def test_first_token_is_on_time(sim: Simulator):
    """Measured by a client, the first token comes within a few milliseconds of when it should."""
    loop = asyncio.get_running_loop()
    late = []
    body = {"model": "fixed?ttft=0.1", "messages": MESSAGES, "stream": True}
    async with aiohttp.ClientSession() as session:
        await ask(session, sim, "fixed?ttft=0")
        for _ in range(10):
            asked = loop.time()
            async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
                seen = b""
                while b'"Yes,"' not in seen:
                    seen += await response.content.readany()
                late.append(loop.time() - asked - 0.1)
    assert min(late) >= 0
    assert sorted(late)[5] < 0.01


async def test_tokens_keep_the_pace(sim: Simulator):
    """Tokens are timed from the request's arrival, so that lateness does not add up."""
    async with aiohttp.ClientSession() as session:
        await ask(session, sim, "fixed?ttft=0.1&tps=100")
    (entry,) = sim.ledger.requests
    assert entry.ended_secs is not None
    assert entry.ended_secs - entry.started_secs == pytest.approx(0.1 + 13 * 0.01, abs=0.05)


async def test_thousands_of_tokens_a_second(sim: Simulator):
    """A benchmark can run on it: 10,000 tokens, each written on its own, in well under 5 s."""
    words = "%20".join(["word"] * 2000)
    async with asyncio.timeout(5), aiohttp.ClientSession() as session:
        for _ in range(5):
            await ask(session, sim, f"fixed?ttft=0&tps=inf&answer={words}")
    assert sum(entry.tokens_sent for entry in sim.ledger.requests) == 10_000


async def test_many_at_once(sim: Simulator):
    """Two hundred requests at once are all served, and none is left open."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(ask(session, sim, "fixed?ttft=0.2") for _ in range(200)))
    await sim.wait_idle(1)
    assert {entry.outcome for entry in sim.ledger.requests} == {"completed"}


@pytest.mark.parametrize(
    "keys",
    ["ttft=9,headers=8", "ttft=9,headers=0", "ttft=0,tps=2", "ttft=0,fault=stall,after=2"],
    ids=["before headers", "before the first token", "in mid-stream", "in a stall"],
)
async def test_an_abort_is_seen_at_once(sim: Simulator, sdk: Sdk, keys: str):
    """A client that leaves is in the ledger as aborted, within 50 ms, whatever it waited for."""

    async def listen() -> None:
        async for _ in sdk.stream(f"fixed@{keys}", "do you deliver"):
            pass

    task = asyncio.create_task(listen())
    wants_token, wants_headers = "ttft=0" in keys, "headers=0" in keys
    await sim.ledger.wait_until(
        lambda ledger: any(
            (e.first_token_secs is not None or not wants_token)
            and (e.first_byte_secs is not None or not wants_headers or sdk.name == "google")
            for e in ledger.open
        ),
        2,
    )
    left_secs = sim.ledger.clock()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sim.wait_idle(1)
    (entry,) = sim.ledger.requests
    assert entry.outcome == "aborted"
    assert entry.ended_secs is not None
    assert 0 <= entry.ended_secs - left_secs < 0.05


async def test_draws_are_repeatable():
    """The n-th request to a model gets the same draw for the same seed, whatever comes between."""
    model = "fixed?ttft=0&tps=inf&fault=529&rate=0.5"

    async def statuses(seed: int, *, mixed: bool) -> list[int | None]:
        async with Simulator(seed=seed) as sim, aiohttp.ClientSession() as session:
            for _ in range(20):
                await ask(session, sim, model)
                if mixed:
                    await ask(session, sim, model + "&after=1")
            return [entry.status for entry in sim.ledger.requests if entry.model == model]

    first = await statuses(1, mixed=False)
    assert set(first) == {200, 529}
    assert await statuses(1, mixed=True) == first
    assert await statuses(2, mixed=False) != first


async def test_ledger_over_http(sim: Simulator):
    """`GET /ledger` shows every request, or the open ones; `DELETE` forgets those that ended."""
    async with aiohttp.ClientSession() as session:
        await ask(session, sim, "fixed?ttft=0&tps=inf")
        waiting = asyncio.create_task(ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 1)
        async with session.get(f"{sim.url}/ledger") as response:
            full = await response.json()
        assert [request["outcome"] for request in full["requests"]] == ["completed", "open"]
        assert full["open"] == 1
        async with session.get(f"{sim.url}/ledger?open=1") as response:
            assert [request["id"] for request in (await response.json())["requests"]] == [2]
        async with session.get(f"{sim.url}/ledger?wait=0.02") as response:
            assert (await response.json())["open"] == 1
        async with session.get(f"{sim.url}/ledger?wait=x") as response:
            assert response.status == 400
        waiting.cancel()
        async with session.get(f"{sim.url}/ledger?wait=2") as response:
            assert (await response.json())["open"] == 0
        async with session.delete(f"{sim.url}/ledger") as response:
            assert await response.json() == {"requests": [], "open": 0}


async def test_times_are_in_order(sim: Simulator, sdk: Sdk):
    """Start, headers, first byte, first token, end: each no earlier than the one before."""
    _ = [piece async for piece in sdk.stream("fixed@ttft=0.02,tps=1000", "do you deliver")]
    (entry,) = sim.ledger.requests
    times = [
        entry.started_secs,
        entry.headers_secs,
        entry.first_byte_secs,
        entry.first_token_secs,
        entry.ended_secs,
    ]
    assert None not in times
    assert times == sorted(times, key=lambda secs: secs or 0)


async def test_stops_fast_with_open_streams():
    """Leaving the context ends open streams at once; they are in the ledger as failed."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with Simulator() as sim:
            waiting = [
                asyncio.create_task(ask(session, sim, f"fixed?ttft=0&fault={fault}"))
                for fault in ("hang", "stall", "keepalives", "reasoning_forever", "dribble")
            ]
            await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 5, 1)
            asked = loop.time()
        assert loop.time() - asked < 0.5
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, aiohttp.ClientError) for result in results)
    assert {entry.outcome for entry in sim.ledger.requests} == {"failed"}


async def test_refused(sim: Simulator):
    """Nobody listens at `refused_url`."""
    async with AsyncExitStack() as stack:
        openai_client = await stack.enter_async_context(
            openai.AsyncOpenAI(api_key="any", base_url=f"{sim.refused_url}/v1", max_retries=0)
        )
        anthropic_client = await stack.enter_async_context(
            anthropic.AsyncAnthropic(api_key="any", base_url=sim.refused_url, max_retries=0)
        )
        with pytest.raises(openai.APIConnectionError):
            await openai_client.models.list()
        with pytest.raises(anthropic.APIConnectionError):
            await anthropic_client.models.list()
    assert sim.ledger.requests == []


async def test_hanging(sim: Simulator):
    """A connection to `hanging_url` is never established, not even the tenth."""
    port = int(sim.hanging_url.rsplit(":", 1)[1])
    socks = [socket.socket() for _ in range(10)]
    loop = asyncio.get_running_loop()
    for sock in socks:
        sock.setblocking(False)
    connects = [
        asyncio.ensure_future(loop.sock_connect(sock, ("127.0.0.1", port))) for sock in socks
    ]
    done, pending = await asyncio.wait(connects, timeout=0.3)
    for task in pending:
        task.cancel()
    await asyncio.wait(connects)
    for sock in socks:
        sock.close()
    assert not done


async def test_port_in_use(sim: Simulator):
    """A port in use is an error that names it and says what to do."""
    with pytest.raises(
        OSError, match=f"port {sim.port} on 127.0.0.1 is in use.*0: a free one"
    ) as e:
        async with Simulator(port=sim.port):
            pass
    assert e.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(port: int):
    """A number that is no port is an error that names the field."""
    with pytest.raises(ValueError, match="port: expected a number from 0 to 65535"):
        Simulator(port=port)


def test_not_running():
    """Asking a simulator that is not running for its address says how to run it."""
    with pytest.raises(RuntimeError, match="async with"):
        _ = Simulator().url
    with pytest.raises(RuntimeError, match="async with"):
        _ = Simulator().ledger


async def test_an_address_of_another_machine():
    """An address that this machine does not have is an error that says so."""
    with pytest.raises(OSError, match=r"port 0 on 192\.0\.2\.1 cannot be had.*127\.0\.0\.1"):
        async with Simulator(host="192.0.2.1"):
            pass


async def test_ipv6():
    """It serves ::1 as well, and says so in its addresses."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with Simulator(host="::1") as sim, aiohttp.ClientSession() as session:
        assert sim.url.startswith("http://[::1]:")
        assert "[DONE]" in await ask(session, sim, "fixed?ttft=0")


async def test_wait_idle_names_what_is_open(sim: Simulator):
    """A wait in vain names the request that is open."""
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: bool(ledger.open), 1)
        with pytest.raises(TimeoutError, match=r"#1 openai fixed\?fault=hang"):
            await sim.wait_idle(0.01)
        task.cancel()
        await sim.wait_idle(1)


async def test_two_wires_at_once(sim: Simulator):
    """One port serves all wires at the same time, each with its own profile."""
    clients = [SDKS[name](sim) for name in ("openai", "anthropic", "google")]

    async def run(sdk: Sdk, model: str) -> str:
        return "".join([piece async for piece in sdk.stream(model, "hello")])

    answers = await asyncio.gather(
        *(run(sdk, f"fixed@ttft=0.02,answer=I%20am%20{sdk.name}.") for sdk in clients)
    )
    assert answers == ["I am openai.", "I am anthropic.", "I am google."]
    for sdk in clients:
        await sdk.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_aborts_leave_nothing(sim: Simulator, path: str):
    """A thousand clients that leave in mid-stream leave no open request behind."""
    body = {"model": "fixed?ttft=0&tps=1", "messages": MESSAGES, "stream": True, "max_tokens": 9}

    async def leave(session: aiohttp.ClientSession) -> None:
        async with session.post(sim.url + path, json=body) as response:
            await response.content.readany()
            response.close()

    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            await asyncio.gather(*(leave(session) for _ in range(50)))
    await sim.wait_idle(1)
    assert [entry.outcome for entry in sim.ledger.requests] == ["aborted"] * 1000
