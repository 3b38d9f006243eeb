"""Every fault on every wire is what the official SDK would report of a real provider."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import anthropic
import google.genai.errors
import httpx2
import openai
import pytest

from pipecat_hedge.tools.simulator import Simulator

from .sdk import AnthropicSdk, GoogleSdk, OpenAISdk, Sdk

pytestmark = pytest.mark.live

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
CUT_AFTER = "Yes, we do. We deliver within three miles,"

ERRORS = {
    "openai": {
        "400": openai.BadRequestError,
        "401": openai.AuthenticationError,
        "402": openai.APIStatusError,
        "403": openai.PermissionDeniedError,
        "404": openai.NotFoundError,
        "422": openai.UnprocessableEntityError,
        "429": openai.RateLimitError,
        "500": openai.InternalServerError,
        "503": openai.InternalServerError,
        "529": openai.InternalServerError,
    },
    "anthropic": {
        "400": anthropic.BadRequestError,
        "401": anthropic.AuthenticationError,
        "402": anthropic.APIStatusError,
        "403": anthropic.PermissionDeniedError,
        "404": anthropic.NotFoundError,
        "422": anthropic.UnprocessableEntityError,
        "429": anthropic.RateLimitError,
        "500": anthropic.InternalServerError,
        "503": anthropic.InternalServerError,
        "529": anthropic.OverloadedError,
    },
    "google": {
        **dict.fromkeys(("400", "401", "402", "403"), google.genai.errors.ClientError),
        **dict.fromkeys(("404", "422", "429"), google.genai.errors.ClientError),
        **dict.fromkeys(("500", "503", "529"), google.genai.errors.ServerError),
    },
}
BROKEN = {
    # before a byte, in the middle of a stream
    "openai": (openai.APIConnectionError, openai.APIConnectionError),
    "anthropic": (anthropic.APIConnectionError, httpx2.RemoteProtocolError),
    "google": (aiohttp.ClientOSError, aiohttp.ClientPayloadError),
}
IN_BAND = {
    "openai": openai.APIError,
    "anthropic": anthropic.APIStatusError,
    "google": google.genai.errors.ServerError,
}
ANTHROPIC_TYPES = {
    "400": "invalid_request_error",
    "401": "authentication_error",
    "402": "billing_error",
    "403": "permission_error",
    "404": "not_found_error",
    "429": "rate_limit_error",
    "500": "api_error",
    "529": "overloaded_error",
}


def model(fault: str, keys: str = "") -> str:
    return f"fixed@ttft=0.01,tps=2000,fault={fault}{keys}"


async def read(stream: AsyncIterator[str], secs: float | None = None) -> str:
    """What comes within some seconds; all of it if no time is given."""
    pieces: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(secs):
            await collect(stream, pieces)
    return "".join(pieces)


async def collect(stream: AsyncIterator[str], pieces: list[str]) -> None:
    async for piece in stream:
        pieces.append(piece)


async def run(sdk: Sdk, name: str, *, stream: bool) -> None:
    if stream:
        await read(sdk.stream(name, "hello"))
    else:
        await sdk.ask(name, "hello")


async def outcome(sim: Simulator) -> tuple[str, int | None]:
    await sim.wait_idle(1)
    (entry,) = sim.ledger.requests
    return entry.outcome, entry.status


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", ERRORS["openai"])
async def test_error_status(sim: Simulator, sdk: Sdk, status: str, stream: bool):
    """An error status raises the SDK's own class for it, streamed or not."""
    with pytest.raises(ERRORS[sdk.name][status]) as raised:
        await run(sdk, model(status), stream=stream)
    error = raised.value
    assert getattr(error, "status_code", getattr(error, "code", None)) == int(status)
    assert await outcome(sim) == ("failed", int(status))


@pytest.mark.parametrize("status", ANTHROPIC_TYPES)
async def test_anthropic_error_body(sim: Simulator, status: str):
    """Anthropic's errors name their type and the request's id, in the body and the header."""
    sdk = AnthropicSdk(sim)
    with pytest.raises(anthropic.APIStatusError) as raised:
        await sdk.ask(model(status), "hello")
    body = raised.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["error"]["type"]) == ("error", ANTHROPIC_TYPES[status])
    assert raised.value.request_id == body["request_id"]
    await sdk.close()


