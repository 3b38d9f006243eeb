"""The proxy over real sockets, with the providers' own SDKs as clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import response as response_module
from pipecat_hedge.tools.proxy import server as server_module
from pipecat_hedge.tools.proxy.keys import new_key
from pipecat_hedge.tools.proxy.model import ProxiedModel
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.proxy.settings import ProxySettings
from pipecat_hedge.tools.simulator import Simulator

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. Do come by."
WELL = "fixed@ttft=0.02,tps=400,answer=" + ANSWER.replace(" ", "%20")
LATER = WELL.replace("ttft=0.02", "ttft=0.1")
HELLO: Any = [{"role": "user", "content": "Are you open?"}]
TOOL = {
    "name": "book_table",
    "description": "Books.",
    "parameters": {
        "type": "object",
        "properties": {"people": {"type": "integer"}, "time": {"type": "string"}},
        "required": ["people", "time"],
    },
}


@asynccontextmanager
async def proxied(
    sim: Simulator, *models: str, url: str | None = None, **options: Any
) -> AsyncIterator[ProxyServer]:
    """A proxy with one model on each wire; ``models`` are those of its upstreams, in order."""
    of_model = {"policy": "after(0.3)", **options.pop("model", {})}

    def upstreams(root: str) -> list[dict[str, str]]:
        return [
            {"name": name, "base_url": root, "model": model}
            for name, model in zip("abc", models, strict=False)
        ]

    root = url or sim.url
    settings = {
        "listen": "127.0.0.1:0",
        "models": {
            "claude": {"wire": "anthropic", "upstreams": upstreams(root), **of_model},
            "gpt": {"wire": "openai", "upstreams": upstreams(f"{root}/v1"), **of_model},
        },
        **options,
    }
    async with ProxyServer(ProxySettings.model_validate(settings), ProviderStats()) as server:
        yield server


def url_of(server: ProxyServer) -> str:
    return f"http://127.0.0.1:{server.port}"


class Client:
    """Asks through the SDK of a wire."""

    def __init__(self, wire: str, url: str, key: str = "any"):
        self._wire = wire
        self.anthropic = anthropic.AsyncAnthropic(api_key=key, base_url=url, max_retries=0)
        self.openai = openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0)

    async def pieces(self, model: str | None = None, **options: Any) -> AsyncIterator[str]:
        if self._wire == "anthropic":
            async with self.anthropic.messages.stream(
                model=model or "claude", max_tokens=99, messages=HELLO, **options
            ) as stream:
                async for text in stream.text_stream:
                    yield text
        else:
            async for chunk in await self.openai.chat.completions.create(
                model=model or "gpt", messages=HELLO, stream=True, **options
            ):
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    async def stream(self, model: str | None = None, **options: Any) -> str:
        return "".join([text async for text in self.pieces(model, **options)])

    async def whole(self, **options: Any) -> str:
        if self._wire == "anthropic":
            message = await self.anthropic.messages.create(
                model="claude", max_tokens=99, messages=HELLO, **options
            )
            return "".join(block.text for block in message.content if block.type == "text")
        answer = await self.openai.chat.completions.create(model="gpt", messages=HELLO, **options)
        return answer.choices[0].message.content or ""

    async def close(self) -> None:
        await self.anthropic.close()
        await self.openai.close()


@asynccontextmanager
async def client_of(wire: str, server: ProxyServer, key: str = "any") -> AsyncIterator[Client]:
    client = Client(wire, url_of(server), key)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(seed=1) as sim:
        yield sim


WIRES = pytest.mark.parametrize("wire", ["anthropic", "openai"])
FAULTS = [
    *("reset", "hang", "headers_then_silence", "keepalives", "400", "401", "429", "500", "529"),
    *("error_in_band", "busy_in_band", "malformed_sse", "empty", "whitespace"),
    *("reasoning_forever", "slow_headers"),
]


@WIRES
@pytest.mark.parametrize(
    ("fault", "streams"), [*((fault, True) for fault in FAULTS), ("hang", False)]
)
async def test_usable_content_wins_whatever_the_first_upstream_does(
    sim: Simulator, wire: str, fault: str, streams: bool
) -> None:
    async with (
        proxied(sim, f"{WELL},fault={fault}", WELL) as server,
        client_of(wire, server) as client,
    ):
        assert await (client.stream() if streams else client.whole()) == ANSWER
        await sim.wait_idle(1.0)


@WIRES
@pytest.mark.parametrize(
    ("fault", "status"), [("529", 529), ("429", 429), ("400", 400), ("401", 401), ("500", 500)]
)
@pytest.mark.parametrize("streams", [True, False])
async def test_a_rejection_keeps_its_status_when_no_upstream_is_left(
    sim: Simulator, wire: str, fault: str, status: int, streams: bool
) -> None:
    async with (
        proxied(sim, f"{WELL},fault={fault}", f"{WELL},fault={fault}") as server,
        client_of(wire, server) as client,
    ):
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as rejected:
            await (client.stream() if streams else client.whole())
        assert rejected.value.status_code == status
        if fault == "429":
            assert rejected.value.response.headers["retry-after"] == "1"


@WIRES
async def test_no_connection_is_a_502(sim: Simulator, wire: str) -> None:
    async with (
        proxied(sim, WELL, url=sim.refused_url) as server,
        client_of(wire, server) as client,
    ):
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as rejected:
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

    async with (
        proxied(sim, f"{WELL},fault={fault}", WELL) as server,
        client_of(wire, server) as client,
    ):
        with pytest.raises((anthropic.APIError, openai.APIError)):
            await listen(client)
    assert text
    assert ANSWER.startswith(text)
    assert text != ANSWER


@WIRES
async def test_a_text_answer_is_continued_on_request(sim: Simulator, wire: str) -> None:
    model = {"continue": True}
    async with (
        proxied(sim, f"{WELL},fault=cut", WELL, model=model) as server,
        client_of(wire, server) as client,
    ):
        assert await client.stream() == ANSWER


@WIRES
async def test_headers_and_pings_come_before_a_late_answer(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "MAX_SILENCE_SECS", 0.2)
    slow = WELL.replace("ttft=0.02", "ttft=0.9")
    path, ping = (
        ("v1/messages", "ping") if wire == "anthropic" else ("v1/chat/completions", ": ping")
    )
    body = {"model": "claude" if wire == "anthropic" else "gpt", "messages": HELLO, "stream": True}
    async with (
        proxied(sim, slow, model={"policy": "fallback()"}) as server,
        aiohttp.ClientSession() as session,
    ):
        clock = asyncio.get_running_loop().time
        began = clock()
        async with session.post(
            f"{url_of(server)}/{path}", json={**body, "max_tokens": 9}
        ) as answer:
            assert clock() - began < 0.6
            assert answer.status == 200
            text = await answer.text()
        assert text.count(ping) >= 2
        async with client_of(wire, server) as client:
            assert await client.stream() == ANSWER


@WIRES
async def test_a_rejection_after_the_headers_is_an_event(
    sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "MAX_SILENCE_SECS", 0.2)
    late = f"{WELL},fault=slow_headers,delay=0.6"
    async with (
        proxied(sim, late, model={"policy": "fallback(deadline_secs=0.4)"}) as server,
        client_of(wire, server) as client,
    ):
        with pytest.raises((anthropic.APIError, openai.APIError)):
            await client.stream()


async def recorded(url: str, path: str, body: dict[str, Any]) -> list[bytes]:
    """The events of an answer, without what differs from one request to the next."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}{path}", json=body) as answer,
    ):
        assert answer.status == 200
        stream = await answer.read()
    for name in (b'"id"', b'"created"'):
        parts = stream.split(name + b":")
        rest = [part.split(b",", 1)[-1] for part in parts[1:]]
        stream = name.join([parts[0], *rest])
    return stream.split(b"\n\n")


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@WIRES
async def test_bytes_pass_unchanged(
    sim: Simulator, wire: str, streams: bool, with_tools: bool
) -> None:
    text = "A table for two at seven, please." if with_tools else "Are you open?"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "stream": streams}
    model = "fixed@ttft=0.01,tps=400"
    if wire == "anthropic":
        path, name = "/v1/messages", "claude"
        body["max_tokens"] = 99
        tool = {**TOOL, "input_schema": TOOL["parameters"]}
        tool.pop("parameters")
    else:
        path, name = "/v1/chat/completions", "gpt"
        tool = {"type": "function", "function": TOOL}
    if with_tools:
        body["tools"] = [tool]
    async with proxied(sim, model) as server:
        direct = await recorded(sim.url, path, {**body, "model": model})
        through = await recorded(url_of(server), path, {**body, "model": name})
    assert through == direct
    assert (b"book_table" in b"".join(direct)) is with_tools


