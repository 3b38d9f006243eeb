"""What the proxy does as a server, over real sockets, in front of simulated providers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.proxy import proxied_turn as turn_module
from pipecat_hedge.tools.proxy import response as response_module
from pipecat_hedge.tools.proxy import server as server_module
from pipecat_hedge.tools.proxy.model import ProxiedModel
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.simulator import Simulator
from tests.live.proxied import HELLO, PATHS, Client, asking, client_of, proxied, proxy, sdk
from tests.live.scripted_upstream import replying, scripted

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. Do come by."
WELL = "fixed@ttft=0.02,tps=400,answer=" + ANSWER.replace(" ", "%20")
SLOW = WELL.replace("tps=400", "tps=10")
SILENT = f"{WELL},fault=headers_then_silence"
TOOL = {"type": "function", "function": {"name": "book_table", "parameters": {"type": "object"}}}
REJECTED = (anthropic.APIStatusError, openai.APIStatusError)
WIRES = pytest.mark.parametrize("wire", PATHS)


def racing(
    sim: Simulator, *models: str, policy: str = "after(0.3, probes=False)", **options: Any
) -> AbstractAsyncContextManager[str]:
    """A proxy in front of the simulator's models."""
    model = {"policy": policy, **options.pop("model", {})}
    return proxied(*((sim.url, each) for each in models), model=model, **options)


# ---- upstreams that fail


@WIRES
async def test_no_connection_is_a_502(sim: Simulator, wire: str) -> None:
    async with proxied(sim.refused_url) as url, client_of(wire, url) as client:
        with pytest.raises(REJECTED) as rejected:
            await client.stream()
        assert rejected.value.status_code == 502


@WIRES
@pytest.mark.parametrize("fault", ["cut", "error_in_band,after=4"])
async def test_a_cut_after_the_commit_is_an_error_of_the_wire(
    sim: Simulator, wire: str, fault: str
) -> None:
    text = ""

    async def listen(client: Client) -> None:
        nonlocal text
        async for piece in client.pieces():
            text += piece

    async with racing(sim, f"{WELL},fault={fault}", WELL) as url, client_of(wire, url) as client:
        with pytest.raises((anthropic.APIError, openai.APIError)):
            await listen(client)
    assert text
    assert ANSWER.startswith(text)
    assert text != ANSWER


@WIRES
@pytest.mark.parametrize("fault", ["cut", "stall"])
async def test_a_text_answer_is_continued_on_request(sim: Simulator, wire: str, fault: str) -> None:
    model = {"continue": True, "policy": "race(2, stall_secs=0.3)"}
    async with (
        racing(sim, f"{WELL},fault={fault}", WELL, model=model) as url,
        client_of(wire, url) as client,
    ):
        assert await client.stream() == ANSWER


@WIRES
async def test_a_refusal_after_the_headers_is_an_event(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "MAX_SILENCE_SECS", 0.2)
    late = f"{WELL},fault=slow_headers,delay=0.6"
    async with (
        racing(sim, late, policy="fallback(deadline_secs=0.4)") as url,
        client_of(wire, url) as client,
    ):
        with pytest.raises((anthropic.APIError, openai.APIError)):
            await client.stream()


@WIRES
async def test_a_flood_without_anything_usable_is_a_fault(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "MAX_HELD_BYTES", 50_000)
    async with (
        racing(sim, f"{WELL},fault=reasoning_forever", WELL, policy="fallback()") as url,
        client_of(wire, url) as client,
    ):
        assert await client.stream() == ANSWER
        await sim.wait_idle(1.0)
        assert sim.ledger.requests[0].tokens_sent < 2000


@WIRES
async def test_a_loser_is_closed_before_the_winner_s_next_event(sim: Simulator, wire: str) -> None:
    async with (
        racing(sim, SILENT, SLOW, policy="race(2, probes=False)") as url,
        client_of(wire, url) as client,
    ):
        for _ in range(3):
            pieces = client.pieces()
            await anext(pieces)
            await anext(pieces)
            loser = next(each for each in reversed(sim.ledger.requests) if each.model == SILENT)
            assert loser.outcome == "aborted"
            assert [each.model for each in sim.ledger.open] == [SLOW]
            async for _ in pieces:
                pass
            await sim.wait_idle(1.0)


# ---- clients that leave, or do not read


