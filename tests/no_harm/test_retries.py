"""Pipecat's own clients retry a failed request twice; a turn that this saves is not lost here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from tests.service.builders import asked, racing, said
from tests.support.line import Line

pytestmark = pytest.mark.live

FAULTS: list[int | None] = [408, 409, 429, 500, 503, 529, None]
"""The status of every request but each third; None resets the connection."""
CASES = [
    *((HedgePolicy.fallback(), fault) for fault in FAULTS),
    (HedgePolicy.adaptive(), 503),
    (HedgePolicy.race(2), 503),
]


class Flapping:
    """Answers one request in three.

    Attributes:
        url: Where it is.
        requests: How many have come.
        bare: The services that ask it.
    """

    def __init__(self, fault: int | None, answers_each: int):
        self._fault, self._answers_each = fault, answers_each
        self.url = ""
        self.requests = 0
        self.bare: list[OpenAILLMService] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests += 1
        if self.requests % self._answers_each:
            if self._fault is None:
                assert request.transport is not None
                request.transport.abort()
            return web.json_response({"error": {"message": "no"}}, status=self._fault or 500)
        message = {"role": "assistant", "content": "We are open."}
        chunk: dict[str, Any] = {"id": "1", "created": 1, "model": "m"}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response(chunk | {"object": "chat.completion", "choices": [choice]})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for delta, reason in ((message, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk |= {"object": "chat.completion.chunk", "choices": [choice]}
            await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer


@asynccontextmanager
async def flapping(fault: int | None, answers_each: int = 3) -> AsyncIterator[Flapping]:
    app, server = web.Application(), Flapping(fault, answers_each)
    app.router.add_post("/v1/chat/completions", server.answer)
    async with TestServer(app) as listening:
        server.url = str(listening.make_url("/v1"))
        yield server
        for service in server.bare:
            await service._client.close()


def bare(server: Flapping) -> OpenAILLMService:
    """As Pipecat makes it, with a client of its own."""
    settings = OpenAILLMService.Settings(model="m")
    server.bare.append(OpenAILLMService(api_key="any", base_url=server.url, settings=settings))
    return server.bare[-1]


@pytest.mark.parametrize(
    ("policy", "fault"), CASES, ids=[f"{policy.name}-{fault}" for policy, fault in CASES]
)
@pytest.mark.parametrize("is_hedged", [False, True])
async def test_one_provider_alone_is_asked_as_often(
    is_hedged: bool, policy: HedgePolicy, fault: int | None
) -> None:
    async with flapping(fault) as server:
        service = bare(server)
        line = await asked(racing(service, policy=policy) if is_hedged else service)
        assert (line.text, line.errors) == ("We are open.", [])
        assert server.requests == 3


async def test_of_two_that_fail_in_passing_both_are_asked_again() -> None:
    async with flapping(503) as one, flapping(None, answers_each=1000) as two:
        llm = racing(bare(one), bare(two), policy=HedgePolicy.fallback())
        line = await asked(llm)
        report = line.reports[0]
        assert line.text == "We are open."
        assert report.winner == "a"
        assert [attempt.provider for attempt in report.attempts] == ["a", "b", "a", "b", "a"]
        assert {attempt.launch_reason for attempt in report.attempts[1:]} == {"failure"}


async def test_an_inference_is_asked_for_again() -> None:
    async with flapping(503) as server:
        llm = racing(bare(server))
        async with Line(llm):
            assert await llm.run_inference(said()) == "We are open."
        assert server.requests == 3


def test_pipecats_own_retry_stays_where_there_is_nobody_else() -> None:
    """It asks a second time if the headers do not come in time."""

    def service() -> AnthropicLLMService:
        return AnthropicLLMService(api_key="any", retry_on_timeout=True)

    alone, one, other = service(), service(), service()
    HedgedLLMService([alone])
    HedgedLLMService([one, other])
    assert [each._retry_on_timeout for each in (alone, one, other)] == [True, False, False]
