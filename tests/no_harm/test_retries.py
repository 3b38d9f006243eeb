"""Pipecat's own clients retry a failed request twice; a turn that this saves is not lost here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from tests.service.builders import asked, racing, said
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.simulated import close

pytestmark = pytest.mark.live

FAULTS: list[int | None] = [307, 408, 409, 429, 500, 503, 529, None]
"""The status of the first two requests; 307 leads to a closed port, None closes the connection."""
CASES = [
    *((HedgePolicy.fallback(), fault) for fault in FAULTS),
    (HedgePolicy.adaptive(), 503),
    (HedgePolicy.race(2), 503),
]


def flapping(fault: int | None, failures: int = 2) -> AbstractAsyncContextManager[FakeVLLM]:
    """A server that answers after some failures."""
    if fault is None:
        return fake_vllm(drops=failures)
    headers = {"Location": "http://127.0.0.1:1/"} if fault == 307 else {}
    return fake_vllm(rejection=(fault, {"message": "no"}), rejections=failures, headers=headers)


@asynccontextmanager
async def bare(*servers: FakeVLLM) -> AsyncIterator[list[OpenAILLMService]]:
    """Services as Pipecat makes them, with clients of their own."""
    settings = OpenAILLMService.Settings(model="tiny")
    services = [
        OpenAILLMService(api_key="any", base_url=server.url, settings=settings.copy())
        for server in servers
    ]
    yield services
    await close(*services)


async def alone(policy: HedgePolicy | None, fault: int | None) -> tuple[str, int, int]:
    """Ask one provider, without a policy bare: the answer, the errors and the requests."""
    async with flapping(fault) as server, bare(server) as (service,):
        line = await asked(service if policy is None else racing(service, policy=policy))
        return line.text, len(line.errors), len(server.bodies)


async def test_one_provider_alone_is_asked_as_often() -> None:
    """All cases at the same time, since most of it is the pauses between requests."""
    cases = [*((None, fault) for fault in FAULTS), *CASES]
    found = await asyncio.gather(*(alone(*case) for case in cases))
    wrong = [case for case, one in zip(cases, found, strict=True) if one != ("We are open.", 0, 3)]
    assert wrong == []


async def test_of_two_that_fail_in_passing_both_are_asked_again() -> None:
    async with flapping(503) as one, flapping(None, 1000) as two, bare(one, two) as services:
        line = await asked(racing(*services, policy=HedgePolicy.fallback()))
        report = line.reports[0]
        assert line.text == "We are open."
        assert report.winner == "a"
        assert [attempt.provider for attempt in report.attempts] == ["a", "b", "a", "b", "a"]
        assert {attempt.launch_reason for attempt in report.attempts[1:]} == {"failure"}


async def test_an_inference_is_asked_for_again() -> None:
    async with flapping(503) as server, bare(server) as services:
        llm = racing(*services)
        async with Line(llm):
            assert await llm.run_inference(said()) == "We are open."
        assert len(server.bodies) == 3


def test_pipecats_own_retry_stays_without_another_provider() -> None:
    """It asks a second time if the headers do not come in time."""

    def service() -> AnthropicLLMService:
        return AnthropicLLMService(api_key="any", retry_on_timeout=True)

    alone, one, other = service(), service(), service()
    HedgedLLMService([alone])
    HedgedLLMService([one, other])
    assert [each._retry_on_timeout for each in (alone, one, other)] == [True, False, False]
