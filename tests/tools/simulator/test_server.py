"""The simulator itself: start and stop, ledger, aborts, capacity, conditions, process, command."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from pipecat_hedge.tools.simulator import Simulator, SimulatorProcess
from pipecat_hedge.tools.simulator.server import is_loopback

from .sdk import SDKS

pytestmark = pytest.mark.live

COMMAND = [sys.executable, "-m", "pipecat_hedge.cli", "simulate"]
MESSAGES = [{"role": "user", "content": "do you deliver"}]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


async def ask(session: aiohttp.ClientSession, sim: Simulator, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
        return await response.text()


async def asking(
    session: aiohttp.ClientSession, sim: Simulator, *models: str
) -> list[asyncio.Task[str]]:
    """Requests that are open at the simulator."""
    tasks: list[asyncio.Task[str]] = []
    for model in models:
        count = len(sim.ledger.open) + 1
        tasks.append(asyncio.create_task(ask(session, sim, model)))
        await sim.ledger.wait_until(lambda ledger, n=count: len(ledger.open) == n, 2)
    return tasks


def outcomes(sim: Simulator) -> list[str]:
    return [entry.outcome for entry in sim.ledger.requests]


# ---- times and draws


async def test_tokens_keep_the_pace(sim: Simulator, session: aiohttp.ClientSession) -> None:
    """Tokens are timed from the request's arrival, so that lateness does not add up."""
    await ask(session, sim, "fixed?ttft=0.1&tps=100&slow=2")
    (entry,) = sim.ledger.requests
    names = ("started", "began", "headers", "first_token", "ended")
    times = [getattr(entry, f"{name}_secs") - entry.started_secs for name in names]
    assert times == sorted(times)
    assert [times[2], times[3]] == pytest.approx([0.1, 0.2], abs=0.05)
    assert times[4] == pytest.approx(0.2 + 13 * 0.02, abs=0.08)


async def test_draws_are_repeatable(session: aiohttp.ClientSession) -> None:
    """The n-th request to a model gets the same draw for the same seed, whatever is between."""
    model = "fixed?ttft=0&tps=inf&fault=529&rate=0.5"

    async def statuses(seed: int, *, mixed: bool) -> list[int | None]:
        async with Simulator(seed=seed) as sim:
            for _ in range(20):
                await ask(session, sim, model)
                if mixed:
                    await ask(session, sim, model + "&after=1")
            return [entry.status for entry in sim.ledger.requests if entry.model == model]

    first = await statuses(1, mixed=False)
    assert set(first) == {200, 529}
    assert await statuses(1, mixed=True) == first
    assert await statuses(2, mixed=False) != first


# ---- ends


async def test_many_aborts_leave_no_open_request(
    sim: Simulator, session: aiohttp.ClientSession
) -> None:
    body = {"model": "fixed?ttft=0&tps=1", "messages": MESSAGES, "stream": True}

    async def leave() -> None:
        async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
            await response.content.readany()
            response.close()

    await asyncio.gather(*(leave() for _ in range(200)))
    await sim.wait_idle(1)
    assert outcomes(sim) == ["aborted"] * 200


async def test_stopping_fails_the_open_requests(session: aiohttp.ClientSession) -> None:
    faults = ("hang", "stall", "keepalives", "reasoning_forever", "dribble")
    async with Simulator() as sim:
        waiting = await asking(session, sim, *(f"fixed?ttft=0&fault={fault}" for fault in faults))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, aiohttp.ClientError) for result in results)
    assert set(outcomes(sim)) == {"failed"}


async def test_one_port_serves_all_protocols_at_once(sim: Simulator) -> None:
    clients = [SDKS[name](sim) for name in SDKS]
    models = [f"fixed@ttft=0.02,answer=I%20am%20{sdk.name}." for sdk in clients]
    answers = await asyncio.gather(
        *(sdk.ask(model) for sdk, model in zip(clients, models, strict=True))
    )
    assert [answer.text for answer in answers] == [f"I am {name}." for name in SDKS]
    for sdk in clients:
        await sdk.close()


# ---- addresses


async def test_the_refused_url_refuses(sim: Simulator, session: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.ClientConnectorError):
        await session.get(sim.refused_url)
    assert sim.ledger.requests == []


