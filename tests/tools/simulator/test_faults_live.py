"""Every fault in every wire format is what the official SDK would report of a real provider."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp
import anthropic
import google.genai.errors
import httpx2
import openai
import pytest

from pipecat_hedge.tools.simulator import Simulator

from .sdk import Sdk

pytestmark = pytest.mark.live

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
CUT_AFTER = "Yes, we do. We deliver within three miles,"
STATUSES = [
    # the SDK's class, Anthropic's type
    (400, "BadRequestError", "invalid_request_error"),
    (401, "AuthenticationError", "authentication_error"),
    (402, "APIStatusError", "billing_error"),
    (403, "PermissionDeniedError", "permission_error"),
    (404, "NotFoundError", "not_found_error"),
    (422, "UnprocessableEntityError", "invalid_request_error"),
    (429, "RateLimitError", "rate_limit_error"),
    (500, "InternalServerError", "api_error"),
    (503, "InternalServerError", "api_error"),
    (529, "InternalServerError", "overloaded_error"),
]
ERRORS: dict[str, dict[str, type[Exception]]] = {
    "openai": {
        "before": openai.APIConnectionError,
        "during": openai.APIConnectionError,
        "in band": openai.APIError,
        "malformed": json.JSONDecodeError,
    },
    "anthropic": {
        "before": anthropic.APIConnectionError,
        "during": httpx2.RemoteProtocolError,
        "in band": anthropic.APIStatusError,
        "malformed": json.JSONDecodeError,
    },
    "google": {
        "before": aiohttp.ClientOSError,
        "during": aiohttp.ClientPayloadError,
        "in band": google.genai.errors.ServerError,
        "malformed": google.genai.errors.UnknownApiResponseError,
    },
}


def model(fault: str) -> str:
    return f"fixed@ttft=0.01,tps=2000,fault={fault}"


def status_error(wire: str, status: int, name: str) -> type[Exception]:
    if wire == "google":
        errors = google.genai.errors
        return errors.ClientError if status < 500 else errors.ServerError
    if wire == "anthropic":
        return anthropic.OverloadedError if status == 529 else getattr(anthropic, name)
    return getattr(openai, name)


async def drain(stream: AsyncIterator[str]) -> None:
    async for _ in stream:
        pass


async def outcomes(sim: Simulator) -> list[tuple[str, int | None]]:
    await sim.wait_idle(1)
    return [(entry.outcome, entry.status) for entry in sim.ledger.requests]


@pytest.mark.parametrize(("status", "name", "kind"), STATUSES)
async def test_an_error_status_raises_the_sdks_class(
    sim: Simulator, sdk: Sdk, status: int, name: str, kind: str
):
    """Streamed or not; a 429 says when to come back."""
    fault = model(f"{status},retry_after=7")
    for answer in (sdk.ask(fault), drain(sdk.stream(fault))):
        with pytest.raises(status_error(sdk.name, status, name)) as raised:
            await answer
        error: Any = raised.value
        assert getattr(error, "status_code", getattr(error, "code", None)) == status
        if sdk.name != "google":
            assert error.response.headers["retry-after"] == "7"
            assert error.request_id
        elif status == 429:
            assert error.status == "RESOURCE_EXHAUSTED"
            assert "'retryDelay': '7s'" in str(error)
        if sdk.name == "anthropic":
            assert (error.body["type"], error.body["error"]["type"]) == ("error", kind)
            assert error.request_id == error.body["request_id"]
    assert await outcomes(sim) == [("failed", status)] * 2


async def patiently(sim: Simulator, secs: float, asking: Coroutine[Any, Any, Any]) -> Any:
    """Wait so long for an answer, from when its request has arrived: an SDK takes time to begin."""
    asked, before = asyncio.ensure_future(asking), len(sim.ledger.requests)
    await sim.ledger.wait_until(lambda ledger: len(ledger.requests) > before, 10.0)
    async with asyncio.timeout(secs):
        return await asked


@pytest.mark.parametrize(
    ("fault", "secs", "text", "error", "streamed", "whole"),
    [
        ("hang", 0.15, "", "timeout", ("aborted", None), ("aborted", None)),
        ("headers_then_silence", 0.15, "", "timeout", ("aborted", 200), ("aborted", None)),
        ("keepalives,delay=0.02", 0.15, "", "timeout", ("aborted", 200), ("aborted", None)),
        ("slow_headers", 0.15, "", "timeout", ("aborted", None), ("aborted", None)),
        ("reasoning_forever", 0.4, "", "timeout", ("aborted", 200), ("aborted", None)),
        ("dribble,delay=0.3", 0.45, "Yes, we", "timeout", ("aborted", 200), ("aborted", None)),
        ("stall", 0.3, CUT_AFTER, "timeout", ("aborted", 200), ("aborted", None)),
        ("empty", 5.0, "", None, ("completed", 200), ("completed", 200)),
        ("whitespace", 5.0, " \n  ", None, ("completed", 200), ("completed", 200)),
        ("reset", 5.0, "", "before", ("failed", None), ("failed", None)),
        ("cut", 5.0, CUT_AFTER, "during", ("failed", 200), ("failed", 200)),
        ("error_in_band", 5.0, "", "in band", ("failed", 200), ("failed", 500)),
        ("error_in_band,after=3", 5.0, "Yes, we do.", "in band", ("failed", 200), ("failed", 500)),
        ("malformed_sse", 5.0, "", "malformed", ("failed", 200), ("failed", 200)),
    ],
)
async def test_a_fault_streamed_and_whole(
    sim: Simulator,
    sdk: Sdk,
    fault: str,
    secs: float,
    text: str,
    error: str | None,
    streamed: tuple[str, int | None],
    whole: tuple[str, int | None],
):
    """The text until the fault, the SDK's error or the client's patience, and the ledger."""
    errors = {**ERRORS[sdk.name], "timeout": TimeoutError}
    with pytest.raises(errors[error]) if error else contextlib.nullcontext():
        await patiently(sim, secs, drain(sdk.stream(model(fault))))
    assert (sdk.answer.text, sdk.answer.tools) == (text, [])
    assert bool(sdk.answer.thoughts) == (fault == "reasoning_forever")
    if error is None:
        assert sdk.answer.reason in ("stop", "end_turn", "STOP")
    assert (sim.ledger.requests[0].first_token_secs is None) == (not text.strip())
    with pytest.raises(Exception) if error else contextlib.nullcontext() as raised:  # noqa: PT011
        answer = await patiently(sim, min(secs, 1.0), sdk.ask(model(fault)))
        assert answer.text == text
    if raised is not None:
        assert isinstance(raised.value, TimeoutError) == (error == "timeout")
    assert await outcomes(sim) == [streamed, whole]


async def test_a_slow_close_keeps_back_nothing(sim: Simulator, sdk: Sdk):
    """The SDKs that read to the last event only do not wait for the end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await drain(sdk.stream(model("slow_close")))
    assert sdk.answer.text == DELIVERY
    assert await outcomes(sim) == [("completed", 200)]