@WIRES
async def test_a_client_that_leaves_closes_every_request(sim: Simulator, wire: str) -> None:
    hang = f"{WELL},fault=hang"
    async with (
        proxied(sim, hang, hang, model={"policy": "race(2)"}) as server,
        client_of(wire, server) as client,
    ):
        asking = asyncio.ensure_future(client.stream())
        while len(sim.ledger.requests) < 2:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await sim.wait_idle(0.5)
        assert {entry.outcome for entry in sim.ledger.requests} == {"aborted"}


async def test_identical_requests_share_one_race(sim: Simulator) -> None:
    async with (
        proxied(sim, WELL, model={"coalesce": True}) as server,
        client_of("openai", server) as client,
    ):
        asking = [asyncio.ensure_future(client.stream()) for _ in range(10)]
        await asyncio.sleep(0.05)
        asking.pop().cancel()  # the others go on
        assert await asyncio.gather(*asking) == [ANSWER] * 9
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
        proxied(sim, WELL, model={"coalesce": True}) as server,
        client_of("openai", server) as client,
    ):
        asking = asyncio.ensure_future(client.stream())
        while not sim.ledger.requests:
            await asyncio.sleep(0)
        asking.cancel()
        await sim.wait_idle(1.0)
        assert await client.stream() == ANSWER
        may_close.set()