@pytest.mark.parametrize(
    "model", [SILENT, WELL.replace("tps=400", "tps=0.5")], ids=["before", "after"]
)
async def test_hundreds_of_clients_that_leave_close_every_request(
    sim: Simulator, model: str
) -> None:
    """At once, but for the work: to open the same requests is the more."""
    loop = asyncio.get_running_loop()
    async with racing(sim, model, model) as url, aiohttp.ClientSession() as session:

        async def ask(wire: str) -> None:
            body = asking(wire, stream=True)
            async with session.post(url + PATHS[wire], json=body) as answer:
                await answer.read()

        began = loop.time()
        asked = [asyncio.ensure_future(ask(wire)) for wire in PATHS for _ in range(100)]
        first = "headers_secs" if model == SILENT else "first_token_secs"
        await sim.ledger.wait_until(
            lambda it: sum(getattr(each, first) is not None for each in it.requests) >= 100, 10.0
        )
        assert sim.ledger.open
        left = loop.time()
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await sim.wait_idle(10.0)
        assert {each.outcome for each in sim.ledger.requests} == {"aborted"}
        assert loop.time() - left < 1.0 + (left - began)


@WIRES
async def test_clients_that_never_read_hold_upstreams_back_and_are_let_go(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "WRITE_SECS", 1.0)
    monkeypatch.setattr(response_module, "MAX_SILENCE_SECS", 0.5)
    size, count = 50_000, 10
    async with racing(sim, f"fixed@ttft=0,fault=endless,answer={'x' * size}") as url:
        body = json.dumps(asking(wire, stream=True)).encode()
        host, port = url.removeprefix("http://").split(":")
        writers: list[asyncio.StreamWriter] = []
        for _ in range(count):
            _, writer = await asyncio.open_connection(host, int(port), limit=2**10)
            writers.append(writer)
            writer.write(post(body, PATHS[wire]))
        await sim.ledger.wait_until(lambda it: len(it.requests) == count, 5.0)
        await sim.wait_idle(10.0)
        sent = [size * each.tokens_sent for each in sim.ledger.requests]
        assert 2**20 < sum(sent) < 16 * 2**20 * count
        for writer in writers:
            writer.transport.abort()


# ---- answers that are shared or kept


async def test_identical_requests_share_one_race(sim: Simulator) -> None:
    async with (
        racing(sim, WELL, model={"coalesce": True}) as url,
        client_of("openai", url) as client,
    ):
        asked = [asyncio.ensure_future(client.stream()) for _ in range(10)]
        await asyncio.sleep(0.05)
        asked.pop().cancel()  # the others go on
        assert await asyncio.gather(*asked) == [ANSWER] * 9
        assert len(sim.ledger.requests) == 1
        assert await client.stream() == ANSWER
        assert len(sim.ledger.requests) == 2


