"""Claude on the clouds, through the proxy."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from aiohttp import web

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from tests.live.proxied import HELLO, sdk, url_of
from tests.live.scripted_upstream import Scripted, replying, scripted
from tests.live.wire_streams import WORDS, claude_whole, events

pytestmark = pytest.mark.live


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


async def answer(request: web.Request) -> web.StreamResponse:
    """The endpoints of both clouds. A model's name says how it answers."""
    if "busy" in request.path:
        found = {"type": "error", "error": {"type": "rate_limit_error", "message": "busy"}}
        return web.json_response(found, status=429, headers={"retry-after": "1"})
    if "count-tokens" in request.path:
        return web.json_response({"input_tokens": 12})
    is_amazon = "/invoke" in request.path
    if not request.path.endswith(("stream", ":streamRawPredict")):
        whole = claude_whole("end_turn", {"type": "text", "text": "Yes."})
        return await replying(whole, content_type="application/json")(request)
    stream = events("anthropic")
    if "error" in request.path and not is_amazon:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
        stream[1:] = [b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"]
    if is_amazon:
        frames = map(frame, stream)
        return await replying(*frames, content_type="application/vnd.amazon.eventstream")(request)
    return await replying(*stream)(request)


@pytest.fixture
async def cloud() -> AsyncIterator[Scripted]:
    async with scripted(answer) as cloud:
        yield cloud


@pytest.fixture(params=["bedrock", "vertex"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "bedrock":
        pytest.importorskip("botocore")
    monkeypatch.setenv("CLOUD_KEY", "cloud-key")
    return request.param


@asynccontextmanager
async def claude_on(cloud: Scripted, kind: str, *models: str) -> AsyncIterator[Any]:
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
        sdk("anthropic", url_of(server)) as client,
    ):
        yield client


async def test_claude_on_a_cloud_answers_as_the_api_does(cloud: Scripted, kind: str) -> None:
    async with claude_on(cloud, kind, "claude-x") as client:
        whole = await client.messages.create(model="claude", max_tokens=99, messages=HELLO)
        assert whole.content[0].text == "Yes."
        async with client.messages.with_streaming_response.create(
            model="claude",
            max_tokens=99,
            messages=HELLO,
            stream=True,
            system="Be brief.",
            extra_body={"new": 3},
        ) as streamed:
            body = await streamed.read()
    for event, expected in zip(body.split(b"\n\n")[:-1], events("anthropic"), strict=True):
        name, data = event.split(b"\ndata: ")
        assert name == expected.split(b"\n")[0]
        assert json.loads(data) == json.loads(expected.partition(b"data: ")[2])
    sent = json.loads(cloud.asked[-1].body)
    assert "claude-x" in cloud.asked[-1].path
    assert (sent["new"], sent["system"], sent["messages"]) == (3, "Be brief.", HELLO)


async def test_a_cloud_s_refusal_keeps_its_status(cloud: Scripted, kind: str) -> None:
    async with claude_on(cloud, kind, "busy") as client:

        async def refused(stream: bool) -> str | None:
            with pytest.raises(anthropic.RateLimitError) as error:
                await client.messages.create(
                    model="claude", max_tokens=99, messages=HELLO, stream=stream
                )
            return error.value.response.headers.get("retry-after")

        assert await asyncio.gather(refused(False), refused(True)) == ["1", "1"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("bedrock", "busy"), ("vertex", "busy"), ("vertex", "error")],
    indirect=["kind"],
)
async def test_a_cloud_that_refuses_or_sends_an_error_event_is_replaced(
    cloud: Scripted, kind: str, fault: str
) -> None:
    async with (
        claude_on(cloud, kind, fault, "claude-x") as client,
        client.messages.stream(model="claude", max_tokens=99, messages=HELLO) as stream,
    ):
        assert await stream.get_final_text() == "".join(WORDS)


@pytest.mark.parametrize("kind", ["vertex"], indirect=True)
async def test_tokens_are_counted_not_answered(cloud: Scripted, kind: str) -> None:
    async with claude_on(cloud, kind, "claude-x") as client:
        counted = await client.messages.count_tokens(model="claude", messages=HELLO)
    assert counted.input_tokens == 12
    assert all("count-tokens" in asked.path for asked in cloud.asked)