async def test_a_shared_answer_is_bounded_and_passes_whole(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "MAX_KEPT_BYTES", 1000)
    async with (
        proxied(sim, WELL, model={"coalesce": True, "cache_secs": 60}) as server,
        client_of("openai", server) as client,
    ):
        asking = [asyncio.ensure_future(client.stream()) for _ in range(10)]
        assert await asyncio.gather(*asking) == [ANSWER] * 10
        raw = await client.openai.chat.completions.with_raw_response.create(
            model="gpt", messages=HELLO, stream=True
        )
        assert raw.headers["x-hedge-cache"] == "miss"  # too long to be kept


async def test_whole_answers_are_cached_on_request(sim: Simulator) -> None:
    async with (
        proxied(sim, WELL, model={"cache_secs": 60}) as server,
        client_of("openai", server) as client,
        client_of("anthropic", server) as claude,
    ):
        for each in (client, claude):
            assert [await each.stream() for _ in range(3)] == [ANSWER] * 3
            assert [await each.whole() for _ in range(3)] == [ANSWER] * 3
        assert len(sim.ledger.requests) == 4
        assert await client.stream(extra_headers={"Cache-Control": "no-store"}) == ANSWER
        tools = [{"type": "function", "function": TOOL}]
        assert await client.stream(tools=tools) == await client.stream(tools=tools)
        assert len(sim.ledger.requests) == 7
        raw = await client.openai.chat.completions.with_raw_response.create(
            model="gpt", messages=HELLO
        )
        assert raw.headers["x-hedge-cache"] == "hit"
        async with aiohttp.request("GET", f"{url_of(server)}/metrics") as answer:
            metrics = await answer.text()
        assert "pipecat_hedge_cache_hits_total 9" in metrics