@pytest.mark.parametrize("tools", [(), ("look_up",)])
async def test_a_cut_in_a_tool_call_completes_none(
    sim: Simulator, sdk: Sdk, tools: tuple[str, ...]
):
    with pytest.raises(ERRORS[sdk.name]["during"]):
        await drain(sdk.stream(model("cut_in_tool"), "hello", tools))
    for arguments in sdk.answer.calls.values():
        with pytest.raises(json.JSONDecodeError):
            json.loads(arguments)
    assert await outcomes(sim) == [("failed", 200)]
    assert sim.ledger.requests[0].tokens_sent > 0


async def test_reasoning_comes_before_the_answer(sdk: Sdk):
    await drain(sdk.stream(model("reasoning,delay=0.1,tps=100")))
    assert sdk.answer.text == DELIVERY
    assert sdk.answer.thoughts


async def test_an_endless_answer_goes_on_until_its_client_leaves(sim: Simulator, sdk: Sdk):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await drain(sdk.stream(model("endless,answer=Yes.")))
    assert sdk.answer.text.startswith("Yes." * 9)
    assert await outcomes(sim) == [("aborted", 200)]


async def test_think_tags_stand_before_the_answer(sdk: Sdk):
    await drain(sdk.stream(model("think_tags")))
    assert sdk.answer.text.startswith("<think> The caller asks")
    assert sdk.answer.text.endswith(f"</think>\n\n{DELIVERY}")


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/chat/completions", (b": keep-alive", b'"role":"assistant","content":""')),
        ("/v1/messages", (b"event: ping",)),
        (
            "/v1beta/models/fixed@ttft=0,fault=keepalives,delay=0.01:streamGenerateContent?alt=sse",
            (b"usageMetadata",),
        ),
    ],
    ids=["openai", "anthropic", "google"],
)
async def test_keepalives_keep_coming(sim: Simulator, path: str, parts: tuple[bytes, ...]):
    said = {"role": "user", "content": "hello", "parts": [{"text": "hello"}]}
    body = {"model": "fixed?ttft=0&fault=keepalives&delay=0.01", "stream": True, "max_tokens": 9}
    request = {**body, "messages": [said], "contents": [said]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(sim.url + path, json=request) as response,
    ):
        seen = b""
        while any(seen.count(part) < 3 for part in parts):
            seen += await response.content.readany()