async def test_the_hanging_url_never_connects(sim: Simulator) -> None:
    """Not even the tenth connection."""
    port = int(sim.hanging_url.rsplit(":", 1)[1])
    connects = [asyncio.create_task(asyncio.open_connection("127.0.0.1", port)) for _ in range(10)]
    done, pending = await asyncio.wait(connects, timeout=0.3)
    for task in pending:
        task.cancel()
    await asyncio.wait(connects)
    assert not done


async def test_an_address_that_is_not_available_is_named(sim: Simulator) -> None:
    expected = (
        f"port {sim.port} on 127.0.0.1 is not available .Address already in use.*0: a free one"
    )
    with pytest.raises(OSError, match=expected) as raised:
        await Simulator(port=sim.port).__aenter__()
    assert raised.value.errno == errno.EADDRINUSE


def test_an_address_before_the_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        _ = Simulator().url


# ---- the ledger, conditions and capacity


async def test_the_ledger_over_http(sim: Simulator, session: aiohttp.ClientSession) -> None:
    """`GET` shows every request, and may wait; `DELETE` forgets those that ended."""

    async def call(query: str = "", method: str = "GET") -> Any:
        async with session.request(method, f"{sim.url}/ledger{query}") as response:
            return await response.json()

    (waiting,) = await asking(session, sim, "fixed?fault=hang")
    await ask(session, sim, "fixed?ttft=0&tps=inf")
    full = await call()
    assert [request["outcome"] for request in full["requests"]] == ["open", "completed"]
    assert full["open"] == 1
    assert (await call("?wait=0.02"))["open"] == 1
    assert "wait: expected" in str(await call("?wait=x"))
    with pytest.raises(TimeoutError, match=r"#1 openai fixed\?fault=hang"):
        await sim.wait_idle(0.01)
    waiting.cancel()
    assert (await call("?wait=2"))["open"] == 0
    assert (await call(method="DELETE"))["requests"] == []


async def test_conditions_hold_until_replaced(
    sim: Simulator, session: aiohttp.ClientSession
) -> None:
    """They go before a request's own keys; a bad one changes nothing."""
    address = f"{sim.url}/simulator/conditions"
    for conditions, status in (({"fault": "529"}, 529), ({"rate": 0}, 200), ({}, 503)):
        async with session.post(address, json=conditions) as response:
            assert (response.status, await response.json()) == (200, conditions)
        for bad, message in ((b'{"slow": -1}', "slow: expected a factor"), (b"[]", "JSON object")):
            async with session.post(address, data=bad) as response:
                assert response.status == 400
                assert message in (await response.json())["error"]["message"]
        await ask(session, sim, "fixed?fault=503&rate=1")
        assert sim.ledger.requests[-1].status == status
        async with session.get(address) as response:
            assert await response.json() == conditions


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("fe80::1%2", False), (None, False)],
)
def test_only_this_machine_sets_conditions(address: str | None, expected: bool) -> None:
    assert is_loopback(address) is expected


async def test_requests_wait_for_capacity(session: aiohttp.ClientSession) -> None:
    """A request's times begin when it is served; one that leaves makes room."""
    async with Simulator(capacity=1) as sim:
        hangs, waits, leaves = await asking(
            session, sim, "fixed?fault=hang", "fixed?ttft=0.05", "fixed?ttft=0.05"
        )
        assert [entry.began_secs is None for entry in sim.ledger.open] == [False, True, True]
        leaves.cancel()
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 2, 1)
        left_secs = sim.ledger.clock()
        hangs.cancel()
        assert "[DONE]" in await waits
        await sim.wait_idle(1)
    _, served, left = sim.ledger.requests
    assert outcomes(sim) == ["aborted", "completed", "aborted"]
    assert left.began_secs is None
    assert served.began_secs is not None
    assert served.first_token_secs is not None
    assert served.first_token_secs - 0.05 >= served.began_secs >= left_secs


async def test_more_capacity_serves_waiting_requests(session: aiohttp.ClientSession) -> None:
    async with Simulator(capacity=1) as sim:
        _, waits = await asking(session, sim, "fixed?fault=hang", "fixed?ttft=0&tps=inf")
        address = f"{sim.url}/simulator/conditions"
        for capacity, status in ((0, 400), (2, 200)):
            async with session.post(address, json={"capacity": capacity}) as response:
                assert response.status == status
        assert "[DONE]" in await waits