async def test_retry_after(sim: Simulator):
    """The 429 of each wire says when to come back, where that wire says it."""
    openai_sdk, anthropic_sdk, google_sdk = OpenAISdk(sim), AnthropicSdk(sim), GoogleSdk(sim)
    with pytest.raises(openai.RateLimitError) as limited:
        await openai_sdk.ask(model("429", ",retry_after=7"), "hello")
    assert limited.value.response.headers["retry-after"] == "7"
    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.request_id
    with pytest.raises(anthropic.RateLimitError) as overrun:
        await anthropic_sdk.ask(model("429", ",retry_after=7"), "hello")
    assert overrun.value.response.headers["retry-after"] == "7"
    with pytest.raises(google.genai.errors.ClientError) as exhausted:
        await google_sdk.ask(model("429", ",retry_after=7"), "hello")
    assert exhausted.value.status == "RESOURCE_EXHAUSTED"
    assert "'retryDelay': '7s'" in str(exhausted.value)
    await asyncio.gather(openai_sdk.close(), anthropic_sdk.close(), google_sdk.close())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_reset(sim: Simulator, sdk: Sdk, stream: bool):
    """The connection is reset before a byte."""
    with pytest.raises(BROKEN[sdk.name][0]) as raised:
        await run(sdk, model("reset"), stream=stream)
    causes = [raised.value]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    assert any(isinstance(cause, ConnectionResetError) for cause in causes)
    assert await outcome(sim) == ("failed", None)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("hang", None), ("headers_then_silence", 200), ("keepalives", 200), ("slow_headers", None)],
)
async def test_silence(sim: Simulator, sdk: Sdk, fault: str, status: int | None):
    """Nothing that is content ever comes; when the client gives up the ledger says so."""
    keys = ",delay=0.02" if fault == "keepalives" else ""
    assert await read(sdk.stream(model(fault, keys), "hello"), 0.15) == ""
    assert (sdk.answer.text, sdk.answer.thoughts, sdk.answer.tools) == ("", "", [])
    assert await outcome(sim) == ("aborted", status)
    assert sim.ledger.requests[0].tokens_sent == 0
    assert sim.ledger.requests[0].first_token_secs is None


async def test_keepalives_keep_coming(sim: Simulator):
    """Role-only deltas, pings and empty chunks really are on the wire."""
    wanted = {
        "/v1/chat/completions": (b": keep-alive", b'"role":"assistant","content":""'),
        "/v1/messages": (b"event: ping",),
        "/v1beta/models/fixed@ttft=0,fault=keepalives,delay=0.01:streamGenerateContent?alt=sse": (
            b"usageMetadata",
        ),
    }
    said = {"role": "user", "content": "hello", "parts": [{"text": "hello"}]}
    body = {"model": "fixed?ttft=0&fault=keepalives&delay=0.01", "stream": True, "max_tokens": 9}
    async with aiohttp.ClientSession() as session:
        for path, words in wanted.items():
            request = {**body, "messages": [said], "contents": [said]}
            async with session.post(sim.url + path, json=request) as response:
                seen = b""
                while any(seen.count(word) < 3 for word in words):
                    seen += await response.content.readany()
    await sim.wait_idle(1)


@pytest.mark.parametrize("after", [0, 3])
async def test_error_in_band(sim: Simulator, sdk: Sdk, after: int):
    """Status 200, then an error event that the SDK raises, at once or after some tokens."""
    stream = sdk.stream(model("error_in_band", f",after={after}"), "do you deliver")
    pieces: list[str] = []
    with pytest.raises(IN_BAND[sdk.name]):
        await collect(stream, pieces)
    assert pieces == ["Yes,", " we", " do."][:after]
    assert await outcome(sim) == ("failed", 200)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_malformed_sse(sim: Simulator, sdk: Sdk, stream: bool):
    """An event or a body that is not JSON is an error of the SDK's parser."""
    with pytest.raises((json.JSONDecodeError, google.genai.errors.UnknownApiResponseError)):
        await run(sdk, model("malformed_sse"), stream=stream)
    assert await outcome(sim) == ("failed", 200)


