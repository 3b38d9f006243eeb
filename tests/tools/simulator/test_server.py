"""The simulator itself: start and stop, ledger, aborts, capacity, conditions, process, command."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import aiohttp
import pytest

from pipecat_hedge import cli
from pipecat_hedge.tools.simulator import Simulator, SimulatorProcess
from pipecat_hedge.tools.simulator.server import is_loopback

from .sdk import SDKS, Sdk

pytestmark = pytest.mark.live

COMMAND = [sys.executable, "-m", "pipecat_hedge.cli", "simulate"]
MESSAGES = [{"role": "user", "content": "do you deliver"}]


async def ask(session: aiohttp.ClientSession, sim: Simulator, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
        return await response.text()


def post(url: str, model: str, secs: float = 10) -> bytes:
    body = json.dumps({"model": model, "messages": MESSAGES, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data=body)
    with urllib.request.urlopen(request, timeout=secs) as response:
        return response.read()


async def test_tokens_keep_the_pace(sim: Simulator) -> None:
    """Tokens are timed from the request's arrival, so that lateness does not add up."""
    async with aiohttp.ClientSession() as session:
        await ask(session, sim, "fixed?ttft=0.1&tps=100&slow=2")
    (entry,) = sim.ledger.requests
    assert entry.headers_secs is not None
    assert entry.first_token_secs is not None
    assert entry.ended_secs is not None
    assert entry.headers_secs - entry.started_secs == pytest.approx(0.1, abs=0.05)
    assert entry.first_token_secs - entry.started_secs == pytest.approx(0.2, abs=0.05)
    assert entry.ended_secs - entry.started_secs == pytest.approx(0.2 + 13 * 0.02, abs=0.08)


async def test_many_requests_at_once_are_served(sim: Simulator) -> None:
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
async def test_an_abort_is_recorded(sim: Simulator, sdk: Sdk, keys: str) -> None:
    async def read() -> None:
        async for _ in sdk.stream(f"fixed@{keys}", "do you deliver"):
            pass

    task = asyncio.create_task(read())
    wants_token, wants_headers = "ttft=0" in keys, "headers=0" in keys
    await sim.ledger.wait_until(
        lambda ledger: any(
            (e.first_token_secs is not None or not wants_token)
            and (e.first_byte_secs is not None or not wants_headers or sdk.name == "google")
            for e in ledger.open
        ),
        2,
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sim.wait_idle(1)
    assert [entry.outcome for entry in sim.ledger.requests] == ["aborted"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_many_aborts_leave_no_open_request(sim: Simulator, path: str) -> None:
    body = {"model": "fixed?ttft=0&tps=1", "messages": MESSAGES, "stream": True, "max_tokens": 9}

    async def leave(session: aiohttp.ClientSession) -> None:
        async with session.post(sim.url + path, json=body) as response:
            await response.content.readany()
            response.close()

    async with aiohttp.ClientSession() as session:
        for _ in range(4):
            await asyncio.gather(*(leave(session) for _ in range(50)))
    await sim.wait_idle(1)
    assert [entry.outcome for entry in sim.ledger.requests] == ["aborted"] * 200


async def test_draws_are_repeatable() -> None:
    """The n-th request to a model gets the same draw for the same seed, whatever is between."""
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


async def test_ledger_over_http(sim: Simulator) -> None:
    """`GET /ledger` shows every request, or the open ones; `DELETE` forgets those that ended."""
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 1)
        await ask(session, sim, "fixed?ttft=0&tps=inf")
        async with session.get(f"{sim.url}/ledger") as response:
            full = await response.json()
        assert [request["outcome"] for request in full["requests"]] == ["open", "completed"]
        assert full["open"] == 1
        async with session.get(f"{sim.url}/ledger?open=1") as response:
            assert [request["id"] for request in (await response.json())["requests"]] == [1]
        async with session.get(f"{sim.url}/ledger?wait=0.02") as response:
            assert (await response.json())["open"] == 1
        async with session.get(f"{sim.url}/ledger?wait=x") as response:
            assert response.status == 400
            assert "wait: expected" in (await response.json())["error"]["message"]
        waiting.cancel()
        async with session.get(f"{sim.url}/ledger?wait=2") as response:
            assert (await response.json())["open"] == 0
        async with session.delete(f"{sim.url}/ledger") as response:
            assert await response.json() == {"requests": [], "open": 0}


async def test_times_are_in_order(sim: Simulator, sdk: Sdk) -> None:
    _ = [piece async for piece in sdk.stream("fixed@ttft=0.02,tps=1000", "do you deliver")]
    (entry,) = sim.ledger.requests
    names = ("started", "began", "headers", "first_byte", "first_token", "ended")
    times = [getattr(entry, f"{name}_secs") for name in names]
    assert None not in times
    assert times == sorted(times)


async def test_stopping_fails_the_open_requests() -> None:
    async with aiohttp.ClientSession() as session:
        async with Simulator() as sim:
            waiting = [
                asyncio.create_task(ask(session, sim, f"fixed?ttft=0&fault={fault}"))
                for fault in ("hang", "stall", "keepalives", "reasoning_forever", "dribble")
            ]
            await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 5, 1)
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, aiohttp.ClientError) for result in results)
    assert {entry.outcome for entry in sim.ledger.requests} == {"failed"}


