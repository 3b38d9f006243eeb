"""How errors and rate limits of real SDKs are read, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.provider_client import attempt_error
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import WIRES, PostedPieces, close, never_called, simulated

pytestmark = pytest.mark.live


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(port=0, seed=1) as simulator:
        yield simulator


@pytest.mark.parametrize("wire", WIRES)
async def test_failures_are_classified(wire: str, sim: Simulator) -> None:
    """Load (``is_busy``), a lost connection (``is_connection``), or neither."""
    busy, lost, neither = (True, False), (False, True), (False, False)
    overloaded = busy if wire == "anthropic" else neither  # its in-band error is overloaded_error
    cases = {
        **dict.fromkeys(["429", "529", "busy_in_band"], busy),
        **dict.fromkeys(["reset", "refused"], lost),
        **dict.fromkeys(["500", "503", "402", "401"], neither),
        "error_in_band": overloaded,
    }

    async def classified(fault: str) -> tuple[bool, bool]:
        refused = fault == "refused"
        behaviour = "fixed" if refused else f"fixed@fault={fault}"
        service = simulated(wire, sim, behaviour, url=sim.refused_url if refused else None)
        async with Line(service) as line:
            await line.ask()
        await close(service)
        (frame,) = line.errors
        error = attempt_error(frame)
        return error.is_busy, error.is_connection

    found = await asyncio.gather(*map(classified, cases))
    assert dict(zip(cases, found, strict=True)) == cases


async def attempt_stats(*services: LLMService[Any], tool: bool = False) -> list[AttemptStats]:
    """What concurrent attempts of the services recorded; their clients are closed."""
    llm = HedgedLLMService(list(services), policy=HedgePolicy.fallback())
    found = [AttemptStats() for _ in services]
    context = LLMContext([{"role": "user", "content": "hello"}])
    if tool:
        schema = FunctionSchema("book_table", "Books.", {}, [], handler=never_called)
        context.set_tools([schema])  # pyright: ignore[reportArgumentType]
    async with Line(llm):
        answers = [
            adapter.answer(context, PostedPieces(), stats)
            for adapter, stats in zip(llm._members.adapters, found, strict=True)
        ]
        await asyncio.gather(*answers)
    await close(*dict.fromkeys(services))
    return found


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["", ",fault=429"], ids=["answer", "rejection"])
async def test_rate_limit_headers_reach_the_attempt(wire: str, fault: str, sim: Simulator) -> None:
    behaviour = f"fixed@requests_left=7,tokens_left=12000,reset=3{fault}"
    (stats,) = await attempt_stats(simulated(wire, sim, behaviour))
    limit = stats.rate_limit
    assert limit is not None
    assert (limit.requests_left, limit.tokens_left) == (7, 12000)
    assert limit.requests_reset_secs == pytest.approx(3, abs=1)
    assert limit.tokens_reset_secs == pytest.approx(3, abs=1)
    assert limit.more(5000) == (2, limit.tokens_reset_secs)
    assert stats.rate_limit_at is not None
    if fault:
        assert stats.error is not None
        assert stats.error.is_busy
        assert stats.first_answer_at is None
    else:
        assert stats.error is None
        assert stats.rate_limit_at < (stats.first_answer_at or 0)


async def test_concurrent_attempts_of_one_client_have_their_own_rate_limits(sim: Simulator) -> None:
    """The client's hook is added once, and another owner's hook stays where it was."""
    seen: list[Any] = []

    async def theirs(response: Any) -> None:
        seen.append(response)

    client = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url)
    hooks = client._client.event_hooks["response"]
    hooks.append(theirs)
    services = [
        AnthropicLLMService(
            api_key="any",
            client=client,
            settings=AnthropicLLMService.Settings(model=f"fixed@requests_left={left}"),
        )
        for left in (1, 2)
    ]
    found = await attempt_stats(*services)
    hooks = client._client.event_hooks["response"]
    assert hooks[0] is theirs
    assert len(hooks) == len(set(hooks))
    assert [s.rate_limit.requests_left for s in found if s.rate_limit is not None] == [1, 2]
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("wire", "behaviour"),
    [("google", "fixed@requests_left=7"), ("openai", "fixed"), ("anthropic", "fixed")],
)
async def test_answer_without_rate_limits_is_complete(
    wire: str, behaviour: str, sim: Simulator
) -> None:
    """Google's client is of another kind; the others' headers say nothing of a limit."""
    (stats,) = await attempt_stats(simulated(wire, sim, behaviour))
    assert (stats.rate_limit, stats.rate_limit_at, stats.completed) == (None, None, True)


@pytest.mark.parametrize("wire", WIRES)
async def test_answer_begins_with_its_first_text_or_complete_call(
    wire: str, sim: Simulator
) -> None:
    """Not with its headers."""
    loop = asyncio.get_running_loop()
    for behaviour, secs, tool in (
        ("fixed@ttft=0.3,headers=0,tps=20", 0.3, False),
        ("fixed@ttft=0.1,tool=book_table", 0.1, True),
    ):
        began = loop.time()
        (stats,) = await attempt_stats(simulated(wire, sim, behaviour), tool=tool)
        assert stats.first_answer_at is not None
        assert began + secs <= stats.first_answer_at < loop.time()
