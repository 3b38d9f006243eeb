"""The official SDKs, directly and through the proxy: what they see is the same."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.simulator import Simulator
from tests.live.faulty_upstream import events

pytestmark = pytest.mark.live

MODEL = "fixed@ttft=0.01,tps=400"
ASK: Any = [{"role": "user", "content": "Are you open?"}]
BOOK: Any = [{"role": "user", "content": "A table for two at seven, please."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"people": {"type": "integer"}, "time": {"type": "string"}},
    "required": ["people", "time"],
}
CLAUDE_TOOL: Any = {"name": "book_table", "description": "Books.", "input_schema": SCHEMA}
GPT_TOOL: Any = {
    "type": "function",
    "function": {"name": "book_table", "description": "Books.", "parameters": SCHEMA},
}
Seen = list[Any]


def seen(*found: Any) -> Seen:
    """What an SDK has returned, without what differs from one request to the next."""

    def plain(value: Any) -> Any:
        if hasattr(value, "model_dump"):
            value = value.model_dump()
        if isinstance(value, dict):
            varies = ("id", "created", "model", "tool_use_id", "request_id")
            return {k: plain(v) for k, v in value.items() if k not in varies}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return [plain(each) for each in found]


@asynccontextmanager
async def proxied(url: str, model: str) -> AsyncIterator[str]:
    upstream = {"name": "a", "base_url": url, "model": model}
    other = {**upstream, "base_url": f"{url}/v1"}
    models = {
        "claude": {"wire": "anthropic", "upstreams": [upstream]},
        "gpt": {"wire": "openai", "upstreams": [other]},
    }
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models})
    async with ProxyServer(settings, ProviderStats()) as server:
        yield f"http://127.0.0.1:{server.port}"


# ---- what is asked: each with a client and a model's name


async def claude_create(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    message = await client.messages.create(model=model, max_tokens=99, messages=ASK)
    tool = await client.messages.create(
        model=model, max_tokens=99, messages=BOOK, tools=[CLAUDE_TOOL]
    )
    assert tool.stop_reason == "tool_use"
    return seen(message, tool)


async def claude_events(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    stream = await client.messages.create(
        model=model, max_tokens=99, messages=BOOK, tools=[CLAUDE_TOOL], stream=True
    )
    return seen(*[event async for event in stream])


async def claude_stream_helper(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    async with client.messages.stream(
        model=model, max_tokens=99, messages=BOOK, tools=[CLAUDE_TOOL]
    ) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_message()
    assert any(event.type == "input_json" for event in found)
    return seen(*found, final)


async def claude_raw(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    raw = await client.messages.with_raw_response.create(model=model, max_tokens=99, messages=ASK)
    async with client.messages.with_streaming_response.create(
        model=model, max_tokens=99, messages=ASK
    ) as streamed:
        body = json.loads(await streamed.read())
    kinds = [r.headers["content-type"].partition(";")[0] for r in (raw, streamed)]
    parsed: Any = raw.parse()
    message = await parsed if inspect.isawaitable(parsed) else parsed
    return [*seen(message, body), raw.status_code, streamed.status_code, *kinds]


async def claude_sync(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    def ask() -> Seen:
        with anthropic.Anthropic(api_key="any", base_url=str(client.base_url)) as other:
            message = other.messages.create(model=model, max_tokens=99, messages=ASK)
            with other.messages.stream(model=model, max_tokens=99, messages=ASK) as stream:
                return seen(message, *stream)

    return await asyncio.to_thread(ask)


async def gpt_create(client: openai.AsyncOpenAI, model: str) -> Seen:
    answer = await client.chat.completions.create(model=model, messages=ASK)
    tool = await client.chat.completions.create(model=model, messages=BOOK, tools=[GPT_TOOL])
    assert tool.choices[0].message.tool_calls
    return seen(answer, tool)


async def gpt_events(client: openai.AsyncOpenAI, model: str) -> Seen:
    stream = await client.chat.completions.create(
        model=model,
        messages=BOOK,
        tools=[GPT_TOOL],
        stream=True,
        stream_options={"include_usage": True},
    )
    found = [chunk async for chunk in stream]
    assert found[-1].usage is not None
    return seen(*found)


async def gpt_stream_helper(client: openai.AsyncOpenAI, model: str) -> Seen:
    async with client.chat.completions.stream(model=model, messages=ASK) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_completion()
    return seen(*found, final)


async def gpt_raw(client: openai.AsyncOpenAI, model: str) -> Seen:
    raw = await client.chat.completions.with_raw_response.create(model=model, messages=ASK)
    async with client.chat.completions.with_streaming_response.create(
        model=model, messages=ASK, stream=True
    ) as streamed:
        lines = [line async for line in streamed.iter_lines() if line.startswith("data: {")]
    kinds = [r.headers["content-type"].partition(";")[0] for r in (raw, streamed)]
    found = [json.loads(line[6:]) for line in lines]
    return [*seen(raw.parse(), *found), raw.status_code, streamed.status_code, *kinds]


async def gpt_sync(client: openai.AsyncOpenAI, model: str) -> Seen:
    def ask() -> Seen:
        with openai.OpenAI(api_key="any", base_url=str(client.base_url)) as other:
            answer = other.chat.completions.create(model=model, messages=ASK)
            stream = other.chat.completions.create(model=model, messages=ASK, stream=True)
            return seen(answer, *stream)

    return await asyncio.to_thread(ask)


CLAUDE = [claude_create, claude_events, claude_stream_helper, claude_raw, claude_sync]
GPT = [gpt_create, gpt_events, gpt_stream_helper, gpt_raw, gpt_sync]


@asynccontextmanager
async def client_of(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "claude":
        client: Any = anthropic.AsyncAnthropic(api_key="any", base_url=url, max_retries=0)
    else:
        client = openai.AsyncOpenAI(api_key="any", base_url=f"{url}/v1", max_retries=0)
    async with client:
        yield client


@pytest.mark.parametrize("ask", [*CLAUDE, *GPT])
async def test_an_sdk_sees_the_same_directly_and_through_the_proxy(
    ask: Callable[[Any, str], Any],
) -> None:
    name = "claude" if ask in CLAUDE else "gpt"
    async with Simulator(seed=1) as sim, proxied(sim.url, MODEL) as url:
        async with client_of(name, sim.url) as direct:
            expected = await ask(direct, MODEL)
        async with client_of(name, url) as through:
            assert await ask(through, name) == expected


@pytest.mark.parametrize("ask", [claude_create, claude_events, gpt_create, gpt_events])
@pytest.mark.parametrize("fault", ["400", "401", "429", "500", "529", "error_in_band"])
async def test_errors_become_the_same_exceptions(
    ask: Callable[[Any, str], Any], fault: str
) -> None:
    name, model = "claude" if ask in CLAUDE else "gpt", f"{MODEL},fault={fault}"
    found: list[Exception] = []
    async with Simulator(seed=1) as sim, proxied(sim.url, model) as url:
        for address, asked in ((sim.url, model), (url, name)):
            async with client_of(name, address) as client:
                with pytest.raises((anthropic.APIError, openai.APIError)) as raised:
                    await ask(client, asked)
                found.append(raised.value)
    direct, through = found
    assert type(through) is type(direct)
    for part in ("status_code", "body", "code", "type"):
        assert seen(getattr(through, part, None)) == seen(getattr(direct, part, None))
    for error in found[: 2 * (fault == "429")]:
        assert isinstance(error, (anthropic.APIStatusError, openai.APIStatusError))
        assert error.response.headers["retry-after"] == "1"


# ---- Claude on the clouds


def frame(event: bytes) -> bytes:
    """An event as Amazon's event stream."""
    data = event.partition(b"data: ")[2].strip()
    payload = json.dumps({"bytes": base64.b64encode(data).decode()}).encode()
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in (
            (b":event-type", b"chunk"),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    head = struct.pack(">II", len(headers) + len(payload) + 16, len(headers))
    head += struct.pack(">I", zlib.crc32(head))
    return head + headers + payload + struct.pack(">I", zlib.crc32(head + headers + payload))


class Cloud:
    """The endpoints of both clouds. A model's name says how it answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append((request.path, body))
        if "busy" in request.path:
            found = {"type": "error", "error": {"type": "rate_limit_error", "message": "busy"}}
            return web.json_response(found, status=429, headers={"retry-after": "1"})
        if "count-tokens" in request.path:
            return web.json_response({"input_tokens": 12})
        is_amazon = "/invoke" in request.path
        if not request.path.endswith(("stream", ":streamRawPredict")):
            message = json.loads(events("anthropic")[0].partition(b"data: ")[2])["message"]
            message["content"] = [{"type": "text", "text": "Yes."}]
            return web.json_response(message)
        kind = "application/vnd.amazon.eventstream" if is_amazon else "text/event-stream"
        out = web.StreamResponse(headers={"content-type": kind})
        await out.prepare(request)
        stream = events("anthropic")
        if "error" in request.path and not is_amazon:
            error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
            stream[1:] = [b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"]
        for event in stream:
            await out.write(frame(event) if is_amazon else event)
        return out


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    cloud, app = Cloud(), web.Application()
    app.router.add_post("/{path:.*}", cloud.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cloud.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield cloud
    await runner.cleanup()


@pytest.fixture(params=["bedrock", "vertex"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "bedrock":
        pytest.importorskip("botocore")
    monkeypatch.setenv("CLOUD_KEY", "cloud-key")
    return request.param


@asynccontextmanager
async def claude_on(cloud: Cloud, kind: str, *models: str) -> AsyncIterator[Any]:
    upstreams = [
        {
            "name": f"{number}",
            "kind": kind,
            "base_url": cloud.url,
            "model": model,
            "region": "eu-central-1",
            "project": "p",
            "key_env": "CLOUD_KEY",
        }
        for number, model in enumerate(models)
    ]
    models_found = {"claude": {"wire": "anthropic", "upstreams": upstreams}}
    found = {"listen": "127.0.0.1:0", "models": models_found}
    async with (
        ProxyServer(ProxySettings.model_validate(found), ProviderStats()) as server,
        client_of("claude", f"http://127.0.0.1:{server.port}") as client,
    ):
        yield client


async def test_claude_on_a_cloud_answers_as_the_api_does(cloud: Cloud, kind: str) -> None:
    async with claude_on(cloud, kind, "claude-x") as client:
        whole = await client.messages.create(model="claude", max_tokens=99, messages=ASK)
        assert whole.content[0].text == "Yes."
        async with client.messages.with_streaming_response.create(
            model="claude",
            max_tokens=99,
            messages=ASK,
            stream=True,
            system="Be brief.",
            extra_body={"new": 3},
        ) as streamed:
            body = await streamed.read()
    assert body.count(b"event: ") == len(events("anthropic")) - 1  # its ping is the SDK's
    for event, expected in zip(
        body.strip().split(b"\n\n"),
        [e for e in events("anthropic") if b"ping" not in e],
        strict=True,
    ):
        name, data = event.split(b"\ndata: ")
        assert name == expected.split(b"\n")[0]
        assert json.loads(data) == json.loads(expected.partition(b"data: ")[2])
    path, sent = cloud.seen[-1]
    assert "claude-x" in path
    assert (sent["new"], sent["system"], sent["messages"]) == (3, "Be brief.", ASK)


async def test_a_cloud_s_rejection_keeps_its_status(cloud: Cloud, kind: str) -> None:
    async with claude_on(cloud, kind, "busy") as client:
        for stream in (False, True):
            with pytest.raises(anthropic.RateLimitError) as rejected:
                await client.messages.create(
                    model="claude", max_tokens=99, messages=ASK, stream=stream
                )
            assert rejected.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("bedrock", "busy"), ("vertex", "busy"), ("vertex", "error")],
    indirect=["kind"],
)
async def test_a_cloud_that_rejects_or_sends_an_error_event_is_replaced(
    cloud: Cloud, kind: str, fault: str
) -> None:
    async with (
        claude_on(cloud, kind, fault, "claude-x") as client,
        client.messages.stream(model="claude", max_tokens=99, messages=ASK) as stream,
    ):
        assert "vorbei" in await stream.get_final_text()


@pytest.mark.parametrize("kind", ["vertex"], indirect=True)
async def test_tokens_are_counted_not_answered(cloud: Cloud, kind: str) -> None:
    async with claude_on(cloud, kind, "claude-x") as client:
        counted = await client.messages.count_tokens(model="claude", messages=ASK)
    assert counted.input_tokens == 12
    assert [path for path, _ in cloud.seen if "count-tokens" not in path] == []


async def test_a_port_that_is_taken_is_one_clear_line(cloud: Cloud) -> None:
    upstream = {"name": "a", "base_url": cloud.url, "model": "m"}
    models = {"claude": {"wire": "anthropic", "upstreams": [upstream]}}
    found = {"listen": cloud.url.removeprefix("http://"), "models": models}
    with pytest.raises(ConfigurationError, match="cannot be used"):
        async with ProxyServer(ProxySettings.model_validate(found), ProviderStats()):
            pass