async def test_no_request_joins_a_race_without_clients(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    race, may_close = ProxiedModel.race, asyncio.Event()

    async def race_that_closes_slowly(*args: Any, **options: Any) -> Any:
        try:
            return await race(*args, **options)
        except asyncio.CancelledError:
            await may_close.wait()
            raise

    monkeypatch.setattr(ProxiedModel, "race", race_that_closes_slowly)
    async with (
        racing(sim, WELL, model={"coalesce": True}) as url,
        client_of("openai", url) as client,
    ):
        asked = asyncio.ensure_future(client.stream())
        while not sim.ledger.requests:
            await asyncio.sleep(0)
        asked.cancel()
        await sim.wait_idle(1.0)
        assert await client.stream() == ANSWER
        may_close.set()


async def test_a_shared_answer_is_bounded_and_passes_whole(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "MAX_KEPT_BYTES", 1000)
    async with (
        racing(sim, WELL, model={"coalesce": True, "cache_secs": 60}) as url,
        client_of("openai", url) as client,
    ):
        assert await asyncio.gather(*(client.stream() for _ in range(10))) == [ANSWER] * 10
        raw = await client.sdk.chat.completions.with_raw_response.create(
            model="openai", messages=HELLO, stream=True
        )
        assert raw.headers["x-hedge-cache"] == "miss"  # too long to be kept


async def test_whole_answers_are_cached_on_request(sim: Simulator) -> None:
    async with (
        racing(sim, WELL, model={"cache_secs": 60}) as url,
        client_of("openai", url) as client,
        client_of("anthropic", url) as claude,
    ):
        for each in (client, claude):
            assert [await each.stream() for _ in range(3)] == [ANSWER] * 3
            assert [await each.whole() for _ in range(3)] == [ANSWER] * 3
        assert len(sim.ledger.requests) == 4
        assert await client.stream(extra_headers={"Cache-Control": "no-store"}) == ANSWER
        assert await client.stream(tools=[TOOL]) == await client.stream(tools=[TOOL])
        assert len(sim.ledger.requests) == 7
        raw = await client.sdk.chat.completions.with_raw_response.create(
            model="openai", messages=HELLO
        )
        assert raw.headers["x-hedge-cache"] == "hit"
        async with aiohttp.request("GET", f"{url}/metrics") as answer:
            metrics = await answer.text()
        assert "pipecat_hedge_cache_hits_total 9" in metrics


# ---- who is served, and when


async def raw(server: ProxyServer, request: bytes) -> bytes:
    """What the proxy answers to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    try:
        async with asyncio.timeout(5.0):
            return await reader.read()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def post(body: bytes, path: str = "/v1/messages", size: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Length: {size or len(body)}\r\n\r\n".encode() + body


async def test_bad_requests_are_rejected_in_the_wire_s_form(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BODY_SECS", 0.3)
    monkeypatch.setattr(server_module, "IDLE_SECS", 0.6)
    async with proxy(sim.url, max_body_mb=0.001) as server:
        for body, status, kind in (
            (b"{", 400, "invalid_request_error"),
            (b"[]", 400, "invalid_request_error"),
            (b'{"model": 1}', 404, "not_found_error"),
            (b'{"model": "openai"}', 404, "not_found_error"),
            (b" " * 5000, 413, "request_too_large"),
        ):
            found = await raw(server, post(body))
            head, _, answer = found.partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status}".encode())
            assert json.loads(answer)["error"]["type"] == kind
        other = await raw(server, post(b"{}", "/v1/embeddings"))
        assert b"404" in other[:20]
        assert b"POST /v1/embeddings is not proxied" in other
        silent = await raw(server, post(b"{", size=100))
        assert silent.startswith(b"HTTP/1.1 408")
        assert await raw(server, b"POST /v1/mess") == b""


@WIRES
async def test_a_request_may_take_its_time_while_it_comes(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BODY_SECS", 0.4)

    async def slowly() -> AsyncIterator[bytes]:
        for part in json.dumps(asking(wire, stream=True)).encode().split(b" "):
            yield part + b" "
            await asyncio.sleep(0.1)

    async with (
        racing(sim, WELL) as url,
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[wire], data=slowly()) as answer,
    ):
        assert (answer.status, await answer.read() != b"") == (200, True)


@WIRES
async def test_a_proxy_that_stops_answers_what_is_running(sim: Simulator, wire: str) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(racing(sim, f"{WELL},fault=hang"))
        async with client_of(wire, url) as client:
            asked = asyncio.ensure_future(client.stream())
            await sim.ledger.wait_until(lambda it: bool(it.requests), 5.0)
            await stack.aclose()
            with pytest.raises(REJECTED) as rejected:
                await asked
    assert rejected.value.status_code == 503


@WIRES
@pytest.mark.parametrize("stream", [True, False])
async def test_a_proxy_that_stops_cuts_what_has_begun(wire: str, stream: bool) -> None:
    """A client that got a proper end would take what it has for the whole answer."""
    begun = b'data: {"x": 1}\n\n' if stream else b'{"id": "x'
    kind = "text/event-stream" if stream else "application/json"

    async def script(request: web.Request) -> web.StreamResponse:
        await replying(begun, content_type=kind)(request)
        await asyncio.sleep(60)
        raise AssertionError("the request is not closed")

    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(scripted(script))
        url = await stack.enter_async_context(proxied(upstream.url))
        body = asking(wire, stream=stream)
        async with session.post(url + PATHS[wire], json=body) as answer:
            assert await answer.content.readany() == begun
            await stack.aclose()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_the_proxy_is_ready_once_an_upstream_was_reached(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REACH_SECS", 0.05)

    for upstream, status in ((sim.refused_url, 503), (sim.url, 200)):
        async with proxied(upstream) as url:
            await asyncio.sleep(0.3)
            async with aiohttp.request("GET", f"{url}/health") as answer:
                assert answer.status == status


async def test_models_are_listed_for_both_sdks(sim: Simulator) -> None:
    async with proxied(sim.url) as url:
        for wire in PATHS:
            async with sdk(wire, url) as client:
                assert [model.id async for model in client.models.list()] == [*PATHS]
                assert (await client.models.retrieve(wire)).id == wire


async def test_a_port_that_is_taken_is_one_clear_line(sim: Simulator) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        async with proxied(sim.url, listen=sim.url.removeprefix("http://")):
            pass