# ---- a process of its own, and the command


def post(url: str, model: str, secs: float = 10) -> bytes:
    body = json.dumps({"model": model, "messages": MESSAGES, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data=body)
    with urllib.request.urlopen(request, timeout=secs) as response:
        return response.read()


def test_a_process_of_its_own() -> None:
    """Ledger and conditions from outside; a crash, and the same port again."""
    with SimulatorProcess(seed=3, capacity=2) as sim:
        assert b"[DONE]" in post(sim.openai_url, "fixed?ttft=0")
        with pytest.raises(TimeoutError):
            post(sim.openai_url, "fixed?fault=hang", 0.3)
        ledger = sim.ledger(wait_secs=2)
        assert [entry["outcome"] for entry in ledger["requests"]] == ["completed", "aborted"]
        assert ledger["open"] == 0
        assert ledger["requests"][0]["ended_secs"] < ledger["now_secs"] < 60
        sim.clear_ledger()
        assert sim.ledger()["requests"] == []
        sim.set_conditions(fault="503", capacity=None)
        with pytest.raises(ValueError, match="fault: unknown fault 'oops'"):
            sim.set_conditions(fault="oops")
        sim.kill()
        with pytest.raises(OSError, match="refused"):
            sim.ledger()
        port = int(sim.url.rsplit(":", 1)[1])
        with SimulatorProcess(port) as again:
            assert again.ledger()["requests"] == []
            with pytest.raises(RuntimeError, match=f"(?s)did not start: .*port {port} on"):
                SimulatorProcess(port).__enter__()
    with pytest.raises(OSError, match="refused"):
        again.ledger()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_open_streams(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
    model = "fixed?fault=headers_then_silence"
    body = json.dumps({"model": model, "messages": [{}], "stream": 1})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall((head + body).encode())
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in errors


async def test_conditions_of_one_model_leave_others_alone(
    sim: Simulator, session: aiohttp.ClientSession
) -> None:
    address = f"{sim.url}/simulator/conditions?model=gpt-4.1"
    async with session.post(address, json={"fault": "529"}) as response:
        assert response.status == 200
    for model, status in (("gpt-4.1", 529), ("fixed", 200)):
        await ask(session, sim, model)
        assert sim.ledger.requests[-1].status == status
    async with session.get(address) as response:
        assert await response.json() == {"fault": "529"}
    for conditions in ({"capacity": 1}, {"fault": "oops"}):
        async with session.post(address, json=conditions) as response:
            assert response.status == 400
    async with session.post(f"{address}-mega", json={}) as response:
        assert response.status == 400


async def test_a_trace_gives_each_request_the_latency_of_its_turn(
    sim: Simulator, session: aiohttp.ClientSession
) -> None:
    """In order, or of the turn that a request's text names; then the n-th request has the n-th."""
    sim.set_conditions("gpt-4.1", trace=[[0.0, 0.1], [0.2]])
    texts = ["hello"] * 3 + ["?turn=0"] * 3 + ["?turn=3"]
    for text in texts:
        messages = [{"role": "user", "content": text}]
        body = {"model": "gpt-4.1", "messages": messages, "stream": True}
        async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
            await response.text()
    waits = [entry.first_token_secs - entry.started_secs for entry in sim.ledger.requests]  # type: ignore[operator]
    assert waits == pytest.approx([0.0, 0.2, 0.0, 0.0, 0.1, 0.1, 0.2], abs=0.05)


async def test_conditions_of_a_region_apply_to_all_its_models(
    sim: Simulator, session: aiohttp.ClientSession
) -> None:
    address = f"{sim.url}/simulator/conditions?region=west"
    async with session.post(address, json={"fault": "529"}) as response:
        assert response.status == 200
    for model, status in (
        ("fixed?region=west", 529),
        ("gpt-4.1?ttft=0&region=west", 529),
        ("fixed?region=north", 200),
        ("fixed", 200),
    ):
        await ask(session, sim, model)
        assert sim.ledger.requests[-1].status == status, model