async def test_error_in_a_whole_answer(sim: Simulator, sdk: Sdk):
    """Without a stream there is no band for the error to be in: it is a 500."""
    with pytest.raises(ERRORS[sdk.name]["500"]):
        await sdk.ask(model("error_in_band"), "hello")
    assert await outcome(sim) == ("failed", 500)


@pytest.mark.parametrize("fault", ["hang", "keepalives", "reasoning_forever", "stall"])
async def test_silence_instead_of_a_whole_answer(sim: Simulator, sdk: Sdk, fault: str):
    """An answer that is not streamed never comes; the client's leaving is seen."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sdk.ask(model(fault, ",delay=0.01"), "do you deliver")
    assert await outcome(sim) == ("aborted", None)


@pytest.mark.parametrize(("fault", "text"), [("empty", ""), ("whitespace", " \n  ")])
async def test_nothing_to_say(sim: Simulator, sdk: Sdk, fault: str, text: str):
    """A proper end with no content, or with blanks only."""
    assert await read(sdk.stream(model(fault), "hello")) == text
    assert sdk.answer.reason in ("stop", "end_turn", "STOP")
    assert await outcome(sim) == ("completed", 200)
    assert sim.ledger.requests[0].first_token_secs is None
    assert (await sdk.ask(model(fault), "hello")).text == text


async def test_reasoning_forever(sim: Simulator, sdk: Sdk):
    """Reasoning comes in the wire's own form and never becomes an answer."""
    assert await read(sdk.stream(model("reasoning_forever"), "hello"), 1.0) == ""
    assert sdk.answer.thoughts.startswith(" The caller asks about the restaurant,")
    assert await outcome(sim) == ("aborted", 200)
    assert sim.ledger.requests[0].first_token_secs is None


async def test_think_tags(sim: Simulator, sdk: Sdk):
    """Inline reasoning stands in the text, before the answer."""
    text = await read(sdk.stream(model("think_tags"), "do you deliver"))
    assert text.startswith("<think> The caller asks")
    assert text.endswith(f"</think>\n\n{DELIVERY}")


async def test_dribble(sim: Simulator, sdk: Sdk):
    """The first token in time, then one every `delay`."""
    text = await read(sdk.stream(model("dribble", ",delay=0.3"), "do you deliver"), 0.45)
    assert text == "Yes, we"
    assert await outcome(sim) == ("aborted", 200)


async def test_stall(sim: Simulator, sdk: Sdk):
    """The answer stops in the middle of its second sentence and the connection stays open."""
    assert await read(sdk.stream(model("stall"), "do you deliver"), 1.0) == CUT_AFTER
    assert await outcome(sim) == ("aborted", 200)


async def test_cut(sim: Simulator, sdk: Sdk):
    """The connection is closed in mid-sentence; what was sent before arrives."""
    pieces: list[str] = []
    with pytest.raises(BROKEN[sdk.name][1]):
        await collect(sdk.stream(model("cut"), "do you deliver"), pieces)
    assert "".join(pieces) == CUT_AFTER
    assert await outcome(sim) == ("failed", 200)


async def test_cut_of_a_whole_answer(sim: Simulator, sdk: Sdk):
    """An answer that is not streamed is cut in the middle of its body."""
    with pytest.raises(Exception, match=r"Connection error|not completed"):
        await sdk.ask(model("cut"), "do you deliver")
    assert await outcome(sim) == ("failed", 200)


@pytest.mark.parametrize("tools", [(), ("look_up",)])
async def test_cut_in_tool(sim: Simulator, sdk: Sdk, tools: tuple[str, ...]):
    """The connection is closed inside a tool call's arguments: no complete call arrives."""
    with pytest.raises(BROKEN[sdk.name][1]):
        await read(sdk.stream(model("cut_in_tool"), "hello", tools=tools))
    assert sdk.answer.tools == []
    assert await outcome(sim) == ("failed", 200)
    assert sim.ledger.requests[0].tokens_sent > 0


async def test_slow_close(sim: Simulator, sdk: Sdk):
    """The whole answer is there in time, though the response is not ended."""
    assert await read(sdk.stream(model("slow_close"), "do you deliver"), 0.4) == DELIVERY
    assert sdk.answer.reason in ("stop", "end_turn", "STOP")
    assert await outcome(sim) == ("completed", 200)