async def test_refused_url_refuses(sim: Simulator) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(sim.refused_url)
    assert sim.ledger.requests == []


async def test_hanging_url_never_connects(sim: Simulator) -> None:
    """Not even the tenth connection."""
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


async def test_an_address_that_is_not_available_is_named(sim: Simulator) -> None:
    expected = f"port {sim.port} on 127.0.0.1 is in use.*0: a free one"
    with pytest.raises(OSError, match=expected) as raised:
        await Simulator(port=sim.port).__aenter__()
    assert raised.value.errno == errno.EADDRINUSE
    expected = r"port 0 on 192\.0\.2\.1 is not available.*127\.0\.0\.1"
    with pytest.raises(OSError, match=expected):
        await Simulator(host="192.0.2.1").__aenter__()


def test_misuse_is_named() -> None:
    for port in (-1, 65536):
        with pytest.raises(ValueError, match="port: expected a number from 0 to 65535"):
            Simulator(port=port)
    with pytest.raises(RuntimeError, match="async with"):
        _ = Simulator().url
    with pytest.raises(RuntimeError, match="async with"):
        _ = Simulator().ledger


async def test_wait_idle_names_the_open_request(sim: Simulator) -> None:
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: bool(ledger.open), 1)
        with pytest.raises(TimeoutError, match=r"#1 openai fixed\?fault=hang"):
            await sim.wait_idle(0.01)
        task.cancel()
        await sim.wait_idle(1)


async def test_one_port_serves_all_protocols_at_once(sim: Simulator) -> None:
    clients = [SDKS[name](sim) for name in ("openai", "anthropic", "google")]

    async def run(sdk: Sdk, model: str) -> str:
        return "".join([piece async for piece in sdk.stream(model, "hello")])

    answers = await asyncio.gather(
        *(run(sdk, f"fixed@ttft=0.02,answer=I%20am%20{sdk.name}.") for sdk in clients)
    )
    assert answers == ["I am openai.", "I am anthropic.", "I am google."]
    for sdk in clients:
        await sdk.close()


async def test_conditions_hold_until_replaced(sim: Simulator) -> None:
    """They go before a request's own keys; a bad one changes nothing."""
    address = f"{sim.url}/simulator/conditions"
    async with aiohttp.ClientSession() as session:
        for number, (conditions, status) in enumerate(
            [({"fault": "529"}, 529), ({"rate": 0}, 200), ({}, 503)]
        ):
            async with session.post(address, json=conditions) as response:
                assert (response.status, await response.json()) == (200, conditions)
            async with session.post(address, json={"slow": -1}) as response:
                assert response.status == 400
                assert "slow: expected a factor" in (await response.json())["error"]["message"]
            await ask(session, sim, "fixed?fault=503&rate=1")
            assert sim.ledger.requests[number].status == status
            async with session.get(address) as response:
                assert await response.json() == conditions
        async with session.post(address, data=b"[]") as response:
            assert response.status == 400


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("fe80::1%2", False), (None, False)],
)
def test_only_this_machine_sets_conditions(address: str | None, expected: bool) -> None:
    assert is_loopback(address) is expected