def keys_of(*names: str, **options: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Keys by name, and their settings."""
    keys, settings = {}, []
    for name in names:
        key, _, lines = new_key(name).partition("\n")
        keys[name] = key
        digest = lines.split('sha256 = "')[1][:64]
        settings.append({"name": name, "sha256": digest, **options.get(name, {})})
    return keys, settings


@WIRES
async def test_keys_decide_which_models_a_client_may_use(sim: Simulator, wire: str) -> None:
    keys, settings = keys_of("bot", "one", one={"models": ["gpt"]})
    async with proxied(sim, WELL, keys=settings) as server:
        status = 200 if wire == "openai" else 404
        for key, expected in (("wrong", 401), (keys["one"], status)):
            async with client_of(wire, server, key) as client:
                if expected == 200:
                    assert await client.stream() == ANSWER
                    continue
                with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as rejected:
                    await client.stream()
                assert rejected.value.status_code == expected
        async with client_of(wire, server, keys["bot"]) as client:
            assert await client.stream() == ANSWER


async def test_a_client_s_key_ends_at_the_proxy(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        body = {"content": [{"type": "text", "text": "Yes"}], "usage": {}}
        choices = [{"message": {"content": "Yes"}}]
        return web.json_response({**body, "choices": choices, "sent": await request.json()})

    keys, settings = keys_of("bot")
    async with fake(answer) as url:
        for wire, name, path in (
            ("anthropic", "claude", "/v1/messages"),
            ("openai", "gpt", "/v1/chat/completions"),
        ):
            root = url if wire == "anthropic" else f"{url}/v1"
            upstream = {"name": "a", "base_url": root, "model": "m", "key_env": "THEIR_KEY"}
            model = {"wire": wire, "upstreams": [upstream]}
            found = {"listen": "127.0.0.1:0", "models": {name: model}, "keys": settings}
            async with (
                ProxyServer(ProxySettings.model_validate(found), ProviderStats()) as server,
                aiohttp.ClientSession() as session,
                session.post(
                    f"{url_of(server)}{path}?beta=true",
                    json={"model": name, "messages": HELLO, "odd": 1.0},
                    headers={
                        "x-api-key": keys["bot"],
                        "Authorization": f"Bearer {keys['bot']}",
                        "anthropic-beta": "x",
                    },
                ) as response,
            ):
                assert response.status == 200
                assert response.headers["x-hedge-winner"] == "a"
    seen = [request for request in seen if request.method == "POST"]
    assert len(seen) == 2
    for request in seen:
        assert keys["bot"] not in str(request.raw_headers)
        assert "sk-theirs" in str(request.raw_headers)
        assert request.query_string == "beta=true"
        assert request.headers["anthropic-beta"] == "x"


@asynccontextmanager
async def fake(answer: Any) -> AsyncIterator[str]:
    """An upstream that does what a function does."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def raw(server: ProxyServer, *parts: bytes, pause_secs: float = 0.0) -> bytes:
    """What the proxy answers to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause_secs)
    try:
        async with asyncio.timeout(5.0):
            return await reader.read()
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
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
    async with proxied(sim, WELL, max_body_mb=0.001) as server:
        for body, status, kind in (
            (b"{", 400, "invalid_request_error"),
            (b"[]", 400, "invalid_request_error"),
            (b'{"model": 1}', 404, "not_found_error"),
            (b'{"model": "gpt"}', 404, "not_found_error"),
            (b" " * 5000, 413, "request_too_large"),
        ):
            found = await raw(server, post(body))
            head, _, answer = found.partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status}".encode())
            assert json.loads(answer)["error"]["type"] == kind
        other = await raw(server, post(b"{}", "/v1/embeddings"))
        assert b"404" in other[:20]
        assert b"POST /v1/embeddings is not proxied" in other
        slow = await raw(server, post(b"{", size=100))
        assert slow.startswith(b"HTTP/1.1 408")
        assert await raw(server, b"POST /v1/mess") == b""


async def test_a_client_has_a_limit_of_streams(sim: Simulator) -> None:
    keys, settings = keys_of("bot", bot={"max_streams": 1})
    async with (
        proxied(sim, WELL.replace("ttft=0.02", "ttft=0.5"), keys=settings) as server,
        client_of("openai", server, keys["bot"]) as client,
    ):
        first = asyncio.ensure_future(client.stream())
        await asyncio.sleep(0.2)
        with pytest.raises(openai.RateLimitError):
            await client.stream()
        assert await first == ANSWER


async def test_a_rolling_restart_drops_no_stream(sim: Simulator) -> None:
    async with (
        proxied(sim, WELL.replace("ttft=0.02", "ttft=0.5")) as server,
        client_of("openai", server) as client,
    ):
        asking = asyncio.ensure_future(client.stream())
        await asyncio.sleep(0.2)
        await server.drain()
        assert await asking == ANSWER
        with pytest.raises(openai.APIConnectionError):
            await client.stream()


@WIRES
async def test_a_proxy_that_stops_answers_what_is_running(sim: Simulator, wire: str) -> None:
    async with proxied(sim, f"{WELL},fault=hang") as server:
        client = Client(wire, url_of(server))
        asking = asyncio.ensure_future(client.stream())
        while not sim.ledger.requests:
            await asyncio.sleep(0.01)
    with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as rejected:
        await asking
    assert rejected.value.status_code == 503
    await client.close()


async def test_a_client_that_does_not_read_holds_its_upstream_back(sim: Simulator) -> None:
    sent, event = (
        [0],
        b"data: "
        + json.dumps(
            {"choices": [{"delta": {"content": "x" * 10_000}, "finish_reason": None}]}
        ).encode()
        + b"\n\n",
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response()
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        while sent[0] < 500 * 2**20:
            await out.write(event)
            sent[0] += len(event)
        return out

    async with fake(answer) as url, proxied(sim, "m", url=url) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps({"model": "gpt", "messages": HELLO, "stream": True}).encode()
        writer.write(post(body, "/v1/chat/completions"))
        await reader.readexactly(1000)
        before = -1
        while before != sent[0]:
            before = sent[0]
            await asyncio.sleep(0.5)
        assert sent[0] < 50 * 2**20
        writer.transport.abort()
        await closed(writer)


@pytest.mark.parametrize("size", [10 * 2**20])
async def test_a_very_long_event_passes(sim: Simulator, size: int) -> None:
    text = "x" * size

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        for delta, reason in (({"content": text}, None), ({}, "stop")):
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            await out.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        return out

    async with (
        fake(answer) as url,
        proxied(sim, "m", url=url) as server,
        client_of("openai", server) as client,
    ):
        assert await client.stream() == text


async def test_the_proxy_is_ready_once_an_upstream_was_reached(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REACH_SECS", 0.05)

    async def health(server: ProxyServer) -> int:
        async with aiohttp.request("GET", f"{url_of(server)}/health") as answer:
            return answer.status

    async with proxied(sim, WELL, url=sim.refused_url) as server:
        await asyncio.sleep(0.3)
        assert await health(server) == 503
    async with proxied(sim, WELL) as server:
        await asyncio.sleep(0.3)
        assert await health(server) == 200


async def test_models_are_listed_for_both_sdks(sim: Simulator) -> None:
    async with proxied(sim, WELL) as server, client_of("openai", server) as client:
        assert [m.id async for m in client.openai.models.list()] == ["claude", "gpt"]
        assert [m.id async for m in client.anthropic.models.list()] == ["claude", "gpt"]
        assert (await client.openai.models.retrieve("gpt")).id == "gpt"