async def test_requests_wait_for_capacity() -> None:
    """A request's times begin when it is served; one that leaves makes room."""
    async with Simulator(capacity=1) as sim, aiohttp.ClientSession() as session:
        hangs = asyncio.create_task(ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 1)
        waits = asyncio.create_task(ask(session, sim, "fixed?ttft=0.05"))
        leaves = asyncio.create_task(ask(session, sim, "fixed?ttft=0.05"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 3, 1)
        async with session.get(f"{sim.url}/simulator/arrivals") as response:
            arrivals = await response.json()
        assert (arrivals["busy"], arrivals["waiting"]) == (1, 2)
        assert all(entry.headers_secs is None for entry in sim.ledger.open)
        leaves.cancel()
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 2, 1)
        left_secs = sim.ledger.clock()
        hangs.cancel()
        assert "[DONE]" in await waits
        await sim.wait_idle(1)
        _, served, left = sim.ledger.requests
    outcomes = [entry.outcome for entry in sim.ledger.requests]
    assert outcomes == ["aborted", "completed", "aborted"]
    assert left.began_secs is None
    assert served.began_secs is not None
    assert served.first_token_secs is not None
    assert served.began_secs >= left_secs
    assert served.first_token_secs - served.began_secs >= 0.05


def test_a_process_of_its_own() -> None:
    """Ledger, conditions and arrivals from outside; a crash, and the same port again."""
    with SimulatorProcess(seed=3, capacity=2) as sim:
        assert b"[DONE]" in post(sim.openai_url, "fixed?ttft=0")
        with pytest.raises(TimeoutError):
            post(sim.openai_url, "fixed?fault=hang", 0.3)
        ledger = sim.ledger(wait_secs=2)
        assert [entry["outcome"] for entry in ledger["requests"]] == ["completed", "aborted"]
        assert sim.ledger(open_only=True) == {"requests": [], "open": 0}
        sim.clear_ledger()
        assert sim.ledger()["requests"] == []
        sim.set_conditions(fault="503", capacity=None)
        with pytest.raises(ValueError, match="fault: unknown fault 'oops'"):
            sim.set_conditions(fault="oops")
        arrivals = sim.arrivals()
        assert (arrivals["busy"], arrivals["waiting"]) == (0, 0)
        assert abs(arrivals["first"] - time.monotonic()) < 60
        assert sim.arrivals(arrivals["first"] + 100)["counts"] == []
        sim.kill()
        with pytest.raises(OSError, match="refused"):
            sim.arrivals()
        with SimulatorProcess(int(sim.url.rsplit(":", 1)[1])) as again:
            assert again.arrivals()["busy"] == 0
    with pytest.raises(OSError, match="refused"):
        again.ledger()


def test_a_process_that_cannot_start_shows_its_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"(?s)did not start: .*port {port} on"):
            SimulatorProcess(port).__enter__()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_open_streams(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    port = int(line.split("127.0.0.1:")[1].split()[0])
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "port: expected a number from 0 to 65535, got 70000"),
        (["--capacity", "0"], "capacity: expected a whole number, 1 or more"),
        (["--host", "192.0.2.1"], "port 8900 on 192.0.2.1 is not available"),
    ],
)
def test_bad_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["simulate", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"pipecat-hedge simulate: {message}")


def test_help_lists_profiles_keys_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--help"])
    output = capsys.readouterr().out
    for name in ("gemma-4-31b-baseten", "jagged-after", "retry_after", "cut_in_tool", "--seed"):
        assert name in output


@pytest.mark.parametrize(
    ("arguments", "message"), [([], "required: COMMAND"), (["fly"], "invalid choice: 'fly'")]
)
def test_unknown_command_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert message in capsys.readouterr().err
